// What a handler holds: its second argument, `run`; the form of `commit` and `transaction`; and the control with which a worker ends a
// commit under way. attempt.ts implements it.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { RowEnds } from "../job/batches.ts";
import { ErrorCode, type InterruptionReason, OutliveError, type StoredError } from "../job/errors.ts";
import type { ClaimedJob, Enqueued, JobId, Outcome } from "../job/job.ts";
import type { Json, JsonOf, ResultOf } from "../job/json.ts";
import type { Duration } from "../job/time.ts";
import type { JobOutcome } from "../job/waits.ts";
import type { Store, Transactions } from "../stores/port.ts";

/** How the attempt before this one ended, if it did not succeed. */
export interface Interrupted {
  /** How it ended. */
  readonly how: Exclude<Outcome, "succeeded" | "waiting">;
  /** The last step that earlier attempts finished. */
  readonly lastStep: string | undefined;
}

/** The methods of a run that write, as they are named in events. */
export type RunCall = "step" | "heartbeat" | "progress" | "log" | "enqueue" | "holdOff" | "commit" | "wait";

/** What a job was planned for. */
export interface Scheduled {
  /** The name of the schedule. */
  readonly schedule: string;
  /** The occurrence: an instant in ISO 8601, in UTC. */
  readonly at: string;
  /** It was enqueued late, after it was missed, or by a backfill. */
  readonly caughtUp: boolean;
}

/** The second argument of a handler. */
export interface Run {
  /** The job's id. */
  readonly id: string;
  /** 1 at the first attempt; grows with every claim, also after a release. */
  readonly attempt: number;
  /** This attempt's fence. Pass it to systems that can compare it and refuse an older one. */
  readonly fence: {
    /** The store's epoch at the claim. */
    readonly epoch: number;
    /** Grows with every claim of the job. */
    readonly number: number;
  };
  /** Aborted when the lease is lost, the deadline has passed, the job is cancelled or the worker shuts down; `reason.why` says which. */
  readonly signal: AbortSignal;
  /** How the attempt before this one ended; undefined at the first. */
  readonly interrupted: Interrupted | undefined;
  /** The occurrence for which a schedule enqueued this job: an instant in ISO 8601, in UTC. Undefined: no schedule did. */
  readonly scheduled: Scheduled | undefined;
  /** Runs `work` once for the job's whole life: its result is kept, and a later attempt gets it without running `work` again. Names are unique within a job. */
  step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>>;
  /** An idempotency key: the same in every attempt of this job, different for every name. */
  key(name: string): string;
  /** Moves the deadline to one timeout from now (`maxRuntime` caps it). Rejects if this attempt no longer owns the job. */
  heartbeat(): Promise<void>;
  /** Keeps the latest progress of the job, for people and dashboards. */
  progress(value: Json): Promise<void>;
  /** Adds a line to the job's log. At most 1,000 lines of 8,192 characters are kept. */
  log(message: string): Promise<void>;
  /** Enqueues another job under this attempt's fence. Without an id it gets one made of its kind, input and dedupe key, the same in every attempt, so a replay adds nothing. Pass your own ids for equal children of which only some are enqueued inside steps. */
  readonly enqueue: RunEnqueue;
  /** Enqueues many jobs of one kind, 1,000 in each transaction. Returns their ids, in the order of the inputs. */
  readonly enqueueMany: RunEnqueueMany;
  /** No job with this job's key of the limit is admitted for this long, for instance because the other side asked for a pause. No attempt is counted; running jobs, and those that were admitted before, continue. */
  holdOff(limit: string, duration: Duration): Promise<void>;
  /** A `fetch` whose calls are steps of this job, known by method, URL and body: a later attempt gets the kept response. For SDKs that take one. Needs the package `undici`. */
  fetch(options: FetchOptions): typeof fetch;
  /** Ends the attempt; a new one continues after this long. Meanwhile the job needs no slot, timer or memory. Costs no attempt. */
  sleep(duration: Duration, options?: SleepOptions): Promise<void>;
  /** As `sleep`, until this moment of the worker's clock. */
  sleepUntil(date: Date, options?: SleepOptions): Promise<void>;
  /** Waits, without a slot, for a signal sent by `engine.signal`, also one that was sent before. Each signal is read once. Null: `timeout` has passed. */
  waitForSignal<T = Json>(name: string, options?: SignalOptions<T>): Promise<T | null>;
  /** Waits, without a slot, until all these jobs have ended, however they ended, or `timeout` has passed. */
  wait<R = Json>(ids: readonly JobId<R>[], options?: WaitOptions): Promise<readonly AwaitedJob<R>[]>;
  /** As `wait`, and returns the results. Throws CHILD_FAILED if one of the jobs did not succeed. */
  results<R = Json>(ids: readonly JobId<R>[], options?: WaitOptions): Promise<readonly R[]>;
  /** Ends the job successfully in the same database transaction as your own writes. Its return value is the job's result. */
  commit<Tx, T>(form: CommitForm<Tx, "sync">, body: (tx: Tx) => CommittedResult<T>): Promise<T>;
  commit<Tx, T>(form: CommitForm<Tx, "async">, body: (tx: Tx) => Promise<T>): Promise<T>;
}

/** How the calls of `run.fetch` are made. */
export interface FetchOptions {
  /** What is done if a POST or PATCH was sent and its outcome is not known: "resend" it, or "fail" the job. Other methods are sent again. */
  readonly ifUnknown: "resend" | "fail";
  /** Which addresses may be reached: "public", "any", or CIDRs and host names. Default "public". */
  readonly addresses?: "public" | "any" | readonly string[];
  /** From the call to the last byte, also the limit of each part. Default "10m"; at most "24d". */
  readonly timeout?: Duration;
}

