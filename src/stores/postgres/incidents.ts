// Incidents as they are read: pages for a list, one whole for its report.
import type { Incident, IncidentSummary } from "../../core/incident.ts";
import {
  type IncidentColumns,
  type IncidentJobColumns,
  incidentSummary,
  type SummaryColumns,
  wholeIncident,
} from "../incident-rows.ts";
import { type Session, texts } from "./connection.ts";

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

/** The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides none. */
export async function latestRecovery(session: Session): Promise<Incident[]> {
  const rows = await session.rows<IncidentColumns>(
    "SELECT * FROM outlive.incidents WHERE recovery = (SELECT recovery FROM outlive.incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
  );
  return whole(session, rows);
}

// The claim that runs a job again stops the incident's clock in a statement of its own, and whoever claims may be cut off before it:
// then the job's later fence says that it was claimed since, and its row when. After several attempts that is the latest of them.
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
