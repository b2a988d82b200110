// The scripts on a job's way: kinds are declared, jobs enqueued, claimed, written about and settled. Each checks everything that can be
// wrong before its first write. What is decided comes from job/; a script applies increments and chooses the alternative.
import * as transitions from "../../../src/job/transitions.ts";
import {
  boundOf,
  hasRoomForSuspects,
  type HeldSuspects,
  isSuspect,
  suspectsToTake,
} from "../../../src/job/isolation.ts";
import {
  type ClaimedJob,
  type HistoryEntry,
  isTerminal,
  JOB_STATES,
  type JobDraft,
  type KindSettings,
  NO_COUNTERS,
} from "../../../src/job/job.ts";
import type { Lease } from "../../../src/job/lease.ts";
import {
  AHEAD_BOUND_MS,
  APPLIED,
  type CorruptJob,
  type FencedWrite,
  MAX_LOG_LINES,
  REPEATED,
  type Room,
  type Settlement,
  triedBy,
  type TurnAnswer,
  type WriteAnswer,
} from "../../../src/stores/port.ts";
import { NEVER_DUE, NO_TIMEOUT } from "../../../src/stores/rows.ts";
import { beginRow, claimedBlock, endBlock, endRows } from "./blocks.ts";
import { assertDeclared, insertJobs } from "./enqueue.ts";
import { cancelChildren, noteNewChildren } from "./families.ts";
import { admitHeld, declareLimits, holdOff, nextRoomAt, returnStarts, spendStarts } from "./keys.ts";
import {
  type Data,
  isDue,
  isHeld,
  isKindPaused,
  type JobRecord,
  NOT_ADMITTED,
  type StepRecord,
  stepOwner,
  sumOf,
} from "./records.ts";
import { beginWait, consequences, keptWait, readSignal, waitDueAt } from "./waits.ts";
import { ownRow, whyReplaced } from "./workers.ts";

/** Refused writes kept in the history of one job. */
const MAX_REJECTIONS = 100;

export function declare(data: Data, kinds: readonly KindSettings[]): void {
  for (const settings of kinds) data.putKind({ paused: false, ...data.kind(settings.name), settings });
  declareLimits(
    data,
    kinds.flatMap(({ keyed = [] }) => keyed),
  );
}

export function turn(data: Data, worker: string, settlements: readonly Settlement[], room: Room): TurnAnswer {
  for (const { lease, change } of settlements) {
    const fault = faultOf(change);
    if (fault !== null) throw new TypeError(`The settlement of job ${lease.jobId} can't be written: ${fault}.`);
    const job = owned(data, lease);
    if (job !== null) assertDeclared(data, applicable(job, change).follow ?? []);
  }
  const followed: JobDraft[] = [];
  const settled = settlements.map((settlement) => settle(data, settlement, followed));
  // After the last settlement: a dedupe key that one of these jobs had is free then.
  insertJobs(data, followed);
  const replaced = whyReplaced(data, worker);
  if (ownRow(data, worker)?.state !== "live") {
    const nothing = { claimed: [], live: false, cancels: [], nextDueInMs: null };
    return { settled, ...nothing, ...(replaced !== null && { replaced }) };
  }
  const hasCancelled = cancelChildren(data, applyChange);
  const moreExpired = expireDue(data);
  const admitted = admitHeld(data, room);
  const claims = claim(data, worker, moreExpired ? { total: 0, kinds: [] } : room);
  const cancels = data.held(worker).flatMap(({ id, cancelRequested }) => (cancelRequested ? [id] : []));
  const dueInMs = hasCancelled || moreExpired ? 0 : nextDueInMs(data, [nextRoomAt(data), resumesAt(data)]);
  return { settled, ...claims, live: true, cancels, nextDueInMs: dueInMs, woken: admitted };
}

/** How many jobs one turn ends. Few, so that the simulator sees turns with more left. */
const PIECE = 3;

