// Migration 12: limits per key, and what becomes of an enqueue whose dedupe key an unfinished job holds.
//
// A job that is ready and has keys is held at the door of one of them, in a lane that no claim reads. Whatever gives a key room, and whatever adds a
// held job, appends a row to key_wakes in its own transaction. A worker's turn takes these rows, and core decides which jobs are admitted
// (job/limits.ts). An enqueue inside an open transaction only inserts, so no other transaction waits for it. What counts against a key is rows of
// extras, which a trigger keeps in step with the job: nothing is acquired that could leak.
import type { Migration } from "../migrate.ts";
import { enqueueWithLimits } from "./enqueue.ts";
import { LANE, STATE } from "./frozen.ts";
import { addCheckedJobs } from "./seed-views.ts";

/** In the order in which they are dropped. */
export const KEY_TABLES = ["reruns", "starts", "key_wakes", "keys", "limits"] as const;

const ADD_HELD =
  "add_held_jobs(integer[], integer[], bigint[], bigint[], text[], text[], text[], bigint, bigint[], bigint[], bigint[], text[], bigint[])";

/**
 * Where a job with keys is: not ready, held at a door, admitted or running, begun and not ready under a strict limit, or held at another door than
 * that of its strict limit, where it is first.
 */
export const PLACE = { away: 0, held: 1, taken: 2, begun: 3, first: 4 } as const;
/** The order at a door of a job of a strict limit that has begun: before all others. */
export const FIRST = 1_000_000;

export const keys: Migration = {
  name: "keys",
  drops:
    "limits per key with what is held off, and events that wait for the end of a job. Jobs that limits hold become ready",
  locks: ["jobs", "kinds"],
  up: (schema) =>
    [
      tables(schema),
      addHeldJobs(schema),
      noteMove(schema),
      noteStart(schema),
      enqueueWithoutKeys(schema),
      grants(schema),
    ].join("\n"),
  down: (schema) => `
  DROP TRIGGER note_start ON ${schema}.jobs;
  DROP FUNCTION ${schema}.note_start();
  DROP TRIGGER note_move ON ${schema}.jobs;
  DROP FUNCTION ${schema}.note_move();
  UPDATE ${schema}.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN ${LANE.alone} ELSE ${LANE.open} END
    FROM ${schema}.extras e WHERE e.door IS NOT NULL AND j.seq = e.job AND j.state = ${STATE.queued} AND j.lane = ${LANE.held};
  ${enqueueWithLimits(schema)}
  DROP FUNCTION ${schema}.${ADD_HELD};
  DROP TABLE ${KEY_TABLES.map((table) => `${schema}.${table}`).join(", ")};
  ALTER TABLE ${schema}.extras DROP COLUMN key1, DROP COLUMN key2, DROP COLUMN key3, DROP COLUMN keys, DROP COLUMN strict, DROP COLUMN place,
    DROP COLUMN door, DROP COLUMN rank, DROP COLUMN latest_at;
  ALTER TABLE ${schema}.kinds DROP COLUMN keyed;`,
};

