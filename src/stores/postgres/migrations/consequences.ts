// What follows from a change of a job with extras is one trigger and one write of its row in extras. It was two triggers and two
// writes, and a third trigger at every claim. And a tick wakes the parents of the jobs that it ends.
import type { Migration } from "../migrate.ts";
import { LANE, OUTCOME, STATE } from "./frozen.ts";
import { FIRST, noteMove, noteStart, PLACE, strictKey } from "./keys.ts";
import { replacing } from "./seed-views.ts";
import { actOnWakes, addChildren, noteEnd, wakingTick } from "./waiting.ts";

export const consequences: Migration = {
  name: "consequences",
  drops: "nothing but speed, and that a tick wakes the parents of the jobs that it ends",
  locks: ["jobs"],
  up: (schema) =>
    [
      columns(schema),
      addUnratedChildren(schema),
      noteChange(schema),
      noteEnds(schema),
      wakeWaiters(schema),
      actOnWakesFirst(schema),
      wakingTickAtOnce(schema),
      grants(schema),
    ].join("\n"),
  down: (schema) => `
  DROP TRIGGER note_start ON ${schema}.jobs;
  DROP TRIGGER note_move ON ${schema}.jobs;
  ${replacing(noteEnd(schema))}
  ${replacing(noteMove(schema))}
  ${replacing(noteStart(schema))}
  ${replacing(addChildren(schema))}
  ${replacing(actOnWakes(schema))}
  ${wakingTick(schema)}
  DROP FUNCTION ${schema}.note_ends(bigint[]);
  DROP FUNCTION ${schema}.wake_waiters(bigint[]);
  ALTER TABLE ${schema}.jobs DROP COLUMN rated;`,
};

function columns(schema: string): string {
  return `
  -- Its claim may be a start of a rate. The admission of a job with keys says so; workers of earlier versions do not, so it is true until then.
  ALTER TABLE ${schema}.jobs ADD COLUMN rated boolean NOT NULL DEFAULT true;`;
}

export function addUnratedChildren(schema: string): string {
  return replacing(addChildren(schema))
    .replace("input, input_sum, extras) OVERRIDING", "input, input_sum, extras, rated) OVERRIDING")
    .replace(", true FROM drafts d", ", true, false FROM drafts d");
}

/**
 * SQL: appends a wake unless the latest one of this transaction was the same. One is enough, because no transaction acts on it before this one is
 * committed. A turn that settles 50 children of a parent writes one. The setting ends with the transaction, and with a savepoint that is rolled back.
 */
function once(setting: "outlive_tx.woken" | "outlive_tx.opened", value: string, insert: string): string {
  return `IF current_setting('${setting}', true) IS DISTINCT FROM ${value} THEN
        ${insert}
        noted := set_config('${setting}', ${value}, true);
      END IF;`;
}

/**
 * Whatever moves or ends a job with extras comes through here. What it updates belongs to this job, whose row is locked. A worker's turn does the same
 * for all jobs that it admits (keys.ts of the store) or settles as succeeded (note_ends) at once, and sets outlive_tx.notes. Measured: the trigger
 * costs 36 us for each job, note_ends 12 to 18.
 */