/** Returns whether more are left. */
function expireDue(data: Data): boolean {
  const due = data.queued().filter(({ state, fence, expiresAt }) => {
    return transitions.hasNotBegun(state, fence) && expiresAt !== null && expiresAt <= data.now;
  });
  for (const job of due.slice(0, PIECE))
    applyChange(data, job, transitions.EXPIRE, { actor: "system/expiry", incident: null });
  return due.length > PIECE;
}

/** When the first pause ends; null: none has an end. */
function resumesAt(data: Data): number | null {
  const ends = data.kindNames().flatMap((name) => {
    const kind = data.kind(name)!;
    return isKindPaused(kind, data.now) && kind.pause?.until ? [kind.pause.until] : [];
  });
  return ends.length === 0 ? null : Math.min(...ends);
}

/** `others`: when a key has room by time, and when a pause ends. */
function nextDueInMs(data: Data, others: readonly (number | null)[]): number | null {
  const delayed = data.queued().flatMap(({ runAt }) => (runAt === null || runAt >= NO_TIMEOUT ? [] : [runAt]));
  const expiring = data.queued().map(({ fence, expiresAt }) => (fence === 0 ? expiresAt : null));
  const due = [...delayed, ...[...others, ...expiring].filter((at) => at !== null)].map((at) => at - data.now);
  const waiting = due.filter((ms) => ms > 0);
  return waiting.length === 0 ? null : Math.min(...waiting);
}

function isClaimable(data: Data, name: string): boolean {
  const kind = data.kind(name);
  return kind !== null && !isKindPaused(kind, data.now);
}

/** The job if this attempt owns it now. */
function owned(data: Data, lease: Lease): JobRecord | null {
  const job = data.job(lease.row);
  if (job === null || job.id !== lease.jobId || job.state !== "running") return null;
  const isSame = job.fence === lease.fence && job.epoch === lease.epoch && job.worker === lease.worker;
  return isSame && ownRow(data, lease.worker) !== null ? job : null;
}

function settle(data: Data, { lease, change }: Settlement, followed: JobDraft[]): WriteAnswer {
  const job = owned(data, lease);
  if (job === null) return refused(data, lease, change.name, change);
  const { follow = [] } = applyChange(data, job, change, { actor: `worker/${lease.worker}`, incident: null });
  followed.push(...follow);
  return APPLIED;
}

/** The change, or its alternative if a cancel was requested. */
export function applicable(job: JobRecord, change: transitions.Change): transitions.Change {
  return job.cancelRequested ? (change.ifCancelled ?? change) : change;
}

/** Why a fenced write changed nothing: it was accepted before, or its attempt owns the job no more, which the job's history keeps. */
function refused(data: Data, lease: Lease, tried: string, change: transitions.Change | null): WriteAnswer {
  const found = data.job(lease.row);
  const job = found?.id === lease.jobId ? found : null;
  if (job && change?.outcome && wasAccepted(data, lease, job, change)) return REPEATED;
  if (job === null) return { is: "stale", stale: { lease, tried, state: "missing", worker: null, epoch: 0, fence: 0 } };
  const { state, worker, epoch, fence } = job;
  const rejections = data.history(job.row).filter(({ event }) => event === "write.rejected").length;
  if (rejections < MAX_REJECTIONS)
    data.addHistory(job.row, {
      at: data.now,
      event: "write.rejected",
      from: state,
      to: state,
      actor: `worker/${lease.worker}`,
      epoch: lease.epoch,
      attempt: lease.fence,
      ...attemptOf(job, lease.fence),
      reason: `refused: "${tried}" by worker ${lease.worker} with (epoch ${lease.epoch}, fence ${lease.fence})`,
      incident: null,
    });
  return { is: "stale", stale: { lease, tried, state, worker, epoch, fence } };
}

