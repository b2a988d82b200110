// The part of a worker's process that runs no user code. It sends heartbeats, watches the other workers, recovers the
// dead, fences out overdue jobs and purges old data. Where the store can be opened twice, it runs in its own thread, so
// a handler that blocks the main loop neither silences the worker nor stops recovery. Elsewhere, and in the simulator,
// it runs alongside the worker on the main thread. A failing task does not affect the others, and neither the heartbeat
// nor the detection of deaths waits for any other task.
import { type StoredError, toStoredError, whyStoreReplaced } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import { type CallOff, type Clock, pause, type Random } from "../job/time.ts";
import type { Liveness, LivenessTimes, Neighbours, ProcessCheck, WorkerRow } from "../stores/liveness.ts";
import type { BeatAnswer, Store } from "../stores/port.ts";
import { AheadCells, MAX_WAIT_MS, releaseWaiting } from "./ahead-cells.ts";
import { tendBatches } from "./batch-ends.ts";
import { tendCollections } from "./collection-ends.ts";
import { type ClockReading, ConfirmedClock } from "./confirmed-time.ts";
import { ElectedPoll } from "./elected-poll.ts";
import { FailureDetector, type Lost } from "./failure-detector.ts";
import { Heartbeat } from "./heartbeat.ts";
import { LossJudge } from "./losses.ts";
import { expireOverdue, leftBehind, type LockedRecovery, recoverDead, recoverLocked } from "./recover.ts";
import { PURGE_PAUSE_MS, purgeOld, type RetentionTimes } from "./retention.ts";
import { counted } from "../job/text.ts";

export interface MaintenanceOptions {
  readonly worker: string;
  readonly bootId: string;
  readonly times: LivenessTimes;
  readonly retention: RetentionTimes;
  /** The store's clock when the worker registered. */
  readonly registered: ClockReading;
  /** The schema version that this program knows. */
  readonly schemaVersion: number;
  /** The jobs that the worker has claimed and not started (ahead-cells.ts). Omitted: it claims none ahead. */
  readonly ahead?: SharedArrayBuffer;
  /** How often the elected process polls for all. Omitted: this process can't be elected. */
  readonly pollMs?: number;
}

/** What the maintenance needs from its process, and reports to it. */
export interface MaintenanceHost {
  /** How long the event loop has been blocked, in ms. */
  loopLagMs(): number;
  /** An accepted heartbeat, with a summary of what the store says is held, or the full list. */
  beaten(sentAtMono: number, answer: BeatAnswer): void;
  /** From now on this process polls for all, or no longer does. */
  elected?(is: boolean): void;
  /** The worker's row is no longer live: other workers own everything it held. */
  disowned(): void;
  /** The worker must stop: the schema is newer than this program, another host uses the file, or the store is not the one it registered with. */
  unfit(why: UnfitReason, detail: string): void;
  /** A handler blocks the loop beyond its deadline and grace: the process has to die so that its jobs can continue elsewhere. */
  kill(reason: string): void;
}

/** Why a worker can't continue, and why a restart would not help. */
export type UnfitReason = "schema-newer" | "foreign-worker" | "store-replaced";

/**
 * Each worker probes this many neighbours, so that a fleet of n costs n and not n squared, and no single death leaves
 * part of it unwatched.
 */
const NEIGHBOURS = 8;
/**
 * A loop blocked for longer than this is reported, and its worker sends a heartbeat with every probe, because it may
 * have to end its process.
 */
const BLOCKED_MS = 1_000;
/**
 * Where another process checks all locks, each worker still checks the processes of its own host, against rows at most
 * this old. Younger ones are read at the hint that a process has ended. Longer than the checks of neighbours are apart,
 * which read them, too.
 */
const NEIGHBOURS_KNOWN_MS = 30_000;
/**
 * A watcher whose own heartbeat is older than this many intervals could not write. The silence of others proves nothing
 * then.
 */
const OWN_SILENCE_INTERVALS = 1.5;
/** How soon to retry the jobs of dead workers that another session had locked. */
const LOCKED_AGAIN_MS = 500;
/**
 * After a hint that a process has ended, it is checked after these pauses: the kernel closes connections some milliseconds before the process is gone. Then the
 * next probe decides.
 */
