// What becomes of one job that a reclaim takes: core's `crash`, `timeOut` and `endCancelled` written in SQL, with the backoff of
// retry.ts and the blame of blame.ts. Nothing here looks for jobs; reclaim.ts does.
import { ALONE_FROM_CRASHES, deathsElsewhere, HARD_LIMIT, LANE, OUTCOME, STATE } from "./frozen.ts";

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