/** What the runner of a block needs of its attempt, beyond what a handler gets. */
export interface BlockAttempt extends Run {
  readonly job: ClaimedJob;
  /** It was asked to stop. */
  readonly isInterrupted: boolean;
  /** The user's handler begins only now: if what it waited for counted as its work, one slow read of the store would stop claims ahead. */
  startsNow(): void;
  /**
   * Asked once, when the attempt ends: the rows that have ended and are not durable yet. Whatever ends the attempt writes them with it. `succeeds`: if they are
   * rows that succeeded and leave nothing else, they need not be listed.
   */
  pendingRows: ((succeeds?: boolean) => RowEnds | null) | null;
  /** Makes the ends of rows durable, and counts as a heartbeat. */
  endRows(ends: RowEnds): Promise<void>;
  /** Makes durable that a row is about to begin. */
  beginRow(row: number): Promise<void>;
  /** The ends of rows in the user's own transaction. The attempt goes on. */
  commitRow(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown, ends: RowEnds): Promise<unknown>;
}

/** What the runner of a request needs of its attempt, beyond what a handler gets. */
export interface RequestAttempt extends Run {
  readonly job: ClaimedJob;
  /** Why it was asked to stop; undefined: it was not. */
  readonly abortedBy: InterruptionReason | undefined;
  /** Aborted once when it is asked to stop. Cheaper than a signal: 10,000 signals cost 16 MB. */
  underWay: { abort(fault: "aborted", why: InterruptionReason): void } | null;
  /** Once it is set, the attempt ends as failed by it, whatever its handler makes of it. */
  failsWith: Error | undefined;
}

/** A step's result as it comes back: what JSON makes of it; a type that JSON can't carry shows as `never`. */
export type StepResult<T> = [T] extends [void] ? T : JsonOf<T>;

/** The engine replaces this by its own typed `enqueue`; here it is only known that it takes a kind and an input. */
export type RunEnqueue = (kind: never, input: never, options?: never) => Promise<Enqueued>;

/** As `RunEnqueue`, for many. */
export type RunEnqueueMany = (kind: never, inputs: never, options?: never) => Promise<string[]>;

/** Options of `run.sleep` and `run.sleepUntil`. */
export interface SleepOptions {
  /** Instead of its position: by it a changed handler finds the same sleep again. Default: the number of the sleep. */
  readonly name?: string;
}

/** Options of `run.wait` and `run.results`. */
export interface WaitOptions {
  /** How long to wait at most. Default: without an end. */
  readonly timeout?: Duration;
}

/** Options of `run.waitForSignal`. */
export interface SignalOptions<T> extends WaitOptions {
  /** Checks what was sent. A payload that does not fit fails the attempt. Default: any JSON. */
  readonly schema?: StandardSchemaV1<unknown, T>;
}

/** How a job that was waited for stands. */
export type AwaitedJob<R = Json> =
  | {
      /** The job's id. */
      readonly id: string;
      /** Its state. queued, running: the time was up before it ended. missing: it was removed. */
      readonly state: "succeeded";
      /** What its handler returned. */
      readonly result: R;
    }
  | {
      readonly id: string;
      readonly state: "dead" | "cancelled" | "quarantined";
      /** Its latest error; null if there was none. */
      readonly error: StoredError | null;
    }
  | { readonly id: string; readonly state: "queued" | "running" | "missing" };

export function awaitedJob<R>({ id, state, result, error }: JobOutcome): AwaitedJob<R> {
  if (state === "succeeded") return { id, state, result: (result === null ? null : JSON.parse(result)) as R };
  return state === "queued" || state === "running" || state === "missing" ? { id, state } : { id, state, error };
}

/** The form of `commit` and `transaction` on one store. `Mode` decides whether the callback must be synchronous. */
export interface CommitForm<Tx, Mode extends "sync" | "async"> {
  /** The store that it is for. */
  readonly store: string;
  /** Whether the callback is synchronous. */
  readonly mode: Mode;
  /** Only a type: what the callback gets. */
  readonly tx?: Tx;
}

/** What a synchronous callback may return: anything but a promise. The name of the type is the message of the compiler. */
export type NoPromise<T> = T extends PromiseLike<unknown> ? CallbackMustBeSynchronousOnThisStore : T;
/** As `NoPromise`, of what becomes the job's result. */
type CommittedResult<T> = [Extract<T, PromiseLike<unknown>>] extends [never]
  ? ResultOf<T>
  : CallbackMustBeSynchronousOnThisStore;
/** What the compiler names where a callback must not return a promise. */
interface CallbackMustBeSynchronousOnThisStore {
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

/** The callback with an `enqueue` and a `submit` that first ask whether the contract is one of the program's own. */
export function checkedEnqueue(
  body: (tx: unknown) => unknown,
  assertKnown: (contract: { readonly name: string }) => void,
): (tx: unknown) => unknown {
  return (tx) => {
    const { enqueue, submit } = tx as {
      enqueue?: (contract: { readonly name: string }, ...rest: unknown[]) => unknown;
      submit?: (batch: SubmittedKind, ...rest: unknown[]) => unknown;
    };
    if (!enqueue) return body(tx);
    return body({
      ...(tx as object),
      enqueue: (contract: { readonly name: string }, ...rest: unknown[]): unknown => {
        assertKnown(contract);
        return enqueue(contract, ...rest);
      },
      ...(submit && {
        submit: (batch: SubmittedKind, ...rest: unknown[]): unknown => {
          // A batch is known by the kind of its blocks. Undefined is what a circle of imports makes of one.
          assertKnown(batch?.kinds?.block);
          return submit(batch, ...rest);
        },
      }),
    });
  };
}

interface SubmittedKind {
  readonly kinds: { readonly block: { readonly name: string } };
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
