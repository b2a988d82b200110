// Reading for people: one job whole, pages of jobs, counts. Reads only.
import type { JobDetails, JobState, LogLine } from "../../job/job.ts";
import { counted } from "../../job/text.ts";
import { shownWait } from "../../job/waits.ts";
import type { Inspecting, JobFilter, KindCounts, ListPage, StoreHealth, WorkerSuspects } from "../port.ts";
import {
  boundSql,
  cursorAt,
  type HistoryColumns,
  historyEntry,
  JOB_COLUMNS,
  type JobColumns,
  jobInfo,
  kindPaused,
  LANE,
  OUTCOME,
  type PauseColumns,
  rowOfCursor,
  STATE,
  storedValue,
} from "../rows.ts";
import { isIntactSql, stepOwnerSql, type Session, type Value } from "./statements.ts";
import type { Connection } from "./connection.ts";
import { readAudit } from "./audit.ts";
import type { Enqueuing } from "./enqueue.ts";
import { getIncident, latestRecovery, listIncidents } from "./incidents.ts";
import { keyStates } from "./keys.ts";
import { blocker, serverFacts, type ServerFacts } from "./upkeep.ts";
import { outcomes } from "./waits.ts";

export function inspecting(connection: Connection, enqueuing: Enqueuing): Inspecting {
  return {
    get: (id) => getJob(connection, id),
    outcomes: (ids) => outcomes(connection, ids),
    list: (filter, limit, after) => listJobs(connection, filter, limit, after),
    counts: () => countJobs(connection),
    isLimited: async (kind) =>
      (await connection.rows("SELECT 1 FROM outlive.kinds WHERE name = $1 AND (keyed OR fair)", [kind])).length > 0,
    ahead: (id) => countAhead(connection, id),
    keys: (query) => keyStates(connection, query),
    audit: (query) => readAudit(connection, query),
    suspects: () => heldSuspects(connection),
    writer: () => blocker(connection),
    incidents: (limit, after) => listIncidents(connection, limit, after),
    incident: (id) => getIncident(connection, id),
    latestRecovery: () => latestRecovery(connection),
    async health() {
      const facts = await serverFacts(connection);
      const groups = { groupCommits: enqueuing.groupCount, groupedWrites: enqueuing.operationCount };
      // Settings that make the server forget are for `outlive check`; a replica can't be worked on at all.
      const [left] = await connection.rows<Record<string, number>>(LEFT);
      const { schema } = connection;
      const summary = serverSummary({ schema, ...facts });
      return { ok: !facts.replica, summary, detail: { schema, ...facts, ...left!, ...groups } };
    },
  };
}

/** Its line in `outlive status`. */
export function serverSummary(
  facts: Pick<ServerFacts, "server" | "database" | "sessions" | "fsync" | "replica"> & { readonly schema: string },
): StoreHealth["summary"] {
  const { server, database, schema, sessions, fsync, replica } = facts;
  return [
    `PostgreSQL ${server.split(" ", 1)[0]}`,
    `database ${database}`,
    `schema ${schema}`,
    counted(sessions, "session"),
    ...(fsync === "off" ? ["fsync off"] : []),
    ...(replica ? ["a replica"] : []),
  ];
}

// Wakes and events of dedupe keys that no turn has acted on yet, and unread signals. Those of jobs that have ended are not read, and are purged with the job.
const LEFT = `WITH clock AS MATERIALIZED (SELECT outlive.now_ms() AS now),
  oldest AS MATERIALIZED (SELECT least((SELECT at FROM outlive.wakes ORDER BY id LIMIT 1), (SELECT at FROM outlive.key_wakes ORDER BY id LIMIT 1),
      (SELECT at FROM outlive.reruns WHERE due ORDER BY ord LIMIT 1)) AS wake,
    (SELECT s.at FROM outlive.signals s JOIN outlive.jobs j ON j.seq = s.job WHERE s.read_at IS NULL AND j.state < ${STATE.succeeded} ORDER BY s.at LIMIT 1) AS signal)
  SELECT ((SELECT count(*) FROM outlive.wakes) + (SELECT count(*) FROM outlive.key_wakes)
      + (SELECT count(*) FROM outlive.reruns WHERE due))::int AS wakes,
    greatest(0, coalesce(now - wake, 0))::float8 AS "oldestWakeMs", greatest(0, coalesce(now - signal, 0))::float8 AS "oldestSignalMs" FROM clock, oldest`;

interface StepColumns {
  readonly name: string;
  readonly result: string | null;
  readonly at: number;
  readonly attempt: number;
  readonly intact: boolean;
}

