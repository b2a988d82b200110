// How a transaction gets its session and how it begins: which transactions of the user's own may have a session of the pool now, and what
// is set in it. One session stays free for the engine: its turns, its enqueues, the writes of running attempts. Without that, commits that
// call `engine.enqueue` deadlock, and a worker whose commits are slow can't settle what has finished.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { CommitControl } from "../../worker/run.ts";

/** When to stop waiting: calls `stop` once with the reason. Returns how to call that off. */
export type WaitLimit = (stop: (reason: Error) => void) => () => void;

export function atMost(ms: number): WaitLimit {
  return (stop) => {
    const timer = setTimeout(() => stop(noSession(ms)), ms);
    return () => clearTimeout(timer);
  };
}

export function untilInterrupted(control: CommitControl): WaitLimit {
  return (stop) => control.onInterrupt(stop);
}

/** Every session was in use for that long. The job whose handler gets this pays nothing for it. */
function noSession(waitedMs: number): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `Every connection of the pool was in use for ${waitedMs} ms.`,
    NO_SESSION_HINT,
    { waitedMs, costsAttempt: false },
  );
}

export const NO_SESSION_HINT =
  "Nothing was written. Make what your commits wait for shorter, use `tx.enqueue` instead of `engine.enqueue` inside them, or raise `postgres.connections` (the `max` of your own pool). Thrown by a handler, this costs its job nothing.";

interface Waiting {
  readonly enter: () => void;
}

export class SessionGate {
  readonly #room: number;
  #inside = 0;
  readonly #waiting: Waiting[] = [];

  private constructor(poolSize: number) {
    this.#room = Math.max(1, poolSize - 1);
  }

  /** Of this pool. Two stores may share a pool of the user's, and then share its gate. */
  static of(pool: object, poolSize: number): SessionGate {
    let gate = gates.get(pool);
    if (!gate) gates.set(pool, (gate = new SessionGate(poolSize)));
    return gate;
  }

  /** Resolves to how to leave. Rejects with the reason of `limit`. */
  async enter(limit: WaitLimit): Promise<() => void> {
    if (this.#inside < this.#room) this.#inside++;
    else await this.#wait(limit);
    let left = false;
    return () => {
      if (left) return;
      left = true;
      const next = this.#waiting.shift();
      // The place passes on.
      if (next) next.enter();
      else this.#inside--;
    };
  }

  #wait(limit: WaitLimit): Promise<void> {
    return new Promise((resolve, reject) => {
      const waiting: Waiting = {
        enter() {
          callOff();
          resolve();
        },
      };
      this.#waiting.push(waiting);
      const callOff = limit((reason) => {
        const at = this.#waiting.indexOf(waiting);
        if (at >= 0) this.#waiting.splice(at, 1);
        reject(reason);
      });
    });
  }
}

const gates = new WeakMap<object, SessionGate>();

// A session of our own pool is set once. On the user's own pool, and behind a pooler, nothing may be left in a session: there everything is
// SET LOCAL, in the one round trip that BEGIN takes anyway.

/** Which transaction: one of the engine's, one of upkeep (retention, overdue jobs), a recovery, or one that runs the user's callback. */
export type TransactionKind = "engine" | "upkeep" | "recovery" | "user";

interface BeginOptions {
  /** The session is not ours to set: a pooler gives it to other clients, or the pool is the user's. */
  readonly borrowed: boolean;
  readonly durability: "full" | "relaxed";
  /** What our sessions call themselves; null: nothing in particular. */
  readonly name: string | null;
}

// Plans are kept with their statements, and the first ones are made while the tables are empty: without this they would read the
// whole table from then on. JIT compiles what such costs make look expensive.
const PLANS =
  "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/** Turns `synchronous_commit` on where it is off: an acknowledged commit must survive a crash of the server. */
const durable = (local: boolean): string =>
  `SELECT set_config('synchronous_commit', 'on', ${local}) WHERE current_setting('synchronous_commit') = 'off'`;

const UPKEEP =
  "SET statement_timeout = '30s'; SET lock_timeout = '2s'; SET idle_in_transaction_session_timeout = '30s'";
/** What a recovery can't lock it comes back for; the dead behind it must not wait. */
const SHORT_LOCK = "SET LOCAL lock_timeout = '500ms'";
/** Of a callback that never ends, or of a process that was frozen or lost in the middle of one. */
const IDLE = "SET idle_in_transaction_session_timeout = '5min'";
/** The same for one transaction; a shorter limit of the user's own is left as it is. */
const LOCAL_IDLE = `SELECT set_config('idle_in_transaction_session_timeout', '5min', true)
  WHERE current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN interval '1ms' AND interval '5min'`;
/** Between two statements of the engine's own there is nothing to wait for. */
const LOCAL_SHORT_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '30s'";
/** By these another session can end exactly this transaction. */
const WHICH = "SELECT pg_backend_pid() AS pid, pg_current_xact_id()::text AS xid";

/** For a session of our own pool, once. */
export function sessionSettings(durability: "full" | "relaxed", maintenance: boolean): string {
  const commits = durability === "full" ? durable(false) : "SET synchronous_commit = off";
  return `${PLANS}; ${commits}; ${maintenance ? UPKEEP : IDLE}`;
}

/**
 * The engine's own transactions are READ COMMITTED whatever the default of the role or the database is: the statement after a
 * lock must see what was committed while it waited, a claim for instance. The user's keeps the default.
 */
export function beginText(kind: TransactionKind, { borrowed, durability, name }: BeginOptions): string {
  const text = [kind === "user" ? "BEGIN" : "BEGIN ISOLATION LEVEL READ COMMITTED"];
  if (kind === "upkeep" || kind === "recovery") text.push(UPKEEP.replaceAll("SET ", "SET LOCAL "));
  if (kind === "recovery") text.push(SHORT_LOCK);
  if (borrowed) {
    if (kind === "user") text.push(LOCAL_IDLE);
    if (kind === "engine") text.push(LOCAL_SHORT_IDLE);
    // If this process freezes in here, the worker that recovers its jobs ends the transaction by this name.
    if (name !== null) text.push(`SET LOCAL application_name = '${name}'`);
    if (durability === "full") text.push(durable(true));
  }
  if (kind === "user") text.push(WHICH);
  return text.join("; ");
}

/** Only a name that we have made: it is written into statements, and no other process carries it. */
export function ownName(application: unknown): string | null {
  return typeof application === "string" && /^outlive-[0-9a-f]{12}$/.test(application) ? application : null;
}
