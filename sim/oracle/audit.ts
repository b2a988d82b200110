// The last look, when everything has ended: the whole database with plain SQL against what the oracle remembers. Nothing here
// uses the engine.
import type { Database } from "../../src/stores/sqlite/database.ts";
import { kindFacts, TRANSFER } from "../workload/kinds.ts";
import type { Oracle } from "./oracle.ts";
import { demand } from "./violation.ts";

export function audit(db: Database, oracle: Oracle, sumAtStart: number): void {
  const rows = <T>(sql: string): T[] => db.sql(sql).all() as T[];
  const none = (sql: string, what: string): void => {
    const found = rows<Record<string, unknown>>(sql);
    demand(found.length === 0, () => `${what}: ${JSON.stringify(found.slice(0, 3))}`);
  };

  const jobs = new Map(
    rows<{ id: string; state: number; kind: string }>(
      "SELECT j.id, j.state, k.name AS kind FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind",
    ).map((row) => [row.id, row]),
  );
  for (const id of oracle.requests.acknowledged) demand(jobs.has(id), () => `acknowledged and lost: ${id}`);
  for (const id of oracle.model.jobsById.keys()) demand(jobs.has(id), () => `once in the store and lost: ${id}`);
  none("SELECT id, state FROM outlive_jobs WHERE state < 2", "unfinished at the end");
  for (const { id, state, kind } of jobs.values())
    demand(!kindFacts(kind).poison || state === 4 || state === 5, () => `the poison ${id} ended in state ${state}`);

  none(
    `SELECT j.id, j.state, (SELECT count(*) FROM ledger l WHERE l.job = j.id) AS rows,
       (SELECT count(*) FROM outlive_history h WHERE h.job = j.seq AND h.event = 'retry' AND h.from_state = 2) AS retried
     FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind
     WHERE k.name = '${TRANSFER}' AND rows <> retried + (j.state = 2)`,
    "ledger rows and successes differ",
  );
  none("SELECT job, fence FROM ledger GROUP BY job, fence HAVING count(*) > 1", "committed twice");
  const { sum } = rows<{ sum: number }>("SELECT sum(balance) AS sum FROM accounts")[0]!;
  demand(sum === sumAtStart, () => `the sum of the accounts was ${sumAtStart} and is ${sum}`);
  none(
    `SELECT a.id, a.balance, 1000 + (SELECT ifnull(sum(CASE WHEN l.target = a.id THEN l.amount ELSE -l.amount END), 0)
       FROM ledger l WHERE l.target = a.id OR l.source = a.id) AS expected FROM accounts a WHERE a.balance <> expected`,
    "accounts do not follow from the ledger",
  );

  none(
    "SELECT worker, count(*) AS n FROM outlive_incidents GROUP BY worker HAVING n > 1",
    "two incidents of one death",
  );
  none("SELECT id, worker FROM outlive_incidents WHERE completed_at IS NULL", "incidents that nobody finished");
  none(
    "SELECT i.worker, w.state FROM outlive_incidents i JOIN outlive_workers w ON w.id = i.worker WHERE w.state <> 'gone'",
    "incidents of workers that are not gone",
  );
  none(
    `SELECT id, held_at_death, (SELECT count(*) FROM outlive_incident_jobs j WHERE j.incident = outlive_incidents.id) AS jobs
     FROM outlive_incidents WHERE held_at_death <> jobs`,
    "incidents that lack a job",
  );
  none("SELECT id, state FROM outlive_workers WHERE state NOT IN ('gone', 'stopped')", "workers that are still there");
  none("SELECT * FROM outlive_cancels", "cancels that nobody took");
  none(
    "SELECT id FROM outlive_jobs WHERE reserved_by IS NOT NULL OR cancel_requested = 1 AND state <> 2",
    "left marks",
  );
  none(
    "SELECT k.name, k.jobs, (SELECT count(*) FROM outlive_jobs j WHERE j.kind = k.id) AS n FROM outlive_kinds k WHERE k.jobs <> n",
    "the count of jobs drifted",
  );
}
