// What the calls of `run` do, apart from the heartbeat and the commit: each is a write under the lease of its attempt, or a wait (waiting.ts). Also what a
// handler gets whose write was refused, or came too late. Nothing here ends an attempt.
import { type JobToEnqueue, ManyAround } from "../job/around.ts";
import type { RunnableKind } from "../job/contract.ts";
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, Interruption, OutliveError, toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { ClaimedJob, Enqueued, JobDraft } from "../job/job.ts";
import { encodeJson, type Json } from "../job/json.ts";
import { storableText } from "../job/text.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { Wait } from "../job/waits.ts";
import type { AttemptWrite, Stale, WriteAnswer } from "../stores/port.ts";
import type { WorkerContext } from "./life.ts";
import type {
  AwaitedJob,
  RunCall,
  RunEnqueue,
  RunEnqueueMany,
  SignalOptions,
  SleepOptions,
  StepResult,
  WaitOptions,
} from "./run.ts";
import { assertStepName, instantOf, timeoutOf, Waits } from "./waiting.ts";

export type Applied = Extract<WriteAnswer, { readonly is: "applied" }>;

/** What the calls ask of their attempt. */
export interface CallingAttempt {
  readonly job: ClaimedJob;
  readonly kind: RunnableKind;
  readonly context: WorkerContext;
  /** It has been settled or given up. */
  hasEnded(): boolean;
  /** Throws if the attempt may not write any more. */
  assertOurs(): void;
  /** Under the attempt's lease. */
  write(write: AttemptWrite): Promise<Applied | undefined>;
  /** Ends the attempt as waiting if a wait has begun and no call is under way. */
  endWaiting(): void;
}

/** Nothing in a handler depends on these, so many programs do not await them. */
const WITHOUT_RESULT: ReadonlySet<RunCall> = new Set(["heartbeat", "progress", "log"]);

/** How many jobs of `enqueueMany` share one transaction. */
const CHILDREN_PER_WRITE = 1_000;

export class Calls {
  readonly #attempt: CallingAttempt;
  /** The steps that this attempt has come to. */
  readonly #names = new Set<string>();
  /** How often a child of the same content was enqueued in this attempt. */
  readonly #children = new Map<string, number>();

  #underWay = 0;
  #reported = false;
  #waits: Waits | undefined;

  constructor(attempt: CallingAttempt) {
    this.#attempt = attempt;
  }

  /** The wait that ends the attempt now; null: none has begun, or a call is under way. */
  get begunWait(): Wait | null {
    return this.#underWay === 0 ? (this.#waits?.begun ?? null) : null;
  }

  /** The wait from which the job was woken and to which the handler has not come; null: there is none. */
  get missedWait(): string | null {
    return this.#waits ? this.#waits.missed : (this.#attempt.job.wait?.step ?? null);
  }

  /** The handler ended first: it did not await its wait. */
  dropWait(): void {
    this.#waits?.drop();
  }

