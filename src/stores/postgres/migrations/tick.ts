// `tick()`, for cron: recovery and a wake-up of the workers in one call that never fails for a reason of ours. Part of migration 2.
import { channelOf } from "./enqueue.ts";

/** How often cron is told to call tick(). */
export const TICK_SECONDS = 15;

/**
 * A watcher that was asleep starts its watch again (core's lookout.ts): if the server was restarted or frozen, every heartbeat is
 * old and no worker is dead. The first tick after that only looks, and the next one acts.
 */
export function tick(schema: string): string {
  return `
  -- The latest call of tick(): one row.
  CREATE TABLE ${schema}.ticks (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at bigint NOT NULL,
    gap_ms bigint,               -- since the call before
    held boolean NOT NULL,       -- it took nothing: the server, or whoever calls, had been away
    reclaimed integer NOT NULL,
    caller text NOT NULL,        -- application_name and role
    server_run timestamptz NOT NULL,
    error text
  );

  CREATE FUNCTION ${schema}.tick(batch integer DEFAULT 500) RETURNS integer
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
  DECLARE
    last ${schema}.ticks;
    now bigint := ${schema}.now_ms();
    gap bigint;
    -- After the crash of one of its processes the server starts all others anew, and only the statistics show it.
    run timestamptz := greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver));
    hold boolean;
    taken integer := 0;
    fault text;
  BEGIN
    SELECT * INTO last FROM ${schema}.ticks;
    gap := now - last.at;
    hold := last.at IS NOT NULL AND NOT last.held
      AND (last.server_run <> run OR gap > 2 * greatest(coalesce(last.gap_ms, 0), ${TICK_SECONDS * 1_000}) + 1000);
    BEGIN
      IF NOT hold THEN SELECT count(*) INTO taken FROM ${schema}.reclaim_stale_jobs(batch); END IF;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      fault := SQLERRM;
      RAISE WARNING 'outlive: nothing was reclaimed in this tick: %', fault;
    END;
    BEGIN
      INSERT INTO ${schema}.ticks AS t (at, gap_ms, held, reclaimed, caller, server_run, error)
      VALUES (now, gap, hold, taken, concat_ws(' as ', nullif(current_setting('application_name'), ''), session_user), run, fault)
      ON CONFLICT (one) DO UPDATE SET at = excluded.at, gap_ms = excluded.gap_ms, held = excluded.held, reclaimed = excluded.reclaimed,
        caller = excluded.caller, server_run = excluded.server_run, error = excluded.error;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      RAISE WARNING 'outlive: this tick is not recorded: %', SQLERRM;
    END;
    PERFORM pg_notify('${channelOf(schema)}', '');
    RETURN taken;
  END $$;`;
}

export function dropTick(schema: string): string {
  return `
  DROP FUNCTION ${schema}.tick(integer);
  DROP TABLE ${schema}.ticks;`;
}
