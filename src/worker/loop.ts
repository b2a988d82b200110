// A worker's loop makes one store call, `turn`. A slot is free only once the settlement of the job that ran in it is
// durable. The executor runs what the loop claims. The loop never decides which workers are dead and never touches
// another worker's jobs.
import { toStoredError, whyStoreReplaced } from "../job/errors.ts";
import type { ClaimedJob } from "../job/job.ts";
import type { HeldSummary, Lease } from "../job/lease.ts";
import type { CallOff } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import type { BeatAnswer, CorruptJob, HeldLease, Room, Settlement } from "../stores/port.ts";
import type { Attempt } from "./attempt.ts";
import { type Concurrency, Executor, type ExecutorOwner, Slots, Suspects } from "./executor.ts";
import type { WorkerContext } from "./life.ts";
import {
  afterClaimEvent,
  afterEvent,
  type ClaimEvent,
  type ClaimState,
  isTurning,
  type LoopEvent,
  type LoopState,
  StoreBackoff,
} from "./loop-state.ts";

/** What the loop reports to the life of its worker. */
export interface LoopOwner {
  /** The worker's row is no longer live. */
  disowned(): void;
  /** The store is not the one the worker registered with. */
  replaced(why: string): void;
  /**
   * Asks for a heartbeat soon, because what is held must be compared. `leases`: compare one by one instead of by
   * summary.
   */
  compareSoon(leases: boolean): void;
}

export interface LoopOptions {
  readonly concurrency: Concurrency;
  /** How long an idle worker waits before it polls without a wake-up. */
  readonly pollMs: number;
}

/** How long the end of a request waits for others to be settled with, at most. */
const GATHER_MS = 3;
const MAX_GATHERED = 200;

export class Loop implements ExecutorOwner {
  readonly #context: WorkerContext;
  readonly #life: LoopOwner;
  readonly #executor: Executor;
  readonly #slots: Slots;
  readonly #suspects = new Suspects();
  readonly #total: number;
  readonly #pollMs: number;
  readonly #backoff: StoreBackoff;
  #state: LoopState = "idle";
  #claims: ClaimState = "off";
  #finished: Settlement[] = [];
  /** Releases of claims that are unknown here; they take no slot. */
  #strays: Settlement[] = [];
  /** Held by the store but unknown here. */
  readonly #strangers = new SeenTwice();
  /** Run here but not held by the store. */
  readonly #forgotten = new SeenTwice();
  /** A summary that arrived during a turn; compared when the turn ends. */
  #unexplained: { readonly held: HeldSummary; readonly askedAtMono: number } | null = null;
  /** The epoch of the first claim. */
  #epoch: number | undefined;
  /** The next poll. */
  #timer: CallOff | undefined;
  /** When what has finished is settled, however little it is; undefined: nothing is gathered. */
  #gathered: CallOff | undefined;
  readonly #whenEmpty: (() => void)[] = [];
  readonly #due = (): void => this.#on("due");
  readonly #gather = (): void => {
    this.#gathered = undefined;
    if (this.#finished.length > 0) this.wake();
  };

  constructor(context: WorkerContext, life: LoopOwner, options: LoopOptions) {
    this.#context = context;
    this.#life = life;
    this.#pollMs = options.pollMs;
    this.#total = options.concurrency.total;
    this.#backoff = new StoreBackoff(context.clock, () => this.#on("retry"));
    this.#slots = new Slots(options.concurrency, [...context.kinds.keys()]);
    this.#executor = new Executor(context, this);
  }

  get heldCount(): number {
    return this.#executor.heldCount;
  }

  heldJobs(): readonly ClaimedJob[] {
    return this.#executor.jobs();
  }

  start(): void {
    this.#onClaims("start");
    this.wake();
  }

  /** Schedules a turn at the end of this event-loop tick: what finishes meanwhile goes into the same transaction. */
  wake(): void {
    this.#on("wake");
  }