const HINTED_MS = [0, 2, 5, 10, 20, 40, 80];
/** Those further back in the ring leave the recovery to those before them for this long each: together they would only wait for each other. */
const HINTED_APART_MS = 15;
/** How soon the end of a batch or a collection is found if the process that settled its last block, or kept its last part, died before it checked. */
export const BATCHES_MS = 1_000;
/**
 * The process that checks the locks of all workers four times a second does it with rows at most this old, and polls for their kinds. Who has registered since is
 * watched a second later.
 */
const ROWS_KNOWN_MS = 900;
/** As long as there is no other worker. */
const ROWS_KNOWN_ALONE_MS = 3_000;
/** Where the store announces who comes and goes, and the kernel of this host shows whether all others live. */
const ROWS_ANNOUNCED_MS = 20_000;
/** What only time brings about is looked for this often although nothing was written, and this often if the store says that nothing waits for a time. */
const UNCHANGED_MS = 10_000;
const QUIET_MS = 120_000;
/** Other workers wait this much longer than the owner before they fence out an overdue job. */
const EXPIRE_MARGIN_MS = 2_000;
/**
 * Where one process checks all workers it also sweeps for all, and each of the others only once in this many sweeps, because that process may be unable to.
 * A sweep on PostgreSQL is twenty statements.
 */
const FOLLOWERS_SWEEP = 30;
/** Likewise for the checks of neighbours. */
const FOLLOWERS_CHECK = 2;
/** How often the heartbeat of a worker that holds nothing polls. */
const IDLE_POLL_MS = 10_000;
/** The last heartbeat before it is due so much later polls. */
const IDLE_POLL_LATE_MS = 500;

export interface MaintenanceDeps {
  readonly store: Store;
  readonly liveness: Liveness;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly newId: () => string;
  readonly processState: ProcessCheck;
  /** Omitted: only probes find the dead. */
  readonly neighbours?: Neighbours;
}

export class Maintenance {
  readonly #deps: MaintenanceDeps;
  readonly #options: MaintenanceOptions;
  readonly #host: MaintenanceHost;
  readonly #heartbeat: Heartbeat;
  readonly #detector: FailureDetector;
  readonly #losses: LossJudge;
  /** The ring as last read, for process checks, and when it was read. */
  #ring: { readonly workers: readonly WorkerRow[]; readonly atMono: number } | null = null;
  /** When this watcher's own heartbeat was last written; registering counts as the first. */
  #wroteAtMono: number;
  /** All workers as last read. */
  #all: { readonly workers: readonly WorkerRow[]; readonly atMono: number } | null = null;
  readonly #poll: ElectedPoll | null;
  #pollInMs: number;
  #isElected = false;
  /** Workers of whose end there was a hint that is being looked into. */
  readonly #hints = new Set<string>();
  readonly #storeClock: ConfirmedClock;
  readonly #timers = new Map<string, CallOff>();
  readonly #checkMs: number;
  /** The task under way in each lane. */
  readonly #lanes = new Map<Lane, Promise<void>>();
  /** Recoveries blocked by locks of other sessions, by worker. */
  readonly #locked = new Map<string, LockedRecovery>();
  #stopped = false;
  /** The latest sweep has left jobs that can be purged. */
  #purgesOn = false;
  /** As of the latest heartbeat. */
  #heldNothing = false;
  /** When the next poll with a heartbeat is due. */
  #idlePollMono = Number.NEGATIVE_INFINITY;
  /** Whether another process checks all workers, as of the latest check. */
  #follows = false;
  #sweeps = 0;
  #checks = 0;
  /** What the store counted when this was last done. */
  readonly #tendedAt = new Map<string, { readonly changes: number; readonly atMono: number }>();
  #warnedBlocked = false;

