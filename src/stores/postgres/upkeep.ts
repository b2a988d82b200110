// What an open and an operator ask of the server: the epoch, signs of a restore, advice and checks. There are no files to maintain.
// Advice is what an operator should know of the server and of our tables on it, for `outlive check`: it only reads, each part separately,
// and what this role may not see is reported instead of failing the rest.
import { humanMs } from "../../job/time.ts";
import type { Finding, LockHolder, Upkeep } from "../port.ts";
import { LANE, OUTCOME, STATE } from "../rows.ts";
import { PART_OWNER, ROW_OWNER } from "./batch-reads.ts";
import { isIntactSql, isPausedSql, type Session, stepOwnerSql, texts } from "./statements.ts";
import type { Connection } from "./connection.ts";
import { NEEDED_VERSION } from "./migrate.ts";
import { MIGRATIONS } from "./migrations/index.ts";
import { MARGIN_MS, TICK_SECONDS } from "./migrations/reclaim.ts";
import { noticeRestore } from "./restore-mark.ts";
import { WRITTEN } from "./roles.ts";
import { NEXT_MS, type PendingColumns, pendingOf, TO_ACT_ON, type Workers } from "./workers.ts";
import { counted } from "../../job/text.ts";

export function upkeep(connection: Connection, workers: Workers, more?: () => Promise<Finding>): Upkeep {
  return {
    raiseEpoch: () => workers.raiseEpoch(connection),
    noticeRestore: async () => ((await noticeRestore(connection)) ? "its tables were restored from a dump" : null),
    async advice() {
      const { pooled } = await connection.greet();
      return [...(await advice(connection, pooled)), ...(more ? [await more()] : [])];
    },
    pending: async (kinds) =>
      pendingOf((await connection.inTime<PendingColumns>(PENDING_MS, PENDING, [texts(kinds)]))?.[0]),
    integrity: () => findings(connection),
    // Nothing is repaired here: what is damaged on a server is for its backups, and rows that contradict each other are for people.
    repair: () => findings(connection),
  };
}

/** How long the poll for all may take (workers.ts). */
const PENDING_MS = 1_000;

/** What a worker's turn would act on, claim, or wait for (claim.ts). */
const PENDING = `WITH open AS MATERIALIZED (SELECT k.id FROM outlive.kinds k WHERE k.name = ANY ($1::text[]) AND NOT ${isPausedSql("k.")})
  SELECT EXISTS (SELECT 1 FROM open o WHERE EXISTS (SELECT 1 FROM outlive.jobs j WHERE j.kind = o.id AND j.state = 0 AND j.lane = ${LANE.open}))
    OR EXISTS (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = ${LANE.suspect} AND kind IN (SELECT id FROM open))
    OR ${TO_ACT_ON} AS is_now, ${NEXT_MS} AS next_ms`;

const TESTED = 15;
const OLDEST = 14;

/** Everything, the server first. `pooled`: a pooler stands between; null: not known. */
export async function advice(session: Session, pooled: boolean | null): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const [about, part] of PARTS) {
    try {
      findings.push(...(await part(session)));
    } catch (thrown) {
      const message = thrown instanceof Error ? thrown.message : String(thrown);
      findings.push({ level: "warning", text: `${about}: not known, ${message}.` });
    }
  }
  if (pooled !== null) findings.splice(2, 0, pooler(pooled));
  return findings;
}

type Part = (session: Session) => Promise<Finding[]>;

const PARTS: readonly (readonly [about: string, part: Part])[] = [
  ["server", server],
  ["settings", settings],
  ["schema", schema],
  ["rights", rights],
  ["vacuum", (session) => vacuum(session)],
  ["transactions", (session) => transactions(session)],
  ["tick", ticks],
  ["overdue jobs", overdue],
  ["reclaims", reclaims],
];

async function server(session: Session): Promise<Finding[]> {
  const [row] = await session.rows<{ version: string; number: number; replica: boolean }>(
    "SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer / 10000 AS number, pg_is_in_recovery() AS replica",
  );
  const { version, number, replica } = row!;
  const found: Finding[] = [
    number === TESTED
      ? ok(`PostgreSQL ${version}, the version that Outlive is tested on.`)
      : number < OLDEST
        ? error(`PostgreSQL ${version} is too old: Outlive needs ${OLDEST} or newer.`)
        : warning(`PostgreSQL ${version}: Outlive is tested on ${TESTED}; this version is untested.`),
  ];
  if (replica) found.push(error("This server is a replica and takes no writes. Connect to the primary."));
  return found;
}

