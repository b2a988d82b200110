// Batches of rows. A block of rows is a job, so jobs get no columns for this: `extras` of a block's job is true, and its row in blocks is
// found by the number of the job. Everything is new tables and functions, and one trigger.
//
// What rows come to is a row of batch_deltas, appended in the transaction that ends them. Nothing that runs or ends a block locks the row of
// its batch: with a counter in that row, eight sessions settled 0.44 to 0.47 times as much. Two transactions do not see each other's last row,
// so the end is looked for after the commit.
import type { Migration } from "../migrate.ts";
import { checksum, STATE } from "./frozen.ts";
import { noteEnds } from "./consequences.ts";
import { addCheckedJobs, replacing } from "./seed-views.ts";

/** In the order in which they are dropped. */
export const BATCH_TABLES = [
  "deleted_batches",
  "row_outputs",
  "row_failures",
  "batch_deltas",
  "blocks",
  "batch_state",
] as const;

/** Place in BATCH_STATES. */
const BATCH_STATES = ["open", "sealed", "aborting", "completed", "failed", "aborted"] as const;

const ADD_BLOCK_JOBS = "add_block_jobs(integer[], integer[], bigint[], bigint[], text[], text[], text[])";

export const batches: Migration = {
  name: "batches",
  locks: ["jobs"],
  drops:
    "all batches, with what failed of them, their outputs and the view batches. The jobs of their blocks are cancelled",
  up: (schema) =>
    [
      tables(schema),
      addBlockJobs(schema),
      endRows(schema),
      noteBlock(schema),
      noteEndsOfBlocks(schema),
      view(schema),
      grants(schema),
    ].join("\n"),
  down: (schema) => `
  UPDATE ${schema}.jobs j SET state = ${STATE.cancelled}, finished_at = ${schema}.now_ms() FROM ${schema}.blocks b
    WHERE j.seq = b.job AND j.state = ${STATE.queued};
  DROP VIEW ${schema}.batches;
  DROP TRIGGER note_block ON ${schema}.jobs;
  DROP FUNCTION ${schema}.note_block();
  ${replacing(noteEnds(schema))}
  DROP FUNCTION ${schema}.end_rows(json);
  DROP FUNCTION ${schema}.${ADD_BLOCK_JOBS};
  DROP TABLE ${BATCH_TABLES.map((table) => `${schema}.${table}`).join(", ")};`,
};

