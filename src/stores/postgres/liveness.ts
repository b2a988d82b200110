// The proof of life on PostgreSQL: a session advisory lock per worker, held by the maintenance connection. A missing
// lock proves the end of a session, not of a process. Contact with a worker is lost when its lock stays missing
// throughout `contact`, while the server's run and the watcher's own session stay the same. When either of these
// changes, a lock may be missing for a reason that says nothing about its worker, so the watcher waits 5 s and checks
// again. Only the kernel proves deaths (recovery/failure-detector.ts).
//
// One elected process checks all workers by reading the server's table of locks. The others try the few locks of their
// neighbours, which costs next to nothing however many workers there are. Behind a pooler nothing can be proven, and
// heartbeats decide.
import { createHash } from "node:crypto";
import { type Clock, pause, type Random } from "../../job/time.ts";
import type { Liveness, Probe, WorkerRow } from "../liveness.ts";
import { type DirectSession, type Greeting, RUN } from "./direct-session.ts";
import { wrapError } from "./errors.ts";

export interface LivenessDeps {
  readonly session: DirectSession;
  readonly schema: string;
  readonly clock: Clock;
  readonly random: Random;
  /** How long a lock must be missing before contact with its worker is lost. */
  readonly contactMs: number;
  /** The worker of this process, whose lock another part of the process holds. */
  readonly ownWorker?: string;
  /** About how many workers there are; omitted: few. Followers call it once a minute, and more often at first. */
  readonly countWorkers?: () => Promise<number>;
  /** Called after each check with the server's clock, in ms, and when the request was sent (monotonic). */
  readonly onServerNow?: (now: number, sentAtMono: number) => void;
  /** Called when the watcher begins to hold back, with the reason and the duration. */
  readonly onHold?: (why: string, holdMs: number) => void;
}

/** Two checks further apart than this do not show that a lock was missing all the time between them. */
const CHECKS_APART_MS = 2_000;
export const HOLD_MS = 5_000;
/** A terminated session is usually gone within these pauses. */
const ENDING_MS = [25, 50, 100];
/**
 * Followers try to take the detector's role. With more workers than this each tries less often, but at least once
 * every ASK_AT_LEAST_MS.
 */
const FEW = 8;
const ASK_AT_LEAST_MS = 10_000;
/** At first a fleet grows, so workers are counted again soon, then less and less often. */
const COUNT_FIRST_MS = 1_000;
const COUNT_EVERY_MS = 60_000;

interface WatchedLock {
  readonly name: string;
  readonly identity: string;
  /** The worker's heartbeats when its row was read. */
  readonly beats: number;
}

interface Missing {
  readonly sinceMono: number;
  readonly lastMono: number;
  readonly era: string;
  readonly beats: number;
}

interface LockCheck {
  /** Session and run of the server: both must be unchanged between two checks. */
  readonly era: string;
  readonly run: string;
  readonly upMs: number;
  readonly held: ReadonlySet<string>;
}

export class AdvisoryLiveness implements Liveness {
  readonly manyHosts = true;
  readonly #deps: LivenessDeps;
  readonly #own = new Set<string>();
  readonly #leaderKey: bigint;
  #era: { readonly id: string; readonly run: string; readonly rests: number } | null = null;
  #holdUntil = 0;
  /** This watcher started after the hold began: its own session lost nothing. */
  #newHere = false;
  /** Locks that the latest checks did not find, and since when. */
  readonly #missing = new Map<string, Missing>();
  /** The session on which this process is the detector. */
  #leadsOn: string | null = null;
  /** Another process checks all workers, as far as is known. */
  #follows = false;
  #fleet = 1;
  #askedAtMono = -Infinity;
  #countedAtMono = -Infinity;
  #countInMs = COUNT_FIRST_MS;

  constructor(deps: LivenessDeps) {
    this.#deps = deps;
    if (deps.ownWorker !== undefined) this.#own.add(String(lockKey(deps.schema, deps.ownWorker)));
    this.#leaderKey = lockKey(deps.schema, "the detector of all workers");
  }

  async take(workerId: string): ReturnType<Liveness["take"]> {
    const { session, schema } = this.#deps;
    const key = lockKey(schema, workerId);
    const name = String(key);
    const wrapped = (thrown: unknown): never => {
      throw wrapError("taking the lock of a worker", thrown);
    };
    const proves = await session.hold(key).catch(wrapped);
    this.#own.add(name);
    // Behind a pooler the lock proves nothing, but the worker's sessions can still be terminated by their name.
    return {
      evidence: { name: proves ? name : null, identity: identityOf(await session.greet().catch(wrapped)) },
      drop: async () => {
        this.#own.delete(name);
        await session.release(key);
      },
    };
  }

  async probe(worker: WorkerRow): Promise<Probe> {
    return (await this.probeAll([worker]))[0]!;
  }

