// Reading for people: one job whole, pages of jobs, counts. Short reads only; nothing here takes the write lock.
import type { HistoryEntry, JobDetails, JobState, LogLine } from "../../job/job.ts";
import { humanBytes } from "../../job/text.ts";
import { shownWait } from "../../job/waits.ts";
import type { Inspecting, JobFilter, KindCounts, ListPage, LockHolder, StoreHealth, WorkerSuspects } from "../port.ts";
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
import { type CheckedJob, inputIsIntact, resultIsIntact, stepIsIntact } from "./checksums.ts";
import type { Database } from "./database.ts";
import { readAudit } from "./audit.ts";
import { walBytes } from "./doctor/index.ts";
import { getIncident, latestRecovery, listIncidents } from "./incidents.ts";
import { AT_DOOR, keyStates } from "./keys.ts";
import { lockHolder } from "./lock.ts";
import { outcomes } from "./waits.ts";
import type { FileAccess, Writer } from "./writer.ts";

export function inspecting({ db, now, read }: FileAccess, writer: Writer): Inspecting {
  return {
    get: (id) => read(() => getJob(db, id)),
    outcomes: (ids) => read(() => outcomes(db, ids)),
    list: (filter, limit, after) => read(() => listJobs(db, filter, limit, after)),
    counts: () => read(() => countJobs(db, now())),
    isLimited: (kind) =>
      read(
        () => db.sql("SELECT 1 FROM outlive_kinds WHERE name = ? AND (keyed = 1 OR fair = 1)").get(kind) !== undefined,
      ),
    ahead: (id) => read(() => countAhead(db, id)),
    keys: (query) => read(() => keyStates(db, query, now())),
    audit: (query) => read(() => readAudit(db, query)),
    suspects: () => read(() => heldSuspects(db)),
    writer: () => read(() => blocker(db)),
    incidents: (limit, after) => read(() => listIncidents(db, limit, after)),
    incident: (id) => read(() => getIncident(db, id)),
    latestRecovery: () => read(() => latestRecovery(db)),
    health: () => read(() => storeHealth(db, writer, now())),
  };
}

const JOB_TABLES =
  "outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind LEFT JOIN outlive_workers w ON w.seq = j.worker";

const keyAt = (id: string): string => `CASE ${id} WHEN e.key1 THEN 0 WHEN e.key2 THEN 1 ELSE 2 END`;
/** By its place among the keys of the job; at a gate that of the fair one, from -1 downward. */
const KEY_AT_DOOR = `CASE WHEN e.door < 0 THEN -1 - ${keyAt("e.fair")} ELSE ${keyAt("e.door")} END`;

const COLUMNS = `${JOB_COLUMNS},
  CASE WHEN j.extras = 1 THEN (SELECT p.id FROM outlive_extras e JOIN outlive_jobs p ON p.seq = e.parent WHERE e.job = j.seq) END AS parent,
  CASE WHEN j.outcome = ${OUTCOME.waiting} THEN (SELECT v.step FROM outlive_waits v WHERE v.job = j.seq) END AS wait_step,
  CASE WHEN j.extras = 1 THEN (SELECT e.keys FROM outlive_extras e WHERE e.job = j.seq) END AS keys,
  CASE WHEN j.lane = ${LANE.held} AND j.state = ${STATE.queued} THEN (SELECT ${KEY_AT_DOOR} FROM outlive_extras e WHERE e.job = j.seq) END AS door,
  CASE WHEN j.extras = 1 THEN (SELECT e.latest_at FROM outlive_extras e WHERE e.job = j.seq) END AS latest_at,
  CASE WHEN j.extras = 1 AND j.state = 0 AND j.fence = 0 THEN (SELECT e.expires_at FROM outlive_extras e WHERE e.job = j.seq) END AS expires_at`;

