// The scripts of recovery: a worker is condemned, what it holds is read, what was decided is written under guard; and losses of contact
// as they are kept. The decisions are made between the calls, in recovery/.
import { BACKGROUND_MS, isOnTrial, isSuspect, ranAlone } from "../../../src/job/isolation.ts";
import { isTerminal } from "../../../src/job/job.ts";
import { afterChange } from "../../../src/job/transitions.ts";
import { TRUSTED } from "../../../src/recovery/confirmed-time.ts";
import { withLastWord } from "../../../src/recovery/incident.ts";
import type { Loss, LossVerdict, LostJob } from "../../../src/recovery/losses.ts";
import { isProof } from "../../../src/stores/liveness.ts";
import {
  type Condemned,
  type CondemnRequest,
  type HeldJob,
  type HeldJobs,
  type HeldQuery,
  type Overdue,
  type RecoveredJob,
  recoveredJob,
  type TakeBackAnswer,
  type TakeBackRequest,
  type Taken,
  type Verdict,
} from "../../../src/stores/port.ts";
import { NEVER_DUE } from "../../../src/stores/rows.ts";
import { toStoredError } from "../../../src/job/errors.ts";
import { addHistory, applicable, applyChange, dueAt, faultOf } from "./attempts.ts";
import { begunRow, endBlock, endRows } from "./blocks.ts";
import { assertDeclared, insertJobs } from "./enqueue.ts";
import {
  type Data,
  type IncidentJobRecord,
  type IncidentRecord,
  type JobRecord,
  NOT_ADMITTED,
  type WorkerRecord,
} from "./records.ts";
import { consequences } from "./waits.ts";
import { isOpenLoss, workerRow } from "./workers.ts";

const ACTOR = "system/recovery";
const MAX_LOSSES = 100;

export function condemn(data: Data, request: CondemnRequest): Condemned | null {
  const worker = data.worker(request.worker.id);
  if (worker === null || !isDead(data, request, worker)) return null;
  const known = worker.incident === null ? null : data.incident(worker.incident);
  return known ? goOn(data, worker, known) : openIncident(data, worker, request);
}

function isDead(data: Data, { worker: { beats, lock }, death }: CondemnRequest, worker: WorkerRecord): boolean {
  if (worker.state === "live")
    return isProof(death.how) || (worker.beats === beats && worker.lock.identity === lock.identity);
  return worker.state === "recovering" || data.holds(worker.id);
}

function openIncident(data: Data, worker: WorkerRecord, request: CondemnRequest): Condemned {
  const { worker: dead, death, recovery, incident: id } = request;
  const held = data.held(worker.id);
  const heldAtDeath = held.length;
  const suspectsAtDeath = held.filter(({ counters }) => isSuspect(counters)).length;
  data.putIncident({
    id,
    recovery: recovery.id,
    worker: dead.id,
    how: death.how,
    resolution: null,
    detectedAt: death.detectedAt,
    completedAt: null,
    host: dead.host,
    pid: dead.pid,
    version: dead.version,
    workerStartedAt: dead.startedAt,
    lastHeartbeatAt: dead.heartbeatAt,
    lastSeenAliveAt: death.lastSeenAliveAt,
    loopLagMs: dead.loopLagMs,
    evidence: withLastWord(death.evidence, worker.lastWord),
    startedAt: Math.min(recovery.startedAt, data.now),
    by: recovery.by,
    integrity: recovery.integrity,
    summary: recovery.summary,
    heldAtDeath,
    suspectsAtDeath,
    cursor: 0,
    judgedAt: null,
  });
  data.putWorker({ ...worker, state: "recovering", incident: id });
  const inFlight = { heldAtDeath, suspectsAtDeath };
  return { worker: worker.id, incident: id, opened: true, cursor: 0, how: death.how, ...inFlight };
}

/** One that was closed with jobs that could not be recovered is opened again. */
function goOn(data: Data, worker: WorkerRecord, known: IncidentRecord): Condemned {
  const { id: incident, how, heldAtDeath, suspectsAtDeath, completedAt } = known;
  const cursor = completedAt === null ? known.cursor : 0;
  if (completedAt !== null) {
    data.putIncident({ ...known, completedAt: null, cursor, judgedAt: null });
    data.putWorker({ ...worker, state: "recovering" });
  }
  return { worker: worker.id, incident, opened: false, cursor, how, heldAtDeath, suspectsAtDeath };
}

