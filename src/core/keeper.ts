// The part of a worker's process that runs no user code: it beats, watches the others, recovers the dead, fences out what is
// overdue and purges what is old. It runs in a thread of its own where the store can be opened twice, so that a handler which
// blocks the main loop neither silences the worker nor stops recovery; elsewhere, and in the simulator, beside the worker.
import type { CallOff, Clock, Random } from "./clock.ts";
import { toStoredError } from "./errors.ts";
import type { Emitter } from "./events.ts";
import { Heartbeat } from "./heartbeat.ts";
import type { Liveness, LivenessTimes, ProcessCheck, WorkerRow } from "./liveness.ts";
import { Lookout } from "./lookout.ts";
import { LossJudge } from "./losses.ts";
import { expireOverdue, leftBehind, recoverDead } from "./recovery.ts";
import { purgeOld, type RetentionTimes } from "./retention.ts";
import type { BeatAnswer, Store } from "./store.ts";

export interface KeeperOptions {
  readonly worker: string;
  readonly bootId: string;
  readonly times: LivenessTimes;
  readonly retention: RetentionTimes;
  /** The version of the schema that this program knows. */
  readonly schemaVersion: number;
}

/** What the keeper asks of, and tells, the process that it keeps. */
export interface KeeperHost {
  /** How long the main loop has stood still, in ms. */
  loopLagMs(): number;
  /** An accepted heartbeat, with what the store says is held. */
  beaten(sentAtMono: number, answer: BeatAnswer): void;
  /** The worker's row is not live any more: everything it holds is somebody else's. */
  disowned(): void;
  /** The worker must stop claiming: the schema is newer than this program, or another host uses the file. */
  unfit(why: "schema-newer" | "foreign-worker", detail: string): void;
  /** A handler blocks the loop beyond its deadline and grace: the process has to die so that its work can go on. */
  kill(reason: string): void;
}

/** Each worker probes this many neighbours, so that a fleet of n costs n and not n squared, and no single death blinds it. */
const NEIGHBOURS = 8;
/** A loop that stands still for longer is told about, and its worker beats with every probe: it may have to end its process. */
const BLOCKED_MS = 1_000;
/** Where another process checks the locks of all, the processes of this host are checked all the same, against rows at most this old. */
const NEIGHBOURS_KNOWN_MS = 1_000;
/** A watcher whose own heartbeat is older than this many intervals could not write: silence of others says nothing then. */
const OWN_SILENCE_INTERVALS = 1.5;
/** Others wait this much longer than the owner itself before they fence out an overdue job. */
const EXPIRE_MARGIN_MS = 2_000;

