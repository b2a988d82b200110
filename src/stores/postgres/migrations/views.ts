// Migration 3: what operators look at from psql or a dashboard. Views only: they decide nothing and can be dropped at any time.
// Instants are timestamptz, spans are intervals, `attempts` is errors + crashes + timeouts.
import type { Migration } from "../migrate.ts";
import { JOB_STATES, STATE } from "./frozen.ts";
import { MARGIN_MS } from "./reclaim.ts";

export const VIEWS = ["stale_monitor", "stale_validation", "reclaim_history", "dead_jobs", "workers"] as const;

export const views: Migration = {
  name: "views",
  drops: `the views ${VIEWS.join(", ")}`,
  up: (schema) =>
    [
      instants(schema),
      staleMonitor(schema),
      staleValidation(schema),
      reclaimHistory(schema),
      deadJobs(schema),
      workers(schema),
    ].join("\n"),
  down: (schema) => `
  DROP VIEW ${VIEWS.toReversed()
    .map((view) => `${schema}.${view}`)
    .join(", ")};
  DROP FUNCTION ${schema}.span(bigint);
  DROP FUNCTION ${schema}.instant(bigint);`,
};

function instants(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.instant(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT to_timestamp(ms / 1000.0) $$;
  CREATE FUNCTION ${schema}.span(ms bigint) RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT make_interval(secs => ms / 1000.0) $$;`;
}

/** A heartbeat of a job moves its deadline to one timeout later: that is where it can be read, also after the end. */
const HEARTBEAT = "CASE WHEN j.deadline_at - k.timeout_ms > j.started_at THEN j.deadline_at - k.timeout_ms END";

function staleMonitor(schema: string): string {
  return `
  -- Every running job. WARNING from 80 % of its timeout; STALE: past it, or its worker is past its lease or over: reclaim takes it.
  CREATE VIEW ${schema}.stale_monitor AS
  SELECT r.job_id, r.kind, r.worker, r.fence, r.attempts, ${schema}.instant(r.started_at) AS started_at, ${schema}.instant(r.heartbeat_at) AS heartbeat_at,
    ${schema}.instant(r.deadline_at) AS deadline_at, ${schema}.span(r.age_ms) AS age, ${schema}.span(r.timeout_ms) AS timeout,
    round(100.0 * r.age_ms / r.timeout_ms, 1) AS percent, ${schema}.span(r.silent_ms) AS worker_silent,
    CASE WHEN r.age_ms > r.timeout_ms OR r.deadline_at < r.now OR r.silent_ms > r.lease_ms OR r.worker_state IS DISTINCT FROM 'live' THEN 'STALE'
      WHEN r.age_ms >= 0.8 * r.timeout_ms THEN 'WARNING' ELSE 'OK' END AS status
  FROM (
    SELECT j.id AS job_id, k.name AS kind, f.id AS worker, j.fence, j.errors + j.crashes + j.timeouts AS attempts, j.started_at, j.deadline_at,
      ${HEARTBEAT} AS heartbeat_at, c.now, c.now - greatest(j.started_at, ${HEARTBEAT}) AS age_ms, k.timeout_ms,
      c.now - f.heartbeat_at AS silent_ms, f.lease_ms, f.state AS worker_state
    FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
      CROSS JOIN (SELECT ${schema}.now_ms() AS now) AS c
    WHERE j.state = ${STATE.running}
  ) AS r;`;
}

function staleValidation(schema: string): string {
  return `
  -- Running beyond twice the timeout (and the grace that every job has): always empty. A row means that nobody recovers: no worker, no cron.
  CREATE VIEW ${schema}.stale_validation AS
  SELECT j.id AS job_id, k.name AS kind, f.id AS worker, ${schema}.instant(j.started_at) AS started_at, ${schema}.instant(j.deadline_at) AS deadline_at,
    ${schema}.span(c.now - greatest(j.started_at, ${HEARTBEAT})) AS age, ${schema}.span(k.timeout_ms) AS timeout
  FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
    CROSS JOIN (SELECT ${schema}.now_ms() AS now) AS c
  WHERE j.state = ${STATE.running} AND c.now - greatest(j.started_at, ${HEARTBEAT}) > 2 * k.timeout_ms + k.grace_ms + ${MARGIN_MS};`;
}

function reclaimHistory(schema: string): string {
  return `
  -- Everything that was taken back, by SQL or by a worker's recovery, newest first. Ends with the job's retention.
  CREATE VIEW ${schema}.reclaim_history AS
  SELECT ${schema}.instant(h.at) AS at, j.id AS job_id, k.name AS kind, coalesce(h.worker, i.worker) AS worker,
    coalesce(h.decision, ij.decision, CASE h.to_state WHEN ${STATE.queued} THEN 'retry' WHEN ${STATE.cancelled} THEN 'cancel' ELSE 'fail' END) AS decision,
    h.event AS cause, h.attempts, ${schema}.span(h.age_ms) AS age, ${stateName("h.to_state")} AS state, h.reason, h.incident, h.fence,
    CASE h.actor WHEN 'system/reclaim' THEN 'sql' ELSE coalesce(i.recovered_by, 'worker') END AS by
  FROM ${schema}.history h JOIN ${schema}.jobs j ON j.seq = h.job JOIN ${schema}.kinds k ON k.id = j.kind
    LEFT JOIN ${schema}.incidents i ON i.id = h.incident LEFT JOIN ${schema}.incident_jobs ij ON ij.incident = h.incident AND ij.job = h.job
  WHERE h.actor IN ('system/reclaim', 'system/recovery') AND h.event IN ('crash', 'timeOut', 'endCancelled')
  ORDER BY h.at DESC, h.ord DESC;`;
}

/** As migration 3 made it. It fails as a whole for one error that holds half a surrogate pair; a later migration replaces it. */
export function deadJobs(schema: string): string {
  return `
  -- What needs a person: dead and quarantined jobs, with the reason. After the cause is gone: outlive retry ID.
  CREATE VIEW ${schema}.dead_jobs AS
  SELECT j.id AS job_id, k.name AS kind, ${stateName("j.state")} AS state, coalesce(h.reason, j.error::json->>'message') AS reason,
    j.error::json->>'name' AS error, j.error::json->>'message' AS last_error, j.errors + j.crashes + j.timeouts AS attempts,
    j.errors, j.crashes, j.blamed, j.timeouts, f.id AS worker, ${schema}.instant(j.created_at) AS created_at, ${schema}.instant(j.finished_at) AS finished_at
  FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
    LEFT JOIN LATERAL (SELECT l.reason FROM ${schema}.history l WHERE l.job = j.seq AND l.to_state = j.state AND l.event <> 'write.rejected' ORDER BY l.ord DESC LIMIT 1) AS h ON true
  WHERE j.state IN (${STATE.dead}, ${STATE.quarantined});`;
}

function workers(schema: string): string {
  return `
  -- Who works, who is silent (reclaim takes what it holds), who is over and still kept.
  CREATE VIEW ${schema}.workers AS
  SELECT f.id AS worker, CASE WHEN f.state = 'live' AND f.heartbeat_at + f.lease_ms < c.now THEN 'silent' ELSE f.state END AS state,
    f.host, f.pid, f.version, ${schema}.instant(f.started_at) AS started_at, ${schema}.instant(f.heartbeat_at) AS heartbeat_at,
    ${schema}.span(c.now - f.heartbeat_at) AS silent, ${schema}.span(f.lease_ms) AS lease, f.beats, ${schema}.span(f.loop_lag_ms) AS loop_lag, f.concurrency,
    (SELECT count(*) FROM ${schema}.jobs j WHERE j.state = ${STATE.running} AND j.worker = f.seq) AS holds, f.kinds::json AS kinds, f.last_word, f.incident
  FROM ${schema}.fleet f CROSS JOIN (SELECT ${schema}.now_ms() AS now) AS c;`;
}

export function stateName(column: string): string {
  return `(ARRAY[${JOB_STATES.map((state) => `'${state}'`).join(", ")}])[${column} + 1]`;
}

// The view `dead_jobs` as it replaces that of migration 3: one row can't make it unreadable. Earlier versions of Outlive stored errors
// that held half a surrogate pair, and PostgreSQL refuses to read such JSON.

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
