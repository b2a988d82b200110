// Takes over what dead workers held: one incident per death, in transactions of at most 1,000 jobs. It needs no user
// code and no particular process. It can be killed at any point, and any process can run it again: the next pass
// continues where this one ended.
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import { type InFlight, ranAlone } from "../job/isolation.ts";
import { backoffMs } from "../job/job.ts";
import { decisionAfterDeath, isRequestKind } from "../job/requests.ts";
import { type Clock, pause, type Random } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import { integrityText, NOTHING_CHECKED, type StoreFindings } from "../stores/store-parts.ts";
import { type Death, isProof, type Liveness, type WorkerRow } from "../stores/liveness.ts";
import {
  type Condemned,
  type CondemnRequest,
  type HeldJob,
  type HeldQuery,
  type Overdue,
  type OverdueJob,
  type PassRecord,
  type RecoveredJob,
  recoveredJob,
  type Store,
  type Verdict,
} from "../stores/port.ts";
import type { ConfirmedTime } from "./confirmed-time.ts";
import { counted } from "../job/text.ts";

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
  /** What other sessions have locked: retry soon with `recoverLocked`. */
  readonly locked: readonly LockedRecovery[];
  /** Workers that could not be recovered, or only in part; the next pass tries again. */
  readonly failed: readonly FailedRecovery[];
}

export interface FailedRecovery {
  readonly worker: string;
  readonly error: string;
}

/** The recovery of a worker blocked by a lock of another session: for example, a frozen commit holds its job. */
export interface LockedRecovery {
  readonly worker: WorkerRow;
  readonly death: Death;
  readonly recovery: PassRecord;
  /** Null: not begun, because the worker's own row is locked. */
  readonly incident: string | null;
  readonly jobs: number;
}

/** Most sessions that were just terminated release their locks within these pauses. */
const LOCKED_AGAIN_MS = [25, 50, 100];

/**
 * Recovers everything that these dead workers held. A worker whose recovery fails is reported and left for the next
 * pass.
 */
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
  const checked = findings === NOTHING_CHECKED ? {} : { findings };
  events.emit("recovery.started", { recovery, by, workers: dead.length, ...checked });
  const pass = { id: recovery, startedAt, by, integrity: integrityText(findings), summary: findings.summary ?? null };
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
  events.emit("recovery.completed", { recovery, by, incidents, jobs: jobs.length, failed, durationMs, ...checked });
  return { recovery, startedAt, completedAt: clock.now(), incidents, jobs, locked, failed: failures };
}

/** Retries what other sessions had locked. Emits events only for what it took. Returns what is still locked. */
export async function recoverLocked(
  deps: RecoveryDeps,
  locked: readonly LockedRecovery[],
): Promise<readonly LockedRecovery[]> {
  return (await recoverEach(deps, locked, undefined)).locked;
}

/** Runs one after the other. A failure is reported and does not stop the others. */
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
      // Its sessions were terminated while its row was live; by now its process may work under a new id.
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
  { worker, death, recovery }: LockedRecovery,
  signal: AbortSignal | undefined,
): Promise<{ incident: string | null; jobs: RecoveredJob[]; locked: number }> {
  const { store, events } = deps;
  const jobs: RecoveredJob[] = [];
  const request = { worker, death, recovery, incident: deps.newId() };
  await deps.liveness.evict?.(worker);
  for (;;) {
    const { incident, opened, done, locked = 0, ...batch } = await recoverBatch(store, request, RECOVERY_BATCH);
    if (incident === null) return { incident, jobs, locked };
    // Recoveries that share an incident report the death once.
    if (opened)
      events.emit("worker.gone", {
        worker: worker.id,
        how: death.how,
        incident,
        evidence: death.evidence,
      });
    for (const job of batch.jobs) {
      jobs.push(job);
      const isRequest = batch.requests?.has(job.kind) === true;
      events.emit("job.recovered", { ...job, incident, worker: worker.id, isRequest });
      if (job.decision === "quarantine")
        events.emit("job.quarantined", {
          jobId: job.jobId,
          kind: job.kind,
          reason: `it killed ${job.counters.blamed} workers while it ran alone`,
        });
    }
    if (done) {
      if (locked === 0) await clean(deps, worker);
      return { incident, jobs, locked };
    }
    if (signal?.aborted) return { incident, jobs, locked };
  }
}

/** The result of one batch of a recovery. */
export interface RecoveredBatch {
  /** Null: the worker was not dead, or its recovery was already finished; nothing was written. */
  readonly incident: string | null;
  /** This batch opened the incident. */
  readonly opened: boolean;
  readonly jobs: readonly RecoveredJob[];
  /** Those of their kinds that are requests. Omitted: none are. */
  readonly requests?: ReadonlySet<string>;
  /** False: more jobs are left; call again. */
  readonly done: boolean;
  /**
   * How many jobs are locked by transactions of other sessions; omitted: none. With `incident: null`, the worker's own
   * row is locked.
   */
  readonly locked?: number;
}