const LOSSES: Readonly<Record<string, string>> = {
  fsync: "fsync is off: a crash of the machine may destroy the whole database.",
  full_page_writes: "full_page_writes is off: a power loss may leave pages that are half old and half new.",
  synchronous_commit:
    "synchronous_commit is off: a crash of the server loses commits that were acknowledged; jobs that ended may run again, and jobs that were enqueued may be gone.",
};

async function settings(session: Session): Promise<Finding[]> {
  const rows = await session.rows<{ name: string; setting: string }>(
    "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum') ORDER BY name",
  );
  const off = rows.filter(({ name, setting }) => setting === "off" && name in LOSSES);
  // Warnings, not errors: a server for tests runs so on purpose.
  const found = off.map(({ name }) => warning(LOSSES[name]!));
  if (off.length === 0) {
    const commit = rows.find(({ name }) => name === "synchronous_commit")!.setting;
    found.push(ok(`Durable: fsync and full_page_writes are on, synchronous_commit is ${commit}.`));
  }
  if (rows.some(({ name, setting }) => name === "autovacuum" && setting === "off"))
    found.push(warning("autovacuum is off: the tables will bloat and claims will slow down."));
  return found;
}

function pooler(pooled: boolean): Finding {
  return pooled
    ? warning(
        "A pooler stands between this program and the server: a lost host is noticed only when the lease of its workers has expired, and workers poll. Connect workers directly to the server.",
      )
    : ok("A direct connection: the liveness lock and LISTEN work.");
}

async function schema(session: Session): Promise<Finding[]> {
  const [row] = await session.rows<{ value: number }>("SELECT value FROM outlive.meta WHERE key = 'schema'");
  const version = row?.value ?? 0;
  const missing = MIGRATIONS.slice(version);
  if (missing.length === 0) return [ok(`All ${version} migrations are there.`)];
  const names = missing.map(({ name }) => name).join(", ");
  const who =
    version < NEEDED_VERSION
      ? "No worker starts without them"
      : "Workers run without them; SQL recovery, cron and views do not";
  return [warning(`Not there: ${names}. ${who}. Run: outlive migrate up`)];
}

async function rights(session: Session): Promise<Finding[]> {
  const rows = await session.rows<{ lacks: string; role: string }>(
    `SELECT current_user AS role, 'outlive.' || t || ': ' || string_agg(r, ', ') AS lacks FROM unnest($1::text[]) t, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r
     WHERE to_regclass('outlive.' || t) IS NOT NULL AND NOT has_table_privilege('outlive.' || t, r) GROUP BY t ORDER BY t`,
    [`{${WRITTEN.join(",")}}`],
  );
  if (rows.length === 0) return [ok("This role may do all that a worker does.")];
  const lacks = rows.map((row) => row.lacks).join("; ");
  return [
    warning(
      `The role ${rows[0]!.role} can only read: it lacks ${lacks}. If it has to run workers: outlive migrate print --roles`,
    ),
  ];
}

const MANY_DEAD = 10_000;

/** `many`: a table with at least this many dead rows is reported. */
export async function vacuum(session: Session, many = MANY_DEAD): Promise<Finding[]> {
  const rows = await session.rows<{ name: string; live: number; dead: number; ago: number | null }>(
    `SELECT relname AS name, n_live_tup AS live, n_dead_tup AS dead, (extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum)) * 1000)::bigint AS ago
     FROM pg_stat_user_tables WHERE relid = ANY (ARRAY['outlive.jobs', 'outlive.fleet', 'outlive.history', 'outlive.steps']::regclass[]) ORDER BY n_dead_tup DESC`,
  );
  const bloated = rows.filter(({ live, dead }) => dead > many && dead > live / 4);
  if (bloated.length === 0) {
    const dead = rows.reduce((sum, row) => sum + row.dead, 0);
    return [ok(`Vacuum keeps up: ${dead} dead rows in our tables.`)];
  }
  return bloated.map(({ name, live, dead, ago }) =>
    warning(
      `The table ${name} has ${dead} dead rows and ${live} live ones; the last vacuum was ${ago === null ? "never" : `${humanMs(ago)} ago`}. Check for a long transaction, or let autovacuum run more often.`,
    ),
  );
}

