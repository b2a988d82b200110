// Migration 2: heartbeats of jobs, and recovery in plain SQL for when no Node process is alive. This is the one
// place where what core decides is written a second time; test/postgres-sql/differential.test.ts gives both the same cases.
import type { Migration } from "../migrate.ts";
import { channelOf } from "./enqueue.ts";
import { ALONE_FROM_CRASHES, deathsElsewhere, HARD_LIMIT, LANE, OUTCOME, STATE } from "./frozen.ts";

/** What others wait beyond deadline and grace before they fence out an overdue job: its worker does it itself first. */
export const MARGIN_MS = 2_000;
/** A running job without a deadline whose owner nobody knows is overdue after this: nothing runs unwatched. */
export const OWNERLESS_MS = 900_000;

export const reclaim: Migration = {
  name: "heartbeats and reclaim",
  drops:
    "the functions job_heartbeat, reclaim_stale_jobs and tick, the table ticks, and what the history says of reclaims",
  up: (schema) =>
    [
      history(schema),
      heartbeat(schema),
      takeBackFunctions(schema),
      incident(schema),
      reclaimFunction(schema),
      tick(schema),
    ].join("\n"),
  down: (schema) => `${dropTick(schema)}
  DROP FUNCTION ${schema}.reclaim_stale_jobs(integer);
  DROP FUNCTION ${schema}.open_incident(${schema}.fleet, text, bigint);
  ${dropTakeBack(schema)}
  DROP FUNCTION ${schema}.job_heartbeat(text, text, bigint);
  DROP INDEX ${schema}.history_reclaims;
  ALTER TABLE ${schema}.history DROP COLUMN worker, DROP COLUMN decision, DROP COLUMN attempts, DROP COLUMN age_ms;`,
};

function history(schema: string): string {
  return `
  -- What a row about a reclaim says beside the rest.
  ALTER TABLE ${schema}.history ADD COLUMN worker text, ADD COLUMN decision text, ADD COLUMN attempts integer, ADD COLUMN age_ms bigint;
  CREATE INDEX history_reclaims ON ${schema}.history (at, ord) WHERE actor IN ('system/reclaim', 'system/recovery');`;
}

function heartbeat(schema: string): string {
  return `
  -- Whether this attempt still owns the job; if so, its deadline moves to a whole timeout from now, at most to maxRuntime after its start.
  CREATE FUNCTION ${schema}.job_heartbeat(job text, worker text, fence bigint) RETURNS boolean
  LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH beaten AS (
      UPDATE ${schema}.jobs j SET deadline_at = CASE WHEN k.timeout_ms IS NOT NULL THEN least(${schema}.now_ms() + k.timeout_ms, j.started_at + k.max_runtime_ms) END
      FROM ${schema}.kinds k, ${schema}.fleet f
      WHERE j.seq = (SELECT i.seq FROM ${schema}.job_ids i WHERE i.id = job_heartbeat.job) AND j.state + 0 = 1 AND j.fence = job_heartbeat.fence
        AND f.id = job_heartbeat.worker AND j.worker + 0 = f.seq AND k.id = j.kind
      RETURNING 1
    ) SELECT EXISTS (SELECT 1 FROM beaten)
  $$;`;
}

export function incident(schema: string): string {
  return `
  -- One incident per death: the first call opens it, whoever comes later goes on with it. The caller holds the worker's row.
  CREATE FUNCTION ${schema}.open_incident(dead ${schema}.fleet, recovery text, now bigint) RETURNS ${schema}.incidents
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  #variable_conflict use_column
  DECLARE
    opened ${schema}.incidents;
    held bigint := (SELECT count(*) FROM ${schema}.jobs h WHERE h.state = 1 AND h.worker = dead.seq);
    evidence text := CASE WHEN dead.state = 'live'
      THEN format('no heartbeat for %s ms by the server''s clock (lease %s ms)', open_incident.now - dead.heartbeat_at, dead.lease_ms)
      ELSE format('it was %s and still held %s job(s)', dead.state, held) END;
  BEGIN
    UPDATE ${schema}.incidents SET completed_at = NULL, cursor = CASE WHEN completed_at IS NULL THEN cursor ELSE 0 END
    WHERE id = dead.incident RETURNING * INTO opened;
    IF NOT FOUND THEN
      INSERT INTO ${schema}.incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at,
        loop_lag_ms, detected_at, started_at, recovered_by, integrity, wal_frames, held_at_death)
      VALUES (${schema}.new_id(), open_incident.recovery, dead.id, CASE dead.state WHEN 'live' THEN 'silent' ELSE 'gone' END,
        concat_ws('; ', evidence, dead.last_word), dead.host, dead.pid, dead.version, dead.started_at, dead.heartbeat_at,
        dead.loop_lag_ms, open_incident.now, open_incident.now, 'sql', 'NOT_CHECKED', 0, held)
      RETURNING * INTO opened;
    END IF;
    UPDATE ${schema}.fleet SET state = 'recovering', incident = opened.id WHERE seq = dead.seq;
    RETURN opened;
  END $$;`;
}