interface DetailColumns extends JobColumns {
  readonly trace: string | null;
  readonly input: string;
  readonly result: string | null;
  readonly progress: string | null;
  readonly input_intact: boolean;
  readonly result_intact: boolean;
  readonly steps: readonly StepColumns[] | null;
  readonly history: readonly HistoryColumns[] | null;
  readonly log: readonly LogLine[] | null;
}

const JOB_TABLES = "outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind LEFT JOIN outlive.fleet w ON w.seq = j.worker";

const keyAt = (id: string): string => `CASE ${id} WHEN e.key1 THEN 0 WHEN e.key2 THEN 1 ELSE 2 END`;
/** By its place among the keys of the job; at a gate that of the fair one, from -1 downward. */
const KEY_AT_DOOR = `CASE WHEN e.door < 0 THEN -1 - ${keyAt("e.fair")} ELSE ${keyAt("e.door")} END`;

const COLUMNS = `${JOB_COLUMNS},
  CASE WHEN j.extras THEN (SELECT p.id FROM outlive.extras e JOIN outlive.jobs p ON p.seq = e.parent WHERE e.job = j.seq) END AS parent,
  CASE WHEN j.outcome = ${OUTCOME.waiting} THEN (SELECT v.step FROM outlive.waits v WHERE v.job = j.seq) END AS wait_step,
  CASE WHEN j.extras THEN (SELECT e.keys FROM outlive.extras e WHERE e.job = j.seq) END AS keys,
  CASE WHEN j.lane = ${LANE.held} THEN (SELECT ${KEY_AT_DOOR} FROM outlive.extras e WHERE e.job = j.seq) END AS door,
  CASE WHEN j.extras THEN (SELECT e.latest_at FROM outlive.extras e WHERE e.job = j.seq) END AS latest_at,
  CASE WHEN j.extras AND j.state + 0 = 0 AND j.fence = 0 THEN (SELECT e.expires_at FROM outlive.extras e WHERE e.job = j.seq) END AS expires_at`;

const own = (columns: string, table: string): string =>
  `(SELECT json_agg(t ORDER BY ord) FROM (SELECT ${columns}, ord FROM outlive.${table} WHERE job = j.seq) t)`;

/** One statement, so that all of it is of the same moment. */
const GET = `SELECT ${COLUMNS}, (SELECT t.trace FROM outlive.traces t WHERE t.job = j.id) AS trace, j.input, j.result, j.progress, ${isIntactSql("j.input", "j.id", "j.input_sum")} AS input_intact,
    ${isIntactSql("j.result", "j.id", "j.result_sum")} AS result_intact,
    ${own(`name, result, at, fence AS attempt, ${isIntactSql("result", stepOwnerSql("j.id", "name"), "result_sum")} AS intact`, "steps")} AS steps,
    ${own("at, event, from_state, to_state, actor, epoch, fence AS attempt, started_at, coalesce(owner, worker) AS owner, reason, incident", "history")} AS history, ${own("at, fence AS attempt, message", "logs")} AS log
  FROM ${JOB_TABLES} WHERE j.seq = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1)`;

async function getJob(session: Session, id: string): Promise<JobDetails | null> {
  const [row] = await session.rows<DetailColumns>(GET, [id]);
  if (!row) return null;
  return {
    ...jobInfo(row),
    ...(row.trace !== null && { trace: row.trace }),
    input: storedValue(row.input),
    result: storedValue(row.result),
    progress: storedValue(row.progress),
    steps: (row.steps ?? []).map(({ name, result, at, attempt }) => ({
      name: shownWait(name),
      result: storedValue(result),
      at,
      attempt,
    })),
    history: (row.history ?? []).map(historyEntry),
    log: (row.log ?? []).map(({ at, attempt, message }) => ({ at, attempt, message })),
    corrupt: corruptParts(row),
  };
}

function corruptParts({ input_intact, result_intact, steps }: DetailColumns): string[] {
  return [
    ...(input_intact ? [] : ["input"]),
    ...(result_intact ? [] : ["result"]),
    ...(steps ?? []).filter(({ intact }) => !intact).map(({ name }) => `step ${shownWait(name)}`),
  ];
}

/** How many rows one page walks through at the most. What is left follows with `next`. */
const WALK = 100_000;
/** Beyond this many rows of an index, looking each of them up in the table costs more than walking through the table. */
const LOOKUPS = 20_000;

/**
 * Newest first, by the order in which they were enqueued. The cursor is the last row's own key. An index that holds only jobs
 * of that state serves if they are few; otherwise the table is walked, a piece at a time.
 */