const LONG_MS = 300_000;

/** `longMs`: a transaction at least this old is reported. */
export async function transactions(session: Session, longMs = LONG_MS): Promise<Finding[]> {
  const rows = await session.rows<{ who: string; ms: number; xids: number | null }>(
    `SELECT concat_ws(' ', 'process', pid, nullif(application_name, ''), '(' || state || ')') AS who,
       (extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint AS ms, age(backend_xmin) AS xids
     FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
     UNION ALL SELECT 'prepared transaction ' || gid, (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint, age(transaction) FROM pg_prepared_xacts
     UNION ALL SELECT 'replication slot ' || slot_name, NULL, age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
     ORDER BY ms DESC NULLS LAST LIMIT 5`,
  );
  const long = rows.filter(({ ms }) => ms !== null && ms > longMs);
  const oldest = Math.max(0, ...rows.map(({ xids }) => xids ?? 0));
  if (long.length === 0) return [ok(`No long transaction; the oldest xmin is ${oldest} transactions old.`)];
  return long.map(({ who, ms, xids }) =>
    warning(
      `A transaction of ${who} is open for ${humanMs(ms)}${xids === null ? "" : `, its xmin is ${xids} transactions old`}: no dead row since then can be vacuumed.`,
    ),
  );
}

const LATE_MS = 4 * TICK_SECONDS * 1_000;

async function ticks(session: Session): Promise<Finding[]> {
  const [there] = await session.rows<{ ticks: boolean; cron: boolean }>(
    "SELECT to_regclass('outlive.ticks') IS NOT NULL AS ticks, to_regclass('cron.job') IS NOT NULL AS cron",
  );
  if (!there!.ticks) return [];
  const found: Finding[] = there!.cron ? await schedule(session) : [];
  const [last] = await session.rows<{ ms: number; caller: string; error: string | null; reclaimed: number }>(
    "SELECT outlive.now_ms() - at AS ms, caller, error, reclaimed FROM outlive.ticks",
  );
  if (!last)
    return [
      ...found,
      ok(
        "Nothing calls outlive.tick(): if all workers die at once, the next one that starts recovers. See: outlive migrate print --pg-cron",
      ),
    ];
  const { ms, caller, error: fault } = last;
  if (fault !== null)
    found.push(warning(`The last tick, ${humanMs(ms)} ago by ${caller}, reclaimed nothing: ${fault}.`));
  else if (ms > LATE_MS)
    found.push(warning(`The last tick was ${humanMs(ms)} ago, by ${caller}: cron does not call it any more.`));
  else found.push(ok(`The last tick was ${humanMs(ms)} ago, by ${caller}.`));
  return found;
}

/** `cron` is not our schema: what it says is read only where it is. */
async function schedule(session: Session): Promise<Finding[]> {
  const rows = await session.rows<{ schedule: string; active: boolean }>(
    `SELECT schedule, active FROM cron.job WHERE replace(command, '"', '') LIKE '%' || replace('outlive.', '"', '') || 'tick(%'`,
  );
  if (rows.length === 0)
    return [warning("pg_cron is here and does not call tick(). See: outlive migrate print --pg-cron")];
  return rows.map((row) =>
    row.active
      ? ok(`pg_cron calls tick(): ${row.schedule}.`)
      : warning(`pg_cron has a schedule for tick() (${row.schedule}), but it is not active.`),
  );
}

async function overdue(session: Session): Promise<Finding[]> {
  const rows = await session.rows<{ kind: string; n: number; ms: number }>(
    `SELECT k.name AS kind, count(*) AS n, max(outlive.now_ms() - j.deadline_at) AS ms FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind
     WHERE j.state = 1 AND j.deadline_at + k.grace_ms + ${MARGIN_MS} < outlive.now_ms() GROUP BY k.name ORDER BY ms DESC`,
  );
  if (rows.length === 0) return [ok("No job is overdue.")];
  return rows.map(({ kind, n, ms }) =>
    warning(
      `${counted(n, "job")} of ${kind} ${n === 1 ? "is" : "are"} overdue, the oldest by ${humanMs(ms)}: no worker and no cron recovers. Run: SELECT * FROM outlive.reclaim_stale_jobs()`,
    ),
  );
}

