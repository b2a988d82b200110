// Decides which workers are dead and which have lost contact. Only this host's kernel proves a death: the process is
// gone, or the kernel released its lock. Contact is lost when a server has not seen the lock throughout `contact`, or
// when the heartbeat counter has not moved for one lease on this watcher's own monotonic clock. The detector never
// compares the clocks of two machines. A watcher that was asleep, or could not write to the store, starts its watch
// again.
import type { Clock } from "../job/time.ts";
import { type Death, differentKernels, type Liveness, type WorkerCheck, type WorkerRow } from "../stores/liveness.ts";
import { processIsGone, withLastWord } from "./incident.ts";

/** A worker that is dead or out of contact, and how that became known. */
export interface Lost {
  readonly worker: WorkerRow;
  readonly death: Death;
}

/** The evidence for a worker whose row came back with a restored backup. */
export const RESTORED = "the store was restored from a backup";

interface Watch {
  beats: number;
  sinceMono: number;
  /** When its lock was last held, or its counter last moved; null: never so far. */
  lastSeenAliveAt: number | null;
}

/** A watcher whose checks run late by more than this has been asleep. */
const LATE_MS = 1_000;
/**
 * Wall and monotonic clock may drift apart by this much between two checks (NTP slewing); more is a jump or a sleep.
 */
const DRIFT_MS = 500;

export class FailureDetector {
  readonly #clock: Clock;
  readonly #liveness: Liveness;
  readonly #processState: WorkerCheck;
  readonly #bootId: string;
  readonly #watched = new Map<string, Watch>();
  /** A worker of another machine or kernel whose heartbeat moved while we watched: two hosts share one SQLite file. */
  foreign: WorkerRow | null = null;
  /**
   * When the latest check ran; before the first one, when the detector was created. A probe also starts watches, and
   * the machine may sleep in between.
   */
  #lastMono: number;
  #lastNow: number;

  constructor(deps: { clock: Clock; liveness: Liveness; processState: WorkerCheck; bootId: string }) {
    this.#clock = deps.clock;
    this.#liveness = deps.liveness;
    this.#processState = deps.processState;
    this.#bootId = deps.bootId;
    this.#lastMono = deps.clock.mono();
    this.#lastNow = deps.clock.now();
  }

