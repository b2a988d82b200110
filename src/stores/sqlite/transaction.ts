// The user's own SQL in our file: what the callbacks of `commit` and `transaction` get. Synchronous, because a write
// transaction of SQLite must never span an await.
import type { JobContract } from "../../job/contract.ts";
import { type EnqueueOptions, makeDraftNow } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Enqueued } from "../../job/job.ts";
import type { Json } from "../../job/json.ts";
import {
  batchDraft,
  nowOf,
  rowsInTransaction,
  type SubmittableBatch,
  type Submitted,
  type SubmittedWith,
} from "../../job/submit.ts";
import { makeSignal, type SentSignal, type SentSignalOptions, signalResult } from "../../job/waits.ts";
import { type CommitControl, type CommitForm, unlessInterrupted } from "../../worker/run.ts";
import {
  APPLIED,
  type Committed,
  type FencedWrite,
  REPEATED,
  type Settlement,
  type Transactions,
  triedBy,
} from "../port.ts";
import { writeOfAttempt } from "./attempt-writes.ts";
import { submitWithin } from "./batches.ts";
import { haveEnded } from "./blocks.ts";
import type { Database, Row, SQLInputValue } from "./database.ts";
import { demandKinds, insertJobs, type Kinds } from "./enqueue.ts";
import { isMachineFailure, primaryCode, SQLITE_AUTH } from "./errors.ts";
import type { Settling } from "./settle.ts";
import { sendSignal } from "./waits.ts";
import type { FileAccess } from "./writer.ts";

/** A value that a statement takes. */
export type SqlValue = SQLInputValue | boolean;

/**
 * A transaction on the engine's own connection, which several callbacks of one turn may share; if another one breaks it, yours is
 * run again, and its writes count once. Transaction control, ATTACH, setting PRAGMAs and writing to outlive_ tables are refused. */
export interface SqliteTransaction {
  /** Runs a statement that returns no rows. */
  run(
    sql: string,
    ...values: SqlValue[]
  ): {
    /** How many rows were changed. */
    readonly changes: number;
    /** The rowid of the last inserted row. */
    readonly lastInsertRowid: number;
  };
  /** The first row, or undefined. */
  get<T = Row>(sql: string, ...values: SqlValue[]): T | undefined;
  /** All rows. */
  all<T = Row>(sql: string, ...values: SqlValue[]): T[];
  /** Runs several statements, for instance to create tables. */
  exec(sql: string): void;
  /** Enqueues a job in this same transaction. */
  enqueue<In>(
    job: JobContract<In, never, unknown> | JobContract<In, unknown, unknown>,
    input: In,
    options?: EnqueueOptions,
  ): Enqueued;
  /**
   * Submits a batch in this same transaction: it is there, sealed, if the transaction commits. At most 10,000 rows. With a `key` of a batch that is
   * there, what is missing is added, as by `engine.submit`.
   */
  submit<In, Context>(
    batch: SubmittableBatch<In, Context>,
    rows: Iterable<NoInfer<In>>,
    options?: SubmittedWith<NoInfer<Context>>,
  ): Submitted;
  /**
   * Sends a signal in this same transaction: it is kept if the transaction commits. Throws as `engine.signal` rejects, for a job that has ended
   * for instance; nothing of the signal was written then, and the transaction may continue.
   */
  signal(jobId: string, name: string, payload?: Json, options?: SentSignalOptions): SentSignal;
}

/** The form of `run.commit` and `engine.transaction` on SQLite: the callback is synchronous. */
export const sqlite: CommitForm<SqliteTransaction, "sync"> = { store: "sqlite", mode: "sync" };

/** Synchronous bodies only: one that returns a promise is refused when it does. */
export function transactions({ now, write }: FileAccess, deps: CommitDeps): Transactions<SqliteTransaction> {
  const inOne = <T>(control: CommitControl | undefined, work: () => Committed<T>): Promise<Committed<T>> => {
    const written = write(() => {
      control?.runs();
      const committed = work();
      control?.commits();
      return committed;
    }, true);
    return control ? unlessInterrupted(control, written) : written;
  };
  return {
    commit: (settlement, body, encode, control) =>
      inOne(control, () => commitJob(deps, settlement, body as (tx: SqliteTransaction) => never, encode, now())),
    write: (fenced, body, control) =>
      inOne(control, () => commitWrite(deps, fenced, body as (tx: SqliteTransaction) => never, now())),
    transact: (body) => write(() => runUserBody(deps, now(), body as (tx: SqliteTransaction) => never), true),
  };
}

export interface TransactionDeps {
  readonly db: Database;
  readonly kinds: Kinds;
  readonly newId: () => string;
}