function wasAccepted(data: Data, lease: Lease, job: JobRecord, { name }: transitions.Change): boolean {
  const history = data
    .history(job.row)
    .filter(({ epoch, attempt }) => epoch === lease.epoch && attempt === lease.fence);
  if (name !== "succeed")
    return history.some(({ event, actor }) => event === name && actor === `worker/${lease.worker}`);
  const stands =
    job.epoch === lease.epoch &&
    job.fence === lease.fence &&
    job.state !== "running" &&
    job.worker === lease.worker &&
    job.outcome === "succeeded";
  return stands || history.some(({ event, from }) => event === "retry" && from === "succeeded");
}

/** Why a change can't be written; null: it can. */
export function faultOf(change: transitions.Change): string | null {
  if (!Object.hasOwn(transitions.CHANGES, change.name)) return `no change is called ${change.name}`;
  if (!JOB_STATES.includes(change.to)) return `${change.to} is not a state`;
  if (!Number.isFinite(change.delayMs)) return "its delay is not a number";
  for (const [counter, by] of Object.entries(change.add))
    if (!Object.hasOwn(NO_COUNTERS, counter) || !Number.isInteger(by)) return `${counter} can't grow by ${by}`;
  return change.ifCancelled === undefined ? null : faultOf(change.ifCancelled);
}

/** Writes the change, or its alternative if a cancel was requested, and its history. Returns which. */
export function applyChange(
  data: Data,
  job: JobRecord,
  change: transitions.Change,
  by: { readonly actor: string; readonly incident: string | null },
): transitions.Change {
  const { now } = data;
  const written = applicable(job, change);
  const { to, outcome, error, result } = written;
  if (written.name === "succeed") {
    const resultSum = sumOf(result, job.id);
    data.putJob({ ...job, state: to, outcome, finishedAt: now, result, resultSum, ...NOT_ADMITTED });
    if (written.rows) endRows(data, job, written.rows, true);
    endBlock(data, job.row, to);
    consequences(data, job.row, true);
    return written;
  }
  data.putJob({
    ...job,
    counters: transitions.afterChange(job.counters, written),
    state: to,
    outcome: outcome ?? job.outcome,
    error: error ?? job.error,
    runAt: dueAt(written, now),
    finishedAt: now,
    incident: to === "queued" ? by.incident : null,
    together: written.together ?? (written.resets ? 0 : job.together),
    cancelRequested: false,
    ...NOT_ADMITTED,
  });
  addHistory(data, job, written, by);
  if (written.unstarted) returnStarts(data, job);
  if (written.rows) endRows(data, job, written.rows);
  if (isTerminal(to) && !isTerminal(job.state)) endBlock(data, job.row, to);
  if (written.wait) beginWait(data, job.row, written.wait);
  if (isTerminal(to) !== isTerminal(job.state)) consequences(data, job.row, isTerminal(to));
  return written;
}

export function addHistory(
  data: Data,
  job: JobRecord,
  { name, to, reason }: transitions.Change,
  { actor, incident }: { readonly actor: string; readonly incident: string | null },
): void {
  if (reason === null) return;
  const { row, state: from, epoch, fence: attempt } = job;
  data.addHistory(row, {
    at: data.now,
    event: name,
    from,
    to,
    actor,
    epoch,
    attempt,
    ...attemptOf(job, attempt),
    reason,
    incident,
  });
}

/** When the attempt of an entry of the history started, and who ran it. The job knows this only of its latest attempt. */
export function attemptOf(job: JobRecord, attempt: number): Pick<HistoryEntry, "startedAt" | "owner"> {
  const isLatest = attempt > 0 && attempt === job.fence;
  return { startedAt: isLatest ? job.startedAt : null, owner: isLatest ? job.worker : null };
}

/** When a job that a change queues again is due; null: at once, or it is not queued. */
export function dueAt({ to, waitsForResolution, wait, delayMs }: transitions.Change, now: number): number | null {
  if (to !== "queued") return null;
  if (waitsForResolution) return NEVER_DUE;
  if (wait) return waitDueAt(wait, now);
  return delayMs > 0 ? now + delayMs : null;
}

