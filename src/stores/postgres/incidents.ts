// Reads incidents: pages for a list, one complete incident for its report.
import { type Incident, type IncidentSummary, withLastWord } from "../../recovery/incident.ts";
import type { HowLost } from "../liveness.ts";
import type { Condemned, CondemnRequest, RecoveredJob } from "../port.ts";
import {
  flushedFrames,
  type IncidentColumns,
  type IncidentJobColumns,
  incidentSummary,
  type SummaryColumns,
  toStored,
  wholeIncident,
} from "../rows.ts";
import { list, type Session, texts } from "./statements.ts";

/** Newest first; ids sort by time. */
export async function listIncidents(session: Session, limit: number, after: string | null): Promise<IncidentSummary[]> {
  const rows = await session.rows<SummaryColumns & { jobs: number }>(
    `SELECT id, recovery, worker, how, resolution, detected_at, completed_at, (SELECT count(*) FROM outlive.incident_jobs j WHERE j.incident = i.id) AS jobs
     FROM outlive.incidents i WHERE $1::text IS NULL OR id < $1 ORDER BY id DESC LIMIT $2`,
    [after, limit],
  );
  return rows.map((row) => incidentSummary(row, row.jobs));
}

export async function getIncident(session: Session, id: string): Promise<Incident | null> {
  const rows = await session.rows<IncidentColumns>("SELECT * FROM outlive.incidents WHERE id = $1", [id]);
  return (await whole(session, rows))[0] ?? null;
}

/**
 * The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides no
 * earlier one.
 */
export async function latestRecovery(session: Session): Promise<Incident[]> {
  const rows = await session.rows<IncidentColumns>(
    "SELECT * FROM outlive.incidents WHERE recovery = (SELECT recovery FROM outlive.incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
  );
  return whole(session, rows);
}

// The claim that runs a job again stops the incident's clock in a separate statement, and the claiming worker may be
// cut off before it. The job's later fence then shows that it was claimed since, and its row shows when. After several
// attempts that is the latest of them.
const JOBS = `SELECT i.*, coalesce(i.resumed_at, (SELECT j.started_at FROM outlive.jobs j WHERE j.seq = i.job AND j.fence > i.fence)) AS resumed_at
  FROM outlive.incident_jobs i WHERE i.incident = ANY ($1::text[]) ORDER BY i.incident, i.job`;

async function whole(session: Session, rows: readonly IncidentColumns[]): Promise<Incident[]> {
  if (rows.length === 0) return [];
  const jobs = await session.rows<IncidentJobColumns>(JOBS, [texts(rows.map(({ id }) => id))]);
  return rows.map((row) =>
    wholeIncident(
      row,
      jobs.filter(({ incident }) => incident === row.id),
    ),
  );
}

// The incident of a death as recovery writes it. Inside recovery's transaction, which holds the dead worker's row.

/** The locked row of a worker that is being recovered. */
export interface DeadWorker {
  readonly seq: number;
  readonly last_word: string | null;
  /** The incident of its death, if a recovery has begun. */
  readonly incident: string | null;
}

const OPEN = `WITH marked AS (UPDATE outlive.fleet SET state = 'recovering', incident = $1 WHERE seq = $18)
  INSERT INTO outlive.incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at,
    last_seen_alive_at, loop_lag_ms, detected_at, started_at, recovered_by, integrity, wal_frames, held_at_death, suspects_at_death)
  SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, least($14::bigint, outlive.now_ms()), $15, $16, $17, count(*), count(*) FILTER (WHERE crashes + losses > 0)
  FROM outlive.jobs WHERE state = 1 AND worker = $18
  RETURNING held_at_death, suspects_at_death`;