function tables(schema: string): string {
  return `
  -- Read through the view batches.
  CREATE TABLE ${schema}.batch_state (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rows bigint NOT NULL DEFAULT 0,          -- of this round, as all that follows
    blocks bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,     -- these four without what is in batch_deltas
    failed bigint NOT NULL DEFAULT 0,
    quarantined bigint NOT NULL DEFAULT 0,
    aborted bigint NOT NULL DEFAULT 0,
    earlier_succeeded bigint NOT NULL DEFAULT 0,
    earlier_failed bigint NOT NULL DEFAULT 0,
    earlier_quarantined bigint NOT NULL DEFAULT 0,
    earlier_aborted bigint NOT NULL DEFAULT 0,
    tended bigint NOT NULL DEFAULT -1,       -- the number of the last block of which that was done
    created_at bigint NOT NULL,
    kind integer NOT NULL,
    priority integer NOT NULL,
    block_rows integer NOT NULL,
    round integer NOT NULL DEFAULT 1,
    state smallint NOT NULL DEFAULT 0,       -- place in core's BATCH_STATES
    tending smallint NOT NULL DEFAULT 0,     -- 1: its blocks are to be released, 2: cancelled
    skipped boolean NOT NULL DEFAULT false,  -- blocks were locked, and have to be tended again
    held boolean NOT NULL,
    touched boolean NOT NULL DEFAULT false,  -- there may be something to decide; a batch that is complete stays touched until it ends
    id text COLLATE "C" NOT NULL UNIQUE,
    context text NOT NULL,                   -- JSON
    context_sum bytea NOT NULL,
    key text COLLATE "C",
    sealed_at bigint,
    ended_at bigint,
    pace_from_at bigint,
    pace_from_rows bigint,
    pace_to_at bigint,
    pace_to_rows bigint,
    tolerance text,                          -- JSON
    outputs text                             -- JSON
  ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  CREATE UNIQUE INDEX batch_state_key ON ${schema}.batch_state (kind, key) WHERE key IS NOT NULL;
  CREATE INDEX batch_state_touched ON ${schema}.batch_state (seq) WHERE touched;
  CREATE INDEX batch_state_tending ON ${schema}.batch_state (seq) WHERE tending > 0;
  CREATE INDEX batch_state_ended ON ${schema}.batch_state (ended_at) WHERE ended_at IS NOT NULL;

  -- Only a transaction that holds the row of the block's job writes its row.
  CREATE TABLE ${schema}.blocks (
    job bigint PRIMARY KEY,                  -- below 0: it has none, for none of its rows fits the schema
    batch bigint NOT NULL,
    number bigint NOT NULL,
    round integer NOT NULL,
    rows integer NOT NULL,                   -- rejected ones not included
    bad boolean NOT NULL,                    -- something of it failed
    begun integer,                           -- the row that the attempt of this fence was about to begin
    begun_fence integer,
    marks text                               -- 1 for each row that has ended, 0 for each that is left; null: none has
  ) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
  CREATE UNIQUE INDEX blocks_number ON ${schema}.blocks (batch, round, number);
  CREATE INDEX blocks_bad ON ${schema}.blocks (batch, round, number) WHERE bad;

  CREATE TABLE ${schema}.batch_deltas (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch bigint NOT NULL,
    round integer NOT NULL,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    quarantined integer NOT NULL DEFAULT 0,
    aborted integer NOT NULL DEFAULT 0
  ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0);
  CREATE INDEX batch_deltas_batch ON ${schema}.batch_deltas (batch);

  CREATE TABLE ${schema}.row_failures (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch bigint NOT NULL,
    number bigint NOT NULL,
    line bigint NOT NULL,
    round integer NOT NULL,
    quarantined boolean NOT NULL,
    input text NOT NULL,                     -- JSON
    input_sum bytea NOT NULL,
    error text NOT NULL,                     -- JSON
    row integer                              -- null: it was rejected, and is none of the block's rows
  );
  CREATE INDEX row_failures_block ON ${schema}.row_failures (batch, round, number, line);

  CREATE TABLE ${schema}.row_outputs (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch bigint NOT NULL,
    number bigint NOT NULL,
    round integer NOT NULL,
    file text COLLATE "C" NOT NULL,
    texts text NOT NULL,                     -- JSON: pairs of a line and what was written there
    texts_sum bytea NOT NULL
  );
  CREATE INDEX row_outputs_file ON ${schema}.row_outputs (batch, file, round, number, ord);

  -- Batches that were deleted, and of which blocks and their jobs are left.
  CREATE TABLE ${schema}.deleted_batches (batch bigint PRIMARY KEY);`;
}

/** A copy, so that an enqueue of plain jobs costs what it did. The caller adds the rows of blocks in the same transaction. */
export function addBlockJobs(schema: string): string {
  return addCheckedJobs(schema)
    .replace("-- As in step 1, and each input with its checksum.", "-- As add_jobs, for the jobs of blocks.")
    .replace("CREATE OR REPLACE FUNCTION", "CREATE FUNCTION")
    .replace(`${schema}.add_jobs(`, `${schema}.add_block_jobs(`)
    .replace("input, input_sum) OVERRIDING", "input, input_sum, extras) OVERRIDING")
    .replace(" FROM drafts d\n      ON CONFLICT", ", true FROM drafts d\n      ON CONFLICT");
}

/** SQL: the lines of a block's rows, out of the input of its job. Its rows may hold what PostgreSQL can't read as JSON; its head can't. */
const lines = (input: string): string =>
  `string_to_array(split_part(split_part(${input}, '"lines":[', 2), ']', 1), ',')::bigint[]`;

/**
 * The blocks' rows are read by statements of their own: what they see was committed before the lock of the job's row was taken, also if that had to
 * wait. So marks are never lost, and a row counts once.
 */
