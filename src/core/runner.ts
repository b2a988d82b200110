// Runs the handlers of what was claimed: from the stored input to a settlement, with deadlines, cancels and lost leases on the
// way. It holds a job until its settlement is durable, and decides nothing about anybody else's.
import type { CallOff, Clock, Random } from "./clock.ts";
import { changeOfGivenUp, changeOfThrown, troubleOfStore, viewOf } from "./attempt-end.ts";
import type { CommitControl } from "./commit.ts";
import { ErrorCode, Interruption, OutliveError, toStoredError } from "./errors.ts";
import type { Emitter } from "./events.ts";
import type { ClaimedJob } from "./job.ts";
import { decodeJson, encodeJson, type Json } from "./json.ts";
import type { RunnableKind } from "./kind.ts";
import { type Held, HeldJobs } from "./held-jobs.ts";
import { Attempt, type RunHost, staleText } from "./run.ts";
import type { Settlement, Stale, WriteAnswer } from "./store.ts";
import * as transitions from "./transitions.ts";

export interface RunnerDeps {
  readonly worker: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  /** Until when (monotonic) the worker may trust what it holds. */
  readonly trustedUntil: () => number;
  /** An attempt has ended: settle it. */
  readonly finished: (settlement: Settlement) => void;
  /** Called ten times a second while anything is held. */
  readonly ticked: () => void;
}

const TICK_MS = 100;
/** How long a commit waits for its turn in a store that is busy, if the attempt has no deadline that comes first. */
const COMMIT_WAIT_MS = 5 * 60_000;

export class Runner {
  readonly #deps: RunnerDeps;
  readonly #held = new HeldJobs();
  #ticker: CallOff | undefined;
  #over = false;

  constructor(deps: RunnerDeps) {
    this.#deps = deps;
  }

  get heldCount(): number {
    return this.#held.size;
  }

  /** Whether the attempt that this settles is still held. */
  holds(settlement: Settlement): boolean {
    return this.#heldOf(settlement) !== undefined;
  }

