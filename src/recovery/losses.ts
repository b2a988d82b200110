// Contact with a worker was lost: its lock was missing, or its heartbeat stood still, and nothing proved its death.
// Recovery took its jobs, fenced them and queued them again, and counted nothing. A loss resolves once:
//   returned  the process registered again and named the lost worker as its predecessor: nothing is counted
//   died      the kernel proved the death later, or the parent reported the exit
//   away      one watcher saw no sign of it for two leases on its own monotonic clock
// Only `died` and `away` count against the jobs that the worker held, unless the job has since ended or written a newer
// step.
import type { BegunRow } from "../job/batches.ts";
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { KindSettings } from "../job/job.ts";
import type { Clock } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import type { Liveness, WorkerCheck, WorkerRow } from "../stores/liveness.ts";
import type { Store } from "../stores/port.ts";

/** What became of a worker that lost contact. */
export type Resolution = "returned" | "died" | "away";

/** A loss that is unresolved, or whose jobs have not all been judged. */
export interface Loss {
  readonly incident: string;
  /** The lost worker. Its row normally outlives its losses; null: the row was removed anyway. */
  readonly worker: WorkerRow | null;
  readonly resolution: Resolution | null;
}

/** A job of a lost worker, in its current state. */
export interface LostJob extends transitions.JobView {
  /** Identifies the row within the store. Together with `fence` and `state` it guards the verdict. */
  readonly row: number;
  readonly epoch: number;
  /** The fence of the latest attempt. */
  readonly fence: number;
  readonly kind: KindSettings;
  /** Whether it was the only suspect of the lost worker (isolation.ts). */
  readonly alone: boolean;
  /** Whether it has written a step, or was retried manually, since the attempt that was lost. */
  readonly movedOn: boolean;
  readonly deathsElsewhere: number;
  /** As in `HeldJob`, of the latest attempt: it may be a newer one than was lost here, and its own loss may not be judged yet. */
  readonly begun?: BegunRow;
}

/** The decision about one job of a loss. `change` null: the loss is closed for this job and nothing is counted. */
export interface LossVerdict {
  readonly job: LostJob;
  readonly decision: transitions.CrashVerdict["decision"] | "none";
  readonly change: transitions.Change | null;
}

export interface LossDeps {
  readonly store: Store;
  readonly liveness: Liveness;
  readonly processState: WorkerCheck;
  readonly clock: Clock;
  readonly events: Emitter;
}

/** A worker that is away for this many leases is counted as dead. */
const AWAY_LEASES = 2;
/** A watcher whose passes run late by more than this has been asleep. */
const LATE_MS = 1_000;
/** At most this many jobs are judged in one transaction. */
const JUDGE_BATCH = 1_000;

export class LossJudge {
  readonly #deps: LossDeps;
  /** When this watcher first saw each unresolved loss (monotonic). */
  readonly #since = new Map<string, number>();
  #lastMono: number | null = null;

  constructor(deps: LossDeps) {
    this.#deps = deps;
  }

  /**
   * Resolves what can be resolved, then judges the jobs of resolved losses. A loss that fails does not hold up the
   * others. Called every `everyMs`.
   */
  async pass(everyMs: number): Promise<void> {
    const { store, events } = this.#deps;
    this.#restartIfAsleep(everyMs);
    const losses = await store.losses.open();
    this.#forgetAllBut(losses);
    for (const loss of losses) {
      try {
        const resolution = loss.resolution ?? (await this.#resolve(loss));
        if (resolution !== null) await this.#judge(loss, resolution);
      } catch (thrown) {
        events.emit("recovery.failed", { worker: loss.worker?.id ?? loss.incident, error: toStoredError(thrown) });
      }
    }
  }

  /**
   * This watcher slept, or could not reach the store. What it missed in that time proves nothing about other workers.
   */
  restart(): void {
    const mono = this.#deps.clock.mono();
    for (const incident of this.#since.keys()) this.#since.set(incident, mono);
  }

  #restartIfAsleep(everyMs: number): void {
    const mono = this.#deps.clock.mono();
    if (this.#lastMono !== null && mono - this.#lastMono > 2 * everyMs + LATE_MS) this.restart();
    this.#lastMono = mono;
  }

  async #resolve(loss: Loss): Promise<Resolution | null> {
    const resolution = loss.worker === null ? "away" : await this.#whatBecameOf(loss.incident, loss.worker);
    if (resolution === null) return null;
    if (loss.worker === null) return resolution;
    return this.#deps.store.losses.resolve(loss.worker.id, resolution);
  }

  async #whatBecameOf(incident: string, worker: WorkerRow): Promise<Resolution | null> {
    const { liveness, processState, clock } = this.#deps;
    if (processState(worker) === "gone" || (await liveness.probe(worker)) === "free") return "died";
    const mono = clock.mono();
    const since = this.#since.get(incident) ?? mono;
    this.#since.set(incident, since);
    return mono - since >= AWAY_LEASES * worker.leaseMs ? "away" : null;
  }

  async #judge({ incident, worker }: Loss, resolution: Resolution): Promise<void> {
    const { store, events } = this.#deps;
    for (;;) {
      const jobs = await store.losses.jobs(incident, JUDGE_BATCH);
      const verdicts = jobs.flatMap((job) => decideLoss(job, resolution) ?? []);
      const closed = await store.losses.judge(incident, verdicts);
      for (const { job, decision, change } of verdicts)
        if (decision === "quarantine")
          events.emit("job.quarantined", { jobId: job.id, kind: job.kind.name, reason: change?.reason ?? "" });
      if (closed) events.emit("loss.resolved", { incident, worker: worker?.id ?? null, resolution });
      if (closed || verdicts.length < JUDGE_BATCH) return;
    }
  }

  #forgetAllBut(losses: readonly Loss[]): void {
    const open = new Set(losses.map(({ incident }) => incident));
    for (const incident of this.#since.keys()) if (!open.has(incident)) this.#since.delete(incident);
  }
}

/**
 * Null: not now. A job that would be quarantined is judged only after its current attempt has ended, because that
 * attempt may still succeed.
 */
export function decideLoss(job: LostJob, resolution: Resolution): LossVerdict | null {
  if (job.state !== "queued" && job.state !== "running") return { job, decision: "none", change: null };
  // Whatever moved the job on also reset its counters; the losses counted on it now came later.
  // So did a row that was convicted meanwhile: then nothing of this loss is counted on the job any more.
  if (job.movedOn || job.counters.losses === 0) return { job, decision: "none", change: null };
  if (resolution === "returned") {
    const { decision, change } = transitions.forgetLoss(job, job.kind, "its lost worker returned; nothing is counted");
    return { job, decision, change };
  }
  const count = (view: transitions.JobView): transitions.CrashVerdict =>
    transitions.countLoss(view, job.kind, job.alone, resolution, job.deathsElsewhere, job.begun);
  if (job.state === "running" && count({ ...job, state: "queued" }).decision !== "retry") return null;
  return { job, ...count(job) };
}
