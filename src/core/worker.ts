// One worker: claims jobs, runs their handlers, settles them. Its loop is one store call, `settleAndClaim`; a slot is free
// only when the settlement of what ran in it is durable. It never decides who is dead and never touches another worker's jobs.
import type { CallOff, Clock, Random } from "./clock.ts";
import { ErrorCode, OutliveError, TerminalError, toStoredError } from "./errors.ts";
import type { Emitter } from "./events.ts";
import { decodeJson, encodeJson, type Json } from "./json.ts";
import type { ClaimedJob } from "./job.ts";
import type { RunnableKind } from "./kind.ts";
import type { Lease } from "./lease.ts";
import { backoffMs } from "./retry.ts";
import { Attempt, type CommitForm, type DraftMaker, type RunHost, staleError, staleText } from "./run.ts";
import { Slots, type Concurrency } from "./slots.ts";
import type { AttemptWrite, BeatAnswer, Settlement, Stale, Store, WriteAnswer } from "./store.ts";
import * as transitions from "./transitions.ts";

export interface WorkerDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  readonly draft: DraftMaker;
  /** Until when (monotonic) the worker may trust what it holds. */
  readonly trustedUntil: () => number;
  /** The row is not live any more. */
  readonly disowned: () => void;
  /** Asks for a heartbeat now: an answer was lost and what is held must be compared. */
  readonly compareSoon: () => void;
}

export interface WorkerOptions {
  readonly id: string;
  readonly concurrency: Concurrency;
  /** How long an idle worker waits before it asks without having been woken. */
  readonly pollMs: number;
}

/** A job that this worker has claimed and whose settlement is not durable yet. */
interface Held {
  readonly job: ClaimedJob;
  readonly kind: RunnableKind;
  readonly run: Attempt;
  readonly startedMono: number;
  deadlineMono: number;
  /** When a handler that was told to stop is given up. */
  giveUpMono: number;
  settling: boolean;
}

const TICK_MS = 100;
const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 5_000;

export class Worker implements RunHost {
  readonly id: string;
  readonly draft: DraftMaker;
  readonly #deps: WorkerDeps;
  readonly #slots: Slots;
  readonly #pollMs: number;
  readonly #held = new Map<string, Held>();
  #finished: Settlement[] = [];
  /** Held by the store but unknown here at the last comparison. */
  #strangers = new Set<string>();
  #turning = false;
  /** Woken during a turn: something may have become ready after the turn's claim. */
  #again = false;
  #scheduled = false;
  #claiming = false;
  #alone = false;
  #timer: CallOff | undefined;
  #ticker: CallOff | undefined;
  #failures = 0;
  #over = false;
  #whenEmpty: (() => void)[] = [];
  readonly #untrusted = new Set<string>();

  constructor(deps: WorkerDeps, options: WorkerOptions) {
    this.#deps = deps;
    this.id = options.id;
    this.draft = deps.draft;
    this.#pollMs = options.pollMs;
    this.#slots = new Slots(options.concurrency, [...deps.kinds.keys()]);
  }

  get heldCount(): number {
    return this.#held.size;
  }

  heldJobs(): readonly ClaimedJob[] {
    return [...this.#held.values()].map((held) => held.job);
  }

  start(): void {
    this.#claiming = true;
    this.wake();
  }

  /** Takes a turn at the end of this tick of the event loop: what finishes meanwhile goes into the same transaction. */
  wake(): void {
    if (this.#scheduled || this.#over) return;
    this.#scheduled = true;
    this.#deps.clock.soon(() => {
      this.#scheduled = false;
      void this.#turn();
    });
  }