  #heldOf({ slot, lease }: Settlement): Held | undefined {
    const held = slot === undefined ? undefined : this.#held.at(slot);
    return held?.job.lease === lease ? held : undefined;
  }

  ids(): ReadonlySet<string> {
    return new Set(this.#held.all().map((held) => held.run.id));
  }

  /** What was begun before that instant (monotonic), goes on, and is not about to be given up. */
  runningSince(mono: number): readonly Held[] {
    return this.#held
      .all()
      .filter(({ startedMono, settling, giveUp }) => startedMono < mono && !settling && giveUp === null);
  }

  jobs(): readonly ClaimedJob[] {
    return this.#held.all().map((held) => held.job);
  }

  /** The held job of this very attempt, unless its end is under way. */
  running(run: Attempt): Held | undefined {
    const held = this.#held.find(run.id);
    return held?.run === run && !held.settling ? held : undefined;
  }

  begin(job: ClaimedJob, host: RunHost): void {
    const kind = this.#deps.kinds.get(job.kind)!;
    const mono = this.#deps.clock.mono();
    const held: Held = {
      job,
      kind,
      run: new Attempt(job, host),
      startedMono: mono,
      slot: -1,
      deadlineMono: job.deadlineInMs === null ? Number.POSITIVE_INFINITY : mono + job.deadlineInMs,
      giveUp: null,
      settling: false,
      commit: null,
      afterCommit: null,
      untrusted: false,
    };
    this.#held.add(held);
    const { events } = this.#deps;
    if (events.has("job.claimed")) {
      const { jobId, fence: attempt } = job.lease;
      events.emit("job.claimed", { jobId, kind: job.kind, attempt });
    }
    this.#ticker ??= this.#deps.clock.after(TICK_MS, () => this.#tick());
    this.#parse(held);
  }

  #parse(held: Held): void {
    // Only an input that can't be right is the end of the job. A schema that fails in another way may work next time.
    const refuse = (thrown: unknown): void => {
      const hopeless =
        thrown instanceof OutliveError && (thrown.code === ErrorCode.inputInvalid || thrown.code === ErrorCode.notJson);
      if (hopeless) this.#settle(held, transitions.refuse(viewOf(held), toStoredError(thrown)));
      else this.#threw(held, thrown);
    };
    let input: unknown;
    try {
      input = decodeJson(held.job.input, `The input of job ${held.run.id}`);
      if (held.kind.parse) input = held.kind.parse(input as Json);
    } catch (thrown) {
      return refuse(thrown);
    }
    if (isThenable(input)) input.then((parsed) => this.#call(held, parsed), refuse);
    else this.#call(held, input);
  }

  #call(held: Held, input: unknown): void {
    let returned: unknown;
    try {
      returned = held.kind.handler(input as never, held.run);
      if (isThenable(returned)) {
        // Inside: the `then` of what is no promise may throw.
        return void returned.then(
          (value) => this.#returned(held, value),
          (thrown: unknown) => this.#threw(held, thrown),
        );
      }
    } catch (thrown) {
      return this.#threw(held, thrown);
    }
    this.#returned(held, returned);
  }

  #returned(held: Held, value: unknown): void {
    if (held.settling) return;
    let result: string | null = null;
    try {
      if (value !== undefined) result = encodeJson(value, `The result of job ${held.run.id}`);
    } catch (thrown) {
      return this.#threw(held, thrown);
    }
    this.#settle(held, transitions.succeed(viewOf(held), result));
  }

  #threw(held: Held, thrown: unknown): void {
    if (held.settling) return;
    const change = changeOfThrown(held, thrown, this.#deps.random);
    if (change.name === "release" && troubleOfStore(thrown))
      this.#deps.events.emit("store.failed", {
        doing: `running job ${held.run.id}`,
        error: toStoredError(thrown),
        retryInMs: change.delayMs,
      });
    this.#settle(held, change);
  }

  #settle(held: Held, change: transitions.Change): void {
    if (held.settling || held.slot < 0) return;
    held.settling = true;
    held.run.over = true;
    this.#deps.finished({ lease: held.job.lease, change, slot: held.slot });
  }

  /** The store has answered a settlement. Answers what is not held any more. */
  settled(settlement: Settlement, answer: WriteAnswer): Held | undefined {
    const ours = this.#heldOf(settlement);
    if (ours) this.forget(ours);
    if (answer.is === "stale") this.rejected(answer.stale);
    else if (ours) this.tell(ours, settlement.change);
    return ours;
  }

  /** False: it was not held any more. */
  forget(held: Held): boolean {
    return this.#held.remove(held);
  }

  /** A newer attempt of the same job was claimed here while an older one, fenced out as overdue, still runs: the older is over. */
  supersede(jobId: string): Held | undefined {
    const former = this.#held.find(jobId);
    if (!former) return undefined;
    former.run.abort("lease-lost", `job ${jobId} was fenced out and has a newer attempt`);
    former.run.over = true;
    this.#held.remove(former);
    return former;
  }

  rejected(stale: Stale): void {
    this.#deps.events.emit("write.rejected", { ...stale, text: staleText(stale) });
  }

  /** Says how an attempt ended, once that is durable. */
  tell(held: Held, change: transitions.Change): void {
    const { events, clock } = this.#deps;
    const { jobId, fence: attempt } = held.job.lease;
    const { kind } = held.job;
    if (change.outcome !== null && events.has("attempt.ended")) {
      const durationMs = clock.mono() - held.startedMono;
      events.emit("attempt.ended", { jobId, kind, attempt, outcome: change.outcome, to: change.to, durationMs });
    }
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

  // ---- commits

  /** A commit of the held job begins. */
  commits(held: Held, control: CommitControl): void {
    held.settling = true;
    held.commit = control;
    held.afterCommit = null;
  }

  /** It failed, and nothing of it was written. If it was interrupted because the attempt had to end, the attempt ends now. */
  commitFailed(held: Held): void {
    const end = held.commit?.interrupted && held.afterCommit;
    held.commit = null;
    held.settling = false;
    if (end) this.#settle(held, end());
  }

  /** Rolls back a commit that is under way; the attempt ends when the store has done so. Too late: then it ends by the commit. */
  #endCommit(held: Held, reason: Error, end: () => transitions.Change): void {
    held.afterCommit ??= end;
    held.commit!.interrupt(reason);
  }

  /** The store is too busy to begin with the commit. The handler gets an error that costs its job nothing. */
  #endWait(held: Held, mono: number): void {
    const waitedMs = Math.round(mono - held.commit!.sinceMono);
    held.commit!.interrupt(
      new OutliveError(
        ErrorCode.storeBusy,
        `The commit of job ${held.run.id} waited ${waitedMs} ms for its turn in the store and did not begin.`,
        "Nothing was written, and the job is queued again at no cost. Make commits shorter, or give the store more connections (`postgres.connections`, or the `max` of your own pool).",
        { jobId: held.run.id, waitedMs, costsAttempt: false },
      ),
    );
  }

  #waitedTooLong({ commit, deadlineMono, giveUp, run }: Held, mono: number): boolean {
    if (!commit?.waits || giveUp || run.abortedBy !== undefined) return false;
    return mono >= Math.min(deadlineMono, commit.sinceMono + COMMIT_WAIT_MS);
  }

  // ---- time: deadlines, cancels, lost leases, shutdown

  #tick(): void {
    this.#ticker = undefined;
    if (this.#over) return;
    this.checkTrust();
    const mono = this.#deps.clock.mono();
    for (const held of this.#held.all()) {
      if (held.settling && !held.commit) continue;
      const { giveUp, deadlineMono, run } = held;
      if (this.#waitedTooLong(held, mono)) this.#endWait(held, mono);
      else if (giveUp) {
        if (mono >= giveUp.atMono) this.#giveUp(held, giveUp.why);
      } else if (mono >= deadlineMono && run.abortedBy !== "shutdown") this.#overdue(held, mono);
    }
    this.#deps.ticked();
    if (this.#held.size > 0) this.#ticker = this.#deps.clock.after(TICK_MS, () => this.#tick());
  }

  /** Also of an attempt whose lease was lost: the deadline is the latest moment at which its slot comes back. */
  #overdue(held: Held, mono: number): void {
    const { graceMs } = held.kind.settings;
    held.giveUp = { atMono: mono + graceMs, why: "timeout" };
    const { id: jobId } = held.run;
    this.#deps.events.emit("job.overdue", {
      jobId,
      kind: held.job.kind,
      worker: this.#deps.worker,
      fencedOut: false,
    });
    held.run.abort("timeout", `job ${held.run.id} passed its deadline; it has ${graceMs} ms to end`);
  }

  /** Told again and again until the attempt is over. One that was told to stop for another reason and goes on has the grace and no more. */
  cancel(jobId: string): void {
    const held = this.#held.find(jobId);
    if (!held || (held.settling && !held.commit) || held.giveUp) return;
    this.#endWithinGrace(held, "cancelled");
    held.run.abort("cancelled", `job ${jobId} was cancelled`);
  }

  /** The handler does not end: its attempt does. What it still writes is refused by the fence. */
  #giveUp(held: Held, why: NonNullable<Held["giveUp"]>["why"]): void {
    const end = (): transitions.Change => changeOfGivenUp(held, why, this.#deps.random);
    if (held.commit) this.#endCommit(held, new Interruption(why, `job ${held.run.id} did not end in time`), end);
    else this.#settle(held, end());
  }

  /** The store does not know that we hold it: what the attempt writes from now on is refused, so its slot is free after the grace. */
  forgotten(held: Held, what: string): void {
    this.#endWithinGrace(held, "lease-lost");
    held.run.abort("lease-lost", what);
  }

  #endWithinGrace(held: Held, why: "cancelled" | "lease-lost"): void {
    held.giveUp ??= { atMono: this.#deps.clock.mono() + held.kind.settings.graceMs, why };
  }

  /** The job said that it lives: its deadline is one timeout from now. */
  touched(run: Attempt): void {
    const held = this.running(run);
    if (!held) return;
    const { timeoutMs, maxRuntimeMs } = held.kind.settings;
    if (timeoutMs === null) return;
    const cap = maxRuntimeMs === null ? Number.POSITIVE_INFINITY : held.startedMono + maxRuntimeMs;
    held.deadlineMono = Math.min(this.#deps.clock.mono() + timeoutMs, cap);
  }

  /**
   * After a pause longer than the lease allows: abort before anything is written. The fence is the real guard. The attempt may still be
   * ours, so a handler that goes on has until its deadline, like any other. Without a deadline it has the grace, so that its slot comes back.
   */
  checkTrust(): void {
    const lateMs = this.#deps.clock.mono() - this.#deps.trustedUntil();
    if (lateMs <= 0) return;
    let lost = 0;
    for (const held of this.#held.all()) {
      if (held.untrusted) continue;
      held.untrusted = true;
      if (held.deadlineMono === Number.POSITIVE_INFINITY) this.#endWithinGrace(held, "lease-lost");
      held.run.abort("lease-lost", `worker ${this.#deps.worker} was silent for longer than its lease allows`);
      lost++;
    }
    if (lost > 0)
      this.#deps.events.emit("lease.lost", { worker: this.#deps.worker, held: lost, lateMs: Math.round(lateMs) });
  }

  /** Tells every handler to stop. */
  interruptAll(why: "shutdown" | "lease-lost", what: string): void {
    for (const held of this.#held.all()) held.run.abort(why, what);
  }

  /** Releases what still runs, at no cost to the jobs. A commit that is under way is rolled back first. */
  releaseAll(reason: string): number {
    const running = this.#held.all().filter(({ settling, commit }) => !settling || commit);
    for (const held of running) {
      const end = (): transitions.Change => transitions.release(viewOf(held), reason);
      if (held.commit) this.#endCommit(held, new Interruption("shutdown", reason), end);
      else this.#settle(held, end());
    }
    return running.length;
  }

  close(): void {
    this.#over = true;
    this.#ticker?.();
    for (const held of this.#held.all()) held.run.over = true;
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === "object" && value !== null && typeof (value as { then?: unknown }).then === "function";
}