const NO_SUSPECTS: HeldSuspects = { count: 0, together: null, oldestFirst: false };

/** By priority, then by age, of all kinds within their rooms; of the suspects as many as fit with those that the worker holds. */
function claim(data: Data, worker: string, room: Room): Pick<TurnAnswer, "claimed"> & { corrupt?: CorruptJob[] } {
  const { suspects: held = NO_SUSPECTS } = room;
  const claimed: ClaimedJob[] = [];
  const corrupt: CorruptJob[] = [];
  const open = new Map(room.kinds.flatMap((one) => (isClaimable(data, one.kind) ? [[one.kind, one]] : [])));
  const { total, ahead: asked = 0 } = room;
  if (total + asked === 0 || open.size === 0) return { claimed };
  const ready = data.queued().filter((job) => open.has(job.kind) && isDue(job, data.now));
  const waiting = ready.flatMap((job) => (isSuspect(job.counters) ? [{ job, together: bound(job) }] : []));
  waiting.sort(
    (a, b) =>
      b.job.priority - a.job.priority || (held.oldestFirst ? 0 : b.together - a.together) || a.job.row - b.job.row,
  );
  const fitting = new Set(suspectsToTake(withinRooms(waiting, open, total), held).map(({ job }) => job.row));
  const isAtGate = (job: JobRecord): boolean => job.fair !== null && open.has(job.kind) && isHeld(job, data.now);
  const comesFirst = (waiting.length > 0 && hasRoomForSuspects(held)) || data.queued().some(isAtGate);
  const ahead = comesFirst ? 0 : asked;
  const candidates = ready.filter(({ row, counters }) => !isSuspect(counters) || fitting.has(row));
  candidates.sort((a, b) => b.priority - a.priority || a.row - b.row);
  const taken = new Map<string | null, number>();
  for (const job of candidates) {
    const { room: most, shares = false, ahead: waits = false } = open.get(job.kind)!;
    if (claimed.length >= total && (claimed.length >= total + ahead || !waits)) break;
    if (claimed.length < total) {
      const place = shares ? null : job.kind;
      const count = taken.get(place) ?? 0;
      if (count >= most) continue;
      taken.set(place, count + 1);
    }
    const one = take(data, worker, job, asked > 0 ? AHEAD_BOUND_MS : 0);
    if ("change" in one) corrupt.push(one);
    else claimed.push(one);
  }
  return corrupt.length === 0 ? { claimed } : { claimed, corrupt };
}

/** Of each kind only as many as it has room for: what is left behind must not take the place of another suspect. */
function withinRooms<W extends { readonly job: JobRecord }>(
  waiting: readonly W[],
  open: ReadonlyMap<string, Room["kinds"][number]>,
  total: number,
): W[] {
  const counts = new Map<string, number>();
  return waiting.filter(({ job: { kind } }) => {
    const count = counts.get(kind) ?? 0;
    counts.set(kind, count + 1);
    return count < Math.min(open.get(kind)!.room, total);
  });
}

export function bound({ together, counters: { crashes, losses } }: JobRecord): number {
  return boundOf({ together, crashes, losses });
}

