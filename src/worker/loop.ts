// A worker's loop makes one store call, `turn`. A slot is free when the handler that ran in it has ended: the next turn settles
// it, and a job that was claimed ahead may start meanwhile. At most `concurrency` + MAX_AHEAD jobs have ended and are not
// settled; after a crash these run again. The executor runs what the loop claims. The loop never decides which workers are dead and never touches
// another worker's jobs.
import { toStoredError, whyStoreReplaced } from "../job/errors.ts";
import type { ClaimedJob } from "../job/job.ts";
import { AheadCells, MAX_WAIT_MS } from "../recovery/ahead-cells.ts";
import type { HeldSummary, Lease } from "../job/lease.ts";
import type { CallOff } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import type {
  BeatAnswer,
  CorruptJob,
  HeldLease,
  Pending,
  Room,
  RoomOfKind,
  Settlement,
  Wakeup,
} from "../stores/port.ts";
import { Ahead, MAX_AHEAD, mayWait } from "./ahead.ts";
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
  PollPace,
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
  /** How many jobs are claimed ahead. Omitted: as measured. */
  readonly claimsAhead?: number;
}

interface MarkedKinds {
  readonly version: number;
  readonly kinds: Room["kinds"];
}

/**
 * The maximum number of jobs claimed in one turn. A worker with 5,000 slots fills them in ten turns, because its loop stands still while 5,000 jobs are
 * claimed and started at once.
 */
const MAX_PER_TURN = 500;
/** For how long jobs are started at a stretch. Then other callbacks have their turn. */
const STARTS_MS = 10;
/** One in this many ends is measured. */
const MEASURED = 8;
/** How often a worker checks whether what it claimed has begun, before it claims more. */
const OPENING_MS = 5;
/** How long the end of a request waits for others to be settled with, at most. */
const GATHER_MS = 8;
/** Where heartbeats poll, how long a worker waits for the next one before it polls itself. */
const BEAT_LATE_MS = 1_000;
/** As many as one turn claims: with fewer, the rest of what is in flight would have turns of its own. */
const MAX_GATHERED = MAX_PER_TURN;

export class Loop implements ExecutorOwner {
  readonly #context: WorkerContext;
  readonly #life: LoopOwner;
  readonly #executor: Executor;
  readonly #slots: Slots;
  readonly #suspects = new Suspects();
  readonly #total: number;
  /** How often it polls. */
  readonly pace: PollPace;
  readonly #backoff: StoreBackoff;
  #state: LoopState = "idle";
  #claims: ClaimState = "off";
  #finished: Settlement[] = [];
  /** How many attempts the turn that is under way settles. */
  #inTurn = 0;
  readonly #ahead: Ahead;
  /** Kinds whose jobs may wait for a slot. */
  readonly #mayWait: ReadonlySet<string>;
  readonly #fair: ReadonlySet<string>;
  #everyAhead: MarkedKinds | null = null;
  /** A claimed job is started, and others of its turn come next. */
  #starting = false;
  #filling = false;
  #fillsLater = false;
  #ends = 0;
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
  /** Nothing is known to come by time alone, as of the latest turn, and when that had ended. */
  #expectsNothing = false;
  #turnedMono = Number.NEGATIVE_INFINITY;
  /** When the latest heartbeat that polled was sent. */
  #polledMono = Number.NEGATIVE_INFINITY;
  /** Kinds whose jobs begin a few at a time. */
  readonly #opening: ReadonlyMap<string, () => boolean>;
  /** When it claims more of those; undefined: nothing of them has yet to begin. */
  #opened: CallOff | undefined;
  /** When what has finished is settled, however little it is; undefined: nothing is gathered. */
  #gathered: CallOff | undefined;
  readonly #whenEmpty: (() => void)[] = [];
  readonly #whenNoSuspects: (() => void)[] = [];
  readonly #due = (): void => this.#on("due");
  readonly #gather = (): void => {
    this.#gathered = undefined;
    if (this.#finished.length > 0) this.wake();
  };

  readonly #openMore = (): void => {
    const isOpening = [...this.#opening.values()].some((one) => one());
    this.#opened = isOpening ? this.#context.clock.after(OPENING_MS, this.#openMore) : undefined;
    if (!isOpening) this.wake();
  };

