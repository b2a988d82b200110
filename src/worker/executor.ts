// The attempts that a worker runs. It holds each of them until its settlement is durable, and gives all of them what comes by time: deadlines,
// lost leases, shutdown. It decides nothing about the jobs of other workers.
import type { CallOff } from "../job/clock.ts";
import type { ClaimedJob } from "../job/job.ts";
import type { HeldSummary } from "../job/lease.ts";
import type { Change } from "../job/transitions.ts";
import type { Settlement, WriteAnswer } from "../stores/port.ts";
import { Attempt, type AttemptOwner, reportStale } from "./attempt.ts";
import type { WorkerContext } from "./context.ts";
import { HeldSummaries } from "./slots.ts";

/** What the executor tells the worker's loop. */
export interface ExecutorOwner {
  /** An attempt has ended: settle it. */
  finished(settlement: Settlement): void;
  /** An attempt ended by a commit: its slot is free. */
  freed(attempt: Attempt): void;
  /** A step of an attempt was written. */
  stepped(attempt: Attempt): void;
  /** Ten times a second while anything is held. */
  ticked(): void;
}

const TICK_MS = 100;

export class Executor implements AttemptOwner {
  readonly #context: WorkerContext;
  readonly #loop: ExecutorOwner;
  readonly #held = new HeldAttempts();
  #ticker: CallOff | undefined;
  #closed = false;

  constructor(context: WorkerContext, loop: ExecutorOwner) {
    this.#context = context;
    this.#loop = loop;
  }

  get heldCount(): number {
    return this.#held.size;
  }

  /** Whether the attempt that this settles is still held. */
  holds(settlement: Settlement): boolean {
    return this.#heldBy(settlement) !== undefined;
  }

  ids(): ReadonlySet<string> {
    return new Set(this.#held.all().map(({ id }) => id));
  }

  /** What was begun before that instant (monotonic), goes on, and is not about to be given up. */
  runningSince(mono: number): readonly Attempt[] {
    return this.#held.all().filter(({ startedMono, isRunning }) => startedMono < mono && isRunning);
  }

  /** What is held now is what the store may show from here on: a turn or a commit has ended. */
  markHeld(): void {
    this.#held.summaries.mark(this.#context.clock.mono());
  }

  /** Whether this is what was held at some moment since then (monotonic). */
  hasHeld(summary: HeldSummary, sinceMono: number): boolean {
    return this.#held.summaries.has(summary, sinceMono);
  }

  jobs(): readonly ClaimedJob[] {
    return this.#held.all().map(({ job }) => job);
  }

  begin(job: ClaimedJob): void {
    const { events, clock } = this.#context;
    const attempt = new Attempt(this.#context, this, job);
    this.#held.add(attempt);
    if (events.has("job.claimed"))
      events.emit("job.claimed", { jobId: attempt.id, kind: job.kind, attempt: attempt.attempt });
    this.#ticker ??= clock.after(TICK_MS, () => this.#tick());
    attempt.start();
  }

  ended({ job, slot }: Attempt, change: Change): void {
    this.#loop.finished({ lease: job.lease, change, slot });
  }

  committed(attempt: Attempt): void {
    if (!this.#held.remove(attempt)) return;
    this.markHeld();
    this.#loop.freed(attempt);
  }

  stepped(attempt: Attempt): void {
    this.#loop.stepped(attempt);
  }

  /** The store has answered a settlement. Returns what is not held any more. */
  settled(settlement: Settlement, answer: WriteAnswer): Attempt | undefined {
    const ours = this.#heldBy(settlement);
    if (ours) this.#held.remove(ours);
    if (answer.is === "stale") reportStale(this.#context.events, answer.stale);
    else ours?.report(settlement.change);
    return ours;
  }

  #heldBy({ slot, lease }: Settlement): Attempt | undefined {
    const held = slot === undefined ? undefined : this.#held.at(slot);
    return held?.job.lease === lease ? held : undefined;
  }

  /** A newer attempt of the same job was claimed here while an older one, fenced out as overdue, still runs: the older one has ended. */
  supersede(jobId: string): Attempt | undefined {
    const former = this.#held.find(jobId);
    if (!former) return undefined;
    former.abort("lease-lost", `job ${jobId} was fenced out and has a newer attempt`);
    former.over = true;
    this.#held.remove(former);
    return former;
  }

  cancel(jobId: string): void {
    this.#held.find(jobId)?.cancel();
  }

  #tick(): void {
    this.#ticker = undefined;
    if (this.#closed) return;
    this.checkTrust();
    const { clock } = this.#context;
    const mono = clock.mono();
    for (const attempt of this.#held.all()) attempt.tick(mono);
    this.#loop.ticked();
    if (this.#held.size > 0) this.#ticker = clock.after(TICK_MS, () => this.#tick());
  }

  /** After a pause longer than the lease allows: abort before anything is written. The fence is the real guard. */
  checkTrust(): void {
    const { clock, trust, worker, events } = this.#context;
    const lateMs = clock.mono() - trust.untilMono;
    if (lateMs <= 0) return;
    let lost = 0;
    for (const attempt of this.#held.all()) if (attempt.loseTrust()) lost++;
    if (lost > 0) events.emit("lease.lost", { worker, held: lost, lateMs: Math.round(lateMs) });
  }

  /** Tells every handler to stop. */
  interruptAll(why: "shutdown" | "lease-lost", what: string): void {
    for (const attempt of this.#held.all()) attempt.abort(why, what);
  }

  /** Releases what still runs, at no cost to the jobs. Returns how many. */
  releaseAll(reason: string): number {
    return this.#held.all().filter((attempt) => attempt.release(reason)).length;
  }

  close(): void {
    this.#closed = true;
    this.#ticker?.();
    for (const attempt of this.#held.all()) attempt.over = true;
  }
}

/**
 * An array of slots and not a Map: with a Map that is filled and emptied without end, a drain of 500,000 jobs held 229-244 MB and paused for up to
 * 194 ms to collect; with slots 125 MB and 0.3 ms.
 */
class HeldAttempts {
  readonly summaries = new HeldSummaries();
  readonly #slots: (Attempt | undefined)[] = [];
  readonly #free: number[] = [];

  get size(): number {
    return this.#slots.length - this.#free.length;
  }

  add(attempt: Attempt): void {
    attempt.slot = this.#free.pop() ?? this.#slots.length;
    this.#slots[attempt.slot] = attempt;
    this.summaries.add(attempt.job.lease);
  }

  /** False: it was not held any more. */
  remove(attempt: Attempt): boolean {
    if (attempt.slot < 0) return false;
    this.#slots[attempt.slot] = undefined;
    this.#free.push(attempt.slot);
    attempt.slot = -1;
    this.summaries.remove(attempt.job.lease);
    return true;
  }

  at(slot: number): Attempt | undefined {
    return this.#slots[slot];
  }

  /** By a walk over the slots: for what happens rarely. */
  find(jobId: string): Attempt | undefined {
    return this.#slots.find((attempt) => attempt?.id === jobId);
  }

  all(): Attempt[] {
    return this.#slots.filter((attempt) => attempt !== undefined);
  }
}
