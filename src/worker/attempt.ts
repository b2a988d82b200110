// One attempt: the run of a handler under one fence, from the stored input to the settlement, and what the handler holds meanwhile (run.ts).
// It knows its own deadline, grace and commit, talks to the store only under its lease, and decides nothing about any other job.
import type { RunnableKind } from "../job/contract.ts";
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, Interruption, type InterruptionReason, OutliveError, toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { ClaimedJob, Enqueued, JobDraft } from "../job/job.ts";
import { decodeJson, encodeJson, type Json } from "../job/json.ts";
import { storableText } from "../job/text.ts";
import { type Duration, durationMs } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import type { AttemptWrite, Stale, WriteAnswer } from "../stores/port.ts";
import { changeOfGivenUp, changeOfThrown, troubleOfStore } from "./attempt-end.ts";
import type { WorkerContext } from "./life.ts";
import {
  checkedEnqueue,
  CommitControl,
  type CommitForm,
  type Interrupted,
  type Run,
  type RunCall,
  type RunEnqueue,
  type RunEnqueueMany,
  type SignalOptions,
  type SleepOptions,
  type StepResult,
  transactionsFor,
  type WaitOptions,
  type AwaitedJob,
} from "./run.ts";
import { assertStepName, childFailed, timeoutOf, Waits } from "./waiting.ts";

type Applied = Extract<WriteAnswer, { readonly is: "applied" }>;

/** What an attempt asks of the executor that holds it. */
export interface AttemptOwner {
  /** Aborts everything that is held if the worker may not trust its lease any more. */
  checkTrust(): void;
  /** It has ended: settle it. */
  ended(attempt: Attempt, change: transitions.Change): void;
  /** The store has answered its commit: it is not held any more. */
  committed(attempt: Attempt): void;
  /** A step was written. */
  stepped(attempt: Attempt): void;
}

/** When an aborted handler is given up, and why it was aborted. */
interface GiveUp {
  readonly atMono: number;
  readonly why: "timeout" | "cancelled" | "lease-lost";
}

/** Nothing in a handler depends on these, so many programs do not await them. */
const WITHOUT_RESULT: ReadonlySet<RunCall> = new Set(["heartbeat", "progress", "log"]);
/** How many jobs of `enqueueMany` share one transaction. */
const CHILDREN_PER_WRITE = 1_000;
/** How long a commit waits for its turn in a store that is busy, if the attempt has no deadline that comes first. */
const COMMIT_WAIT_MS = 5 * 60_000;

export class Attempt implements Run {
  readonly job: ClaimedJob;
  readonly kind: RunnableKind;
  readonly startedMono: number;
  /** Its place with the executor; -1: it is not held. */
  slot = -1;
  /** The attempt has been settled or given up: nothing may be written any more. */
  ended = false;
  readonly #context: WorkerContext;
  readonly #owner: AttemptOwner;
  #deadlineMono: number;
  /** Null: its time to end has not begun. */
  #giveUp: GiveUp | null = null;
  /** Its end is on its way to the store. */
  #settling = false;
  /** The commit that is under way, which also sets `#settling`; null: none is. */
  #commitControl: CommitControl | null = null;
  /** What becomes of the job once the commit is rolled back that was interrupted; null: the handler decides. */
  #afterCommit: (() => transitions.Change) | null = null;
  /** It was aborted because the lease is lost. */
  #untrusted = false;
  #controller: AbortController | undefined;
  #aborted: Interruption | undefined;
  #names: Set<string> | undefined;
  /** How often a child of the same content was enqueued in this attempt. */
  #children: Map<string, number> | undefined;
  #callFailed = false;
  /** Calls of `run` that are under way. */
  #calls = 0;
  #waits: Waits | undefined;

  constructor(context: WorkerContext, owner: AttemptOwner, job: ClaimedJob) {
    this.#context = context;
    this.#owner = owner;
    this.job = job;
    this.kind = context.kinds.get(job.kind)!;
    this.startedMono = context.clock.mono();
    this.#deadlineMono = job.deadlineInMs === null ? Number.POSITIVE_INFINITY : this.startedMono + job.deadlineInMs;
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

  /** Made when it is first asked for: most handlers never read it, and a signal costs more than the rest of the attempt. */
  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController();
      if (this.#aborted) this.#controller.abort(this.#aborted);
    }
    return this.#controller.signal;
  }