  /**
   * Work may be ready, a cancel may have been requested, or the store is reachable again. A full worker does not query
   * the store for every wake-up.
   */
  ring(): void {
    if (this.#state === "backingOff") this.#backoff.signalled();
    else this.#on(this.#executor.heldCount < this.#total ? "wake" : "ring");
  }

  /** Stops claiming; running jobs continue. Resolves when nothing is held and no claim is under way. */
  drain(): Promise<void> {
    this.#onClaims("stop");
    this.wake();
    return new Promise((resolve) =>
      (this.#executor.heldCount === 0 && !isTurning(this.#state)) || this.#state === "closed"
        ? resolve()
        : this.#whenEmpty.push(resolve),
    );
  }

  /** Tells every handler to stop. */
  interruptAll(why: "shutdown" | "lease-lost", what: string): void {
    this.#executor.interruptAll(why, what);
  }

  /** Releases what still runs, at no cost to the jobs. Returns how many. */
  releaseAll(reason: string): number {
    return this.#executor.releaseAll(reason);
  }

  /** Ends the loop: it claims, settles and retries nothing any more. */
  close(): void {
    this.#on("close");
    this.#onClaims("stop");
    this.#timer?.();
    this.#gathered?.();
    this.#backoff.close();
    this.#executor.close();
    this.#nowEmpty();
  }

  /**
   * Compares what the store says we hold with what we run: by count and digest, and lease by lease only if these
   * differ.
   */
  compare({ held, leases }: Pick<BeatAnswer, "held" | "leases">, askedAtMono: number): void {
    if (leases) this.#compareLeases(leases, askedAtMono);
    else if (isTurning(this.#state)) this.#unexplained = { held, askedAtMono };
    else this.#compareSummary(held, askedAtMono);
    if (this.#claims === "withheld") this.wake();
  }

  /**
   * The store read its summary at some moment between `askedAtMono` and now. Each turn and each commit changes what
   * both sides hold, so the summary must match what was held here after one of them. While a turn is under way it may
   * also match what that turn brings, so it is compared when the turn ends.
   */
  #compareSummary(held: HeldSummary, askedAtMono: number): void {
    if (!this.#executor.hasHeld(held, askedAtMono)) return this.#life.compareSoon(true);
    this.#strangers.clear();
    this.#forgotten.clear();
  }

  /**
   * Compares in both directions. A lease that is unknown here is a claim whose response was lost: release it. An
   * attempt the store does not know was taken from us, or was claimed from a store that lost the claim in a crash:
   * abort its handler.
   */
  #compareLeases(held: readonly HeldLease[], askedAtMono: number): void {
    const mono = this.#context.clock.mono();
    const mayConfirm = !isTurning(this.#state);
    const ours = this.#executor.ids();
    const unknown = new Map(held.filter(({ lease }) => !ours.has(lease.jobId)).map((one) => [nameOf(one.lease), one]));
    for (const name of this.#strangers.check([...unknown.keys()], askedAtMono, mono, mayConfirm))
      this.#giveBack(unknown.get(name)!);
    const listed = new Set(held.map(({ lease }) => nameOf(lease)));
    const running = this.#executor.runningSince(askedAtMono).map((one) => [nameOf(one.job.lease), one] as const);
    const forgotten = new Map(running.filter(([name]) => !listed.has(name)));
    for (const name of this.#forgotten.check([...forgotten.keys()], askedAtMono, mono, mayConfirm)) {
      const one = forgotten.get(name)!;
      one.forgotten(`the store does not know that worker ${this.#context.worker} holds job ${one.id}`);
    }
    if (this.#strangers.pending > 0) this.#life.compareSoon(true);
  }

  #giveBack({ lease, counters }: HeldLease): void {
    const reason = "its worker never got the answer to the claim";
    this.#context.events.emit("job.released", { jobId: lease.jobId, reason });
    const view = { id: lease.jobId, state: "running", counters } as const;
    this.#strays.push({ lease, change: transitions.release(view, reason) });
    this.wake();
  }

  // ---- reports from the executor

  finished(settlement: Settlement): void {
    this.#finished.push(settlement);
    if (this.#isGathering(settlement.lease.kind)) this.#gathered ??= this.#context.clock.after(GATHER_MS, this.#gather);
    else this.wake();
  }

  /** Requests end one by one while others are in flight: a turn for each few of them is a transaction for each few. */
  #isGathering(kind: string): boolean {
    const { length } = this.#finished;
    return length < MAX_GATHERED && length * 2 < this.#executor.heldCount && this.#slots.gathers(kind);
  }

  freed(attempt: Attempt): void {
    this.#free(attempt);
    this.wake();
  }

  /** A durable step is progress: the job is fresh again. */
  stepped({ id }: Attempt): void {
    this.#suspects.freed(id);
  }

  ticked(): void {
    this.#on("tick");
  }

  // ---- the loop

  #on(event: LoopEvent): void {
    const before = this.#state;
    this.#state = afterEvent(before, event);
    if (this.#state === before) return;
    if (this.#state === "scheduled") this.#context.clock.soon(this.#due);
    else if (event === "due") void this.#turn();
  }

  #onClaims(event: ClaimEvent): void {
    this.#claims = afterClaimEvent(this.#claims, event);
  }

  async #turn(): Promise<void> {
    this.#executor.checkTrust();
    const finished = this.#finished;
    const settlements = this.#strays.length === 0 ? finished : [...finished, ...this.#strays];
    const { store, clock, trust, worker } = this.#context;
    this.#onClaims(clock.mono() < trust.untilMono ? "trusted" : "untrusted");
    if (this.#claims === "withheld") this.#life.compareSoon(false);
    const room = this.#room(this.#executor.heldCount - finished.length, finished);
    this.#timer?.();
    this.#timer = undefined;
    this.#finished = [];
    this.#strays = [];
    try {
      const answer = await store.turn(worker, settlements, room);
      if (this.#state === "closed") return;
      this.#backoff.succeeded();
      for (let i = 0; i < settlements.length; i++)
        this.#free(this.#executor.settled(settlements[i]!, answer.settled[i]!));
      if (answer.replaced !== undefined) return this.#life.replaced(answer.replaced);
      if (!answer.live) return this.#life.disowned();
      for (const jobId of answer.cancels) this.#executor.cancel(jobId);
      for (const job of answer.corrupt ?? []) this.#corrupt(job);
      for (const job of answer.claimed) this.#took(job);
      if (this.#slots.tookAll(answer.claimed)) this.wake();
      this.#sleep(answer.nextDueInMs);
    } catch (thrown) {
      this.#storeFailed(settlements, thrown);
    } finally {
      this.#executor.markHeld();
      this.#on("ended");
      this.#explain();
      if (this.#executor.heldCount === 0) this.#nowEmpty();
    }
  }

  #explain(): void {
    const unexplained = this.#unexplained;
    this.#unexplained = null;
    if (unexplained && this.#state !== "closed") this.#compareSummary(unexplained.held, unexplained.askedAtMono);
  }

  #room(running: number, ending: readonly Settlement[]): Room {
    if (this.#claims !== "on" || !this.#context.trust.inContact) return Slots.NONE;
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
    this.#executor.begin(job);
  }

  /** Its slot is free, and the job behind it may be ready, so claim again at once. */
  #corrupt({ lease, kind, change }: CorruptJob): void {
    this.#context.events.emit("job.quarantined", { jobId: lease.jobId, kind, reason: change.reason! });
    this.wake();
  }

  #supersede(jobId: string): void {
    const former = this.#executor.supersede(jobId);
    if (former) this.#finished = this.#finished.filter(({ lease }) => lease.jobId !== jobId);
    this.#free(former);
  }

  #free(attempt: Attempt | undefined): void {
    if (!attempt) return;
    this.#slots.freed(attempt.job.kind);
    this.#suspects.freed(attempt.id);
  }

  #sleep(nextDueInMs: number | null): void {
    if (this.#claims === "off") return;
    const ms = Math.min(this.#pollMs, nextDueInMs ?? this.#pollMs);
    this.#timer ??= this.#context.clock.after(Math.max(1, ms), () => {
      this.#timer = undefined;
      this.wake();
    });
  }

  /**
   * It is unknown whether the transaction was applied. The same settlements are sent again, which is safe, and what is
   * held is compared.
   */
  #storeFailed(settlements: readonly Settlement[], thrown: unknown): void {
    if (this.#state === "closed") return;
    const replaced = whyStoreReplaced(thrown);
    if (replaced !== null) return this.#life.replaced(replaced);
    const ours = settlements.filter((settlement) => this.#executor.holds(settlement));
    this.#finished = [...ours, ...this.#finished];
    this.#on("failed");
    const retryInMs = this.#backoff.failed();
    this.#context.events.emit("store.failed", {
      doing: "settling and claiming",
      error: toStoredError(thrown),
      retryInMs,
    });
    this.#life.compareSoon(false);
  }

  #nowEmpty(): void {
    for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }
}

function nameOf({ jobId, epoch, fence }: Lease): string {
  return `${jobId} ${epoch} ${fence}`;
}

/**
 * Suspicions that count only when two checks in a row have them. One check is not enough, because its result may have
 * changed since it was read. The second check must have been requested after the first was processed: after a blocked
 * loop, many old responses arrive at once.
 */
class SeenTwice {
  #noticed = new Map<string, number>();

  /** What the latest check showed and the next one may confirm. */
  get pending(): number {
    return this.#noticed.size;
  }

  /** A check that shows nothing: the next one can't confirm what was noticed before it. */
  clear(): void {
    if (this.#noticed.size > 0) this.#noticed = new Map();
  }

  /**
   * Returns the suspicions of this check that are confirmed, and keeps the rest for the next one. `askedAtMono`: when
   * the check was requested; `nowMono`: now. `mayConfirm` false: something under way may explain all of it.
   */
  check(names: readonly string[], askedAtMono: number, nowMono: number, mayConfirm: boolean): ReadonlySet<string> {
    const confirmed = new Set<string>();
    const noticed = new Map<string, number>();
    for (const name of names) {
      const atMono = this.#noticed.get(name);
      if (mayConfirm && atMono !== undefined && askedAtMono > atMono) confirmed.add(name);
      else noticed.set(name, atMono ?? nowMono);
    }
    this.#noticed = noticed;
    return confirmed;
  }
}