export function heldBy(data: Data, query: HeldQuery): HeldJobs {
  return "condemned" in query
    ? heldByCondemned(data, query.condemned, query.limit)
    : overdueJobs(data, query.overdue, query.limit);
}

function heldByCondemned(data: Data, condemned: Condemned, limit: number): HeldJobs {
  const rest = data.held(condemned.worker).filter(({ row }) => row > condemned.cursor);
  const jobs = rest.slice(0, limit).map((job) => {
    const alone = ranAlone(job.counters, condemned);
    return heldJob(data, job, deathsElsewhere(data, job, alone, condemned.incident));
  });
  return { jobs, more: jobs.length === limit };
}

function overdueJobs(data: Data, { marginMs, confirmed = TRUSTED }: Overdue, limit: number): HeldJobs {
  const now = Math.min(data.now, confirmed.asOf);
  const overdue = data.running().filter(({ kind, deadlineAt }) => {
    const { graceMs, timeoutMs } = data.kind(kind)!.settings;
    if (deadlineAt === null || (timeoutMs ?? 0) + graceMs + marginMs >= confirmed.steadyMs) return false;
    return deadlineAt + graceMs + marginMs < now;
  });
  overdue.sort((a, b) => a.deadlineAt! - b.deadlineAt!);
  const jobs = overdue.slice(0, limit).map((job) => heldJob(data, job, 0));
  return { jobs, more: jobs.length === limit };
}

function heldJob(data: Data, job: JobRecord, deaths: number): HeldJob {
  const { id, row, worker, epoch, fence, counters, deadlineAt } = job;
  const kind = data.kind(job.kind)!.settings;
  const lastStep = data.steps(row).at(-1)?.name ?? null;
  const guard = { row, worker: worker!, epoch, fence };
  const begun = begunRow(data, job);
  return { id, state: "running", ...guard, counters, kind, deadlineAt, lastStep, deathsElsewhere: deaths, ...begun };
}

/** As the port says of `HeldJob.deathsElsewhere`: read only where a verdict depends on it. */
function deathsElsewhere(data: Data, job: JobRecord, alone: boolean, incident: string): number {
  const { row, counters, kind } = job;
  if (!isOnTrial(counters, alone, data.kind(kind)!.settings.limits)) return 0;
  const crashes = data.history(row).filter(({ event }) => event === "crash" || event === "countLoss");
  const counted = counters.crashes === 0 ? [] : crashes.slice(-counters.crashes);
  const since = Math.min(data.now - BACKGROUND_MS, ...counted.map(({ at }) => at));
  return data.incidents().filter(({ id, how, resolution, completedAt }) => {
    const isDeath = isProof(how) || resolution === "died" || resolution === "away";
    const isMeanwhile = completedAt === null || completedAt >= since;
    return id !== incident && isDeath && isMeanwhile && data.incidentJob(id, row) === null;
  }).length;
}

export function takeBack(data: Data, { verdicts, of, last }: TakeBackRequest): TakeBackAnswer {
  const worker = of && data.worker(of.worker);
  const incident = of && data.incident(of.incident);
  if (of && (worker?.incident !== of.incident || incident === null)) return { taken: verdicts.map(() => "moved") };
  const taken = verdicts.map((verdict) => {
    const one = take(data, verdict, of?.incident ?? null);
    const job = recoveredJob(verdict, one);
    if (of && job) putIncidentJob(data, of.incident, verdict.job.row, job);
    return one;
  });
  if (of) {
    const cursor = Math.max(incident!.cursor, verdicts.at(-1)?.job.row ?? of.cursor);
    data.putIncident({ ...incident!, cursor, completedAt: incident!.completedAt ?? (last ? data.now : null) });
    if (last) data.putWorker({ ...worker!, state: "gone" });
  }
  return { taken };
}

/** What can't be written of one job is its own failure: it is checked before anything of this job is written. */
function take(data: Data, { job: read, change }: Verdict, incident: string | null): Taken {
  if (change === null) return "taken";
  const fault = faultOf(change);
  if (fault !== null) return { refused: fault };
  const job = data.job(read.row);
  if (job === null || job.id !== read.id || job.state !== "running") return "moved";
  if (job.worker !== read.worker || job.epoch !== read.epoch || job.fence !== read.fence) return "moved";
  if (incident === null && job.deadlineAt !== read.deadlineAt) return "moved";
  const { follow = [] } = applicable(job, change);
  try {
    assertDeclared(data, follow);
  } catch (thrown) {
    return { refused: toStoredError(thrown).message };
  }
  const written = applyChange(data, job, change, { actor: ACTOR, incident });
  insertJobs(data, follow);
  return written === change ? "taken" : "cancelled";
}