  get interrupted(): Interrupted | undefined {
    const { lastOutcome, steps } = this.job;
    if (lastOutcome === null || lastOutcome === "succeeded" || lastOutcome === "waiting") return undefined;
    return { how: lastOutcome, lastStep: steps.at(-1)?.name };
  }

  /** Why the signal was aborted, if it was. */
  get abortedBy(): InterruptionReason | undefined {
    return this.#aborted?.why;
  }

  /** It goes on, and is not about to be given up. */
  get isRunning(): boolean {
    return !this.#settling && this.#giveUp === null;
  }

  // ---- from the stored input to the end

  start(): void {
    // Only an input that can't be right is the end of the job. A schema that fails in another way may work next time.
    const refuse = (thrown: unknown): void => {
      const hopeless =
        thrown instanceof OutliveError && (thrown.code === ErrorCode.inputInvalid || thrown.code === ErrorCode.notJson);
      if (hopeless) this.#end(transitions.refuse(transitions.runningView(this.job), toStoredError(thrown)));
      else this.#threw(thrown);
    };
    let input: unknown;
    try {
      input = decodeJson(this.job.input, `The input of job ${this.id}`);
      if (this.kind.parse) input = this.kind.parse(input as Json);
    } catch (thrown) {
      return refuse(thrown);
    }
    if (isThenable(input)) input.then((parsed) => this.#call(parsed), refuse);
    else this.#call(input);
  }

  #call(input: unknown): void {
    let returned: unknown;
    try {
      returned = this.kind.handler(input as never, this);
      if (isThenable(returned)) {
        // Inside: the `then` of what is no promise may throw.
        return void returned.then(
          (value) => this.#returned(value),
          (thrown: unknown) => this.#threw(thrown),
        );
      }
    } catch (thrown) {
      return this.#threw(thrown);
    }
    this.#returned(returned);
  }

  #returned(value: unknown): void {
    if (this.#settling) return;
    this.#waits?.drop();
    const { checkResult } = this.kind;
    if (!checkResult) return this.#succeeded(value);
    let checked: unknown;
    try {
      checked = checkResult(value, this.id);
    } catch (thrown) {
      return this.#threw(thrown);
    }
    if (!isThenable(checked)) return this.#succeeded(checked);
    checked.then(
      (result) => this.#succeeded(result),
      (thrown: unknown) => this.#threw(thrown),
    );
  }

  #succeeded(value: unknown): void {
    if (this.#settling) return;
    let result: string | null = null;
    try {
      if (value !== undefined) result = encodeJson(value, `The result of job ${this.id}`);
    } catch (thrown) {
      return this.#threw(thrown);
    }
    this.#end(transitions.succeed(transitions.runningView(this.job), result));
  }

