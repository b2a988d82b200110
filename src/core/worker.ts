// One worker: its loop is one store call, `settleAndClaim`, and a slot is free only when the settlement of what ran in it is
// durable. What it claims is run by the runner. It never decides who is dead and never touches another worker's jobs.
import type { CallOff, Clock, Random } from "./clock.ts";
import { toStoredError, whyStoreReplaced } from "./errors.ts";
import type { Emitter } from "./events.ts";
import type { ClaimedJob } from "./job.ts";
import type { RunnableKind } from "./kind.ts";
import type { Lease } from "./lease.ts";
import type { Held } from "./held-jobs.ts";
import { Runner } from "./runner.ts";
import type { DraftMaker } from "./run.ts";
import { WorkerRunHost } from "./run-host.ts";
import { type Concurrency, Slots } from "./slots.ts";
import { StoreRetry } from "./store-retry.ts";
import { Suspects } from "./suspects.ts";
import type { BeatAnswer, CorruptJob, Room, Settlement, Store } from "./store.ts";
import * as transitions from "./transitions.ts";
import { TwiceSeen } from "./twice-seen.ts";

export interface WorkerDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  readonly draft: DraftMaker;
  /** Throws if the contract is not one of the program's own; left out: all are taken. */
  readonly assertKnown?: (contract: { readonly name: string }) => void;
  /** Until when (monotonic) the worker may trust what it holds. */
  readonly trustedUntil: () => number;
  /** The row is not live any more. */
  readonly disowned: () => void;
  /** The store is not the one that the worker registered with. */
  readonly replaced: (why: string) => void;
  /** Whether the session that speaks for this worker is there. */
  readonly inContact: () => boolean;
  /** Asks for a heartbeat now: an answer was lost and what is held must be compared. */
  readonly compareSoon: () => void;
}

export interface WorkerOptions {
  readonly id: string;
  readonly concurrency: Concurrency;
  /** How long an idle worker waits before it asks without having been woken. */
  readonly pollMs: number;
}

export class Worker {
  readonly id: string;
  readonly #deps: WorkerDeps;
  readonly #runner: Runner;
  readonly #runHost: WorkerRunHost;
  readonly #slots: Slots;
  readonly #total: number;
  readonly #pollMs: number;
  #finished: Settlement[] = [];
  /** Releases of claims that nobody here remembers; they take no slot. */
  #strays: Settlement[] = [];
  /** Held by the store but unknown here. */
  readonly #strangers = new TwiceSeen();
  /** Run here but not held by the store. */
  readonly #forgotten = new TwiceSeen();
  /** Of the first claim. */
  #epoch: number | undefined;
  #turning = false;
  /** Woken during a turn: something may have become ready after the turn's claim. */
  #again = false;
  #scheduled = false;
  /** The bell rang while there was no room: looked at with the next tick. */
  #rung = false;
  #claiming = false;
  readonly #suspects = new Suspects();
  /** Silent for longer than the lease allows: what it claimed now it would have to give back at once. A heartbeat ends it. */
  #withheld = false;
  #timer: CallOff | undefined;
  readonly #retry: StoreRetry;
  #over = false;
  readonly #whenEmpty: (() => void)[] = [];