  /** No more claims; what runs goes on. Resolves when nothing is held. */
  drain(): Promise<void> {
    this.#claiming = false;
    this.wake();
    return new Promise((resolve) => (this.#held.size === 0 ? resolve() : this.#whenEmpty.push(resolve)));
  }

  /** Tells every handler to stop. */
  interruptAll(why: "shutdown" | "lease-lost", what: string): void {
    for (const held of this.#held.values()) held.run.abort(why, what);
  }

  /** Gives back what still runs, at no cost to the jobs. */
  releaseAll(reason: string): number {
    let released = 0;
    for (const held of this.#held.values()) {
      if (held.settling) continue;
      this.#settle(held, transitions.release(this.#view(held), reason));
      released++;
    }
    return released;
  }

  /** The store has given away everything we hold: nothing is claimed any more, but handlers that still run may try, and are refused. */
  disown(): void {
    this.#claiming = false;
    this.#timer?.();
    for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }

  /** The end: nothing is claimed, settled or retried any more. */
  close(): void {
    this.#over = true;
    this.#claiming = false;
    this.#timer?.();
    this.#ticker?.();
    for (const held of this.#held.values()) held.run.over = true;
    for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }

  /**
   * Compares what the store says we hold with what we run. What was unknown at two comparisons in a row is a claim whose
   * answer was lost: it is given back. One look is not enough: a settlement may have landed since the list was read.
   */
  compare(held: BeatAnswer["held"]): void {
    const strangers = new Set<string>();
    for (const { lease, counters } of held) {
      if (this.#held.has(lease.jobId)) continue;
      const key = `${lease.jobId} ${lease.epoch} ${lease.fence}`;
      if (!this.#strangers.has(key) || this.#turning) {
        strangers.add(key);
        continue;
      }
      const reason = "its worker never got the answer to the claim";
      this.#deps.events.emit("job.released", { jobId: lease.jobId, reason });
      this.#finished.push({
        lease,
        change: transitions.release({ id: lease.jobId, state: "running", counters }, reason),
      });
      this.wake();
    }
    const again = strangers.size > 0;
    this.#strangers = strangers;
    if (again) this.#deps.compareSoon();
  }

  // ---- the loop

  async #turn(): Promise<void> {
    if (this.#over) return;
    if (this.#turning) {
      this.#again = true;
      return;
    }
    this.checkTrust();
    const settlements = this.#finished;
    const running = this.#held.size - settlements.length;
    const claim = this.#claiming && !(this.#alone && running > 0);
    const room = claim ? this.#slots.room(running) : Slots.NONE;
    this.#timer?.();
    this.#timer = undefined;
    this.#finished = [];
    this.#turning = true;
    try {
      const answer = await this.#deps.store.settleAndClaim(this.id, settlements, room);
      if (this.#over) return;
      this.#failures = 0;
      for (let i = 0; i < settlements.length; i++) this.#settled(settlements[i]!, answer.settled[i]!);
      if (!answer.live) return this.#deps.disowned();
      for (const jobId of answer.cancels) this.#cancel(jobId);
      for (const job of answer.claimed) this.#begin(job);
      if (answer.claimed.length > 0 && answer.claimed.length === room.total) this.wake();
      this.#sleep(answer.nextDueInMs);
    } catch (thrown) {
      this.#storeFailed(settlements, thrown);
    } finally {
      this.#turning = false;
      if (this.#finished.length > 0 || this.#again) this.wake();
      this.#again = false;
      if (this.#held.size === 0) for (const resolve of this.#whenEmpty.splice(0)) resolve();
    }
  }

  #sleep(nextDueInMs: number | null): void {
    if (!this.#claiming) return;
    const ms = Math.min(this.#pollMs, nextDueInMs ?? this.#pollMs);
    this.#timer ??= this.#deps.clock.after(Math.max(1, ms), () => {
      this.#timer = undefined;
      this.wake();
    });
  }

  /** Whether it was applied is not known: the same settlements are sent again, which is safe, and what is held is compared. */
  #storeFailed(settlements: Settlement[], thrown: unknown): void {
    this.#finished = [...settlements, ...this.#finished];
    const retryInMs = Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** Math.min(this.#failures++, 10));
    this.#deps.events.emit("store.failed", { doing: "settling and claiming", error: toStoredError(thrown), retryInMs });
    this.#deps.compareSoon();
    this.#scheduled = true;
    this.#deps.clock.after(retryInMs, () => {
      this.#scheduled = false;
      this.wake();
    });
  }

  // ---- one attempt

  #begin(job: ClaimedJob): void {
    const kind = this.#deps.kinds.get(job.kind)!;
    const mono = this.#deps.clock.mono();
    const deadlineMono = job.deadlineInMs === null ? Number.POSITIVE_INFINITY : mono + job.deadlineInMs;
    const held: Held = {
      job,
      kind,
      run: new Attempt(job, this),
      startedMono: mono,
      deadlineMono,
      giveUpMono: Number.POSITIVE_INFINITY,
      settling: false,
    };
    this.#held.set(job.lease.jobId, held);
    this.#slots.took(job.kind);
    if (job.alone) this.#alone = true;
    this.#ticker ??= this.#deps.clock.after(TICK_MS, () => this.#tick());
    let input: unknown;
    try {
      input = decodeJson(job.input, `The input of job ${job.lease.jobId}`);
      if (kind.parse) input = kind.parse(input as Json);
    } catch (thrown) {
      return this.#settle(held, transitions.refuse(this.#view(held), toStoredError(thrown)));
    }
    if (isThenable(input)) {
      input.then(
        (parsed) => this.#call(held, parsed),
        (thrown: unknown) => this.#settle(held, transitions.refuse(this.#view(held), toStoredError(thrown))),
      );
    } else this.#call(held, input);
  }

  #call(held: Held, input: unknown): void {
    let returned: unknown;
    try {
      returned = held.kind.handler(input as never, held.run);
    } catch (thrown) {
      return this.#threw(held, thrown);
    }
    if (isThenable(returned)) {
      returned.then(
        (value) => this.#returned(held, value),
        (thrown: unknown) => this.#threw(held, thrown),
      );
    } else this.#returned(held, returned);
  }

  #returned(held: Held, value: unknown): void {
    if (held.settling) return;
    let result: string | null = null;
    try {
      if (value !== undefined) result = encodeJson(value, `The result of job ${held.run.id}`);
    } catch (thrown) {
      return this.#threw(held, thrown);
    }
    this.#settle(held, transitions.succeed(this.#view(held), result));
  }

