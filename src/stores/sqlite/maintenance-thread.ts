// What the maintenance thread opens on SQLite: its own connection to the file.
import { systemClock as clock, systemRandom as random } from "../../platform/clock.ts";
import { maintainInThread } from "../../recovery/maintenance-thread.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import { wrapError } from "./errors.ts";
import { lockFileLiveness } from "./lock.ts";
import { sqliteStore } from "./store.ts";
import { WakeupChannel } from "./wakeup.ts";
import { whenFree } from "./writer.ts";

/** Which file to open, and which of its locks is this process's own. */
export interface SqliteMaintenance {
  readonly database: DatabaseOptions;
  readonly ownLock: string;
}

maintainInThread<SqliteMaintenance>(async ({ database, ownLock }, { options, newId }) => {
  const db = await whenFree(clock, random, () => new Database(database));
  const store = sqliteStore({ db, clock, random, newId, wakeup: new WakeupChannel(database.path) });
  const liveness = lockFileLiveness(database.path, options.bootId, new Set([ownLock]));
  return { store, liveness, close: () => store.close() };
}, wrapError);
