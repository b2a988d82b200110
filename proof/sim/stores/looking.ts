// The scripts for people and for upkeep: jobs, counts and incidents as they are read, what is changed by hand, retention and checks.
import type { ByHand } from "../../../src/job/transitions.ts";
import { ANY_NUMBER, isSuspect } from "../../../src/job/isolation.ts";
import { isTerminal, type JobDetails, type JobInfo, type JobState, type KindRetention } from "../../../src/job/job.ts";
import type { JobKey } from "../../../src/job/limits.ts";
import type { Incident, IncidentSummary } from "../../../src/recovery/incident.ts";
import type {
  CancelOptions,
  JobFilter,
  KindCounts,
  ListPage,
  OperatorAnswer,
  PurgeAnswer,
  PurgeRequest,
  StoreHealth,
  WorkerSuspects,
} from "../../../src/stores/port.ts";
import { cursorAt, NEVER_DUE, NO_TIMEOUT, rowOfCursor, storedValue } from "../../../src/stores/rows.ts";
import { applyChange, attemptOf, bound, brokenSteps, inputIsIntact, resultIsIntact } from "./attempts.ts";
import { wrongSums } from "./blocks.ts";
import { cancelFamily } from "./families.ts";
import { doorOf } from "./keys.ts";
import { type Data, type IncidentRecord, isDue, isFresh, isHeld, isKindPaused, type JobRecord } from "./records.ts";
import { forgetWaits, waitsAt } from "./waits.ts";

function jobInfo(data: Data, job: JobRecord): JobInfo {
  const isClaimed = job.fence > 0;
  const isNeverDue = job.state === "queued" && job.runAt === NEVER_DUE;
  // A block of a batch that is held has not begun.
  const waitsForResolution = isNeverDue && isClaimed;
  return {
    id: job.id,
    kind: job.kind,
    state: job.state,
    priority: job.priority,
    dedupeKey: job.dedupeKey,
    createdAt: job.createdAt,
    runAt: isNeverDue || job.runAt === NO_TIMEOUT ? null : job.runAt,
    startedAt: isClaimed ? job.startedAt : null,
    deadlineAt: isClaimed ? job.deadlineAt : null,
    finishedAt: isTerminal(job.state) ? job.finishedAt : null,
    worker: job.worker,
    epoch: job.epoch,
    attempt: job.fence,
    counters: job.counters,
    together: isSuspect(job.counters) && bound(job) < ANY_NUMBER ? bound(job) : 0,
    lastOutcome: job.outcome,
    error: job.error,
    cancelRequested: job.cancelRequested,
    parent: job.parent === null ? null : (data.job(job.parent)?.id ?? null),
    waitsAt: waitsAt(data, job),
    keys: job.keys.map(named),
    heldBy: isHeld(job, data.now) ? heldBy(data, job) : null,
    waitsForResolution,
    ...(job.latestAt !== null && { latestAt: job.latestAt }),
    ...(job.expiresAt !== null && job.state === "queued" && !isClaimed && { expiresAt: job.expiresAt }),
  };
}

function heldBy(data: Data, job: JobRecord): JobDetails["heldBy"] {
  const door = doorOf(data, job);
  const key = job.keys.find(({ id }) => id === door);
  return key ? named(key) : { ...named(job.keys.find(({ id }) => id === job.fair)!), turn: true };
}

function named({ limit, key }: JobKey): Pick<JobKey, "limit" | "key"> {
  return { limit, key };
}

export function getJob(data: Data, id: string): JobDetails | null {
  const job = data.jobById(id);
  if (job === null) return null;
  const steps = data.steps(job.row);
  return {
    ...jobInfo(data, job),
    input: storedValue(job.input),
    result: storedValue(job.result),
    progress: storedValue(job.progress),
    steps: steps.map(({ name, result, at, attempt }) => ({ name, result: storedValue(result), at, attempt })),
    history: data.history(job.row),
    log: data.log(job.row),
    corrupt: corruptParts(data, job),
    ...(job.trace !== null && { trace: job.trace }),
  };
}

function corruptParts(data: Data, job: JobRecord): string[] {
  return [
    ...(inputIsIntact(job) ? [] : ["input"]),
    ...(resultIsIntact(job) ? [] : ["result"]),
    ...brokenSteps(job.id, data.steps(job.row)),
  ];
}