/** One incident per death: the first transaction opens it, later ones continue it. */
export async function openIncident(session: Session, request: CondemnRequest, worker: DeadWorker): Promise<Condemned> {
  if (worker.incident !== null) {
    const known = await goOn(session, request.worker.id, worker.incident);
    if (known) return known;
  }
  const { worker: dead, death, recovery } = request;
  const [opened] = await session.rows<{ held_at_death: number; suspects_at_death: number }>(OPEN, [
    request.incident,
    recovery.id,
    dead.id,
    death.how,
    withLastWord(death.evidence, worker.last_word),
    dead.host,
    dead.pid,
    dead.version,
    dead.startedAt,
    dead.heartbeatAt,
    death.lastSeenAliveAt,
    Math.round(dead.loopLagMs),
    death.detectedAt,
    recovery.startedAt,
    recovery.by,
    recovery.integrity,
    flushedFrames(recovery.summary),
    worker.seq,
  ]);
  const { held_at_death: heldAtDeath, suspects_at_death: suspectsAtDeath } = opened!;
  return {
    worker: dead.id,
    incident: request.incident,
    opened: true,
    cursor: 0,
    heldAtDeath,
    suspectsAtDeath,
    how: death.how,
  };
}

interface IncidentState {
  readonly cursor: number;
  readonly held_at_death: number;
  readonly suspects_at_death: number;
  readonly how: HowLost;
  readonly completed_at: number | null;
}

/** Null: retention has removed it. */
async function goOn(session: Session, worker: string, incident: string): Promise<Condemned | null> {
  const [known] = await session.rows<IncidentState>(
    "SELECT cursor, held_at_death, suspects_at_death, how, completed_at FROM outlive.incidents WHERE id = $1",
    [incident],
  );
  if (!known) return null;
  const { cursor, how, completed_at: completedAt } = known;
  const inFlight = { heldAtDeath: known.held_at_death, suspectsAtDeath: known.suspects_at_death };
  if (completedAt === null) return { worker, incident, opened: false, cursor, how, ...inFlight };
  // It was closed with jobs that could not be recovered: they are retried in the same incident. If this process is
  // killed before the incident is closed again, the next recovery continues with this worker.
  await session.run(
    `WITH marked AS (UPDATE outlive.fleet SET state = 'recovering' WHERE id = $2)
     UPDATE outlive.incidents SET completed_at = NULL, cursor = 0, judged_at = NULL WHERE id = $1`,
    [incident, worker],
  );
  return { worker, incident, opened: false, cursor: 0, how, ...inFlight };
}

const ADD_JOBS = `INSERT INTO outlive.incident_jobs (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, alone, success, error)
  SELECT $1, j.* FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::int[], $9::text[], $10::boolean[], $11::boolean[], $12::text[]) AS j
  ON CONFLICT (incident, job) DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = excluded.success, error = excluded.error`;

export async function insertIncidentJobs(
  session: Session,
  incident: string,
  rows: readonly { readonly seq: number }[],
  jobs: readonly RecoveredJob[],
): Promise<void> {
  await session.run(ADD_JOBS, [
    incident,
    list(rows.map(({ seq }) => seq)),
    texts(jobs.map(({ jobId }) => jobId)),
    texts(jobs.map(({ kind }) => kind)),
    texts(jobs.map(({ decision }) => toStored(decision))),
    texts(jobs.map((job) => JSON.stringify(job.counters))),
    list(jobs.map(({ limit }) => limit)),
    list(jobs.map(({ fence }) => fence)),
    texts(jobs.map(({ lastStep }) => lastStep)),
    list(jobs.map(({ alone }) => alone)),
    list(jobs.map(({ success }) => success)),
    texts(jobs.map(({ error }) => error)),
  ]);
}

const STAMP = `UPDATE outlive.incident_jobs i SET resumed_at = j.started_at FROM outlive.jobs j
  WHERE j.seq = ANY ($1::bigint[]) AND i.incident = j.incident AND i.job = j.seq AND i.fence < j.fence AND i.resumed_at IS NULL`;

/**
 * Stops the clock of the incidents that requeued these running jobs. A claim normally does that itself in a separate
 * statement; its worker died in between.
 */
export async function stampResumed(session: Session, rows: readonly { readonly seq: number }[]): Promise<void> {
  await session.run(STAMP, [list(rows.map(({ seq }) => seq))]);
}
