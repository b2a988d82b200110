// Opening the SQLite store: its start-up (doctor/start-up.ts), its schema, its WAL, and what belongs to it beside the port (liveness lock,
// wakeup, maintenance). Everything that can be wrong with the file is said here, before anything runs.
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
import { type Inconsistency, type IntegrityCheck, NOTHING_CHECKED } from "../integrity.ts";
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
import { inOurWords } from "./errors.ts";
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
  /** Default true. With false the file must be there and of this version. */
  readonly migrate?: boolean;
  /** How the start-up goes. Whoever asks for one calls `opened` when it is over: until then others wait. Without it there is none. */
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
  // A repair holds the start lock: whoever starts up waits for its end there, and only who does not is refused here.
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
        const file = programFile("./maintenance-thread", import.meta.url);
        const hears = { up: () => stand.end(), down: () => stand.begin() };
        return stand.until(() =>
          startMaintenanceThread({ clock, events, file, own, ...hears }, maintenanceOptions, host),
        );
      }
      const maintenances = { store, liveness, clock, random, events, newId, processState: checkProcess };
      const maintenance = new Maintenance(maintenances, maintenanceOptions, {
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

/** The connection, of our own version and in our own journal mode. */
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
    if (options.path !== ":memory:") {
      if (!options.readOnly) makeSideFolder(options.path);
      assertNoRepair(options.path);
    }
    return { db, journalWas };
  } catch (thrown) {
    db.close();
    throw inOurWords(`opening ${options.path}`, thrown);
  }
}

/** A worker that took its lock while another process was at its start-up waits for the end of that: it may repair the file. */
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

/** The locks of workers that are not over. */
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

/** The report of the open that could not finish its check says how it ended. */
async function keepVerdict(store: Store, check: IntegrityCheck): Promise<void> {
  const opening = await store.upkeep.latestOpening!().catch(() => null);
  if (opening?.findings.integrity !== "UNFINISHED") return;
  const findings = { ...opening.findings, integrity: check.verdict, check };
  // An engine that was closed meanwhile has told its verdict by the event.
  await store.upkeep.noteOpening!({ ...opening, findings }).catch(() => {});
}

/** A database that lives in one process dies with it: there is nobody to prove anything to. */
function memoryLiveness(): Liveness {
  return {
    take: async () => ({ evidence: { name: null, identity: null }, drop: async () => {} }),
    probe: async () => "unknown",
    clean: async () => false,
  };
}

// What a client needs of the SQLite store: the store alone. A client that is the first to start creates the file or its tables; one that
// an older version made is left to the workers.

interface ClientDeps {
  readonly clock: Clock;
  readonly random: Random;
}

/** For clients: the store alone. No upgrade, no recovery, no thread, and no lock once the store is there. */
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
  const { createSqlite } = await import("./open.ts");
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

/** Without asking SQLite, which would delete the log of an empty file. */
function isEmpty(path: string): boolean {
  return (statSync(path, { throwIfNoEntry: false })?.size ?? 0) === 0;
}

function lacksTables(thrown: unknown): boolean {
  return thrown instanceof OutliveError && thrown.code === ErrorCode.schemaMissing && thrown.data["found"] === 0;
}

// Creating the SQLite store, or bringing it up to date, without working on it: for a client that is the first to start, and for
// `outlive migrate up`. It goes the way of `open`, so the start lock keeps it apart from other openings and from a repair.

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