/** Runs the user's callback inside the open transaction. After it returned, its handle is dead. */
function runUserBody<T>(
  deps: TransactionDeps,
  now: number,
  body: (tx: SqliteTransaction) => T,
): { value: T; enqueued: number; signalled: number } {
  const { db, kinds, newId } = deps;
  let open = true;
  let enqueued = 0;
  let signalled = 0;
  const alive = (): void => {
    if (!open)
      throw new OutliveError(
        ErrorCode.commitAsync,
        "The transaction has ended.",
        "Use its handle only inside the callback, without awaiting anything.",
      );
  };
  // SQLite may have rolled back the whole transaction, whatever the callback makes of the error.
  let failure: unknown;
  const noticed = <R>(work: () => R): R => {
    try {
      return work();
    } catch (thrown) {
      if (isMachineFailure(thrown)) failure = thrown;
      throw thrown;
    }
  };
  const isLost = (): boolean => failure !== undefined && !db.inTransaction;
  // Stepped as user code too: SQLite may prepare a statement again while it runs, after the callback changed the schema.
  const step = <R>(work: () => R): R => {
    alive();
    try {
      return noticed(() => db.asUser(work));
    } catch (thrown) {
      throw primaryCode(thrown) === SQLITE_AUTH ? denied(thrown) : thrown;
    }
  };
  const tx: SqliteTransaction = {
    run(sql, ...values) {
      const { changes, lastInsertRowid } = step(() => db.userSql(sql).run(...values.map(plain)));
      return { changes: Number(changes), lastInsertRowid: Number(lastInsertRowid) };
    },
    get<R>(sql: string, ...values: SqlValue[]) {
      return step(() => db.userSql(sql).get(...values.map(plain))) as R | undefined;
    },
    all<R>(sql: string, ...values: SqlValue[]) {
      return step(() => db.userSql(sql).all(...values.map(plain))) as R[];
    },
    exec(sql) {
      step(() => db.userExec(sql));
    },
    enqueue(job, input, options = {}) {
      alive();
      const draft = makeDraftNow(job as never, input, options, newId);
      const [done] = noticed(() => insertJobs(db, kinds, [draft], now));
      enqueued++;
      return done!;
    },
    submit(batch, rows, options = {}) {
      alive();
      const draft = nowOf(batchDraft(batch, options, newId), batch.name);
      const all = rowsInTransaction(batch, rows);
      const submitted = noticed(() => submitWithin(db, kinds, batch, { draft, rows: all }, now));
      enqueued++;
      return submitted;
    },
    signal(jobId, name, payload, options) {
      alive();
      const signal = makeSignal(jobId, name, payload, options, newId);
      const sent = signalResult(
        signal,
        noticed(() => sendSignal(db, signal, now)),
      );
      if (sent.created) signalled++;
      return sent;
    },
  };
  try {
    const value = body(tx);
    if (isLost()) throw failure;
    if (typeof (value as { then?: unknown } | null | undefined)?.then === "function") {
      (value as unknown as Promise<unknown>).then(undefined, () => {});
      throw new OutliveError(
        ErrorCode.commitAsync,
        "The callback returned a promise, but a transaction of SQLite is synchronous.",
        "Nothing was written. Do what must be awaited before, and only the SQL inside the callback.",
      );
    }
    return { value, enqueued, signalled };
  } catch (thrown) {
    throw isLost() ? failure : thrown;
  } finally {
    open = false;
  }
}

function denied(cause: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.commitDenied,
    "The callback tried what is not allowed inside the engine's transaction.",
    "Leave out BEGIN, COMMIT, ROLLBACK, SAVEPOINT, ATTACH, setting a PRAGMA, and changes of tables named outlive_.",
    {},
    { cause },
  );
}

function plain(value: SqlValue): SQLInputValue {
  return typeof value === "boolean" ? Number(value) : value;
}

// The user's writes and the job's success, inside one transaction.

export interface CommitDeps extends TransactionDeps {
  readonly settling: Settling;
}

/** If the fence does not hold, `body` is not run. */
function commitJob<T>(
  deps: CommitDeps,
  settlement: Settlement,
  body: (tx: SqliteTransaction) => T,
  encode: (value: T) => string | null,
  now: number,
): Committed<T> {
  const { kinds, settling } = deps;
  const { lease, change } = settlement;
  if (!settling.owns(lease))
    return { answer: settling.refused(lease, "commit", now, change), value: undefined, enqueued: 0 };
  if (change.follow !== undefined) demandKinds(kinds, change.follow);
  const { value, ...counts } = runUserBody(deps, now, body);
  const [answer] = settling.settle([{ ...settlement, change: { ...change, result: encode(value) } }], now);
  return { answer: answer ?? APPLIED, value, ...counts };
}

/** The user's writes and a small write of the attempt. If the fence does not hold, or the rows of the write have ended, `body` is not run. */
function commitWrite<T>(
  deps: CommitDeps,
  { lease, write }: FencedWrite,
  body: (tx: SqliteTransaction) => T,
  now: number,
): Committed<T> {
  const { db, kinds, settling } = deps;
  if (!settling.owns(lease))
    return { answer: settling.refused(lease, triedBy(write), now), value: undefined, enqueued: 0 };
  if (write.type === "rows" && haveEnded(db, lease.row, write.ends))
    return { answer: REPEATED, value: undefined, enqueued: 0 };
  const { value, ...counts } = runUserBody(deps, now, body);
  return { answer: writeOfAttempt(db, kinds, settling, lease, write, now), value, ...counts };
}
