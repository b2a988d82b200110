// What a client needs of the SQLite store: the store alone, on a file that is there already.
import type { Clock, Random } from "../../core/clock.ts";
import { idSource } from "../../core/ids.ts";
import { Bell } from "./bell.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import { assertNoRepair, finishSwap } from "./doctor/index.ts";
import { assertSchema } from "./schema.ts";
import { SqliteStore } from "./store.ts";

/** For clients: the store alone. No migration, no recovery, no thread, no lock. */
export function openSqliteClient(
  deps: { readonly clock: Clock; readonly random: Random },
  options: DatabaseOptions,
): SqliteStore {
  if (options.path !== ":memory:") finishSwap(options.path);
  const db = new Database({ ...options, mustExist: true });
  try {
    if (options.path !== ":memory:") assertNoRepair(options.path);
    assertSchema(db);
    return new SqliteStore({
      ...deps,
      db,
      newId: idSource(deps.clock, deps.random),
      bell: options.path === ":memory:" || options.readOnly ? null : new Bell(options.path),
    });
  } catch (thrown) {
    db.close();
    throw thrown;
  }
}