async function listJobs(session: Session, filter: JobFilter, limit: number, after: string | null): Promise<ListPage> {
  const before = after === null ? Number.MAX_SAFE_INTEGER : rowOfCursor(after);
  const index = await servingIndex(session, filter);
  const floor = index !== null ? 0 : await walkFloor(session, filter, before);
  const { terms, values } = termsOf(filter);
  const rows = await session.rows<JobColumns>(
    `SELECT ${COLUMNS} FROM ${JOB_TABLES} WHERE ${index === null ? "j.seq" : `${index} AND j.seq + 0`} >= $1 AND j.seq < $2${terms}
     ORDER BY ${index === null ? "j.seq" : "j.seq + 0"} DESC LIMIT $3`,
    [floor, before, limit + 1, ...values],
  );
  const page = rows.slice(0, limit);
  const last = rows.length > limit ? page.at(-1)!.seq : floor;
  return { jobs: page.map(jobInfo), next: last === 0 ? null : cursorAt(last) };
}

/** The term by which an index serves; null: the table is to be walked. Succeeded jobs are in no index of their own. */
async function servingIndex(session: Session, { parent, state }: JobFilter): Promise<string | null> {
  // The filter by parent is a term of its own (`termsOf`).
  if (parent !== undefined) return "true";
  if (state === undefined || state === "succeeded") return null;
  const held = state === "queued" ? HELD_JOBS : "SELECT NULL::bigint AS seq WHERE false";
  const [row] = await session.rows<{ n: number; held: number }>(
    `SELECT (SELECT count(*) FROM (SELECT 1 FROM outlive.jobs j WHERE ${stateTerm(state)} LIMIT ${LOOKUPS + 1}) found) AS n,
       (SELECT count(*) FROM (${held} LIMIT ${LOOKUPS + 1}) held) AS held`,
  );
  if (row!.n + row!.held > LOOKUPS) return null;
  if (row!.held === 0) return stateTerm(state);
  return `j.seq IN (SELECT j.seq FROM outlive.jobs j WHERE ${stateTerm(state)} UNION ALL ${HELD_JOBS})`;
}

/** No index of jobs has them. */
const HELD_JOBS = "SELECT e.job AS seq FROM outlive.extras e WHERE e.door IS NOT NULL";

/** In the words of the partial indexes. */
function stateTerm(state: JobState): string {
  switch (state) {
    case "queued":
      return "(j.state = 0 AND j.lane = 1 OR j.state = 0 AND j.lane = 2 OR j.state = 0 AND j.lane = 0)";
    case "running":
      return "j.state = 1";
    case "succeeded":
      return "j.state = 2";
    default:
      return `j.state > 2 AND j.state = ${STATE[state]}`;
  }
}

/** The lowest key of this piece of the walk; 0: it reaches the oldest job. */
async function walkFloor(session: Session, filter: JobFilter, before: number): Promise<number> {
  if (Object.values(filter).every((value) => value === undefined)) return 0;
  const [row] = await session.rows<{ oldest: number | null; newest: number | null }>(
    "SELECT (SELECT min(seq) FROM outlive.jobs) AS oldest, (SELECT max(seq) FROM outlive.jobs WHERE seq < $1) AS newest",
    [before],
  );
  const floor = (row!.newest ?? 0) - WALK;
  return floor <= (row!.oldest ?? 0) ? 0 : floor;
}

function termsOf(filter: JobFilter): { terms: string; values: Value[] } {
  let terms = "";
  const values: Value[] = [];
  const add = (term: (value: string) => string, value: Value): void => {
    values.push(value);
    terms += ` AND ${term(`$${values.length + 3}`)}`;
  };
  if (filter.state !== undefined) terms += ` AND j.state = ${STATE[filter.state]}`;
  if (filter.parent !== undefined)
    add(
      (value) =>
        `j.seq IN (SELECT e.job FROM outlive.extras e WHERE e.parent = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = ${value}))`,
      filter.parent,
    );
  if (filter.kind !== undefined) add((value) => `k.name = ${value}`, filter.kind);
  if (filter.createdAfter !== undefined) add((value) => `j.created_at > ${value}`, filter.createdAfter);
  if (filter.createdBefore !== undefined) add((value) => `j.created_at < ${value}`, filter.createdBefore);
  if (filter.text !== undefined)
    add(
      (value) =>
        `(strpos(j.id, ${value}) > 0 OR coalesce(strpos(j.dedupe_key, ${value}), 0) > 0 OR coalesce(strpos(j.error, ${value}), 0) > 0)`,
      filter.text,
    );
  return { terms, values };
}

