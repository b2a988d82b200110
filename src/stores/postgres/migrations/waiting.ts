// Migration 11: jobs that wait for a signal, for other jobs or for a time, and hold nothing meanwhile. What only some jobs have is in tables of
// its own; `jobs.extras` says that the end of a job may concern others.
//
// A wake is a row that says that the wait of a job may have ended. It is written in the transaction of its cause, and no transaction acts on a
// wake of its own: two children that end at the same time do not see each other's end, and neither would wake their parent. Of the
// transactions that act on their two wakes later, the one with the later snapshot sees both ends. For the same reason no wait needs to be visible
// when a wake for it is written: a wait that begins writes a wake for itself.
import type { Migration } from "../migrate.ts";
import { confirmedTick } from "./confirmed-ticks.ts";
import { LANE, NEVER_DUE, OUTCOME, STATE } from "./frozen.ts";
import { addCheckedJobs } from "./seed-views.ts";

/** In the order in which they are dropped. */
export const WAITING_TABLES = ["wakes", "signals", "awaits", "waits", "extras"] as const;

const ADD_CHILDREN = "add_children(integer[], integer[], bigint[], bigint[], text[], text[], text[], bigint)";

export const waiting: Migration = {
  name: "waiting",
  drops:
    "what jobs wait for, their signals, and which job enqueued which. Jobs that wait without a time limit become ready",
  locks: ["jobs"],
  up: (schema) =>
    [tables(schema), addChildren(schema), noteEnd(schema), actOnWakes(schema), wakingTick(schema), grants(schema)].join(
      "\n",
    ),
  // Earlier versions do not know the outcome. What waits for no time would never run again.
  down: (schema) => `
  UPDATE ${schema}.jobs SET outcome = ${OUTCOME.released}, run_at = CASE WHEN run_at >= ${NEVER_DUE} - 1 THEN ${schema}.now_ms() ELSE run_at END
    WHERE outcome = ${OUTCOME.waiting}
      AND (state = 0 AND lane = 0 OR state = 0 AND lane = 1 OR state = 0 AND lane = 2 OR state = 1);
  ${confirmedTick(schema)}
  DROP TRIGGER note_end ON ${schema}.jobs;
  DROP FUNCTION ${schema}.note_end();
  DROP FUNCTION ${schema}.act_on_wakes(integer);
  DROP FUNCTION ${schema}.${ADD_CHILDREN};
  DROP TABLE ${WAITING_TABLES.map((table) => `${schema}.${table}`).join(", ")};
  ALTER TABLE ${schema}.jobs DROP COLUMN extras;`,
};

function tables(schema: string): string {
  return `
  ALTER TABLE ${schema}.jobs ADD COLUMN extras boolean NOT NULL DEFAULT false; -- it has a row in extras

  CREATE TABLE ${schema}.extras (
    job bigint PRIMARY KEY,
    parent bigint,                           -- the job that enqueued it
    ended boolean NOT NULL DEFAULT false,    -- whether the job has ended, for the index
    watched boolean NOT NULL DEFAULT false   -- whether it is, or was, marked in awaits
  ) WITH (autovacuum_vacuum_scale_factor = 0.05);
  CREATE INDEX extras_parent ON ${schema}.extras (parent, ended) WHERE parent IS NOT NULL;

  -- The wait that a job's latest waiting attempt began.
  CREATE TABLE ${schema}.waits (
    job bigint PRIMARY KEY,
    due_at bigint,                           -- null: it does not end by time
    children boolean NOT NULL,               -- it ends when all children of the job have ended
    jobs boolean NOT NULL,                   -- it ends when all jobs have ended that awaits names
    step text NOT NULL,
    signal text                              -- it ends when there is a signal of this name
  );
  -- For which jobs an attempt waits, unless they are all its children.
  CREATE TABLE ${schema}.awaits (
    job bigint NOT NULL,
    waiter bigint NOT NULL,
    fence integer NOT NULL,                  -- of the attempt that waits
    ended boolean,                           -- whether the job has ended; null: its end is not watched yet
    PRIMARY KEY (waiter, fence, job)
  );
  CREATE INDEX awaits_job ON ${schema}.awaits (job);
  CREATE INDEX awaits_unfinished ON ${schema}.awaits (waiter, fence) WHERE ended IS NOT TRUE;
  CREATE INDEX awaits_unmarked ON ${schema}.awaits (waiter, fence) WHERE ended IS NULL;

  CREATE TABLE ${schema}.signals (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    at bigint NOT NULL,
    read_at bigint,                          -- null: not yet
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,            -- the sender's own
    payload text NOT NULL,                   -- JSON
    payload_sum bytea NOT NULL
  );
  CREATE UNIQUE INDEX signals_id ON ${schema}.signals (job, id);
  CREATE INDEX signals_unread ON ${schema}.signals (job, name, ord) WHERE read_at IS NULL;

  CREATE TABLE ${schema}.wakes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    at bigint NOT NULL
  ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0);`;
}

