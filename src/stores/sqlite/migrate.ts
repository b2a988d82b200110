// The migrations of a SQLite file, as people list and run them. The steps themselves are in schema.ts; every open runs
// them, too.
import { existsSync } from "node:fs";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { systemClock, systemRandom } from "../../platform/clock.ts";
import type { MigrationInfo, StoreMigrations } from "../backend.ts";
import { stepChecksum } from "../released-steps.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import { createSqlite } from "./open.ts";
import { MIGRATIONS, stepsOf } from "./schema.ts";

export function fileMigrations(url: string, options: DatabaseOptions): StoreMigrations {
  const { path } = options;
  return {
    title: url,
    place: { store: "sqlite" },
    note: "A worker also upgrades a SQLite file when it opens it.",
    list: async () => list(path),
    async up(to) {
      if (to !== undefined)
        throw new OutliveError(
          ErrorCode.optionInvalid,
          "A SQLite file is always upgraded to the latest migration.",
          "Run `outlive migrate up` without --to.",
          { to },
        );
      if (path === ":memory:") return []; // Every open creates its own.
      const missing = list(path).filter(({ applied }) => !applied);
      await createSqlite({ clock: systemClock, random: systemRandom }, options);
      return missing.map(({ number }) => number);
    },
    async down() {
      throw new OutliveError(
        ErrorCode.optionInvalid,
        "A SQLite file can't be downgraded.",
        "Restore a backup that the older version wrote.",
      );
    },
  };
}

function list(path: string): MigrationInfo[] {
  const applied = path !== ":memory:" && existsSync(path) ? appliedSteps(path) : [];
  return MIGRATIONS.map(({ name, sql }, i) => ({
    number: i + 1,
    name,
    applied: i < applied.length,
    checksum: stepChecksum(sql),
    storedChecksum: applied[i]?.stored ?? null,
  }));
}

function appliedSteps(path: string): ReturnType<typeof stepsOf> {
  const options = { path, readOnly: true, asIs: true, allowUnsafeSqlite: true, allowNetworkFilesystem: true };
  const db = new Database(options);
  try {
    return stepsOf(db);
  } finally {
    db.close();
  }
}