/**
 * Condemns the worker, reads at most `limit` jobs that it holds, decides about each, and takes them back. A decision
 * that throws fails only its own job.
 */
export async function recoverBatch(
  store: Store,
  request: CondemnRequest,
  limit: number,
  decide: typeof decideCrash = decideCrash,
): Promise<RecoveredBatch> {
  const condemned = await store.condemn(request);
  if (condemned === null) return { incident: null, opened: false, jobs: [], done: true };
  if (condemned === "locked")
    return { incident: null, opened: false, jobs: [], done: true, locked: Math.max(1, request.worker.heldCount) };
  const { incident } = condemned;
  const { jobs: held, more } = await store.heldBy({ condemned, limit });
  const verdicts = held.map((job) => verdictOn(job, condemned, decide));
  const { taken, locked } = await store.takeBack({ verdicts, of: condemned, last: !more });
  const jobs = verdicts.flatMap((verdict, at) => recoveredJob(verdict, taken[at]!) ?? []);
  const requests = new Set(held.flatMap(({ kind }) => (isRequestKind(kind) ? [kind.name] : [])));
  const of = { ...(requests.size > 0 && { requests }), ...(locked !== undefined && { locked }) };
  return { incident, opened: condemned.opened, jobs, done: !more, ...of };
}

function verdictOn(job: HeldJob, condemned: Condemned, decide: typeof decideCrash): Verdict {
  const alone = ranAlone(job.counters, condemned);
  try {
    return { job, alone, ...decide(job, condemned), error: null };
  } catch (thrown) {
    return { job, alone, decision: "none", change: null, error: toStoredError(thrown).message };
  }
}

/** Decides about one job of a worker that is dead or has lost contact. Only a proven death is counted now. */
export function decideCrash(job: HeldJob, condemned: InFlight & Pick<Condemned, "how">): transitions.CrashVerdict {
  const verdict = isProof(condemned.how)
    ? transitions.crash(job, job.kind, condemned, job.deathsElsewhere, job.begun)
    : transitions.lose(job, job.kind, condemned);
  const { decision, change } = verdict;
  if (!isRequestKind(job.kind) || change.to !== "queued") return verdict;
  const { waitsForResolution = false } = change;
  return { change, decision: waitsForResolution ? decision : decisionAfterDeath(job.kind, job.lastStep, job.fence) };
}

/** A lock file that can't be removed now does no harm: the next open finds it again. */
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

/**
 * Fences out jobs past deadline and grace whose worker is alive but did not end them itself. A stepped clock proves
 * nothing.
 */
export async function expireOverdue(
  deps: Pick<RecoveryDeps, "store" | "events"> & { random: Random },
  marginMs: number,
  confirmed: ConfirmedTime,
): Promise<readonly OverdueJob[]> {
  const overdue = await expireBatch(
    deps.store,
    { overdue: { marginMs, confirmed }, limit: RECOVERY_BATCH },
    deps.random,
  );
  for (const { jobId, kind, worker, change } of overdue) {
    deps.events.emit("job.overdue", { jobId, kind, worker, fencedOut: true });
    if (change.to === "dead") deps.events.emit("job.dead", { jobId, kind, reason: change.reason ?? "" });
  }
  return overdue;
}

/** Reads overdue jobs, decides about each, and takes them from their workers. Returns what it took. */
export async function expireBatch(
  store: Store,
  query: Extract<HeldQuery, { readonly overdue: Overdue }>,
  random: Random,
): Promise<readonly OverdueJob[]> {
  const { jobs: overdue } = await store.heldBy(query);
  if (overdue.length === 0) return [];
  const verdicts = overdue.map((job): Verdict => {
    const change = decideOverdue(job, random.next());
    return { job, alone: false, decision: change.to === "dead" ? "fail" : "retry", change, error: null };
  });
  const { taken } = await store.takeBack({ verdicts, of: null, last: false });
  return verdicts.flatMap(({ job, change }, at): OverdueJob[] => {
    const is = taken[at];
    if (is !== "taken" && is !== "cancelled") return [];
    const written = is === "cancelled" ? change!.ifCancelled! : change!;
    return [{ jobId: job.id, kind: job.kind.name, worker: job.worker, change: written }];
  });
}

export function decideOverdue(job: HeldJob, random: number): transitions.Change {
  const delayMs = backoffMs(job.kind.backoff, job.counters.timeouts + 1, random);
  const ifCancelled = transitions.endCancelled(job, "cancelled, and past its deadline");
  return { ...transitions.timeOut(job, job.kind, delayMs), ifCancelled };
}

/** Finished workers that still hold jobs: their recovery could not handle all of them and has to be retried. */
export function leftBehind(workers: readonly WorkerRow[], now: number): { worker: WorkerRow; death: Death }[] {
  return workers.map((worker) => ({
    worker,
    death: {
      how: "gone",
      lastSeenAliveAt: null,
      detectedAt: now,
      evidence: `it was ${worker.state} and still held ${counted(worker.heldCount, "job")}`,
    },
  }));
}
