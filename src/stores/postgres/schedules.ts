// Schedules as the port wants them: one row each, with its due time in an index of its own. Firing moves the rows and inserts the jobs in one
// transaction. Nothing is decided here.
import type { AuditEntry } from "../../job/audit.ts";
import type { Enqueued } from "../../job/job.ts";
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
  type Schedules,
} from "../schedules.ts";
import { writeAudit } from "./audit.ts";
import type { Connection } from "./connection.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import { checksumSql, isIntactSql, isPausedSql, list, type Session, texts } from "./statements.ts";

const SOUND = isIntactSql("s.body", "s.name", "s.body_sum");
const SELECT = `SELECT s.name, s.version, s.body, ${SOUND} AS sound FROM outlive.schedule_rows s`;
// One statement whether anything is due or not, and two looks at one index if nothing is.
const DUE = `SELECT outlive.now_ms() AS now, (SELECT min(n.due_at) FROM outlive.schedule_rows n WHERE n.due_at > outlive.now_ms()) AS next, d.*
  FROM (SELECT 1) one LEFT JOIN LATERAL (
    SELECT s.name, s.version, s.body, ${SOUND} AS sound, coalesce(${isPausedSql("k.")}, false) AS paused
    FROM outlive.schedule_rows s LEFT JOIN outlive.kinds k ON k.name = s.kind
    WHERE s.due_at IS NOT NULL AND s.due_at <= outlive.now_ms() ORDER BY s.due_at LIMIT $1) d ON true`;
const ADD = `INSERT INTO outlive.schedule_rows (name, kind, version, due_at, body, body_sum)
  VALUES ($1, $2, 1, $3, $4, ${checksumSql("$4", "$1")}) ON CONFLICT DO NOTHING`;
const MOVE = `UPDATE outlive.schedule_rows s SET version = s.version + 1, kind = u.kind, due_at = u.due_at, body = u.body, body_sum = ${checksumSql("u.body", "u.name")}
  FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[]) AS u (name, version, kind, due_at, body)
  WHERE s.name = u.name AND s.version = u.version RETURNING s.name`;
const REMOVE = "DELETE FROM outlive.schedule_rows WHERE name = $1 AND (version = $2 OR $2 IS NULL)";
// In one order, so that two who fire the same ones wait for each other instead of deadlocking.
const LOCK = "SELECT 1 FROM outlive.schedule_rows WHERE name = ANY ($1::text[]) ORDER BY name FOR NO KEY UPDATE";
const PLAN = `INSERT INTO outlive.occurrences (job, schedule, at, caught_up)
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::boolean[]) ON CONFLICT DO NOTHING`;
// With each firing some of the oldest go whose jobs were purged, so a purge need not look for them.
const FORGET = `DELETE FROM outlive.occurrences o USING unnest($1::text[]) AS u (name)
  WHERE o.job IN (SELECT p.job FROM outlive.occurrences p WHERE p.schedule = u.name ORDER BY p.at LIMIT 10)
  AND NOT EXISTS (SELECT 1 FROM outlive.job_ids j WHERE j.id = o.job)`;
const PLANNED = 'SELECT job, schedule, at, caught_up AS "caughtUp" FROM outlive.occurrences';
/** Only the declarations of workers whose row is live count: one that died declares nothing. */
const LIVE = "SELECT id FROM outlive.fleet WHERE state IN ('live', 'recovering')";
const UNDECLARED = `SELECT name FROM outlive.schedule_rows WHERE strpos(body, '${IN_BODY.declared}') > 0
  AND name NOT IN (SELECT schedule FROM outlive.declarations WHERE worker IN (${LIVE})) ORDER BY name`;
const ANY_ZONED = `SELECT 1 FROM outlive.schedule_rows WHERE strpos(body, '${IN_BODY.notZoned}') = 0 LIMIT 1`;
const ZONE_DATA = `SELECT DISTINCT worker, zone_data AS "zoneData" FROM outlive.declarations WHERE worker IN (${LIVE})`;

export function schedules(connection: Connection, kinds: Kinds): Schedules {
  return {
    due: (limit) => readDue(connection, limit),
    fire: (firings, entry) =>
      connection.transaction(async (tx) => {
        const answers = await fire(tx, kinds, firings);
        await writeAudit(tx, entry, createdCount(answers));
        return answers;
      }),
    write: (row, entry) => audited(connection, entry, (session) => writeRow(session, row)),
    remove: (name, version, entry) =>
      audited(connection, entry, async (session) => (await session.run(REMOVE, [name, version])) > 0),
    async get(name) {
      const [row] = await connection.rows<Columns>(`${SELECT} WHERE s.name = $1`, [name]);
      return row === undefined ? null : rowOf(row);
    },
    async list(limit, after) {
      const rows = await connection.rows<Columns>(`${SELECT} WHERE s.name > $1 ORDER BY s.name LIMIT $2`, [
        after ?? "",
        limit,
      ]);
      return rows.filter(({ sound }) => sound).map(rowOf);
    },
    occurrences: (jobs) =>
      jobs.length === 0
        ? Promise.resolve([])
        : connection.rows<PlannedJob>(`${PLANNED} WHERE job = ANY ($1::text[])`, [texts(jobs)]),
    fired: (name, limit) =>
      connection.rows<PlannedJob>(`${PLANNED} WHERE schedule = $1 ORDER BY at DESC, job LIMIT $2`, [name, limit]),
    declare: (worker, declared) => connection.transaction((tx) => declare(tx, worker, declared)),
    declared: () =>
      connection.rows<Declared & { readonly worker: string }>(
        `SELECT worker, schedule, digest, zone_data AS "zoneData" FROM outlive.declarations
         WHERE schedule <> '${NO_SCHEDULE}' AND worker IN (${LIVE}) ORDER BY schedule, worker`,
      ),
    noteZoneData: (worker, zoneData) =>
      connection.transaction((tx) => declare(tx, worker, [{ schedule: NO_SCHEDULE, digest: "", zoneData }])),
    async review() {
      const [undeclared, zoned, zoneData] = await Promise.all([
        connection.rows<{ name: string }>(UNDECLARED),
        connection.rows(ANY_ZONED),
        connection.rows<{ worker: string; zoneData: string }>(ZONE_DATA),
      ]);
      return {
        undeclared: undeclared.map(({ name }) => name),
        isAnyZoned: zoned.length > 0,
        zoneData: byZoneData(zoneData),
      };
    },
    async now() {
      const [row] = await connection.rows<{ now: number }>("SELECT outlive.now_ms() AS now");
      return row!.now;
    },
  };
}

