// The attempts that a worker runs, and how much it holds. The executor holds each attempt until its settlement is
// durable, and notifies all attempts of deadlines, lost leases and shutdown. It decides nothing about the jobs of other
// workers.
import type { HeldSuspects } from "../job/isolation.ts";
import type { ClaimedJob } from "../job/job.ts";
import { type HeldSummary, type Lease, leaseHash } from "../job/lease.ts";
import type { CallOff } from "../job/time.ts";
import type { Change } from "../job/transitions.ts";
import type { Room, Settlement, WriteAnswer } from "../stores/port.ts";
import { Attempt, type AttemptOwner } from "./attempt.ts";
import { reportStale } from "./calls.ts";
import type { WorkerContext } from "./life.ts";

/** What the executor reports to the worker's loop. */
export interface ExecutorOwner {
  /** An attempt has ended: settle it. */
  finished(settlement: Settlement, attempt: Attempt): void;
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

  /** Attempts that began before that instant (monotonic), are still running, and are not about to be abandoned. */
  runningSince(mono: number): readonly Attempt[] {
    return this.#held.all().filter(({ startedMono, isRunning }) => startedMono < mono && isRunning);
  }

  /** Records what is held now as something the store may show from here on: a turn or a commit has ended. */
  markHeld(): void {
    this.#held.summaries.mark(this.#context.clock.mono());
  }

  /** Whether this summary matches what was held at some moment since then (monotonic). */
  hasHeld(summary: HeldSummary, sinceMono: number): boolean {
    return this.#held.summaries.has(summary, sinceMono);
  }

  jobs(): readonly ClaimedJob[] {
    return this.#held.all().map(({ job }) => job);
  }