  #threw(held: Held, thrown: unknown): void {
    if (held.settling) return;
    const view = this.#view(held);
    const { settings } = held.kind;
    switch (held.run.abortedBy) {
      case "shutdown":
        return this.#settle(held, transitions.release(view, "its worker shut down"));
      case "lease-lost":
        return this.#settle(held, transitions.release(view, "its worker lost the lease"));
      case "cancelled":
        return this.#settle(held, transitions.endCancelled(view, "cancelled while it ran"));
      case "timeout":
        return this.#settle(held, transitions.timeOut(view, settings, this.#delay(held, view.counters.timeouts + 1)));
      case undefined: {
        const error = toStoredError(thrown);
        const failures = view.counters.errors + 1;
        let delayMs: number;
        try {
          delayMs = held.kind.delayMs ? held.kind.delayMs(failures, error) : this.#delay(held, failures);
        } catch {
          delayMs = this.#delay(held, failures);
        }
        return this.#settle(held, transitions.fail(view, settings, error, delayMs, thrown instanceof TerminalError));
      }
    }
  }

  #delay(held: Held, failures: number): number {
    return backoffMs(held.kind.settings.backoff, failures, this.#deps.random.next());
  }

  #view(held: Held): transitions.JobView {
    return { id: held.run.id, state: "running", counters: held.job.counters };
  }

  #settle(held: Held, change: transitions.Change): void {
    if (held.settling) return;
    held.settling = true;
    held.run.over = true;
    this.#finished.push({ lease: held.job.lease, change });
    this.wake();
  }

  #settled(settlement: Settlement, answer: WriteAnswer): void {
    const held = this.#held.get(settlement.lease.jobId);
    if (held && held.job.lease.fence === settlement.lease.fence) this.#forget(held);
    if (answer.is === "stale") return this.#rejected(answer.stale);
    if (held) this.#tell(held, settlement.change);
  }

  #forget(held: Held): void {
    this.#held.delete(held.run.id);
    this.#untrusted.delete(held.run.id);
    this.#slots.freed(held.job.kind);
    if (held.job.alone) this.#alone = false;
  }

  #tell(held: Held, change: transitions.Change): void {
    const { events, clock } = this.#deps;
    const { jobId, fence: attempt } = held.job.lease;
    const { kind } = held.job;
    if (change.name === "succeed") {
      if (events.has("job.succeeded"))
        events.emit("job.succeeded", { jobId, kind, attempt, durationMs: clock.mono() - held.startedMono });
      return;
    }
    if (change.error && (change.to === "queued" || change.to === "dead")) {
      events.emit("job.failed", { jobId, kind, attempt, error: change.error, to: change.to, delayMs: change.delayMs });
    }
    if (change.to === "dead") events.emit("job.dead", { jobId, kind, reason: change.reason ?? "" });
  }

  #rejected(stale: Stale): void {
    this.#deps.events.emit("write.rejected", { ...stale, text: staleText(stale) });
  }

  // ---- time: deadlines, cancels, lost leases

  #tick(): void {
    this.#ticker = undefined;
    if (this.#over) return;
    this.checkTrust();
    const mono = this.#deps.clock.mono();
    for (const held of this.#held.values()) {
      if (held.settling) continue;
      if (mono >= held.giveUpMono) this.#giveUp(held);
      else if (mono >= held.deadlineMono && held.run.abortedBy === undefined) this.#overdue(held, mono);
    }
    if (this.#held.size > 0) this.#ticker = this.#deps.clock.after(TICK_MS, () => this.#tick());
  }

  #overdue(held: Held, mono: number): void {
    const { settings } = held.kind;
    held.giveUpMono = mono + settings.graceMs;
    this.#deps.events.emit("job.overdue", { jobId: held.run.id, worker: this.id, fencedOut: false });
    held.run.abort("timeout", `job ${held.run.id} passed its deadline; it has ${settings.graceMs} ms to end`);
  }

  #cancel(jobId: string): void {
    const held = this.#held.get(jobId);
    if (!held || held.settling || held.run.abortedBy !== undefined) return;
    held.giveUpMono = this.#deps.clock.mono() + held.kind.settings.graceMs;
    held.run.abort("cancelled", `job ${jobId} was cancelled`);
  }

  /** The handler does not end: its attempt does. What it still writes is refused by the fence. */
  #giveUp(held: Held): void {
    const view = this.#view(held);
    if (held.run.abortedBy === "cancelled")
      this.#settle(held, transitions.endCancelled(view, "cancelled; its handler did not end within the grace"));
    else
      this.#settle(held, transitions.timeOut(view, held.kind.settings, this.#delay(held, view.counters.timeouts + 1)));
  }

  /** After a pause longer than the lease allows: abort before anything is written. The fence is the real guard. */
  checkTrust(): void {
    const lateMs = this.#deps.clock.mono() - this.#deps.trustedUntil();
    if (lateMs <= 0) return;
    let lost = 0;
    for (const held of this.#held.values()) {
      if (this.#untrusted.has(held.run.id)) continue;
      this.#untrusted.add(held.run.id);
      held.run.abort("lease-lost", `worker ${this.id} was silent for longer than its lease allows`);
      lost++;
    }
    if (lost > 0) this.#deps.events.emit("lease.lost", { worker: this.id, held: lost, lateMs: Math.round(lateMs) });
  }

  touched(run: Attempt): void {
    const held = this.#held.get(run.id);
    if (!held || held.run !== run) return;
    const { timeoutMs, maxRuntimeMs } = held.kind.settings;
    if (timeoutMs === null) return;
    const cap = maxRuntimeMs === null ? Number.POSITIVE_INFINITY : held.startedMono + maxRuntimeMs;
    held.deadlineMono = Math.min(this.#deps.clock.mono() + timeoutMs, cap);
  }

  // ---- what a handler asks for

  async write(lease: Lease, write: AttemptWrite): Promise<{ readonly stale: Stale | null }> {
    const [answer] = await this.#deps.store.record([{ lease, write }]);
    if (answer?.is !== "stale") return { stale: null };
    this.#rejected(answer.stale);
    return { stale: answer.stale };
  }

  logged(job: ClaimedJob, message: string): void {
    this.#deps.events.emit("job.log", { jobId: job.lease.jobId, kind: job.kind, attempt: job.lease.fence, message });
  }

  async commit(
    run: Attempt,
    form: CommitForm<unknown, "sync" | "async">,
    body: (tx: never) => unknown,
  ): Promise<unknown> {
    const { store } = this.#deps;
    if (form.store !== store.name) {
      throw new OutliveError(
        ErrorCode.commitForm,
        `Job ${run.id} called commit in the form of ${form.store}, but the open store is ${store.name}.`,
        `Import the form from "outlive/${store.name}".`,
        { jobId: run.id, form: form.store, store: store.name },
      );
    }
    const held = this.#held.get(run.id);
    if (!held || held.run !== run || held.settling)
      throw new OutliveError(
        ErrorCode.stale,
        `Attempt ${run.attempt} of job ${run.id} is over.`,
        "Write nothing after the end of the attempt.",
        { jobId: run.id },
      );
    const settlement = { lease: run.job.lease, change: transitions.succeed(this.#view(held), null) };
    const encode = (value: unknown): string | null =>
      value === undefined ? null : encodeJson(value, `The result of job ${run.id}`);
    // From here on neither the deadline nor a shutdown ends the attempt: the transaction does, one way or the other.
    held.settling = true;
    const { answer, value } = await store
      .commit(settlement, body as (tx: unknown) => unknown, encode)
      .catch((thrown: unknown) => {
        held.settling = false;
        throw thrown;
      });
    run.over = true;
    this.#forget(held);
    this.wake();
    if (answer.is === "stale") {
      this.#rejected(answer.stale);
      run.abort("lease-lost", `job ${run.id} has a new owner`);
      throw staleError(answer.stale);
    }
    this.#tell(held, settlement.change);
    return value;
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === "object" && value !== null && typeof (value as { then?: unknown }).then === "function";
}