  constructor(context: WorkerContext, life: LoopOwner, options: LoopOptions, cells = new AheadCells()) {
    this.#context = context;
    this.#life = life;
    const changed = (proved: boolean): void => this.#paceChanged(proved, options.pollMs);
    this.pace = new PollPace(context.clock, options.pollMs, changed, context.store.wakesSurely);
    this.#total = options.concurrency.total;
    this.#backoff = new StoreBackoff(context.clock, () => this.#on("retry"));
    this.#ahead = new Ahead(cells, options.claimsAhead);
    const kinds = [...context.kinds.values()].map(({ settings }) => settings);
    const { perKind, others } = options.concurrency;
    const limited = (kind: string): boolean => perKind.has(kind) || others !== undefined;
    this.#mayWait = new Set(kinds.filter((kind) => mayWait(kind) && !limited(kind.name)).map(({ name }) => name));
    this.#fair = new Set(kinds.filter(({ fair }) => fair).map(({ name }) => name));
    this.#slots = new Slots(options.concurrency, [...context.kinds.keys()]);
    this.#opening = new Map(
      [...context.kinds].flatMap(([kind, { isOpening }]) => (isOpening ? [[kind, isOpening]] : [])),
    );
    this.#executor = new Executor(context, this);
  }

  get heldCount(): number {
    return this.#executor.heldCount;
  }

  /** Of those, how many have ended. */
  get unsettledCount(): number {
    return this.#finished.length + this.#inTurn;
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
   * A wake-up: work may be ready, a cancel may have been requested, or the store is reachable again. A full worker does
   * not query the store for every one of them.
   */
  readonly heard = (what: Wakeup): void => {
    if (what === "proof") this.pace.proved();
    else if (this.#state === "backingOff") this.#backoff.signalled();
    else this.#on(this.#executor.heldCount < this.#total ? "wake" : "hint");
  };

  /** Stops claiming; running jobs continue. Resolves when nothing is held and no claim is under way. */
  drain(): Promise<void> {
    this.#onClaims("stop");
    this.#releaseWaiting(() => true, "its worker stops");
    this.wake();
    return new Promise((resolve) =>
      (this.#executor.heldCount === 0 && !isTurning(this.#state)) || this.#state === "closed"
        ? resolve()
        : this.#whenEmpty.push(resolve),
    );
  }

  /** Whether a job that was in flight at a death is held. */
  get holdsSuspects(): boolean {
    return this.#suspects.count > 0;
  }

  /**
   * Does work that may end the process and of which no row knows: messages that were in hand at a death. Meanwhile no suspect is claimed, and with `alone` it
   * begins when none is held. Otherwise its death would be blamed on a job that was the only suspect in the rows. Null: it was called off before.
   */
  async apart<T>(alone: boolean, work: () => Promise<T>, signal: AbortSignal): Promise<T | null> {
    this.#suspects.apart++;
    try {
      if (alone)
        await new Promise<void>((resolve) => {
          this.#whenNoSuspects.push(resolve);
          signal.addEventListener("abort", () => resolve(), { once: true });
          this.#checkSuspects();
        });
      return signal.aborted ? null : await work();
    } finally {
      this.#suspects.apart--;
      this.wake();
    }
  }

  /** A turn that is under way may bring one. */
  #checkSuspects(): void {
    if (this.#state !== "closed" && (isTurning(this.#state) || this.holdsSuspects)) return;
    for (const resolve of this.#whenNoSuspects.splice(0)) resolve();
  }

  /** Tells every handler to stop. */
  interruptAll(why: "shutdown" | "lease-lost", what: string): void {
    if (why === "shutdown") this.#releaseWaiting(() => true, what);
    else for (const { attempt } of this.#ahead.takeOut(() => true)) this.#drop(attempt);
    this.#executor.interruptAll(why, what);
  }

  /** Releases what still runs, at no cost to the jobs. Returns how many. */
  releaseAll(reason: string): number {
    this.#releaseWaiting(() => true, reason);
    return this.#executor.releaseAll(reason);
  }

  /** Ends the loop: it claims, settles and retries nothing any more. */
  close(): void {
    this.#on("close");
    this.#onClaims("stop");
    this.#timer?.();
    this.#gathered?.();
    this.#opened?.();
    this.#backoff.close();
    this.#ahead.takeOut(() => true);
    this.#executor.close();
    this.#nowEmpty();
    this.#checkSuspects();
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
    const reason = "its worker never got the reply to its claim";
    this.#context.events.emit("job.released", { jobId: lease.jobId, reason });
    const view = { id: lease.jobId, state: "running", counters } as const;
    this.#strays.push({ lease, change: transitions.releaseUnstarted(view, reason) });
    this.wake();
  }

  // ---- reports from the executor

  finished(settlement: Settlement, { job, startedMono }: Attempt): void {
    this.#finished.push(settlement);
    if (++this.#ends % MEASURED === 0)
      this.#ahead.ended(job.kind, this.#context.clock.mono() - startedMono, job.input.length);
    if (this.#isGathering(job.kind)) this.#gathered ??= this.#context.clock.after(GATHER_MS, this.#gather);
    else this.wake();
    this.#fillOrStarve();
  }

  /** Requests end one by one while others are in flight: a turn for each few of them is a transaction for each few. */
  #isGathering(kind: string): boolean {
    const { length } = this.#finished;
    return length < MAX_GATHERED && length * 2 < this.#executor.heldCount && this.#slots.gathers(kind);
  }

  freed(attempt: Attempt): void {
    this.#free(attempt);
    this.wake();
    this.#fillOrStarve();
  }

  /** A durable step is progress: the job is fresh again. */
  stepped({ id }: Attempt): void {
    this.#suspects.freed(id);
    this.#checkSuspects();
  }

  ticked(): void {
    const since = this.#context.clock.mono() - MAX_WAIT_MS;
    for (const { attempt } of this.#ahead.takeOverdue(since)) attempt.release("it waited too long for a free slot");
    this.#on("tick");
  }

  // ---- what waits for a slot

  /** Jobs whose handlers are at work. */
  get #running(): number {
    return this.#executor.heldCount - this.#ahead.size - this.unsettledCount;
  }

  /** Whether one more may start: a slot is free, and a crash would not run too many again that have ended. */
  get #hasSlot(): boolean {
    return this.#running < this.#total && this.#executor.heldCount - this.#ahead.size < this.#total + MAX_AHEAD;
  }

  #fillOrStarve(): void {
    if (this.#ahead.size > 0) this.#fill();
    else if (this.#running === 0 && !this.#starting) this.#ahead.starved(this.#context.clock.mono());
  }

  /** Starts what waits, as long as slots are free. A handler that returns at once leaves its slot to the next one. */
  #fill(): void {
    if (this.#filling || this.#state === "closed") return;
    this.#filling = true;
    let startedMono = Number.NaN;
    while (this.#hasSlot) {
      const next = this.#ahead.next();
      if (!next) break;
      const { attempt, ours } = next;
      // Also what the maintenance releases: until that is durable, it is held.
      if (!ours) attempt.release("its worker's event loop was blocked before it started");
      else if (attempt.isInterrupted) attempt.release("its worker lost the lease");
      else attempt.startLater();
      if (Number.isNaN(startedMono)) ({ startedMono } = attempt);
      if (attempt.startedMono - startedMono > STARTS_MS) {
        this.#fillLater();
        break;
      }
    }
    this.#filling = false;
  }

  #fillLater(): void {
    if (this.#fillsLater) return;
    this.#fillsLater = true;
    this.#context.clock.soon(() => {
      this.#fillsLater = false;
      this.#fill();
    });
  }

  #releaseWaiting(which: (attempt: Attempt) => boolean, reason: string): void {
    for (const { attempt } of this.#ahead.takeOut(which)) attempt.release(reason);
  }

  /** It is not this worker's any more. */
  #drop(attempt: Attempt): void {
    this.#executor.drop(attempt);
    this.#free(attempt);
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
    this.#ahead.turned(finished.length, clock.mono());
    const room = this.#room(this.#executor.heldCount - finished.length, finished);
    this.#inTurn = finished.length;
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
      this.#inTurn = 0;
      if (answer.replaced !== undefined) return this.#life.replaced(answer.replaced);
      if (!answer.live) return this.#life.disowned();
      for (const jobId of answer.cancels) this.#cancel(jobId);
      for (const job of answer.corrupt ?? []) this.#corrupt(job);
      this.#start(answer.claimed);
      if (answer.claimed.length >= MAX_PER_TURN) this.wake();
      this.#sleep(answer.nextDueInMs);
    } catch (thrown) {
      this.#storeFailed(settlements, thrown);
    } finally {
      this.#executor.markHeld();
      this.#on("ended");
      this.#explain();
      if (this.#executor.heldCount === 0) this.#nowEmpty();
      this.#checkSuspects();
    }
  }

  #explain(): void {
    const unexplained = this.#unexplained;
    this.#unexplained = null;
    if (unexplained && this.#state !== "closed") this.#compareSummary(unexplained.held, unexplained.askedAtMono);
  }

  #room(running: number, ending: readonly Settlement[]): Room {
    if (this.#claims !== "on" || !this.#context.trust.inContact) return Slots.NONE;
    const free = this.#slots.room(Math.max(running, this.#total - MAX_PER_TURN), ending);
    const ahead = this.#mayWait.size === 0 ? 0 : Math.min(this.#ahead.room(), MAX_PER_TURN - free.total);
    const room = ahead > 0 ? this.#withAhead(free, running, ending, ahead) : free;
    const suspects = this.#suspects.held(ending);
    const open = this.#opening.size === 0 ? room : this.#withoutOpening(room);
    return suspects ? { ...open, suspects } : open;
  }

  /**
   * Thousands of requests that are claimed at once keep the loop from sending the first of them. If this process dies, one that was claimed and not sent counts
   * as one that may have been sent.
   */
  #withoutOpening(room: Room): Room {
    const isOpening = ({ kind }: Room["kinds"][0]): boolean => this.#opening.get(kind)?.() === true;
    if (!room.kinds.some(isOpening)) return room;
    this.#opened ??= this.#context.clock.after(OPENING_MS, this.#openMore);
    return { ...room, kinds: room.kinds.filter((one) => !isOpening(one)) };
  }

  /** Kinds are listed whether a slot is free or not: those whose jobs may not wait end what is claimed ahead. */
  #withAhead(free: Room, running: number, ending: readonly Settlement[], ahead: number): Room {
    const every = this.#slots.everyKind;
    if (every) return { ...free, kinds: (this.#everyAhead = this.#marked(every, this.#everyAhead)).kinds, ahead };
    const { kinds } = free.total > 0 ? free : this.#slots.room(Math.min(running, this.#total - 1), ending);
    return { ...free, kinds: this.#marked(kinds).kinds, ahead };
  }

  /** These kinds, and which of them may be claimed ahead. The list before, if nothing has changed. */
  #marked(kinds: Room["kinds"], before: MarkedKinds | null = null): MarkedKinds {
    const { version } = this.#ahead;
    if (before?.version === version) return before;
    const waits = (kind: string): boolean => this.#mayWait.has(kind) && this.#ahead.isFast(kind);
    const marked = (one: RoomOfKind): RoomOfKind =>
      waits(one.kind) ? { ...one, ahead: true, ...(this.#fair.has(one.kind) && { fair: true }) } : one;
    return { version, kinds: kinds.map(marked) };
  }

  /** Those that may not wait start at once: slots are free for them. The others start as long as slots are free, for a while. */
  #start(claimed: readonly ClaimedJob[]): void {
    if (claimed.length === 0) return;
    let fromMono = Number.NaN;
    let isLate = false;
    this.#starting = true;
    for (const job of claimed) {
      const starts = this.#ahead.size === 0 && !isLate && this.#hasSlot;
      const attempt = this.#took(job);
      if (Number.isNaN(fromMono)) this.#ahead.fed((fromMono = attempt.claimedMono));
      isLate ||= attempt.claimedMono - fromMono > STARTS_MS;
      const waits = !starts && job.together === null && this.#mayWait.has(job.kind) && this.#ahead.add(attempt);
      if (!waits) attempt.start();
    }
    this.#starting = false;
    if (this.#ahead.size > 0) this.#fillLater();
    else this.#fillOrStarve();
  }

  #cancel(jobId: string): void {
    this.#releaseWaiting(({ id }) => id === jobId, "cancelled before it started");
    this.#executor.cancel(jobId);
  }

  #took(job: ClaimedJob): Attempt {
    const { jobId, epoch, fence } = job.lease;
    // Fence 1 under a later epoch may be the second claim of a job: a store that crashed may have forgotten the first.
    if (fence > 1 || epoch !== (this.#epoch ??= epoch)) this.#supersede(jobId);
    this.#slots.took(job.kind);
    this.#suspects.took(job);
    return this.#executor.hold(job);
  }

  /** Its slot is free, and the job behind it may be ready, so claim again at once. */
  #corrupt({ lease, kind, change }: CorruptJob): void {
    this.#context.events.emit("job.quarantined", { jobId: lease.jobId, kind, reason: change.reason! });
    this.wake();
  }

  #supersede(jobId: string): void {
    this.#ahead.takeOut(({ id }) => id === jobId);
    const former = this.#executor.supersede(jobId);
    if (former) this.#finished = this.#finished.filter(({ lease }) => lease.jobId !== jobId);
    this.#free(former);
  }

  #free(attempt: Attempt | undefined): void {
    if (!attempt) return;
    this.#slots.freed(attempt.job.kind);
    this.#suspects.freed(attempt.id);
    this.#checkSuspects();
  }

  #sleep(nextDueInMs: number | null): void {
    if (this.#claims === "off" || this.#timer) return;
    const { everyMs } = this.pace;
    this.#turnedMono = this.#context.clock.mono();
    this.#expectsNothing = nextDueInMs === null || nextDueInMs >= everyMs;
    this.#sleepUntil(this.#turnedMono + Math.max(1, Math.min(everyMs, nextDueInMs ?? everyMs)));
  }

  /**
   * A heartbeat has polled. It takes the place of a poll that the latest turn has not set for a reason of its own, if it was sent after that turn. While such
   * heartbeats are as frequent as polls, the worker polls itself only if one does not come. What the latest turn has not found, because it is paused or of other
   * kinds, leads to a turn no sooner than a poll would.
   */
  polled(askedAtMono: number, { now, nextInMs }: Pending): void {
    if (this.#claims !== "on") return;
    const { everyMs } = this.pace;
    const isFrequent = askedAtMono - this.#polledMono <= everyMs + BEAT_LATE_MS;
    this.#polledMono = askedAtMono;
    if (!this.#timer) return;
    const againMono = this.#turnedMono + everyMs;
    if (now && this.#context.clock.mono() >= againMono) return this.wake();
    // One that was sent before a turn had ended knows less than that turn, but the next one comes before the next poll.
    if (!this.#expectsNothing || (!isFrequent && askedAtMono < this.#turnedMono)) return;
    const inMs = isFrequent ? everyMs + BEAT_LATE_MS : everyMs;
    this.#timer();
    this.#sleepUntil(now ? againMono : askedAtMono + Math.max(1, Math.min(inMs, nextInMs ?? inMs)));
  }

  /** Proofs that wake-ups arrive may end meanwhile: then it polls at once. */
  #sleepUntil(atMono: number): void {
    const { clock } = this.#context;
    this.#timer = clock.after(Math.max(1, Math.min(atMono - clock.mono(), this.pace.validMs)), () => {
      this.#timer = undefined;
      if (clock.mono() < atMono && this.pace.validMs > 0) this.#sleepUntil(atMono);
      else this.wake();
    });
  }

  #paceChanged(proved: boolean, pollMs: number): void {
    const text = proved
      ? "Wake-ups arrive again, so this worker polls seldom."
      : `No process shows that it polls for all and that wake-ups arrive, so this worker polls every ${pollMs} ms, and each poll costs the store a little. Nothing is lost. It ends when a worker that can listen for wake-ups is elected; behind a pooler, or where files can't be watched, none can.`;
    this.#context.events.emit("store.notice", { about: "wake-ups", text });
  }

  /**
   * It is unknown whether the transaction was applied. The same settlements are sent again, which is safe, and what is
   * held is compared.
   */
  #storeFailed(settlements: readonly Settlement[], thrown: unknown): void {
    this.#inTurn = 0;
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
