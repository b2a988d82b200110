// Reading for people: one job whole, pages of jobs, counts. Short reads only; nothing here takes the write lock.
import { type HistoryEntry, JOB_STATES, type JobDetails, type JobState, type LogLine } from "../../core/job.ts";
import type { JobFilter, KindCounts, ListPage } from "../../core/store.ts";
import type { Database } from "./database.ts";
import { JOB_COLUMNS, JOB_TABLES, type JobColumns, jobInfo } from "./rows.ts";
import { STATE } from "./schema.ts";

export function getJob(db: Database, id: string): JobDetails | null {
  const row = db
    .sql(`SELECT ${JOB_COLUMNS}, j.input, j.result, j.progress FROM ${JOB_TABLES} WHERE j.id = ?`)
    .get(id) as unknown as (JobColumns & { input: string; result: string | null; progress: string | null }) | undefined;
  if (!row) return null;
  const steps = db
    .sql("SELECT name, result, at, fence FROM outlive_steps WHERE job = ? ORDER BY ord")
    .all(row.seq) as unknown as { name: string; result: string | null; at: number; fence: number }[];
  const log = db
    .sql("SELECT at, fence, message FROM outlive_logs WHERE job = ? ORDER BY ord")
    .all(row.seq) as unknown as LogLine[];
  return {
    ...jobInfo(row),
    input: parse(row.input),
    result: parse(row.result),
    progress: parse(row.progress),
    steps: steps.map((step) => ({ ...step, result: parse(step.result) })),
    history: history(db, row.seq),
    log: log.map((line) => ({ ...line })),
  };
}

function history(db: Database, job: number): HistoryEntry[] {
  const rows = db
    .sql(
      "SELECT at, event, from_state, to_state, actor, epoch, fence, reason, incident FROM outlive_history WHERE job = ? ORDER BY ord",
    )
    .all(job) as unknown as (Omit<HistoryEntry, "from" | "to"> & { from_state: number; to_state: number })[];
  return rows.map(({ from_state, to_state, ...entry }) => ({
    ...entry,
    from: JOB_STATES[from_state]!,
    to: JOB_STATES[to_state]!,
  }));
}

/** What a row that another program damaged can't tell is shown as it is stored. */
function parse(text: string | null): unknown {
  if (text === null) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Newest first, by the order in which they were enqueued. The cursor is the last row's own key. */
export function listJobs(db: Database, filter: JobFilter, limit: number, after: string | null): ListPage {
  const where = ["j.seq < ?"];
  const values: (string | number)[] = [after === null ? Number.MAX_SAFE_INTEGER : Number(after)];
  if (filter.state !== undefined) {
    where.push(stateTerm(filter.state));
  }
  if (filter.kind !== undefined) {
    where.push("j.kind = (SELECT id FROM outlive_kinds WHERE name = ?)");
    values.push(filter.kind);
  }
  if (filter.text !== undefined) {
    where.push("(instr(j.id, ?) OR instr(ifnull(j.dedupe_key, ''), ?) OR instr(ifnull(j.error, ''), ?))");
    values.push(filter.text, filter.text, filter.text);
  }
  const rows = db
    .sql(`SELECT ${JOB_COLUMNS} FROM ${JOB_TABLES} WHERE ${where.join(" AND ")} ORDER BY j.seq DESC LIMIT ?`)
    .all(...values, limit + 1) as unknown as JobColumns[];
  const page = rows.slice(0, limit);
  return { jobs: page.map(jobInfo), next: rows.length > limit ? String(page.at(-1)!.seq) : null };
}

/** A literal, so that SQLite may use the partial index of that state. */
function stateTerm(state: JobState): string {
  return STATE[state] > STATE.succeeded ? `j.state = ${STATE[state]} AND j.state > 2` : `j.state = ${STATE[state]}`;
}

/** The ready index is in the order of claims, so those ahead are one range of it. */
export function countAhead(db: Database, id: string): number | null {
  const row = db.sql("SELECT seq, kind, priority FROM outlive_jobs WHERE id = ? AND state = 0 AND lane = 1").get(id) as
    | { seq: number; kind: number; priority: number }
    | undefined;
  if (!row) return null;
  const { n } = db
    .sql(
      `SELECT count(*) AS n FROM outlive_jobs WHERE state = 0 AND lane = 1 AND kind = ? AND (priority > ? OR (priority = ? AND seq < ?))`,
    )
    .get(row.kind, row.priority, row.priority, row.seq) as { n: number };
  return n;
}

/** Every number comes from an index that holds only such rows; succeeded ones are counted in the table of kinds. */
export function countJobs(db: Database, now: number): KindCounts[] {
  const kinds = db.sql("SELECT id, name, paused, succeeded FROM outlive_kinds ORDER BY name").all() as unknown as {
    id: number;
    name: string;
    paused: number;
    succeeded: number;
  }[];
  const count = (sql: string): Map<number, number> => {
    const rows = db.sql(sql).all() as { kind: number; n: number }[];
    return new Map(rows.map(({ kind, n }) => [kind, n]));
  };
  const ready = readyJobs(db);
  const alone = count("SELECT kind, count(*) AS n FROM outlive_jobs WHERE state = 0 AND lane = 2 GROUP BY kind");
  const delayed = count("SELECT kind, count(*) AS n FROM outlive_jobs WHERE state = 0 AND lane = 0 GROUP BY kind");
  const running = count("SELECT kind, count(*) AS n FROM outlive_jobs WHERE state = 1 GROUP BY kind");
  const ended = (state: JobState): Map<number, number> =>
    count(`SELECT kind, count(*) AS n FROM outlive_jobs WHERE state > 2 AND state = ${STATE[state]} GROUP BY kind`);
  const dead = ended("dead");
  const cancelled = ended("cancelled");
  const quarantined = ended("quarantined");
  return kinds.map(({ id, name, paused, succeeded }) => ({
    kind: name,
    paused: paused === 1,
    ready: (ready.get(id)?.n ?? 0) + (alone.get(id) ?? 0),
    oldestReadyMs: ready.has(id) ? Math.max(0, now - ready.get(id)!.since) : null,
    delayed: delayed.get(id) ?? 0,
    running: running.get(id) ?? 0,
    succeeded,
    dead: dead.get(id) ?? 0,
    cancelled: cancelled.get(id) ?? 0,
    quarantined: quarantined.get(id) ?? 0,
  }));
}

/** The ready jobs of each kind, and since when the one that was enqueued first has been ready. */
function readyJobs(db: Database): ReadonlyMap<number, { n: number; since: number }> {
  const rows = db
    .sql("SELECT kind, count(*) AS n, min(seq) AS first FROM outlive_jobs WHERE state = 0 AND lane = 1 GROUP BY kind")
    .all() as { kind: number; n: number; first: number }[];
  const since = db.sql("SELECT max(created_at, ifnull(run_at, 0)) AS at FROM outlive_jobs WHERE seq = ?");
  return new Map(rows.map(({ kind, n, first }) => [kind, { n, since: (since.get(first) as { at: number }).at }]));
}
