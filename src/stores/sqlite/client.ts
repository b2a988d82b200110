// What a client needs of the SQLite store: the store alone. A client that is the first to start creates the file or its tables; one that
// an older version made is left to the workers.
import { statSync } from "node:fs";
import type { Clock, Random } from "../../core/clock.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { idSource } from "../../core/ids.ts";
import { Bell } from "./bell.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import { assertNoRepair, finishSwap } from "./doctor/index.ts";
import { assertSchema } from "./schema.ts";
import { SqliteStore } from "./store.ts";
import { whenFree } from "./when-free.ts";

interface ClientDeps {
  readonly clock: Clock;
  readonly random: Random;
}

/** For clients: the store alone. No upgrade, no recovery, no thread, and no lock once the store is there. */
export async function openSqliteClient(deps: ClientDeps, options: DatabaseOptions): Promise<SqliteStore> {
  const openNow = (): SqliteStore => openThere(deps, options);
  if (options.path === ":memory:") return openNow();
  finishSwap(options.path);
  if (!isEmpty(options.path)) {
    try {
      return await whenFree(deps.clock, deps.random, openNow);
    } catch (thrown) {
      if (!lacksTables(thrown)) throw thrown;
    }
  }
  const { createSqlite } = await import("./create.ts");
  await createSqlite(deps, options);
  return whenFree(deps.clock, deps.random, openNow);
}

function openThere(deps: ClientDeps, options: DatabaseOptions): SqliteStore {
  const db = new Database({ ...options, mustExist: true });
  try {
    if (options.path !== ":memory:") assertNoRepair(options.path);
    assertSchema(db);
    return new SqliteStore({
      ...deps,
      db,
      newId: idSource(deps.clock, deps.random),
      bell: options.path === ":memory:" ? null : new Bell(options.path),
    });
  } catch (thrown) {
    db.close();
    throw thrown;
  }
}

/** Without asking SQLite, which would delete the log of an empty file. */
function isEmpty(path: string): boolean {
  return (statSync(path, { throwIfNoEntry: false })?.size ?? 0) === 0;
}

function lacksTables(thrown: unknown): boolean {
  return thrown instanceof OutliveError && thrown.code === ErrorCode.schemaMissing && thrown.data["found"] === 0;
}
