// Migration 2: heartbeats of jobs, and recovery in plain SQL for when no Node process is alive. With take-back.ts this is the one
// place where what core decides is written a second time; test/postgres-sql/differential.test.ts gives both the same cases.
import type { Migration } from "../migrate.ts";
import { channelOf } from "./enqueue.ts";
import { dropTakeBack, takeBackFunctions } from "./take-back.ts";
import { dropTick, tick } from "./tick.ts";

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
 * First the dead, as a keeper does, then the overdue. SKIP LOCKED keeps two reclaims apart, not a reclaim from a worker: that is
 * done by the lock on the worker's row, which a claim shares, and by the guard of every write. A job whose own row can't be
 * written is told about and hides no other.
 */
function reclaimFunction(schema: string): string {
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

function deadWorkers(schema: string): string {
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