  /** Checks only with the kernel, for processes of this host; it does not query the store. */
  probeProcesses(workers: readonly WorkerRow[], alive = new Set<WorkerRow>()): Lost[] {
    const dead: Lost[] = [];
    for (const worker of workers) {
      // Its process may be alive and hold its lock, but this store rejects everything it writes.
      if (worker.restored) {
        dead.push({ worker, death: this.#gone(worker, RESTORED) });
        continue;
      }
      const state = this.#processState(worker);
      if (state === "gone") dead.push({ worker, death: this.#gone(worker, processIsGone(worker)) });
      else if (state === "alive") {
        alive.add(worker);
        this.#watch(worker).lastSeenAliveAt = this.#clock.now();
      }
    }
    return dead;
  }

  /** As `probe`, but a server is not asked for the locks of processes that are alive: a missing one would not count. */
  async probeSoon(workers: readonly WorkerRow[]): Promise<Lost[]> {
    if (!this.#liveness.manyHosts) return this.probe(workers);
    const alive = new Set<WorkerRow>();
    const dead = this.probeProcesses(workers, alive);
    const proved = new Set(dead.map(({ worker }) => worker.id));
    const rest = workers.filter((worker) => !alive.has(worker) && !proved.has(worker.id));
    return rest.length === 0 ? dead : [...dead, ...(await this.probe(rest))];
  }

  /**
   * Checks processes and locks: which of these workers are dead or out of contact. Cheap enough to run four times a
   * second.
   */
  async probe(workers: readonly WorkerRow[]): Promise<Lost[]> {
    const dead = this.probeProcesses(workers);
    const proved = new Set(dead.map(({ worker }) => worker.id));
    const others = workers.filter(({ id }) => !proved.has(id));
    const probes = await this.#liveness.probeAll?.(others);
    for (const [at, worker] of others.entries()) {
      const probe = probes?.[at] ?? (await this.#liveness.probe(worker));
      if (probe === "free") dead.push({ worker, death: this.#gone(worker, null) });
      else if (probe === "held") this.#watch(worker).lastSeenAliveAt = this.#clock.now();
      // A process of this host that is alive has only lost its session. Its heartbeat decides.
      else if (probe === "missing" && this.#processState(worker) !== "alive")
        dead.push({ worker, death: this.#contactLost(worker) });
    }
    return dead;
  }

  /**
   * The full check of all workers that have not ended: locks and silence. `everyMs` is how often it is called. A worker
   * that is neither proven dead nor silent for a whole lease is left alone.
   */
  async check(workers: readonly WorkerRow[], everyMs: number): Promise<Lost[]> {
    this.#restartIfAsleep(everyMs);
    const dead = await this.probe(workers);
    // While the store was unavailable no worker could write a heartbeat, so silence from that time proves nothing.
    if (this.#liveness.holdMs?.()) this.restart();
    const gone = new Set(dead.map(({ worker }) => worker.id));
    const mono = this.#clock.mono();
    for (const worker of workers) {
      if (gone.has(worker.id)) continue;
      const watch = this.#watch(worker);
      if (watch.beats !== worker.beats) {
        if (differentKernels(worker.bootId, this.#bootId)) this.foreign = worker;
        this.#watched.set(worker.id, {
          beats: worker.beats,
          sinceMono: mono,
          lastSeenAliveAt: this.#clock.now(),
        });
      } else if (mono - watch.sinceMono >= worker.leaseMs) {
        dead.push({ worker, death: this.#silent(worker, mono - watch.sinceMono) });
      }
    }
    this.#forgetAllBut(workers);
    return dead;
  }

  /** Another source knows until when the worker lived: its supervisor saw it exit. */
  livedUntil(worker: WorkerRow, at: number): void {
    this.#watched.set(worker.id, { beats: worker.beats, sinceMono: this.#clock.mono(), lastSeenAliveAt: at });
  }

  /** A watch starts when the row is first seen. That alone is not a sign of life: the row also exists after a death. */
  #watch(worker: WorkerRow): Watch {
    const known = this.#watched.get(worker.id);
    if (known) return known;
    const watch = { beats: worker.beats, sinceMono: this.#clock.mono(), lastSeenAliveAt: null };
    this.#watched.set(worker.id, watch);
    return watch;
  }

  #gone(worker: WorkerRow, evidence: string | null): Death {
    return this.#death(worker, "gone", evidence);
  }

  #contactLost(worker: WorkerRow): Death {
    return this.#death(worker, "lost", "the server has not seen its session for as long as `heartbeat.contact` allows");
  }

  #silent(worker: WorkerRow, silentMs: number): Death {
    return this.#death(worker, "silent", `no heartbeat for ${Math.round(silentMs)} ms (lease ${worker.leaseMs} ms)`);
  }

  #death(worker: WorkerRow, how: Death["how"], evidence: string | null): Death {
    return {
      how,
      lastSeenAliveAt: this.#watched.get(worker.id)?.lastSeenAliveAt ?? null,
      detectedAt: this.#clock.now(),
      evidence: withLastWord(evidence, worker.lastWord),
    };
  }

  #restartIfAsleep(everyMs: number): void {
    const mono = this.#clock.mono();
    const now = this.#clock.now();
    const passed = mono - this.#lastMono;
    const late = passed > 2 * everyMs + LATE_MS;
    const jumped = Math.abs(now - this.#lastNow - passed) > DRIFT_MS;
    if (late || jumped) this.restart();
    this.#lastMono = mono;
    this.#lastNow = now;
  }

  /** Counts silence from now on: this watcher could not have noticed an earlier heartbeat. */
  restart(): void {
    for (const watch of this.#watched.values()) watch.sinceMono = this.#clock.mono();
  }

  #forgetAllBut(workers: readonly WorkerRow[]): void {
    if (this.#watched.size <= workers.length) return;
    const present = new Set(workers.map((worker) => worker.id));
    for (const id of this.#watched.keys()) if (!present.has(id)) this.#watched.delete(id);
  }
}