function endRows(schema: string): string {
  return `
  -- Ends rows of blocks whose jobs the caller has locked. Of each block: its job, the indexes of rows that succeeded (ok), rows that failed (bad:
  -- index, line, whether it is quarantined, input, error), parts of outputs (out: file, texts), and whether its other rows end with it, too (rest).
  -- Rows that were marked before change nothing, and leave nothing.
  CREATE FUNCTION ${schema}.end_rows(ends json) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    ended json;
    own ${schema}.blocks;
    after text;
    at integer;
    failed_row json;
    part json;
    kept text;
    ok integer;
    lost integer;
    convicted integer;
    repeated boolean;
    ended_before bigint[];
  BEGIN
    FOR ended IN SELECT e.value FROM json_array_elements(ends) e LOOP
      SELECT * INTO own FROM ${schema}.blocks b WHERE b.job = (ended ->> 'job')::bigint FOR NO KEY UPDATE;
      CONTINUE WHEN NOT FOUND;
      after := coalesce(own.marks, repeat('0', own.rows));
      ok := 0;
      lost := 0;
      convicted := 0;
      repeated := false;
      FOR at IN SELECT e.value::integer FROM json_array_elements_text(ended -> 'ok') e LOOP
        IF substr(after, at + 1, 1) = '0' THEN
          after := overlay(after PLACING '1' FROM at + 1);
          ok := ok + 1;
        ELSE
          repeated := true;
        END IF;
      END LOOP;
      FOR failed_row IN SELECT e.value FROM json_array_elements(ended -> 'bad') e LOOP
        at := (failed_row ->> 0)::integer;
        IF substr(after, at + 1, 1) = '0' THEN
          after := overlay(after PLACING '1' FROM at + 1);
          IF (failed_row ->> 2)::boolean THEN convicted := convicted + 1; ELSE lost := lost + 1; END IF;
          INSERT INTO ${schema}.row_failures (batch, round, number, row, line, quarantined, input, input_sum, error)
          VALUES (own.batch, own.round, own.number, at, (failed_row ->> 1)::bigint, (failed_row ->> 2)::boolean, failed_row ->> 3,
            ${checksum("(failed_row ->> 3)", "own.batch || chr(10) || (failed_row ->> 1)")}, failed_row ->> 4);
        ELSE
          repeated := true;
        END IF;
      END LOOP;
      IF json_array_length(ended -> 'out') > 0 AND ((ended ->> 'rest')::boolean OR ok + lost + convicted > 0) THEN
        ended_before := NULL;
        IF own.marks IS NOT NULL AND (repeated OR (ended ->> 'rest')::boolean) THEN
          SELECT coalesce(array_agg(l.line), '{}') INTO ended_before FROM ${schema}.jobs j, unnest(${lines("j.input")}) WITH ORDINALITY AS l (line, at)
          WHERE j.seq = own.job AND substr(own.marks, l.at::integer, 1) = '1';
        END IF;
        FOR part IN SELECT e.value FROM json_array_elements(ended -> 'out') e LOOP
          kept := part ->> 1;
          IF ended_before IS NOT NULL THEN
            -- Each as it was written: what is in it may be more than PostgreSQL can read.
            SELECT '[' || string_agg(p.value::text, ',' ORDER BY p.ordinality) || ']' INTO kept FROM json_array_elements(kept::json) WITH ORDINALITY p
            WHERE substring(p.value::text FROM '\\d+')::bigint <> ALL (ended_before);
          END IF;
          IF kept IS NOT NULL THEN
            INSERT INTO ${schema}.row_outputs (batch, round, number, file, texts, texts_sum)
            VALUES (own.batch, own.round, own.number, part ->> 0, kept, ${checksum("kept", partOwner("own.batch", "own.round", "own.number", "(part ->> 0)"))});
          END IF;
        END LOOP;
      END IF;
      CONTINUE WHEN ok + lost + convicted = 0;
      UPDATE ${schema}.blocks b SET marks = after, bad = b.bad OR lost + convicted > 0 WHERE b.job = own.job;
      INSERT INTO ${schema}.batch_deltas (batch, round, succeeded, failed, quarantined) VALUES (own.batch, own.round, ok, lost, convicted);
    END LOOP;
  END $$;`;
}

/** SQL: whose a part of an output is. */
function partOwner(batch: string, round: string, number: string, file: string): string {
  return `${[batch, round, number].map((of) => `${of} || chr(10)`).join(" || ")} || ${file}`;
}

/** SQL: how many rows of a block have no mark. */
const unmarked = (block: string): string =>
  `CASE WHEN ${block}.marks IS NULL THEN ${block}.rows ELSE length(replace(${block}.marks, '1', '')) END`;

/**
 * The rows that a block leaves unmarked end with its job, as `unmarkedRowsAre` says. Whatever ends a block comes through here: a recovery, an expiry, a
 * cancel, a reclaim in SQL; the successes of a worker's turn through note_ends, all at once.
 */
