// Migration 8: isolation by halving. A suspect runs next to fresh jobs and to as many other suspects as `together` allows.
//
// Step 7 was edited in place while this was built, so there are stores that have some of this already (index.ts, ALSO_ACCEPTED). Whatever
// is here can therefore be done again: after this step a store is the same whichever text of step 7 it has.
import type { Migration } from "../migrate.ts";
import { condemnedElsewhere, HARD_LIMIT, LANE, NEVER_DUE, OUTCOME, STATE, suspectBound } from "./frozen.ts";
import { incident, OWNERLESS_MS } from "./reclaim.ts";
import { dropReclaimTexts, grants, noteReclaim, reclaimText, replacing, takeBackInOneText, TTL } from "./seed-views.ts";

export const isolation: Migration = {
  name: "isolation by halving",
  drops: "next to how many suspects a suspect may run",
  locks: ["jobs", "incidents", "incident_jobs"],
  up: (schema) =>
    [
      columns(schema),
      openIncident(schema),
      dropReclaimTexts(schema),
      reclaimTextByHalving(schema),
      takeBackByHalving(schema),
      noteReclaimByHalving(schema),
      grantReclaimText(schema),
    ].join("\n"),
  down: (schema) => `
  ${replacing(incident(schema))}
  ${dropReclaimTexts(schema)}
  ${reclaimText(schema)}
  ${takeBackInOneText(schema)}
  ${replacing(noteReclaim(schema))}
  ${grants(schema)}
  ALTER TABLE ${schema}.incidents DROP COLUMN suspects_at_death;
  ALTER TABLE ${schema}.incident_jobs DROP COLUMN alone;
  ALTER TABLE ${schema}.jobs DROP COLUMN together;`,
};

function columns(schema: string): string {
  return `
  -- With how many suspects, itself included, a suspect may run in one process; 0: with any number.
  --- reserved_by is not used any more. It stays for workers of 0.1.0 that are at work while their store is migrated: they write it with
  --- what they settle until their next heartbeat stops them, because they are too old. Without it those writes failed, and jobs stayed
  --- with them that they would have released (npm run torture -- --previous). One text of step 7 dropped it. A later release can.
  ALTER TABLE ${schema}.jobs ADD COLUMN IF NOT EXISTS together integer NOT NULL DEFAULT 0, ADD COLUMN IF NOT EXISTS reserved_by bigint;
  -- How many of the jobs that were held at a death had an earlier crash, and whether a job was the only one of those.
  ALTER TABLE ${schema}.incidents ADD COLUMN IF NOT EXISTS suspects_at_death integer NOT NULL DEFAULT 0;
  ALTER TABLE ${schema}.incident_jobs ADD COLUMN IF NOT EXISTS alone boolean NOT NULL DEFAULT false;
  --- Only losses that core has still to judge ask for it. They are few and have an index; the array keeps the planner from reading all
  --- rows of incident_jobs, which are as many as jobs were ever recovered.
  UPDATE ${schema}.incident_jobs j SET alone = true WHERE NOT j.alone AND j.incident = ANY (ARRAY(
    SELECT i.id FROM ${schema}.incidents i WHERE i.how <> 'gone' AND i.judged_at IS NULL AND i.held_at_death = 1));`;
}

/** As in step 2, and the suspects are counted. */
export function openIncident(schema: string): string {
  return replacing(incident(schema))
    .replace("wal_frames, held_at_death)", "wal_frames, held_at_death, suspects_at_death)")
    .replace(
      "'NOT_CHECKED', 0, held)",
      `'NOT_CHECKED', 0, held,
        (SELECT count(*) FROM ${schema}.jobs h WHERE h.state = 1 AND h.worker = dead.seq AND h.crashes + h.losses > 0))`,
    );
}

const WILL_RUN = `CASE together WHEN 0 THEN '' WHEN 1 THEN ', it will run as the only suspect' ELSE format(', it will run with at most %s other suspect(s)', together - 1) END`;

function reclaimTextByHalving(schema: string): string {
  return `
  -- As in step 7, and it says next to how many suspects the job will run.
  CREATE FUNCTION ${schema}.reclaim_text(
    k ${schema}.kinds, cause text, decision text, led_by text, errors integer, crashes integer, blamed integer, timeouts integer, losses integer, together integer, what text
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
        CASE WHEN losses >= k.max_crashes THEN ', it waits until it is known what happened to its workers' ELSE ${WILL_RUN} END, what)
      ELSE format('%s: crash %s, %s of %s alone%s; %s', led_by, crashes, blamed, k.max_crashes, ${WILL_RUN}, what)
    END
  $$;`;
}