function tables(schema: string): string {
  const appended = `WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0)`;
  return `
  ALTER TABLE ${schema}.kinds ADD COLUMN keyed boolean NOT NULL DEFAULT false; -- its jobs have keys, which a program computes

  ALTER TABLE ${schema}.extras
    ADD COLUMN key1 bigint, ADD COLUMN key2 bigint, ADD COLUMN key3 bigint,
    ADD COLUMN door bigint,                            -- the key at which it is held
    ADD COLUMN latest_at bigint,                       -- a debounced job is not moved beyond
    ADD COLUMN rank integer NOT NULL DEFAULT 0,        -- its order at the door, higher first
    ADD COLUMN place smallint NOT NULL DEFAULT 0,      -- 0 away, 1 held at a door, 2 admitted or running, 3 begun and away, 4 first and held elsewhere (both strict)
    ADD COLUMN strict boolean NOT NULL DEFAULT false,  -- one of its limits is strict
    ADD COLUMN keys text;                              -- JSON: limit and key of each
  CREATE INDEX extras_key1 ON ${schema}.extras (key1, place) WHERE key1 IS NOT NULL AND place > 1;
  CREATE INDEX extras_key2 ON ${schema}.extras (key2, place) WHERE key2 IS NOT NULL AND place > 1;
  CREATE INDEX extras_key3 ON ${schema}.extras (key3, place) WHERE key3 IS NOT NULL AND place > 1;
  CREATE INDEX extras_door ON ${schema}.extras (door, rank DESC, job) WHERE door IS NOT NULL;

  CREATE TABLE ${schema}.limits (
    name text COLLATE "C" PRIMARY KEY,
    running integer,                         -- null: any number
    interval_ms double precision,            -- null: no rate
    burst integer NOT NULL,
    strict boolean NOT NULL
  );
  -- Only keys that have something of their own: a rate, a hold-off, a limit that was set for them.
  CREATE TABLE ${schema}.keys (
    id bigint PRIMARY KEY,
    due_at bigint,                           -- when time gives it room
    held_off_until bigint NOT NULL DEFAULT 0,
    arrival_at double precision NOT NULL DEFAULT 0,
    running integer,
    burst integer,
    interval_ms double precision,
    name text NOT NULL,
    key text NOT NULL,
    reason text
  );
  CREATE INDEX keys_due ON ${schema}.keys (due_at) WHERE due_at IS NOT NULL;
  CREATE TABLE ${schema}.key_wakes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bigint NOT NULL, at bigint NOT NULL) ${appended};

  --- Claims of jobs with a rate: each is a start of these keys, until a worker adds it to arrival_at. Appended, because a claim that updated the row of
  --- a key would wait for every other claim of that key.
  CREATE TABLE ${schema}.starts (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bigint NOT NULL, at bigint NOT NULL) ${appended};
  CREATE INDEX starts_key ON ${schema}.starts (key, id);

  -- Events for a job that holds their dedupe key. They are applied under the lock of its row: if it has not begun, the latest replaces its input;
  -- if it has, they wait for its end, and the latest becomes a job.
  CREATE TABLE ${schema}.reruns (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    at bigint NOT NULL,
    latest_at bigint,                        -- debounced: not later
    due boolean NOT NULL,                    -- a worker has to act on it
    seen boolean NOT NULL,                   -- a worker has seen it while the job was unfinished
    draft text NOT NULL                      -- JSON
  );
  CREATE INDEX reruns_job ON ${schema}.reruns (job, ord);
  CREATE INDEX reruns_due ON ${schema}.reruns (job) WHERE due;`;
}

/** SQL: the key of a row's strict limit, at whose door it is seen whose turn it is; null: none of its limits is strict. */
export function strictKey(schema: string, row: string): string {
  return `(SELECT (ARRAY[${row}.key1, ${row}.key2, ${row}.key3])[n.at] FROM json_array_elements(coalesce(${row}.keys, '[]')::json) WITH ORDINALITY AS n (name, at)
        JOIN ${schema}.limits l ON l.name = n.name ->> 0 WHERE l.strict ORDER BY n.at LIMIT 1)`;
}