  #threw(thrown: unknown): void {
    if (this.#settling) return;
    this.#waits?.drop();
    const change = changeOfThrown(this, thrown, this.#context.random);
    if (change.name === "release" && troubleOfStore(thrown))
      this.#context.events.emit("store.failed", {
        doing: `running job ${this.id}`,
        error: toStoredError(thrown),
        retryInMs: change.delayMs,
      });
    this.#end(change);
  }

  #end(change: transitions.Change): void {
    if (this.#settling || this.slot < 0) return;
    this.#settling = true;
    this.ended = true;
    this.#owner.ended(this, change);
  }

  /** Reports how it ended, once that is durable. */
  report(change: transitions.Change): void {
    const { events, clock } = this.#context;
    const { jobId, fence: attempt } = this.job.lease;
    const { kind } = this.job;
    if (change.outcome !== null && events.has("attempt.ended")) {
      const durationMs = clock.mono() - this.startedMono;
      events.emit("attempt.ended", { jobId, kind, attempt, outcome: change.outcome, to: change.to, durationMs });
    }
    if (change.name === "succeed") {
      if (events.has("job.succeeded"))
        events.emit("job.succeeded", { jobId, kind, attempt, durationMs: clock.mono() - this.startedMono });
      return;
    }
    if (change.error && (change.to === "queued" || change.to === "dead")) {
      events.emit("job.failed", { jobId, kind, attempt, error: change.error, to: change.to, delayMs: change.delayMs });
    }
    if (change.to === "dead") events.emit("job.dead", { jobId, kind, reason: change.reason ?? "" });
  }

  // ---- what ends it from outside: time, cancels, lost leases, shutdown

  abort(why: InterruptionReason, what: string): void {
    if (this.#aborted) return;
    this.#aborted = new Interruption(why, what);
    this.#controller?.abort(this.#aborted);
  }

  /** Ten times a second while it is held. */
  tick(mono: number): void {
    if (this.#settling && !this.#commitControl) return;
    if (this.#commitWaitedTooLong(mono)) this.#endWaitOfCommit(mono);
    else if (this.#giveUp) {
      if (mono >= this.#giveUp.atMono) this.#giveUpNow(this.#giveUp.why);
    } else if (mono >= this.#deadlineMono && this.abortedBy !== "shutdown") this.#overdue(mono);
  }

  /** Also of an attempt whose lease was lost: the deadline is the latest moment at which its slot comes back. */
  #overdue(mono: number): void {
    const { graceMs } = this.kind.settings;
    this.#giveUp = { atMono: mono + graceMs, why: "timeout" };
    const { worker, events } = this.#context;
    events.emit("job.overdue", { jobId: this.id, kind: this.job.kind, worker, fencedOut: false });
    this.abort("timeout", `job ${this.id} passed its deadline; it has ${graceMs} ms to end`);
  }

  /** Called again and again until the attempt has ended. A handler that was aborted for another reason and goes on has the grace and no more. */
  cancel(): void {
    if ((this.#settling && !this.#commitControl) || this.#giveUp) return;
    this.#endWithinGrace("cancelled");
    this.abort("cancelled", `job ${this.id} was cancelled`);
  }

  /** The store does not know that we hold it: what the attempt writes from now on is refused, so its slot is free after the grace. */
  forgotten(what: string): void {
    this.#endWithinGrace("lease-lost");
    this.abort("lease-lost", what);
  }

  /**
   * The worker was silent for longer than its lease allows. The attempt may still be ours, so a handler that goes on has until its deadline, like
   * any other. Without a deadline it has the grace, so that its slot comes back. Returns false if it was aborted before.
   */
  loseTrust(): boolean {
    if (this.#untrusted) return false;
    this.#untrusted = true;
    if (this.#deadlineMono === Number.POSITIVE_INFINITY) this.#endWithinGrace("lease-lost");
    this.abort("lease-lost", `worker ${this.#context.worker} was silent for longer than its lease allows`);
    return true;
  }

  /** Releases it at no cost to the job. A commit that is under way is rolled back first. Returns false if its end is under way. */
  release(reason: string): boolean {
    if (this.#settling && !this.#commitControl) return false;
    this.#endBy(new Interruption("shutdown", reason), () =>
      transitions.release(transitions.runningView(this.job), reason),
    );
    return true;
  }

  /** The handler does not end: its attempt does. What it still writes is refused by the fence. */
  #giveUpNow(why: GiveUp["why"]): void {
    this.#endBy(new Interruption(why, `job ${this.id} did not end in time`), () =>
      changeOfGivenUp(this, why, this.#context.random),
    );
  }

  /** At once, or when a commit that is under way is rolled back. Too late for that: then it ends by the commit. */
  #endBy(reason: Error, end: () => transitions.Change): void {
    if (!this.#commitControl) return this.#end(end());
    this.#afterCommit ??= end;
    this.#commitControl.interrupt(reason);
  }

  #endWithinGrace(why: "cancelled" | "lease-lost"): void {
    this.#giveUp ??= { atMono: this.#context.clock.mono() + this.kind.settings.graceMs, why };
  }

  #commitWaitedTooLong(mono: number): boolean {
    if (!this.#commitControl?.waits || this.#giveUp || this.#aborted) return false;
    return mono >= Math.min(this.#deadlineMono, this.#commitControl.sinceMono + COMMIT_WAIT_MS);
  }

  /** The store is too busy to begin with the commit. The handler gets an error that costs its job nothing. */
  #endWaitOfCommit(mono: number): void {
    const waitedMs = Math.round(mono - this.#commitControl!.sinceMono);
    this.#commitControl!.interrupt(
      new OutliveError(
        ErrorCode.storeBusy,
        `The commit of job ${this.id} waited ${waitedMs} ms for its turn in the store and did not begin.`,
        "Nothing was written, and the job is queued again at no cost. Make commits shorter, or give the store more connections (`postgres.connections`, or the `max` of your own pool).",
        { jobId: this.id, waitedMs, costsAttempt: false },
      ),
    );
  }

  // ---- what the handler calls

  step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>> {
    return this.#watched("step", () => this.#step(name, work));
  }

  async #step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>> {
    assertStepName(name, this.id);
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
    return this.#watched("heartbeat", () => this.#heartbeat());
  }

  async #heartbeat(): Promise<void> {
    await this.#write({ type: "heartbeat" });
    if (this.#settling || this.slot < 0) return;
    const { timeoutMs, maxRuntimeMs } = this.kind.settings;
    if (timeoutMs === null) return;
    const cap = maxRuntimeMs === null ? Number.POSITIVE_INFINITY : this.startedMono + maxRuntimeMs;
    this.#deadlineMono = Math.min(this.#context.clock.mono() + timeoutMs, cap);
  }

  progress(value: Json): Promise<void> {
    return this.#watched("progress", () => this.#progress(value));
  }

  async #progress(value: Json): Promise<void> {
    await this.#write({ type: "progress", value: encodeJson(value, `The progress of job ${this.id}`) });
  }

  log(message: string): Promise<void> {
    return this.#watched("log", () => this.#log(message));
  }

  async #log(message: string): Promise<void> {
    const line = storableText(String(message), 8_192);
    const { jobId, fence: attempt } = this.job.lease;
    this.#context.events.emit("job.log", { jobId, kind: this.job.kind, attempt, message: line });
    await this.#write({ type: "log", message: line });
  }

  readonly enqueue: RunEnqueue = (kind, input, options) =>
    this.#watched("enqueue", () => this.#enqueue(kind, input, options));

  async #enqueue(...[kind, input, options]: Parameters<RunEnqueue>): Promise<Enqueued> {
    const draft = await this.#context.draft(kind, input, (options ?? {}) as never, this.#childSeed);
    const answer = await this.#write({ type: "enqueue", drafts: [draft] });
    return answer!.enqueued![0]!;
  }

  holdOff(limit: string, duration: Duration): Promise<void> {
    return this.#watched("holdOff", () => this.#holdOff(limit, duration));
  }

  async #holdOff(limit: string, duration: Duration): Promise<void> {
    const forMs = durationMs(duration, `The hold-off of job ${this.id}`);
    const keys = this.kind.keysOf?.(JSON.parse(this.job.input) as never) ?? [];
    const key = keys.find((one) => one.limit === limit);
    if (!key)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `Job ${this.id} has no limit ${JSON.stringify(limit)}.`,
        `Name one of the limits of its kind ${this.job.kind}${keys.length === 0 ? ", which has none" : `: ${keys.map((one) => one.limit).join(", ")}`}.`,
        { jobId: this.id, limit },
      );
    await this.#write({ type: "holdOff", key, forMs });
  }

  readonly enqueueMany: RunEnqueueMany = (kind, inputs, options) =>
    this.#watched("enqueue", () => this.#enqueueMany(kind, inputs, options));

  async #enqueueMany(...[kind, inputs, options]: Parameters<RunEnqueueMany>): Promise<string[]> {
    const ids: string[] = [];
    let drafts: JobDraft[] = [];
    const flush = async (): Promise<void> => {
      const answer = await this.#write({ type: "enqueue", drafts });
      for (const { id } of answer!.enqueued!) ids.push(id);
      drafts = [];
    };
    let index = 0;
    for (const input of inputs as Iterable<never>) {
      const own = (options as { each?: (input: never, index: number) => object } | undefined)?.each?.(input, index++);
      drafts.push(await this.#context.draft(kind, input, (own ?? {}) as never, this.#childSeed));
      if (drafts.length === CHILDREN_PER_WRITE) await flush();
    }
    if (drafts.length > 0) await flush();
    return ids;
  }

  /** Not by the order of calls alone: a replayed step does not make its calls again. */
  readonly #childSeed = (content: string): string => {
    const children = (this.#children ??= new Map());
    const occurrence = (children.get(content) ?? 0) + 1;
    children.set(content, occurrence);
    return `${this.id}\0${content}\0${occurrence}`;
  };

  // A wait is no call that is under way: the attempt ends while it goes on.

  async sleep(duration: Duration, { name }: SleepOptions = {}): Promise<void> {
    const forMs = durationMs(duration, `The sleep of job ${this.id}`);
    return this.#guarded("wait", this.#wait().sleep(forMs, name));
  }

  async sleepUntil(date: Date, { name }: SleepOptions = {}): Promise<void> {
    if (!(date instanceof Date) || !Number.isFinite(date.getTime()))
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `Job ${this.id} sleeps until ${String(date)}, which is not a date.`,
        "Pass a valid Date.",
        { jobId: this.id },
      );
    const forMs = Math.max(0, date.getTime() - this.#context.clock.now());
    return this.#guarded("wait", this.#wait().sleep(forMs, name));
  }

  async waitForSignal<T = Json>(name: string, options: SignalOptions<T> = {}): Promise<T | null> {
    assertKey(name, `The name of the signal that job ${this.id} waits for`);
    const timeoutMs = timeoutOf(options, this.id);
    return this.#guarded("wait", this.#wait().signal(name, timeoutMs, options.schema));
  }

  async wait<R = Json>(ids: readonly string[], options: WaitOptions = {}): Promise<readonly AwaitedJob<R>[]> {
    const timeoutMs = timeoutOf(options, this.id);
    return this.#guarded("wait", this.#wait().jobs<R>(ids, timeoutMs));
  }

  async results<R = Json>(ids: readonly string[], options: WaitOptions = {}): Promise<readonly R[]> {
    return (await this.wait<R>(ids, options)).map((one) => {
      if (one.state === "succeeded") return one.result;
      throw childFailed(this.id, one);
    });
  }

  #wait(): Waits {
    this.#assertOurs();
    return (this.#waits ??= new Waits({
      job: this.job,
      write: async (write) => (await this.#write(write))?.signal,
      outcomes: (ids) => this.#context.store.inspect.outcomes(ids),
      end: () => this.#context.clock.soon(() => this.#endWaiting()),
    }));
  }

  #endWaiting(): void {
    const begun = this.#waits?.begun;
    if (begun && this.#calls === 0) this.#end(transitions.wait(transitions.runningView(this.job), begun));
  }

  commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    return this.#watched("commit", () => this.#commit(form, body));
  }

  async #commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    this.#assertOurs();
    const { store, clock, assertKnown = () => {} } = this.#context;
    const transactions = transactionsFor(store, form, `Job ${this.id} called commit`);
    if (this.#settling || this.slot < 0)
      throw new OutliveError(
        ErrorCode.stale,
        `Attempt ${this.attempt} of job ${this.id} has ended, or a commit of it is under way.`,
        "Write nothing after the end of the attempt.",
        { jobId: this.id },
      );
    const change = transitions.succeed(transitions.runningView(this.job), null);
    const encode = (value: unknown): string | null =>
      value === undefined ? null : encodeJson(value, `The result of job ${this.id}`);
    // From here on the transaction ends the attempt, one way or the other. What else would end it interrupts the transaction first.
    const control = new CommitControl(clock.mono());
    this.#settling = true;
    this.#commitControl = control;
    this.#afterCommit = null;
    const { answer, value } = await transactions
      .commit(
        { lease: this.job.lease, change },
        checkedEnqueue(body as (tx: unknown) => unknown, assertKnown),
        encode,
        control,
      )
      .catch((thrown: unknown) => {
        this.#commitFailed();
        throw thrown;
      });
    this.#commitControl = null;
    this.ended = true;
    this.#owner.committed(this);
    if (answer.is === "stale") throw this.#refused(answer.stale);
    this.report(change);
    return value as never;
  }

  /** Nothing of it was written. If it was interrupted because the attempt had to end, the attempt ends now. */
  #commitFailed(): void {
    const end = this.#commitControl?.interrupted && this.#afterCommit;
    this.#commitControl = null;
    this.#settling = false;
    if (end) this.#end(end());
  }

  /**
   * What the handler gets. It rejects as `work` does, but a rejection that nothing awaits must not kill the process with its other jobs:
   * once the attempt has ended, and at any time for a call without a result, it is reported instead.
   */
  #watched<T>(call: RunCall, work: () => Promise<T>): Promise<T> {
    this.#calls++;
    const ended = (): void => {
      this.#calls--;
      if (this.#waits?.begun) this.#endWaiting();
    };
    return this.#guarded(call, this.#unlessWaiting(work).finally(ended));
  }

  #guarded<T>(call: RunCall, work: Promise<T>): Promise<T> {
    const calledLate = this.ended;
    const returned = work.catch((thrown: unknown): never => {
      if (this.ended || WITHOUT_RESULT.has(call)) {
        // Before `returned` is rejected, which is soon enough.
        returned.catch(() => {});
        // How a commit ends is reported as the end of its attempt.
        if (call !== "commit" || calledLate) this.#reportCall(call, thrown);
      }
      throw thrown;
    });
    return returned;
  }

  async #unlessWaiting<T>(work: () => Promise<T>): Promise<T> {
    this.#waits?.assertNone();
    return work();
  }

  /** Once per attempt: a timer of the handler's may go on for as long as the process lives. */
  #reportCall(call: RunCall, thrown: unknown): void {
    if (this.#callFailed || (!this.ended && isKnownToHandler(thrown))) return;
    this.#callFailed = true;
    const { jobId, fence: attempt } = this.job.lease;
    const error = toStoredError(thrown);
    this.#context.events.emit("call.failed", {
      jobId,
      kind: this.job.kind,
      attempt,
      call,
      attemptEnded: this.ended,
      error,
    });
  }

  async #write(write: AttemptWrite): Promise<Applied | undefined> {
    this.#assertOurs();
    const [answer] = await this.#context.store.write([{ lease: this.job.lease, write }]);
    if (answer?.is === "stale") throw this.#refused(answer.stale);
    const applied = answer?.is === "applied" ? answer : undefined;
    if (write.type === "step" || applied?.signal?.kept) this.#owner.stepped(this);
    return applied;
  }

  /** The fence did not hold: the job has another owner. Returns what the handler gets. */
  #refused(stale: Stale): OutliveError {
    reportStale(this.#context.events, stale);
    this.abort("lease-lost", `job ${this.id} has a new owner`);
    return staleError(stale);
  }

  /** Throws the reason if the attempt was aborted for good. A timeout or a shutdown may still write: the grace is for that. */
  #assertOurs(): void {
    this.#owner.checkTrust();
    if (this.#aborted && (this.#aborted.why === "lease-lost" || this.#aborted.why === "cancelled")) throw this.#aborted;
    if (this.ended) {
      throw new OutliveError(
        ErrorCode.stale,
        `Attempt ${this.attempt} of job ${this.id} has ended and can't write any more.`,
        "Await everything that the handler starts before it returns, and write nothing after `commit`.",
        { jobId: this.id, attempt: this.attempt },
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
    "Nothing was written. Stop the handler; the job's new attempt goes on without it.",
    {
      jobId: stale.lease.jobId,
      fence: stale.lease.fence,
      now: { epoch: stale.epoch, fence: stale.fence, state: stale.state },
    },
  );
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === "object" && value !== null && typeof (value as { then?: unknown }).then === "function";
}
