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
import type { Database } from "./database.ts";

/** Newest first; ids sort by time. */
export function listIncidents(db: Database, limit: number, after: string | null): IncidentSummary[] {
  const rows = db
    .sql(
      `SELECT id, recovery, worker, how, resolution, detected_at, completed_at, (SELECT count(*) FROM outlive_incident_jobs j WHERE j.incident = i.id) AS jobs
       FROM outlive_incidents i WHERE ? IS NULL OR id < ? ORDER BY id DESC LIMIT ?`,
    )
    .all(after, after, limit) as unknown as (SummaryColumns & { readonly jobs: number })[];
  return rows.map((row) => incidentSummary(row, row.jobs));
}

export function getIncident(db: Database, id: string): Incident | null {
  const row = db.sql("SELECT * FROM outlive_incidents WHERE id = ?").get(id) as unknown as IncidentColumns | undefined;
  return row ? whole(db, row) : null;
}

/**
 * The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides no
 * earlier one.
 */
export function latestRecovery(db: Database): Incident[] {
  const rows = db
    .sql(
      "SELECT * FROM outlive_incidents WHERE recovery = (SELECT recovery FROM outlive_incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
    )
    .all() as unknown as IncidentColumns[];
  return rows.map((row) => whole(db, row));
}

function whole(db: Database, row: IncidentColumns): Incident {
  const jobs = db.sql("SELECT * FROM outlive_incident_jobs WHERE incident = ? ORDER BY job").all(row.id);
  return wholeIncident(row, jobs as unknown as IncidentJobColumns[]);
}

// The incident of a death as recovery writes it. Inside recovery's transaction.

interface IncidentState {
  readonly last_word: string | null;
  readonly id: string | null;
  readonly cursor: number;
  readonly held_at_death: number;
  readonly suspects_at_death: number;
  readonly how: HowLost;
  readonly completed_at: number | null;
}

/** One incident per death: the first transaction opens it, later ones continue it. */
export function openIncident(db: Database, request: CondemnRequest, worker: number, now: number): Condemned {
  const known = db
    .sql(
      `SELECT w.last_word, i.id, i.cursor, i.held_at_death, i.suspects_at_death, i.how, i.completed_at FROM outlive_workers w LEFT JOIN outlive_incidents i ON i.id = w.incident
       WHERE w.seq = ?`,
    )
    .get(worker) as unknown as IncidentState;
  if (known.id !== null) return goOn(db, request.worker.id, { ...known, id: known.id });
  const { heldAtDeath, suspectsAtDeath } = db
    .sql(
      "SELECT count(*) AS heldAtDeath, count(*) FILTER (WHERE crashes + losses > 0) AS suspectsAtDeath FROM outlive_jobs WHERE state = 1 AND worker = ?",
    )
    .get(worker) as { heldAtDeath: number; suspectsAtDeath: number };
  const { worker: dead, death, recovery } = request;
  db.sql(
    `INSERT INTO outlive_incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at, last_seen_alive_at,
       loop_lag_ms, detected_at, started_at, recovered_by, integrity, wal_frames, held_at_death, suspects_at_death) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
  ).run(
    request.incident,
    recovery.id,
    dead.id,
    death.how,
    withLastWord(death.evidence, known.last_word),
    dead.host,
    dead.pid,
    dead.version,
    dead.startedAt,
    dead.heartbeatAt,
    death.lastSeenAliveAt,
    dead.loopLagMs,
    death.detectedAt,
    Math.min(recovery.startedAt, now),
    recovery.by,
    recovery.integrity,
    flushedFrames(recovery.summary),
    heldAtDeath,
    suspectsAtDeath,
  );
  db.sql("UPDATE outlive_workers SET state = 'recovering', incident = ? WHERE seq = ?").run(request.incident, worker);
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

function goOn(db: Database, worker: string, known: IncidentState & { readonly id: string }): Condemned {
  const { id: incident, cursor, how, completed_at: completedAt } = known;
  const inFlight = { heldAtDeath: known.held_at_death, suspectsAtDeath: known.suspects_at_death };
  if (completedAt === null) return { worker, incident, opened: false, cursor, how, ...inFlight };
  // It was closed with jobs that could not be recovered: they are retried in the same incident. If this process is
  // killed before the incident is closed again, the next recovery continues with this worker.
  db.sql("UPDATE outlive_incidents SET completed_at = NULL, cursor = 0, judged_at = NULL WHERE id = ?").run(incident);
  db.sql("UPDATE outlive_workers SET state = 'recovering' WHERE id = ?").run(worker);
  return { worker, incident, opened: false, cursor: 0, how, ...inFlight };
}

export function writeIncidentJob(db: Database, incident: string, seq: number, job: RecoveredJob): void {
  db.sql(
    `INSERT INTO outlive_incident_jobs (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, alone, success, error)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = excluded.success, error = excluded.error`,
  ).run(
    incident,
    seq,
    job.jobId,
    job.kind,
    toStored(job.decision),
    JSON.stringify(job.counters),
    job.limit,
    job.fence,
    job.lastStep,
    job.alone ? 1 : 0,
    job.success ? 1 : 0,
    job.error,
  );
}

export function closeIncident(db: Database, incident: string, worker: number, now: number): void {
  db.sql("UPDATE outlive_incidents SET completed_at = ? WHERE id = ? AND completed_at IS NULL").run(now, incident);
  db.sql("UPDATE outlive_workers SET state = 'gone' WHERE seq = ?").run(worker);
  db.sql("DELETE FROM outlive_cancels WHERE worker = ?").run(worker);
}
