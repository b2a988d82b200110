// A PostgreSQL store of 0.1.0 (test/fixtures/postgres-3.sql) that holds as many jobs as are asked for, with what months of work leave next
// to them: steps, history, incidents and the jobs that were recovered.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import pg from "pg";
import type { PostgresServer } from "../../servers/postgres-server.ts";

const KEPT = fileURLToPath(new URL("../../../test/fixtures/postgres-3.sql", import.meta.url));

/** Of 100 jobs these many wait, and one of a thousand is a suspect; the others succeeded. */
const WAITING = 5;

export async function fillLargeStore(server: PostgresServer, rows: number): Promise<void> {
  execFileSync(server.program("psql"), ["-q", "-v", "ON_ERROR_STOP=1", "-f", KEPT, server.url()], { stdio: "pipe" });
  const client = new pg.Client({ connectionString: server.url() });
  await client.connect();
  try {
    for (const text of texts(rows)) await client.query(text);
  } finally {
    await client.end();
  }
}

function texts(rows: number): string[] {
  const [recovered, deaths] = [Math.ceil(rows / 5), Math.ceil(rows / 100)];
  const each = (count: number): string => `generate_series(1, ${count}) AS n`;
  return [
    "SET synchronous_commit = off",
    `INSERT INTO outlive.jobs (seq, worker, epoch, created_at, started_at, finished_at, kind, priority, fence, crashes, state, lane, id, input, outcome, result)
     OVERRIDING SYSTEM VALUE
     SELECT 1000 + n, 1, 1, outlive.now_ms() - 1000, outlive.now_ms() - 900, outlive.now_ms() - 800, 6, 0, 1,
       CASE WHEN n % 1000 = 0 THEN 2 ELSE 0 END, CASE WHEN n % 100 < ${WAITING} THEN 0 ELSE 2 END,
       CASE WHEN n % 1000 = 0 THEN 2 ELSE 1 END, 'large-' || n, '{"item":"a book"}', CASE WHEN n % 100 < ${WAITING} THEN NULL ELSE 0 END,
       CASE WHEN n % 100 < ${WAITING} THEN NULL ELSE '{"done":"a book"}' END FROM ${each(rows)}`,
    `SELECT setval('outlive.jobs_seq_seq', ${rows + 1000})`,
    `INSERT INTO outlive.job_ids (id, seq) SELECT 'large-' || n, 1000 + n FROM ${each(rows)}`,
    `INSERT INTO outlive.kind_deltas (kind, jobs) VALUES (6, ${rows})`,
    `INSERT INTO outlive.steps (job, at, fence, name, result) SELECT 1000 + n, outlive.now_ms(), 1, 'box', '3' FROM ${each(recovered)}`,
    `INSERT INTO outlive.history (job, at, epoch, fence, from_state, to_state, event, actor, reason, incident)
     SELECT 1000 + n, outlive.now_ms(), 1, 1, 1, 0, 'crash', 'system/recovery', 'its worker died', 'large-' || n % ${deaths} FROM ${each(recovered)}`,
    `INSERT INTO outlive.incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at, loop_lag_ms,
       detected_at, started_at, completed_at, recovered_by, integrity, wal_frames, held_at_death)
     SELECT 'large-' || n, 'large', 'worker-' || n, CASE WHEN n % 2 = 0 THEN 'silent' ELSE 'gone' END, 'its lock is free', 'fixture', 1, '0.1.0',
       1, 1, 0, outlive.now_ms(), outlive.now_ms(), outlive.now_ms(), 'worker', 'NOT_CHECKED', 0, CASE WHEN n % 10 = 0 THEN 1 ELSE 20 END FROM ${each(deaths)}`,
    `INSERT INTO outlive.incident_jobs (incident, job, job_id, kind, decision, counters, max_crashes, fence, success)
     SELECT 'large-' || n % ${deaths}, 1000 + n, 'large-' || n, 'ship', 'retry', '{"errors":0,"crashes":1,"blamed":0,"timeouts":0,"interruptions":0}', 3, 1, true
     FROM ${each(recovered)}`,
    "VACUUM (ANALYZE)",
  ];
}