function noteBlock(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.note_block() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    block ${schema}.blocks;
    left_over integer;
  BEGIN
    SELECT * INTO block FROM ${schema}.blocks b WHERE b.job = NEW.seq;
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF NEW.state < ${STATE.succeeded} THEN
      RAISE EXCEPTION 'job % is a block of a batch, and its rows have been counted', NEW.id
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing was changed. Retry the failed rows of its batch instead.';
    END IF;
    left_over := ${unmarked("block")};
    IF left_over = 0 THEN RETURN NULL; END IF;
    INSERT INTO ${schema}.batch_deltas (batch, round, succeeded, failed, quarantined, aborted) VALUES (block.batch, block.round,
      CASE NEW.state WHEN ${STATE.succeeded} THEN left_over ELSE 0 END, CASE NEW.state WHEN ${STATE.dead} THEN left_over ELSE 0 END,
      CASE NEW.state WHEN ${STATE.quarantined} THEN left_over ELSE 0 END, CASE NEW.state WHEN ${STATE.cancelled} THEN left_over ELSE 0 END);
    IF NEW.state IN (${STATE.dead}, ${STATE.quarantined}) AND NOT block.bad THEN
      UPDATE ${schema}.blocks b SET bad = true WHERE b.job = NEW.seq;
    END IF;
    RETURN NULL;
  END $$;
  CREATE TRIGGER note_block AFTER UPDATE OF state ON ${schema}.jobs FOR EACH ROW
    WHEN ((NEW.state >= ${STATE.succeeded}) <> (OLD.state >= ${STATE.succeeded}) AND NEW.extras
      AND NOT (NEW.state = ${STATE.succeeded} AND OLD.state = ${STATE.running} AND current_setting('outlive_tx.notes', true) IS NOT DISTINCT FROM 'ends'))
    EXECUTE FUNCTION ${schema}.note_block();`;
}

/** As it was, and the rows of blocks that are left succeed with them: one delta for each batch. */
export function noteEndsOfBlocks(schema: string): string {
  return replacing(noteEnds(schema)).replace(
    "  BEGIN\n    WITH own AS",
    `  BEGIN
    INSERT INTO ${schema}.batch_deltas (batch, round, succeeded)
      SELECT b.batch, b.round, sum(${unmarked("b")}) FROM ${schema}.blocks b WHERE b.job = ANY (note_ends.ended) GROUP BY b.batch, b.round
      HAVING sum(${unmarked("b")}) > 0;
    WITH own AS`,
  );
}

function view(schema: string): string {
  return `
  -- Batches as they are now. Counts are of the latest round; waiting: rows that have not ended.
  CREATE VIEW ${schema}.batches AS
  SELECT b.id AS batch_id, k.name AS kind, b.key, (ARRAY[${BATCH_STATES.map((state) => `'${state}'`).join(", ")}])[b.state + 1] AS state, b.held, b.round,
    b.rows, b.rows - s.succeeded - s.failed - s.quarantined - s.aborted AS waiting, s.succeeded, s.failed, s.quarantined, s.aborted, b.blocks,
    ${schema}.instant(b.created_at) AS created_at, ${schema}.instant(b.sealed_at) AS sealed_at, ${schema}.instant(b.ended_at) AS ended_at
  FROM ${schema}.batch_state b JOIN ${schema}.kinds k ON k.id = b.kind CROSS JOIN LATERAL (
    SELECT b.succeeded + coalesce(sum(d.succeeded), 0) AS succeeded, b.failed + coalesce(sum(d.failed), 0) AS failed,
      b.quarantined + coalesce(sum(d.quarantined), 0) AS quarantined, b.aborted + coalesce(sum(d.aborted), 0) AS aborted
    FROM ${schema}.batch_deltas d WHERE d.batch = b.seq AND d.round = b.round) s;`;
}

/** A role that may use steps may use these tables; one that may enqueue may enqueue blocks; one that may see workers may see batches. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${BATCH_TABLES.map((table) => `${schema}.${table}`).join(", ")} TO %I', allowed.rights, allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.workers'::regclass AND a.privilege_type = 'SELECT'
    LOOP
      EXECUTE format('GRANT SELECT ON ${schema}.batches TO %I', allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p
      JOIN pg_class c ON c.oid = '${schema}.jobs'::regclass AND c.relnamespace = p.pronamespace
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE p.proname = 'add_jobs' AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${ADD_BLOCK_JOBS}, ${schema}.end_rows(json) TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
