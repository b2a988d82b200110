// Opening the SQLite store: its start-up (doctor/start-up.ts), its schema, its WAL, and what belongs to it beside the port (liveness lock,
// bell, keeper). Everything that can be wrong with the file is said here, before anything runs.
import type { Clock, Random } from "../../core/clock.ts";
import { toStoredError } from "../../core/errors.ts";
import type { Emitter } from "../../core/events.ts";
import { idSource } from "../../core/ids.ts";
import type { Backend, StartUpOptions } from "../../core/backend.ts";
import { type Inconsistency, type IntegrityCheck, NOTHING_CHECKED } from "../../core/integrity.ts";
import { Keeper } from "../../core/keeper.ts";
import type { Liveness } from "../../core/liveness.ts";
import { StandIn } from "../../core/stand-in.ts";
import { Bell } from "./bell.ts";
import { Database, type DatabaseOptions } from "./database.ts";
import {
  assertNoRepair,
  type BackgroundCheck,
  checkInBackground,
  checkpointAtOpen,
  findInconsistencies,
  finishSwap,
  isUnderRepair,
  startUp,
  untilNoStartUp,
} from "./doctor/index.ts";
import { inOurWords } from "./errors.ts";
import { checkProcess } from "../../platform/identity.ts";
import { startKeeperThread } from "../../platform/keeper-thread.ts";
import type { SqliteKeeper } from "./keeper-thread.ts";
import { lockFileLiveness, makeSideFolder, removeStrayLocks } from "./lock.ts";
import { assertReleased, assertSchema, migrate, SCHEMA_VERSION, schemaVersion } from "./schema.ts";
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
  const bell = memory || options.readOnly ? null : new Bell(options.path);
  const onClose = (): void => {
    background?.stop();
    begun?.lock.drop(null);
  };
  const store = new SqliteStore({ db, clock, random, newId, bootId, bell, onClose });
  // Shares the transaction of the next write, which is the declaration of kinds; if that fails, the next open does it.
  if (mayMigrate && !memory) void store.identify().catch(() => {});
  const liveness = memory ? memoryLiveness() : afterStartUps(options.path, clock, bootId);
  return {
    store,
    liveness,
    schemaVersion: SCHEMA_VERSION,
    private: memory,
    async startKeeper(keeperOptions, host) {
      if (!memory) {
        const ownLock = `${keeperOptions.worker}.lock`;
        const own: SqliteKeeper = { database: options, ownLock };
        const stand = new StandIn({ clock, store }, keeperOptions, host);
        const hears = { up: () => stand.end(), down: () => stand.begin() };
        return stand.until(() =>
          startKeeperThread({ clock, events, file: KEEPER, own, ...hears }, keeperOptions, host),
        );
      }
      const keepers = { store, liveness, clock, random, events, newId, processState: checkProcess };
      const keeper = new Keeper(keepers, keeperOptions, {
        ...host,
        loopLagMs: () => 0,
        kill: () => {},
      });
      keeper.start();
      return { beat: () => void keeper.beat(), stop: () => keeper.stop() };
    },
    async prepare(alone) {
      if (memory) return NOTHING_CHECKED;
      const { frames, heldBack } = checkpointAtOpen(db, alone, events);
      const { integrity = "NOT_CHECKED", check = null, repair = null } = begun ?? {};
      const inconsistencies = begun && alone ? await inconsistenciesOf(db, store, begun.lock.left, events) : [];
      const found = { check, repair, inconsistencies, journalWas, walHeldBack: heldBack };
      return { integrity, walFrames: frames, ...found, tookMs: Math.round(clock.mono() - beganMono) };
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
    if (journalWas !== null) events.emit("journal.restored", { was: journalWas });
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
async function namedLocks(store: SqliteStore): Promise<ReadonlySet<string>> {
  const rows = await store.workers({});
  return new Set(rows.flatMap(({ lock }) => (lock.name === null ? [] : [lock.name])));
}

async function inconsistenciesOf(
  db: Database,
  store: SqliteStore,
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
async function keepVerdict(store: SqliteStore, check: IntegrityCheck): Promise<void> {
  const opening = await store.latestOpening().catch(() => null);
  if (opening?.findings.integrity !== "UNFINISHED") return;
  const findings = { ...opening.findings, integrity: check.verdict, check };
  // An engine that was closed meanwhile has told its verdict by the event.
  await store.noteOpening({ ...opening, findings }).catch(() => {});
}

/** A database that lives in one process dies with it: there is nobody to prove anything to. */
function memoryLiveness(): Liveness {
  return {
    take: async () => ({ evidence: { name: null, identity: null }, drop: async () => {} }),
    probe: async () => "unknown",
    clean: async () => false,
  };
}
