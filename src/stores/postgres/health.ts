// What the server says of itself and of us: its settings that durability hangs on, what is wrong in our tables, and who stands in
// our way. Reads only.
import type { LockHolder } from "../../core/store.ts";
import { isIntactSql, stepOwnerSql } from "./checksums.ts";
import type { Session } from "./connection.ts";

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

// Each answers one sentence per row.
const CHECKS: readonly string[] = [
  `SELECT 'job ' || j.id || ' runs, but its worker ' || j.worker || ' has no row' AS finding FROM outlive.jobs j
     WHERE j.state = 1 AND NOT EXISTS (SELECT 1 FROM outlive.fleet w WHERE w.seq = j.worker)`,
  `SELECT 'job ' || j.id || ' is of kind ' || j.kind || ', which is not in the table of kinds' FROM outlive.jobs j
     WHERE NOT EXISTS (SELECT 1 FROM outlive.kinds k WHERE k.id = j.kind)`,
  `SELECT 'job ' || id || ' has state ' || state || ' and lane ' || lane || ', which do not exist' FROM outlive.jobs
     WHERE state NOT BETWEEN 0 AND 5 OR lane NOT BETWEEN 0 AND 2`,
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
  ...["steps", "history", "logs"].map(
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
  `SELECT 'incident ' || t.incident || ' is not there, but has ' || count(*) || ' jobs' FROM outlive.incident_jobs t
     WHERE NOT EXISTS (SELECT 1 FROM outlive.incidents i WHERE i.id = t.incident) GROUP BY t.incident`,
];

/** Rows that contradict each other, one sentence each. Every check is one statement, so that a worker in between is no finding. */
export async function findings(session: Session): Promise<string[]> {
  const found: string[] = [];
  for (const check of CHECKS) {
    const rows = await session.arrays<[string]>(`${check} LIMIT ${MOST}`);
    found.push(...rows.map(([finding]) => finding));
  }
  return found.slice(0, MOST);
}

const BLOCKING = `SELECT b.pid, coalesce(nullif(b.application_name, ''), b.backend_type) || ': ' || left(b.query, 200) AS command,
    floor(date_part('epoch', coalesce(b.xact_start, b.backend_start)) * 1000)::bigint AS version
  FROM pg_stat_activity w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS by (pid) JOIN pg_stat_activity b ON b.pid = by.pid
  WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' AND w.application_name LIKE 'outlive%'
    AND cardinality(pg_blocking_pids(b.pid)) = 0
  ORDER BY b.xact_start LIMIT 1`;

/** The session at the head of whatever our sessions wait for; its number is its transaction's start. Null: nobody waits. */
export async function blocker(session: Session): Promise<LockHolder | null> {
  return (await session.rows<LockHolder>(BLOCKING))[0] ?? null;
}