/**
 * First the dead, as maintenance does, then the overdue. SKIP LOCKED keeps two reclaims apart, not a reclaim from a worker: that is
 * done by the lock on the worker's row, which a claim shares, and by the guard of every write. A job whose own row can't be
 * written is told about and hides no other.
 */
export function reclaimFunction(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.reclaim_stale_jobs(batch integer DEFAULT 500)
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

${overdueJobs(schema)}
    IF taken > 0 THEN PERFORM pg_notify('${channelOf(schema)}', ''); END IF;
  END $$;`;
}

export function deadWorkers(schema: string): string {
  return `    -- Both instants are the server's: its clock wrote heartbeat_at. A heartbeat or a claim under way comes before our lock (the row is
    -- then looked at again, and lives) or after it (the worker is then told that it is over).
    FOR dead IN
      SELECT f.* FROM ${schema}.fleet f
      WHERE (f.state = 'live' AND f.heartbeat_at + f.lease_ms < now) OR f.state = 'recovering'
        OR (f.state IN ('gone', 'stopped') AND EXISTS (SELECT 1 FROM ${schema}.jobs h WHERE h.state = 1 AND h.worker = f.seq))
      ORDER BY f.heartbeat_at, f.seq FOR UPDATE OF f SKIP LOCKED
    LOOP
      EXIT WHEN taken >= batch;
      opened := ${schema}.open_incident(dead, recovery, now);
      FOR held IN
        SELECT j, k FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind
        WHERE j.state = 1 AND j.worker = dead.seq ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED
      LOOP
        EXIT WHEN taken >= batch;
        BEGIN
          RETURN QUERY SELECT b.* FROM ${schema}.take_back(held.j, held.k, dead.id, 'crash', opened.held_at_death = 1,
            CASE WHEN (held.j).deadline_at < now THEN (held.k).timeout_ms ELSE dead.lease_ms END,
            format('no heartbeat of worker %s for %s s', dead.id, (now - dead.heartbeat_at) / 1000), opened.id, now) b;
          taken := taken + 1;
        EXCEPTION WHEN OTHERS THEN
          RAISE WARNING 'outlive: job % was not reclaimed: %', (held.j).id, SQLERRM;
          INSERT INTO ${schema}.incident_jobs (incident, job, job_id, kind, decision, counters, max_crashes, fence, success, error)
          VALUES (opened.id, (held.j).seq, (held.j).id, (held.k).name, 'none',
            json_build_object('errors', (held.j).errors, 'crashes', (held.j).crashes, 'blamed', (held.j).blamed,
              'timeouts', (held.j).timeouts, 'interruptions', (held.j).interruptions)::text,
            (held.k).max_crashes, (held.j).fence, false, SQLERRM)
          ON CONFLICT (incident, job) DO UPDATE SET success = false, error = excluded.error;
        END;
      END LOOP;
      IF taken < batch OR NOT EXISTS (SELECT 1 FROM ${schema}.jobs h WHERE h.state = 1 AND h.worker = dead.seq) THEN
        UPDATE ${schema}.incidents SET completed_at = now WHERE id = opened.id;
        UPDATE ${schema}.fleet SET state = 'gone' WHERE seq = dead.seq;
        DELETE FROM ${schema}.cancels c WHERE c.worker = dead.seq;
      END IF;
    END LOOP;`;
}

/** Whoever owns them: also jobs whose owner has no row at all. */
function overdueJobs(schema: string): string {
  return `    FOR held IN
      SELECT j, k, f.id AS owner FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
      WHERE j.state = 1 AND coalesce(j.deadline_at, CASE WHEN f.seq IS NULL THEN j.started_at + ${OWNERLESS_MS} END) + k.grace_ms + ${MARGIN_MS} < now
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
    END LOOP;`;
}

// What becomes of one job that a reclaim takes: core's `crash`, `timeOut` and `endCancelled` written in SQL, with the backoff of
// job/job.ts and the blame of job/isolation.ts.

export function takeBackFunctions(schema: string): string {
  return `${backoff(schema)}\n${ttlText(schema)}\n${takeBack(schema)}`;
}

export function dropTakeBack(schema: string): string {
  return `
  DROP FUNCTION ${schema}.take_back(${schema}.jobs, ${schema}.kinds, text, text, boolean, bigint, text, text, bigint);
  DROP FUNCTION ${schema}.ttl_text(bigint);
  DROP FUNCTION ${schema}.backoff_ms(${schema}.kinds, integer, double precision);`;
}

function backoff(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.backoff_ms(k ${schema}.kinds, failures integer, chance double precision) RETURNS bigint
  LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT floor(least(
      CASE WHEN k.backoff_type = 'linear' THEN k.backoff_base_ms::double precision * greatest(1, failures)
        ELSE k.backoff_base_ms * power(2::double precision, least(greatest(1, failures) - 1, 40)) END,
      k.backoff_max_ms) * (1 - k.backoff_jitter + k.backoff_jitter * chance) + 0.5)::bigint
  $$;`;
}