/** The ready index is in the order of claims, so those ahead are one range of it. */
async function countAhead(session: Session, id: string): Promise<number | null> {
  const [row] = await session.rows<{ n: number }>(
    `SELECT (SELECT count(*) FROM outlive.jobs b WHERE b.state = 0 AND b.lane = 1 AND b.kind = j.kind
       AND (b.priority > j.priority OR (b.priority = j.priority AND b.seq < j.seq))) AS n
     FROM outlive.jobs j WHERE j.seq = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1) AND j.state = 0 AND j.lane = 1`,
    [id],
  );
  return row?.n ?? null;
}

async function heldSuspects(session: Session): Promise<WorkerSuspects[]> {
  return session.rows<WorkerSuspects>(
    `SELECT w.id AS worker, count(*)::int AS count, min(${boundSql("j.")})::int AS together
     FROM outlive.jobs j JOIN outlive.fleet w ON w.seq = j.worker
     WHERE j.state = 1 AND j.crashes + j.losses > 0 AND w.state = 'live' GROUP BY w.id ORDER BY w.id`,
  );
}

// One statement, so that all numbers are of the same moment: succeeded jobs are what is left of all. Every number comes from an
// index that holds only such rows, or from the table of kinds. What is not folded yet is added up once: asked for each kind, 50,000 deltas and 20 kinds
// took 50 ms, and take 9.
const COUNTS = `SELECT k.name AS kind, k.paused, k.paused_at, k.paused_until, k.paused_by, k.paused_reason, clock.now, k.jobs + coalesce(delta.jobs, 0)::bigint AS jobs,
    coalesce(open.n, 0) + coalesce(suspect.n, 0) AS ready, coalesce(delayed.n, 0) AS delayed, coalesce(held.n, 0) AS held, coalesce(running.n, 0) AS running,
    coalesce(ended.dead, 0) AS dead, coalesce(ended.cancelled, 0) AS cancelled, coalesce(ended.quarantined, 0) AS quarantined,
    (SELECT greatest(0, clock.now - greatest(j.created_at, coalesce(j.run_at, 0))) FROM outlive.jobs j WHERE j.seq = open.first) AS oldest_ready_ms
  FROM (SELECT outlive.now_ms() AS now) AS clock, outlive.kinds k
  LEFT JOIN (SELECT kind, sum(jobs) AS jobs FROM outlive.kind_deltas GROUP BY kind) delta ON delta.kind = k.id
  LEFT JOIN (SELECT kind, count(*) AS n, min(seq) AS first FROM outlive.jobs WHERE state = 0 AND lane = 1 GROUP BY kind) open ON open.kind = k.id
  LEFT JOIN (SELECT kind, count(*) AS n FROM outlive.jobs WHERE state = 0 AND lane = 2 GROUP BY kind) suspect ON suspect.kind = k.id
  LEFT JOIN (SELECT kind, count(*) AS n FROM outlive.jobs WHERE state = 0 AND lane = 0 GROUP BY kind) delayed ON delayed.kind = k.id
  LEFT JOIN (SELECT j.kind, count(*) AS n FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job WHERE e.door IS NOT NULL GROUP BY j.kind) held ON held.kind = k.id
  LEFT JOIN (SELECT kind, count(*) AS n FROM outlive.jobs WHERE state = 1 GROUP BY kind) running ON running.kind = k.id
  LEFT JOIN (
    SELECT kind, count(*) FILTER (WHERE state = ${STATE.dead}) AS dead, count(*) FILTER (WHERE state = ${STATE.cancelled}) AS cancelled,
      count(*) FILTER (WHERE state = ${STATE.quarantined}) AS quarantined FROM outlive.jobs WHERE state > 2 GROUP BY kind
  ) ended ON ended.kind = k.id
  ORDER BY k.name`;

interface CountColumns extends PauseColumns {
  readonly kind: string;
  readonly now: number;
  readonly jobs: number;
  readonly ready: number;
  readonly delayed: number;
  readonly held: number;
  readonly running: number;
  readonly dead: number;
  readonly cancelled: number;
  readonly quarantined: number;
  readonly oldest_ready_ms: number | null;
}

async function countJobs(session: Session): Promise<KindCounts[]> {
  const rows = await session.rows<CountColumns>(COUNTS);
  return rows.map((row) => {
    const { kind, jobs, now, ready, delayed, held, running, dead, cancelled, quarantined } = row;
    const counted = { ready, delayed, held, running, dead, cancelled, quarantined };
    const others = Object.values(counted).reduce((sum, n) => sum + n, 0);
    const succeeded = Math.max(0, jobs - others);
    return { kind, ...kindPaused(row, now), ...counted, oldestReadyMs: row.oldest_ready_ms, succeeded };
  });
}
