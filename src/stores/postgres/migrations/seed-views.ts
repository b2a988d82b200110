// Migration 7. What seeds 003 and 004 ask of the tables: a checksum for every text that a handler trusts, the instant of a job's own heartbeat, and
// the same words in the views for a job that a worker took back and for one that SQL took back.
import type { Migration } from "../migrate.ts";
import { addJobs } from "./enqueue.ts";
import {
  ALONE_FROM_CRASHES,
  checksum,
  HARD_LIMIT,
  LANE,
  NEVER_DUE,
  OUTCOME,
  resolvedDeathsElsewhere,
  STATE,
} from "./frozen.ts";
import { incident, MARGIN_MS, OWNERLESS_MS, takeBack } from "./reclaim.ts";
import { heartbeatOfThisStore, OF_THIS_STORE } from "./restore.ts";
import { HALF_PAIR, REPLACEMENT, stateName, tolerantDeadJobs, views } from "./views.ts";

export const seedViews: Migration = {
  name: "checksums and reclaim texts",
  drops: "the checksums, the instants of job heartbeats, and the texts of reclaims that workers made",
  locks: ["jobs", "steps", "history"],
  up: (schema) =>
    [
      columns(schema),
      addCheckedJobs(schema),
      notedHeartbeat(schema),
      reclaimText(schema),
      takeBackInOneText(schema),
      noteReclaim(schema),
      noteReclaimTrigger(schema),
      staleMonitor(schema),
      staleValidation(schema),
      reclaimHistory(schema),
      errorText(schema),
      deadJobs(schema),
      grants(schema),
    ].join("\n"),
  down: (schema) => `
  DROP TRIGGER note_reclaim ON ${schema}.history;
  DROP FUNCTION ${schema}.note_reclaim();
  ${replacing(addJobs(schema))}
  ${heartbeatOfThisStore(schema)}
  ${replacing(takeBack(schema))}
  ${replacing(incident(schema))}
  ${replacing(views.up(schema))}
  ${tolerantDeadJobs(schema)}
  DROP FUNCTION ${schema}.error_text(text, text);
  ${dropReclaimTexts(schema)}
  ALTER TABLE ${schema}.history DROP COLUMN reclaim;
  ALTER TABLE ${schema}.steps DROP COLUMN result_sum;
  ALTER TABLE ${schema}.incidents DROP COLUMN IF EXISTS suspects_at_death;
  ALTER TABLE ${schema}.incident_jobs DROP COLUMN IF EXISTS alone;
  ALTER TABLE ${schema}.jobs DROP COLUMN IF EXISTS together, DROP COLUMN heartbeat_at, DROP COLUMN input_sum, DROP COLUMN result_sum;`,
};

/** Of this step, with the signature of the next one as well: other texts of this step made that one (index.ts, ALSO_ACCEPTED). */
export function dropReclaimTexts(schema: string): string {
  const counters = "integer, integer, integer, integer, integer";
  return `DROP FUNCTION IF EXISTS ${schema}.reclaim_text(${schema}.kinds, text, text, text, ${counters}, text);
  DROP FUNCTION IF EXISTS ${schema}.reclaim_text(${schema}.kinds, text, text, text, ${counters}, integer, text);`;
}