/** A copy, so that an enqueue which has no parent costs what it did. */
export function addChildren(schema: string): string {
  return addCheckedJobs(schema)
    .replace("-- As in step 1, and each input with its checksum.", "-- As add_jobs, for the children of a job.")
    .replace("CREATE OR REPLACE FUNCTION", "CREATE FUNCTION")
    .replace(`${schema}.add_jobs(`, `${schema}.add_children(`)
    .replace("inputs text[]\n", "inputs text[], parent bigint\n")
    .replace("input, input_sum) OVERRIDING", "input, input_sum, extras) OVERRIDING")
    .replace(
      " FROM drafts d\n      ON CONFLICT DO NOTHING RETURNING kind, id)",
      `, true FROM drafts d
      ON CONFLICT DO NOTHING RETURNING kind, id, seq),
    children AS (INSERT INTO ${schema}.extras (job, parent) SELECT j.seq, add_children.parent FROM jobs j)`,
    );
}

/**
 * Whatever ends a job comes through here: a settlement, a recovery, an operator, a reclaim in SQL, a worker of an older version. With its
 * owner's rights, because a role that ends jobs may be older than these tables. What it updates belongs to this job, whose row is locked: no other
 * transaction that may last waits for it.
 */
export function noteEnd(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.note_end() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    has_ended boolean := NEW.state >= ${STATE.succeeded};
    own ${schema}.extras;
  BEGIN
    UPDATE ${schema}.extras e SET ended = has_ended WHERE e.job = NEW.seq RETURNING * INTO own;
    IF own.watched THEN UPDATE ${schema}.awaits a SET ended = has_ended WHERE a.job = NEW.seq; END IF;
    IF NOT has_ended THEN RETURN NULL; END IF;
    -- Also if the parent does not wait: its wait may be in a transaction that is not committed yet.
    INSERT INTO ${schema}.wakes (job, at) SELECT p.seq, ${schema}.now_ms() FROM ${schema}.jobs p WHERE p.seq = own.parent AND p.state < ${STATE.succeeded};
    IF own.watched THEN
      INSERT INTO ${schema}.wakes (job, at) SELECT w.waiter, ${schema}.now_ms() FROM (SELECT DISTINCT a.waiter FROM ${schema}.awaits a WHERE a.job = NEW.seq) w;
    END IF;
    RETURN NULL;
  END $$;
  CREATE TRIGGER note_end AFTER UPDATE OF state ON ${schema}.jobs FOR EACH ROW
    WHEN (NEW.extras AND (OLD.state >= ${STATE.succeeded}) <> (NEW.state >= ${STATE.succeeded})) EXECUTE FUNCTION ${schema}.note_end();`;
}

/** How many rows of awaits one call marks, at most. Without a limit the turn that began a wait for 20,000 jobs took 20 s. */
const MARKS = 1_000;

/** A job that waits, by its row. The sum keeps the planner off the index of delayed jobs, which it may believe to be empty. */
const waits = (job: string): string =>
  `${job}.state + 0 = ${STATE.queued} AND ${job}.lane = ${LANE.delayed} AND ${job}.outcome = ${OUTCOME.waiting}`;

/**
 * Rows that another transaction has locked are skipped, and a wake for them is kept: a transaction may stand still for minutes, and every worker's
 * turn would wait for it. The transaction that holds the row of a waiting job wakes it, ends it, or changes its counters.
 *
 * A row of awaits is marked under the lock of the job that it names. The end of a job looks for rows of awaits under the same lock, so it either
 * comes later and finds the row, or was committed before and its state is read here.
 */
export function actOnWakes(schema: string): string {
  return `
  -- Takes at most batch wakes and makes ready the jobs whose wait has ended. more: there may be more wakes. Never call it in a transaction that
  -- ended a job or began a wait.
  CREATE FUNCTION ${schema}.act_on_wakes(batch integer DEFAULT 500, OUT woken integer, OUT more boolean)
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    waiters bigint[];
    found bigint[];
    fences integer[];
    locked bigint[];
    marked tid[];
  BEGIN
    WITH gone AS (
      DELETE FROM ${schema}.wakes w WHERE w.id = ANY (ARRAY(SELECT n.id FROM ${schema}.wakes n ORDER BY n.id LIMIT batch FOR UPDATE SKIP LOCKED))
      RETURNING w.job)
    SELECT array_agg(DISTINCT g.job), count(*) >= batch INTO waiters, more FROM gone g;
    woken := 0;
    IF waiters IS NULL THEN RETURN; END IF;

    WITH unmarked AS MATERIALIZED (
      SELECT j.seq, a.ctid AS tid FROM ${schema}.jobs x JOIN ${schema}.awaits a ON a.waiter = x.seq AND a.fence = x.fence JOIN ${schema}.jobs j ON j.seq = a.job
      WHERE x.seq = ANY (waiters) AND ${waits("x")} AND a.ended IS NULL LIMIT ${MARKS} FOR NO KEY UPDATE OF j, a SKIP LOCKED)
    SELECT array_agg(DISTINCT u.seq), array_agg(u.tid) INTO locked, marked FROM unmarked u;
    IF locked IS NOT NULL THEN
      INSERT INTO ${schema}.extras (job, ended, watched) SELECT j.seq, j.state >= ${STATE.succeeded}, true FROM ${schema}.jobs j WHERE j.seq = ANY (locked)
        ON CONFLICT (job) DO UPDATE SET watched = true;
      UPDATE ${schema}.jobs j SET extras = true WHERE j.seq = ANY (locked) AND NOT j.extras;
      UPDATE ${schema}.awaits a SET ended = (SELECT j.state >= ${STATE.succeeded} FROM ${schema}.jobs j WHERE j.seq = a.job) WHERE a.ctid = ANY (marked);
    END IF;
    IF cardinality(marked) = ${MARKS} THEN
      more := true;
    ELSE
      UPDATE ${schema}.awaits a SET ended = true
        WHERE a.waiter = ANY (waiters) AND a.ended IS NULL AND NOT EXISTS (SELECT 1 FROM ${schema}.jobs j WHERE j.seq = a.job);
    END IF;
    INSERT INTO ${schema}.wakes (job, at) SELECT x.seq, ${schema}.now_ms() FROM ${schema}.jobs x WHERE x.seq = ANY (waiters) AND ${waits("x")}
      AND EXISTS (SELECT 1 FROM ${schema}.awaits a WHERE a.waiter = x.seq AND a.fence = x.fence AND a.ended IS NULL);

    SELECT array_agg(j.seq), array_agg(j.fence) INTO found, fences
    FROM ${schema}.jobs j JOIN ${schema}.waits w ON w.job = j.seq
    WHERE j.seq = ANY (waiters) AND ${waits("j")} AND CASE
      WHEN w.signal IS NOT NULL THEN EXISTS (SELECT 1 FROM ${schema}.signals s WHERE s.job = j.seq AND s.name = w.signal AND s.read_at IS NULL)
      WHEN w.children THEN NOT EXISTS (SELECT 1 FROM ${schema}.extras e WHERE e.parent = j.seq AND NOT e.ended)
      WHEN w.jobs THEN NOT EXISTS (SELECT 1 FROM ${schema}.awaits a WHERE a.waiter = j.seq AND a.fence = j.fence AND a.ended IS NOT TRUE)
      ELSE false END;
    IF found IS NULL THEN RETURN; END IF;
    -- With a higher fence it waits for something else already.
    locked := ARRAY(SELECT j.seq FROM unnest(found, fences) AS f (seq, fence) JOIN ${schema}.jobs j ON j.seq = f.seq AND j.fence = f.fence
      WHERE ${waits("j")} ORDER BY j.seq FOR NO KEY UPDATE OF j SKIP LOCKED);
    UPDATE ${schema}.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN ${LANE.alone} ELSE ${LANE.open} END, run_at = NULL WHERE j.seq = ANY (locked);
    GET DIAGNOSTICS woken = ROW_COUNT;
    -- Rows of waits that ended by time stay until the next wait of the job that ends like this, or its purge.
    DELETE FROM ${schema}.awaits a WHERE a.ctid = ANY (ARRAY(SELECT o.ctid FROM ${schema}.awaits o WHERE o.waiter = ANY (locked) FOR UPDATE SKIP LOCKED));
    IF woken < cardinality(found) THEN
      INSERT INTO ${schema}.wakes (job, at) SELECT j.seq, ${schema}.now_ms() FROM ${schema}.jobs j
        WHERE j.seq = ANY (found) AND j.seq <> ALL (locked) AND ${waits("j")};
    END IF;
  END $$;`;
}

/** Before the reclaim, which writes wakes: the next tick, or a worker, acts on those. */
export function wakingTick(schema: string): string {
  return confirmedTick(schema).replace(
    "    BEGIN\n      IF NOT hold",
    `    BEGIN
      PERFORM ${schema}.act_on_wakes(10000);
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      RAISE WARNING 'outlive: no job was woken in this tick: %', SQLERRM;
    END;
    BEGIN
      IF NOT hold`,
  );
}

/** A role that may use steps may use these tables; one that may call a function may call what belongs to it. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${WAITING_TABLES.map((table) => `${schema}.${table}`).join(", ")} TO %I', allowed.rights, allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role, g.called FROM (VALUES ('add_jobs', '${schema}.${ADD_CHILDREN}'), ('tick', '${schema}.act_on_wakes(integer)')) AS g (caller, called)
      JOIN pg_proc p ON p.proname = g.caller AND p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = '${schema}.jobs'::regclass)
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', allowed.called, allowed.role);
    END LOOP;
  END $$;`;
}