/** What is claimed and not what was stored is quarantined at once. */
function take(data: Data, worker: string, job: JobRecord, boundMs: number): ClaimedJob | CorruptJob {
  const { now } = data;
  const { kind, id: jobId, row, input, counters } = job;
  const { epoch } = data.meta();
  const { timeoutMs } = data.kind(kind)!.settings;
  const fence = job.fence + 1;
  const deadlineAt = timeoutMs === null ? null : now + timeoutMs + boundMs;
  const running: JobRecord = {
    ...job,
    state: "running",
    worker,
    epoch,
    fence,
    startedAt: now,
    deadlineAt,
    incident: null,
  };
  const lease = { jobId, kind, row, worker, epoch, fence };
  const steps = data.steps(row);
  const what = [...(inputIsIntact(job) ? [] : ["input"]), ...brokenSteps(jobId, steps)];
  if (what.length > 0) {
    const change = transitions.quarantine({ id: jobId, state: "running", counters }, what);
    applyChange(data, running, change, { actor: `worker/${worker}`, incident: null });
    return { lease, kind, change };
  }
  data.putJob(running);
  spendStarts(data, running);
  const listed = job.incident === null ? null : data.incidentJob(job.incident, row);
  if (listed !== null && listed.resumedAt === null) data.putIncidentJob(job.incident!, { ...listed, resumedAt: now });
  const wait = keptWait(data, row);
  return {
    lease,
    kind,
    input,
    deadlineInMs: timeoutMs,
    together: isSuspect(counters) ? bound(job) : null,
    counters,
    lastOutcome: job.outcome,
    steps: steps.map(({ name, result }) => ({ name, result })),
    ...(wait && { wait }),
    ...claimedBlock(data, row),
  };
}

export function inputIsIntact({ id, input, inputSum }: JobRecord): boolean {
  return sumOf(input, id) === inputSum;
}

export function resultIsIntact({ id, result, resultSum }: JobRecord): boolean {
  return sumOf(result, id) === resultSum;
}

export function brokenSteps(id: string, steps: readonly StepRecord[]): string[] {
  return steps.flatMap(({ name, result, sum }) => (sumOf(result, stepOwner(id, name)) === sum ? [] : [`step ${name}`]));
}

/** No small write ends an attempt, so that who owns what is the same before the first of them as before the last. */
export function write(data: Data, writes: readonly FencedWrite[]): WriteAnswer[] {
  for (const { lease, write: one } of writes)
    if (one.type === "enqueue" && owned(data, lease)) assertDeclared(data, one.drafts);
  return writes.map(({ lease, write: one }) => {
    const job = owned(data, lease);
    return job === null ? refused(data, lease, triedBy(one), null) : writeOne(data, job, one);
  });
}

function writeOne(data: Data, job: JobRecord, one: FencedWrite["write"]): WriteAnswer {
  const { now } = data;
  const { row, fence: attempt } = job;
  switch (one.type) {
    case "step": {
      const steps = data.steps(row);
      if (steps.some(({ name }) => name === one.name)) break;
      const sum = sumOf(one.result, stepOwner(job.id, one.name));
      data.putSteps(row, [...steps, { name: one.name, result: one.result, sum, at: now, attempt }]);
      if (isSuspect(job.counters))
        data.putJob({ ...job, counters: { ...job.counters, crashes: 0, blamed: 0, losses: 0 } });
      break;
    }
    case "progress":
      data.putJob({ ...job, progress: one.value });
      break;
    case "log":
      data.putLog(row, [...data.log(row), { at: now, attempt, message: one.message }].slice(-MAX_LOG_LINES));
      break;
    case "heartbeat": {
      const { timeoutMs, maxRuntimeMs } = data.kind(job.kind)!.settings;
      if (timeoutMs === null) break;
      const cap = maxRuntimeMs === null ? Number.POSITIVE_INFINITY : job.startedAt + maxRuntimeMs;
      data.putJob({ ...job, deadlineAt: Math.min(now + timeoutMs, cap) });
      break;
    }
    case "enqueue":
      noteNewChildren(data, row);
      return { is: "applied", enqueued: insertJobs(data, one.drafts, row) };
    case "holdOff":
      holdOff(data, one.key, now + one.forMs);
      break;
    case "signal":
      return { is: "applied", signal: readSignal(data, job, one) };
    case "rows":
      endRows(data, job, one.ends);
      break;
    case "rowBegins":
      beginRow(data, job, one.row);
      break;
  }
  return APPLIED;
}
