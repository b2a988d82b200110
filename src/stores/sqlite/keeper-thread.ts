// What the keeper's thread opens on SQLite: its own connection to the file.
import { systemClock as clock, systemRandom as random } from "../../platform/clock.ts";
import { keepInThread } from "../../platform/keep-in-thread.ts";
import { Bell } from "./bell.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import { lockFileLiveness } from "./lock.ts";
import { SqliteStore } from "./store.ts";
import { whenFree } from "./when-free.ts";

/** Which file, and which lock in it is this process's own. */
export interface SqliteKeeper {
  readonly database: DatabaseOptions;
  readonly ownLock: string;
}

keepInThread<SqliteKeeper>(async ({ database, ownLock }, { options, newId }) => {
  const db = await whenFree(clock, random, () => new Database(database));
  const store = new SqliteStore({ db, clock, random, newId, bell: new Bell(database.path) });
  const liveness = lockFileLiveness(database.path, options.bootId, new Set([ownLock]));
  return { store, liveness, close: () => store.close() };
});
