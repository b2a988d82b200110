// The scripts about schedules: a row moves and its jobs are inserted in one of them, under guard of the version that was read.
import type { AuditEntry } from "../../../src/job/audit.ts";
import type { JobDraft } from "../../../src/job/job.ts";
import type { ScheduleRow } from "../../../src/job/schedules.ts";
import {
  byZoneData,
  createdCount,
  type Declared,
  type DueSchedules,
  type Firing,
  type FiringAnswer,
  IN_BODY,
  NO_SCHEDULE,
  type PlannedJob,
  type ScheduleReview,
} from "../../../src/stores/schedules.ts";
import { audit } from "./audit.ts";
import { assertDeclared, insertJobs } from "./enqueue.ts";
import { type Data, isKindPaused } from "./records.ts";

const ROWS = "schedules";
/** What a job was planned for, by its id. It goes with the job. */
const PLANNED = "planned";
/** What a worker declares, by its id. */
const DECLARED = "declaredSchedules";

function read<T>(data: Data, table: string, field: string): T | null {
  const text = data.keys.get(table, field);
  return text === null ? null : (JSON.parse(text) as T);
}

function all(data: Data): ScheduleRow[] {
  return data.keys
    .fields(ROWS)
    .toSorted()
    .map((name) => read<ScheduleRow>(data, ROWS, name)!);
}

function isPresent(data: Data, { name, version }: ScheduleRow): boolean {
  return (read<ScheduleRow>(data, ROWS, name)?.version ?? 0) === version;
}

function put(data: Data, row: ScheduleRow): void {
  data.keys.set(ROWS, row.name, JSON.stringify({ ...row, version: row.version + 1 }));
}

export function dueSchedules(data: Data, limit: number): DueSchedules {
  const timed = all(data).flatMap((row) => (row.dueAt === null ? [] : [{ row, dueAt: row.dueAt }]));
  const sorted = timed.toSorted((a, b) => a.dueAt - b.dueAt);
  const due = sorted.filter(({ dueAt }) => dueAt <= data.now).slice(0, limit);
  const next = sorted.find(({ dueAt }) => dueAt > data.now);
  return {
    now: data.now,
    due: due.map(({ row }) => {
      const kind = data.kind(row.kind);
      return { row, isKindPaused: kind !== null && isKindPaused(kind, data.now) };
    }),
    nextInMs: due.length === limit ? 0 : next === undefined ? null : next.dueAt - data.now,
  };
}

export function fireSchedules(data: Data, firings: readonly Firing[], entry?: AuditEntry | null): FiringAnswer[] {
  const isFired = firings.map(({ row }) => isPresent(data, row));
  assertDeclared(
    data,
    firings.flatMap(({ jobs }, at) => (isFired[at] ? jobs.map(({ draft }) => draft) : [])),
  );
  const answers = firings.map(({ row, jobs }, at): FiringAnswer => {
    if (!isFired[at]) return { is: "stale" };
    put(data, row);
    const enqueued = insertJobs(
      data,
      jobs.map(({ draft }): JobDraft => draft),
    );
    for (const [i, { at: occurrence, caughtUp }] of jobs.entries()) {
      const { id: job, created } = enqueued[i]!;
      const planned: PlannedJob = { job, schedule: row.name, at: occurrence, caughtUp };
      if (created) data.keys.set(PLANNED, job, JSON.stringify(planned));
    }
    return { is: "fired", enqueued };
  });
  audit(data, entry, createdCount(answers));
  return answers;
}

export function writeSchedule(data: Data, row: ScheduleRow, entry?: AuditEntry | null): boolean {
  if (!isPresent(data, row)) return false;
  put(data, row);
  audit(data, entry, 1);
  return true;
}

export function removeSchedule(data: Data, name: string, version: number | null, entry?: AuditEntry | null): boolean {
  const row = read<ScheduleRow>(data, ROWS, name);
  if (row === null || (version !== null && row.version !== version)) return false;
  data.keys.delete(ROWS, name);
  audit(data, entry, 1);
  return true;
}

export function getSchedule(data: Data, name: string): ScheduleRow | null {
  return read(data, ROWS, name);
}

export function listSchedules(data: Data, limit: number, after: string | null): ScheduleRow[] {
  return all(data)
    .filter(({ name }) => after === null || name > after)
    .slice(0, limit);
}

export function occurrences(data: Data, jobs: readonly string[]): PlannedJob[] {
  return jobs.flatMap((id) => (data.jobById(id) === null ? [] : (read<PlannedJob>(data, PLANNED, id) ?? [])));
}

export function firedJobs(data: Data, name: string, limit: number): PlannedJob[] {
  const planned = data.keys.fields(PLANNED).map((id) => read<PlannedJob>(data, PLANNED, id)!);
  return planned
    .filter(({ schedule, job }) => schedule === name && data.jobById(job) !== null)
    .toSorted((a, b) => b.at - a.at)
    .slice(0, limit);
}

export function declareSchedules(data: Data, worker: string, declared: readonly Declared[]): void {
  for (const id of data.keys.fields(DECLARED)) if (!isLive(data, id)) data.keys.delete(DECLARED, id);
  data.keys.set(DECLARED, worker, JSON.stringify(declared));
}

export function noteZoneData(data: Data, worker: string, zoneData: string): void {
  declareSchedules(data, worker, [{ schedule: NO_SCHEDULE, digest: "", zoneData }]);
}

export function declaredSchedules(data: Data): (Declared & { readonly worker: string })[] {
  return noted(data).filter(({ schedule }) => schedule !== NO_SCHEDULE);
}

/** In the order of their names, as `all` is. */
export function reviewSchedules(data: Data): ScheduleReview {
  const notes = noted(data);
  const declared = new Set(notes.map(({ schedule }) => schedule));
  const bodies = all(data).map((row) => ({ name: row.name, body: JSON.stringify(row) }));
  return {
    undeclared: bodies
      .filter(({ name, body }) => body.includes(IN_BODY.declared) && !declared.has(name))
      .map(({ name }) => name),
    isAnyZoned: bodies.some(({ body }) => !body.includes(IN_BODY.notZoned)),
    zoneData: byZoneData(notes),
  };
}

/** What live workers declare, and the notes of those that declare nothing. */
function noted(data: Data): (Declared & { readonly worker: string })[] {
  return data.keys
    .fields(DECLARED)
    .toSorted()
    .filter((id) => isLive(data, id))
    .flatMap((worker) => read<readonly Declared[]>(data, DECLARED, worker)!.map((one) => ({ worker, ...one })));
}

function isLive(data: Data, id: string): boolean {
  return data.worker(id)?.state === "live";
}

export function scheduleClock(data: Data): number {
  return data.now;
}
