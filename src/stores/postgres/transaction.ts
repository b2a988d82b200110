// The user's own SQL in our transaction: what the callbacks of `commit` and `transaction` get. Asynchronous, on one session that is
// theirs until the callback has ended.
import type { JobContract } from "../../job/contract.ts";
import { type EnqueueOptions, makeDraft } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Enqueued } from "../../job/job.ts";
import type { Json } from "../../job/json.ts";
import {
  batchDraft,
  rowsInTransaction,
  type SubmittableBatch,
  type Submitted,
  type SubmittedWith,
} from "../../job/submit.ts";
import { makeSignal, type SentSignal, type SentSignalOptions, signalResult } from "../../job/waits.ts";
import type { CommitForm } from "../../worker/run.ts";
import { wakeupChannel } from "./address.ts";
import { submitWithin } from "./batches.ts";
import { rolledBack, sessionOn } from "./connection.ts";
import { insertJobs, Kinds } from "./enqueue.ts";
import { sqlState } from "./errors.ts";
import type { PostgresClient, Session, UserTransaction } from "./statements.ts";
import { sendSignalWithin } from "./waits.ts";

/** A transaction on one session of the engine's. BEGIN, COMMIT and ROLLBACK are the engine's own; SAVEPOINT is allowed. */
export interface PostgresTransaction {
  /** Runs a statement and returns its rows. */
  query<R = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<R[]>;
  /** Enqueues a job in this same transaction. */
  enqueue<In>(
    job: JobContract<In, never, unknown> | JobContract<In, unknown, unknown>,
    input: In,
    options?: EnqueueOptions,
  ): Promise<Enqueued>;
  /**
   * Submits a batch in this same transaction: it is there, sealed, if the transaction commits. At most 10,000 rows. With a `key` of a batch that is
   * there, what is missing is added, as by `engine.submit`. Until the commit submitters of the same key wait for it.
   */
  submit<In, Context>(
    batch: SubmittableBatch<In, Context>,
    rows: Iterable<NoInfer<In>>,
    options?: SubmittedWith<NoInfer<Context>>,
  ): Promise<Submitted>;
  /**
   * Sends a signal in this same transaction: it is kept if the transaction commits. Rejects as `engine.signal` does, for a job that has ended
   * for instance; nothing of the signal was written then, and the transaction may continue. Until the commit only senders of the same id wait for it.
   */
  signal(jobId: string, name: string, payload?: Json, options?: SentSignalOptions): Promise<SentSignal>;
  /** The session as a client of `pg`, for a query builder. It is valid until the callback has ended. */
  readonly client: PostgresClient;
}

/** The form of `run.commit` and `engine.transaction` on PostgreSQL: the callback is asynchronous. */
export const postgres: CommitForm<PostgresTransaction, "async"> = { store: "postgres", mode: "async" };

export interface TransactionDeps {
  readonly kinds: Kinds;
  readonly newId: () => string;
}

interface UserBody<T> {
  readonly value: T;
  readonly enqueued: number;
  readonly signalled: number;
  /** Of the transaction. */
  readonly id: string;
}

/** Runs the user's callback inside the open transaction, and finds out whether it is still open. */
export async function runUserBody<T>(
  deps: TransactionDeps,
  session: UserTransaction,
  body: (tx: PostgresTransaction) => T | Promise<T>,
): Promise<UserBody<T>> {
  const ran = await callUserBody(deps, session, body);
  if ((await transactionId(session)) !== ran.id) throw ended();
  return ran;
}

/** Runs the user's callback. After it ended, its handle is dead. Whether the transaction is still the same is for the caller to find out. */
export async function callUserBody<T>(
  deps: TransactionDeps,
  session: UserTransaction,
  body: (tx: PostgresTransaction) => T | Promise<T>,
): Promise<UserBody<T>> {
  let open = true;
  let enqueued = 0;
  let signalled = 0;
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
    async submit(batch, rows, options = {}) {
      if (!open) throw over();
      const draft = await batchDraft(batch, options, deps.newId);
      const all = rowsInTransaction(batch, rows);
      enqueued++;
      return submitWithin(session, deps.kinds, batch, { draft, rows: all });
    },
    async signal(jobId, name, payload, options) {
      if (!open) throw over();
      const signal = makeSignal(jobId, name, payload, options, deps.newId);
      const sent = signalResult(signal, await sendSignalWithin(session, signal));
      if (sent.created) signalled++;
      return sent;
    },
  };
  try {
    const value = await body(tx);
    return { value, enqueued, signalled, id };
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
  const wakeup = deps.wake !== false && isReady ? wakeupChannel(deps.schema) : null;
  return enqueueOne(await sessionOn(client, deps.schema), new Kinds(), draft, wakeup);
}

async function enqueueOne(
  session: Session,
  kinds: Kinds,
  draft: Awaited<ReturnType<typeof makeDraft>>,
  wakeup: string | null = null,
): Promise<Enqueued> {
  await kinds.demand(session, [draft.kind]);
  const [enqueued] = await insertJobs(session, kinds, [draft], { ofUser: true, ...(wakeup !== null && { wakeup }) });
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
    "The transaction has ended.",
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

export function ended(): OutliveError {
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
