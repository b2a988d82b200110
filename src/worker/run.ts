// What a handler gets as its second argument. Types only: attempt.ts is what stands behind them.
import type { Enqueued, Outcome } from "../job/job.ts";
import type { Json, JsonOf } from "../job/json.ts";
import type { CommitForm, CommittedResult } from "./commit-control.ts";

/** How the attempt before this one ended, if it did not succeed. */
export interface Interrupted {
  readonly how: Exclude<Outcome, "succeeded">;
  /** The last step that earlier attempts finished. */
  readonly lastStep: string | undefined;
}

/** The methods of a run that write, as they are named in events. */
export type RunCall = "step" | "heartbeat" | "progress" | "log" | "enqueue" | "commit";

/** The second argument of a handler. */
export interface Run {
  /** The job's id. */
  readonly id: string;
  /** 1 at the first attempt; grows with every claim, also after a release. */
  readonly attempt: number;
  /** This attempt's fence. Pass it to systems that can compare it and refuse an older one. */
  readonly fence: { readonly epoch: number; readonly number: number };
  /** Aborted when the lease is lost, the deadline has passed, the job is cancelled or the worker shuts down; `reason.why` says which. */
  readonly signal: AbortSignal;
  /** How the attempt before this one ended; undefined at the first. */
  readonly interrupted: Interrupted | undefined;
  /** Runs `work` once for the job's whole life: its result is kept, and a later attempt gets it without running `work` again. Names are unique within a job. */
  step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>>;
  /** An idempotency key: the same in every attempt of this job, different for every name. */
  key(name: string): string;
  /** Moves the deadline to one timeout from now (`maxRuntime` caps it). Rejects if the job is not ours any more. */
  heartbeat(): Promise<void>;
  /** Keeps the latest progress of the job, for people and dashboards. */
  progress(value: Json): Promise<void>;
  /** Adds a line to the job's log. At most 1,000 lines of 8,192 characters are kept. */
  log(message: string): Promise<void>;
  /** Enqueues another job under this attempt's fence. Without an id it gets one made of its kind, input and dedupe key, the same in every attempt, so a replay adds nothing. Give ids of your own to children that are alike and enqueued partly inside steps. */
  readonly enqueue: RunEnqueue;
  /** Ends the job successfully in the same database transaction as your own writes. Its return value is the job's result. */
  commit<Tx, T>(form: CommitForm<Tx, "sync">, body: (tx: Tx) => CommittedResult<T>): Promise<T>;
  commit<Tx, T>(form: CommitForm<Tx, "async">, body: (tx: Tx) => Promise<T>): Promise<T>;
}

/** A step's result as it comes back: what JSON makes of it; a type that JSON can't carry shows as `never`. */
export type StepResult<T> = [T] extends [void] ? T : JsonOf<T>;

/** The engine replaces this by its own typed `enqueue`; here it is only known that it takes a kind and an input. */
export type RunEnqueue = (kind: never, input: never, options?: never) => Promise<Enqueued>;
