// Taking over what the dead held. One incident per death, in transactions of at most 1,000 jobs. It needs no user code and no
// particular process, can be killed at any point and run by anybody again: the next pass goes on where this one ended.
import type { Clock } from "./clock.ts";
import { toStoredError } from "./errors.ts";
import { NOTHING_CHECKED, type StoreFindings } from "./integrity.ts";
import type { Emitter } from "./events.ts";
import { type Death, type HowLost, isProof, type Liveness, type WorkerRow } from "./liveness.ts";
import type { HeldJob, OverdueJob, RecoveredJob, Store } from "./store.ts";
import * as transitions from "./transitions.ts";
import { ranAlone } from "./blame.ts";
import { backoffMs } from "./retry.ts";
import type { Random } from "./clock.ts";

export const RECOVERY_BATCH = 1_000;

export interface RecoveryDeps {
  readonly store: Store;
  readonly liveness: Liveness;
  readonly clock: Clock;
  readonly events: Emitter;
  /** Makes ids for recovery passes. */
  readonly newId: () => string;
}

export interface RecoveryPass {
  readonly recovery: string;
  readonly startedAt: number;
  readonly completedAt: number;
  readonly incidents: readonly string[];
  readonly jobs: readonly RecoveredJob[];
}

/** Recovers everything that these dead workers held. A worker whose recovery fails is told about and left for the next pass. */
export async function recoverDead(
  deps: RecoveryDeps,
  dead: readonly { readonly worker: WorkerRow; readonly death: Death }[],
  by: string,
  findings: StoreFindings = NOTHING_CHECKED,
  signal?: AbortSignal,
  recovery: string = deps.newId(),
): Promise<RecoveryPass> {
  const { clock, events } = deps;
  const startedAt = clock.now();
  const startedMono = clock.mono();
  const told = findings === NOTHING_CHECKED ? {} : { findings };
  events.emit("recovery.started", { recovery, by, ...told });
  const incidents: string[] = [];
  const jobs: RecoveredJob[] = [];
  for (const { worker, death } of dead) {
    if (signal?.aborted) break;
    try {
      const done = await recoverWorker(deps, worker, death, { id: recovery, startedAt, by, ...findings }, signal);
      if (!done) continue;
      incidents.push(done.incident);
      jobs.push(...done.jobs);
    } catch (thrown) {
      events.emit("recovery.failed", { worker: worker.id, error: toStoredError(thrown) });
    }
  }
  const failed = jobs.filter((job) => !job.success).length;
  const durationMs = clock.mono() - startedMono;
  events.emit("recovery.completed", { recovery, by, incidents, jobs: jobs.length, failed, durationMs, ...told });
  return { recovery, startedAt, completedAt: clock.now(), incidents, jobs };
}

async function recoverWorker(
  deps: RecoveryDeps,
  worker: WorkerRow,
  death: Death,
  recovery: { id: string; startedAt: number; by: string; integrity: string; walFrames: number },
  signal: AbortSignal | undefined,
): Promise<{ incident: string; jobs: RecoveredJob[] } | null> {
  const { store, events } = deps;
  const jobs: RecoveredJob[] = [];
  const newIncident = deps.newId();
  await deps.liveness.evict?.(worker);
  for (;;) {
    const answer = await store.recover({
      worker,
      death,
      recovery,
      incident: newIncident,
      limit: RECOVERY_BATCH,
      decide: decideCrash,
    });
    const { incident } = answer;
    if (incident === null) return null;
    if (jobs.length === 0)
      events.emit("worker.gone", {
        worker: worker.id,
        how: death.how,
        incident,
        evidence: death.evidence,
      });
    for (const job of answer.jobs) {
      jobs.push(job);
      events.emit("job.recovered", { ...job, incident, worker: worker.id });
      if (job.decision === "quarantine")
        events.emit("job.quarantined", {
          jobId: job.jobId,
          kind: job.kind,
          reason: `it killed ${job.counters.blamed} workers while it ran alone`,
        });
    }
    if (answer.done) {
      await clean(deps, worker);
      return { incident, jobs };
    }
    if (signal?.aborted) return { incident, jobs };
  }
}

/** The decision about one job of a worker that is dead, or with which contact was lost: only a proven death is counted now. */
export function decideCrash(job: HeldJob, heldAtDeath: number, how: HowLost): transitions.CrashVerdict {
  if (!isProof(how)) return transitions.lose(job, job.kind, job.cancelRequested);
  return transitions.crash(job, job.kind, ranAlone(heldAtDeath), job.cancelRequested, job.deathsElsewhere);
}

/** A lock file that can't be removed now is found again by the next open; it harms nobody. */
async function clean(deps: RecoveryDeps, worker: WorkerRow): Promise<void> {
  try {
    if (await deps.liveness.clean(worker))
      deps.events.emit("worker.cleaned", { worker: worker.id, lock: worker.lock.name });
  } catch (thrown) {
    deps.events.emit("store.failed", {
      doing: `removing the lock of ${worker.id}`,
      error: toStoredError(thrown),
      retryInMs: 0,
    });
  }
}

/** Fences out what is past deadline and grace although its worker lives: the worker did not do it itself. */
export async function expireOverdue(
  deps: Pick<RecoveryDeps, "store" | "events"> & { random: Random },
  marginMs: number,
): Promise<readonly OverdueJob[]> {
  const kinds = new Map<string, string>();
  const overdue = await deps.store.expire(marginMs, RECOVERY_BATCH, (job) => {
    kinds.set(job.id, job.kind.name);
    return decideOverdue(job, deps.random.next());
  });
  for (const { jobId, worker, change } of overdue) {
    const kind = kinds.get(jobId)!;
    deps.events.emit("job.overdue", { jobId, kind, worker, fencedOut: true });
    if (change.to === "dead") deps.events.emit("job.dead", { jobId, kind, reason: change.reason ?? "" });
  }
  return overdue;
}

export function decideOverdue(job: HeldJob, random: number): transitions.Change {
  if (job.cancelRequested) return transitions.endCancelled(job, "cancelled, and past its deadline");
  return transitions.timeOut(job, job.kind, backoffMs(job.kind.backoff, job.counters.timeouts + 1, random));
}

/** Workers that are over but still hold jobs: their recovery could not deal with all of them, and tries again. */
export function leftBehind(workers: readonly WorkerRow[], now: number): { worker: WorkerRow; death: Death }[] {
  return workers.map((worker) => ({
    worker,
    death: {
      how: "gone",
      lastSeenAliveAt: null,
      detectedAt: now,
      evidence: `it was ${worker.state} and still held ${worker.heldCount} job(s)`,
    },
  }));
}