  /** Holds a claimed job. The loop starts it. */
  hold(job: ClaimedJob): Attempt {
    const { events, clock } = this.#context;
    const attempt = new Attempt(this.#context, this, job);
    this.#held.add(attempt);
    if (events.has("job.claimed"))
      events.emit("job.claimed", { jobId: attempt.id, kind: job.kind, attempt: attempt.attempt });
    this.#ticker ??= clock.after(TICK_MS, () => this.#tick());
    return attempt;
  }

  /** It is not this worker's any more, and has not started. */
  drop(attempt: Attempt): void {
    attempt.ended = true;
    this.#held.remove(attempt);
  }

  ended(attempt: Attempt, change: Change): void {
    const { job, slot } = attempt;
    this.#loop.finished({ lease: job.lease, change, slot }, attempt);
  }

  committed(attempt: Attempt): void {
    if (!this.#held.remove(attempt)) return;
    this.markHeld();
    this.#loop.freed(attempt);
  }

  stepped(attempt: Attempt): void {
    this.#loop.stepped(attempt);
  }

  /** The store has responded to a settlement. Returns the attempt that is no longer held. */
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

  /**
   * This worker claimed a newer attempt of the same job while an older one, fenced out as overdue, still runs. The
   * older one has ended.
   */
  supersede(jobId: string): Attempt | undefined {
    const former = this.#held.find(jobId);
    if (!former) return undefined;
    former.abort("lease-lost", `job ${jobId} was fenced out and has a newer attempt`);
    former.ended = true;
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
    for (const attempt of this.#held.all()) attempt.ended = true;
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

  /** False: it was no longer held. */
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

  /** Walks all slots: only for rare events. */
  find(jobId: string): Attempt | undefined {
    return this.#slots.find((attempt) => attempt?.id === jobId);
  }

  all(): Attempt[] {
    return this.#slots.filter((attempt) => attempt !== undefined);
  }
}

// What a worker holds, in three views: how many jobs it may run at once, in total and of each kind; the suspects among
// them; and a summary that its store can compare.

export interface Concurrency {
  /** The maximum number of jobs in flight together. */
  readonly total: number;
  /** The maximum in flight of one kind. */
  readonly perKind: ReadonlyMap<string, number>;
  /** The maximum in flight of all kinds together that `perKind` does not name; omitted: only `total` limits them. */
  readonly others?: number;
  /** Kinds of which thousands may be in flight (requests): their ends are gathered (loop.ts). Omitted: there are none. */
  readonly gathered?: ReadonlySet<string>;
}

export class Slots {
  static readonly NONE: Room = { total: 0, kinds: [] };

  readonly #concurrency: Concurrency;
  readonly #kinds: readonly string[];
  readonly #running = new Map<string, number>();
  /** While no kind is limited, the rooms of all kinds are the same list. */
  readonly #unlimited: boolean;
  /** The latest list of them: with a thousand kinds a new one in every turn costs more than the rest of the loop. */
  #open: Room = Slots.NONE;
  readonly #every: Room["kinds"];

  constructor(concurrency: Concurrency, kinds: readonly string[]) {
    this.#concurrency = concurrency;
    this.#kinds = kinds;
    this.#unlimited = concurrency.perKind.size === 0;
    this.#every = kinds.map((kind) => ({ kind, room: concurrency.total }));
  }

  took(kind: string): void {
    if (!this.#unlimited) this.#running.set(kind, (this.#running.get(kind) ?? 0) + 1);
  }

  freed(kind: string): void {
    if (!this.#unlimited) this.#running.set(kind, (this.#running.get(kind) ?? 1) - 1);
  }

  /**
   * What can be claimed while `running` handlers are at work. `ending` are the leases settled in the same transaction
   * as the claim: their slots are free in it.
   */
  room(running: number, ending: readonly { readonly lease: { readonly kind: string } }[] = []): Room {
    const total = Math.max(0, this.#concurrency.total - running);
    if (this.#isPlain) {
      if (total !== this.#open.total)
        this.#open = total === 0 ? Slots.NONE : { total, kinds: this.#kinds.map((kind) => ({ kind, room: total })) };
      return this.#open;
    }
    const inFlight = this.#unlimited ? this.#running : new Map(this.#running);
    if (!this.#unlimited) for (const [kind, count] of countsOf(ending)) inFlight.set(kind, inFlight.get(kind)! - count);
    const { perKind, others = Number.POSITIVE_INFINITY } = this.#concurrency;
    const unnamed = this.#kinds.filter((kind) => !perKind.has(kind));
    const ofOthers = this.#unlimited ? 0 : unnamed.reduce((sum, kind) => sum + (inFlight.get(kind) ?? 0), 0);
    const shared = Math.max(0, Math.min(total, others - ofOthers));
    const kinds = this.#kinds.map((kind) => {
      const limit = perKind.get(kind);
      if (limit !== undefined) return { kind, room: Math.max(0, Math.min(total, limit - (inFlight.get(kind) ?? 0))) };
      return others === Number.POSITIVE_INFINITY ? { kind, room: shared } : { kind, room: shared, shares: true };
    });
    return { total, kinds: kinds.filter(({ room }) => room > 0) };
  }

  /** All kinds, if none is limited: `total` alone limits what is claimed of each. Always the same list. */
  get everyKind(): Room["kinds"] | null {
    return this.#isPlain ? this.#every : null;
  }

  get #isPlain(): boolean {
    return this.#unlimited && this.#concurrency.others === undefined;
  }

  /** Whether one turn may settle many of this kind, because many are in flight. */
  gathers(kind: string): boolean {
    return this.#concurrency.gathered?.has(kind) === true;
  }
}

/** Stretches of one kind: most turns settle one, and asking a map for each job took longer than the rest of the room. */
function* countsOf(ending: readonly { readonly lease: { readonly kind: string } }[]): Iterable<[string, number]> {
  for (let from = 0, to = 0; from < ending.length; from = to) {
    const { kind } = ending[from]!.lease;
    while (ending[to]?.lease.kind === kind) to++;
    yield [kind, to - from];
  }
}

// The suspects that a worker holds, and how many more it may take (isolation.ts). A job is a suspect until it ends or
// writes a durable step.

export class Suspects {
  readonly #together = new Map<string, number>();
  #oldestFirst = false;
  /** How many others are at work that no row knows of. Next to one of them no job may be the only suspect. */
  apart = 0;

  get count(): number {
    return this.#together.size;
  }

  took({ lease, together }: ClaimedJob): void {
    if (together !== null) this.#together.set(lease.jobId, together);
  }

  /** Each time the last suspect is gone, the worker switches to the other end of the waiting suspects. */
  freed(jobId: string): void {
    if (this.#together.delete(jobId) && this.#together.size === 0) this.#oldestFirst = !this.#oldestFirst;
  }

  /**
   * Excludes those settled in the same transaction as the claim. Undefined: it holds no suspect, and any may come
   * first.
   */
  held(ending: readonly { readonly lease: { readonly jobId: string } }[]): HeldSuspects | undefined {
    if (this.apart > 0) return { count: this.count + this.apart, together: 1, oldestFirst: this.#oldestFirst };
    if (this.#together.size === 0)
      return this.#oldestFirst ? { count: 0, together: null, oldestFirst: true } : undefined;
    const left = new Map(this.#together);
    for (const { lease } of ending) left.delete(lease.jobId);
    if (left.size === 0) return { count: 0, together: null, oldestFirst: !this.#oldestFirst };
    let together = Number.POSITIVE_INFINITY;
    for (const one of left.values()) together = Math.min(together, one);
    return { count: left.size, together, oldestFirst: this.#oldestFirst };
  }
}

// The summary of what a worker holds, now and at the ends of its latest turns and commits. The worker keeps running
// while it asks the store for its summary, so the result has to match one of these, not necessarily the latest.

/** A busy worker takes some hundred turns while a slow store responds to one heartbeat. */
const KEPT = 1_024;
/** When the mark was made, the count, the digest. */
const FIELDS = 3;

export class HeldSummaries {
  #count = 0;
  #digest = 0;
  /** Numbers only, written in place, because this happens on every turn. */
  readonly #marks = new Float64Array(KEPT * FIELDS);
  #marked = 0;

  constructor() {
    this.mark(Number.NEGATIVE_INFINITY);
  }

  add(lease: Lease): void {
    this.#count++;
    this.#digest += leaseHash(lease);
  }

  remove(lease: Lease): void {
    this.#count--;
    this.#digest -= leaseHash(lease);
  }

  /** From this moment (monotonic) on, the store may show what is held now. */
  mark(mono: number): void {
    const at = (this.#marked++ % KEPT) * FIELDS;
    this.#marks[at] = mono;
    this.#marks[at + 1] = this.#count;
    this.#marks[at + 2] = this.#digest;
  }

  /** Whether this summary was true at some moment since then. False if that is too long ago to be known. */
  has({ count, digest }: HeldSummary, sinceMono: number): boolean {
    for (let mark = this.#marked - 1; mark >= 0 && mark >= this.#marked - KEPT; mark--) {
      const at = (mark % KEPT) * FIELDS;
      if (this.#marks[at + 1] === count && this.#marks[at + 2] === digest) return true;
      // It was true until the next mark, which is not earlier than that moment.
      if (this.#marks[at]! < sinceMono) return false;
    }
    return false;
  }
}