/** Without an entry it is one statement, which needs no transaction around it. */
function audited(
  connection: Connection,
  entry: AuditEntry | undefined,
  change: (session: Session) => Promise<boolean>,
): Promise<boolean> {
  if (entry === undefined) return change(connection);
  return connection.transaction(async (tx) => {
    const isChanged = await change(tx);
    await writeAudit(tx, entry, isChanged ? 1 : 0);
    return isChanged;
  });
}

async function writeRow(session: Session, row: ScheduleRow): Promise<boolean> {
  const { name, kind, dueAt, version } = row;
  if (version === 0) return (await session.run(ADD, [name, kind, dueAt, bodyOf(row)])) > 0;
  return (await move(session, [row])).size > 0;
}

interface Columns {
  readonly name: string;
  readonly version: number;
  readonly body: string;
  readonly sound: boolean;
}

function rowOf({ name, version, body, sound }: Columns): ScheduleRow {
  if (!sound) throw damagedSchedule(name);
  return { ...(JSON.parse(body) as ScheduleRow), version };
}

async function readDue(session: Session, limit: number): Promise<DueSchedules> {
  const rows = await session.rows<
    { now: number; next: number | null } & ((Columns & { paused: boolean }) | { name: null })
  >(DUE, [limit]);
  const { now, next } = rows[0]!;
  const found = rows.flatMap((row) => (row.name === null ? [] : [row]));
  const due = found.filter(({ sound }) => sound).map((row) => ({ row: rowOf(row), isKindPaused: row.paused }));
  const damaged = found.filter(({ sound }) => !sound).map(({ name }) => name);
  const nextInMs = due.length === limit ? 0 : next === null ? null : next - now;
  return { now, due, nextInMs, ...(damaged.length > 0 && { damaged }) };
}

async function fire(tx: Session, kinds: Kinds, firings: readonly Firing[]): Promise<FiringAnswer[]> {
  const names = firings.map(({ row }) => row.name);
  await tx.rows(LOCK, [texts(names)]);
  const moved = await move(
    tx,
    firings.map(({ row }) => row),
  );
  const planned = firings.flatMap(({ row, jobs }) =>
    moved.has(row.name) ? jobs.map((job) => ({ schedule: row.name, ...job })) : [],
  );
  const enqueued =
    planned.length === 0
      ? []
      : await insertJobs(
          tx,
          kinds,
          planned.map(({ draft }) => draft),
        );
  if (planned.length > 0) {
    await tx.run(PLAN, [
      texts(planned.map(({ draft }) => draft.id)),
      texts(planned.map(({ schedule }) => schedule)),
      list(planned.map(({ at }) => at)),
      list(planned.map(({ caughtUp }) => caughtUp)),
    ]);
    await tx.run(FORGET, [texts([...new Set(planned.map(({ schedule }) => schedule))])]);
  }
  const rest: Enqueued[] = [...enqueued];
  return firings.map(({ row, jobs }) =>
    moved.has(row.name) ? { is: "fired", enqueued: rest.splice(0, jobs.length) } : { is: "stale" },
  );
}

/** The version is a column of its own. */
function bodyOf(row: ScheduleRow): string {
  const { version: _, ...body } = row;
  return JSON.stringify(body);
}

/** Returns the names of those that still had their version. */
async function move(session: Session, rows: readonly ScheduleRow[]): Promise<ReadonlySet<string>> {
  const moved = await session.rows<{ name: string }>(MOVE, [
    texts(rows.map(({ name }) => name)),
    list(rows.map(({ version }) => version)),
    texts(rows.map(({ kind }) => kind)),
    list(rows.map(({ dueAt }) => dueAt)),
    texts(rows.map(bodyOf)),
  ]);
  return new Set(moved.map(({ name }) => name));
}

async function declare(tx: Session, worker: string, declared: readonly Declared[]): Promise<void> {
  await tx.run(`DELETE FROM outlive.declarations WHERE worker = $1 OR worker NOT IN (${LIVE})`, [worker]);
  if (declared.length === 0) return;
  await tx.run(
    `INSERT INTO outlive.declarations (worker, schedule, digest, zone_data)
     SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING`,
    [
      worker,
      texts(declared.map(({ schedule }) => schedule)),
      texts(declared.map(({ digest }) => digest)),
      texts(declared.map(({ zoneData }) => zoneData)),
    ],
  );
}
