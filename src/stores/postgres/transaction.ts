// The user's own SQL in our transaction: what the callbacks of `commit` and `transaction` get. Asynchronous, on one session that is
// theirs until the callback has ended.
import type { JobContract } from "../../job/contract.ts";
import { type EnqueueOptions, makeDraft } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError } from "../../job/errors.ts";
import type { Enqueued } from "../../job/job.ts";
import { type Clock, pause } from "../../job/time.ts";
import type { CommitControl, CommitForm } from "../../worker/run.ts";
import {
  APPLIED,
  type Committed,
  type Settlement,
  type Transacted,
  type TransactionBody,
  type Transactions,
} from "../port.ts";
import { OUTCOME, STATE } from "../rows.ts";
import { bellChannel } from "./address.ts";
import { type Connection, OutcomeUnknown, rolledBack, sessionOn } from "./connection.ts";
import { insertJobs, Kinds } from "./enqueue.ts";
import { sqlState } from "./errors.ts";
import { LOCK_OWNED, type Settling, wasRedriven } from "./settle.ts";
import type { PostgresClient, Session, Transaction, UserTransaction } from "./statements.ts";

/** A transaction on one session of the engine's. BEGIN, COMMIT and ROLLBACK are the engine's own; SAVEPOINT is allowed. */
export interface PostgresTransaction {
  /** Runs a statement and answers its rows. */
  query<R = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<R[]>;
  /** Enqueues a job in this same transaction. */
  enqueue<In>(
    job: JobContract<In, never, unknown> | JobContract<In, unknown, unknown>,
    input: In,
    options?: EnqueueOptions,
  ): Promise<Enqueued>;
  /** The session as a client of `pg`, for a query builder. It is good until the callback has ended. */
  readonly client: PostgresClient;
}

/** The form of `run.commit` and `engine.transaction` on PostgreSQL: the callback is asynchronous. */
export const postgres: CommitForm<PostgresTransaction, "async"> = { store: "postgres", mode: "async" };

interface TransactionDeps {
  readonly kinds: Kinds;
  readonly newId: () => string;
}

/** Runs the user's callback inside the open transaction. After it ended, its handle is dead. */
export async function runUserBody<T>(
  deps: TransactionDeps,
  session: UserTransaction,
  body: (tx: PostgresTransaction) => T | Promise<T>,
): Promise<{ value: T; enqueued: number; id: string }> {
  let open = true;
  let enqueued = 0;
  const { id } = session;
  const client = guarded(session.client, () => open);
  const tx: PostgresTransaction = {
    client,
    async query<R>(text: string, values: readonly unknown[] = []) {
      return (await client.query(text, [...values])).rows as R[];
    },
    async enqueue(job, input, options = {}) {
      if (!open) throw over();
      const draft = await makeDraft(job as never, input, options, deps.newId);
      enqueued++;
      return enqueueOne(session, deps.kinds, draft);
    },
  };
  try {
    const value = await body(tx);
    open = false;
    if ((await transactionId(session)) !== id) throw ended();
    return { value, enqueued, id };
  } finally {
    open = false;
  }
}

/** Enqueues in a transaction of the user's own, on the user's own client: the job is there if that transaction commits. */
export async function enqueueIn<In>(
  deps: Pick<TransactionDeps, "newId"> & { readonly schema: string; readonly wake?: boolean },
  client: PostgresClient,
  job: JobContract<In, never, unknown> | JobContract<In, unknown, unknown>,
  input: In,
  options: EnqueueOptions = {},
): Promise<Enqueued> {
  const draft = await makeDraft(job as never, input, options, deps.newId);
  // A worker that is woken for a job whose time has not come finds nothing.
  const isReady = draft.delayMs === 0 && draft.runAt === null;
  const wakeup = deps.wake !== false && isReady ? bellChannel(deps.schema) : null;
  return enqueueOne(await sessionOn(client, deps.schema), new Kinds(), draft, wakeup);
}

async function enqueueOne(
  session: Session,
  kinds: Kinds,
  draft: Awaited<ReturnType<typeof makeDraft>>,
  wakeup: string | null = null,
): Promise<Enqueued> {
  await kinds.demand(session, [draft.kind]);
  const [enqueued] = await insertJobs(session, kinds, [draft], wakeup);
  return enqueued!;
}

/** Also finds out whether a statement had failed and the callback went on as if it had not. */
async function transactionId(session: Session): Promise<string> {
  try {
    const [row] = await session.rows<{ id: string }>("SELECT pg_current_xact_id()::text AS id");
    return row!.id;
  } catch (thrown) {
    throw sqlState(thrown) === "25P02" ? rolledBack() : thrown;
  }
}