/** A copy, so that an enqueue of plain jobs costs what it did. Jobs without keys may be among them. */
export function addHeldJobs(schema: string): string {
  return addCheckedJobs(schema)
    .replace(
      "-- As in step 1, and each input with its checksum.",
      "-- As add_jobs, for jobs with keys, debounced jobs, and those enqueued with them.",
    )
    .replace("CREATE OR REPLACE FUNCTION", "CREATE FUNCTION")
    .replace(`${schema}.add_jobs(`, `${schema}.add_held_jobs(`)
    .replace(
      "inputs text[]\n",
      "inputs text[],\n    parent bigint, keys1 bigint[], keys2 bigint[], keys3 bigint[], names text[], latest_ms bigint[]\n",
    )
    .replace(
      "FROM unnest(seqs, kinds, priorities, run_ats, delays_ms, ids, dedupe_keys, inputs)\n        AS d (seq, kind, priority, said_at, delay_ms, id, dedupe_key, input)",
      `FROM unnest(seqs, kinds, priorities, run_ats, delays_ms, ids, dedupe_keys, inputs, keys1, keys2, keys3, names, latest_ms)
        AS d (seq, kind, priority, said_at, delay_ms, id, dedupe_key, input, key1, key2, key3, keys, latest_ms)`,
    )
    .replace("input, input_sum) OVERRIDING", "input, input_sum, extras) OVERRIDING")
    .replace(
      "CASE WHEN d.run_at > now_ms THEN 0 ELSE 1 END",
      `CASE WHEN d.run_at > now_ms THEN ${LANE.delayed} WHEN d.key1 IS NOT NULL THEN ${LANE.held} ELSE ${LANE.open} END`,
    )
    .replace(
      " FROM drafts d\n      ON CONFLICT DO NOTHING RETURNING kind, id)",
      `, add_held_jobs.parent IS NOT NULL OR d.key1 IS NOT NULL OR d.latest_ms IS NOT NULL FROM drafts d
      ON CONFLICT DO NOTHING RETURNING kind, id, seq, lane, extras),
    extras AS (
      INSERT INTO ${schema}.extras (job, parent, key1, key2, key3, keys, strict, place, door, rank, latest_at)
      SELECT j.seq, add_held_jobs.parent, d.key1, d.key2, d.key3, d.keys, s.strict_key IS NOT NULL, CASE j.lane WHEN ${LANE.held} THEN ${PLACE.held} ELSE ${PLACE.away} END,
        CASE j.lane WHEN ${LANE.held} THEN coalesce(s.strict_key, d.key1) END, CASE WHEN s.strict_key IS NOT NULL THEN 0 ELSE d.priority END, now_ms + d.latest_ms
      FROM jobs j JOIN drafts d ON d.seq = j.seq CROSS JOIN LATERAL (SELECT ${strictKey(schema, "d")} AS strict_key) s WHERE j.extras),
    doors AS (
      INSERT INTO ${schema}.key_wakes (key, at)
      SELECT DISTINCT coalesce(${strictKey(schema, "d")}, d.key1), now_ms FROM jobs j JOIN drafts d ON d.seq = j.seq WHERE j.lane = ${LANE.held})`,
    );
}

/**
 * Whatever moves a job with keys comes through here. A job that has become ready goes to a door, and one that left gives its room to the others. A job
 * that ran and is ready again is admitted again, and spends another token of a rate. With its owner's rights, as note_end. It updates only
 * what belongs to this job, whose row is locked.
 */
