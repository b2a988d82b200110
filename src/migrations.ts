// Migrations of a store as the command line and deploy scripts use them. SQLite's file also migrates when a worker opens it; a
// PostgreSQL schema is migrated here and nowhere else, because a worker's role has no such right.
import { existsSync } from "node:fs";
import { createFile, storeNameOf, type StoreOptions } from "./backends.ts";
import { systemClock, systemRandom } from "./platform/clock.ts";
import type { PostgresOptions } from "./stores/postgres/address.ts";
import type { MigrationInfo } from "./stores/postgres/migrate.ts";
import { sqlitePath } from "./stores/sqlite/address.ts";

export type { MigrationInfo };

export interface StoreMigrations {
  readonly schema: string;
  list(): Promise<readonly MigrationInfo[]>;
  /** Brings the store up to migration `to` (default: the latest) and answers the numbers of what was done. */
  up(to?: number): Promise<readonly number[]>;
  /** Takes back everything above `to` (default: the latest one only). Refuses while unfinished jobs exist unless forced. */
  down(options: { readonly to?: number; readonly force?: boolean }): Promise<readonly number[]>;
}

/** The migrations of the PostgreSQL store at this address; null: it is a SQLite file. Nothing is connected before it is asked. */
export async function migrationsOf(
  url: string,
  { postgres = {} }: { readonly postgres?: PostgresOptions } = {},
): Promise<StoreMigrations | null> {
  if (storeNameOf(url) !== "postgres") return null;
  const [{ addressOf }, { newClient }, { listMigrations, migrate, migrateDown }] = await Promise.all([
    import("./stores/postgres/address.ts"),
    import("./stores/postgres/connection.ts"),
    import("./stores/postgres/migrate.ts"),
  ]);
  const { client, schema } = addressOf(url, postgres);
  const connected = async <T>(work: (session: Awaited<ReturnType<typeof newClient>>) => Promise<T>): Promise<T> => {
    const session = await newClient(client);
    try {
      return await work(session);
    } finally {
      await session.end().catch(() => {});
    }
  };
  return {
    schema,
    list: () => connected((session) => listMigrations(session, schema)),
    up: (to) => connected((session) => migrate(session, schema, to)),
    down: ({ to, force = false }) =>
      connected(async (session) => {
        const latest = (await listMigrations(session, schema)).filter(({ applied }) => applied).length;
        return migrateDown(session, schema, { target: to ?? Math.max(0, latest - 1), force });
      }),
  };
}

/** One migration of a SQLite file. */
export type FileMigrationInfo = Pick<MigrationInfo, "number" | "name" | "applied" | "checksum" | "storedChecksum">;

/** The migrations of the SQLite file at this address. Writes nothing. */
export async function fileMigrations(url: string): Promise<readonly FileMigrationInfo[]> {
  const [{ Database }, { MIGRATIONS, stepsOf }, { stepChecksum }] = await Promise.all([
    import("./stores/sqlite/database.ts"),
    import("./stores/sqlite/schema.ts"),
    import("./stores/released-steps.ts"),
  ]);
  const path = sqlitePath(url);
  const read = (): ReturnType<typeof stepsOf> => {
    const db = new Database({
      path,
      readOnly: true,
      asIs: true,
      allowUnsafeSqlite: true,
      allowNetworkFilesystem: true,
    });
    try {
      return stepsOf(db);
    } finally {
      db.close();
    }
  };
  const applied = path !== ":memory:" && existsSync(path) ? read() : [];
  return MIGRATIONS.map(({ name, sql }, i) => ({
    number: i + 1,
    name,
    applied: i < applied.length,
    checksum: stepChecksum(sql),
    storedChecksum: applied[i]?.stored ?? null,
  }));
}

/** Creates the SQLite file at this address, or brings it up to date, and returns the numbers of what was done. */
export async function migrateFile(url: string, options: StoreOptions = {}): Promise<readonly number[]> {
  if (sqlitePath(url) === ":memory:") return []; // Every open creates one of its own.
  const missing = (await fileMigrations(url)).filter(({ applied }) => !applied);
  await createFile(url, options, { clock: systemClock, random: systemRandom });
  return missing.map(({ number }) => number);
}

/** What to print. */
export interface PrintedSql {
  /** Migrations from..to, up or down. Default: all, up. */
  readonly migrations?: { readonly from: number; readonly to: number; readonly direction: "up" | "down" };
  /** The schedule for pg_cron. */
  readonly cron?: boolean;
  /** The roles and their grants. */
  readonly roles?: boolean;
}

/** The SQL of a PostgreSQL store, to be read and run with psql. Asks no server. */
export async function printedSql(schema: string, { migrations, cron, roles }: PrintedSql): Promise<string> {
  const [{ MIGRATIONS }, { pgCronText, scriptText }, { rolesText }, { quotedSchema }] = await Promise.all([
    import("./stores/postgres/migrations/index.ts"),
    import("./stores/postgres/migrations/text.ts"),
    import("./stores/postgres/roles.ts"),
    import("./stores/postgres/schema.ts"),
  ]);
  quotedSchema(schema);
  const numbers = MIGRATIONS.map((_, i) => i + 1);
  const script = ({ from, to, direction }: NonNullable<PrintedSql["migrations"]>): string => {
    const chosen = numbers.filter((number) => number >= from && number <= to);
    return scriptText(schema, direction === "up" ? chosen : chosen.toReversed(), direction);
  };
  return [
    ...(migrations ? [script(migrations)] : []),
    ...(roles ? [rolesText(schema)] : []),
    ...(cron ? [pgCronText(schema)] : []),
  ].join("\n");
}