async function reclaims(session: Session): Promise<Finding[]> {
  const rows = await session.rows<{ kind: string; decision: string; n: number }>(
    `SELECT k.name AS kind, CASE h.to_state WHEN 0 THEN 'retry' WHEN 3 THEN 'fail' WHEN 4 THEN 'cancel' ELSE 'quarantine' END AS decision, count(*) AS n
     FROM outlive.history h JOIN outlive.jobs j ON j.seq = h.job JOIN outlive.kinds k ON k.id = j.kind
     WHERE h.actor IN ('system/reclaim', 'system/recovery') AND h.event IN ('crash', 'timeOut', 'endCancelled') AND h.at > outlive.now_ms() - 3600000
     GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2`,
  );
  if (rows.length === 0) return [ok("Nothing was reclaimed in the last hour.")];
  const listed = rows.map(({ kind, decision, n }) => `${kind} ${decision} ${n}`).join(", ");
  return [ok(`Reclaimed in the last hour: ${listed}.`)];
}

function ok(text: string): Finding {
  return { level: "ok", text };
}

function warning(text: string): Finding {
  return { level: "warning", text };
}

function error(text: string): Finding {
  return { level: "error", text };
}

// What the server says of itself and of us: its settings that durability hangs on, what is wrong in our tables, and who stands in
// our way. Reads only.

export interface ServerFacts {
  readonly server: string;
  readonly database: string;
  readonly fsync: string;
  readonly synchronousCommit: string;
  readonly startedAt: number;
  readonly replica: boolean;
  readonly sessions: number;
}

const FACTS = `SELECT current_setting('server_version') AS server, current_database() AS database, current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS "synchronousCommit", floor(date_part('epoch', pg_postmaster_start_time()) * 1000)::bigint AS "startedAt",
    pg_is_in_recovery() AS replica,
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outlive%') AS sessions`;

export async function serverFacts(session: Session): Promise<ServerFacts> {
  return (await session.rows<ServerFacts>(FACTS))[0]!;
}

/** At most this many findings, and of each sort at most this many examples. */
const MOST = 100;

/** Rows that a block has left without a mark, if its job ended like this. */
const unmarkedIf = (state: number): string =>
  `coalesce(sum(b.rows - length(replace(coalesce(b.marks, ''), '0', ''))) FILTER (WHERE j.state = ${state}), 0)`;

/** What each batch says of its latest round, and what its blocks say. */
const BATCH_COUNTS = `SELECT p.id,
    ARRAY[p.rows, p.blocks, p.succeeded + d.succeeded, p.failed + d.failed, p.quarantined + d.quarantined, p.aborted + d.aborted]::bigint[] AS said,
    ARRAY[c.rows + f.rejected, c.blocks, c.marked - f.marked + c.succeeded, f.failed + c.failed, f.quarantined + c.quarantined, c.aborted]::bigint[] AS there
  FROM outlive.batch_state p CROSS JOIN LATERAL (
    SELECT coalesce(sum(succeeded), 0) AS succeeded, coalesce(sum(failed), 0) AS failed, coalesce(sum(quarantined), 0) AS quarantined,
      coalesce(sum(aborted), 0) AS aborted FROM outlive.batch_deltas WHERE batch = p.seq AND round = p.round) d
  CROSS JOIN LATERAL (
    SELECT count(*) AS blocks, coalesce(sum(b.rows), 0) AS rows, coalesce(sum(length(replace(b.marks, '0', ''))), 0) AS marked,
      ${unmarkedIf(STATE.succeeded)} AS succeeded, ${unmarkedIf(STATE.dead)} AS failed, ${unmarkedIf(STATE.quarantined)} AS quarantined, ${unmarkedIf(STATE.cancelled)} AS aborted
    FROM outlive.blocks b LEFT JOIN outlive.jobs j ON j.seq = b.job WHERE b.batch = p.seq AND b.round = p.round) c
  CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE row IS NULL) AS rejected, count(row) AS marked, count(*) FILTER (WHERE NOT quarantined) AS failed,
      count(*) FILTER (WHERE quarantined) AS quarantined FROM outlive.row_failures WHERE batch = p.seq AND round = p.round) f`;

