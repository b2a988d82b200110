// The sign of life on PostgreSQL: a session advisory lock per worker, held by the maintenance connection. A lock that is missing
// proves the end of a session, not of a process: contact with its worker is lost when it stays missing throughout `contact`, while the
// server's run and the watcher's own session are the same. When either changed, every lock may be missing for a reason that says
// nothing about its worker: the watcher holds back for 5 s and checks again. Deaths are proved by the kernel (recovery/failure-detector.ts).
// One elected process looks for all, by reading the server's table of locks; the others try the few locks of their neighbours, which
// costs next to nothing however many workers there are. Behind a pooler nothing is proved, and heartbeats decide.
import { createHash } from "node:crypto";
import { type Clock, pause, type Random } from "../../job/time.ts";
import type { Liveness, Probe, WorkerRow } from "../liveness.ts";
import { type DirectSession, type Greeting, RUN } from "./direct-session.ts";

export interface LivenessDeps {
  readonly session: DirectSession;
  readonly schema: string;
  readonly clock: Clock;
  readonly random: Random;
  /** How long a lock must be missing before contact with its worker is lost. */
  readonly contactMs: number;
  /** The worker of this process, whose lock another part of it holds. */
  readonly ownWorker?: string;
  /** About how many workers there are; left out: few. Asked once a minute, by followers. */
  readonly countWorkers?: () => Promise<number>;
  /** Told with each look what the server's clock says, in ms, and when it was asked (monotonic). */
  readonly onServerNow?: (now: number, sentAtMono: number) => void;
  /** Told when watchers begin to hold back: why, and for how long. */
  readonly onHold?: (why: string, holdMs: number) => void;
}

/** Looks that are further apart than this do not show that a lock was missing all the time between them. */
const LOOKS_APART_MS = 2_000;
export const HOLD_MS = 5_000;
/** A session that was ended is gone within these pauses, as a rule. */
const ENDING_MS = [25, 50, 100];
/** Followers ask for the detector's place; with more workers than this each asks less often, but never less often than that. */
const FEW = 8;
const ASK_AT_LEAST_MS = 10_000;
const COUNT_EVERY_MS = 60_000;

interface Named {
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

interface Look {
  /** Session and run of the server: what must not have changed between two looks. */
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
  /** This watcher was not there before the hold began: its own session lost nothing. */
  #newHere = false;
  /** Locks that the latest looks did not find, and since when. */
  readonly #missing = new Map<string, Missing>();
  /** The session on which we are the detector. */
  #leadsOn: string | null = null;
  /** Another one looks for all, as far as is known. */
  #follows = false;
  #fleet = 1;
  #askedAtMono = -Infinity;
  #countedAtMono = -Infinity;

  constructor(deps: LivenessDeps) {
    this.#deps = deps;
    if (deps.ownWorker !== undefined) this.#own.add(String(lockKey(deps.schema, deps.ownWorker)));
    this.#leaderKey = lockKey(deps.schema, "the detector of all workers");
  }

