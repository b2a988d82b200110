// Opens the SQLite store: its start-up (doctor/start-up.ts), its schema, its WAL, and what belongs to it in addition to
// the port (liveness lock, wake-up, maintenance). Every problem with the file is reported here, before anything runs.
import { statSync } from "node:fs";
import { idSource } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError } from "../../job/errors.ts";
import type { Emitter } from "../../job/events.ts";
import type { Clock, Random } from "../../job/time.ts";
import { checkProcess, processIdentity } from "../../platform/identity.ts";
import { programFile } from "../../platform/program-file.ts";
import { InterimHeartbeat } from "../../recovery/heartbeat.ts";
import { Maintenance } from "../../recovery/maintenance.ts";
import { startMaintenanceThread } from "../../recovery/maintenance-thread.ts";
import type { Backend, StartUpOptions } from "../backend.ts";
import { type Inconsistency, type IntegrityCheck, NOTHING_CHECKED } from "../store-parts.ts";
import type { Liveness } from "../liveness.ts";
import type { Store } from "../port.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import {
  assertNoRepair,
  type BackgroundCheck,
  checkInBackground,
  checkpointAtOpen,
  findInconsistencies,
  finishSwap,
  isUnderRepair,
  journalRestored,
  startUp,
  untilNoStartUp,
  walNotes,
} from "./doctor/index.ts";
import { wrapError } from "./errors.ts";
import { lockFileLiveness, makeSideFolder, removeStrayLocks } from "./lock.ts";
import type { SqliteMaintenance } from "./maintenance-thread.ts";
import { assertReleased, assertSchema, migrate, SCHEMA_VERSION, schemaVersion } from "./schema.ts";
import { sqliteStore } from "./store.ts";
import type { SqliteTransaction } from "./transaction.ts";
import { WakeupChannel } from "./wakeup.ts";
import { whenFree } from "./writer.ts";

export interface OpenSqliteDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly bootId: string;
}

export interface SqliteBackend extends Backend {
  readonly store: Store<SqliteTransaction>;
}

export interface OpenKind {
  /** Default true. With false the file must exist and have this version. */
  readonly migrate?: boolean;
  /**
   * How the start-up runs. A caller that requests one calls `opened` when it has finished; other processes wait until
   * then. Omitted: no start-up.
   */
  readonly startUp?: StartUpOptions;
}

export async function openSqlite(
  deps: OpenSqliteDeps,
  options: DatabaseOptions,
  { migrate: mayMigrate = true, startUp: how }: OpenKind = {},
): Promise<SqliteBackend> {
  const { clock, random, events, bootId } = deps;
  const memory = options.path === ":memory:";
  const beganMono = clock.mono();
  // A repair holds the start lock. A process with a start-up waits for it there; only one without a start-up is refused
  // here.
  if (!memory && !(how && isUnderRepair(options.path))) finishSwap(options.path, options.readOnly);
  const begun = memory || !how ? null : await startUp(deps, options, how);
  const newId = idSource(clock, random);
  let opened: { readonly db: Database; readonly journalWas: string | null };
  try {
    opened = await openDatabase(deps, options, mayMigrate);
  } catch (thrown) {
    begun?.lock.drop(null);
    throw thrown;
  }
  const { db, journalWas } = opened;
  let background: BackgroundCheck | undefined;
  const unwatchable = (text: string): void => deps.events.emit("store.notice", { about: "wake-ups", text });
  const wakeup = memory || options.readOnly ? null : new WakeupChannel(options.path, unwatchable);
  const onClose = (): void => {
    background?.stop();
    begun?.lock.drop(null);
  };
  const identify = mayMigrate && !memory;
  const store = sqliteStore({ db, clock, random, newId, bootId, wakeup, identify, events, onClose });
  const liveness = memory ? memoryLiveness() : afterStartUps(options.path, clock, bootId);
  return {
    store,
    liveness,
    schemaVersion: SCHEMA_VERSION,
    private: memory,
    async startMaintenance(maintenanceOptions, host) {
      if (!memory) {
        const ownLock = `${maintenanceOptions.worker}.lock`;
        const own: SqliteMaintenance = { database: options, ownLock };
        const stand = new InterimHeartbeat({ clock, store }, maintenanceOptions, host);
        const file = programFile("stores/sqlite/maintenance-thread");
        const hears = { up: () => stand.end(), down: () => stand.begin() };
        return stand.until(() =>
          startMaintenanceThread({ clock, events, file, own, ...hears }, maintenanceOptions, host),
        );
      }
      const maintenances = { store, liveness, clock, random, events, newId, processState: checkProcess };
      // In the thread of the loop it could release nothing while the loop is blocked.
      const { ahead: _, ...inLoop } = maintenanceOptions;
      const maintenance = new Maintenance(maintenances, inLoop, {
        ...host,
        loopLagMs: () => 0,
        kill: () => {},
      });
      maintenance.start();
      return { beat: (leases) => void maintenance.beat(leases), stop: () => maintenance.stop() };
    },
    async prepare(alone) {
      if (memory) return NOTHING_CHECKED;
      const { frames, heldBack } = checkpointAtOpen(db, alone, events);
      const { integrity = "NOT_CHECKED", check = null, repair = null } = begun ?? {};
      const inconsistencies = begun && alone ? await inconsistenciesOf(db, store, begun.lock.left, events) : [];
      const found = { integrity, check, repair, inconsistencies, ...walNotes(frames, heldBack, journalWas) };
      return { ...found, tookMs: Math.round(clock.mono() - beganMono) };
    },
    async opened(well) {
      begun?.lock.drop(well ? { id: newId(), integrity: begun.integrity } : null);
      if (well && begun?.check?.verdict === "UNFINISHED") background = checkInBackground(options.path, events);
      void background?.verdict.then((check) => check && keepVerdict(store, check));
    },
    close: () => store.close(),
    async removeStrays() {
      if (memory) return [];
      return removeStrayLocks(options.path, await namedLocks(store));
    },
  };
}