export function noteMoveFunction(schema: string): string {
  const opened = (key: string, at: string): string =>
    once(
      "outlive_tx.opened",
      `'${schema} ' || ${key}`,
      `INSERT INTO ${schema}.key_wakes (key, at) VALUES (${key}, ${at});`,
    );
  const openAll = (at: string): string => `${opened("own.key1", at)}
      IF own.key2 IS NOT NULL THEN ${opened("own.key2", at)} END IF;
      IF own.key3 IS NOT NULL THEN ${opened("own.key3", at)} END IF;`;
  return `
  CREATE OR REPLACE FUNCTION ${schema}.note_move() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    own ${schema}.extras;
    is_ready boolean;
    begun boolean;
    first_door bigint;
    noted text;
  BEGIN
    IF NEW.state >= ${STATE.succeeded} THEN
      UPDATE ${schema}.extras e SET ended = true, place = ${PLACE.away}, door = NULL WHERE e.job = NEW.seq RETURNING * INTO own;
      -- Also if the parent does not wait: its wait may be in a transaction that is not committed yet.
      IF own.parent IS NOT NULL THEN
        ${once(
          "outlive_tx.woken",
          `'${schema} ' || own.parent`,
          `INSERT INTO ${schema}.wakes (job, at) SELECT p.seq, NEW.finished_at FROM ${schema}.jobs p WHERE p.seq = own.parent AND p.state < ${STATE.succeeded};`,
        )}
      END IF;
      IF own.watched THEN
        UPDATE ${schema}.awaits a SET ended = true WHERE a.job = NEW.seq;
        INSERT INTO ${schema}.wakes (job, at) SELECT w.waiter, ${schema}.now_ms() FROM (SELECT DISTINCT a.waiter FROM ${schema}.awaits a WHERE a.job = NEW.seq) w;
      END IF;
      -- Events wait for jobs with a dedupe key only.
      IF NEW.dedupe_key IS NOT NULL THEN UPDATE ${schema}.reruns r SET due = true WHERE r.job = NEW.seq AND NOT r.due; END IF;
      IF own.key1 IS NOT NULL THEN
        ${openAll("NEW.finished_at")}
      END IF;
      RETURN NULL;
    END IF;

    IF OLD.state >= ${STATE.succeeded} THEN
      UPDATE ${schema}.extras e SET ended = false WHERE e.job = NEW.seq RETURNING * INTO own;
      IF own.watched THEN UPDATE ${schema}.awaits a SET ended = false WHERE a.job = NEW.seq; END IF;
    ELSE
      SELECT * INTO own FROM ${schema}.extras e WHERE e.job = NEW.seq;
    END IF;
    IF own.key1 IS NULL THEN RETURN NULL; END IF;
    is_ready := NEW.state = ${STATE.queued} AND NEW.lane <> ${LANE.delayed};
    -- It was just admitted by a worker of an earlier version, or its counters changed after it was admitted.
    IF is_ready AND OLD.state = ${STATE.queued} AND own.place = ${PLACE.taken} THEN RETURN NULL; END IF;
    -- Quoted: a word of PL/pgSQL.
    begun := own."strict" AND NEW.fence > 0;
    first_door := own.key1;
    IF own."strict" THEN first_door := coalesce(${strictKey(schema, "own")}, own.key1); END IF;
    IF is_ready THEN UPDATE ${schema}.jobs j SET lane = ${LANE.held} WHERE j.seq = NEW.seq; END IF;
    UPDATE ${schema}.extras e SET
      place = CASE WHEN is_ready THEN ${PLACE.held} WHEN begun THEN ${PLACE.begun} ELSE ${PLACE.away} END,
      door = CASE WHEN is_ready THEN first_door END, rank = CASE WHEN begun THEN ${FIRST} WHEN own."strict" THEN 0 ELSE NEW.priority END
    WHERE e.job = NEW.seq;
    IF own.place >= ${PLACE.taken} THEN
      ${openAll(`${schema}.now_ms()`)}
    ELSIF is_ready THEN
      ${opened("first_door", `${schema}.now_ms()`)}
    END IF;
    RETURN NULL;
  END $$;`;
}

