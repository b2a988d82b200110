// Schedules as the port wants them: one row each, with its due time in an index of its own. Firing moves the row and inserts the jobs in one
// transaction. Nothing is decided here.
import type { ScheduleRow } from "../../job/schedules.ts";
import {
  byZoneData,
  createdCount,
  damagedSchedule,
  type Declared,
  type DueSchedules,
  type Firing,
  type FiringAnswer,
  IN_BODY,
  NO_SCHEDULE,
  type PlannedJob,
  type ScheduleReview,
  type Schedules,
} from "../schedules.ts";
import { writeAudit } from "./audit.ts";
import { checksumOf, isIntact } from "./checksums.ts";
import type { Database } from "./database.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import type { FileAccess } from "./writer.ts";

const FIRST = "SELECT due_at FROM outlive_schedules WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1";
const DUE = `SELECT s.name, s.version, s.body, s.body_sum, ifnull(k.paused = 1 AND (k.paused_until IS NULL OR k.paused_until > ?1), 0) AS paused
  FROM outlive_schedules s LEFT JOIN outlive_kinds k ON k.name = s.kind
  WHERE s.due_at IS NOT NULL AND s.due_at <= ?1 ORDER BY s.due_at LIMIT ?2 + 0`;
const SELECT = "SELECT name, version, body, body_sum FROM outlive_schedules";
const AFTER = "SELECT min(due_at) AS due_at FROM outlive_schedules WHERE due_at > ?";
const MOVE =
  "UPDATE outlive_schedules SET version = version + 1, kind = ?, due_at = ?, body = ?, body_sum = ? WHERE name = ? AND version = ?";
const ADD =
  "INSERT INTO outlive_schedules (name, kind, version, due_at, body, body_sum) VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT DO NOTHING";
const PLAN =
  "INSERT INTO outlive_occurrences (job, schedule, at, caught_up) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
// With each firing some of the oldest go whose jobs were purged, so a purge need not look for them.
const FORGET = `DELETE FROM outlive_occurrences WHERE seq IN
    (SELECT seq FROM outlive_occurrences WHERE schedule = ? ORDER BY at LIMIT 10)
  AND NOT EXISTS (SELECT 1 FROM outlive_jobs j WHERE j.id = outlive_occurrences.job)`;
const PLANNED = "SELECT job, schedule, at, caught_up FROM outlive_occurrences";

export function schedules({ db, now, write, read }: FileAccess, kinds: Kinds): Schedules {
  return {
    due: (limit) => read(() => readDue(db, limit, now())),
    fire: (firings, entry) =>
      write(() => {
        const answers = firings.map((firing) => fire(db, kinds, firing, now()));
        writeAudit(db, entry, createdCount(answers), now());
        return answers;
      }),
    write: (row, entry) =>
      write(() => {
        const isWritten = writeRow(db, row);
        writeAudit(db, entry, isWritten ? 1 : 0, now());
        return isWritten;
      }),
    remove: (name, version, entry) =>
      write(() => {
        const remove = db.sql("DELETE FROM outlive_schedules WHERE name = ?1 AND (version = ?2 OR ?2 IS NULL)");
        const { changes } = remove.run(name, version);
        writeAudit(db, entry, Number(changes), now());
        return changes > 0;
      }),
    get: (name) =>
      read(() => {
        const row = db.sql(`${SELECT} WHERE name = ?`).get(name);
        return row === undefined ? null : rowOf(row as unknown as Columns);
      }),
    list: (limit, after) =>
      read(() =>
        (db.sql(`${SELECT} WHERE name > ? ORDER BY name LIMIT ? + 0`).all(after ?? "", limit) as unknown as Columns[])
          .filter(isSound)
          .map(rowOf),
      ),
    occurrences: (jobs) =>
      read(() => planned(db.sql(`${PLANNED} WHERE job IN (SELECT value FROM json_each(?))`).all(JSON.stringify(jobs)))),
    fired: (name, limit) =>
      read(() => planned(db.sql(`${PLANNED} WHERE schedule = ? ORDER BY at DESC, job LIMIT ? + 0`).all(name, limit))),
    declare: (worker, declared) => write(() => declare(db, worker, declared)),
    declared: () =>
      read(() =>
        (db.sql(DECLARED).all() as unknown as (Declared & { worker: string; zone_data: string })[]).map(
          ({ zone_data: zoneData, worker, schedule, digest }) => ({ worker, schedule, digest, zoneData }),
        ),
      ),
    noteZoneData: (worker, zoneData) =>
      write(() => declare(db, worker, [{ schedule: NO_SCHEDULE, digest: "", zoneData }])),
    review: () => read(() => review(db)),
    now: async () => now(),
  };
}