export function takeBackByHalving(schema: string): string {
  return `
  --- As in step 7, with these differences: of the jobs that died together those with an earlier crash are counted, a job is blamed if it
  --- was the only one of them, and it is given the number of suspects next to which it may run.
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
    new_together integer := j.together;
    waits boolean := false;
    new_lane integer;
    death ${schema}.incidents;
    led_by text := format('Exceeded TTL (%s)', ${schema}.ttl_text(${TTL("ttl_ms", "now")}));
  BEGIN
    SELECT * INTO death FROM ${schema}.incidents o WHERE o.id = take_back.incident;
    alone := death.suspects_at_death = 1 AND j.crashes + j.losses > 0;
    IF cause = 'crash' AND death.how = 'gone' THEN
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
          OR new_blamed > ${condemnedElsewhere(schema, "j.seq", "j.crashes", "now", "take_back.incident")}) THEN
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
    IF decision IN ('lost', 'retry') AND cause <> 'timeOut' THEN
      new_together := CASE WHEN j.crashes + j.losses > 0 THEN greatest(1, death.suspects_at_death / 2) ELSE 0 END;
    END IF;
    message := ${schema}.reclaim_text(k, cause, decision, led_by, j.errors, new_crashes, new_blamed, new_timeouts, new_losses, new_together, what);
    new_lane := CASE WHEN next_state = ${STATE.queued} AND (delay_ms > 0 OR waits) THEN ${LANE.delayed}
      WHEN new_crashes + new_losses > 0 THEN ${LANE.alone} ELSE ${LANE.open} END;

    -- The sums keep the planner off the index of running jobs (settle.ts).
    UPDATE ${schema}.jobs AS t SET state = next_state, lane = new_lane, crashes = new_crashes, blamed = new_blamed,
      timeouts = new_timeouts, losses = new_losses, outcome = new_outcome, finished_at = now, result = NULL, result_sum = NULL,
      cancel_requested = false, together = new_together, run_at = CASE WHEN waits THEN ${NEVER_DUE} WHEN delay_ms > 0 THEN now + delay_ms END,
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
      INSERT INTO ${schema}.incident_jobs AS i (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, alone, success)
      VALUES (incident, j.seq, j.id, k.name, decision,
        json_build_object('errors', j.errors, 'crashes', new_crashes, 'blamed', new_blamed, 'timeouts', new_timeouts,
          'interruptions', j.interruptions, 'losses', new_losses)::text,
        k.max_crashes, j.fence, (SELECT s.name FROM ${schema}.steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1), coalesce(alone, false), true)
      ON CONFLICT ON CONSTRAINT incident_jobs_pkey DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = true, error = NULL;
    END IF;
    RETURN NEXT;
  END $$;`;
}

function noteReclaimByHalving(schema: string): string {
  return `
  CREATE OR REPLACE FUNCTION ${schema}.note_reclaim() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    NEW.reclaim := ${schema}.reclaim_text(k, cause, NEW.decision, led_by, j.errors, j.crashes, j.blamed, j.timeouts, j.losses, j.together, what);
    RETURN NEW;
  EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'outlive: the reclaim of job % is kept without its details: %', NEW.job, SQLERRM;
    RETURN NEW;
  END $$;`;
}

/** Which role may take jobs back may word it. The function has a new signature, and so no grants of its own. */
function grantReclaimText(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE p.proname = 'take_back' AND p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = '${schema}.jobs'::regclass)
        AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.reclaim_text(${schema}.kinds, text, text, text, integer, integer, integer, integer, integer, integer, text) TO %I', allowed.role);
    END LOOP;
  END $$;`;
}

// Migration 9: the indexes by which a worker finds the suspects that it may take. jobs_alone fits neither of its two orders: with 100,000
// suspects that wait (1,000,000 jobs), each claim read and sorted all of them, 140 to 180 ms; with these it reads the first 100, 0.1 ms.

const INDEXES = {
  jobs_suspects_oldest: "(priority DESC, seq)",
  jobs_suspects_largest: `(priority DESC, (${suspectBound}) DESC, seq)`,
} as const;

const create = (schema: string, how: string): string[] =>
  Object.entries(INDEXES).map(
    ([name, columns]) => `${how} IF NOT EXISTS ${name} ON ${schema}.jobs ${columns} WHERE state = 0 AND lane = 2;`,
  );

export const suspects: Migration = {
  name: "indexes of suspects",
  drops: "the indexes of suspects that wait",
  locks: ["jobs"],
  ahead: (schema) => ({ indexes: Object.keys(INDEXES), texts: create(schema, "CREATE INDEX CONCURRENTLY") }),
  up: (schema) => `
  DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_index WHERE NOT indisvalid AND indexrelid IN (${Object.keys(INDEXES)
      .map((name) => `to_regclass('${schema}.${name}')`)
      .join(", ")})) THEN
      RAISE EXCEPTION 'an index of jobs was left half-built' USING HINT = 'Nothing was changed. Run: outlive migrate up';
    END IF;
  END $$;
  ${create(schema, "CREATE INDEX").join("\n  ")}
  DROP INDEX ${schema}.jobs_alone;`,
  down: (schema) => `
  CREATE INDEX jobs_alone ON ${schema}.jobs (crashes, seq) WHERE state = 0 AND lane = 2;
  DROP INDEX ${Object.keys(INDEXES)
    .map((name) => `${schema}.${name}`)
    .join(", ")};`,
};