export function noteMove(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.note_move() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    own ${schema}.extras;
    is_ready boolean := NEW.state = ${STATE.queued} AND NEW.lane <> ${LANE.delayed};
    begun boolean;
    first_door bigint;
  BEGIN
    IF NEW.state >= ${STATE.succeeded} THEN UPDATE ${schema}.reruns r SET due = true WHERE r.job = NEW.seq AND NOT r.due; END IF;
    SELECT * INTO own FROM ${schema}.extras e WHERE e.job = NEW.seq AND e.key1 IS NOT NULL;
    IF NOT FOUND THEN RETURN NULL; END IF;
    -- It was just admitted, or its counters changed after it was.
    IF is_ready AND OLD.state = ${STATE.queued} AND own.place = ${PLACE.taken} THEN RETURN NULL; END IF;
    -- Quoted: a word of PL/pgSQL.
    begun := own."strict" AND NEW.fence > 0;
    first_door := CASE WHEN own."strict" THEN coalesce(${strictKey(schema, "own")}, own.key1) ELSE own.key1 END;
    IF is_ready THEN UPDATE ${schema}.jobs j SET lane = ${LANE.held} WHERE j.seq = NEW.seq; END IF;
    UPDATE ${schema}.extras e SET
      place = CASE WHEN is_ready THEN ${PLACE.held} WHEN NEW.state = ${STATE.queued} AND begun THEN ${PLACE.begun} ELSE ${PLACE.away} END,
      door = CASE WHEN is_ready THEN first_door END, rank = CASE WHEN begun THEN ${FIRST} WHEN own."strict" THEN 0 ELSE NEW.priority END
    WHERE e.job = NEW.seq;
    IF own.place >= ${PLACE.taken} THEN
      INSERT INTO ${schema}.key_wakes (key, at) SELECT k.key, ${schema}.now_ms() FROM unnest(ARRAY[own.key1, own.key2, own.key3]) AS k (key) WHERE k.key IS NOT NULL;
    ELSIF is_ready THEN
      INSERT INTO ${schema}.key_wakes (key, at) VALUES (first_door, ${schema}.now_ms());
    END IF;
    RETURN NULL;
  END $$;
  --- The columns of both triggers in this order: a claim is known by its state, and reads no column behind those that may be null.
  DROP TRIGGER note_end ON ${schema}.jobs;
  CREATE TRIGGER note_end AFTER UPDATE OF state ON ${schema}.jobs FOR EACH ROW
    WHEN ((OLD.state >= ${STATE.succeeded}) <> (NEW.state >= ${STATE.succeeded}) AND NEW.extras) EXECUTE FUNCTION ${schema}.note_end();
  CREATE TRIGGER note_move AFTER UPDATE OF state, lane ON ${schema}.jobs FOR EACH ROW
    WHEN (NEW.state <> ${STATE.running} AND NEW.extras AND (OLD.state <> NEW.state OR OLD.lane <> NEW.lane)
      AND NOT (NEW.state = ${STATE.queued} AND NEW.lane = ${LANE.held})) EXECUTE FUNCTION ${schema}.note_move();`;
}

/**
 * A claim of a job with a rate is a start. However long the job waited for a worker after it was admitted, the next one keeps its distance. If the
 * process dies before the handler begins, a start is wasted, and none is gained. It only inserts.
 */
export function noteStart(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.note_start() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  BEGIN
    WITH rated AS (
      SELECT (ARRAY[e.key1, e.key2, e.key3])[n.at] AS key FROM ${schema}.extras e, json_array_elements(e.keys::json) WITH ORDINALITY AS n (name, at)
      LEFT JOIN ${schema}.limits l ON l.name = n.name ->> 0
      WHERE e.job = NEW.seq AND e.key1 IS NOT NULL AND (l.interval_ms IS NOT NULL OR l.name IS NULL
        OR EXISTS (SELECT 1 FROM ${schema}.keys k WHERE k.id = (ARRAY[e.key1, e.key2, e.key3])[n.at] AND k.interval_ms IS NOT NULL))),
    started AS (INSERT INTO ${schema}.starts (key, at) SELECT r.key, ${schema}.now_ms() FROM rated r RETURNING key)
    INSERT INTO ${schema}.key_wakes (key, at) SELECT s.key, ${schema}.now_ms() FROM started s;
    RETURN NULL;
  END $$;
  CREATE TRIGGER note_start AFTER UPDATE OF state ON ${schema}.jobs FOR EACH ROW
    WHEN (NEW.extras AND NEW.state = ${STATE.running} AND OLD.state = ${STATE.queued}) EXECUTE FUNCTION ${schema}.note_start();`;
}

/** The former function, and it refuses kinds whose jobs have keys. */
export function enqueueWithoutKeys(schema: string): string {
  const text = enqueueWithLimits(schema);
  const at = text.indexOf("\n    END IF;\n    PERFORM");
  return `${text.slice(0, at)}
    ELSIF (SELECT k.keyed FROM ${schema}.kinds k WHERE k.name = enqueue.kind) THEN
      RAISE EXCEPTION 'jobs of the kind % count against limits, and a program computes their keys', quote_literal(enqueue.kind)
        USING ERRCODE = 'feature_not_supported', HINT = 'Enqueue it from a program: engine.enqueue, client.enqueue, or enqueueIn with your own transaction.';${text.slice(at)}`;
}

/** A role that may use steps may use these tables; one that may enqueue may enqueue jobs with keys. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${KEY_TABLES.map((table) => `${schema}.${table}`).join(", ")} TO %I', allowed.rights, allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p
      JOIN pg_class c ON c.oid = '${schema}.jobs'::regclass AND c.relnamespace = p.pronamespace
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE p.proname = 'add_jobs' AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${ADD_HELD} TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
