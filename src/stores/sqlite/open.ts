// Opening the SQLite store: the file, its safety, its schema, its WAL, and what belongs to it beside the port (liveness lock,
// bell, keeper). Everything that can be wrong with the file is said here, before anything runs.
import type { Clock, Random } from "../../core/clock.ts";
import type { Emitter } from "../../core/events.ts";
import { idSource } from "../../core/ids.ts";
import type { Backend } from "../../core/backend.ts";
import { Keeper } from "../../core/keeper.ts";
import type { Liveness } from "../../core/liveness.ts";
import { Bell } from "./bell.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import { startKeeperThread } from "../../platform/keeper-thread.ts";
import type { SqliteKeeper } from "./keeper-thread.ts";
import { lockFileLiveness, makeSideFolder, removeStrayLocks } from "./lock.ts";
import { assertSchema, migrate, SCHEMA_VERSION, schemaVersion } from "./schema.ts";
import { SqliteStore } from "./store.ts";
import { whenFree } from "./when-free.ts";

const KEEPER = new URL("./keeper-thread.ts", import.meta.url);

export interface OpenSqliteDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly bootId: string;
}

export interface SqliteBackend extends Backend {
  readonly store: SqliteStore;
}

/** With `migrate: false` the file must be there and of this version. */
export async function openSqlite(
  deps: OpenSqliteDeps,
  options: DatabaseOptions,
  { migrate: mayMigrate = true }: { readonly migrate?: boolean } = {},
): Promise<SqliteBackend> {
  const { clock, random, events, bootId } = deps;
  const memory = options.path === ":memory:";
  const db = await whenFree(clock, random, () => new Database(options));
  try {
    if (!mayMigrate || schemaVersion(db) > SCHEMA_VERSION) assertSchema(db);
    await whenFree(clock, random, () => migrate(db));
    if (!memory) makeSideFolder(options.path);
  } catch (thrown) {
    db.close();
    throw thrown;
  }
  const newId = idSource(clock, random);
  const store = new SqliteStore({ db, clock, random, newId, bell: memory ? null : new Bell(options.path) });
  const liveness = memory ? memoryLiveness() : lockFileLiveness(options.path, bootId);
  return {
    store,
    liveness,
    schemaVersion: SCHEMA_VERSION,
    private: memory,
    async startKeeper(keeperOptions, host) {
      if (!memory) {
        const ownLock = `${keeperOptions.worker}.lock`;
        const own: SqliteKeeper = { database: options, ownLock };
        return startKeeperThread({ clock, events, file: KEEPER, own }, keeperOptions, host);
      }
      const keeper = new Keeper({ store, liveness, clock, random, events, newId }, keeperOptions, {
        ...host,
        loopLagMs: () => 0,
        kill: () => {},
      });
      keeper.start();
      return { beat: () => void keeper.beat(), lastBeatMono: () => null, stop: () => keeper.stop() };
    },
    async prepare(alone) {
      if (memory) return { integrity: "NOT_CHECKED", walFrames: 0 };
      const row = db.sql("PRAGMA wal_checkpoint(PASSIVE)").get() as { log: number };
      if (alone) db.sql("PRAGMA wal_checkpoint(TRUNCATE)").get();
      return { integrity: "NOT_CHECKED", walFrames: Math.max(0, row.log) };
    },
    close: () => store.close(),
    async removeStrays() {
      if (memory) return [];
      const rows = await store.workers({ over: true });
      return removeStrayLocks(
        options.path,
        new Set(
          rows.flatMap((row) =>
            row.lock.name === null || row.state === "stopped" || row.state === "gone" ? [] : [row.lock.name],
          ),
        ),
      );
    },
  };
}

/** A database that lives in one process dies with it: there is nobody to prove anything to. */
function memoryLiveness(): Liveness {
  return {
    take: async () => ({ evidence: { name: null, identity: null }, drop: async () => {} }),
    probe: async () => "unknown",
    clean: async () => false,
  };
}
