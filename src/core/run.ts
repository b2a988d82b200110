// What a handler holds while it runs: its signal, its steps, its fenced writes. One Run is one attempt; it lives in one worker
// and talks to the store only under its lease.
import { ErrorCode, Interruption, type InterruptionReason, OutliveError } from "./errors.ts";
import { encodeJson, type Json, type JsonOf } from "./json.ts";
import type { ClaimedJob, Enqueued, JobDraft, Outcome } from "./job.ts";
import type { Lease } from "./lease.ts";
import type { AttemptWrite, Stale } from "./store.ts";
import { assertKey } from "./ids.ts";
import { storableText } from "./text.ts";
import type { CommitForm, CommittedResult } from "./commit.ts";

/** How the attempt before this one ended, if it did not succeed. */
export interface Interrupted {
  readonly how: Exclude<Outcome, "succeeded">;
  /** The last step that earlier attempts finished. */
  readonly lastStep: string | undefined;
}

/**
 * Makes the draft of a child; done by the engine, which knows schemas and hashes. Without an id of the caller's it gets one made
 * of `idSeed` of its content, which is the same in every attempt.
 */
export type DraftMaker = (
  kind: never,
  input: never,
  options: never,
  idSeed: (content: string) => string,
) => JobDraft | Promise<JobDraft>;

/** What the run asks of its worker. */
export interface RunHost {
  write(
    lease: Lease,
    write: AttemptWrite,
  ): Promise<{ readonly stale: Stale | null; readonly enqueued: readonly Enqueued[] }>;
  commit(run: Attempt, form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<unknown>;
  /** Aborts if the worker may not trust its lease any more. */
  checkTrust(): void;
  touched(run: Attempt): void;
  draft: DraftMaker;
  logged(job: ClaimedJob, message: string): void;
  /** A call of the handler failed, and the handler may never learn of it. */
  callFailed(job: ClaimedJob, call: RunCall, attemptEnded: boolean, thrown: unknown): void;
}

/** The methods of a run that write, as they are named in events. */
export type RunCall = "step" | "heartbeat" | "progress" | "log" | "enqueue" | "commit";

/** Nothing in a handler depends on these, so many programs do not await them. */
const WITHOUT_RESULT: ReadonlySet<RunCall> = new Set(["heartbeat", "progress", "log"]);

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

export class Attempt implements Run {
  readonly job: ClaimedJob;
  readonly #host: RunHost;
  #controller: AbortController | undefined;
  #aborted: Interruption | undefined;
  #names: Set<string> | undefined;
  /** How often a child of the same content was enqueued in this attempt. */
  readonly #children = new Map<string, number>();
  /** Set by the worker when the attempt has been settled or given up: nothing may be written any more. */
  over = false;
  #callFailed = false;

  constructor(job: ClaimedJob, host: RunHost) {
    this.job = job;
    this.#host = host;
  }

  get id(): string {
    return this.job.lease.jobId;
  }

  get attempt(): number {
    return this.job.lease.fence;
  }

  get fence(): { readonly epoch: number; readonly number: number } {
    return { epoch: this.job.lease.epoch, number: this.job.lease.fence };
  }

  /** Made when it is first asked for: most handlers never look, and a signal costs more than the rest of the attempt. */
  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController();
      if (this.#aborted) this.#controller.abort(this.#aborted);
    }
    return this.#controller.signal;
  }

  get interrupted(): Interrupted | undefined {
    const { lastOutcome, steps } = this.job;
    if (lastOutcome === null || lastOutcome === "succeeded") return undefined;
    return { how: lastOutcome, lastStep: steps.at(-1)?.name };
  }

  /** Why the signal was aborted, if it was. */
  get abortedBy(): InterruptionReason | undefined {
    return this.#aborted?.why;
  }

  abort(why: InterruptionReason, what: string): void {
    if (this.#aborted) return;
    this.#aborted = new Interruption(why, what);
    this.#controller?.abort(this.#aborted);
  }

  step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>> {
    return this.#watched("step", this.#step(name, work));
  }

  async #step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>> {
    assertKey(name, `The step name of job ${this.id}`);
    const names = (this.#names ??= new Set());
    if (names.has(name)) {
      throw new OutliveError(
        ErrorCode.stepReused,
        `Job ${this.id} ran the step ${JSON.stringify(name)} twice in one attempt.`,
        "Give each step its own name, for instance with an index.",
        { jobId: this.id, step: name },
      );
    }
    names.add(name);
    const kept = this.job.steps.find((step) => step.name === name);
    if (kept) return (kept.result === null ? undefined : JSON.parse(kept.result)) as StepResult<T>;
    this.#assertOurs();
    const value: unknown = await work();
    const result =
      value === undefined ? null : encodeJson(value, `The result of step ${JSON.stringify(name)} of job ${this.id}`);
    await this.#write({ type: "step", name, result });
    return (result === null ? undefined : JSON.parse(result)) as StepResult<T>;
  }

  key(name: string): string {
    assertKey(name, `The key name of job ${this.id}`);
    return `${this.id}:${name}`;
  }

  heartbeat(): Promise<void> {
    return this.#watched("heartbeat", this.#heartbeat());
  }

  async #heartbeat(): Promise<void> {
    await this.#write({ type: "heartbeat" });
    this.#host.touched(this);
  }