export function listJobs(data: Data, filter: JobFilter, limit: number, after: string | null): ListPage {
  const before = after === null ? Number.MAX_SAFE_INTEGER : rowOfCursor(after);
  const { state, kind, parent, text, createdBefore, createdAfter } = filter;
  const parentRow = parent === undefined ? null : (data.jobById(parent)?.row ?? -1);
  const found = data.jobs().filter((job) => {
    if (job.row >= before || (state !== undefined && job.state !== state)) return false;
    if (kind !== undefined && job.kind !== kind) return false;
    if (parentRow !== null && job.parent !== parentRow) return false;
    if (createdBefore !== undefined && job.createdAt >= createdBefore) return false;
    if (createdAfter !== undefined && job.createdAt <= createdAfter) return false;
    const texts = [job.id, job.dedupeKey ?? "", job.error === null ? "" : JSON.stringify(job.error)];
    return text === undefined || texts.some((one) => one.includes(text));
  });
  const page = found.toReversed().slice(0, limit);
  return {
    jobs: page.map((job) => jobInfo(data, job)),
    next: found.length > limit ? cursorAt(page.at(-1)!.row) : null,
  };
}

export function counts(data: Data): KindCounts[] {
  const all = data.jobs();
  return data.kindNames().map((kind) => {
    const jobs = all.filter((job) => job.kind === kind);
    const first = jobs.find((job) => isFresh(job, data.now));
    const inState = (state: JobState): number => jobs.filter((job) => job.state === state).length;
    const ready = jobs.filter((job) => isDue(job, data.now)).length;
    const held = jobs.filter((job) => isHeld(job, data.now)).length;
    return {
      kind,
      paused: isKindPaused(data.kind(kind)!, data.now),
      ...(isKindPaused(data.kind(kind)!, data.now) && { pause: data.kind(kind)!.pause! }),
      ready,
      delayed: inState("queued") - ready - held,
      held,
      running: inState("running"),
      oldestReadyMs: first ? Math.max(0, data.now - Math.max(first.createdAt, first.runAt ?? 0)) : null,
      succeeded: inState("succeeded"),
      dead: inState("dead"),
      cancelled: inState("cancelled"),
      quarantined: inState("quarantined"),
    };
  });
}

export function ahead(data: Data, id: string): number | null {
  const job = data.jobById(id);
  if (job === null || !isFresh(job, data.now)) return null;
  return data.queued().filter((other) => {
    const isBefore = other.priority > job.priority || (other.priority === job.priority && other.row < job.row);
    return other.kind === job.kind && isBefore && isFresh(other, data.now);
  }).length;
}

export function heldSuspects(data: Data): WorkerSuspects[] {
  return data.workers().flatMap(({ id, state }) => {
    const suspects = data.held(id).filter(({ counters }) => isSuspect(counters));
    if (state !== "live" || suspects.length === 0) return [];
    return [{ worker: id, count: suspects.length, together: Math.min(...suspects.map(bound)) }];
  });
}

export function incidents(data: Data, limit: number, after: string | null): IncidentSummary[] {
  const older = data.incidents().filter(({ id }) => after === null || id < after);
  return older
    .toReversed()
    .slice(0, limit)
    .map((incident) => {
      const { id, recovery, worker, how, resolution, detectedAt, completedAt } = incident;
      const jobCount = data.incidentJobs(id).length;
      return { id, recovery, worker, how, resolution, detectedAt, completedAt, jobCount };
    });
}

export function incident(data: Data, id: string): Incident | null {
  const found = data.incident(id);
  return found && wholeIncident(data, found);
}

export function latestRecovery(data: Data): Incident[] {
  const all = data.incidents();
  const latest = all.at(-1)?.recovery;
  return all.filter(({ recovery }) => recovery === latest).map((found) => wholeIncident(data, found));
}

function wholeIncident(data: Data, found: IncidentRecord): Incident {
  const { suspectsAtDeath: _, cursor: __, judgedAt: ___, ...rest } = found;
  const jobs = data.incidentJobs(found.id).map(({ row: ____, judgement: _____, ...job }) => job);
  return { ...rest, jobCount: jobs.length, jobs };
}

export function health(data: Data): StoreHealth {
  const { run, epoch, writes } = data.meta();
  return { ok: true, summary: ["simulated"], detail: { run: run ?? data.keys.run, epoch, writes } };
}

