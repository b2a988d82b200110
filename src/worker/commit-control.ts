// The form of `commit` and `transaction`: a value that each store exports, whose type decides what the callback gets and whether
// it must be synchronous, so that the wrong one does not compile. And the control with which a worker ends a commit under way.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { ResultOf } from "../job/json.ts";
import type { Store, Transactions } from "../stores/port.ts";

/** The form of `commit` and `transaction` on one store. `Mode` decides whether the callback must be synchronous. */
export interface CommitForm<Tx, Mode extends "sync" | "async"> {
  readonly store: string;
  readonly mode: Mode;
  /** Only a type: what the callback gets. */
  readonly tx?: Tx;
}

/** What a synchronous callback may return: anything but a promise. The name of the type is the message of the compiler. */
export type NoPromise<T> = T extends PromiseLike<unknown> ? CallbackMustBeSynchronousOnThisStore : T;
/** As `NoPromise`, of what becomes the job's result. */
export type CommittedResult<T> = [Extract<T, PromiseLike<unknown>>] extends [never]
  ? ResultOf<T>
  : CallbackMustBeSynchronousOnThisStore;
export interface CallbackMustBeSynchronousOnThisStore {
  readonly "a promise can't be awaited inside this store's transaction": never;
}

/** The transactions of the open store. A store without them is refused, and so is the form of another store. */
export function transactionsFor(
  { name: store, transactions }: Pick<Store, "name" | "transactions">,
  form: CommitForm<unknown, "sync" | "async">,
  who: string,
): Transactions {
  const data = { form: form?.store, store };
  if (transactions === undefined)
    throw new OutliveError(
      ErrorCode.commitUnsupported,
      `${who}, but the open store, ${store}, has no transactions of its own for your writes.`,
      "Nothing was written. Return the result from the handler instead, or use a store with SQL.",
      data,
    );
  if (form?.store === store) return transactions;
  throw new OutliveError(
    ErrorCode.commitForm,
    `${who} in the form of ${form?.store}, but the open store is ${store}.`,
    `Import the form from "outlive/${store}".`,
    data,
  );
}

/** The callback with an `enqueue` that first asks whether the contract is one of the program's own. */
export function checkedEnqueue(
  body: (tx: unknown) => unknown,
  assertKnown: (contract: { readonly name: string }) => void,
): (tx: unknown) => unknown {
  return (tx) => {
    const { enqueue } = tx as { enqueue?: (contract: { readonly name: string }, ...rest: unknown[]) => unknown };
    if (!enqueue) return body(tx);
    const checked = (contract: { readonly name: string }, ...rest: unknown[]): unknown => {
      assertKnown(contract);
      return enqueue(contract, ...rest);
    };
    return body({ ...(tx as object), enqueue: checked });
  };
}

/**
 * What a worker and its store share about one commit. It waits (for a session, for the write lock), it runs, it is being committed.
 * The worker may interrupt it until the last of these: a commit that waits never begins, and one that runs is rolled back.
 */
export class CommitControl {
  readonly sinceMono: number;
  #phase: "waits" | "runs" | "commits" = "waits";
  #reason: Error | undefined;
  #listener: ((reason: Error) => void) | undefined;

  constructor(sinceMono: number) {
    this.sinceMono = sinceMono;
  }

  /** Nothing has begun: the callback has not been called. */
  get waits(): boolean {
    return this.#phase === "waits";
  }

  /** Why it was interrupted; undefined: it was not. */
  get interrupted(): Error | undefined {
    return this.#reason;
  }

  /** For the worker. False: it is too late, the transaction is being committed. Once interrupted, it stays so. */
  interrupt(reason: Error): boolean {
    if (this.#phase === "commits") return false;
    if (this.#reason) return true;
    this.#reason = reason;
    this.#listener?.(reason);
    return true;
  }

  /** For the store: the transaction is open and the callback comes next. Throws the reason of an interruption. */
  runs(): void {
    this.#enter("runs");
  }

  /** For the store: from here on nothing ends it from outside. Throws the reason of an interruption. */
  commits(): void {
    this.#enter("commits");
  }

  /** For the store: hears of the interruption, at once if there was one. One listener at a time; returns how to stop hearing. */
  onInterrupt(listener: (reason: Error) => void): () => void {
    if (this.#reason) listener(this.#reason);
    else this.#listener = listener;
    return () => {
      if (this.#listener === listener) this.#listener = undefined;
    };
  }

  #enter(phase: "runs" | "commits"): void {
    if (this.#reason) throw this.#reason;
    this.#phase = phase;
  }
}

/** What `work` comes to, or the reason of an interruption as soon as there is one. */
export function unlessInterrupted<T>(control: CommitControl, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const stopHearing = control.onInterrupt(reject);
    work.then(resolve, reject).finally(stopHearing);
  });
}