  /**
   * What the handler gets. It rejects as `work` does, but a rejection that nothing awaits must not kill the process with its other jobs:
   * once the attempt has ended, and at any time for a call without a result, it is reported instead.
   */
  watched<T>(call: RunCall, work: (calls: this) => Promise<T>): Promise<T> {
    this.#underWay++;
    return this.#guarded(call, this.#unlessWaiting(work), () => {
      this.#underWay--;
      if (this.#waits?.begun) this.#attempt.endWaiting();
    });
  }

  async #unlessWaiting<T>(work: (calls: this) => Promise<T>): Promise<T> {
    this.#waits?.assertNone();
    return work(this);
  }

  #guarded<T>(call: RunCall, work: Promise<T>, ended?: () => void): Promise<T> {
    const calledLate = this.#attempt.hasEnded();
    const failed = (thrown: unknown): never => {
      ended?.();
      if (this.#attempt.hasEnded() || WITHOUT_RESULT.has(call)) {
        // Before `returned` is rejected, which is soon enough.
        returned.catch(() => {});
        // How a commit ends is reported as the end of its attempt.
        if (call !== "commit" || calledLate) this.#report(call, thrown);
      }
      throw thrown;
    };
    const succeeded = (value: T): T => {
      ended?.();
      return value;
    };
    // One promise for both: `finally` and `catch` would be four more for every step.
    const returned = work.then(succeeded, failed);
    return returned;
  }

  /** Once per attempt: a timer of the handler's may go on for as long as the process lives. */
  #report(call: RunCall, thrown: unknown): void {
    const attemptEnded = this.#attempt.hasEnded();
    if (this.#reported || (!attemptEnded && isKnownToHandler(thrown))) return;
    this.#reported = true;
    const { job, context } = this.#attempt;
    const { jobId, fence: attempt } = job.lease;
    const error = toStoredError(thrown);
    context.events.emit("call.failed", { jobId, kind: job.kind, attempt, call, attemptEnded, error });
  }

  // ---- writes

  async step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>> {
    assertStepName(name, this.#id);
    if (this.#names.has(name)) {
      throw new OutliveError(
        ErrorCode.stepReused,
        `Job ${this.#id} ran the step ${JSON.stringify(name)} twice in one attempt.`,
        "Give each step its own name, for instance with an index.",
        { jobId: this.#id, step: name },
      );
    }
    this.#names.add(name);
    const kept = this.#attempt.job.steps.find((step) => step.name === name);
    if (kept) return (kept.result === null ? undefined : JSON.parse(kept.result)) as StepResult<T>;
    this.#attempt.assertOurs();
    const value: unknown = await work();
    const result =
      value === undefined ? null : encodeJson(value, `The result of step ${JSON.stringify(name)} of job ${this.#id}`);
    await this.#attempt.write({ type: "step", name, result });
    return (result === null ? undefined : JSON.parse(result)) as StepResult<T>;
  }

  async progress(value: Json): Promise<void> {
    await this.#attempt.write({ type: "progress", value: encodeJson(value, `The progress of job ${this.#id}`) });
  }

  async log(message: string): Promise<void> {
    const { job, context } = this.#attempt;
    const line = storableText(String(message), 8_192);
    const { jobId, fence: attempt } = job.lease;
    context.events.emit("job.log", { jobId, kind: job.kind, attempt, message: line });
    await this.#attempt.write({ type: "log", message: line });
  }

  async enqueue(...[kind, input, options]: Parameters<RunEnqueue>): Promise<Enqueued> {
    const { around } = this.#attempt.context;
    const child = { job: kind, input, options: options ?? {} };
    return around ? around(child, (passed) => this.#enqueueOne(passed)) : this.#enqueueOne(child);
  }

  async #enqueueOne({ job, input, options }: JobToEnqueue): Promise<Enqueued> {
    const draft = await this.#attempt.context.draft(job as never, input as never, options as never, this.#childSeed);
    const answer = await this.#attempt.write({ type: "enqueue", drafts: [draft] });
    return answer!.enqueued![0]!;
  }

  async enqueueMany(...[kind, inputs, options]: Parameters<RunEnqueueMany>): Promise<string[]> {
    const ids: string[] = [];
    let drafts: JobDraft[] = [];
    const { around } = this.#attempt.context;
    const many = around && new ManyAround(around);
    const write = async (): Promise<readonly Enqueued[]> => {
      if (drafts.length === 0) return [];
      return (await this.#attempt.write({ type: "enqueue", drafts }))!.enqueued!;
    };
    const flush = async (): Promise<void> => {
      for (const { id } of many ? await many.flushed(write) : await write()) ids.push(id);
      drafts = [];
    };
    const push = async ({ job, input, options: own }: JobToEnqueue): Promise<void> => {
      drafts.push(await this.#attempt.context.draft(job as never, input as never, own as never, this.#childSeed));
    };
    let index = 0;
    for (const input of inputs as Iterable<never>) {
      const own = (options as { each?: (input: never, index: number) => object } | undefined)?.each?.(input, index++);
      const child = { job: kind, input, options: own ?? {} };
      await (many ? many.add(child, push) : push(child));
      if (drafts.length === CHILDREN_PER_WRITE) await flush();
    }
    if (drafts.length > 0 || many) await flush();
    return ids;
  }

  async holdOff(limit: string, duration: Duration): Promise<void> {
    const { job, kind } = this.#attempt;
    const forMs = durationMs(duration, `The hold-off of job ${this.#id}`);
    const keys = kind.keysOf?.(JSON.parse(job.input) as never) ?? [];
    const key = keys.find((one) => one.limit === limit);
    if (!key)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `Job ${this.#id} has no limit ${JSON.stringify(limit)}.`,
        `Name one of the limits of its kind ${job.kind}${keys.length === 0 ? ", which has none" : `: ${keys.map((one) => one.limit).join(", ")}`}.`,
        { jobId: this.#id, limit },
      );
    await this.#attempt.write({ type: "holdOff", key, forMs });
  }

  // ---- waits. A wait is not a call that is under way: the attempt ends while it goes on.

  async sleep(duration: Duration, { name }: SleepOptions = {}): Promise<void> {
    const forMs = durationMs(duration, `The sleep of job ${this.#id}`);
    return this.#guarded("wait", this.#wait().sleep(forMs, name));
  }

  async sleepUntil(date: Date, { name }: SleepOptions = {}): Promise<void> {
    const forMs = Math.max(0, instantOf(date, this.#id) - this.#attempt.context.clock.now());
    return this.#guarded("wait", this.#wait().sleep(forMs, name));
  }

  async waitForSignal<T = Json>(name: string, options: SignalOptions<T> = {}): Promise<T | null> {
    assertKey(name, `The name of the signal that job ${this.#id} waits for`);
    const timeoutMs = timeoutOf(options, this.#id);
    return this.#guarded("wait", this.#wait().signal(name, timeoutMs, options.schema));
  }

  async wait<R = Json>(ids: readonly string[], options: WaitOptions = {}): Promise<readonly AwaitedJob<R>[]> {
    const timeoutMs = timeoutOf(options, this.#id);
    return this.#guarded("wait", this.#wait().jobs<R>(ids, timeoutMs));
  }

  #wait(): Waits {
    const { job, context } = this.#attempt;
    this.#attempt.assertOurs();
    return (this.#waits ??= new Waits({
      job,
      write: async (write) => (await this.#attempt.write(write))?.signal,
      outcomes: (ids) => context.store.inspect.outcomes(ids),
      end: () => context.clock.soon(() => this.#attempt.endWaiting()),
    }));
  }

  get #id(): string {
    return this.#attempt.job.lease.jobId;
  }

  /** Not by the order of calls alone: a replayed step does not make its calls again. */
  readonly #childSeed = (content: string): string => {
    const occurrence = (this.#children.get(content) ?? 0) + 1;
    this.#children.set(content, occurrence);
    return `${this.#id}\0${content}\0${occurrence}`;
  };
}

// Writes that are refused, because the fence did not hold or the attempt has ended.

/** The sentence that is shown, logged and thrown for a refused write. */
export function staleText(stale: Stale): string {
  const { lease } = stale;
  const mine = `(epoch ${lease.epoch}, fence ${lease.fence})`;
  if (stale.state === "missing")
    return `worker ${lease.worker} tried "${stale.tried}" on job ${lease.jobId} with ${mine}; the job is not there any more`;
  const now =
    stale.epoch === lease.epoch && stale.fence === lease.fence
      ? `that attempt has ended and the job is ${stale.state}`
      : `it is (epoch ${stale.epoch}, fence ${stale.fence}) and ${stale.state}`;
  return `worker ${lease.worker} tried "${stale.tried}" on job ${lease.jobId} with ${mine}; ${now}`;
}

export function reportStale(events: Emitter, stale: Stale): void {
  events.emit("write.rejected", { ...stale, text: staleText(stale) });
}

export function staleError(stale: Stale): OutliveError {
  return new OutliveError(
    ErrorCode.stale,
    `Refused: ${staleText(stale)}.`,
    "Nothing was written. Stop the handler; the job's new attempt continues without it.",
    {
      jobId: stale.lease.jobId,
      fence: stale.lease.fence,
      now: { epoch: stale.epoch, fence: stale.fence, state: stale.state },
    },
  );
}

export function afterEnd(jobId: string, attempt: number): OutliveError {
  return new OutliveError(
    ErrorCode.stale,
    `Attempt ${attempt} of job ${jobId} has ended and can't write any more.`,
    "Await everything that the handler starts before it returns, and write nothing after `commit`.",
    { jobId, attempt },
  );
}

export function twoCommits(jobId: string, attempt: number): OutliveError {
  return new OutliveError(
    ErrorCode.stale,
    `Attempt ${attempt} of job ${jobId} has ended, or a commit of it is under way.`,
    "Write nothing after the end of the attempt.",
    { jobId },
  );
}

/** Costs the job nothing. */
export function commitWaited(jobId: string, waitedMs: number): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `The commit of job ${jobId} waited ${waitedMs} ms for its turn in the store and did not begin.`,
    "Nothing was written, and the job is queued again at no cost. Make commits shorter, or give the store more connections (`postgres.connections`, or the `max` of your own pool).",
    { jobId, waitedMs, costsAttempt: false },
  );
}

/** The signal has the same reason, or `write.rejected` reports it. */
function isKnownToHandler(thrown: unknown): boolean {
  return thrown instanceof Interruption || (thrown instanceof OutliveError && thrown.code === ErrorCode.stale);
}