/** Applies the change that core made for the state in which the job is found. */
export function applyByHand(
  data: Data,
  id: string,
  by: ByHand,
  actor: string,
  options: CancelOptions | null = null,
): OperatorAnswer {
  const job = data.jobById(id);
  if (job === null) return { is: "missing" };
  const { row, state, kind, dedupeKey, epoch, fence: attempt } = job;
  const children = options?.children ?? false;
  if (children && (state === "running" || state === "queued" || state === "cancelled")) cancelFamily(data, row, actor);
  if (children && state === "cancelled") return { is: "applied", state };
  const change = by.changes[state];
  if (change === undefined) {
    if (state !== "running" || by.request === null) return { is: "wrong-state", state };
    data.putJob({ ...job, cancelRequested: true });
    const entry = {
      at: data.now,
      event: "cancel.requested",
      from: state,
      to: state,
      actor,
      epoch,
      attempt,
      ...attemptOf(job, attempt),
    };
    data.addHistory(row, { ...entry, reason: by.request, incident: null });
    return { is: "requested" };
  }
  // Nothing is left of it that could run.
  if (change.name === "retry" && job.outcome === "removed") return { is: "missing" };
  const batch = change.to === "queued" ? data.blockOf(row)?.batch : undefined;
  if (batch !== undefined) return { is: "of-batch", batch };
  const holder = change.name === "retry" ? data.keyHolder(kind, dedupeKey) : null;
  if (holder) return { is: "key-held", holder: holder.id, dedupeKey: dedupeKey! };
  const before = change.resets ? { ...job, result: null, resultSum: null, expiresAt: null } : job;
  applyChange(data, before, change, { actor, incident: change.name === "promote" ? job.incident : null });
  if (change.name === "retry") data.deleteFamily(row);
  return { is: "applied", state: change.to };
}

export function isLimited(data: Data, kind: string): boolean {
  const { keyed = [], fair = false } = data.kind(kind)?.settings ?? {};
  return keyed.length > 0 || fair;
}

/** A walk by rows, a piece at a time, that ends at the first job that is too young to have finished long ago. */
export function purge(data: Data, request: PurgeRequest): PurgeAnswer {
  const keptMs = ({ kind, state }: JobRecord): number =>
    data.kind(kind)!.settings.retention?.[state as keyof KindRetention] ?? request.finishedOlderThanMs;
  const own = data.kindNames().flatMap((name) => Object.values(data.kind(name)!.settings.retention ?? {}));
  const before = data.now - Math.min(request.finishedOlderThanMs, ...own);
  const incidentsBefore = data.now - request.incidentsOlderThanMs;
  const { purgedUpTo } = data.meta();
  const rows = data.rows().filter((row) => row > purgedUpTo);
  const looked = rows.slice(0, request.limit).map((row) => data.job(row)!);
  const last = looked.at(-1);
  const isAtEnd = looked.length < request.limit || last!.createdAt >= before;
  const old = data.incidents().filter(({ completedAt }) => completedAt !== null && completedAt < incidentsBefore);
  const over = data.workers().filter(({ id, state, heartbeatAt }) => {
    const isOver = state === "gone" || state === "stopped";
    return isOver && heartbeatAt < incidentsBefore && !data.holds(id);
  });
  // Its parent may still ask how it ended, and a block goes with its batch.
  const isKept = ({ row, parent }: JobRecord): boolean => {
    if (data.blockOf(row) !== null) return true;
    const job = parent === null ? null : data.job(parent);
    return job !== null && !isTerminal(job.state);
  };
  const finished = looked.filter(
    (job) => isTerminal(job.state) && job.finishedAt < data.now - keptMs(job) && !isKept(job),
  );
  for (const job of finished) {
    forgetWaits(data, job.row);
    data.deleteJob(job);
  }
  const gone = old.slice(0, request.limit);
  for (const { id } of gone) data.deleteIncident(id);
  for (const { id } of over) data.deleteWorker(id);
  if (data.audit().some(({ at }) => at < incidentsBefore))
    data.putAudit(data.audit().filter(({ at }) => at >= incidentsBefore));
  const next = isAtEnd ? 0 : last!.row;
  if (next !== purgedUpTo) data.putMeta({ purgedUpTo: next });
  return { jobs: finished.length, incidents: gone.length, more: !isAtEnd || gone.length === request.limit };
}

const MAX_FINDINGS = 100;

/** Every text against its checksum, and every index against the jobs. */
export function integrity(data: Data): string[] {
  const corrupt = data
    .jobs()
    .flatMap((job) =>
      corruptParts(data, job).map((what) => `the ${what} of job ${job.id} does not match its checksum`),
    );
  return [...data.wrongIndexes(), ...wrongSums(data), ...corrupt].slice(0, MAX_FINDINGS);
}
