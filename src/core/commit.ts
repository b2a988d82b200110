// The form of `commit` and `transaction`: a value that each store exports, whose type decides what the callback gets and whether
// it must be synchronous, so that the wrong one does not compile.
import { ErrorCode, OutliveError } from "./errors.ts";
import type { ResultOf } from "./json.ts";

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

/** The form of `commit` or `transaction` must be that of the open store. */
export function assertForm(form: CommitForm<unknown, "sync" | "async">, store: string, who: string): void {
  if (form?.store === store) return;
  throw new OutliveError(
    ErrorCode.commitForm,
    `${who} in the form of ${form?.store}, but the open store is ${store}.`,
    `Import the form from "outlive/${store}".`,
    { form: form?.store, store },
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
