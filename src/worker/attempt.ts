// One attempt: the run of a handler under one fence, from the stored input to the settlement, and what the handler holds meanwhile (run.ts).
// What its calls do is in calls.ts. It knows its own deadline, grace and commit, talks to the store only under its lease, and decides nothing about any other job.
import { bothEnds, NO_ENDS, type RowEnds } from "../job/batches.ts";
import { EndsWith, type RunnableKind } from "../job/contract.ts";
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, Interruption, type InterruptionReason, OutliveError, toStoredError } from "../job/errors.ts";
import type { ClaimedJob, JobId } from "../job/job.ts";
import { decodeJson, encodeJson, type Json } from "../job/json.ts";
import { SCHEDULED } from "../job/schedules.ts";
import type { Duration } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import { waitMismatch } from "../job/waits.ts";
import type { AttemptWrite, Stale } from "../stores/port.ts";
import { changeOfGivenUp, changeOfThrown, troubleOfStore } from "./attempt-end.ts";
import { afterEnd, type Applied, Calls, commitWaited, reportStale, staleError, twoCommits } from "./calls.ts";
import type { WorkerContext } from "./life.ts";
import {
  type AwaitedJob,
  type BlockAttempt,
  checkedEnqueue,
  CommitControl,
  type CommitForm,
  type FetchOptions,
  type Interrupted,
  type RequestAttempt,
  type RunEnqueue,
  type RunEnqueueMany,
  type Scheduled,
  type SignalOptions,
  type SleepOptions,
  type StepResult,
  transactionsFor,
  type WaitOptions,
} from "./run.ts";
import { resultsOf } from "./waiting.ts";

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

/** How long a commit waits for its turn in a store that is busy, if the attempt has no deadline that comes first. */
const COMMIT_WAIT_MS = 5 * 60_000;

export class Attempt implements BlockAttempt, RequestAttempt {
  readonly job: ClaimedJob;
  readonly kind: RunnableKind;
  readonly claimedMono: number;
  /** When its handler began, or when it was claimed if it has not. */
  startedMono: number;
  /** Its place with the executor; -1: it is not held. */
  slot = -1;
  /** Where it waits for a slot (ahead.ts); -1: it does not. */
  cell = -1;
  /** Its handler has begun, or is about to. */
  #hasBegun = false;
  /** The attempt has been settled or given up: nothing may be written any more. */
  ended = false;
  pendingRows: BlockAttempt["pendingRows"] = null;
  underWay: RequestAttempt["underWay"] = null;
  failsWith: Error | undefined;
  scheduled: Scheduled | undefined;
  /** Commits of single rows that are under way. */
  #rowCommits: Set<CommitControl> | undefined;
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
  /** Made at the first call of `run`: most handlers make none. */
  #madeCalls: Calls | undefined;

  constructor(context: WorkerContext, owner: AttemptOwner, job: ClaimedJob) {
    this.#context = context;
    this.#owner = owner;
    this.job = job;
    this.kind = context.kinds.get(job.kind)!;
    this.claimedMono = this.startedMono = context.clock.mono();
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

  get isInterrupted(): boolean {
    return this.#aborted !== undefined;
  }

  /** It goes on, and is not about to be given up. */
  get isRunning(): boolean {
    return !this.#settling && this.#giveUp === null;
  }

  // ---- from the stored input to the end

  /** It waited for a slot: its time begins now. */
  startLater(): void {
    this.startedMono = this.#context.clock.mono();
    if (this.job.deadlineInMs !== null) this.#deadlineMono = this.startedMono + this.job.deadlineInMs;
    this.start();
  }

  startsNow(): void {
    this.startedMono = this.#context.clock.mono();
  }

  /** A job that may be of a schedule first reads what it was planned for; all others start at once. */
  start(): void {
    const { schedules } = this.#context.store;
    if (schedules === undefined || !mayBeScheduled(this.id)) return this.#begin();
    schedules.occurrences([this.id]).then(
      ([planned]) => {
        if (planned) {
          const { schedule, at, caughtUp } = planned;
          this.scheduled = { schedule, at: new Date(at).toISOString(), caughtUp };
        }
        if (!this.ended) this.#begin();
      },
      (thrown: unknown) => this.#threw(notPlanned(this.id, thrown)),
    );
  }

  #begin(): void {
    this.#hasBegun = true;
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
        // Inside: the `then` of what is not a promise may throw.
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
    if (this.failsWith) return this.#threw(this.failsWith);
    this.#madeCalls?.dropWait();
    if (value instanceof EndsWith) return this.#end(value.change);
    try {
      this.#assertNoMissedWait();
    } catch (thrown) {
      return this.#threw(thrown);
    }
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

  /** A handler that succeeds without coming to the wait from which it was woken is another one than that which began the wait. */
  #assertNoMissedWait(): void {
    const missed = this.job.wait ? this.#made().missedWait : null;
    if (missed !== null) throw waitMismatch(this.id, missed, null);
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

  #threw(own: unknown): void {
    if (this.#settling) return;
    this.#madeCalls?.dropWait();
    const thrown = this.failsWith ?? own;
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
    if (this.#rowCommits) this.#interruptRowCommits(change);
    const ended = this.pendingRows ? withRows(change, this.pendingRows(change.to === "succeeded")) : change;
    // It is held until its end is durable, and its rows need not be: of 450 blocks they are 5 MB, which each collection of young objects would copy.
    this.pendingRows = null;
    this.#owner.ended(this, ended);
  }

  /** Reports how it ended, once that is durable. */
  report(change: transitions.Change): void {
    const { events, clock } = this.#context;
    this.kind.settled?.(this.job, change);
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
    this.underWay?.abort("aborted", why);
  }

  /** Ten times a second while it is held. */
  tick(mono: number): void {
    if (this.cell >= 0) return;
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
      (this.#hasBegun ? transitions.release : transitions.releaseUnstarted)(transitions.runningView(this.job), reason),
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
    this.#commitControl!.interrupt(commitWaited(this.id, waitedMs));
  }

  // ---- what the handler calls (calls.ts)

  #made(): Calls {
    return (this.#madeCalls ??= new Calls({
      job: this.job,
      kind: this.kind,
      context: this.#context,
      hasEnded: () => this.ended,
      assertOurs: () => this.#assertOurs(),
      write: (write) => this.#write(write),
      endWaiting: () => this.#endWaiting(),
    }));
  }

