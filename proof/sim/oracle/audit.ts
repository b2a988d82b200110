// The last look, when everything has ended: the whole database with plain SQL against what the oracle remembers. Nothing here
// uses the engine. Workloads look at their own tables.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { kindFacts } from "../workloads/index.ts";
import type { Workload } from "../workloads/workload.ts";
import { noRows } from "./audit-rows.ts";
import type { Oracle } from "./oracle.ts";
import { demand } from "./violation.ts";

export function audit(db: Database, oracle: Oracle, workloads: readonly Workload[]): void {
  const jobs = new Map(
    (
      db
        .sql("SELECT j.id, j.state, k.name AS kind FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind")
        .all() as unknown as { id: string; state: number; kind: string }[]
    ).map((row) => [row.id, row]),
  );
  for (const id of oracle.requests.acknowledged.keys()) demand(jobs.has(id), () => `acknowledged and lost: ${id}`);
  for (const id of oracle.model.jobsById.keys()) demand(jobs.has(id), () => `once in the store and lost: ${id}`);
  noRows(db, "SELECT id, state FROM outlive_jobs WHERE state < 2", "unfinished at the end");
  for (const { id, state, kind } of jobs.values())
    demand(!kindFacts(kind).poison || state === 4 || state === 5, () => `the poison ${id} ended in state ${state}`);
  for (const [sql, what] of SENTENCES) noRows(db, sql, what);
  incidentsAreWhole(db, oracle);
  oracle.drafts.audit(db);
  oracle.reruns.audit();
  for (const workload of workloads) workload.audit?.(db);
}

/** A job that was in flight is in the incident of its worker, unless it ended before the recovery came to it. */
function incidentsAreWhole(db: Database, oracle: Oracle): void {
  const rows = db
    .sql(
      `SELECT id, worker, held_at_death AS held, (SELECT count(*) FROM outlive_incident_jobs j WHERE j.incident = i.id) AS jobs
       FROM outlive_incidents i WHERE held_at_death <> jobs`,
    )
    .all() as unknown as { id: string; worker: string; held: number; jobs: number }[];
  for (const { id, worker, held, jobs } of rows)
    demand(
      jobs < held && jobs + (oracle.model.endedBeside.get(worker) ?? 0) >= held,
      () => `incident ${id} of ${worker}: ${held} jobs were in flight and ${jobs} are in it`,
    );
}

const SENTENCES: readonly (readonly [sql: string, what: string])[] = [
  ["SELECT worker, count(*) AS n FROM outlive_incidents GROUP BY worker HAVING n > 1", "two incidents of one death"],
  [
    "SELECT id FROM outlive_workers WHERE state = 'gone' AND id NOT IN (SELECT worker FROM outlive_incidents)",
    "deaths without an incident",
  ],
  ["SELECT id, worker FROM outlive_incidents WHERE completed_at IS NULL", "unfinished incidents"],
  [
    "SELECT i.worker, w.state FROM outlive_incidents i JOIN outlive_workers w ON w.id = i.worker WHERE w.state <> 'gone'",
    "incidents of workers that are not gone",
  ],
  ["SELECT id, state FROM outlive_workers WHERE state NOT IN ('gone', 'stopped')", "workers that are still there"],
  ["SELECT * FROM outlive_cancels", "cancels that were not carried out"],
  ["SELECT id FROM outlive_jobs WHERE cancel_requested = 1 AND state <> 2", "left marks"],
  [
    "SELECT k.name, k.jobs, (SELECT count(*) FROM outlive_jobs j WHERE j.kind = k.id) AS n FROM outlive_kinds k WHERE k.jobs <> n",
    "the count of jobs drifted",
  ],
];