/** The connection, with our schema version and journal mode. */
async function openDatabase(
  { clock, random, events }: OpenSqliteDeps,
  options: DatabaseOptions,
  mayMigrate: boolean,
): Promise<{ db: Database; journalWas: string | null }> {
  const db = await whenFree(clock, random, () => new Database({ ...options, asIs: true }));
  try {
    if (!mayMigrate || schemaVersion(db) > SCHEMA_VERSION) assertSchema(db);
    else assertReleased(db);
    const journalWas = await whenFree(clock, random, () => db.useWal());
    if (journalWas !== null) events.emit("store.upkeep", journalRestored(journalWas));
    if (mayMigrate) await whenFree(clock, random, () => migrate(db));
    db.undoInMemory();
    if (options.path !== ":memory:") {
      if (!options.readOnly) makeSideFolder(options.path);
      assertNoRepair(options.path);
    }
    return { db, journalWas };
  } catch (thrown) {
    db.close();
    throw wrapError(`opening ${options.path}`, thrown);
  }
}

/**
 * A worker that took its lock during another process's start-up waits for its end, because the start-up may repair the
 * file.
 */
function afterStartUps(path: string, clock: Clock, bootId: string): Liveness {
  const liveness = lockFileLiveness(path, bootId);
  return {
    ...liveness,
    async take(worker) {
      const lock = await liveness.take(worker);
      try {
        await untilNoStartUp(path, clock);
        return lock;
      } catch (thrown) {
        await lock.drop(true);
        throw thrown;
      }
    },
  };
}

/** The locks of workers that have not ended. */
async function namedLocks(store: Store): Promise<ReadonlySet<string>> {
  const rows = await store.workers({});
  return new Set(rows.flatMap(({ lock }) => (lock.name === null ? [] : [lock.name])));
}

async function inconsistenciesOf(
  db: Database,
  store: Store,
  leftLocks: readonly string[],
  events: Emitter,
): Promise<readonly Inconsistency[]> {
  try {
    const named = await namedLocks(store);
    const stray = leftLocks.filter((name) => !named.has(name));
    const inconsistencies = findInconsistencies(db, stray);
    if (inconsistencies.length > 0) events.emit("store.inconsistent", { inconsistencies });
    return inconsistencies;
  } catch (thrown) {
    events.emit("store.failed", { doing: "looking for inconsistencies", error: toStoredError(thrown), retryInMs: 0 });
    return [];
  }
}

/** Adds the final verdict to the report of the open that could not finish its check. */
async function keepVerdict(store: Store, check: IntegrityCheck): Promise<void> {
  const opening = await store.upkeep.latestOpening!().catch(() => null);
  if (opening?.findings.integrity !== "UNFINISHED") return;
  const findings = { ...opening.findings, integrity: check.verdict, check };
  // If the engine was closed meanwhile, the event has already reported the verdict.
  await store.upkeep.noteOpening!({ ...opening, findings }).catch(() => {});
}

/** An in-memory database dies with its process: no other process needs a proof. */
function memoryLiveness(): Liveness {
  return {
    take: async () => ({ evidence: { name: null, identity: null }, drop: async () => {} }),
    probe: async () => "unknown",
    clean: async () => false,
  };
}

// What a client needs of the SQLite store: the store alone. A client that starts first creates the file or its tables.
// A file of an older version is left to the workers to upgrade.

interface ClientDeps {
  readonly clock: Clock;
  readonly random: Random;
}

/** For clients: the store alone. No upgrade, no recovery, no thread, and no lock once the store exists. */
export async function openSqliteClient(deps: ClientDeps, options: DatabaseOptions): Promise<Store> {
  const openNow = (): Store => openThere(deps, options);
  if (options.path === ":memory:") return openNow();
  finishSwap(options.path);
  if (!isEmpty(options.path)) {
    try {
      return await whenFree(deps.clock, deps.random, openNow);
    } catch (thrown) {
      if (!lacksTables(thrown)) throw thrown;
    }
  }
  await createSqlite(deps, options);
  return whenFree(deps.clock, deps.random, openNow);
}

function openThere(deps: ClientDeps, options: DatabaseOptions): Store {
  const db = new Database({ ...options, mustExist: true });
  try {
    if (options.path !== ":memory:") assertNoRepair(options.path);
    assertSchema(db);
    return sqliteStore({
      ...deps,
      db,
      newId: idSource(deps.clock, deps.random),
      wakeup: options.path === ":memory:" ? null : new WakeupChannel(options.path),
    });
  } catch (thrown) {
    db.close();
    throw thrown;
  }
}

/** Does not ask SQLite, which would delete the log of an empty file. */
function isEmpty(path: string): boolean {
  return (statSync(path, { throwIfNoEntry: false })?.size ?? 0) === 0;
}

function lacksTables(thrown: unknown): boolean {
  return thrown instanceof OutliveError && thrown.code === ErrorCode.schemaMissing && thrown.data["found"] === 0;
}

// Creates or upgrades the SQLite store without working on it: for a client that starts first, and for `outlive migrate
// up`. It uses the same path as `open`, so the start lock serializes it with other opens and with a repair.

export async function createSqlite(
  deps: { readonly clock: Clock; readonly random: Random },
  options: DatabaseOptions,
): Promise<void> {
  const events = { emit: () => {}, has: () => false };
  const { bootId } = processIdentity();
  const startUp = { integrityCheck: false, repair: "off" } as const;
  const backend = await openSqlite({ ...deps, events, bootId }, options, { startUp });
  await backend.opened?.(true);
  await backend.close();
}