  key(name: string): string {
    assertKey(name, `The key name of job ${this.id}`);
    return `${this.id}:${name}`;
  }

  step<T>(name: string, work: () => T | Promise<T>): Promise<StepResult<T>> {
    return this.#made().watched("step", (calls) => calls.step(name, work));
  }

  progress(value: Json): Promise<void> {
    return this.#made().watched("progress", (calls) => calls.progress(value));
  }

  log(message: string): Promise<void> {
    return this.#made().watched("log", (calls) => calls.log(message));
  }

  // Made when they are asked for: most handlers use neither, and a handler may take them out of `run`.
  get enqueue(): RunEnqueue {
    return (kind, input, options) => this.#made().watched("enqueue", (calls) => calls.enqueue(kind, input, options));
  }

  get enqueueMany(): RunEnqueueMany {
    return (kind, inputs, options) =>
      this.#made().watched("enqueue", (calls) => calls.enqueueMany(kind, inputs, options));
  }

  holdOff(limit: string, duration: Duration): Promise<void> {
    return this.#made().watched("holdOff", (calls) => calls.holdOff(limit, duration));
  }

  fetch(options: FetchOptions): typeof fetch {
    const { fetchOf } = this.#context;
    if (fetchOf) return fetchOf(this, options);
    throw new OutliveError(
      ErrorCode.driverMissing,
      `Job ${this.id} called run.fetch, and this worker has no network.`,
      "Run it in a worker of an engine that open() has made.",
      { jobId: this.id },
    );
  }

  sleep(duration: Duration, options?: SleepOptions): Promise<void> {
    return this.#made().sleep(duration, options);
  }

  sleepUntil(date: Date, options?: SleepOptions): Promise<void> {
    return this.#made().sleepUntil(date, options);
  }

  waitForSignal<T = Json>(name: string, options?: SignalOptions<T>): Promise<T | null> {
    return this.#made().waitForSignal(name, options);
  }

  wait<R = Json>(ids: readonly JobId<R>[], options?: WaitOptions): Promise<readonly AwaitedJob<R>[]> {
    return this.#made().wait(ids, options);
  }

  async results<R = Json>(ids: readonly JobId<R>[], options?: WaitOptions): Promise<readonly R[]> {
    return resultsOf(this.id, await this.wait(ids, options));
  }

  heartbeat(): Promise<void> {
    return this.#made().watched("heartbeat", () => this.#heartbeat());
  }

