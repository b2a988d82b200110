// Incidents as they are read: pages for a list, one whole for its report.
import type { Incident, IncidentJob, IncidentSummary } from "../../core/incident.ts";
import type { Counters } from "../../core/job.ts";
import type { RecoveredJob } from "../../core/store.ts";
import type { Database } from "./database.ts";

interface IncidentColumns {
  readonly id: string;
  readonly recovery: string;
  readonly worker: string;
  readonly how: "gone" | "silent";
  readonly evidence: string | null;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly worker_started_at: number;
  readonly last_heartbeat_at: number;
  readonly last_seen_alive_at: number | null;
  readonly loop_lag_ms: number;
  readonly detected_at: number;
  readonly started_at: number;
  readonly completed_at: number | null;
  readonly recovered_by: string;
  readonly integrity: string;
  readonly wal_frames: number;
  readonly held_at_death: number;
}

interface JobOfIncident {
  readonly job_id: string;
  readonly kind: string;
  readonly decision: string;
  readonly counters: string;
  readonly max_crashes: number;
  readonly fence: number;
  readonly last_step: string | null;
  readonly success: number;
  readonly error: string | null;
  readonly resumed_at: number | null;
}

/** Newest first; ids sort by time. */
export function listIncidents(db: Database, limit: number, after: string | null): IncidentSummary[] {
  const rows = db
    .sql(
      `SELECT id, recovery, worker, how, detected_at, completed_at, (SELECT count(*) FROM outlive_incident_jobs j WHERE j.incident = i.id) AS jobs
       FROM outlive_incidents i WHERE ? IS NULL OR id < ? ORDER BY id DESC LIMIT ?`,
    )
    .all(after, after, limit) as unknown as (Pick<
    IncidentColumns,
    "id" | "recovery" | "worker" | "how" | "detected_at" | "completed_at"
  > & { jobs: number })[];
  return rows.map((row) => ({
    id: row.id,
    recovery: row.recovery,
    worker: row.worker,
    how: row.how,
    detectedAt: row.detected_at,
    completedAt: row.completed_at,
    jobCount: row.jobs,
  }));
}

export function getIncident(db: Database, id: string): Incident | null {
  const row = db.sql("SELECT * FROM outlive_incidents WHERE id = ?").get(id) as unknown as IncidentColumns | undefined;
  return row ? whole(db, row) : null;
}

/** The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides none. */
export function latestRecovery(db: Database): Incident[] {
  const rows = db
    .sql(
      "SELECT * FROM outlive_incidents WHERE recovery = (SELECT recovery FROM outlive_incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
    )
    .all() as unknown as IncidentColumns[];
  return rows.map((row) => whole(db, row));
}

function whole(db: Database, row: IncidentColumns): Incident {
  const rows = db
    .sql("SELECT * FROM outlive_incident_jobs WHERE incident = ? ORDER BY job")
    .all(row.id) as unknown as JobOfIncident[];
  const jobs = rows.map((job): IncidentJob => ({
    jobId: job.job_id,
    kind: job.kind,
    decision: job.decision as RecoveredJob["decision"],
    counters: JSON.parse(job.counters) as Counters,
    limit: job.max_crashes,
    fence: job.fence,
    lastStep: job.last_step,
    success: job.success === 1,
    error: job.error,
    resumedAt: job.resumed_at,
  }));
  return {
    id: row.id,
    recovery: row.recovery,
    worker: row.worker,
    how: row.how,
    detectedAt: row.detected_at,
    completedAt: row.completed_at,
    jobCount: jobs.length,
    host: row.host,
    pid: row.pid,
    version: row.version,
    workerStartedAt: row.worker_started_at,
    lastHeartbeatAt: row.last_heartbeat_at,
    lastSeenAliveAt: row.last_seen_alive_at,
    loopLagMs: row.loop_lag_ms,
    evidence: row.evidence,
    startedAt: row.started_at,
    by: row.recovered_by,
    integrity: row.integrity,
    walFrames: row.wal_frames,
    heldAtDeath: row.held_at_death,
    jobs,
  };
}
