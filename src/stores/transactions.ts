// The user's own writes in the store's transactions: stores with SQL offer it. It is the only part of the port that runs a callback,
// because the user's statements are known to nobody else.
import type { CommitControl } from "../worker/run.ts";
import type { Settlement, WriteAnswer } from "./port.ts";

/** The user's own transaction as the store runs it; `Tx` is the store's own. Whether it may be asynchronous, the store's form says. */
export type TransactionBody<Tx, T> = (tx: Tx) => T | Promise<T>;

export interface Transactions<Tx = unknown> {
  /**
   * The user's writes, the job's success and what follows from it (`Change.follow`) in one transaction, fenced: if the fence does not hold, `body` is not run or its
   * writes are rolled back, and the answer says stale. If `body` throws, nothing is written and its error comes out. `control` is
   * kept up to date with what is under way; when it is interrupted before the commit itself, nothing is written, no lock is
   * left, and the call rejects with the reason, whether or not `body` has ended. Without it the store sets its own limit to waiting.
   */
  commit<T>(
    settlement: Settlement,
    body: TransactionBody<Tx, T>,
    encode: (value: T) => string | null,
    control?: CommitControl,
  ): Promise<Committed<T>>;

  /** The user's own transaction, with `enqueue` inside it. Nothing is fenced. If `body` throws, nothing is written and its error comes out. */
  transact<T>(body: TransactionBody<Tx, T>): Promise<Transacted<T>>;
}

export interface Transacted<T> {
  readonly value: T;
  /** How many jobs `body` enqueued. */
  readonly enqueued: number;
}

export interface Committed<T> {
  readonly answer: WriteAnswer;
  /** What `body` returned; undefined if it was not run. */
  readonly value: T | undefined;
  /** How many jobs `body` enqueued. */
  readonly enqueued: number;
}