function putIncidentJob(data: Data, incident: string, row: number, job: RecoveredJob): void {
  const known = data.incidentJob(incident, row);
  const { decision, counters, success, error } = job;
  const record: IncidentJobRecord = known
    ? { ...known, decision, counters, success, error }
    : { ...job, row, resumedAt: null, judgement: null };
  data.putIncidentJob(incident, record);
}

export function openLosses(data: Data): Loss[] {
  const open = data.incidents().filter((incident) => isOpenLoss(incident) && incident.completedAt !== null);
  return open.slice(0, MAX_LOSSES).map(({ id: incident, worker: id, resolution }) => {
    const worker = data.worker(id);
    return { incident, worker: worker && workerRow(data, worker), resolution };
  });
}

export function lostJobs(data: Data, incident: string, limit: number): LostJob[] {
  return unjudged(data, incident)
    .slice(0, limit)
    .map(({ job, lost }): LostJob => {
      const { id, row, state, epoch, fence, counters } = job;
      const kind = data.kind(job.kind)!.settings;
      const { alone } = lost;
      const hasNewStep = data.steps(row).some(({ attempt }) => attempt > lost.fence);
      const wasRetried = data.history(row).some(({ event, attempt }) => event === "retry" && attempt >= lost.fence);
      const movedOn = hasNewStep || wasRetried;
      const deaths = deathsElsewhere(data, job, alone, incident);
      const begun = begunRow(data, job);
      return { id, row, state, epoch, fence, counters, kind, alone, movedOn, deathsElsewhere: deaths, ...begun };
    });
}

function unjudged(data: Data, incident: string): { lost: IncidentJobRecord; job: JobRecord }[] {
  return data.incidentJobs(incident).flatMap((lost) => {
    const job = lost.decision === "lost" && lost.judgement === null ? data.job(lost.row) : null;
    return job?.id === lost.jobId ? [{ lost, job }] : [];
  });
}

export function judge(data: Data, incident: string, verdicts: readonly LossVerdict[]): boolean {
  for (const { job, change } of verdicts) {
    const fault = change && faultOf(change);
    if (fault) throw new TypeError(`The verdict on job ${job.id} can't be written: ${fault}.`);
    assertDeclared(data, change?.follow ?? []);
  }
  for (const verdict of verdicts) {
    const listed = data.incidentJob(incident, verdict.job.row);
    if (listed === null || !judgeOne(data, incident, verdict)) continue;
    data.putIncidentJob(incident, { ...listed, judgement: verdict.decision });
  }
  const loss = data.incident(incident);
  if (unjudged(data, incident).length > 0 || loss === null) return false;
  if (loss.judgedAt !== null || loss.resolution === null) return false;
  data.putIncident({ ...loss, judgedAt: data.now });
  return true;
}

/** False: the job has moved on since it was read. A delayed job keeps its time, and a running one everything but its counters. */
function judgeOne(data: Data, incident: string, { job: read, change }: LossVerdict): boolean {
  if (change === null) return true;
  const job = data.job(read.row);
  if (job === null || job.id !== read.id || job.state !== read.state) return false;
  const { crashes, blamed, losses } = job.counters;
  const same = read.counters;
  if (job.epoch !== read.epoch || job.fence !== read.fence) return false;
  if (crashes !== same.crashes || blamed !== same.blamed || losses !== same.losses) return false;
  const { now } = data;
  const waits = job.state === "queued" && (job.runAt === null || job.runAt <= now || job.runAt === NEVER_DUE);
  data.putJob({
    ...job,
    state: change.to,
    counters: afterChange(job.counters, change),
    outcome: change.outcome ?? job.outcome,
    error: change.error ?? job.error,
    runAt: waits ? dueAt(change, now) : job.runAt,
    finishedAt: change.to === "quarantined" ? now : job.finishedAt,
    // As everything that changes where a job waits: it is admitted again. A running job counts as it is.
    ...NOT_ADMITTED,
  });
  addHistory(data, job, change, { actor: ACTOR, incident });
  if (change.rows) endRows(data, job, change.rows);
  if (isTerminal(change.to)) endBlock(data, job.row, change.to);
  if (isTerminal(change.to)) consequences(data, job.row, true);
  insertJobs(data, change.follow ?? []);
  return true;
}
