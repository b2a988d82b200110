// The way in for whoever has no Node process: `new_id` and `enqueue`, part of migration 1. The checks are those of core's
// enqueue.ts, ids.ts and json.ts; a test gives both the same bad calls.
import { ALPHABET } from "../../../core/ids.ts";
import { MAX_PRIORITY } from "../../../core/enqueue.ts";
import { MAX_JSON_BYTES } from "../../../core/json.ts";

export const ENQUEUE_SIGNATURE = "enqueue(text, jsonb, text, integer, interval, timestamptz, text, boolean)";

export function enqueueFunctions(schema: string): string {
  return `
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

  -- With the owner's rights: whoever may only enqueue needs no right on any table.
  CREATE FUNCTION ${schema}.enqueue(
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
      RAISE EXCEPTION 'the input has a key named __proto__' USING ERRCODE = 'invalid_parameter_value', HINT = 'Rename it; no worker would read it.';
    END IF;
    PERFORM ${schema}.assert_key(enqueue.id, 'the id');
    PERFORM ${schema}.assert_key(enqueue.dedupe_key, 'the dedupe key');

    SELECT k.id INTO kind_id FROM ${schema}.kinds k WHERE k.name = enqueue.kind;
    IF kind_id IS NULL THEN
      -- Nobody has declared it yet: the defaults of the columns, which a worker's own settings replace.
      INSERT INTO ${schema}.kinds (name) VALUES (enqueue.kind) ON CONFLICT DO NOTHING;
      SELECT k.id INTO STRICT kind_id FROM ${schema}.kinds k WHERE k.name = enqueue.kind;
    END IF;
    LOOP
      INSERT INTO ${schema}.jobs AS j (kind, priority, epoch, created_at, run_at, lane, id, dedupe_key, input)
      VALUES (kind_id, enqueue.priority, coalesce((SELECT m.value FROM ${schema}.meta m WHERE m.key = 'epoch'), 0), now_ms, due,
              CASE WHEN due > now_ms THEN 0 ELSE 1 END, new_job, enqueue.dedupe_key, coalesce(enqueue.input, 'null')::text)
      ON CONFLICT DO NOTHING;
      IF FOUND THEN
        INSERT INTO ${schema}.kind_deltas (kind, jobs) VALUES (kind_id, 1);
        IF enqueue.wake THEN PERFORM pg_notify('${channelOf(schema)}', ''); END IF;
        RETURN QUERY SELECT new_job, true;
        RETURN;
      END IF;
      SELECT j.id INTO known FROM ${schema}.jobs j WHERE j.id = new_job;
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
  DROP FUNCTION ${schema}.new_id();`;
}

/** The channel of a quoted schema on which its workers are woken. */
export function channelOf(schema: string): string {
  return `${schema.slice(1, -1)}_bell`;
}
