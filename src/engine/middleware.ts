// Middleware: the program's own code around every enqueue and every attempt. The first of the list is the outermost. A program without one has nothing
// of this on the way of its jobs.
import type { EnqueueAround, JobToEnqueue } from "../job/around.ts";
import type { RunnableKind, TypedRun } from "../job/contract.ts";
import { ErrorCode, OutliveError, type StoredError } from "../job/errors.ts";
import type { EngineEvent } from "../job/events.ts";
import type { ClaimedJob, Enqueued, JobDetails, JobState, Outcome } from "../job/job.ts";
import type { Change } from "../job/transitions.ts";
import type { Run } from "../worker/run.ts";

/** An attempt that is about to begin. */
export interface AttemptToRun {
  /** The kind of its job. */
  readonly kind: string;
  /** The input, through the schema. */
  readonly input: unknown;
  /** What the handler gets as its second argument. */
  readonly run: TypedRun;
  /** Reads the whole job, for what an attempt does not have: when it was enqueued, its trace, its history. One read of the store for each call. */
  readonly details: () => Promise<JobDetails | null>;
}

/** How an attempt ended. */
export interface AttemptEnd {
  /** The job's id. */
  readonly jobId: string;
  /** The kind of the job. */
  readonly kind: string;
  /** The number of the attempt. */
  readonly attempt: number;
  /** How it ended; null: what ended it is not an outcome of an attempt. */
  readonly outcome: Outcome | null;
  /** The state of the job after it. */
  readonly to: JobState;
  /** Its error; null if there was none. */
  readonly error: StoredError | null;
}

/** Code around every enqueue and every attempt of a program. Every part may be omitted. */
export interface Middleware {
  /**
   * Wraps each job that `enqueue` and `enqueueMany` add (of an engine, a client or a run); not `tx.enqueue`, jobs of schedules,
   * or jobs that the engine enqueues itself. `next` enqueues: call it at most once, and return what it resolves with. If this
   * throws, the call rejects.
   */
  enqueue?(job: JobToEnqueue, next: (job: JobToEnqueue) => Promise<Enqueued>): Promise<Enqueued>;
  /**
   * Around each call of a handler. `next` calls it, and what is returned is the job's result: return what `next` resolved with. What is thrown here is an error of the
   * handler. If the handler waits (`run.sleep` and others), the attempt ends and `next` never resolves; `ended` is called.
   */
  attempt?(attempt: AttemptToRun, next: () => Promise<unknown>): unknown;
  /** Called when an attempt of this process has ended and its end is durable; not if its process died, or its end was refused. If it throws, the engine emits `listener.failed`. */
  ended?(end: AttemptEnd): void;
  /** Called with every event, as `onEvent` is. `details` reads the whole job of an id. */
  event?(event: EngineEvent, details: (id: string) => Promise<JobDetails | null>): void;
}

/** Null: no middleware has anything around enqueues. */
export function aroundEnqueue(middleware: readonly Middleware[]): EnqueueAround | null {
  const around = middleware.filter((one) => one.enqueue !== undefined);
  if (around.length === 0) return null;
  return (job, last) => {
    const from = (at: number, given: JobToEnqueue): Promise<Enqueued> => {
      if (given.job !== job.job) return Promise.reject(otherKind(job.job.name, given.job?.name));
      const one = around[at];
      if (one === undefined) return last(given);
      return inOrder(
        async (next) => one.enqueue!(given, next),
        (passed: JobToEnqueue) => from(at + 1, passed),
      );
    };
    return from(0, job);
  };
}

/** What a worker runs, with the middleware around its handlers. The map itself if there is nothing to put around them. */
export function aroundKinds(
  middleware: readonly Middleware[],
  kinds: ReadonlyMap<string, RunnableKind>,
  details: (id: string) => Promise<JobDetails | null>,
  failed: (thrown: unknown) => void,
): ReadonlyMap<string, RunnableKind> {
  const around = middleware.filter((one) => one.attempt !== undefined);
  const hearing = middleware.filter((one) => one.ended !== undefined);
  if (around.length === 0 && hearing.length === 0) return kinds;
  return new Map(
    [...kinds].map(([name, kind]) => [name, wrapped(name, kind, around, heardBy(hearing, failed), details)]),
  );
}

function wrapped(
  name: string,
  kind: RunnableKind,
  around: readonly Middleware[],
  heard: ((end: AttemptEnd) => void) | null,
  details: (id: string) => Promise<JobDetails | null>,
): RunnableKind {
  const { handler, settled } = kind;
  const call = async (input: never, run: Run): Promise<unknown> => {
    const attempt = { kind: name, input, run: run as unknown as TypedRun, details: () => details(run.id) };
    const from = (at: number): Promise<unknown> => {
      const one = around[at];
      if (one === undefined) return Promise.resolve().then(() => handler(input, run));
      return inOrder(
        async (next) => one.attempt!(attempt, next as () => Promise<unknown>),
        () => from(at + 1),
      );
    };
    return from(0);
  };
  return {
    ...kind,
    ...(around.length > 0 && { handler: call }),
    ...(heard && {
      settled: (job: ClaimedJob, change: Change) => {
        settled?.(job, change);
        const { jobId, fence: attempt } = job.lease;
        const { outcome, to, error } = change;
        heard({ jobId, kind: job.kind, attempt, outcome, to, error });
      },
    }),
  };
}

function heardBy(
  hearing: readonly Middleware[],
  failed: (thrown: unknown) => void,
): ((end: AttemptEnd) => void) | null {
  if (hearing.length === 0) return null;
  return (end) => {
    for (const one of hearing) {
      try {
        one.ended!(end);
      } catch (thrown) {
        failed(thrown);
      }
    }
  };
}

/** Calls a middleware with a `next` that works once. */
async function inOrder<Given, Returned>(
  call: (next: (given: Given) => Promise<Returned>) => Promise<unknown>,
  next: (given: Given) => Promise<Returned>,
): Promise<Returned> {
  let isCalled = false;
  return (await call((given) => {
    if (isCalled)
      return Promise.reject(
        new OutliveError(
          ErrorCode.wrongState,
          "A middleware called `next` twice.",
          "Call it at most once: a second call would enqueue or run the job again.",
        ),
      );
    isCalled = true;
    return next(given);
  })) as Returned;
}

function otherKind(name: string, other: string | undefined): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `A middleware passed ${other === undefined ? "no job" : `the job ${other}`} to \`next\` while ${name} was enqueued.`,
    "Nothing was enqueued. Pass the same job; input and options may change.",
    { kind: name },
  );
}