/** Transaction control is ours: refused by its first words here, and whatever else ends the transaction is noticed afterwards. */
function guarded(client: PostgresClient, isOpen: () => boolean): PostgresClient {
  return new Proxy(client, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name, target);
      if (name !== "query") return typeof member === "function" ? (member.bind(target) as unknown) : member;
      return (first: unknown, ...rest: unknown[]): unknown => {
        if (!isOpen()) throw over();
        const text = typeof first === "string" ? first : (first as { text?: unknown } | null)?.text;
        if (typeof text === "string" && isTransactionControl(text)) throw denied();
        return (member as (...all: unknown[]) => unknown).call(target, first, ...rest);
      };
    },
  });
}

function over(): OutliveError {
  return new OutliveError(
    ErrorCode.commitDenied,
    "The transaction is over.",
    "Use its handle only inside the callback, and await everything that uses it there.",
  );
}

function denied(): OutliveError {
  return new OutliveError(
    ErrorCode.commitDenied,
    "The callback tried transaction control inside the engine's transaction.",
    "Leave out BEGIN, COMMIT and ROLLBACK; throw to roll everything back, or use SAVEPOINT.",
  );
}

function ended(): OutliveError {
  return new OutliveError(
    ErrorCode.commitDenied,
    "The callback ended the engine's transaction itself. What it wrote before that is not undone, and the job is not completed.",
    "Leave out BEGIN, COMMIT and ROLLBACK; throw to roll everything back, or use SAVEPOINT.",
  );
}

// Whether a statement of the user's is transaction control, by its first words. Comments and empty statements before and between
// them are skipped as PostgreSQL skips them. One pass over the text: a statement may begin with any number of comments.

/** BEGIN, START TRANSACTION, COMMIT, END, ABORT, PREPARE TRANSACTION, and ROLLBACK unless it goes back TO a savepoint. */
export function isTransactionControl(sql: string): boolean {
  const words = firstWords(sql);
  switch (words.next()) {
    case "begin":
    case "commit":
    case "end":
    case "abort":
      return true;
    case "start":
    case "prepare":
      return words.next() === "transaction";
    case "rollback": {
      const second = words.next();
      return (second === "work" || second === "transaction" ? words.next() : second) !== "to";
    }
    default:
      return false;
  }
}

/** The words at the beginning of the statement, in small letters; "" after the last one. */
function firstWords(sql: string): { next: () => string } {
  let at = skipEmpty(sql, 0);
  return {
    next() {
      WORD.lastIndex = at = skipBlank(sql, at);
      const word = WORD.exec(sql)?.[0] ?? "";
      at += word.length;
      return word.toLowerCase();
    },
  };
}