function noteChange(schema: string): string {
  return `${noteMoveFunction(schema)}
  DROP TRIGGER note_end ON ${schema}.jobs;
  DROP FUNCTION ${schema}.note_end();
  DROP TRIGGER note_move ON ${schema}.jobs;
  CREATE TRIGGER note_move AFTER UPDATE OF state, lane ON ${schema}.jobs FOR EACH ROW
    WHEN (NEW.state <> ${STATE.running} AND NEW.extras AND (OLD.state <> NEW.state OR OLD.lane <> NEW.lane)
      AND NOT (OLD.state = ${STATE.queued} AND NEW.state = ${STATE.queued} AND (NEW.lane = ${LANE.held}
        OR OLD.lane = ${LANE.held} AND NEW.lane <> ${LANE.delayed} AND current_setting('outlive_tx.notes', true) IS NOT DISTINCT FROM 'admits'))
      AND NOT (NEW.state = ${STATE.succeeded} AND OLD.state = ${STATE.running} AND current_setting('outlive_tx.notes', true) IS NOT DISTINCT FROM 'ends'))
    EXECUTE FUNCTION ${schema}.note_move();
  DROP TRIGGER note_start ON ${schema}.jobs;
  CREATE TRIGGER note_start AFTER UPDATE OF state ON ${schema}.jobs FOR EACH ROW
    WHEN (NEW.state = ${STATE.running} AND OLD.state = ${STATE.queued} AND NEW.extras AND NEW.rated) EXECUTE FUNCTION ${schema}.note_start();`;
}

/**
 * Called by the statement that has ended these jobs, so their rows are locked; each statement in here sees what was committed before that. Wakes are
 * written once for each parent and key, as in note_move.
 */
export function noteEnds(schema: string): string {
  return `
  -- Returns whether wakes of waits were written, of keys, and events made due: 1, 2 and 4, added up.
  CREATE FUNCTION ${schema}.note_ends(ended bigint[]) RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    now bigint := ${schema}.now_ms();
    parents bigint[];
    keys bigint[];
    is_watched boolean;
    written integer := 0;
    noted text;
  BEGIN
    WITH own AS (UPDATE ${schema}.extras e SET ended = true, place = ${PLACE.away}, door = NULL WHERE e.job = ANY (note_ends.ended)
      RETURNING e.parent, e.watched, e.key1, e.key2, e.key3)
    SELECT array_agg(DISTINCT o.parent) FILTER (WHERE o.parent IS NOT NULL), bool_or(o.watched), array_agg(DISTINCT k.key) FILTER (WHERE k.key IS NOT NULL)
    INTO parents, is_watched, keys FROM own o CROSS JOIN LATERAL (VALUES (o.key1), (o.key2), (o.key3)) AS k (key) WHERE k.key IS NOT NULL OR k.key IS NOT DISTINCT FROM o.key1;
    IF parents IS NOT NULL THEN
      INSERT INTO ${schema}.wakes (job, at) SELECT p.seq, now FROM ${schema}.jobs p WHERE p.seq = ANY (parents) AND p.state < ${STATE.succeeded};
      written := written | 1;
    END IF;
    IF is_watched THEN
      UPDATE ${schema}.awaits a SET ended = true WHERE a.job = ANY (note_ends.ended);
      INSERT INTO ${schema}.wakes (job, at) SELECT w.waiter, now FROM (SELECT DISTINCT a.waiter FROM ${schema}.awaits a WHERE a.job = ANY (note_ends.ended)) w;
      written := written | 1;
    END IF;
    IF keys IS NOT NULL THEN
      INSERT INTO ${schema}.key_wakes (key, at) SELECT k.key, now FROM unnest(keys) AS k (key);
      written := written | 2;
    END IF;
    UPDATE ${schema}.reruns r SET due = true WHERE r.job = ANY (note_ends.ended) AND NOT r.due;
    IF FOUND THEN written := written | 4; END IF;
    -- What this transaction does next is not noted by its own statement.
    noted := set_config('outlive_tx.notes', '', true);
    RETURN written;
  END $$;`;
}

/** A job that waits, by its row. The sum keeps the planner off the index of delayed jobs, which it may believe to be empty. */
const waits = (job: string): string =>
  `${job}.state + 0 = ${STATE.queued} AND ${job}.lane = ${LANE.delayed} AND ${job}.outcome = ${OUTCOME.waiting}`;