interface Columns {
  readonly name: string;
  readonly version: number;
  readonly body: string;
  readonly body_sum: number;
}

/** A flipped bit may have made another time of it, or another input: nothing is fired by such a row. */
function isSound({ name, body, body_sum }: Columns): boolean {
  return isIntact(body, name, body_sum);
}

function rowOf(columns: Columns): ScheduleRow {
  const { name, version, body } = columns;
  if (isSound(columns)) return { ...(JSON.parse(body) as ScheduleRow), version };
  throw damagedSchedule(name);
}

function readDue(db: Database, limit: number, now: number): DueSchedules {
  const first = db.sql(FIRST).get() as { due_at: number } | undefined;
  if (first === undefined) return { now, due: [], nextInMs: null };
  if (first.due_at > now) return { now, due: [], nextInMs: first.due_at - now };
  const rows = db.sql(DUE).all(now, limit) as unknown as (Columns & { paused: number })[];
  const due = rows.filter(isSound).map((columns) => ({ row: rowOf(columns), isKindPaused: columns.paused === 1 }));
  const damaged = rows.filter((columns) => !isSound(columns)).map(({ name }) => name);
  const later = (db.sql(AFTER).get(now) as { due_at: number | null }).due_at;
  const nextInMs = due.length === limit ? 0 : later === null ? null : later - now;
  return { now, due, nextInMs, ...(damaged.length > 0 && { damaged }) };
}

function fire(db: Database, kinds: Kinds, { row, jobs }: Firing, now: number): FiringAnswer {
  if (!writeRow(db, row)) return { is: "stale" };
  const enqueued = insertJobs(
    db,
    kinds,
    jobs.map(({ draft }) => draft),
    now,
  );
  const plan = db.sql(PLAN);
  for (const { draft, at, caughtUp } of jobs) plan.run(draft.id, row.name, at, caughtUp ? 1 : 0);
  if (jobs.length > 0) db.sql(FORGET).run(row.name);
  return { is: "fired", enqueued };
}

function writeRow(db: Database, row: ScheduleRow): boolean {
  const { version, ...rest } = row;
  const { name, kind, dueAt } = rest;
  const body = JSON.stringify(rest);
  const { changes } =
    version === 0
      ? db.sql(ADD).run(name, kind, dueAt, body, checksumOf(body, name))
      : db.sql(MOVE).run(kind, dueAt, body, checksumOf(body, name), name, version);
  return changes > 0;
}

function planned(rows: readonly unknown[]): PlannedJob[] {
  return (rows as { job: string; schedule: string; at: number; caught_up: number }[]).map(
    ({ job, schedule, at, caught_up }) => ({ job, schedule, at, caughtUp: caught_up === 1 }),
  );
}

// Only the declarations of workers whose row is live count: one that died declares nothing.
const LIVE = "SELECT id FROM outlive_workers WHERE state IN ('live', 'recovering')";
const DECLARED = `SELECT worker, schedule, digest, zone_data FROM outlive_declarations
  WHERE schedule <> '${NO_SCHEDULE}' AND worker IN (${LIVE}) ORDER BY schedule, worker`;
const UNDECLARED = `SELECT name FROM outlive_schedules WHERE instr(body, '${IN_BODY.declared}') > 0
  AND name NOT IN (SELECT schedule FROM outlive_declarations WHERE worker IN (${LIVE})) ORDER BY name`;
const ANY_ZONED = `SELECT 1 FROM outlive_schedules WHERE instr(body, '${IN_BODY.notZoned}') = 0 LIMIT 1`;
const ZONE_DATA = `SELECT DISTINCT worker, zone_data AS zoneData FROM outlive_declarations WHERE worker IN (${LIVE})`;

function review(db: Database): ScheduleReview {
  return {
    undeclared: (db.sql(UNDECLARED).all() as unknown as { name: string }[]).map(({ name }) => name),
    isAnyZoned: db.sql(ANY_ZONED).get() !== undefined,
    zoneData: byZoneData(db.sql(ZONE_DATA).all() as unknown as { worker: string; zoneData: string }[]),
  };
}

function declare(db: Database, worker: string, declared: readonly Declared[]): void {
  db.sql(`DELETE FROM outlive_declarations WHERE worker = ? OR worker NOT IN (${LIVE})`).run(worker);
  const add = db.sql("INSERT INTO outlive_declarations (worker, schedule, digest, zone_data) VALUES (?, ?, ?, ?)");
  for (const { schedule, digest, zoneData } of declared) add.run(worker, schedule, digest, zoneData);
}