const WORD = /[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*/y;

/** Past blanks, comments and empty statements. */
function skipEmpty(sql: string, from: number): number {
  let at = skipBlank(sql, from);
  while (sql[at] === ";") at = skipBlank(sql, at + 1);
  return at;
}

/** Past white space and comments. */
function skipBlank(sql: string, from: number): number {
  let at = from;
  for (;;) {
    const character = sql[at];
    if (character !== undefined && " \t\n\r\f\v".includes(character)) at++;
    else if (character === "-" && sql[at + 1] === "-") at = endOfLine(sql, at + 2);
    else if (character === "/" && sql[at + 1] === "*") at = endOfComment(sql, at + 2);
    else return at;
  }
}

function endOfLine(sql: string, from: number): number {
  let at = from;
  while (at < sql.length && sql[at] !== "\n" && sql[at] !== "\r") at++;
  return at;
}

/** In PostgreSQL a comment may hold another. One that does not end takes the rest of the text. */
function endOfComment(sql: string, from: number): number {
  let depth = 1;
  let at = from;
  while (at < sql.length && depth > 0) {
    const two = sql.slice(at, at + 2);
    if (two === "*/") depth--;
    else if (two === "/*") depth++;
    at += two === "*/" || two === "/*" ? 2 : 1;
  }
  return at;
}

// The user's writes and the job's success in one transaction. When the answer to its COMMIT is lost, the rows are read, never guessed.

/** How long the server is asked what became of a transaction whose answer was lost, and how often. */
const ASK_FOR_MS = 30_000;
const ASK_EVERY_MS = 250;

interface CommitDeps extends TransactionDeps {
  readonly connection: Connection;
  readonly settling: Settling;
  readonly clock: Clock;
}

export function transactions(deps: CommitDeps): Transactions<PostgresTransaction> {
  return {
    commit: (settlement, body, encode, control) => commitJob(deps, settlement, body, encode, control),
    transact: (body) => transact(deps, body),
  };
}

async function commitJob<T>(
  deps: CommitDeps,
  settlement: Settlement,
  body: TransactionBody<PostgresTransaction, T>,
  encode: (value: T) => string | null,
  control?: CommitControl,
): Promise<Committed<T>> {
  const { connection, kinds, settling } = deps;
  const { lease, change } = settlement;
  let ready: Committed<T> | undefined;
  try {
    return await connection.userTransaction(async (tx) => {
      if (!(await lockOwned(tx, settling, settlement)))
        return { answer: await settling.refused(tx, lease, "commit", change), value: undefined, enqueued: 0 };
      if (change.follow !== undefined)
        await kinds.demand(
          tx,
          change.follow.map(({ kind }) => kind),
        );
      control?.runs();
      const { value, enqueued } = await runUserBody(deps, tx, body);
      const [answer] = await settling.settle(tx, [{ ...settlement, change: { ...change, result: encode(value) } }]);
      ready = { answer: answer!, value, enqueued };
      return ready;
    }, control);
  } catch (thrown) {
    if (!(thrown instanceof OutcomeUnknown) || !ready) throw thrown;
    if (await succeeded(deps, settlement, thrown)) return { ...ready, answer: APPLIED };
    throw new OutliveError(
      ErrorCode.storeFailed,
      `The connection was lost while job ${lease.jobId} was committed; the server says that the commit did not happen.`,
      "Nothing was written. The attempt fails and the job is tried again.",
      { jobId: lease.jobId },
      { cause: thrown },
    );
  }
}

async function transact<T>(deps: CommitDeps, body: TransactionBody<PostgresTransaction, T>): Promise<Transacted<T>> {
  let ready: { value: T; enqueued: number; id: string } | undefined;
  try {
    return await deps.connection.userTransaction(async (tx) => {
      ready = await runUserBody(deps, tx, body);
      return ready;
    });
  } catch (thrown) {
    if (!(thrown instanceof OutcomeUnknown) || !ready) throw thrown;
    if (await committed(deps, ready.id, thrown)) return ready;
    throw new OutliveError(
      ErrorCode.storeFailed,
      "The connection was lost while a transaction of yours was committed; the server says that the commit did not happen.",
      "Nothing was written; run it again.",
      {},
      { cause: thrown },
    );
  }
}

/** The row stays locked to the end of the transaction: a recovery that comes now waits, and then finds the job over. */
async function lockOwned(tx: Transaction, settling: Settling, { lease }: Settlement): Promise<boolean> {
  return (await tx.rows(LOCK_OWNED, await settling.attempts(tx, [lease]))).length > 0;
}

/** Whether the job succeeded by this attempt. The lost transaction holds its row: the lock waits until it is over either way. */
function succeeded(deps: CommitDeps, { lease }: Settlement, cause: unknown): Promise<boolean> {
  return ask(deps, `job ${lease.jobId}`, cause, async (tx) => {
    const [row] = await tx.rows<{ state: number; epoch: number; fence: number; outcome: number | null }>(
      "SELECT state, epoch, fence, outcome FROM outlive.jobs WHERE seq = $1 AND id = $2 FOR UPDATE",
      [lease.row, lease.jobId],
    );
    if (!row) return false;
    const same = row.epoch === lease.epoch && row.fence === lease.fence;
    if (same && row.state !== STATE.running && row.outcome === OUTCOME.succeeded) return true;
    return wasRedriven(tx, lease);
  });
}

function committed(deps: CommitDeps, transaction: string, cause: unknown): Promise<boolean> {
  return ask(deps, "a transaction of yours", cause, async (tx) => {
    const [row] = await tx.rows<{ status: string }>("SELECT pg_xact_status($1::text::xid8) AS status", [transaction]);
    if (row!.status === "in progress") throw new Error("it is still under way");
    return row!.status === "committed";
  });
}

async function ask(
  deps: CommitDeps,
  what: string,
  cause: unknown,
  read: (tx: Transaction) => Promise<boolean>,
): Promise<boolean> {
  const { connection, clock } = deps;
  const until = clock.mono() + ASK_FOR_MS;
  for (;;) {
    try {
      return await connection.once(async (tx) => {
        await tx.run("SELECT set_config('lock_timeout', '1s', true)");
        return read(tx);
      });
    } catch (thrown) {
      if (clock.mono() >= until) throw unknown(what, cause, thrown);
      await pause(clock, ASK_EVERY_MS);
    }
  }
}

function unknown(what: string, cause: unknown, last: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.commitUnknown,
    `The connection was lost while ${what} was committed, and the server did not answer for ${ASK_FOR_MS / 1_000} s: whether it happened is unknown.`,
    "Read your rows when the server is back. A job whose commit did happen is succeeded and does not run again; the fence sees to that.",
    { lastError: toStoredError(last).message },
    { cause },
  );
}