/** An earlier step's text that puts its own version back. Replaced functions and views keep their grants. */
export function replacing(text: string): string {
  return text
    .replaceAll("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    .replaceAll("CREATE VIEW", "CREATE OR REPLACE VIEW");
}

function columns(schema: string): string {
  return `
  -- Null in rows that are older than this step: they are not checked.
  ALTER TABLE ${schema}.history ADD COLUMN reclaim text;  -- what the views say of a reclaim that a worker made
  ALTER TABLE ${schema}.jobs ADD COLUMN heartbeat_at bigint, -- the job's own latest heartbeat; of an earlier attempt if before started_at
    ADD COLUMN input_sum bytea, ADD COLUMN result_sum bytea;
  ALTER TABLE ${schema}.steps ADD COLUMN result_sum bytea;`;
}

export function addCheckedJobs(schema: string): string {
  return `
  -- As in step 1, and each input with its checksum.
  CREATE OR REPLACE FUNCTION ${schema}.add_jobs(
    kinds integer[], priorities integer[], run_ats bigint[], delays_ms bigint[], ids text[], dedupe_keys text[], inputs text[]
  ) RETURNS text[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    now_ms bigint := ${schema}.now_ms();
    seqs bigint[] := ARRAY(SELECT nextval('${schema}.jobs_seq_seq') FROM generate_series(1, cardinality(ids)));
    named integer;
    added text[];
  BEGIN
    INSERT INTO ${schema}.job_ids (id, seq) SELECT d.id, d.seq FROM unnest(ids, seqs) AS d (id, seq) ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS named = ROW_COUNT;
    WITH drafts AS (
      SELECT d.*, coalesce(d.said_at, CASE WHEN d.delay_ms > 0 THEN now_ms + d.delay_ms END) AS run_at
      FROM unnest(seqs, kinds, priorities, run_ats, delays_ms, ids, dedupe_keys, inputs)
        AS d (seq, kind, priority, said_at, delay_ms, id, dedupe_key, input)
      WHERE named = cardinality(ids) OR (SELECT i.seq FROM ${schema}.job_ids i WHERE i.id = d.id) = d.seq),
    jobs AS (
      INSERT INTO ${schema}.jobs (seq, lane, kind, priority, created_at, run_at, id, dedupe_key, input, input_sum) OVERRIDING SYSTEM VALUE
      SELECT d.seq, CASE WHEN d.run_at > now_ms THEN 0 ELSE 1 END, d.kind, d.priority, now_ms, d.run_at, d.id, d.dedupe_key, d.input,
        ${checksum("d.input", "d.id")} FROM drafts d
      ON CONFLICT DO NOTHING RETURNING kind, id),
    counted AS (INSERT INTO ${schema}.kind_deltas (kind, jobs) SELECT j.kind, count(*) FROM jobs j GROUP BY j.kind)
    SELECT CASE WHEN count(*) < cardinality(ids) THEN coalesce(array_agg(j.id), '{}') END INTO added FROM jobs j;
    IF cardinality(added) < named THEN
      DELETE FROM ${schema}.job_ids i USING unnest(ids, seqs) AS d (id, seq)
      WHERE i.id = d.id AND i.seq = d.seq AND NOT EXISTS (SELECT 1 FROM ${schema}.jobs j WHERE j.seq = d.seq);
    END IF;
    RETURN added;
  END $$;`;
}

function notedHeartbeat(schema: string): string {
  return `
  -- As in step 6, and the instant is kept: a deadline does not tell it, because the timeout of a kind can change and maxRuntime caps it.
  CREATE OR REPLACE FUNCTION ${schema}.job_heartbeat(job text, worker text, fence bigint) RETURNS boolean
  LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH clock AS MATERIALIZED (SELECT ${schema}.now_ms() AS now),
    beaten AS (
      UPDATE ${schema}.jobs j SET heartbeat_at = clock.now,
        deadline_at = CASE WHEN k.timeout_ms IS NOT NULL THEN least(clock.now + k.timeout_ms, j.started_at + k.max_runtime_ms) END
      FROM clock, ${schema}.kinds k, ${schema}.fleet f
      WHERE j.seq = (SELECT i.seq FROM ${schema}.job_ids i WHERE i.id = job_heartbeat.job) AND j.state + 0 = 1 AND j.fence = job_heartbeat.fence
        AND f.id = job_heartbeat.worker AND j.worker + 0 = f.seq AND k.id = j.kind${OF_THIS_STORE(schema)}
      RETURNING 1
    ) SELECT EXISTS (SELECT 1 FROM beaten)
  $$;`;
}

export function reclaimText(schema: string): string {
  return `
  -- The one place that words a reclaim. cause: 'crash' (its worker died), 'lose' (contact with its worker was lost) or 'timeOut';
  -- led_by: 'Exceeded TTL (30 s)', 'Worker died' or 'Contact lost'. The counters are those after the reclaim.
  CREATE FUNCTION ${schema}.reclaim_text(
    k ${schema}.kinds, cause text, decision text, led_by text, errors integer, crashes integer, blamed integer, timeouts integer, losses integer, what text
  ) RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'RECLAIMED_TTL: ' || CASE
      WHEN decision = 'cancel' THEN format('%s: %s; its cancel had been asked for', led_by, what)
      WHEN decision = 'pending' THEN format('%s: %s; queued again, not counted', led_by, what)
      WHEN decision = 'quarantine' THEN format('Max attempts reached: %s of %s workers died while it ran alone; %s', blamed, k.max_crashes, what)
      WHEN decision = 'fail' AND cause <> 'timeOut' AND k.on_crash = 'fail' THEN format('%s: its kind says that a crash ends the job; %s', led_by, what)
      WHEN decision = 'fail' AND timeouts >= k.max_timeouts
        THEN format('Max attempts reached: timeout %s of %s, no more are allowed; %s', timeouts, k.max_timeouts, what)
      WHEN decision = 'fail' THEN format('Max attempts reached: error %s of %s, no more are allowed; %s', errors, k.max_errors, what)
      WHEN cause = 'timeOut' THEN format('%s: timeout %s of %s; %s', led_by, timeouts, k.max_timeouts, what)
      WHEN cause = 'lose' THEN format('%s: loss %s of %s, not counted yet%s; %s', led_by, losses, k.max_crashes,
        CASE WHEN losses >= k.max_crashes THEN ', it waits until it is known what happened to its workers'
          WHEN crashes + losses >= ${ALONE_FROM_CRASHES} THEN ', it will run alone' ELSE '' END, what)
      ELSE format('%s: crash %s, %s of %s alone%s; %s', led_by, crashes, blamed, k.max_crashes,
        CASE WHEN crashes + losses >= ${ALONE_FROM_CRASHES} THEN ', it will run alone' ELSE '' END, what)
    END
  $$;`;
}

/** The changes by which a job is taken back. */
const RECLAIMS = "('crash', 'lose', 'timeOut', 'endCancelled')";

/** A deadline that has passed is the TTL that the attempt had, whatever the kind says now. */
export const TTL = (otherwise: string, now: string): string =>
  `CASE WHEN j.deadline_at < ${now} THEN j.deadline_at - greatest(j.started_at, j.heartbeat_at) ELSE ${otherwise} END`;

export function takeBackInOneText(schema: string): string {
  return `
  -- As in step 2, with these differences: a silent worker is one with which contact was lost, so nothing is counted before core has
  -- found out what happened to it (losses.ts); a job that has used up its errors or timeouts is not queued again; reclaim_text() words it;
  -- the age counts from the job's own heartbeat; and the checksum of a result goes with the result.
  CREATE OR REPLACE FUNCTION ${schema}.take_back(
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
    age_ms bigint := now - greatest(j.started_at, j.heartbeat_at);
    new_crashes integer := j.crashes;
    new_blamed integer := j.blamed;
    new_timeouts integer := j.timeouts;
    new_losses integer := j.losses;
    waits boolean := false;
    new_lane integer;
    led_by text := format('Exceeded TTL (%s)', ${schema}.ttl_text(${TTL("ttl_ms", "now")}));
  BEGIN
    IF cause = 'crash' AND (SELECT i.how FROM ${schema}.incidents i WHERE i.id = take_back.incident) = 'gone' THEN
      led_by := 'Worker died';
      what := format('worker %s is gone', owner);
    ELSIF cause = 'crash' THEN
      cause := 'lose';
      change := 'lose';
    END IF;
    IF j.cancel_requested THEN
      decision := 'cancel';
      next_state := ${STATE.cancelled};
      new_outcome := ${OUTCOME.cancelled};
      change := CASE cause WHEN 'timeOut' THEN 'endCancelled' ELSE cause END;
    ELSIF cause = 'timeOut' THEN
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
      new_outcome := CASE cause WHEN 'lose' THEN ${OUTCOME.lost} ELSE ${OUTCOME.crashed} END;
      IF k.on_crash = 'pending' THEN
        decision := 'pending';
      ELSIF cause = 'lose' THEN
        IF k.on_crash = 'fail' OR j.errors >= k.max_errors OR j.timeouts >= k.max_timeouts THEN
          decision := 'fail';
          next_state := ${STATE.dead};
        ELSE
          decision := 'lost';
          new_losses := j.losses + 1;
          waits := new_losses >= k.max_crashes;
        END IF;
      ELSE
        new_crashes := j.crashes + 1;
        new_blamed := j.blamed + CASE WHEN alone THEN 1 ELSE 0 END;
        IF k.on_crash = 'fail' THEN
          decision := 'fail';
          next_state := ${STATE.dead};
        ELSIF alone AND new_blamed >= k.max_crashes AND (new_blamed >= ${HARD_LIMIT} * k.max_crashes
          OR new_blamed > ${resolvedDeathsElsewhere(schema, "j.seq", "j.crashes", "now")}) THEN
          decision := 'quarantine';
          next_state := ${STATE.quarantined};
        ELSIF j.errors >= k.max_errors OR j.timeouts >= k.max_timeouts THEN
          decision := 'fail';
          next_state := ${STATE.dead};
          new_crashes := j.crashes;
          new_blamed := j.blamed;
        ELSE
          decision := 'retry';
        END IF;
      END IF;
    END IF;
    message := ${schema}.reclaim_text(k, cause, decision, led_by, j.errors, new_crashes, new_blamed, new_timeouts, new_losses, what);
    new_lane := CASE WHEN next_state = ${STATE.queued} AND (delay_ms > 0 OR waits) THEN ${LANE.delayed}
      WHEN new_crashes + new_losses >= ${ALONE_FROM_CRASHES} THEN ${LANE.alone} ELSE ${LANE.open} END;

    -- The sums keep the planner off the index of running jobs (settle.ts).
    UPDATE ${schema}.jobs AS t SET state = next_state, lane = new_lane, crashes = new_crashes, blamed = new_blamed,
      timeouts = new_timeouts, losses = new_losses, outcome = new_outcome, finished_at = now, result = NULL, result_sum = NULL,
      cancel_requested = false, reserved_by = NULL, run_at = CASE WHEN waits THEN ${NEVER_DUE} WHEN delay_ms > 0 THEN now + delay_ms END,
      incident = CASE WHEN next_state = ${STATE.queued} THEN take_back.incident END,
      error = json_build_object('name', CASE cause WHEN 'timeOut' THEN 'Timeout' WHEN 'lose' THEN 'ContactLost' ELSE 'WorkerDied' END, 'message', message)::text
    WHERE t.seq = j.seq AND t.state + 0 = ${STATE.running} AND t.fence = j.fence AND t.epoch = j.epoch AND t.worker + 0 = j.worker;
    IF NOT FOUND THEN RETURN; END IF;

    job_id := j.id;
    kind := k.name;
    worker := owner;
    attempts := j.errors + new_crashes + new_timeouts + new_losses;
    age := make_interval(secs => age_ms / 1000.0);
    INSERT INTO ${schema}.history (job, at, epoch, fence, from_state, to_state, event, actor, reason, incident, worker, decision, attempts, age_ms)
    VALUES (j.seq, now, j.epoch, j.fence, ${STATE.running}, next_state, change, 'system/reclaim', message, incident, owner, decision, attempts, age_ms);
    IF incident IS NOT NULL THEN
      INSERT INTO ${schema}.incident_jobs AS i (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, success)
      VALUES (incident, j.seq, j.id, k.name, decision,
        json_build_object('errors', j.errors, 'crashes', new_crashes, 'blamed', new_blamed, 'timeouts', new_timeouts,
          'interruptions', j.interruptions, 'losses', new_losses)::text,
        k.max_crashes, j.fence, (SELECT s.name FROM ${schema}.steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1), true)
      ON CONFLICT ON CONSTRAINT incident_jobs_pkey DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = true, error = NULL;
    END IF;
    RETURN NEXT;
  END $$;`;
}

/**
 * A worker's recovery writes core's reason; this adds what a reclaim in SQL says besides. The row of the job is the one after the change.
 * It must never stop a recovery: whatever fails here costs the words and nothing else.
 */
export function noteReclaim(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.note_reclaim() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    j ${schema}.jobs;
    k ${schema}.kinds;
    f ${schema}.fleet;
    i ${schema}.incidents;
    cause text := CASE NEW.event WHEN 'endCancelled' THEN 'timeOut' WHEN 'countLoss' THEN 'crash' ELSE NEW.event END;
    led_by text;
    what text;
  BEGIN
    SELECT * INTO j FROM ${schema}.jobs t WHERE t.seq = NEW.job;
    SELECT * INTO k FROM ${schema}.kinds t WHERE t.id = j.kind;
    SELECT * INTO f FROM ${schema}.fleet t WHERE t.seq = j.worker;
    SELECT * INTO i FROM ${schema}.incidents t WHERE t.id = NEW.incident;
    NEW.worker := coalesce(i.worker, f.id);
    NEW.decision := CASE NEW.to_state WHEN ${STATE.quarantined} THEN 'quarantine' WHEN ${STATE.cancelled} THEN 'cancel' WHEN ${STATE.queued}
      THEN CASE WHEN cause = 'timeOut' THEN 'retry' WHEN k.on_crash = 'pending' THEN 'pending' WHEN cause = 'lose' THEN 'lost' ELSE 'retry' END
      ELSE 'fail' END;
    NEW.attempts := j.errors + j.crashes + j.timeouts + j.losses;
    NEW.age_ms := NEW.at - greatest(j.started_at, j.heartbeat_at);
    IF cause = 'timeOut' THEN
      led_by := format('Exceeded TTL (%s)', ${schema}.ttl_text(${TTL(`coalesce(k.timeout_ms, ${OWNERLESS_MS})`, "NEW.at")}));
      what := 'worker ' || f.id;
    ELSIF i.how = 'silent' THEN
      led_by := format('Exceeded TTL (%s)', ${schema}.ttl_text(${TTL("f.lease_ms", "NEW.at")}));
      what := format('no heartbeat of worker %s for %s s', i.worker, (NEW.at - i.last_heartbeat_at) / 1000);
    ELSE
      led_by := CASE i.how WHEN 'gone' THEN 'Worker died' ELSE 'Contact lost' END;
      what := format(CASE i.how WHEN 'gone' THEN 'worker %s is gone' ELSE 'the lock of worker %s is free' END, i.worker);
    END IF;
    NEW.reclaim := ${schema}.reclaim_text(k, cause, NEW.decision, led_by, j.errors, j.crashes, j.blamed, j.timeouts, j.losses, what);
    RETURN NEW;
  EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'outlive: the reclaim of job % is kept without its details: %', NEW.job, SQLERRM;
    RETURN NEW;
  END $$;`;
}

function noteReclaimTrigger(schema: string): string {
  return `
  CREATE TRIGGER note_reclaim BEFORE INSERT ON ${schema}.history FOR EACH ROW
    WHEN (NEW.actor = 'system/recovery' AND (NEW.event IN ${RECLAIMS} OR NEW.event = 'countLoss' AND NEW.to_state = ${STATE.quarantined})) EXECUTE FUNCTION ${schema}.note_reclaim();`;
}

/** What an attempt was given, by its own deadline: the kind's timeout may be another one by now. Null: no limit, or it has none left. */
const ALLOWED = "nullif(greatest(j.deadline_at - greatest(j.started_at, j.heartbeat_at), 0), 0)";

function staleMonitor(schema: string): string {
  return `
  -- Every running job. WARNING from 80 % of its timeout; STALE: past its deadline, or its worker is past its lease or over: reclaim takes it.
  CREATE OR REPLACE VIEW ${schema}.stale_monitor AS
  SELECT r.job_id, r.kind, r.worker, r.fence, r.attempts, ${schema}.instant(r.started_at) AS started_at, ${schema}.instant(r.heartbeat_at) AS heartbeat_at,
    ${schema}.instant(r.deadline_at) AS deadline_at, ${schema}.span(r.age_ms) AS age, ${schema}.span(r.timeout_ms) AS timeout,
    round(100.0 * r.age_ms / r.timeout_ms, 1) AS percent, ${schema}.span(r.silent_ms) AS worker_silent,
    CASE WHEN r.deadline_at < r.now OR r.silent_ms > r.lease_ms OR r.worker_state IS DISTINCT FROM 'live' THEN 'STALE'
      WHEN r.age_ms >= 0.8 * r.timeout_ms THEN 'WARNING' ELSE 'OK' END AS status
  FROM (
    SELECT j.id AS job_id, k.name AS kind, f.id AS worker, j.fence, j.errors + j.crashes + j.timeouts + j.losses AS attempts, j.started_at, j.deadline_at,
      CASE WHEN j.heartbeat_at >= j.started_at THEN j.heartbeat_at END AS heartbeat_at, c.now,
      c.now - greatest(j.started_at, j.heartbeat_at) AS age_ms, ${ALLOWED} AS timeout_ms,
      c.now - f.heartbeat_at AS silent_ms, f.lease_ms, f.state AS worker_state
    FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
      CROSS JOIN (SELECT ${schema}.now_ms() AS now) AS c
    WHERE j.state = ${STATE.running}
  ) AS r;`;
}

function staleValidation(schema: string): string {
  return `
  -- Running beyond twice the timeout (and the grace that every job has): always empty. A row means that nobody recovers: no worker, no cron.
  CREATE OR REPLACE VIEW ${schema}.stale_validation AS
  SELECT j.id AS job_id, k.name AS kind, f.id AS worker, ${schema}.instant(j.started_at) AS started_at, ${schema}.instant(j.deadline_at) AS deadline_at,
    ${schema}.span(c.now - greatest(j.started_at, j.heartbeat_at)) AS age, ${schema}.span(${ALLOWED}) AS timeout
  FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
    CROSS JOIN (SELECT ${schema}.now_ms() AS now) AS c
  WHERE j.state = ${STATE.running}
    AND c.now - greatest(j.started_at, j.heartbeat_at) > 2 * coalesce(${ALLOWED}, 0) + k.grace_ms + ${MARGIN_MS} AND j.deadline_at IS NOT NULL;`;
}

function reclaimHistory(schema: string): string {
  return `
  -- Everything that was taken back, by SQL or by a worker's recovery, newest first. Ends with the job's retention.
  CREATE OR REPLACE VIEW ${schema}.reclaim_history AS
  SELECT ${schema}.instant(h.at) AS at, j.id AS job_id, k.name AS kind, coalesce(h.worker, i.worker) AS worker,
    coalesce(h.decision, ij.decision, CASE h.to_state WHEN ${STATE.queued} THEN 'retry' WHEN ${STATE.cancelled} THEN 'cancel' ELSE 'fail' END) AS decision,
    h.event AS cause, h.attempts, ${schema}.span(h.age_ms) AS age, ${stateName("h.to_state")} AS state, coalesce(h.reclaim, h.reason) AS reason, h.incident, h.fence,
    CASE h.actor WHEN 'system/reclaim' THEN 'sql' ELSE coalesce(i.recovered_by, 'worker') END AS by
  FROM ${schema}.history h JOIN ${schema}.jobs j ON j.seq = h.job JOIN ${schema}.kinds k ON k.id = j.kind
    LEFT JOIN ${schema}.incidents i ON i.id = h.incident LEFT JOIN ${schema}.incident_jobs ij ON ij.incident = h.incident AND ij.job = h.job
  WHERE h.actor IN ('system/reclaim', 'system/recovery') AND h.event IN ${RECLAIMS}
  ORDER BY h.at DESC, h.ord DESC;`;
}

function errorText(schema: string): string {
  return `
  -- One field of a stored error. One that can't be read as JSON (half of a surrogate pair, a damaged row) hides no other row.
  CREATE FUNCTION ${schema}.error_text(error text, field text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  BEGIN
    RETURN error::json->>field;
  EXCEPTION WHEN OTHERS THEN
    BEGIN
      RETURN regexp_replace(error, '${HALF_PAIR}', '${REPLACEMENT}', 'g')::json->>field;
    EXCEPTION WHEN OTHERS THEN
      RETURN CASE field WHEN 'message' THEN left(error, 500) ELSE 'Unreadable' END;
    END;
  END $$;`;
}

function deadJobs(schema: string): string {
  return `
  -- What needs a person: dead and quarantined jobs, with the reason. After the cause is gone: outlive retry ID.
  CREATE OR REPLACE VIEW ${schema}.dead_jobs AS
  SELECT j.id AS job_id, k.name AS kind, ${stateName("j.state")} AS state, coalesce(h.reclaim, h.reason, ${schema}.error_text(j.error, 'message')) AS reason,
    ${schema}.error_text(j.error, 'name') AS error, coalesce(h.reclaim, ${schema}.error_text(j.error, 'message')) AS last_error, j.errors + j.crashes + j.timeouts + j.losses AS attempts,
    j.errors, j.crashes, j.blamed, j.timeouts, f.id AS worker, ${schema}.instant(j.created_at) AS created_at, ${schema}.instant(j.finished_at) AS finished_at
  FROM ${schema}.jobs j JOIN ${schema}.kinds k ON k.id = j.kind LEFT JOIN ${schema}.fleet f ON f.seq = j.worker
    LEFT JOIN LATERAL (SELECT l.reason, l.reclaim FROM ${schema}.history l
      WHERE l.job = j.seq AND l.to_state = j.state AND l.event <> 'write.rejected' ORDER BY l.ord DESC LIMIT 1) AS h ON true
  WHERE j.state IN (${STATE.dead}, ${STATE.quarantined});`;
}

/** Roles that were made before this step need no new grants: who may call a function may call what it calls now. */
export function grants(schema: string): string {
  const signature = `${schema}.reclaim_text(${schema}.kinds, text, text, text, integer, integer, integer, integer, integer, text)`;
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, g.called FROM (VALUES
        ('take_back', '${signature}'), ('instant', '${schema}.error_text(text, text)')) AS g (caller, called)
      JOIN pg_proc p ON p.proname = g.caller AND p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = '${schema}.jobs'::regclass)
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', allowed.called, allowed.role);
    END LOOP;
  END $$;`;
}