  async probeAll(workers: readonly WorkerRow[]): Promise<readonly Probe[]> {
    const { database, pooled } = await this.#deps.session.greet();
    const provable = ({ lock }: WorkerRow): boolean =>
      !pooled && isAdvisory(lock.name) && lock.identity !== null && lock.identity.startsWith(`${database} `);
    const locks = workers
      .filter(provable)
      .map(({ lock, beats }): WatchedLock => ({ ...(lock as Omit<WatchedLock, "beats">), beats }));
    if (locks.length === 0) return workers.map(() => "unknown");
    const check = await this.#checkLocks(locks.map(({ name }) => name));
    const missing = this.#missingThroughout(check, locks);
    return workers.map((worker) => {
      if (!provable(worker)) return "unknown";
      const name = worker.lock.name!;
      if (missing.has(name)) return "missing";
      return check.held.has(name) || this.#own.has(name) ? "held" : "unknown";
    });
  }

  /**
   * Terminates every session of a worker that is considered dead. A frozen process or a lost host may be in the middle
   * of a transaction. So may the session of a killed process that waits for a lock. What they hold could not be
   * recovered.
   * - Sessions of the user's pool carry the name only inside our transactions.
   * - Of a pooler's sessions, only those in a transaction are terminated: the others may serve another client by now.
   * - It needs the same role. Without it, the recovery retries what they hold.
   * - It acts only while the row is still live: later the process may work under a new id.
   * - An earlier worker of this process had the same name, and so have the sessions that recover it: then only the
   *   session that holds its lock is terminated.
   */
  async evict({ lock, state }: WorkerRow): Promise<boolean> {
    const tag = lock.identity?.split(" ")[1] ?? "-";
    const isKnown = lock.name !== null || tag !== "-";
    if (!isKnown || state !== "live" || (lock.name !== null && this.#own.has(lock.name))) return false;
    const { session } = this.#deps;
    const { application } = await session.greet();
    try {
      const key = isAdvisory(lock.name) ? lock.name : null;
      const ended = await session.query<{ ended: boolean }>(EVICT, [key, tag === application ? null : tag]);
      return ended.some((row) => row.ended);
    } catch (thrown) {
      if ((thrown as { code?: unknown }).code === "42501") return false;
      throw thrown;
    }
  }

  /**
   * Returns whether nothing of the worker is left on the server. A lock ends with its session, and its sessions were
   * terminated before the recovery; this waits for those that are still ending. A worker behind a pooler had no lock.
   * False: a session of the worker holds its lock, so it is alive.
   */
  async clean({ lock }: WorkerRow): Promise<boolean> {
    const { session, clock } = this.#deps;
    if (!isAdvisory(lock.name)) return true;
    if (this.#own.has(lock.name)) return false;
    for (const ms of [...ENDING_MS, null]) {
      const [row] = await session.query<{ held: boolean }>(HELD, [lock.name]);
      if (!row!.held) return true;
      if (ms !== null) await pause(clock, ms);
    }
    return false;
  }

  /** For how many more ms no worker is declared dead because the store was unavailable a moment ago; 0: no wait. */
  holdMs(): number {
    return Math.max(0, this.#holdUntil - this.#deps.clock.mono());
  }

  /**
   * Whether this process checks all workers. The role is a session lock, so it is free within milliseconds of the
   * detector's death; the fleet as a whole tries to take it some thirty times a second. Null: behind a pooler no
   * process can be elected.
   */
  async leads(): Promise<boolean | null> {
    const { session, random, clock, countWorkers } = this.#deps;
    const { pid, run, pooled } = await session.greet();
    this.#follows = !pooled && this.#leadsOn !== `${pid} ${run}`;
    if (pooled) return null;
    if (!this.#follows) return true;
    const mono = clock.mono();
    if (random.next() > FEW / this.#fleet && mono - this.#askedAtMono < ASK_AT_LEAST_MS) return false;
    this.#askedAtMono = mono;
    const [row] = await session.query<{ leads: boolean; pid: number }>(
      "SELECT pg_try_advisory_lock($1::bigint) AS leads, pg_backend_pid() AS pid",
      [String(this.#leaderKey)],
    );
    // The server reuses process ids; in another run of the server no process holds the role.
    this.#leadsOn = row!.leads ? `${row!.pid} ${run}` : null;
    this.#follows = !row!.leads;
    if (this.#follows && countWorkers && mono - this.#countedAtMono >= this.#countInMs) {
      if (this.#countedAtMono > 0) this.#countInMs = Math.min(COUNT_EVERY_MS, 2 * this.#countInMs);
      this.#countedAtMono = mono;
      this.#fleet = Math.max(1, await countWorkers());
    }
    return row!.leads;
  }

  /**
   * Which of these locks were missing in every check throughout `contact`, in one era. Two checks too far apart prove
   * nothing about the time between.
   */
  #missingThroughout(check: LockCheck, locks: readonly WatchedLock[]): ReadonlySet<string> {
    const { clock, contactMs } = this.#deps;
    const mono = clock.mono();
    const lost = new Set<string>();
    for (const [name, seen] of this.#missing)
      if (check.held.has(name) || seen.era !== check.era || mono - seen.lastMono > CHECKS_APART_MS)
        this.#missing.delete(name);
    for (const { name, identity, beats } of locks) {
      if (check.held.has(name) || this.#own.has(name) || !this.#speaks(identity, check)) continue;
      const seen = this.#missing.get(name);
      // A worker whose session is back sends a heartbeat at once. Its session may be gone again, but it was not missing
      // all the time.
      const sinceMono = seen && seen.beats === beats ? seen.sinceMono : mono;
      this.#missing.set(name, { sinceMono, lastMono: mono, era: check.era, beats });
      if (mono - sinceMono >= contactMs) lost.add(name);
    }
    return lost;
  }

  /** Followers then check as often as the detector. */
  isWaitingForContact(): boolean {
    const mono = this.#deps.clock.mono();
    return [...this.#missing.values()].some(({ lastMono }) => mono - lastMono <= CHECKS_APART_MS);
  }

  /**
   * Whether a missing lock proves anything now. It does not while workers may still be reconnecting. But a worker that
   * took its lock in this very run of the server did not lose it to a restart.
   */
  #speaks(identity: string, { run }: LockCheck): boolean {
    if (this.holdMs() === 0) return true;
    return this.#newHere && identity.endsWith(` ${run}`);
  }

  async #checkLocks(names: readonly string[]): Promise<LockCheck> {
    const { session, onServerNow, clock } = this.#deps;
    const sentAtMono = clock.mono();
    type Row = { pid: number; run: string; up_ms: number; now_ms: number; held: string[] };
    const [row] = await session.query<Row>(this.#follows && !this.isWaitingForContact() ? CHECK_FEW : CHECK_ALL, [
      names,
    ]);
    const { pid, run, up_ms: upMs, now_ms: now, held } = row!;
    onServerNow?.(now, sentAtMono);
    const check = { era: `${pid} ${run}`, run, upMs, held: new Set(held) };
    this.#noteEra(check);
    return check;
  }

  #noteEra({ era, run, upMs }: LockCheck): void {
    const { session, clock, onHold } = this.#deps;
    const before = this.#era?.rests === session.rests ? this.#era : null;
    if (before?.id === era) return;
    this.#era = { id: era, run, rests: session.rests };
    // A new watcher lost nothing; all it can know is that the server itself started recently.
    const restarted = before === null ? upMs < HOLD_MS : before.run !== run;
    // A watcher that was cut off counts from its own reconnect: the server's uptime does not show how long it replayed
    // its log before it accepted connections.
    const holdMs = before !== null ? HOLD_MS : restarted ? HOLD_MS - upMs : 0;
    if (holdMs <= 0) return;
    this.#holdUntil = clock.mono() + holdMs;
    this.#newHere = before === null;
    onHold?.(restarted ? "the store restarted" : "the connection to the store was lost", holdMs);
  }
}

/**
 * The identity of a worker's lock: its database, the name that only the connections of its process carry, and the
 * server's run.
 */
function identityOf({ database, run, application }: Greeting): string {
  return `${database} ${/^outlive-[0-9a-f]{12}$/.test(application) ? application : "-"} ${run}`;
}

/** Not the lock of a worker whose liveness is in Redis. */
function isAdvisory(name: string | null): name is string {
  return name !== null && /^-?\d+$/.test(name);
}

/** 64 bits of a hash: an advisory lock has no other name. */
export function lockKey(schema: string, workerId: string): bigint {
  return createHash("sha256").update(`outlive\0${schema}\0${workerId}`).digest().readBigInt64BE();
}

const ADVISORY = `l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`;
const KEY = "((l.classid::bigint << 32) | l.objid::bigint)";
const lockCheck = (held: string): string => `SELECT pg_backend_pid() AS pid, ${RUN}::text AS run,
  (extract(epoch FROM clock_timestamp() - ${RUN}) * 1000)::float8 AS up_ms,
  (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms, ARRAY(${held}) AS held`;
// Reads every lock of the server: 1.3 ms with 1,000 workers. Shared only: a lock that another session is trying is not
// held.
const CHECK_ALL = lockCheck(
  `SELECT DISTINCT ${KEY}::text FROM pg_locks l WHERE ${ADVISORY} AND l.mode = 'ShareLock' AND ${KEY} = ANY($1::bigint[])`,
);
// A lock that can be taken exclusively is not held by any session; it is released with the statement. Two sessions that
// try the same lock at once may both find it held, so only followers use this: they check seldom, and check again.
const CHECK_FEW = lockCheck("SELECT k::text FROM unnest($1::bigint[]) AS k WHERE NOT pg_try_advisory_xact_lock(k)");
const HELD = `SELECT EXISTS (SELECT 1 FROM pg_locks l WHERE ${ADVISORY} AND l.mode = 'ShareLock' AND ${KEY} = $1::bigint) AS held`;
const EVICT = `SELECT pg_terminate_backend(a.pid) AS ended FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND (
    (a.application_name = $2 AND a.datname = current_database() AND ($1::bigint IS NOT NULL OR a.xact_start IS NOT NULL)) OR
    a.pid IN (SELECT l.pid FROM pg_locks l WHERE ${ADVISORY} AND l.mode = 'ShareLock' AND ${KEY} = $1::bigint))`;
