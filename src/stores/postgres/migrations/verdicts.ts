// SQL leaves verdicts to core. Until here `take_back` had a copy of core's policy for crashes (blame, quarantine, deaths
// elsewhere). SQL can't prove a death, so all that it does for a dead worker is what core does for a loss of contact: it fences the jobs,
// queues them again and counts nothing. A death that core had proved before is such a loss, resolved as `died`. Core judges it when a
// process runs again (recovery/losses.ts). What is left compares columns that core wrote: the limits and `on_crash` of the kind, the
// counters of the job, the suspects of the incident.
import type { Migration } from "../migrate.ts";
import { LANE, NEVER_DUE, OUTCOME, STATE } from "./frozen.ts";
import { openIncident, takeBackByHalving } from "./isolation.ts";
import { TTL } from "./seed-views.ts";

export const verdicts: Migration = {
  name: "verdicts are core's",
  drops: "nothing: a reclaim in SQL judges deaths itself again",
  up: (schema) => [openLoss(schema), takeBack(schema)].join("\n"),
  down: (schema) => [openIncident(schema), takeBackByHalving(schema)].join("\n"),
};

function openLoss(schema: string): string {
  return `
  -- One incident per death: the first call opens it, later ones continue it. The caller holds the worker's row.
  CREATE OR REPLACE FUNCTION ${schema}.open_incident(dead ${schema}.fleet, recovery text, now bigint) RETURNS ${schema}.incidents
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  #variable_conflict use_column
  DECLARE
    opened ${schema}.incidents;
    held bigint;
    suspects bigint;
    evidence text;
  BEGIN
    SELECT count(*), count(*) FILTER (WHERE h.crashes + h.losses > 0) INTO held, suspects
    FROM ${schema}.jobs h WHERE h.state = 1 AND h.worker = dead.seq;
    -- What is taken now has not been judged, also if the rest of the incident has.
    UPDATE ${schema}.incidents SET completed_at = NULL, cursor = CASE WHEN completed_at IS NULL THEN cursor ELSE 0 END,
      judged_at = CASE WHEN held > 0 THEN NULL ELSE judged_at END,
      resolution = CASE WHEN held > 0 AND how = 'gone' THEN 'died' ELSE resolution END,
      how = CASE WHEN held > 0 AND how = 'gone' THEN 'silent' ELSE how END
    WHERE id = dead.incident RETURNING * INTO opened;
    IF NOT FOUND THEN
      evidence := CASE WHEN dead.state = 'live'
        THEN format('no heartbeat for %s ms by the server''s clock (lease %s ms)', open_incident.now - dead.heartbeat_at, dead.lease_ms)
        ELSE format('it was %s and still held %s job(s)', dead.state, held) END;
      INSERT INTO ${schema}.incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at,
        loop_lag_ms, detected_at, started_at, recovered_by, integrity, wal_frames, held_at_death, suspects_at_death, resolution)
      VALUES (${schema}.new_id(), open_incident.recovery, dead.id, 'silent',
        concat_ws('; ', evidence, dead.last_word), dead.host, dead.pid, dead.version, dead.started_at, dead.heartbeat_at,
        dead.loop_lag_ms, open_incident.now, open_incident.now, 'sql', 'NOT_CHECKED', 0, held, suspects,
        CASE WHEN dead.state <> 'live' THEN 'died' END)
      RETURNING * INTO opened;
    END IF;
    UPDATE ${schema}.fleet SET state = 'recovering', incident = opened.id WHERE seq = dead.seq;
    RETURN opened;
  END $$;`;
}