function ttlText(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.ttl_text(ms bigint) RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN ms % 60000 = 0 THEN ms / 60000 || ' min' WHEN ms % 1000 = 0 THEN ms / 1000 || ' s' ELSE ms || ' ms' END
  $$;`;
}

/** The caller holds the row of the job, and has seen that it runs. */
export function takeBack(schema: string): string {
  return `
  -- cause: 'crash' (its worker is dead; alone: it held nothing else) or 'timeOut'. Answers the row of reclaim_stale_jobs.
  CREATE FUNCTION ${schema}.take_back(
    j ${schema}.jobs, k ${schema}.kinds, owner text, cause text, alone boolean, ttl_ms bigint, what text, incident text, now bigint
  ) RETURNS TABLE (job_id text, kind text, worker text, decision text, attempts integer, age interval)
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  #variable_conflict use_variable
  DECLARE
    change text := cause;
    next_state integer := ${STATE.queued};
    new_outcome integer;
    delay_ms bigint := 0;
    message text;
    age_ms bigint := now - greatest(j.started_at, coalesce(least(j.deadline_at - k.timeout_ms, now), 0));
    new_crashes integer := j.crashes;
    new_blamed integer := j.blamed;
    new_timeouts integer := j.timeouts;
    new_lane integer;
  BEGIN
    IF j.cancel_requested THEN
      decision := 'cancel';
      next_state := ${STATE.cancelled};
      new_outcome := ${OUTCOME.cancelled};
      change := CASE cause WHEN 'timeOut' THEN 'endCancelled' ELSE cause END;
      message := format('Exceeded TTL (%s): %s; its cancel had been asked for', ${schema}.ttl_text(ttl_ms), what);
    ELSIF cause = 'timeOut' THEN
      new_outcome := ${OUTCOME["timed-out"]};
      new_timeouts := greatest(j.timeouts, least(j.timeouts + 1, k.max_timeouts));
      IF j.timeouts + 1 >= k.max_timeouts THEN
        decision := 'fail';
        next_state := ${STATE.dead};
        message := format('Max attempts reached: timeout %s of %s, no more are allowed; %s', new_timeouts, k.max_timeouts, what);
      ELSE
        decision := 'retry';
        delay_ms := ${schema}.backoff_ms(k, j.timeouts + 1, random());
        message := format('Exceeded TTL (%s): timeout %s of %s; %s', ${schema}.ttl_text(ttl_ms), new_timeouts, k.max_timeouts, what);
      END IF;
    ELSE
      new_outcome := ${OUTCOME.crashed};
      IF k.on_crash <> 'pending' THEN
        new_crashes := new_crashes + 1;
        new_blamed := new_blamed + CASE WHEN alone THEN 1 ELSE 0 END;
      END IF;
      IF k.on_crash = 'pending' THEN
        decision := 'pending';
        message := format('Exceeded TTL (%s): %s; queued again, not counted', ${schema}.ttl_text(ttl_ms), what);
      ELSIF k.on_crash = 'fail' THEN
        decision := 'fail';
        next_state := ${STATE.dead};
        message := format('Max attempts reached: its kind says that a crash ends the job; %s', what);
      ELSIF alone AND new_blamed >= k.max_crashes AND (new_blamed >= ${HARD_LIMIT} * k.max_crashes
        OR new_blamed > ${deathsElsewhere(schema, "j.seq", "j.crashes", "now")}) THEN
        decision := 'quarantine';
        next_state := ${STATE.quarantined};
        message := format('Max attempts reached: %s of %s workers died while it ran alone; %s', new_blamed, k.max_crashes, what);
      ELSE
        decision := 'retry';
        message := format('Exceeded TTL (%s): crash %s, %s of %s alone%s; %s', ${schema}.ttl_text(ttl_ms), new_crashes, new_blamed, k.max_crashes,
          CASE WHEN new_crashes >= ${ALONE_FROM_CRASHES} THEN ', it will run alone' ELSE '' END, what);
      END IF;
    END IF;
    message := 'RECLAIMED_TTL: ' || message;
    new_lane := CASE WHEN next_state = ${STATE.queued} AND delay_ms > 0 THEN ${LANE.delayed}
      WHEN new_crashes >= ${ALONE_FROM_CRASHES} THEN ${LANE.alone} ELSE ${LANE.open} END;

    -- The sums keep the planner off the index of running jobs (settle.ts).
    UPDATE ${schema}.jobs AS t SET state = next_state, lane = new_lane, crashes = new_crashes, blamed = new_blamed,
      timeouts = new_timeouts, outcome = new_outcome, finished_at = now, result = NULL, cancel_requested = false, reserved_by = NULL,
      run_at = CASE WHEN delay_ms > 0 THEN now + delay_ms END,
      incident = CASE WHEN next_state = ${STATE.queued} THEN take_back.incident END,
      error = json_build_object('name', CASE cause WHEN 'timeOut' THEN 'Timeout' ELSE 'WorkerDied' END, 'message', message)::text
    WHERE t.seq = j.seq AND t.state + 0 = ${STATE.running} AND t.fence = j.fence AND t.epoch = j.epoch AND t.worker + 0 = j.worker;
    IF NOT FOUND THEN RETURN; END IF;

    job_id := j.id;
    kind := k.name;
    worker := owner;
    attempts := j.errors + new_crashes + new_timeouts;
    age := make_interval(secs => age_ms / 1000.0);
    INSERT INTO ${schema}.history (job, at, epoch, fence, from_state, to_state, event, actor, reason, incident, worker, decision, attempts, age_ms)
    VALUES (j.seq, now, j.epoch, j.fence, ${STATE.running}, next_state, change, 'system/reclaim', message, incident, owner, decision, attempts, age_ms);
    IF incident IS NOT NULL THEN
      INSERT INTO ${schema}.incident_jobs AS i (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, success)
      VALUES (incident, j.seq, j.id, k.name, decision,
        json_build_object('errors', j.errors, 'crashes', new_crashes, 'blamed', new_blamed, 'timeouts', new_timeouts, 'interruptions', j.interruptions)::text,
        k.max_crashes, j.fence, (SELECT s.name FROM ${schema}.steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1), true)
      ON CONFLICT ON CONSTRAINT incident_jobs_pkey DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = true, error = NULL;
    END IF;
    RETURN NEXT;
  END $$;`;
}

// `tick()`, for cron: recovery and a wake-up of the workers in one call that never fails for a reason of ours. Part of migration 2.

/** How often cron is told to call tick(). */
export const TICK_SECONDS = 15;

/**
 * A watcher that was asleep starts its watch again (recovery/failure-detector.ts): if the server was restarted or frozen, every heartbeat is
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
