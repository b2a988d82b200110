// Many jobs with keys are added in time that grows with their number. add_held_jobs joined the inserted rows with the drafts, row by row, because the engine's sessions
// allow no other join, and asked for each pair whether a limit is strict: 1,000 jobs with a limit took 0.4 s and 1,000 of a fair kind 5 s, at a load of 11 on two cores. Now the
// drafts that were added are read once more, in a second statement.
import type { Migration } from "../migrate.ts";
import { addFairJobs } from "./fairness.ts";
import { checksum, LANE } from "./frozen.ts";
import { addHeldJobs, PLACE, strictKey } from "./keys.ts";
import { replacing } from "./seed-views.ts";

export const heldInBulk: Migration = {
  name: "keyed jobs in bulk",
  drops: "the speed at which many jobs with keys are added at once",
  up: (schema) => `
  -- As add_jobs, for jobs with keys, debounced jobs, those of fair kinds, and those enqueued with them.
  CREATE OR REPLACE FUNCTION ${schema}.add_held_jobs(
    kinds integer[], priorities integer[], run_ats bigint[], delays_ms bigint[], ids text[], dedupe_keys text[], inputs text[],
    parent bigint, keys1 bigint[], keys2 bigint[], keys3 bigint[], names text[], latest_ms bigint[], fairs bigint[]
  ) RETURNS text[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    now_ms bigint := ${schema}.now_ms();
    seqs bigint[] := ARRAY(SELECT nextval('${schema}.jobs_seq_seq') FROM generate_series(1, cardinality(ids)));
    -- Most programs have no strict limit, and then no job is asked for its own.
    any_strict boolean := EXISTS (SELECT 1 FROM ${schema}.limits l WHERE l.strict);
    named integer;
    added text[];
    rows bigint[];
  BEGIN
    INSERT INTO ${schema}.job_ids (id, seq) SELECT d.id, d.seq FROM unnest(ids, seqs) AS d (id, seq) ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS named = ROW_COUNT;
    WITH drafts AS (
      SELECT d.*, coalesce(d.said_at, CASE WHEN d.delay_ms > 0 THEN now_ms + d.delay_ms END) AS run_at
      FROM unnest(seqs, kinds, priorities, run_ats, delays_ms, ids, dedupe_keys, inputs, keys1, latest_ms)
        AS d (seq, kind, priority, said_at, delay_ms, id, dedupe_key, input, key1, latest_ms)
      WHERE named = cardinality(ids) OR (SELECT i.seq FROM ${schema}.job_ids i WHERE i.id = d.id) = d.seq),
    jobs AS (
      INSERT INTO ${schema}.jobs (seq, lane, kind, priority, created_at, run_at, id, dedupe_key, input, input_sum, extras) OVERRIDING SYSTEM VALUE
      SELECT d.seq, CASE WHEN d.run_at > now_ms THEN ${LANE.delayed} WHEN d.key1 IS NOT NULL THEN ${LANE.held} ELSE ${LANE.open} END, d.kind, d.priority, now_ms, d.run_at,
        d.id, d.dedupe_key, d.input, ${checksum("d.input", "d.id")}, add_held_jobs.parent IS NOT NULL OR d.key1 IS NOT NULL OR d.latest_ms IS NOT NULL
      FROM drafts d ON CONFLICT DO NOTHING RETURNING kind, id, seq),
    counted AS (INSERT INTO ${schema}.kind_deltas (kind, jobs) SELECT j.kind, count(*) FROM jobs j GROUP BY j.kind)
    SELECT CASE WHEN count(*) < cardinality(ids) THEN coalesce(array_agg(j.id), '{}') END, array_agg(j.seq) INTO added, rows FROM jobs j;
    WITH drafts AS MATERIALIZED (
      SELECT d.*, d.key1 IS NOT NULL AND coalesce(d.said_at, CASE WHEN d.delay_ms > 0 THEN now_ms + d.delay_ms END, now_ms) <= now_ms AS held,
        CASE WHEN d.fair IS NOT NULL THEN -d.kind::bigint END AS gate, CASE WHEN any_strict THEN ${strictKey(schema, "d")} END AS strict_key
      FROM unnest(seqs, kinds, priorities, run_ats, delays_ms, keys1, keys2, keys3, names, latest_ms, fairs)
        AS d (seq, kind, priority, said_at, delay_ms, key1, key2, key3, keys, latest_ms, fair)
      WHERE added IS NULL OR d.seq = ANY (rows)),
    extras AS (
      INSERT INTO ${schema}.extras (job, parent, key1, key2, key3, keys, strict, place, door, rank, latest_at, fair, gate, ring)
      SELECT d.seq, add_held_jobs.parent, d.key1, d.key2, d.key3, d.keys, d.strict_key IS NOT NULL, CASE WHEN d.held THEN ${PLACE.held} ELSE ${PLACE.away} END,
        CASE WHEN d.held THEN coalesce(d.strict_key, d.gate, d.key1) END, CASE WHEN d.strict_key IS NOT NULL THEN 0 ELSE d.priority END, now_ms + d.latest_ms,
        d.fair, d.gate, CASE WHEN d.strict_key IS NOT NULL THEN 0 ELSE coalesce(d.fair, 0) END
      FROM drafts d WHERE add_held_jobs.parent IS NOT NULL OR d.key1 IS NOT NULL OR d.latest_ms IS NOT NULL)
    -- A gate needs no wake: every turn with room for the kind looks at it.
    INSERT INTO ${schema}.key_wakes (key, at) SELECT DISTINCT w.key, now_ms
      FROM (SELECT coalesce(d.strict_key, d.gate, d.key1) AS key FROM drafts d WHERE d.held) w WHERE w.key > 0;
    IF cardinality(added) < named THEN
      DELETE FROM ${schema}.job_ids i USING unnest(ids, seqs) AS d (id, seq)
      WHERE i.id = d.id AND i.seq = d.seq AND NOT EXISTS (SELECT 1 FROM ${schema}.jobs j WHERE j.seq = d.seq);
    END IF;
    RETURN added;
  END $$;
  CREATE OR REPLACE FUNCTION ${schema}.add_held_jobs(
    kinds integer[], priorities integer[], run_ats bigint[], delays_ms bigint[], ids text[], dedupe_keys text[], inputs text[],
    parent bigint, keys1 bigint[], keys2 bigint[], keys3 bigint[], names text[], latest_ms bigint[]
  ) RETURNS text[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  BEGIN
    RETURN ${schema}.add_held_jobs(kinds, priorities, run_ats, delays_ms, ids, dedupe_keys, inputs, parent, keys1, keys2, keys3, names, latest_ms, '{}'::bigint[]);
  END $$;`,
  down: (schema) => [replacing(addFairJobs(schema)), replacing(addHeldJobs(schema))].join("\n"),
};