/** The caller holds the row of the job, and has seen that it runs. */
function takeBack(schema: string): string {
  return `
  -- cause: 'timeOut', or anything else for a job whose worker is lost. Returns the row of reclaim_stale_jobs.
  CREATE OR REPLACE FUNCTION ${schema}.take_back(
    j ${schema}.jobs, k ${schema}.kinds, owner text, cause text, alone boolean, ttl_ms bigint, what text, incident text, now bigint
  ) RETURNS TABLE (job_id text, kind text, worker text, decision text, attempts integer, age interval)
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  #variable_conflict use_variable
  DECLARE
    change text := CASE cause WHEN 'timeOut' THEN 'timeOut' ELSE 'lose' END;
    next_state integer := ${STATE.queued};
    new_outcome integer;
    delay_ms bigint := 0;
    message text;
    age_ms bigint := now - greatest(j.started_at, j.heartbeat_at);
    new_timeouts integer := j.timeouts;
    new_losses integer := j.losses;
    new_together integer := j.together;
    waits boolean := false;
    new_lane integer;
    loss ${schema}.incidents;
    led_by text := format('Exceeded TTL (%s)', ${schema}.ttl_text(${TTL("ttl_ms", "now")}));
  BEGIN
    SELECT * INTO loss FROM ${schema}.incidents o WHERE o.id = take_back.incident;
    alone := loss.suspects_at_death = 1 AND j.crashes + j.losses > 0;
    IF loss.resolution = 'died' THEN
      led_by := 'Worker died';
      what := format('worker %s is gone', owner);
    END IF;
    IF j.cancel_requested THEN
      decision := 'cancel';
      next_state := ${STATE.cancelled};
      new_outcome := ${OUTCOME.cancelled};
    ELSIF change = 'timeOut' THEN
      new_outcome := ${OUTCOME["timed-out"]};
      new_timeouts := greatest(j.timeouts, least(j.timeouts + 1, k.max_timeouts));
      IF j.timeouts + 1 >= k.max_timeouts THEN
        decision := 'fail';
        next_state := ${STATE.dead};
      ELSE
        decision := 'retry';
        delay_ms := ${schema}.backoff_ms(k, j.timeouts + 1, random());
      END IF;
    ELSE
      new_outcome := ${OUTCOME.lost};
      IF k.on_crash = 'pending' THEN
        decision := 'pending';
      ELSIF k.on_crash = 'fail' OR j.errors >= k.max_errors OR j.timeouts >= k.max_timeouts THEN
        decision := 'fail';
        next_state := ${STATE.dead};
      ELSE
        decision := 'lost';
        new_losses := j.losses + 1;
        waits := new_losses >= k.max_crashes;
        new_together := CASE WHEN j.crashes + j.losses > 0 THEN greatest(1, loss.suspects_at_death / 2) ELSE 0 END;
      END IF;
    END IF;
    message := ${schema}.reclaim_text(k, change, decision, led_by, j.errors, j.crashes, j.blamed, new_timeouts, new_losses, new_together, what);
    new_lane := CASE WHEN next_state = ${STATE.queued} AND (delay_ms > 0 OR waits) THEN ${LANE.delayed}
      WHEN j.crashes + new_losses > 0 THEN ${LANE.alone} ELSE ${LANE.open} END;

    -- The sums keep the planner off the index of running jobs (settle.ts).
    UPDATE ${schema}.jobs AS t SET state = next_state, lane = new_lane, timeouts = new_timeouts, losses = new_losses, outcome = new_outcome,
      finished_at = now, result = NULL, result_sum = NULL, cancel_requested = false, together = new_together,
      run_at = CASE WHEN waits THEN ${NEVER_DUE} WHEN delay_ms > 0 THEN now + delay_ms END,
      incident = CASE WHEN next_state = ${STATE.queued} THEN take_back.incident END,
      error = json_build_object('name', CASE WHEN change = 'timeOut' THEN 'Timeout' WHEN loss.resolution = 'died' THEN 'WorkerDied' ELSE 'ContactLost' END,
        'message', message)::text
    WHERE t.seq = j.seq AND t.state + 0 = ${STATE.running} AND t.fence = j.fence AND t.epoch = j.epoch AND t.worker + 0 = j.worker;
    IF NOT FOUND THEN RETURN; END IF;

    job_id := j.id;
    kind := k.name;
    worker := owner;
    attempts := j.errors + j.crashes + new_timeouts + new_losses;
    age := make_interval(secs => age_ms / 1000.0);
    INSERT INTO ${schema}.history (job, at, epoch, fence, from_state, to_state, event, actor, reason, incident, worker, decision, attempts, age_ms)
    VALUES (j.seq, now, j.epoch, j.fence, ${STATE.running}, next_state,
      CASE WHEN decision = 'cancel' AND change = 'timeOut' THEN 'endCancelled' ELSE change END,
      'system/reclaim', message, incident, owner, decision, attempts, age_ms);
    IF incident IS NOT NULL THEN
      INSERT INTO ${schema}.incident_jobs AS i (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, alone, success)
      VALUES (incident, j.seq, j.id, k.name, decision,
        json_build_object('errors', j.errors, 'crashes', j.crashes, 'blamed', j.blamed, 'timeouts', new_timeouts,
          'interruptions', j.interruptions, 'losses', new_losses)::text,
        k.max_crashes, j.fence, (SELECT s.name FROM ${schema}.steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1), coalesce(alone, false), true)
      ON CONFLICT ON CONSTRAINT incident_jobs_pkey DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = true, error = NULL;
    END IF;
    RETURN NEXT;
  END $$;`;
}