  constructor(deps: MaintenanceDeps, options: MaintenanceOptions, host: MaintenanceHost) {
    this.#deps = deps;
    this.#options = options;
    this.#host = host;
    const { worker, times } = options;
    this.#storeClock = new ConfirmedClock(deps.clock, options.registered);
    this.#heartbeat = new Heartbeat({
      ...deps,
      worker,
      intervalMs: times.heartbeatMs,
      loopLagMs: () => host.loopLagMs(),
      confirmed: () => this.#storeClock.confirmed(),
    });
    this.#detector = new FailureDetector({ ...deps, bootId: options.bootId });
    this.#losses = new LossJudge(deps);
    this.#pollInMs = options.pollMs ?? 0;
    this.#poll = options.pollMs === undefined ? null : new ElectedPoll(deps, options.pollMs);
    this.#wroteAtMono = deps.clock.mono();
    this.#checkMs = Math.min(times.heartbeatMs, times.leaseMs / 4, times.sweepMs);
  }

  start(): void {
    this.#deps.neighbours?.onEnded((worker) => {
      if (this.#hints.has(worker)) return;
      this.#hints.add(worker);
      this.#hinted(worker)
        .catch((thrown: unknown) => this.#threw("maintenance: hint", thrown))
        .finally(() => this.#hints.delete(worker));
    });
    const { heartbeatMs, probeMs, sweepMs } = this.#options.times;
    // A test that moves its clock over days sets long times: with timers every second, six hours of it took 6.9 s instead of 0.05 s.
    const batchesMs = Math.max(BATCHES_MS, probeMs);
    this.#repeat(
      "beat",
      "heartbeat",
      () => this.#heartbeat.nextInMs(heartbeatMs),
      () => this.beat(),
    );
    this.#repeat(
      "probe",
      "detection",
      () => probeMs,
      () => this.probe(),
    );
    const { ahead } = this.#options;
    if (ahead) {
      const cells = new AheadCells(ahead);
      this.#repeat(
        "ahead",
        "ahead",
        () => MAX_WAIT_MS,
        () => releaseWaiting(this.#deps, this.#options.worker, cells, this.#host.loopLagMs()),
      );
    }
    this.#repeat(
      "check",
      "detection",
      () => this.#checkMs,
      () => this.checkWorkers(),
    );
    this.#repeat(
      "chores",
      "chores",
      () => this.#checkMs,
      () => this.chores(),
    );
    if (this.#deps.store.batches)
      this.#repeat(
        "batches",
        "batches",
        () => batchesMs,
        () => this.tendBatches(),
      );
    if (this.#deps.store.collections)
      this.#repeat(
        "collections",
        "collections",
        () => batchesMs,
        () => this.tendCollections(),
      );
    this.#repeat(
      "sweep",
      "sweep",
      () => (this.#purgesOn ? PURGE_PAUSE_MS : sweepMs),
      () => this.sweep(),
    );
  }

  /** Stops the timers and waits for what is under way. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#deps.neighbours?.close();
    for (const callOff of this.#timers.values()) callOff();
    this.#timers.clear();
    await Promise.all(this.#lanes.values());
  }

  async beat(leases = false): Promise<void> {
    const beat = await this.#heartbeat.tick(leases, this.#pollsWithBeat());
    this.#heldNothing = beat?.answer.held.count === 0;
    if (!beat) this.#restartWatch();
    if (!beat || this.#stopped) return;
    const { live, replaced } = beat.answer;
    // The first write that got through: other workers could not write before it either.
    if (this.#couldNotWrite()) this.#restartWatch();
    if (replaced === undefined) this.#wroteAtMono = Math.max(this.#wroteAtMono, beat.sentAtMono);
    if (!live || replaced !== undefined) {
      this.#stopped = true;
      return replaced === undefined ? this.#host.disowned() : this.#host.unfit("store-replaced", replaced);
    }
    this.#storeClock.read(beat.answer.now, beat.sentAtMono);
    this.#host.beaten(beat.sentAtMono, beat.answer);
    if (beat.answer.schemaVersion > this.#options.schemaVersion) {
      this.#host.unfit(
        "schema-newer",
        `the store's schema is ${beat.answer.schemaVersion}, this program knows ${this.#options.schemaVersion}`,
      );
    }
    await this.#killIfBlockedBeyondDeadline(beat.answer);
  }

  /** Whether the next heartbeat polls: as often as an idle worker polls while wake-ups arrive. */
  #pollsWithBeat(): boolean {
    const mono = this.#deps.clock.mono();
    if (!this.#heldNothing || mono + this.#options.times.heartbeatMs - IDLE_POLL_LATE_MS < this.#idlePollMono)
      return false;
    this.#idlePollMono = mono + IDLE_POLL_MS;
    return true;
  }

  /**
   * Probes the locks of the next few workers in the ring, or of all workers where one process checks all, four times a
   * second.
   */
  async probe(): Promise<void> {
    const { worker } = this.#options;
    const lagMs = this.#host.loopLagMs();
    if (lagMs > BLOCKED_MS) await this.#blocked(lagMs);
    else this.#warnedBlocked = false;
    const { liveness } = this.#deps;
    const leads = await liveness.leads?.(this.#leadsSeldom());
    if (leads !== undefined) this.#elect(leads === true);
    const follows = leads === false && !liveness.isWaitingForContact?.();
    const dead = follows
      ? this.#detector.probeProcesses(await this.#knownNeighbours(worker))
      : await this.#detector.probeSoon(leads ? await this.#knownOthers(worker) : await this.#neighbours(worker));
    if (dead.length === 0 || !(await this.#recover(await this.#stillPresent(dead)))) return;
    // Several may have died at once, further round the ring than we probe, so check all of them now.
    await this.checkWorkers(true);
  }

  /** Looks for a proof that this worker's process has ended. The rules are those of every probe. */
  async #hinted(id: string): Promise<void> {
    const { clock, liveness } = this.#deps;
    const ring = await this.#neighbours(this.#options.worker);
    const place = ring.findIndex((row) => row.id === id);
    if (place < 0 || ring[place]!.state !== "live") return;
    await pause(clock, place * HINTED_APART_MS);
    for (const ms of HINTED_MS) {
      if (ms > 0) await pause(clock, ms);
      if (this.#stopped) return;
      const found = await this.#run("detection", async () => {
        const row = ring.slice(place, place + 1);
        const dead = liveness.leads ? this.#detector.probeProcesses(row) : await this.#detector.probe(row);
        if (dead.length > 0 && (await this.#recover(await this.#stillPresent(dead)))) await this.checkWorkers(true);
        return dead.length > 0;
      });
      if (found) return;
    }
  }

  /**
   * Checks the locks and the silence of all workers. Where another process checks them all, it checks only the
   * neighbours, because that process may itself be frozen.
   */
  async checkWorkers(asked = false): Promise<void> {
    const { worker } = this.#options;
    const followed = this.#follows;
    this.#follows = (await this.#deps.liveness.leads?.(this.#leadsSeldom())) === false;
    if (followed && this.#follows && !asked && ++this.#checks % FOLLOWERS_CHECK !== 0) return;
    const watched = this.#follows ? await this.#neighbours(worker) : await this.#othersNow(worker);
    if (this.#couldNotWrite()) this.#restartWatch();
    const dead = await this.#detector.check(watched, this.#follows ? this.#checkMs * FOLLOWERS_CHECK : this.#checkMs);
    const foreign = this.#deps.liveness.manyHosts ? null : this.#detector.foreign;
    if (foreign)
      this.#host.unfit("foreign-worker", `worker ${foreign.id} on ${foreign.host} is alive under another kernel`);
    if (dead.length > 0) await this.#recover(dead);
  }

  /** Resolves lost contacts, fences out overdue jobs, and maintains the store's own files. */
  async chores(): Promise<void> {
    if (this.#rests("chores")) return;
    await this.#apart("lost workers", async () => {
      if (!this.#follows) await this.#losses.pass(this.#checkMs);
    });
    await this.#apart("overdue jobs", async () => {
      if (!this.#follows) await expireOverdue(this.#deps, EXPIRE_MARGIN_MS, this.#storeClock.confirmed());
    });
    await this.#apart("the store's files", () => this.#tendStore());
  }

  /** If this process is the elected one: finds work that no wake-up announced, and shows the others that they need not poll. */
  async pollForAll(): Promise<void> {
    if (!this.#poll || !this.#isElected) return;
    await this.#knownOthers(this.#options.worker);
    this.#pollInMs = await this.#poll.pass(this.#all!.workers);
  }

  /** What was missed while no process polled for all is found at once. */
  #elect(is: boolean): void {
    if (is === this.#isElected || !this.#poll) return;
    this.#isElected = is;
    this.#pollInMs = this.#options.pollMs!;
    this.#host.elected?.(is);
    if (is) return this.#pollIn(1);
    this.#timers.get("poll")?.();
    this.#poll.rest();
  }

  /** There is one such timer: a later one takes the place of the one before. */
  #pollIn(ms: number): void {
    this.#timers.get("poll")?.();
    const callOff = this.#deps.clock.after(ms, () => {
      this.#run("poll", () => this.pollForAll())
        .catch((thrown: unknown) => this.#threw("maintenance: poll", thrown, this.#pollInMs))
        .finally(() => {
          if (this.#isElected && !this.#stopped) this.#pollIn(this.#pollInMs);
        });
    });
    this.#timers.set("poll", callOff);
  }

  /** Finds the ends of batches that no other process found, and goes on with aborts. Where one process checks all workers, that one does it. */
  async tendBatches(): Promise<void> {
    const { store, events } = this.#deps;
    if (!this.#follows && this.#hasChanged("batches")) await tendBatches(store.batches!, events, () => !this.#stopped);
  }

  /** Finds collections that are complete, or that nothing came for. Where one process checks all workers, that one does it. */
  async tendCollections(): Promise<void> {
    const { store, events } = this.#deps;
    if (!this.#follows && this.#hasChanged("collections"))
      await tendCollections(store.collections!, events, () => !this.#stopped);
  }

  /** False: nothing was written since this was last asked for `what`. What only time brings about is found a while later. */
  #hasChanged(what: string): boolean {
    const changes = this.#isElected ? (this.#poll?.changes ?? null) : null;
    if (changes === null) return true;
    const atMono = this.#deps.clock.mono();
    const last = this.#tendedAt.get(what);
    const restMs = this.#poll!.isQuiet ? QUIET_MS : UNCHANGED_MS;
    if (last?.changes === changes && atMono - last.atMono < restMs) return false;
    this.#tendedAt.set(what, { changes, atMono });
    return true;
  }

  /** Nothing waits for a time, and nothing was written. */
  #rests(what: string): boolean {
    return this.#isElected && this.#poll!.isQuiet && !this.#hasChanged(what);
  }

  /** The store has announced that workers have come or gone, or that work may be ready. */
  heard(news: "wake" | "fleet"): void {
    // Neighbours are read again in their time: all of a large fleet would read them at once.
    if (news === "fleet") this.#all = null;
    else if (this.#isElected && !this.#stopped && this.#pollInMs > this.#options.pollMs!) {
      this.#poll!.wake();
      this.#pollInMs = this.#options.pollMs!;
      this.#pollIn(this.#pollInMs);
    }
  }

  /**
   * Fences out what is long overdue, because the process that checks all workers may be unable to. Recovers finished
   * workers that still hold jobs which an earlier recovery could not take. Purges what is old.
   */
  async sweep(): Promise<void> {
    this.#purgesOn &&= !this.#follows;
    if (this.#follows && ++this.#sweeps % FOLLOWERS_SWEEP !== 0) return;
    if (!this.#purgesOn && this.#rests("sweep")) return;
    const { retention, times } = this.#options;
    const { store, clock } = this.#deps;
    await this.#apart("long overdue jobs", () =>
      expireOverdue(this.#deps, EXPIRE_MARGIN_MS + times.leaseMs, this.#storeClock.confirmed()),
    );
    await this.#apart("jobs left behind", async () => {
      const left = leftBehind(await store.workers({ which: "leftBehind" }), clock.now());
      if (left.length > 0) await this.#recover(left);
    });
    await this.#apart("retention", async () => {
      this.#purgesOn = false;
      const { refused, more } = await purgeOld(this.#deps, retention, () => !this.#stopped);
      // Not if some can't be deleted: they would be tried again and again.
      this.#purgesOn = more && refused === null;
      if (refused)
        this.#failed(`retention of ${counted(refused.jobs, "job")}, of ${refused.jobId} first`, refused.error);
    });
  }

  /** The rows may be some seconds old, and another process may have recovered some of these. The evidence stays that of the row that was probed. */
  async #stillPresent(dead: readonly Lost[]): Promise<readonly Lost[]> {
    await this.#others(this.#options.worker);
    const present = new Set(this.#all!.workers.map(({ id }) => id));
    return dead.filter(({ worker }) => present.has(worker.id));
  }

  /**
   * Returns whether any of them is new. A worker whose jobs are locked by another session is retried on a separate
   * timer.
   */
  async #recover(dead: readonly Lost[]): Promise<boolean> {
    const news = dead.filter(({ worker }) => !this.#locked.has(worker.id));
    if (news.length === 0) return false;
    const { locked } = await recoverDead(this.#deps, news, this.#options.worker);
    for (const one of locked) this.#locked.set(one.worker.id, one);
    this.#comeBack();
    return true;
  }

  /** Retries until the other sessions release their locks. */
  #comeBack(): void {
    if (this.#stopped || this.#locked.size === 0 || this.#timers.has("locked")) return;
    const callOff = this.#deps.clock.after(LOCKED_AGAIN_MS, () => {
      this.#run("locked", async () => {
        const asked = [...this.#locked.values()];
        const held = await recoverLocked(this.#deps, asked);
        for (const { worker } of asked) this.#locked.delete(worker.id);
        for (const one of held) this.#locked.set(one.worker.id, one);
      })
        .catch((thrown: unknown) => this.#threw("maintenance: locked jobs", thrown))
        .finally(() => {
          this.#timers.delete("locked");
          this.#comeBack();
        });
    });
    this.#timers.set("locked", callOff);
  }

  async #tendStore(): Promise<void> {
    const { store, events } = this.#deps;
    for (const news of (await store.upkeep.tend?.()) ?? []) events.emit("store.upkeep", news);
  }

  async #others(worker: string): Promise<readonly WorkerRow[]> {
    const workers = await this.#deps.store.workers({});
    this.#all = { workers, atMono: this.#deps.clock.mono() };
    this.#deps.neighbours?.know(workers);
    return workers.filter((row) => row.id !== worker);
  }

  async #knownOthers(worker: string): Promise<readonly WorkerRow[]> {
    const mono = this.#deps.clock.mono();
    const isAlone = this.#all !== null && this.#all.workers.length <= 1;
    const knownMs = this.#seesAll() ? ROWS_ANNOUNCED_MS : isAlone ? ROWS_KNOWN_ALONE_MS : ROWS_KNOWN_MS;
    if (!this.#all || mono - this.#all.atMono >= knownMs) return this.#others(worker);
    return this.#all.workers.filter((row) => row.id !== worker);
  }

  /** As they are now. That no other worker has come the store announces. */
  async #othersNow(worker: string): Promise<readonly WorkerRow[]> {
    const known = this.#deps.store.wakesSurely ? await this.#knownOthers(worker) : null;
    return known?.length === 0 ? known : this.#others(worker);
  }

  /** The store announces who comes and goes, and all others are processes of this host: its kernel shows whether they live. */
  #seesAll(): boolean {
    const { store, processState } = this.#deps;
    if (!store.wakesSurely || !this.#all) return false;
    return this.#all.workers.every((row) => row.id === this.#options.worker || processState(row) !== "unknown");
  }

  /** No death is found by the elected process alone, and nothing else needs it until something is written. */
  #leadsSeldom(): boolean {
    return this.#isElected && this.#poll!.rests && this.#seesAll();
  }

  #couldNotWrite(): boolean {
    return this.#deps.clock.mono() - this.#wroteAtMono > OWN_SILENCE_INTERVALS * this.#options.times.heartbeatMs;
  }

  /**
   * This watcher could not write to the store, so other workers may not have been able to either. Their silence proves
   * nothing.
   */
  #restartWatch(): void {
    this.#detector.restart();
    this.#losses.restart();
  }

  async #knownNeighbours(worker: string): Promise<readonly WorkerRow[]> {
    const mono = this.#deps.clock.mono();
    if (!this.#ring || mono - this.#ring.atMono >= NEIGHBOURS_KNOWN_MS) await this.#neighbours(worker);
    return this.#ring!.workers;
  }

  async #neighbours(worker: string): Promise<readonly WorkerRow[]> {
    const { store } = this.#deps;
    const after = await store.workers({ after: worker, limit: NEIGHBOURS });
    // Where no server elects a process, the last one in the ring is elected.
    if (!this.#deps.liveness.leads) this.#elect(after.every(({ state }) => state !== "live"));
    const round = after.length >= NEIGHBOURS ? [] : await store.workers({ limit: NEIGHBOURS - after.length });
    const ring = [...after, ...round.filter((row) => row.id < worker)];
    this.#ring = { workers: ring, atMono: this.#deps.clock.mono() };
    this.#deps.neighbours?.know(ring);
    return ring;
  }

  async #blocked(lagMs: number): Promise<void> {
    if (!this.#warnedBlocked) {
      this.#warnedBlocked = true;
      this.#deps.events.emit("worker.blocked", { worker: this.#options.worker, loopLagMs: Math.round(lagMs) });
    }
    await this.beat();
  }

  async #killIfBlockedBeyondDeadline(answer: BeatAnswer): Promise<void> {
    const lagMs = this.#host.loopLagMs();
    if (answer.overdueMs === null || lagMs <= BLOCKED_MS) return;
    const reason = `killed itself: job ${answer.overdueJobId} was ${Math.round(answer.overdueMs)} ms past deadline and grace while the loop was blocked for ${Math.round(lagMs)} ms`;
    const { store } = this.#deps;
    const { worker } = this.#options;
    const leaves = (lastWord: string): Promise<unknown> =>
      store.beat(worker, { loopLagMs: this.#host.loopLagMs(), lastWord }).catch(() => {});
    await leaves(reason);
    if (this.#host.loopLagMs() > BLOCKED_MS) return this.#host.kill(reason);
    // The handler returned while this was being written: its process is healthy again.
    await leaves(`would have ${reason}; then the loop came back`);
  }

  /** One of several tasks: if it fails, the next ones still run. */
  async #apart(name: string, task: () => Promise<unknown>): Promise<void> {
    if (this.#stopped) return;
    try {
      await task();
    } catch (thrown) {
      this.#threw(`maintenance: ${name}`, thrown);
    }
  }

  #threw(doing: string, thrown: unknown, retryInMs?: number): void {
    const replaced = whyStoreReplaced(thrown);
    if (replaced === null) return this.#failed(doing, toStoredError(thrown), retryInMs);
    if (this.#stopped) return;
    this.#stopped = true;
    this.#host.unfit("store-replaced", replaced);
  }

  #failed(doing: string, error: StoredError, retryInMs: number = this.#options.times.sweepMs): void {
    this.#deps.events.emit("store.failed", { doing, error, retryInMs });
  }

  /** One task at a time in each lane. */
  #run<Result = void>(lane: Lane, task: () => Promise<Result>): Promise<Result | undefined> {
    const before = this.#lanes.get(lane) ?? Promise.resolve();
    const done = before.then(() => (this.#stopped ? undefined : task()));
    const ended = (): void => {};
    this.#lanes.set(lane, done.then(ended, ended));
    return done;
  }

  /** Runs `task` again after each interval. A failure is reported, and the task runs again next time. */
  #repeat(name: string, lane: Lane, everyMs: () => number, task: () => Promise<void>): void {
    if (this.#stopped) return;
    const callOff = this.#deps.clock.after(everyMs(), () => {
      this.#run(lane, task)
        .catch((thrown: unknown) => this.#threw(`maintenance: ${name}`, thrown, everyMs()))
        .finally(() => this.#repeat(name, lane, everyMs, task));
    });
    this.#timers.set(name, callOff);
  }
}

/**
 * Tasks in one lane wait for each other. A long purge therefore neither silences its worker nor keeps it from detecting
 * a death.
 */
type Lane = "heartbeat" | "poll" | "ahead" | "detection" | "locked" | "chores" | "batches" | "collections" | "sweep";
