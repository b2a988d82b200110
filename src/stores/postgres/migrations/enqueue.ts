// The way in, part of migration 1: `add_jobs`, which everybody goes through, and for whoever has no Node process `new_id` and `enqueue`.
// The checks of `enqueue` are those of enqueue.ts and json.ts of src/job; a test gives both the same bad calls.
import { ALPHABET, MAX_JSON_BYTES, MAX_PRIORITY } from "./frozen.ts";

export const ENQUEUE_SIGNATURE = "enqueue(text, jsonb, text, integer, interval, timestamptz, text, boolean)";

export function enqueueFunctions(schema: string): string {
  return `${addJobs(schema)}
  -- 22 characters that sort by time, as core's ids: 10 of time (ms), 12 at random. The version and the variant of a uuid are not random.
  CREATE FUNCTION ${schema}.new_id() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    ms bigint := ${schema}.now_ms();
    hex text := replace(gen_random_uuid()::text, '-', '');
    chance bigint := ('x' || substr(hex, 1, 12) || substr(hex, 18, 3))::bit(60)::bigint;
  BEGIN
    RETURN ${base32("ms", 10)} || ${base32("chance", 12)};
  END $$;

  CREATE FUNCTION ${schema}.assert_key(value text, what text) RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  BEGIN
    IF value = '' OR length(value) > 255 OR value ~ '[\\x01-\\x1f\\x7f-\\x9f]' THEN
      RAISE EXCEPTION '% has % characters or holds a control character', what, length(value)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Use 1 to 255 printable characters; hash longer keys before you pass them.';
    END IF;
  END $$;

${enqueueFunction(schema, AS_RELEASED)}`;
}

/** What a later migration changes in `enqueue`: how it is created, one more check of its arguments, and what comes before a new kind. */
export interface EnqueueVariant {
  readonly create: "CREATE FUNCTION" | "CREATE OR REPLACE FUNCTION";
  readonly check: string;
  readonly beforeNewKind: string;
}

/** Migration 1. Its text is released: it never changes. */
const AS_RELEASED: EnqueueVariant = { create: "CREATE FUNCTION", check: "", beforeNewKind: "" };

export function enqueueFunction(schema: string, { create, check, beforeNewKind }: EnqueueVariant): string {
  return `  -- With the owner's rights: whoever may only enqueue needs no right on any table.
  ${create} ${schema}.enqueue(
    kind text, input jsonb DEFAULT 'null', id text DEFAULT NULL, priority integer DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, dedupe_key text DEFAULT NULL, wake boolean DEFAULT true
  ) RETURNS TABLE (job_id text, created boolean)
  LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  #variable_conflict use_column
  DECLARE
    now_ms bigint := ${schema}.now_ms();
    due bigint := coalesce(
      floor(date_part('epoch', enqueue.run_at) * 1000)::bigint,
      nullif(now_ms + floor(date_part('epoch', enqueue.delay) * 1000)::bigint, now_ms));
    kind_id integer;
    new_job text := coalesce(enqueue.id, ${schema}.new_id());
    known text;
  BEGIN
    IF enqueue.kind IS NULL OR enqueue.kind !~ '^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$' THEN
      RAISE EXCEPTION 'the kind % is not a name', quote_nullable(enqueue.kind)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Use letters, digits and . _ - : / (at most 128, the first a letter or digit).';
    ELSIF enqueue.run_at IS NOT NULL AND enqueue.delay IS NOT NULL THEN
      RAISE EXCEPTION 'both run_at and delay were given' USING ERRCODE = 'invalid_parameter_value', HINT = 'Say either run_at or delay.';
    ELSIF enqueue.delay < interval '0' THEN
      RAISE EXCEPTION 'the delay is negative' USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out to run the job at once.';
    ELSIF enqueue.priority IS NULL OR abs(enqueue.priority::bigint) > ${MAX_PRIORITY} THEN
      RAISE EXCEPTION 'the priority is %', coalesce(enqueue.priority::text, 'null')
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a whole number from -${MAX_PRIORITY} to ${MAX_PRIORITY}; higher runs first.';
    ELSIF octet_length(enqueue.input::text) > ${MAX_JSON_BYTES} THEN
      RAISE EXCEPTION 'the input has % bytes of JSON, at most ${MAX_JSON_BYTES} are allowed', octet_length(enqueue.input::text)
        USING ERRCODE = 'program_limit_exceeded', HINT = 'Put the data somewhere else and pass its address.';
    ELSIF enqueue.input::text LIKE '%"\\_\\_proto\\_\\_":%' THEN
      RAISE EXCEPTION 'the input has a key named __proto__' USING ERRCODE = 'invalid_parameter_value', HINT = 'Rename it; no worker would read it.';${check}
    END IF;
    PERFORM ${schema}.assert_key(enqueue.id, 'the id');
    PERFORM ${schema}.assert_key(enqueue.dedupe_key, 'the dedupe key');

    SELECT k.id INTO kind_id FROM ${schema}.kinds k WHERE k.name = enqueue.kind;
    IF kind_id IS NULL THEN${beforeNewKind}
      -- Nobody has declared it yet: the defaults of the columns, which a worker's own settings replace.
      INSERT INTO ${schema}.kinds (name) VALUES (enqueue.kind) ON CONFLICT DO NOTHING;
      SELECT k.id INTO STRICT kind_id FROM ${schema}.kinds k WHERE k.name = enqueue.kind;
    END IF;
    LOOP
      IF ${schema}.add_jobs(ARRAY[kind_id], ARRAY[enqueue.priority], ARRAY[due], ARRAY[NULL::bigint], ARRAY[new_job], ARRAY[enqueue.dedupe_key],
        ARRAY[coalesce(enqueue.input, 'null')::text]) IS NULL THEN
        IF enqueue.wake THEN PERFORM pg_notify('${channelOf(schema)}', ''); END IF;
        RETURN QUERY SELECT new_job, true;
        RETURN;
      END IF;
      SELECT i.id INTO known FROM ${schema}.job_ids i WHERE i.id = new_job;
      IF NOT FOUND THEN
        SELECT j.id INTO known FROM ${schema}.jobs j WHERE j.kind = kind_id AND j.dedupe_key = enqueue.dedupe_key AND j.state < 2;
      END IF;
      IF FOUND THEN
        RETURN QUERY SELECT known, false;
        RETURN;
      END IF;
      -- Who held the key has ended between the two looks: it is free now.
    END LOOP;
  END $$;`;
}