  constructor(deps: WorkerDeps, options: WorkerOptions) {
    this.#deps = deps;
    this.id = options.id;
    this.#pollMs = options.pollMs;
    this.#total = options.concurrency.total;
    this.#retry = new StoreRetry(deps.clock, () => this.wake());
    this.#slots = new Slots(options.concurrency, [...deps.kinds.keys()]);
    this.#runner = new Runner({
      ...deps,
      worker: options.id,
      finished: (settlement) => {
        this.#finished.push(settlement);
        this.wake();
      },
      ticked: () => {
        if (this.#rung) this.wake();
      },
    });
    this.#runHost = new WorkerRunHost({
      ...deps,
      runner: this.#runner,
      // A durable step is progress: the job is fresh again.
      stepped: (jobId) => this.#suspects.freed(jobId),
      committed: (held) => {
        if (this.#runner.forget(held)) this.#freed(held);
        this.wake();
      },
    });
  }

  get heldCount(): number {
    return this.#runner.heldCount;
  }

  heldJobs(): readonly ClaimedJob[] {
    return this.#runner.jobs();
  }

  start(): void {
    this.#claiming = true;
    this.wake();
  }

  /** Takes a turn at the end of this tick of the event loop: what finishes meanwhile goes into the same transaction. */
  wake(): void {
    if (this.#scheduled || this.#retry.isWaiting || this.#over) return;
    this.#scheduled = true;
    this.#deps.clock.soon(() => {
      this.#scheduled = false;
      void this.#turn();
    });
  }

  /** Somebody may have made work ready, or asked for a cancel, or the store is back. A full worker does not run to the store for every ring. */
  ring(): void {
    if (this.#retry.isWaiting) this.#retry.signalled();
    else if (this.#runner.heldCount < this.#total) this.wake();
    else this.#rung = true;
  }

  /** No more claims; what runs goes on. Resolves when nothing is held and no claim is under way. */
  drain(): Promise<void> {
    this.#claiming = false;
    this.wake();
    return new Promise((resolve) =>
      (this.#runner.heldCount === 0 && !this.#turning) || this.#over ? resolve() : this.#whenEmpty.push(resolve),
    );
  }

  /** Tells every handler to stop. */
  interruptAll(why: "shutdown" | "lease-lost", what: string): void {
    this.#runner.interruptAll(why, what);
  }

  /** Gives back what still runs, at no cost to the jobs. Answers how many. */
  releaseAll(reason: string): number {
    return this.#runner.releaseAll(reason);
  }

  /** The end: nothing is claimed, settled or retried any more. */
  close(): void {
    this.#over = true;
    this.#claiming = false;
    this.#timer?.();
    this.#retry.close();
    this.#runner.close();
    for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }

  /**
   * Compares what the store says we hold with what we run, in both directions. What nobody here knows is a claim whose answer was lost:
   * it is given back. What the store does not know was taken from us, or claimed of a store that has forgotten it in a crash: it is told.
   */
  compare(held: BeatAnswer["held"], askedAtMono: number): void {
    const mono = this.#deps.clock.mono();
    const ours = this.#runner.ids();
    const unknown = new Map(held.filter(({ lease }) => !ours.has(lease.jobId)).map((one) => [nameOf(one.lease), one]));
    for (const name of this.#strangers.look([...unknown.keys()], askedAtMono, mono, !this.#turning))
      this.#giveBack(unknown.get(name)!);
    const listed = new Set(held.map(({ lease }) => nameOf(lease)));
    const running = this.#runner.runningSince(askedAtMono).map((one) => [nameOf(one.job.lease), one] as const);
    const forgotten = new Map(running.filter(([name]) => !listed.has(name)));
    for (const name of this.#forgotten.look([...forgotten.keys()], askedAtMono, mono, !this.#turning)) {
      const one = forgotten.get(name)!;
      this.#runner.forgotten(one, `the store does not know that worker ${this.id} holds job ${one.run.id}`);
    }
    if (this.#withheld) this.wake();
    if (this.#strangers.pending > 0) this.#deps.compareSoon();
  }

  #giveBack({ lease, counters }: BeatAnswer["held"][number]): void {
    const reason = "its worker never got the answer to the claim";
    this.#deps.events.emit("job.released", { jobId: lease.jobId, reason });
    const view = { id: lease.jobId, state: "running", counters } as const;
    this.#strays.push({ lease, change: transitions.release(view, reason) });
    this.wake();
  }

  // ---- the loop

  async #turn(): Promise<void> {
    // Woken before a failure and due after it: the next try is coming.
    if (this.#over || this.#retry.isWaiting) return;
    if (this.#turning) {
      this.#again = true;
      return;
    }
    this.#runner.checkTrust();
    const finished = this.#finished;
    const settlements = this.#strays.length === 0 ? finished : [...finished, ...this.#strays];
    const running = this.#runner.heldCount - finished.length;
    const { clock } = this.#deps;
    this.#withheld = this.#claiming && clock.mono() >= this.#deps.trustedUntil();
    const room = this.#room(running, finished);
    if (this.#withheld) this.#deps.compareSoon();
    this.#timer?.();
    this.#timer = undefined;
    this.#finished = [];
    this.#strays = [];
    this.#rung = false;
    this.#turning = true;
    try {
      const answer = await this.#deps.store.settleAndClaim(this.id, settlements, room);
      if (this.#over) return;
      this.#retry.succeeded();
      for (let i = 0; i < settlements.length; i++)
        this.#freed(this.#runner.settled(settlements[i]!, answer.settled[i]!));
      if (answer.replaced !== undefined) return this.#deps.replaced(answer.replaced);
      if (!answer.live) return this.#deps.disowned();
      for (const jobId of answer.cancels) this.#runner.cancel(jobId);
      for (const job of answer.corrupt ?? []) this.#corrupt(job);
      for (const job of answer.claimed) this.#took(job);
      this.#sleep(answer.nextDueInMs);
    } catch (thrown) {
      this.#storeFailed(settlements, thrown);
    } finally {
      this.#turning = false;
      if (this.#finished.length > 0 || this.#again) this.wake();
      this.#again = false;
      if (this.#runner.heldCount === 0) for (const resolve of this.#whenEmpty.splice(0)) resolve();
    }
  }

  #room(running: number, ending: readonly Settlement[]): Room {
    if (!this.#claiming || this.#withheld || !this.#deps.inContact()) return Slots.NONE;
    const room = this.#slots.room(running, ending);
    const suspects = this.#suspects.held(ending);
    return suspects ? { ...room, suspects } : room;
  }

  #took(job: ClaimedJob): void {
    const { jobId, epoch, fence } = job.lease;
    // Fence 1 under a later epoch may be the second claim of a job: a store that crashed may have forgotten the first.
    if (fence > 1 || epoch !== (this.#epoch ??= epoch)) this.#supersede(jobId);
    this.#slots.took(job.kind);
    this.#suspects.took(job);
    this.#runner.begin(job, this.#runHost);
  }

  /** Its place is free, and what is behind it may be ready: it is asked for at once. */
  #corrupt({ lease, kind, change }: CorruptJob): void {
    this.#deps.events.emit("job.quarantined", { jobId: lease.jobId, kind, reason: change.reason! });
    this.#again = true;
  }

  #supersede(jobId: string): void {
    const former = this.#runner.supersede(jobId);
    if (former) this.#finished = this.#finished.filter(({ lease }) => lease.jobId !== jobId);
    this.#freed(former);
  }

  #freed(held: Held | undefined): void {
    if (!held) return;
    this.#slots.freed(held.job.kind);
    this.#suspects.freed(held.job.lease.jobId);
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
  #storeFailed(settlements: readonly Settlement[], thrown: unknown): void {
    if (this.#over) return;
    const replaced = whyStoreReplaced(thrown);
    if (replaced !== null) return this.#deps.replaced(replaced);
    const ours = settlements.filter((settlement) => this.#runner.holds(settlement));
    this.#finished = [...ours, ...this.#finished];
    const retryInMs = this.#retry.failed();
    this.#deps.events.emit("store.failed", { doing: "settling and claiming", error: toStoredError(thrown), retryInMs });
    this.#deps.compareSoon();
  }
}

function nameOf({ jobId, epoch, fence }: Lease): string {
  return `${jobId} ${epoch} ${fence}`;
}
