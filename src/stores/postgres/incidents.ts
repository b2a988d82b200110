// Incidents as they are read: pages for a list, one whole for its report.
import type { Incident, IncidentJob, IncidentSummary } from "../../core/incident.ts";
import type { Counters } from "../../core/job.ts";
import type { RecoveredJob } from "../../core/store.ts";
import { type Session, texts } from "./connection.ts";

interface SummaryColumns {
  readonly id: string;
  readonly recovery: string;
  readonly worker: string;
  readonly how: "gone" | "silent";
  readonly detected_at: number;
  readonly completed_at: number | null;
}

interface IncidentColumns extends SummaryColumns {
  readonly evidence: string | null;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly worker_started_at: number;
  readonly last_heartbeat_at: number;
  readonly last_seen_alive_at: number | null;
  readonly loop_lag_ms: number;
  readonly started_at: number;
  readonly recovered_by: string;
  readonly integrity: string;
  readonly wal_frames: number;
  readonly held_at_death: number;
}

interface JobOfIncident {
  readonly incident: string;
  readonly job_id: string;
  readonly kind: string;
  readonly decision: string;
  readonly counters: string;
  readonly max_crashes: number;
  readonly fence: number;
  readonly last_step: string | null;
  readonly success: boolean;
  readonly error: string | null;
  readonly resumed_at: number | null;
}

/** Newest first; ids sort by time. */
export async function listIncidents(session: Session, limit: number, after: string | null): Promise<IncidentSummary[]> {
  const rows = await session.rows<SummaryColumns & { jobs: number }>(
    `SELECT id, recovery, worker, how, detected_at, completed_at, (SELECT count(*) FROM outlive.incident_jobs j WHERE j.incident = i.id) AS jobs
     FROM outlive.incidents i WHERE $1::text IS NULL OR id < $1 ORDER BY id DESC LIMIT $2`,
    [after, limit],
  );
  return rows.map((row) => ({ ...summary(row), jobCount: row.jobs }));
}

export async function getIncident(session: Session, id: string): Promise<Incident | null> {
  const rows = await session.rows<IncidentColumns>("SELECT * FROM outlive.incidents WHERE id = $1", [id]);
  return (await whole(session, rows))[0] ?? null;
}

/** The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides none. */
export async function latestRecovery(session: Session): Promise<Incident[]> {
  const rows = await session.rows<IncidentColumns>(
    "SELECT * FROM outlive.incidents WHERE recovery = (SELECT recovery FROM outlive.incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
  );
  return whole(session, rows);
}

function summary(row: SummaryColumns): Omit<IncidentSummary, "jobCount"> {
  const { id, recovery, worker, how, detected_at: detectedAt, completed_at: completedAt } = row;
  return { id, recovery, worker, how, detectedAt, completedAt };
}

// The claim that runs a job again stops the incident's clock in a statement of its own, and whoever claims may be cut off before it:
// then the job's later fence says that it was claimed since, and its row when. After several attempts that is the latest of them.
const JOBS = `SELECT i.*, coalesce(i.resumed_at, (SELECT j.started_at FROM outlive.jobs j WHERE j.seq = i.job AND j.fence > i.fence)) AS resumed_at
  FROM outlive.incident_jobs i WHERE i.incident = ANY ($1::text[]) ORDER BY i.incident, i.job`;

async function whole(session: Session, rows: readonly IncidentColumns[]): Promise<Incident[]> {
  if (rows.length === 0) return [];
  const jobs = await session.rows<JobOfIncident>(JOBS, [texts(rows.map(({ id }) => id))]);
  return rows.map((row): Incident => {
    const own = jobs.filter(({ incident }) => incident === row.id).map(incidentJob);
    return {
      ...summary(row),
      jobCount: own.length,
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
      jobs: own,
    };
  });
}

function incidentJob(job: JobOfIncident): IncidentJob {
  return {
    jobId: job.job_id,
    kind: job.kind,
    decision: job.decision as RecoveredJob["decision"],
    counters: JSON.parse(job.counters) as Counters,
    limit: job.max_crashes,
    fence: job.fence,
    lastStep: job.last_step,
    success: job.success,
    error: job.error,
    resumedAt: job.resumed_at,
  };
}
