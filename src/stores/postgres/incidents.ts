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
    `SELECT id, recovery, worker, how, detected_at, completed_at, (SELECT count(*) FROM outlive.incident_jobs j WHERE j.incident = i.id) AS jobs
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

async function whole(session: Session, rows: readonly IncidentColumns[]): Promise<Incident[]> {
  if (rows.length === 0) return [];
  const jobs = await session.rows<IncidentJobColumns>(
    "SELECT * FROM outlive.incident_jobs WHERE incident = ANY ($1::text[]) ORDER BY incident, job",
    [texts(rows.map(({ id }) => id))],
  );
  return rows.map((row) =>
    wholeIncident(
      row,
      jobs.filter(({ incident }) => incident === row.id),
    ),
  );
}