function getJob(db: Database, id: string): JobDetails | null {
  const [row] = readable<JobColumns & CheckedJob & { readonly progress: unknown }>(
    db,
    `SELECT ${COLUMNS}, j.input, j.input_sum, j.result, j.result_sum, j.progress FROM ${JOB_TABLES} WHERE j.id = ?`,
    [id],
  );
  if (!row) return null;
  const steps = db
    .sql("SELECT name, result, result_sum, at, fence AS attempt FROM outlive_steps WHERE job = ? ORDER BY ord")
    .all(row.seq) as unknown as StepColumns[];
  const log = db
    .sql("SELECT at, fence AS attempt, message FROM outlive_logs WHERE job = ? ORDER BY ord")
    .all(row.seq) as unknown as LogLine[];
  const traced = db.sql("SELECT trace FROM outlive_traces WHERE job = ?").get(row.seq) as { trace: string } | undefined;
  return {
    ...jobInfo(row),
    ...traced,
    input: storedValue(row.input),
    result: storedValue(row.result),
    progress: storedValue(row.progress),
    steps: steps.map(({ name, result, at, attempt }) => ({
      name: shownWait(name),
      result: storedValue(result),
      at,
      attempt,
    })),
    history: history(db, row.seq),
    log: log.map((line) => ({ ...line })),
    corrupt: corruptParts(row, steps),
  };
}

interface StepColumns {
  readonly name: string;
  readonly result: unknown;
  readonly result_sum: unknown;
  readonly at: number;
  readonly attempt: number;
}

function corruptParts(job: JobColumns & CheckedJob, steps: readonly StepColumns[]): string[] {
  const broken = steps.filter((step) => !stepIsIntact({ ...step, id: job.id }));
  return [
    ...(inputIsIntact(job) ? [] : ["input"]),
    ...(resultIsIntact(job) ? [] : ["result"]),
    ...broken.map(({ name }) => `step ${shownWait(name)}`),
  ];
}

/** A number of a damaged row may be larger than JavaScript reads exactly. It is rounded then, and hides neither its row nor the others. */
function readable<Row>(db: Database, text: string, values: readonly (string | number)[]): Row[] {
  try {
    return db.sql(text).all(...values) as unknown as Row[];
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== "ERR_OUT_OF_RANGE") throw thrown;
  }
  const exact = db.sql(`${text} -- exact`);
  exact.setReadBigInts(true);
  return exact.all(...values).map((row) => {
    const columns = Object.entries(row).map(([name, value]) => [
      name,
      typeof value === "bigint" ? Number(value) : value,
    ]);
    return Object.fromEntries(columns) as Row;
  });
}

function history(db: Database, job: number): HistoryEntry[] {
  const rows = db
    .sql(
      "SELECT at, event, from_state, to_state, actor, epoch, fence AS attempt, started_at, owner, reason, incident FROM outlive_history WHERE job = ? ORDER BY ord",
    )
    .all(job) as unknown as HistoryColumns[];
  return rows.map(historyEntry);
}

/** How many rows one page walks through at the most: 20-40 ms on the thread that also works. What is left follows with `next`. */
const WALK = 100_000;
/** Beyond this many rows of an index, looking each of them up in the table costs more than walking through the table. */
const LOOKUPS = 20_000;

/**
 * Newest first, by the order in which they were enqueued. The cursor is the last row's own key. The keys of the page are chosen
 * first, from an index that holds only such rows if that serves; otherwise the table is walked, a piece at a time. Of 1,000,000
 * jobs a page of running ones took 290 ms without that and takes 1 ms, one of 100,000 dead ones 240 ms and 30 ms.
 */
function listJobs(db: Database, filter: JobFilter, limit: number, after: string | null): ListPage {
  const before = after === null ? Number.MAX_SAFE_INTEGER : rowOfCursor(after);
  const kind = filter.kind === undefined ? null : kindId(db, filter.kind);
  if (kind === undefined) return { jobs: [], next: null };
  const sources = servingIndexes(db, filter);
  const floor = sources ? 0 : walkFloor(db, filter, before);
  const { terms, values } = termsOf(filter, kind);
  const keys = (sources ?? [walkOf(filter.state)]).map(
    (source) => `SELECT j.seq FROM ${source} AND j.seq >= ? AND j.seq < ?${terms}`,
  );
  const rows = readable<JobColumns>(
    db,
    `SELECT ${COLUMNS} FROM ${JOB_TABLES} WHERE j.seq IN (SELECT seq FROM (${keys.join(" UNION ALL ")}) ORDER BY seq DESC LIMIT ?) ORDER BY j.seq DESC`,
    [...keys.flatMap(() => [floor, before, ...values]), limit + 1],
  );
  const page = rows.slice(0, limit);
  const last = rows.length > limit ? page.at(-1)!.seq : floor;
  return { jobs: page.map(jobInfo), next: last === 0 ? null : cursorAt(last) };
}

