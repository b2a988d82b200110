// The view `dead_jobs` as it replaces that of migration 3: one row can't make it unreadable. Earlier versions of Outlive stored errors
// that held half a surrogate pair, and PostgreSQL refuses to read such JSON.
import { STATE } from "../../codes.ts";
import { deadJobs, stateName } from "./views.ts";

/**
 * Half a pair, as JSON.stringify writes it; a whole pair it writes as the character itself. Before the escape comes an even number of
 * backslashes: after an odd one, `ud83d` is ordinary text.
 */
export const HALF_PAIR = String.raw`(?<!\\)((?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}`;
export const REPLACEMENT = String.raw`\1\\ufffd`;

export function tolerantDeadJobs(schema: string): string {
  return `
  -- What needs a person: dead and quarantined jobs, with the reason. After the cause is gone: outlive retry ID.
  CREATE OR REPLACE VIEW ${schema}.dead_jobs AS
  SELECT j.id AS job_id, k.name AS kind, ${stateName("j.state")} AS state, coalesce(h.reason, e.error->>'message') AS reason,
    e.error->>'name' AS error, e.error->>'message' AS last_error, j.errors + j.crashes + j.timeouts AS attempts,
    j.errors, j.crashes, j.blamed, j.timeouts, f.id AS worker, ${schema}.instant(j.created_at) AS created_at, ${schema}.instant(j.finished_at) AS finished_at
  FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
    LEFT JOIN LATERAL (SELECT l.reason FROM ${schema}.history l WHERE l.job = j.seq AND l.to_state = j.state AND l.event <> 'write.rejected' ORDER BY l.ord DESC LIMIT 1) AS h ON true
    CROSS JOIN LATERAL (SELECT regexp_replace(j.error, '${HALF_PAIR}', '${REPLACEMENT}', 'g')::json AS error) AS e
  WHERE j.state IN (${STATE.dead}, ${STATE.quarantined});`;
}

/** For the way down: the view of migration 3 again. */
export function formerDeadJobs(schema: string): string {
  return deadJobs(schema).replace("CREATE VIEW", "CREATE OR REPLACE VIEW");
}
