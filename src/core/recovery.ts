// Taking over what the dead held. One incident per death, in transactions of at most 1,000 jobs. It needs no user code and no
// particular process, can be killed at any point and run by anybody again: the next pass goes on where this one ended.
import { type Clock, pause } from "./clock.ts";
import type { ConfirmedTime } from "./confirmed-time.ts";
import { toStoredError } from "./errors.ts";
import { integrityText, NOTHING_CHECKED, type StoreFindings } from "./integrity.ts";
import type { Emitter } from "./events.ts";
import { type Death, type HowLost, isProof, type Liveness, type WorkerRow } from "./liveness.ts";
import type { HeldJob, OverdueJob, RecoveredJob, RecoverRequest, Store } from "./store.ts";
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
  /** What other sessions hold: to be asked for again soon, with `recoverLocked`. */
  readonly locked: readonly LockedRecovery[];
  /** Workers of which nothing, or not all, could be recovered; the next pass tries again. */
  readonly failed: readonly FailedRecovery[];
}

export interface FailedRecovery {
  readonly worker: string;
  readonly error: string;
}

/** The recovery of a worker of which another session holds something: a frozen commit holds its job. */
export interface LockedRecovery {
  readonly worker: WorkerRow;
  readonly death: Death;
  readonly recovery: RecoverRequest["recovery"];
  /** Null: not begun, the worker's own row is held. */
  readonly incident: string | null;
  readonly jobs: number;
}

/** Most sessions that were ended a moment ago release their locks within these pauses. */
const LOCKED_AGAIN_MS = [25, 50, 100];

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
  const pass = { id: recovery, startedAt, by, integrity: integrityText(findings), walFrames: findings.walFrames };
  const asked = dead.map((one) => ({ ...one, recovery: pass, incident: null, jobs: 0 }));
  const { incidents, jobs, failed: failures, ...first } = await recoverEach(deps, asked, signal);
  let { locked } = first;
  for (const ms of LOCKED_AGAIN_MS) {
    if (locked.length === 0 || signal?.aborted) break;
    await pause(clock, ms, signal);
    const again = await recoverEach(deps, locked, signal);
    for (const incident of again.incidents) if (!incidents.includes(incident)) incidents.push(incident);
    jobs.push(...again.jobs);
    failures.push(...again.failed);
    locked = again.locked;
  }
  for (const { worker, jobs: count } of locked) events.emit("recovery.waits", { worker: worker.id, jobs: count });
  const failed = jobs.filter((job) => !job.success).length;
  const durationMs = clock.mono() - startedMono;
  events.emit("recovery.completed", { recovery, by, incidents, jobs: jobs.length, failed, durationMs, ...told });
  return { recovery, startedAt, completedAt: clock.now(), incidents, jobs, locked, failed: failures };
}

/** Tries again for what other sessions held. Emits events only about what was taken. Returns what is still held. */
export async function recoverLocked(
  deps: RecoveryDeps,
  locked: readonly LockedRecovery[],
): Promise<readonly LockedRecovery[]> {
  return (await recoverEach(deps, locked, undefined)).locked;
}

/** One after the other. A failure is reported and stops none of the others. */
async function recoverEach(
  deps: RecoveryDeps,
  asked: readonly LockedRecovery[],
  signal: AbortSignal | undefined,
): Promise<{ incidents: string[]; jobs: RecoveredJob[]; locked: LockedRecovery[]; failed: FailedRecovery[] }> {
  const all = {
    incidents: [] as string[],
    jobs: [] as RecoveredJob[],
    locked: [] as LockedRecovery[],
    failed: [] as FailedRecovery[],
  };
  for (const one of asked) {
    if (signal?.aborted) break;
    try {
      const { incident, jobs, locked } = await recoverWorker(deps, one, signal);
      if (incident !== null) all.incidents.push(incident);
      all.jobs.push(...jobs);
      // Its sessions were ended when its row was live; by now its process may work under a new id.
      if (locked > 0)
        all.locked.push({ ...one, worker: { ...one.worker, state: "recovering" }, incident, jobs: locked });
    } catch (thrown) {
      const error = toStoredError(thrown);
      all.failed.push({ worker: one.worker.id, error: error.message });
      deps.events.emit("recovery.failed", { worker: one.worker.id, error });
    }
  }
  return all;
}

async function recoverWorker(
  deps: RecoveryDeps,
  { worker, death, recovery, incident: known }: LockedRecovery,
  signal: AbortSignal | undefined,
): Promise<{ incident: string | null; jobs: RecoveredJob[]; locked: number }> {
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
    const { incident, locked = 0 } = answer;
    if (incident === null) return { incident, jobs, locked };
    if (jobs.length === 0 && known === null)
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
      if (locked === 0) await clean(deps, worker);
      return { incident, jobs, locked };
    }
    if (signal?.aborted) return { incident, jobs, locked };
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

/** Fences out what is past deadline and grace although its worker lives: the worker did not do it itself. A stepped clock proves nothing. */
export async function expireOverdue(
  deps: Pick<RecoveryDeps, "store" | "events"> & { random: Random },
  marginMs: number,
  confirmed: ConfirmedTime,
): Promise<readonly OverdueJob[]> {
  const kinds = new Map<string, string>();
  const decide = (job: HeldJob): transitions.Change => {
    kinds.set(job.id, job.kind.name);
    return decideOverdue(job, deps.random.next());
  };
  const overdue = await deps.store.expire(marginMs, RECOVERY_BATCH, decide, confirmed);
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