function kindId(db: Database, name: string): number | undefined {
  return (db.sql("SELECT id FROM outlive_kinds WHERE name = ?").get(name) as { id: number } | undefined)?.id;
}

/** The indexes to take the keys from; null: the table is to be walked. They know state and kind; all else needs the row. */
function servingIndexes(db: Database, filter: JobFilter): readonly string[] | null {
  if (filter.parent !== undefined) return [childrenOf(db, filter.parent, filter.state)];
  const sources = indexesOf(filter.state);
  if (
    !sources ||
    (filter.text === undefined && filter.createdBefore === undefined && filter.createdAfter === undefined)
  )
    return sources;
  const counts = sources.map((source) => `SELECT 1 FROM ${source}`).join(" UNION ALL ");
  const { n } = db.sql(`SELECT count(*) AS n FROM (${counts} LIMIT ${LOOKUPS + 1})`).get() as { n: number };
  return n > LOOKUPS ? null : sources;
}

function childrenOf(db: Database, id: string, state: JobState | undefined): string {
  const row = db.sql("SELECT seq FROM outlive_jobs WHERE id = ?").get(id) as { seq: number } | undefined;
  const inState = state === undefined ? "" : ` AND j.state = ${STATE[state]}`;
  return `outlive_extras e JOIN outlive_jobs j ON j.seq = e.job WHERE e.parent = ${row?.seq ?? -1}${inState}`;
}

/** The indexes that together hold all jobs of a state and no others. Literals, so that SQLite may use them. */
function indexesOf(state: JobState | undefined): readonly string[] | null {
  switch (state) {
    case undefined:
    case "succeeded":
      return null;
    case "queued":
      return [
        "outlive_jobs j INDEXED BY outlive_jobs_ready WHERE j.state = 0 AND j.lane = 1",
        "outlive_jobs j INDEXED BY outlive_jobs_suspect WHERE j.state = 0 AND j.lane = 2",
        "outlive_jobs j INDEXED BY outlive_jobs_delayed WHERE j.state = 0 AND j.lane = 0",
        `outlive_doors d CROSS JOIN outlive_extras e ON ${AT_DOOR} CROSS JOIN outlive_jobs j ON j.seq = d.job`,
      ];
    case "running":
      return ["outlive_jobs j INDEXED BY outlive_jobs_running WHERE j.state = 1"];
    default:
      return [`outlive_jobs j INDEXED BY outlive_jobs_ended WHERE j.state > 2 AND j.state = ${STATE[state]}`];
  }
}

function walkOf(state: JobState | undefined): string {
  return `outlive_jobs j NOT INDEXED WHERE ${state === undefined ? "true" : `j.state = ${STATE[state]}`}`;
}

/** The lowest key of this piece of the walk; 0: it reaches the oldest job. */
function walkFloor(db: Database, filter: JobFilter, before: number): number {
  if (Object.values(filter).every((value) => value === undefined)) return 0;
  const { oldest, newest } = db
    .sql(
      "SELECT (SELECT min(seq) FROM outlive_jobs) AS oldest, (SELECT max(seq) FROM outlive_jobs WHERE seq < ?) AS newest",
    )
    .get(before) as { oldest: number | null; newest: number | null };
  const floor = (newest ?? 0) - WALK;
  return floor <= (oldest ?? 0) ? 0 : floor;
}