export class Keeper {
  readonly #deps: {
    store: Store;
    liveness: Liveness;
    clock: Clock;
    random: Random;
    events: Emitter;
    newId: () => string;
    processState: ProcessCheck;
  };
  readonly #options: KeeperOptions;
  readonly #host: KeeperHost;
  readonly #heartbeat: Heartbeat;
  readonly #lookout: Lookout;
  readonly #losses: LossJudge;
  /** The ring of the latest read, for checks of processes, and when it was read. */
  #ring: { readonly workers: readonly WorkerRow[]; readonly atMono: number } | null = null;
  /** When this watcher's own heartbeat was last written; registering was the first. */
  #wroteAtMono: number;
  readonly #timers = new Map<string, CallOff>();
  readonly #lookMs: number;
  #stopped = false;
  #busy: Promise<void> = Promise.resolve();
  #beating: Promise<void> = Promise.resolve();
  #warnedBlocked = false;
  #toldHeld = false;
  #heldLooks = 0;

  constructor(
    deps: {
      store: Store;
      liveness: Liveness;
      clock: Clock;
      random: Random;
      events: Emitter;
      newId: () => string;
      processState: ProcessCheck;
    },
    options: KeeperOptions,
    host: KeeperHost,
  ) {
    this.#deps = deps;
    this.#options = options;
    this.#host = host;
    const { worker, times } = options;
    this.#heartbeat = new Heartbeat({
      ...deps,
      worker,
      intervalMs: times.heartbeatMs,
      loopLagMs: () => host.loopLagMs(),
    });
    this.#lookout = new Lookout({ ...deps, bootId: options.bootId });
    this.#losses = new LossJudge(deps);
    this.#wroteAtMono = deps.clock.mono();
    this.#lookMs = Math.min(times.heartbeatMs, times.leaseMs / 4, times.sweepMs);
  }

  start(): void {
    const { times } = this.#options;
    this.#repeat(
      "beat",
      () => this.#heartbeat.nextInMs(times.heartbeatMs),
      () => this.beat(),
    );
    this.#repeat(
      "probe",
      () => times.probeMs,
      () => this.probe(),
    );
    this.#repeat(
      "look",
      () => this.#lookMs,
      () => this.look(),
    );
    this.#repeat(
      "sweep",
      () => times.sweepMs,
      () => this.sweep(),
    );
  }

  /** Stops the timers and waits for what is under way. */
  async stop(): Promise<void> {
    this.#stopped = true;
    for (const callOff of this.#timers.values()) callOff();
    this.#timers.clear();
    await Promise.all([this.#busy, this.#beating]);
  }

  async beat(): Promise<void> {
    const beat = await this.#heartbeat.tick();
    if (!beat) this.#restartWatch();
    if (!beat || this.#stopped) return;
    this.#wroteAtMono = Math.max(this.#wroteAtMono, beat.sentAtMono);
    if (!beat.answer.live) {
      this.#stopped = true;
      return this.#host.disowned();
    }
    this.#host.beaten(beat.sentAtMono, beat.answer);
    if (beat.answer.schemaVersion > this.#options.schemaVersion) {
      this.#host.unfit(
        "schema-newer",
        `the store's schema is ${beat.answer.schemaVersion}, this program knows ${this.#options.schemaVersion}`,
      );
    }
    await this.#killIfBlockedBeyondDeadline(beat.answer);
  }

  /** The locks of the next few workers in the ring, or of all where one looks for all, four times a second. */
  async probe(): Promise<void> {
    const { worker } = this.#options;
    const lagMs = this.#host.loopLagMs();
    if (lagMs > BLOCKED_MS) await this.#blocked(lagMs);
    else this.#warnedBlocked = false;
    const { liveness } = this.#deps;
    const leads = await liveness.leads?.();
    const follows = leads === false && !liveness.isWaitingForContact?.();
    const dead = follows
      ? this.#lookout.probeProcesses(await this.#knownNeighbours(worker))
      : await this.#lookout.probe(leads ? await this.#others(worker) : await this.#neighbours(worker));
    if (dead.length === 0) return;
    await recoverDead(this.#deps, dead, worker);
    // Several may have died at once, further round the ring than we probe: look at all of them now.
    await this.look();
  }

  /** Everybody's lock and silence, and what is overdue. Where another one looks for all, only the neighbours: it may itself be frozen. */
  async look(): Promise<void> {
    const { worker } = this.#options;
    const follows = (await this.#deps.liveness.leads?.()) === false;
    const watched = follows ? await this.#neighbours(worker) : await this.#others(worker);
    const ownSilenceMs = this.#deps.clock.mono() - this.#wroteAtMono;
    if (ownSilenceMs > OWN_SILENCE_INTERVALS * this.#options.times.heartbeatMs) this.#restartWatch();
    const dead = await this.#lookout.look(watched, this.#lookMs);
    const foreign = this.#deps.liveness.manyHosts ? null : this.#lookout.foreign;
    if (foreign)
      this.#host.unfit("foreign-worker", `worker ${foreign.id} on ${foreign.host} is alive under another kernel`);
    if (dead.length > 0) await recoverDead(this.#deps, dead, worker);
    await this.#losses.pass(this.#lookMs);
    if (!follows) await expireOverdue(this.#deps, EXPIRE_MARGIN_MS);
    await this.#tendStore();
  }

  /** Also whoever is over and still holds jobs: an earlier recovery could not deal with those. And what is long overdue: who looks for all may be unable to. */
  async sweep(): Promise<void> {
    await expireOverdue(this.#deps, EXPIRE_MARGIN_MS + this.#options.times.leaseMs);
    await purgeOld(this.#deps.store, this.#options.retention);
    const left = leftBehind(await this.#deps.store.workers({ which: "leftBehind" }), this.#deps.clock.now());
    if (left.length > 0) await recoverDead(this.#deps, left, this.#options.worker);
  }

  /** What holds a large log back is told once, and again only after it was free. Who can't be named may be gone at the next look. */
  async #tendStore(): Promise<void> {
    const { store, events } = this.#deps;
    const done = await store.upkeep?.();
    if (!done) return;
    const { walBytes: bytes, frames, heldBy } = done;
    if (frames > 0 && heldBy === null) events.emit("wal.checkpointed", { frames, truncated: bytes === 0 });
    this.#heldLooks = heldBy === null ? 0 : this.#heldLooks + 1;
    if (heldBy === null) this.#toldHeld = false;
    else if (!this.#toldHeld && (heldBy.length > 0 || this.#heldLooks > 1)) {
      this.#toldHeld = true;
      events.emit("wal.held", { bytes, readers: heldBy });
    }
  }

  async #others(worker: string): Promise<readonly WorkerRow[]> {
    return (await this.#deps.store.workers({})).filter((row) => row.id !== worker);
  }

  /** This watcher could not write to the store, so the others may not have been able to either: their silence proves nothing. */
  #restartWatch(): void {
    this.#lookout.restart();
    this.#losses.restart();
  }

  async #knownNeighbours(worker: string): Promise<readonly WorkerRow[]> {
    const mono = this.#deps.clock.mono();
    if (!this.#ring || mono - this.#ring.atMono >= NEIGHBOURS_KNOWN_MS)
      this.#ring = { workers: await this.#neighbours(worker), atMono: mono };
    return this.#ring.workers;
  }

  async #neighbours(worker: string): Promise<readonly WorkerRow[]> {
    const { store } = this.#deps;
    const after = await store.workers({ after: worker, limit: NEIGHBOURS });
    if (after.length >= NEIGHBOURS) return after;
    const round = await store.workers({ limit: NEIGHBOURS - after.length });
    return [...after, ...round.filter((row) => row.id < worker)];
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
    await store.note(worker, reason).catch(() => {});
    if (this.#host.loopLagMs() > BLOCKED_MS) return this.#host.kill(reason);
    // While that was written the handler has returned: its process is well again.
    await store.note(worker, `would have ${reason}; then the loop came back`).catch(() => {});
  }

  /**
   * Each again after its interval; what throws is told and done again next time. One thing at a time, but for the heartbeat:
   * a long recovery or purge must not silence the worker that does it.
   */
  #repeat(name: string, everyMs: () => number, task: () => Promise<void>): void {
    if (this.#stopped) return;
    const callOff = this.#deps.clock.after(everyMs(), () => {
      const before = name === "beat" ? Promise.resolve() : this.#busy;
      const done = before
        .then(() => (this.#stopped ? undefined : task()))
        .catch((thrown: unknown) =>
          this.#deps.events.emit("store.failed", {
            doing: `keeper: ${name}`,
            error: toStoredError(thrown),
            retryInMs: everyMs(),
          }),
        )
        .finally(() => this.#repeat(name, everyMs, task));
      if (name !== "beat") this.#busy = done;
      else this.#beating = done;
    });
    this.#timers.set(name, callOff);
  }
}