  async take(workerId: string): ReturnType<Liveness["take"]> {
    const { session, schema } = this.#deps;
    const key = lockKey(schema, workerId);
    const proves = await session.hold(key);
    const name = String(key);
    this.#own.add(name);
    // Behind a pooler the lock proves nothing, but its sessions can still be ended by their name.
    return {
      evidence: { name: proves ? name : null, identity: identityOf(await session.greet()) },
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
      !pooled && lock.name !== null && lock.identity !== null && lock.identity.startsWith(`${database} `);
    const locks = workers
      .filter(provable)
      .map(({ lock, beats }): Named => ({ ...(lock as Omit<Named, "beats">), beats }));
    if (locks.length === 0) return workers.map(() => "unknown");
    const look = await this.#look(locks.map(({ name }) => name));
    const missing = this.#missingThroughout(look, locks);
    return workers.map((worker) => {
      if (!provable(worker)) return "unknown";
      const name = worker.lock.name!;
      if (missing.has(name)) return "missing";
      return look.held.has(name) || this.#own.has(name) ? "held" : "unknown";
    });
  }

  /**
   * Ends every session of a worker that is taken for dead. A frozen process or a lost host may be in the middle of a transaction,
   * and so may be a session of a killed one that waits for a lock: what they hold could not be recovered. Sessions of the user's pool
   * carry the name inside our transactions only. Of a pooler's sessions only those in a transaction are ended: another client may
   * have the others by now. Needs the same role; without it, the recovery comes back for what they hold. Only of a row that is still
   * live: later its process may work under a new id. An earlier worker of this process had the same name, and so have the sessions that
   * recover it: then only the one that holds its lock is ended.
   */
  async evict({ lock, state }: WorkerRow): Promise<boolean> {
    const tag = lock.identity?.split(" ")[1] ?? "-";
    const isKnown = lock.name !== null || tag !== "-";
    if (!isKnown || state !== "live" || (lock.name !== null && this.#own.has(lock.name))) return false;
    const { session } = this.#deps;
    const { application } = await session.greet();
    try {
      const ended = await session.query<{ ended: boolean }>(EVICT, [lock.name, tag === application ? null : tag]);
      return ended.some((row) => row.ended);
    } catch (thrown) {
      if ((thrown as { code?: unknown }).code === "42501") return false;
      throw thrown;
    }
  }

  /**
   * Whether nothing of it is left on the server. A lock ends with its session, and its sessions were ended before the recovery; those
   * that were ended a moment ago are waited for. A worker behind a pooler had no lock. False: a session of it holds its lock, so it lives.
   */
  async clean({ lock }: WorkerRow): Promise<boolean> {
    const { session, clock } = this.#deps;
    if (lock.name === null) return true;
    if (this.#own.has(lock.name)) return false;
    for (const ms of [...ENDING_MS, null]) {
      const [row] = await session.query<{ held: boolean }>(HELD, [lock.name]);
      if (!row!.held) return true;
      if (ms !== null) await pause(clock, ms);
    }
    return false;
  }

  /** How much longer nobody is called dead because the store was away a moment ago, in ms; 0: not at all. */
  holdMs(): number {
    return Math.max(0, this.#holdUntil - this.#deps.clock.mono());
  }

  /**
   * Whether this process looks for all. The place is a lock of the session, so that it is free within milliseconds of the
   * detector's death; the fleet as a whole asks for it some thirty times a second. Null: nobody can be elected behind a pooler.
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
    // Numbers of processes come again; in another run of the server the place is nobody's.
    this.#leadsOn = row!.leads ? `${row!.pid} ${run}` : null;
    this.#follows = !row!.leads;
    if (this.#follows && countWorkers && mono - this.#countedAtMono >= COUNT_EVERY_MS) {
      this.#countedAtMono = mono;
      this.#fleet = Math.max(1, await countWorkers());
    }
    return row!.leads;
  }

  /** Which of these locks have been missing in every look throughout `contact`, in one era. Two looks too far apart prove nothing of the time between. */
  #missingThroughout(look: Look, locks: readonly Named[]): ReadonlySet<string> {
    const { clock, contactMs } = this.#deps;
    const mono = clock.mono();
    const lost = new Set<string>();
    for (const [name, seen] of this.#missing)
      if (look.held.has(name) || seen.era !== look.era || mono - seen.lastMono > LOOKS_APART_MS)
        this.#missing.delete(name);
    for (const { name, identity, beats } of locks) {
      if (look.held.has(name) || this.#own.has(name) || !this.#speaks(identity, look)) continue;
      const seen = this.#missing.get(name);
      // A worker whose session is back beats at once: it may be gone again, but not all the time.
      const sinceMono = seen && seen.beats === beats ? seen.sinceMono : mono;
      this.#missing.set(name, { sinceMono, lastMono: mono, era: look.era, beats });
      if (mono - sinceMono >= contactMs) lost.add(name);
    }
    return lost;
  }

  /** Then followers check as often as the one that checks for all. */
  isWaitingForContact(): boolean {
    const mono = this.#deps.clock.mono();
    return [...this.#missing.values()].some(({ lastMono }) => mono - lastMono <= LOOKS_APART_MS);
  }

  /**
   * Whether a missing lock says anything now. Not while workers may still be on their way back; but one that took its lock in
   * this very run of the server did not lose it to a restart.
   */
  #speaks(identity: string, { run }: Look): boolean {
    if (this.holdMs() === 0) return true;
    return this.#newHere && identity.endsWith(` ${run}`);
  }

  async #look(names: readonly string[]): Promise<Look> {
    const { session, onServerNow, clock } = this.#deps;
    const sentAtMono = clock.mono();
    type Row = { pid: number; run: string; up_ms: number; now_ms: number; held: string[] };
    const [row] = await session.query<Row>(this.#follows && !this.isWaitingForContact() ? LOOK_AT_FEW : LOOK, [names]);
    const { pid, run, up_ms: upMs, now_ms: now, held } = row!;
    onServerNow?.(now, sentAtMono);
    const look = { era: `${pid} ${run}`, run, upMs, held: new Set(held) };
    this.#noteEra(look);
    return look;
  }

  #noteEra({ era, run, upMs }: Look): void {
    const { session, clock, onHold } = this.#deps;
    const before = this.#era?.rests === session.rests ? this.#era : null;
    if (before?.id === era) return;
    this.#era = { id: era, run, rests: session.rests };
    // A watcher that is new here lost nothing; all it can know is that the server itself is young.
    const restarted = before === null ? upMs < HOLD_MS : before.run !== run;
    // Who was cut off counts from its own return: the server's age says nothing of how long it replayed its log before it let anybody in.
    const holdMs = before !== null ? HOLD_MS : restarted ? HOLD_MS - upMs : 0;
    if (holdMs <= 0) return;
    this.#holdUntil = clock.mono() + holdMs;
    this.#newHere = before === null;
    onHold?.(restarted ? "the store restarted" : "the connection to the store was lost", holdMs);
  }
}

/** Of a worker's lock: its database, the name that all connections of its process carry and no other's do, and the server's run. */
function identityOf({ database, run, application }: Greeting): string {
  return `${database} ${/^outlive-[0-9a-f]{12}$/.test(application) ? application : "-"} ${run}`;
}

/** 64 bits of a hash: an advisory lock has no other name. */
export function lockKey(schema: string, workerId: string): bigint {
  return createHash("sha256").update(`outlive\0${schema}\0${workerId}`).digest().readBigInt64BE();
}

const ADVISORY = `l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`;
const KEY = "((l.classid::bigint << 32) | l.objid::bigint)";
const look = (held: string): string => `SELECT pg_backend_pid() AS pid, ${RUN}::text AS run,
  (extract(epoch FROM clock_timestamp() - ${RUN}) * 1000)::float8 AS up_ms,
  (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms, ARRAY(${held}) AS held`;
// Reads every lock of the server: 1.3 ms with 1,000 workers. Shared: a lock that somebody tries is not held.
const LOOK = look(
  `SELECT DISTINCT ${KEY}::text FROM pg_locks l WHERE ${ADVISORY} AND l.mode = 'ShareLock' AND ${KEY} = ANY($1::bigint[])`,
);
// What can be taken alone, nobody holds; it is let go with the statement. Two that try the same at once may both find it held, so
// only followers look so: they look seldom, and again.
const LOOK_AT_FEW = look("SELECT k::text FROM unnest($1::bigint[]) AS k WHERE NOT pg_try_advisory_xact_lock(k)");
const HELD = `SELECT EXISTS (SELECT 1 FROM pg_locks l WHERE ${ADVISORY} AND l.mode = 'ShareLock' AND ${KEY} = $1::bigint) AS held`;
const EVICT = `SELECT pg_terminate_backend(a.pid) AS ended FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND (
    (a.application_name = $2 AND a.datname = current_database() AND ($1::bigint IS NOT NULL OR a.xact_start IS NOT NULL)) OR
    a.pid IN (SELECT l.pid FROM pg_locks l WHERE ${ADVISORY} AND l.mode = 'ShareLock' AND ${KEY} = $1::bigint))`;