function termsOf(filter: JobFilter, kind: number | null): { terms: string; values: (string | number)[] } {
  let terms = "";
  const values: (string | number)[] = [];
  const add = (term: string, ...given: (string | number)[]): void => {
    terms += ` AND ${term}`;
    values.push(...given);
  };
  if (kind !== null) add("j.kind = ?", kind);
  if (filter.createdAfter !== undefined) add("j.created_at > ?", filter.createdAfter);
  if (filter.createdBefore !== undefined) add("j.created_at < ?", filter.createdBefore);
  if (filter.text !== undefined)
    add(
      "(instr(j.id, ?) OR instr(j.dedupe_key, ?) OR instr(j.error, ?))",
      ...Array.from({ length: 3 }, () => filter.text!),
    );
  return { terms, values };
}

/** The ready index is in the order of claims, so those ahead are one range of it. */
function countAhead(db: Database, id: string): number | null {
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

function heldSuspects(db: Database): WorkerSuspects[] {
  const rows = db
    .sql(
      `SELECT w.id AS worker, count(*) AS count, min(${boundSql("j.")}) AS together FROM outlive_jobs j JOIN outlive_workers w ON w.seq = j.worker
       WHERE j.state = 1 AND j.crashes + j.losses > 0 AND w.state = 'live' GROUP BY w.id ORDER BY w.id`,
    )
    .all() as unknown as WorkerSuspects[];
  return rows.map(({ worker, count, together }) => ({ worker, count, together }));
}

/** In one read transaction: succeeded jobs are what is left of all, and that must be all of the same moment. */
function countJobs(db: Database, now: number): KindCounts[] {
  db.exec("BEGIN");
  try {
    return countNow(db, now);
  } finally {
    db.exec("COMMIT");
  }
}

/** Every number comes from an index that holds only such rows, or from the table of kinds. */
function countNow(db: Database, now: number): KindCounts[] {
  const kinds = db
    .sql(
      "SELECT id, name, paused, paused_at, paused_until, paused_by, paused_reason, jobs FROM outlive_kinds ORDER BY name",
    )
    .all() as unknown as (PauseColumns & { id: number; name: string; jobs: number })[];
  const count = (sql: string): Map<number, number> => {
    const rows = db.sql(sql).all() as { kind: number; n: number }[];
    return new Map(rows.map(({ kind, n }) => [kind, n]));
  };
  const ready = readyJobs(db);
  const suspect = count("SELECT kind, count(*) AS n FROM outlive_jobs WHERE state = 0 AND lane = 2 GROUP BY kind");
  const delayed = count("SELECT kind, count(*) AS n FROM outlive_jobs WHERE state = 0 AND lane = 0 GROUP BY kind");
  const held = count(
    `SELECT j.kind, count(*) AS n FROM outlive_doors d CROSS JOIN outlive_extras e ON ${AT_DOOR} CROSS JOIN outlive_jobs j ON j.seq = d.job GROUP BY j.kind`,
  );
  const running = count("SELECT kind, count(*) AS n FROM outlive_jobs WHERE state = 1 GROUP BY kind");
  const ended = (state: JobState): Map<number, number> =>
    count(`SELECT kind, count(*) AS n FROM outlive_jobs WHERE state > 2 AND state = ${STATE[state]} GROUP BY kind`);
  const dead = ended("dead");
  const cancelled = ended("cancelled");
  const quarantined = ended("quarantined");
  return kinds.map(({ id, name, jobs, ...pause }) => {
    const unfinished = {
      ready: (ready.get(id)?.n ?? 0) + (suspect.get(id) ?? 0),
      delayed: delayed.get(id) ?? 0,
      held: held.get(id) ?? 0,
      running: running.get(id) ?? 0,
    };
    const failed = {
      dead: dead.get(id) ?? 0,
      cancelled: cancelled.get(id) ?? 0,
      quarantined: quarantined.get(id) ?? 0,
    };
    const others = [...Object.values(unfinished), ...Object.values(failed)].reduce((sum, n) => sum + n, 0);
    return {
      kind: name,
      ...kindPaused(pause, now),
      ...unfinished,
      oldestReadyMs: ready.has(id) ? Math.max(0, now - ready.get(id)!.since) : null,
      succeeded: Math.max(0, jobs - others),
      ...failed,
    };
  });
}

/** The ready jobs of each kind, and since when the one that was enqueued first has been ready. */
function readyJobs(db: Database): ReadonlyMap<number, { n: number; since: number }> {
  const rows = db
    .sql("SELECT kind, count(*) AS n, min(seq) AS first FROM outlive_jobs WHERE state = 0 AND lane = 1 GROUP BY kind")
    .all() as { kind: number; n: number; first: number }[];
  const since = db.sql("SELECT max(created_at, ifnull(run_at, 0)) AS at FROM outlive_jobs WHERE seq = ?");
  return new Map(rows.map(({ kind, n, first }) => [kind, { n, since: (since.get(first) as { at: number }).at }]));
}

// What the file says of itself: its settings that durability hangs on, its size, how its writes are grouped, and who stands in our
// way. Reads only.

function storeHealth(db: Database, writer: Writer, now: number): StoreHealth {
  const pragma = (name: string): string | number => Object.values(db.sql(`PRAGMA ${name}`).get()!)[0] as never;
  const bytes = Number(pragma("page_count")) * Number(pragma("page_size"));
  const durability = pragma("synchronous") === 2 ? "full" : "relaxed";
  const detail = { path: db.path, journalMode: pragma("journal_mode"), durability, bytes };
  const { lastFailure, lastGroup, groupCount, operationCount } = writer;
  const groups = { lastGroupCommit: lastGroup, groupCommits: groupCount, groupedWrites: operationCount };
  const failure = lastFailure === null ? {} : { lastFailure };
  return {
    ok: lastFailure === null,
    summary: fileSummary(detail),
    detail: { ...detail, walBytes: walBytes(db.path), ...wakesLeft(db, now), ...groups, ...failure },
  };
}

/** Its line in `outlive status`. */
export function fileSummary(detail: {
  readonly path: string;
  readonly bytes: number;
  readonly durability: string;
  readonly journalMode: string | number;
}): StoreHealth["summary"] {
  const { path, bytes, durability, journalMode } = detail;
  return [path, humanBytes(bytes), `durability ${durability}`, `journal ${journalMode}`];
}

/** Wakes that no turn has acted on yet, and signals that no job has read. Wakes are taken in the order of their ids, so the first is the oldest. */
function wakesLeft(db: Database, now: number): Readonly<Record<"wakes" | "oldestWakeMs" | "oldestSignalMs", number>> {
  const ageMs = (sql: string): number => {
    const first = db.sql(sql).get() as { at: number } | undefined;
    return first === undefined ? 0 : Math.max(0, now - first.at);
  };
  const tables = ["outlive_wakes", "outlive_key_wakes"].map((table) => {
    const { n } = db.sql(`SELECT count(*) AS n FROM ${table}`).get() as { n: number };
    return { n, ageMs: ageMs(`SELECT at FROM ${table} ORDER BY id LIMIT 1`) };
  });
  const families = {
    n: 0,
    ageMs: ageMs("SELECT min(at) AS at FROM outlive_family_cancels WHERE due = 1 HAVING count(*) > 0"),
  };
  return {
    wakes: tables.reduce((sum, { n }) => sum + n, 0),
    oldestWakeMs: Math.max(...[...tables, families].map((table) => table.ageMs)),
    // Those of jobs that have ended are not read, and are purged with the job.
    oldestSignalMs: ageMs(
      `SELECT s.at FROM outlive_signals s JOIN outlive_jobs j ON j.seq = s.job WHERE s.read_at IS NULL AND j.state < ${STATE.succeeded} ORDER BY s.at LIMIT 1`,
    ),
  };
}

/** Which process holds the write lock now; null: none, or this host does not tell. */
function blocker(db: Database): LockHolder | null {
  const holder = lockHolder(db.path);
  if (!holder) return null;
  const { data_version: version } = db.sql("PRAGMA data_version").get() as { data_version: number };
  return { ...holder, version };
}