export function addJobs(schema: string): string {
  return `
  --- Adds what is known neither by its id nor by its dedupe key. Answers the ids that were added, or null if all of them were. One place
  --- holds the ids and another the keys, so a job may win the one and lose the other: then it gives its id back. Whoever adds the same id
  --- or key meanwhile waits until this transaction has ended, and then sees the job or none.
  CREATE FUNCTION ${schema}.add_jobs(
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
      INSERT INTO ${schema}.jobs (seq, lane, kind, priority, created_at, run_at, id, dedupe_key, input) OVERRIDING SYSTEM VALUE
      SELECT d.seq, CASE WHEN d.run_at > now_ms THEN 0 ELSE 1 END, d.kind, d.priority, now_ms, d.run_at, d.id, d.dedupe_key, d.input FROM drafts d
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

function base32(value: string, width: number): string {
  return Array.from(
    { length: width },
    (_, i) => `substr('${ALPHABET}', (${value} >> ${5 * (width - 1 - i)} & 31)::integer + 1, 1)`,
  ).join(" || ");
}

export function dropEnqueue(schema: string): string {
  return `
  DROP FUNCTION ${schema}.${ENQUEUE_SIGNATURE};
  DROP FUNCTION ${schema}.assert_key(text, text);
  DROP FUNCTION ${schema}.new_id();
  DROP FUNCTION ${schema}.add_jobs(integer[], integer[], bigint[], bigint[], text[], text[], text[]);`;
}

/** The channel of a quoted schema on which its workers are woken. Released steps hold this name, and workers of 0.1.0 listen on it. */
export function channelOf(schema: string): string {
  return `${schema.slice(1, -1)}_bell`;
}

// The function `enqueue` as it replaces that of migration 1, with two limits more. A number that JavaScript would read as Infinity is
// refused, as core refuses it. And names that no program has declared can't make kinds without end: each is a row, and a label of
// every metric per kind.

/** From this many kinds on, `enqueue` makes no new one. Programs that declare their kinds have no such limit. */
export const MAX_KINDS_BY_NAME = 1_000;

/** Number.MAX_VALUE, rounded up in its last digit: a larger number may be read as Infinity. `jsonb` writes it as 309 digits or more. */
const LARGEST = "1.7976931348623158e308";
const MANY_DIGITS = "strpos(translate(enqueue.input::text, '123456789', '000000000'), repeat('0', 309)) > 0";
const TOO_LARGE = `jsonb_path_exists(enqueue.input, '$.** ? (@.type() == "number" && (@ > ${LARGEST} || @ < -${LARGEST}))')`;

export function enqueueWithLimits(schema: string): string {
  return enqueueFunction(schema, {
    create: "CREATE OR REPLACE FUNCTION",
    check: `
    ELSIF octet_length(enqueue.input::text) > 308 AND ${MANY_DIGITS} AND ${TOO_LARGE} THEN
      RAISE EXCEPTION 'the input holds a number that is larger than a double can be'
        USING ERRCODE = 'numeric_value_out_of_range', HINT = 'Pass it as text; a worker would read Infinity.';`,
    beforeNewKind: `
      IF (SELECT count(*) FROM ${schema}.kinds) >= ${MAX_KINDS_BY_NAME} THEN
        RAISE EXCEPTION 'no program has declared the kind %, and there are ${MAX_KINDS_BY_NAME} kinds or more already', quote_literal(enqueue.kind)
          USING ERRCODE = 'program_limit_exceeded',
          HINT = 'Correct the name, or declare the kind first: start a program whose open({ jobs }) has it.';
      END IF;`,
  });
}

/** For the way down: the function of migration 1 again. */
export function formerEnqueue(schema: string): string {
  return enqueueFunction(schema, { create: "CREATE OR REPLACE FUNCTION", check: "", beforeNewKind: "" });
}
