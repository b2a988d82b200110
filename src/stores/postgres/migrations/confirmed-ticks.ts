// A step of the server's clock times out no job: `tick()` remembers since when its calls have come in their rhythm, and a job is
// overdue for it only if its whole timeout fits into that time. SQL has no monotonic clock; the rhythm of cron stands in for one. It is
// core's rule (confirmed-time.ts), which workers follow already. `reclaim_stale_jobs()` by hand trusts the server's clock, as before.
import type { Migration } from "../migrate.ts";
import { channelOf } from "./enqueue.ts";
import { deadWorkers, MARGIN_MS, OWNERLESS_MS, reclaimFunction, tick, TICK_SECONDS } from "./reclaim.ts";

export const confirmedTicks: Migration = {
  name: "ticks confirm the server's clock",
  drops: "the function reclaim_confirmed_jobs, and since when ticks have come in their rhythm",
  up: (schema) =>
    [columns(schema), confirmedReclaim(schema), reclaimByHand(schema), confirmedTick(schema), grants(schema)].join(
      "\n",
    ),
  down: (schema) => `
  ${functionsOf(tick(schema))}
  ${functionsOf(reclaimFunction(schema))}
  DROP FUNCTION ${schema}.reclaim_confirmed_jobs(integer, bigint);
  ALTER TABLE ${schema}.ticks DROP COLUMN steady_since;`,
};

/** An earlier step's functions as they were. Replaced functions keep their grants. */
function functionsOf(text: string): string {
  return text.slice(text.indexOf("CREATE FUNCTION")).replaceAll("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION");
}

function columns(schema: string): string {
  return `
  -- Null: since the first tick, which trusts the clock.
  ALTER TABLE ${schema}.ticks ADD COLUMN steady_since bigint;`;
}

/** As reclaim_stale_jobs was, except for `steady_ms`. */
function confirmedReclaim(schema: string): string {
  return `
  -- steady_ms: for how long the server's clock is known to have gone without a step. Null: it is trusted.
  CREATE FUNCTION ${schema}.reclaim_confirmed_jobs(batch integer, steady_ms bigint)
  RETURNS TABLE (job_id text, kind text, worker text, decision text, attempts integer, age interval)
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
  #variable_conflict use_column
  DECLARE
    now bigint := ${schema}.now_ms();
    recovery text := ${schema}.new_id();
    dead ${schema}.fleet;
    opened ${schema}.incidents;
    held record;
    taken integer := 0;
  BEGIN
    IF batch IS NULL OR batch NOT BETWEEN 1 AND 10000 THEN
      RAISE EXCEPTION 'the batch is %', coalesce(batch::text, 'null') USING ERRCODE = 'invalid_parameter_value', HINT = 'Use 1 to 10000.';
    END IF;

${deadWorkers(schema)}

    FOR held IN
      SELECT j, k, f.id AS owner FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
      WHERE j.state = 1 AND coalesce(j.deadline_at, CASE WHEN f.seq IS NULL THEN j.started_at + ${OWNERLESS_MS} END) + k.grace_ms + ${MARGIN_MS} < now
        AND (steady_ms IS NULL OR coalesce(k.timeout_ms, ${OWNERLESS_MS}) + k.grace_ms + ${MARGIN_MS} < steady_ms)
      ORDER BY j.deadline_at, j.seq FOR UPDATE OF j SKIP LOCKED
    LOOP
      EXIT WHEN taken >= batch;
      BEGIN
        RETURN QUERY SELECT b.* FROM ${schema}.take_back(held.j, held.k, held.owner, 'timeOut', false,
          coalesce((held.k).timeout_ms, ${OWNERLESS_MS}), CASE WHEN held.owner IS NULL THEN 'its worker is not known' ELSE 'worker ' || held.owner END, NULL, now) b;
        taken := taken + 1;
      EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'outlive: job % was not reclaimed: %', (held.j).id, SQLERRM;
      END;
    END LOOP;
    IF taken > 0 THEN PERFORM pg_notify('${channelOf(schema)}', ''); END IF;
  END $$;`;
}

function reclaimByHand(schema: string): string {
  return `
  CREATE OR REPLACE FUNCTION ${schema}.reclaim_stale_jobs(batch integer DEFAULT 500)
  RETURNS TABLE (job_id text, kind text, worker text, decision text, attempts integer, age interval)
  LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
    SELECT * FROM ${schema}.reclaim_confirmed_jobs(batch, NULL)
  $$;`;
}

/** A gap that is too long holds one tick, as before, and starts the time that is confirmed again. A restart within the rhythm does not. */
export function confirmedTick(schema: string): string {
  return `
  CREATE OR REPLACE FUNCTION ${schema}.tick(batch integer DEFAULT 500) RETURNS integer
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
  DECLARE
    last ${schema}.ticks;
    now bigint := ${schema}.now_ms();
    gap bigint;
    -- After the crash of one of its processes the server starts all others anew, and only the statistics show it.
    run timestamptz := greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver));
    leapt boolean;
    hold boolean;
    since bigint;
    taken integer := 0;
    fault text;
  BEGIN
    SELECT * INTO last FROM ${schema}.ticks;
    gap := now - last.at;
    leapt := coalesce(gap < 0 OR gap > 2 * greatest(coalesce(last.gap_ms, 0), ${TICK_SECONDS * 1_000}) + 1000, false);
    hold := last.at IS NOT NULL AND NOT last.held AND (last.server_run <> run OR (leapt AND gap > 0));
    since := CASE WHEN leapt THEN now ELSE last.steady_since END;
    BEGIN
      IF NOT hold THEN SELECT count(*) INTO taken FROM ${schema}.reclaim_confirmed_jobs(batch, now - since); END IF;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      fault := SQLERRM;
      RAISE WARNING 'outlive: nothing was reclaimed in this tick: %', fault;
    END;
    BEGIN
      INSERT INTO ${schema}.ticks AS t (at, gap_ms, held, reclaimed, caller, server_run, error, steady_since)
      VALUES (now, gap, hold, taken, concat_ws(' as ', nullif(current_setting('application_name'), ''), session_user), run, fault, since)
      ON CONFLICT (one) DO UPDATE SET at = excluded.at, gap_ms = excluded.gap_ms, held = excluded.held, reclaimed = excluded.reclaimed,
        caller = excluded.caller, server_run = excluded.server_run, error = excluded.error, steady_since = excluded.steady_since;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      RAISE WARNING 'outlive: this tick is not recorded: %', SQLERRM;
    END;
    PERFORM pg_notify('${channelOf(schema)}', '');
    RETURN taken;
  END $$;`;
}

/** A role that may call a reclaim may call what that calls now. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE p.oid IN ('${schema}.reclaim_stale_jobs(integer)'::regprocedure, '${schema}.tick(integer)'::regprocedure) AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.reclaim_confirmed_jobs(integer, bigint) TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