  async #heartbeat(): Promise<void> {
    await this.#write(HEARTBEAT);
    this.#movesDeadline();
  }

  #movesDeadline(): void {
    if (this.#settling || this.slot < 0) return;
    const { timeoutMs, maxRuntimeMs } = this.kind.settings;
    if (timeoutMs === null) return;
    // The store counts from the claim.
    const cap = maxRuntimeMs === null ? Number.POSITIVE_INFINITY : this.claimedMono + maxRuntimeMs;
    this.#deadlineMono = Math.min(this.#context.clock.mono() + timeoutMs, cap);
  }

  #endWaiting(): void {
    const begun = this.#madeCalls?.begunWait;
    if (begun && this.failsWith) this.#threw(this.failsWith);
    else if (begun) this.#end(transitions.wait(transitions.runningView(this.job), begun));
  }

  commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    return this.#made().watched("commit", () => this.#commit(form, body));
  }

  async #commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    this.#assertOurs();
    if (this.failsWith) throw this.failsWith;
    const { store, clock, assertKnown = () => {} } = this.#context;
    const transactions = transactionsFor(store, form, `Job ${this.id} called commit`);
    if (this.#settling || this.slot < 0) throw twoCommits(this.id, this.attempt);
    this.#assertNoMissedWait();
    const succeeded = transitions.succeed(transitions.runningView(this.job), null);
    const change = this.pendingRows ? withRows(succeeded, this.pendingRows()) : succeeded;
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

  // ---- what the runner of a block calls

  async endRows(ends: RowEnds): Promise<void> {
    await this.#writeAll([{ type: "rows", ends }, HEARTBEAT]);
    this.#movesDeadline();
  }

  async beginRow(row: number): Promise<void> {
    await this.#write({ type: "rowBegins", row });
  }

  async commitRow(
    form: CommitForm<unknown, "sync" | "async">,
    body: (tx: never) => unknown,
    ends: RowEnds,
  ): Promise<unknown> {
    this.#assertOurs();
    const { store, clock, assertKnown = () => {} } = this.#context;
    const transactions = transactionsFor(store, form, `A row of job ${this.id} called commit`);
    const control = new CommitControl(clock.mono());
    const commits = (this.#rowCommits ??= new Set());
    commits.add(control);
    try {
      const write = { lease: this.job.lease, write: { type: "rows", ends } } as const;
      const { answer, value } = await transactions.write(
        write,
        checkedEnqueue(body as (tx: unknown) => unknown, assertKnown),
        control,
      );
      if (answer.is === "stale") throw this.#refused(answer.stale);
      return value;
    } finally {
      commits.delete(control);
    }
  }

  /** The attempt ends: a row whose transaction has not been committed yet runs again in the next one. */
  #interruptRowCommits({ reason, name }: transitions.Change): void {
    for (const control of this.#rowCommits!) control.interrupt(new Interruption("lease-lost", reason ?? name));
  }

  /** Nothing of it was written. If it was interrupted because the attempt had to end, the attempt ends now. */
  #commitFailed(): void {
    const end = this.#commitControl?.interrupted && this.#afterCommit;
    this.#commitControl = null;
    this.#settling = false;
    if (end) this.#end(end());
  }

  async #write(write: AttemptWrite): Promise<Applied | undefined> {
    const applied = await this.#writeAll([write]);
    if (write.type === "step" || applied?.signal?.kept) this.#owner.stepped(this);
    return applied;
  }

  /** Returns the response to the first. */
  async #writeAll(writes: readonly AttemptWrite[]): Promise<Applied | undefined> {
    this.#assertOurs();
    const { lease } = this.job;
    const [answer] = await this.#context.store.write(writes.map((write) => ({ lease, write })));
    if (answer?.is === "stale") throw this.#refused(answer.stale);
    return answer?.is === "applied" ? answer : undefined;
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
    if (this.ended) throw afterEnd(this.id, this.attempt);
  }
}

const HEARTBEAT: AttemptWrite = { type: "heartbeat" };

/** The rows end with the change, whichever of its forms is applied. Those without a mark succeed with their block, so most successes have nothing to add. */
function withRows(change: transitions.Change, pending: RowEnds | null): transitions.Change {
  const own = change.rows;
  if (own === undefined && (pending === null || (change.to === "succeeded" && hasOnlySuccesses(pending))))
    return change;
  const rows = bothEnds(pending ?? NO_ENDS, own ?? NO_ENDS);
  const { ifCancelled } = change;
  return { ...change, rows, ...(ifCancelled && { ifCancelled: { ...ifCancelled, rows: pending ?? NO_ENDS } }) };
}

function hasOnlySuccesses({ failed, outputs }: RowEnds): boolean {
  return failed.length + outputs.length === 0;
}

/** Only then it is asked what it was planned for. An id of the user's may look the same, and has no occurrence. */
function mayBeScheduled(jobId: string): boolean {
  return jobId.length === 32 && jobId.startsWith(SCHEDULED);
}

/** What `await` would wait for: promises of any library, and queries that begin only when their `then` is called. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  const mayBe = typeof value === "object" || typeof value === "function";
  return mayBe && typeof (value as { then?: unknown } | null)?.then === "function";
}

/** The store failed before the handler was called: the attempt costs nothing. */
function notPlanned(jobId: string, cause: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `The occurrence that job ${jobId} was planned for could not be read.`,
    "The job runs again at no cost.",
    { jobId, costsAttempt: false },
    { cause },
  );
}
