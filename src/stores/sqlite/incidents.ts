// Incidents as they are read: pages for a list, one whole for its report.
import type { Incident, IncidentSummary } from "../../core/incident.ts";
import {
  type IncidentColumns,
  type IncidentJobColumns,
  incidentSummary,
  type SummaryColumns,
  wholeIncident,
} from "../incident-rows.ts";
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
  const jobs = db.sql("SELECT * FROM outlive_incident_jobs WHERE incident = ? ORDER BY job").all(row.id);
  return wholeIncident(row, jobs as unknown as IncidentJobColumns[]);
}
