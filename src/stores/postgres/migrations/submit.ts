// The way into a batch for programs without Node: `submit`, as `enqueue` is for jobs. What only a program knows of a kind of batch (the schema of its
// rows, its block size, what it tolerates, whose batches take turns) is not in the store: blocks have 50 rows, and a worker checks each row.
import type { Migration } from "../migrate.ts";
import { channelOf } from "./enqueue.ts";
import { checksum, MAX_JSON_BYTES } from "./frozen.ts";

export const SUBMIT_SIGNATURE = "submit(text, jsonb, text)";

const BLOCK_ROWS = 50;
const BLOCK_CHARACTERS = 262_144;
/** Place in core's BATCH_STATES. */
const SEALED = 1;

export const submit: Migration = {
  name: "submit",
  drops: "the function submit",
  up: (schema) => `${submitFunction(schema)}
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p
      JOIN pg_class c ON c.oid = '${schema}.jobs'::regclass AND c.relnamespace = p.pronamespace
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE p.proname = 'enqueue' AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${SUBMIT_SIGNATURE} TO %I', allowed.role);
    END LOOP;
  END $$;`,
  down: (schema) => `DROP FUNCTION ${schema}.${SUBMIT_SIGNATURE};`,
};

export function submitFunction(schema: string): string {
  return `
  -- A sealed batch of these rows, lines 1, 2, 3, ...; or the batch of this kind that has the key. With the owner's rights, as enqueue.
  CREATE FUNCTION ${schema}.submit(kind text, rows jsonb, key text DEFAULT NULL) RETURNS TABLE (batch_id text, created boolean)
  LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  #variable_conflict use_column
  DECLARE
    own_kind ${schema}.kinds;
    new_batch text := ${schema}.new_id();
    batch_seq bigint;
    one record;
    block_lines text := '';
    block_rows text := '';
    in_block integer := 0;
    ids text[] := '{}';
    inputs text[] := '{}';
    counts integer[] := '{}';
    total integer := 0;
  BEGIN
    SELECT * INTO own_kind FROM ${schema}.kinds k WHERE k.name = submit.kind;
    IF own_kind.id IS NULL OR NOT EXISTS (SELECT 1 FROM ${schema}.kinds d WHERE d.name = submit.kind || ':done') THEN
      RAISE EXCEPTION 'no program has declared % as a kind of batch', quote_nullable(submit.kind)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Start a program whose open({ jobs }) has it, or correct the name.';
    ELSIF own_kind.keyed THEN
      RAISE EXCEPTION 'blocks of the kind % count against limits, and a program computes their keys', quote_literal(submit.kind)
        USING ERRCODE = 'feature_not_supported', HINT = 'Submit it from a program: engine.submit.';
    ELSIF submit.rows IS NULL OR jsonb_typeof(submit.rows) <> 'array' THEN
      RAISE EXCEPTION 'the rows are no array of JSON' USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass a jsonb array with one value for each row.';
    ELSIF submit.rows::text LIKE '%"\\_\\_proto\\_\\_":%' THEN
      RAISE EXCEPTION 'a row has a key named __proto__' USING ERRCODE = 'invalid_parameter_value', HINT = 'Rename it; no worker would read it.';
    END IF;
    PERFORM ${schema}.assert_key(submit.key, 'the key');

    INSERT INTO ${schema}.batch_state (id, kind, key, held, priority, block_rows, created_at, context, context_sum, state, sealed_at, touched)
    VALUES (new_batch, own_kind.id, submit.key, false, 0, ${BLOCK_ROWS}, ${schema}.now_ms(), 'null', ${checksum("'null'", "new_batch")}, ${SEALED}, ${schema}.now_ms(), true)
    ON CONFLICT DO NOTHING RETURNING seq INTO batch_seq;
    IF batch_seq IS NULL THEN
      RETURN QUERY SELECT b.id, false FROM ${schema}.batch_state b WHERE b.kind = own_kind.id AND b.key = submit.key;
      RETURN;
    END IF;

    FOR one IN SELECT r.value::text AS input, r.ordinality AS line, r.ordinality = jsonb_array_length(submit.rows) AS is_last
      FROM jsonb_array_elements(submit.rows) WITH ORDINALITY r ORDER BY r.ordinality
    LOOP
      IF octet_length(one.input) > ${MAX_JSON_BYTES} THEN
        RAISE EXCEPTION 'the row of line % has % bytes of JSON, at most ${MAX_JSON_BYTES} are allowed', one.line, octet_length(one.input)
          USING ERRCODE = 'program_limit_exceeded', HINT = 'Put the data somewhere else and pass its address.';
      END IF;
      block_lines := block_lines || CASE WHEN in_block > 0 THEN ',' ELSE '' END || one.line;
      block_rows := block_rows || CASE WHEN in_block > 0 THEN ',' ELSE '' END || one.input;
      in_block := in_block + 1;
      IF in_block = ${BLOCK_ROWS} OR length(block_rows) >= ${BLOCK_CHARACTERS} OR one.is_last THEN
        -- As encodeBlock of core writes it: the batch comes first.
        inputs := inputs || format('{"batch":"%s","round":1,"number":%s,"lines":[%s],"rows":[%s]}', new_batch, cardinality(ids), block_lines, block_rows);
        ids := ids || format('%s:1:%s', new_batch, cardinality(ids));
        counts := counts || in_block;
        total := total + in_block;
        block_lines := '';
        block_rows := '';
        in_block := 0;
      END IF;
    END LOOP;
    IF total > 0 THEN
      PERFORM ${schema}.add_block_jobs(array_fill(own_kind.id, ARRAY[cardinality(ids)]), array_fill(0, ARRAY[cardinality(ids)]),
        array_fill(NULL::bigint, ARRAY[cardinality(ids)]), array_fill(0::bigint, ARRAY[cardinality(ids)]), ids, array_fill(NULL::text, ARRAY[cardinality(ids)]), inputs);
      INSERT INTO ${schema}.blocks (job, batch, round, number, rows, bad)
        SELECT i.seq, batch_seq, 1, u.at - 1, u.rows, false FROM unnest(ids, counts) WITH ORDINALITY AS u (id, rows, at) JOIN ${schema}.job_ids i ON i.id = u.id;
      UPDATE ${schema}.batch_state b SET rows = total, blocks = cardinality(ids) WHERE b.seq = batch_seq;
    END IF;
    PERFORM pg_notify('${channelOf(schema)}', '');
    RETURN QUERY SELECT new_batch, true;
  END $$;`;
}