  progress(value: Json): Promise<void> {
    return this.#watched("progress", this.#progress(value));
  }

  async #progress(value: Json): Promise<void> {
    await this.#write({ type: "progress", value: encodeJson(value, `The progress of job ${this.id}`) });
  }

  log(message: string): Promise<void> {
    return this.#watched("log", this.#log(message));
  }

  async #log(message: string): Promise<void> {
    const line = storableText(String(message), 8_192);
    this.#host.logged(this.job, line);
    await this.#write({ type: "log", message: line });
  }

  readonly enqueue: RunEnqueue = (kind, input, options) =>
    this.#watched("enqueue", this.#enqueue(kind, input, options));

  async #enqueue(...[kind, input, options]: Parameters<RunEnqueue>): Promise<Enqueued> {
    // Not by the order of calls alone: a replayed step does not make its calls again.
    const idSeed = (content: string): string => {
      const occurrence = (this.#children.get(content) ?? 0) + 1;
      this.#children.set(content, occurrence);
      return `${this.id}\0${content}\0${occurrence}`;
    };
    const draft = await this.#host.draft(kind, input, (options ?? {}) as never, idSeed);
    const [enqueued] = await this.#write({ type: "enqueue", drafts: [draft] });
    return enqueued!;
  }

  commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    return this.#watched("commit", this.#commit(form, body));
  }

  async #commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    this.#assertOurs();
    return this.#host.commit(this, form, body) as Promise<never>;
  }

  /**
   * What the handler gets. It rejects as `work` does, but a rejection that nothing awaits must not kill the process with its other jobs:
   * once the attempt has ended, and at any time for a call without a result, it is reported instead.
   */
  #watched<T>(call: RunCall, work: Promise<T>): Promise<T> {
    const calledLate = this.over;
    const returned = work.catch((thrown: unknown): never => {
      if (this.over || WITHOUT_RESULT.has(call)) {
        // Before `returned` is rejected, which is soon enough.
        returned.catch(() => {});
        // How a commit ends is reported as the end of its attempt.
        if (call !== "commit" || calledLate) this.#report(call, thrown);
      }
      throw thrown;
    });
    return returned;
  }

  /** Once per attempt: a timer of the handler's may go on for as long as the process lives. */
  #report(call: RunCall, thrown: unknown): void {
    if (this.#callFailed || (!this.over && isKnownToHandler(thrown))) return;
    this.#callFailed = true;
    this.#host.callFailed(this.job, call, this.over, thrown);
  }

  async #write(write: AttemptWrite): Promise<readonly Enqueued[]> {
    this.#assertOurs();
    const { stale, enqueued } = await this.#host.write(this.job.lease, write);
    if (stale) {
      this.abort("lease-lost", `job ${this.id} has a new owner`);
      throw staleError(stale);
    }
    return enqueued;
  }

  /** Throws the reason if the attempt was told to stop for good. A timeout or a shutdown may still write: the grace is for that. */
  #assertOurs(): void {
    this.#host.checkTrust();
    if (this.#aborted && (this.#aborted.why === "lease-lost" || this.#aborted.why === "cancelled")) throw this.#aborted;
    if (this.over) {
      throw new OutliveError(
        ErrorCode.stale,
        `Attempt ${this.attempt} of job ${this.id} has ended and can't write any more.`,
        "Await everything that the handler starts before it returns, and write nothing after `commit`.",
        { jobId: this.id, fence: this.attempt },
      );
    }
  }
}

/** The signal has the same reason, or `write.rejected` reports it. */
function isKnownToHandler(thrown: unknown): boolean {
  return thrown instanceof Interruption || (thrown instanceof OutliveError && thrown.code === ErrorCode.stale);
}

/** The sentence that is shown, logged and thrown for a refused write. */
export function staleText(stale: Stale): string {
  const { lease } = stale;
  const mine = `(epoch ${lease.epoch}, fence ${lease.fence})`;
  if (stale.state === "missing")
    return `worker ${lease.worker} tried "${stale.tried}" on job ${lease.jobId} with ${mine}; the job is not there any more`;
  const now =
    stale.epoch === lease.epoch && stale.fence === lease.fence
      ? `that attempt is over and the job is ${stale.state}`
      : `it is (epoch ${stale.epoch}, fence ${stale.fence}) and ${stale.state}`;
  return `worker ${lease.worker} tried "${stale.tried}" on job ${lease.jobId} with ${mine}; ${now}`;
}

export function staleError(stale: Stale): OutliveError {
  return new OutliveError(
    ErrorCode.stale,
    `Refused: ${staleText(stale)}.`,
    "Nothing was written. Stop the handler; the job's new attempt goes on without it.",
    {
      jobId: stale.lease.jobId,
      fence: stale.lease.fence,
      now: { epoch: stale.epoch, fence: stale.fence, state: stale.state },
    },
  );
}