/** The second half of act_on_wakes, as it was. */
export function wakeWaiters(schema: string): string {
  return `
  -- Makes those of these jobs ready whose wait has ended, and returns how many. A wake is kept for those whose row another transaction has locked.
  CREATE FUNCTION ${schema}.wake_waiters(waiters bigint[]) RETURNS integer
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    found bigint[];
    fences integer[];
    locked bigint[];
    woken integer;
  BEGIN
    SELECT array_agg(j.seq), array_agg(j.fence) INTO found, fences
    FROM ${schema}.jobs j JOIN ${schema}.waits w ON w.job = j.seq
    WHERE j.seq = ANY (waiters) AND ${waits("j")} AND CASE
      WHEN w.signal IS NOT NULL THEN EXISTS (SELECT 1 FROM ${schema}.signals s WHERE s.job = j.seq AND s.name = w.signal AND s.read_at IS NULL)
      WHEN w.children THEN NOT EXISTS (SELECT 1 FROM ${schema}.extras e WHERE e.parent = j.seq AND NOT e.ended)
      WHEN w.jobs THEN NOT EXISTS (SELECT 1 FROM ${schema}.awaits a WHERE a.waiter = j.seq AND a.fence = j.fence AND a.ended IS NOT TRUE)
      ELSE false END;
    IF found IS NULL THEN RETURN 0; END IF;
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
    RETURN woken;
  END $$;`;
}

/** How many rows of awaits one call marks, at most. */
const MARKS = 1_000;

/** As it was (waiting.ts says why), without the statements that have nothing to do for most wakes. */
export function actOnWakesFirst(schema: string): string {
  return `
  CREATE OR REPLACE FUNCTION ${schema}.act_on_wakes(batch integer DEFAULT 500, OUT woken integer, OUT more boolean)
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    waiters bigint[];
    locked bigint[];
    marked tid[];
    noted text;
  BEGIN
    WITH gone AS (
      DELETE FROM ${schema}.wakes w WHERE w.id = ANY (ARRAY(SELECT n.id FROM ${schema}.wakes n ORDER BY n.id LIMIT batch FOR UPDATE SKIP LOCKED))
      RETURNING w.job)
    SELECT array_agg(DISTINCT g.job), count(*) >= batch INTO waiters, more FROM gone g;
    woken := 0;
    IF waiters IS NULL THEN RETURN; END IF;
    -- Whatever this transaction does next writes its wakes again.
    noted := set_config('outlive_tx.woken', '', true);

    IF EXISTS (SELECT 1 FROM ${schema}.awaits a WHERE a.waiter = ANY (waiters) AND a.ended IS NULL) THEN
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
    END IF;
    woken := ${schema}.wake_waiters(waiters);
  END $$;`;
}

/**
 * The wakes that the reclaim has written stay: a child that ended in another transaction at the same moment is not seen here, and whatever acts on
 * its wake later sees both. So no transaction takes a wake of its own, and a parent whose last child is dead need not wait for the next tick.
 */
export function wakingTickAtOnce(schema: string): string {
  return wakingTick(schema).replace(
    "    BEGIN\n      INSERT INTO",
    `    BEGIN
      IF taken > 0 THEN PERFORM ${schema}.wake_waiters(ARRAY(SELECT DISTINCT w.job FROM (SELECT n.job FROM ${schema}.wakes n ORDER BY n.id DESC LIMIT 10000) w)); END IF;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      RAISE WARNING 'outlive: no parent was woken in this tick: %', SQLERRM;
    END;
    BEGIN
      INSERT INTO`,
  );
}

/** A role that may call act_on_wakes may call what that calls now, and one that may end jobs may note that. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE p.oid IN ('${schema}.act_on_wakes(integer)'::regprocedure, '${schema}.tick(integer)'::regprocedure) AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.wake_waiters(bigint[]) TO %I', allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.jobs'::regclass AND a.privilege_type = 'UPDATE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.note_ends(bigint[]) TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