// Each returns one sentence per row.
const CHECKS: readonly string[] = [
  `SELECT 'job ' || j.id || ' runs, but its worker ' || j.worker || ' has no row' AS finding FROM outlive.jobs j
     WHERE j.state = 1 AND NOT EXISTS (SELECT 1 FROM outlive.fleet w WHERE w.seq = j.worker)`,
  `SELECT 'job ' || j.id || ' is of kind ' || j.kind || ', which is not in the table of kinds' FROM outlive.jobs j
     WHERE NOT EXISTS (SELECT 1 FROM outlive.kinds k WHERE k.id = j.kind)`,
  `SELECT 'job ' || id || ' has state ' || state || ' and lane ' || lane || ', which do not exist' FROM outlive.jobs
     WHERE state NOT BETWEEN 0 AND 5 OR lane NOT BETWEEN 0 AND 3`,
  `SELECT 'job ' || id || ' is delayed, but has no time at which it becomes ready' FROM outlive.jobs WHERE state = 0 AND lane = 0 AND run_at IS NULL`,
  `SELECT 'job ' || id || ' runs, but was never claimed' FROM outlive.jobs WHERE state = 1 AND fence = 0`,
  `SELECT 'job ' || j.id || ' can''t be found by its id' FROM outlive.jobs j
     WHERE NOT EXISTS (SELECT 1 FROM outlive.job_ids i WHERE i.id = j.id AND i.seq = j.seq)`,
  `SELECT 'the id ' || i.id || ' is taken, but job ' || i.seq || ' is not there' FROM outlive.job_ids i
     WHERE NOT EXISTS (SELECT 1 FROM outlive.jobs j WHERE j.seq = i.seq)`,
  `SELECT 'worker ' || w.id || ' is ' || w.state || ', but holds ' || count(*) || ' jobs' FROM outlive.fleet w JOIN outlive.jobs j ON j.state = 1 AND j.worker = w.seq
     WHERE w.state IN ('gone', 'stopped') GROUP BY w.id, w.state`,
  `SELECT 'kind ' || k.name || ' counts ' || c.said || ' jobs and has ' || c.there FROM outlive.kinds k CROSS JOIN LATERAL (
     SELECT k.jobs + coalesce((SELECT sum(d.jobs) FROM outlive.kind_deltas d WHERE d.kind = k.id), 0)::bigint AS said,
       (SELECT count(*) FROM outlive.jobs j WHERE j.kind = k.id) AS there) c WHERE c.said <> c.there`,
  ...["steps", "history", "logs", "extras", "waits", "signals"].map(
    (
      table,
    ) => `SELECT 'job ' || t.job || ' is not there, but has ' || count(*) || ' rows of ${table}' FROM outlive.${table} t
     WHERE NOT EXISTS (SELECT 1 FROM outlive.jobs j WHERE j.seq = t.job) GROUP BY t.job`,
  ),
  ...["input", "result"].map(
    (text) => `SELECT 'job ' || j.id || ': the stored ${text} does not match its checksum' FROM outlive.jobs j
     WHERE NOT ${isIntactSql(`j.${text}`, "j.id", `j.${text}_sum`)}`,
  ),
  `SELECT 'job ' || j.id || ': the stored step ' || s.name || ' does not match its checksum' FROM outlive.steps s JOIN outlive.jobs j ON j.seq = s.job
     WHERE NOT ${isIntactSql("s.result", stepOwnerSql("j.id", "s.name"), "s.result_sum")}`,
  `SELECT 'job ' || j.id || ': the stored signal ' || s.id || ' does not match its checksum' FROM outlive.signals s JOIN outlive.jobs j ON j.seq = s.job
     WHERE NOT ${isIntactSql("s.payload", stepOwnerSql("j.id", "s.id"), "s.payload_sum")}`,
  `SELECT 'job ' || j.id || ' waits for its children, but all of them have ended and nothing wakes it' FROM outlive.waits w JOIN outlive.jobs j ON j.seq = w.job
     WHERE w.children AND w.signal IS NULL AND j.state = 0 AND j.lane = ${LANE.delayed} AND j.outcome = ${OUTCOME.waiting}
       AND NOT EXISTS (SELECT 1 FROM outlive.extras e JOIN outlive.jobs c ON c.seq = e.job WHERE e.parent = j.seq AND c.state < 2)
       AND NOT EXISTS (SELECT 1 FROM outlive.wakes k WHERE k.job = j.seq)`,
  `SELECT 'job ' || j.id || ' is held, but at no door' FROM outlive.jobs j LEFT JOIN outlive.extras e ON e.job = j.seq
     WHERE j.state = 0 AND j.lane = 3 AND (e.place IN (1, 4) AND e.door IS NOT NULL) IS NOT TRUE`,
  `SELECT 'job ' || j.id || ' waits at a door, but is not held' FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job
     WHERE e.door IS NOT NULL AND NOT (j.state = 0 AND j.lane = 3)`,
  `SELECT 'job ' || j.id || CASE WHEN e.place = 2 THEN ' counts against its keys, but is not admitted' ELSE ' runs, but does not count against its keys' END
     FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job
     WHERE e.key1 IS NOT NULL AND (e.place = 2) <> (j.state = 1 OR j.state = 0 AND j.lane IN (1, 2))`,
  `SELECT 'block ' || p.id || ':' || b.round || ':' || b.number || ' has no job that runs its rows' FROM outlive.blocks b JOIN outlive.batch_state p ON p.seq = b.batch
     WHERE b.job > 0 AND NOT EXISTS (SELECT 1 FROM outlive.jobs j WHERE j.seq = b.job)`,
  `SELECT 'batch ' || d.id || ' counts ' || d.said::text || ' (rows, blocks, succeeded, failed, quarantined, aborted) and has ' || d.there::text FROM (${BATCH_COUNTS}) d
     WHERE d.said <> d.there`,
  `SELECT 'batch ' || b.id || ': the stored context does not match its checksum' FROM outlive.batch_state b
     WHERE NOT ${isIntactSql("b.context", "b.id", "b.context_sum")}`,
  `SELECT 'batch ' || b.id || ': the stored input of line ' || f.line || ' does not match its checksum' FROM outlive.row_failures f JOIN outlive.batch_state b ON b.seq = f.batch
     WHERE NOT ${isIntactSql("f.input", ROW_OWNER, "f.input_sum")}`,
  `SELECT 'batch ' || b.id || ': what block ' || o.number || ' wrote to ' || o.file || ' does not match its checksum' FROM outlive.row_outputs o JOIN outlive.batch_state b ON b.seq = o.batch
     WHERE NOT ${isIntactSql("o.texts", PART_OWNER, "o.texts_sum")}`,
  `SELECT 'incident ' || t.incident || ' is not there, but has ' || count(*) || ' jobs' FROM outlive.incident_jobs t
     WHERE NOT EXISTS (SELECT 1 FROM outlive.incidents i WHERE i.id = t.incident) GROUP BY t.incident`,
];

/** Rows that contradict each other, one sentence each. Every check is one statement, so that a worker in between is not a finding. */
async function findings(session: Session): Promise<string[]> {
  const found: string[] = [];
  for (const check of CHECKS) {
    const rows = await session.rows<{ finding: string }>(`SELECT * FROM (${check} LIMIT ${MOST}) AS c (finding)`);
    found.push(...rows.map(({ finding }) => finding));
  }
  return found.slice(0, MOST);
}

const BLOCKING = `SELECT b.pid, coalesce(nullif(b.application_name, ''), b.backend_type) || ': ' || left(b.query, 200) AS command,
    floor(date_part('epoch', coalesce(b.xact_start, b.backend_start)) * 1000)::bigint AS version
  FROM pg_stat_activity w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS by (pid) JOIN pg_stat_activity b ON b.pid = by.pid
  WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' AND w.application_name LIKE 'outlive%'
    AND cardinality(pg_blocking_pids(b.pid)) = 0
  ORDER BY b.xact_start LIMIT 1`;

/** The session at the head of whatever our sessions wait for; its number is its transaction's start. Null: no session waits. */
export async function blocker(session: Session): Promise<LockHolder | null> {
  return (await session.rows<LockHolder>(BLOCKING))[0] ?? null;
}
