// How a transaction gets its session and how it begins: which of the user's transactions may take a session of the pool
// now, and what is set in it. One session stays free for the engine: its turns, its enqueues, the writes of running
// attempts. Otherwise, commits that call `engine.enqueue` would deadlock, and a worker whose commits are slow could not
// settle what has finished.
import type { CommitControl } from "../../worker/run.ts";

/** When to stop waiting: calls `stop` once with the reason. Returns a function that cancels it. */
export type WaitLimit = (stop: (reason: Error) => void) => () => void;

export function untilInterrupted(control: CommitControl): WaitLimit {
  return (stop) => control.onInterrupt(stop);
}

export const NO_SESSION_HINT =
  "Nothing was written. Shorten what your commits wait for, use `tx.enqueue` instead of `engine.enqueue` inside them, or raise `postgres.connections` (the `max` of your own pool). Thrown by a handler, this costs its job nothing.";

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

  /** The gate of this pool. Two stores that share a user's pool share its gate. */
  static of(pool: object, poolSize: number): SessionGate {
    let gate = gates.get(pool);
    if (!gate) gates.set(pool, (gate = new SessionGate(poolSize)));
    return gate;
  }

  /** Resolves to a function that leaves the gate. Rejects with the reason of `limit`. */
  async enter(limit: WaitLimit): Promise<() => void> {
    if (this.#inside < this.#room) this.#inside++;
    else await this.#wait(limit);
    let left = false;
    return () => {
      if (left) return;
      left = true;
      const next = this.#waiting.shift();
      // Hands the place to the next waiter.
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

// A session of our own pool is configured once. On the user's own pool, and behind a pooler, nothing may be left in a
// session: there everything is SET LOCAL, in the one round trip that BEGIN takes anyway.

/**
 * Which kind of transaction: the engine's own, one of these that holds what others need, one that waits for another, upkeep
 * (retention, overdue jobs), a recovery, or one that runs the user's callback.
 */
export type TransactionKind = "engine" | "brief" | "bulk" | "upkeep" | "recovery" | "user";

interface BeginOptions {
  /** The session is not ours to configure: a pooler hands it to other clients, or the pool is the user's. */
  readonly borrowed: boolean;
  readonly durability: "full" | "relaxed";
  /** The application_name of our sessions; null: none in particular. */
  readonly name: string | null;
}

// Plans are cached with their statements, and the first ones are made while the tables are empty: without this setting
// they would scan the whole table from then on. JIT would compile statements that such estimates make look expensive.
const PLANS =
  "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";
/** For one statement that may scan no table. */
export const LOCAL_PLANS = PLANS.replaceAll("SET ", "SET LOCAL ");

/** Turns `synchronous_commit` on where it is off: an acknowledged commit must survive a crash of the server. */
const durable = (local: boolean): string =>
  `SELECT set_config('synchronous_commit', 'on', ${local}) WHERE current_setting('synchronous_commit') = 'off'`;
export const LOCAL_DURABLE = `${durable(true)}; `;

const UPKEEP =
  "SET statement_timeout = '30s'; SET lock_timeout = '2s'; SET idle_in_transaction_session_timeout = '30s'";
/** A recovery retries later what it can't lock now; other dead workers must not wait for it. */
const SHORT_LOCK = "SET LOCAL lock_timeout = '500ms'";
/** For a callback that never ends, or a process that was frozen or lost in the middle of one. */
const IDLE = "SET idle_in_transaction_session_timeout = '5min'";
/** The same for one transaction; a shorter limit set by the user is kept. */
const LOCAL_IDLE = `SELECT set_config('idle_in_transaction_session_timeout', '5min', true)
  WHERE current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN interval '1ms' AND interval '5min'`;
/** Between two statements of the engine's own there is nothing to wait for. */
const LOCAL_SHORT_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '30s'";
/** Jobs that were inserted in bulk wait here for a commit of ours, which may be a slow one. Meanwhile they keep vacuum off, and their ids from others. */
const LOCAL_BULK_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '10s'";
/**
 * The keys that an admission has locked wait for it no longer than this. A handler that blocks the event loop for longer ends
 * an admission in the middle, which costs one more try.
 */
const LOCAL_BRIEF_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '2s'";
/** With these another session can end exactly this transaction. */
export const WHICH = "SELECT pg_backend_pid() AS pid, pg_current_xact_id()::text AS xid";

/** Settings for a session of our own pool, applied once. */
export function sessionSettings(durability: "full" | "relaxed", maintenance: boolean): string {
  const commits = durability === "full" ? durable(false) : "SET synchronous_commit = off";
  return `${PLANS}; ${commits}; ${maintenance ? UPKEEP : IDLE}`;
}

/**
 * The engine's own transactions are READ COMMITTED whatever the default of the role or the database is: the statement
 * after a lock must see what was committed while it waited, for example a claim. The user's transaction keeps the
 * default.
 */
export function beginText(kind: TransactionKind, { borrowed, durability, name }: BeginOptions): string {
  const text = [kind === "user" ? "BEGIN" : "BEGIN ISOLATION LEVEL READ COMMITTED"];
  if (kind === "upkeep" || kind === "recovery") text.push(UPKEEP.replaceAll("SET ", "SET LOCAL "));
  if (kind === "recovery") text.push(SHORT_LOCK);
  if (kind === "brief") text.push(LOCAL_BRIEF_IDLE);
  if (kind === "bulk") text.push(LOCAL_BULK_IDLE);
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

/** Only a name that we generated: it is written into statements, and no other process carries it. */
export function ownName(application: unknown): string | null {
  return typeof application === "string" && /^outlive-[0-9a-f]{12}$/.test(application) ? application : null;
}
