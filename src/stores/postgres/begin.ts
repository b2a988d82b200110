// How a transaction begins, and how a session is made ours. A session of our own pool is set once. On the user's own pool, and behind
// a pooler, nothing may be left in a session: there everything is SET LOCAL, in the one round trip that BEGIN takes anyway.

/** Which transaction: one of the engine's, one of upkeep (retention, overdue jobs), a recovery, or one that runs the user's callback. */
export type TransactionKind = "engine" | "upkeep" | "recovery" | "user";

export interface BeginOptions {
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
