// While a batch is the only one of its kind, its blocks wait among the ready jobs, as those of a plain kind do, and have no row in extras: a claim takes
// them without a look at the gate, and neither their claim nor their end writes anything for their key. When another batch comes, or the key gets a
// limit or a pause, they go to the gate (to_gate), and turns decide. At the gate a block of a lone batch cost the server twice what a plain job does.
//
// Who is alone is a row of lone_batches. Whatever makes blocks ready (an append, the return of a block) holds it shared until that is committed, so that a
// transaction that moves the blocks, and holds it alone, misses none. What does not find its batch there, or can't have the row at once, brings its blocks to
// the gate, where a block is always right. So only a limit or a pause waits, and nothing that it waits for waits for it.
import type { Migration } from "../migrate.ts";
import { noteFairMove } from "./fairness.ts";
import { LANE, STATE } from "./frozen.ts";
import { PLACE } from "./keys.ts";
import { addBlockJobs } from "./batches.ts";
import { bounds, noteEndsWithoutWakes } from "./open-gates.ts";
import { replacing } from "./seed-views.ts";
import { submitFunction } from "./submit.ts";

export const LONE_TABLES = ["lone_batches"] as const;

const COMPLETED = 3;
const FUNCTIONS = [
  "keyed_blocks(bigint, bigint[], smallint)",
  "to_gate(integer, integer)",
  "bound_batch(bigint)",
  "is_alone(bigint, integer, bigint)",
  "ring_of(text)",
] as const;

export const loneBatches: Migration = {
  name: "lone batches",
  drops: "nothing but speed of batches that run alone. Their blocks go to the gate",
  locks: ["batch_state"],
  up: (schema) =>
    [
      tables(schema),
      keyedBlocks(schema),
      toGate(schema),
      boundBatch(schema),
      isAlone(schema),
      addUnratedBlocks(schema),
      noteMoveOfBlocks(schema),
      noteEndsWithoutExtras(schema),
      ringOf(schema),
      submitAtGate(schema),
      grants(schema),
    ].join("\n"),
  down: (schema) => `
  SELECT ${schema}.bound_batch(l.ring) FROM ${schema}.lone_batches l;
  ${noteFairMove(schema)}
  ${noteEndsWithoutWakes(schema)}
  ${replacing(addBlockJobs(schema))}
  ${replacing(submitFunction(schema))}
  ${FUNCTIONS.map((name) => `DROP FUNCTION ${schema}.${name};`).join("\n  ")}
  DROP TABLE ${schema}.lone_batches;
  ALTER TABLE ${schema}.batch_state DROP COLUMN ring;`,
};

function tables(schema: string): string {
  return `
  ALTER TABLE ${schema}.batch_state ADD COLUMN ring bigint; -- the key by which its blocks take turns, if some of them have no row in extras
  CREATE TABLE ${schema}.lone_batches (kind integer PRIMARY KEY, batch bigint NOT NULL, ring bigint NOT NULL);`;
}

/** The rows that these blocks would have had if they had come to the gate at once. The caller holds their jobs. */
function keyedBlocks(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.keyed_blocks(of_batch bigint, jobs bigint[], of_place smallint) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO ${schema}.extras AS e (job, key1, keys, place, door, rank, fair, gate, ring)
    SELECT j.seq, b.ring, '[["fair",' || to_json(b.id)::text || ']]', of_place, CASE of_place WHEN ${PLACE.held} THEN -j.kind::bigint END, j.priority, b.ring, -j.kind::bigint, b.ring
    FROM ${schema}.jobs j, ${schema}.batch_state b WHERE j.seq = ANY (jobs) AND b.seq = of_batch
    ON CONFLICT (job) DO UPDATE SET (key1, keys, place, door, rank, fair, gate, ring)
      = (excluded.key1, excluded.keys, excluded.place, excluded.door, excluded.rank, excluded.fair, excluded.gate, excluded.ring);
  $$;`;
}

/** SQL: jobs of blocks of a batch that have no key. */
const unkeyed = (schema: string, batch: string, jobs: string): string =>
  `${schema}.jobs j JOIN ${schema}.blocks b ON b.job = j.seq AND b.batch = ${batch}
      WHERE ${jobs} AND NOT EXISTS (SELECT 1 FROM ${schema}.extras e WHERE e.job = j.seq AND e.key1 IS NOT NULL)`;

/** SQL: those that wait among the ready jobs. Suspects are not: they wait in another lane, for a worker that may take them. */
const unkeyedReady = (schema: string, batch: string, kind: string): string =>
  unkeyed(schema, batch, `j.kind = ${kind} AND j.state = ${STATE.queued} AND j.lane = ${LANE.open}`);

/** SQL: whether another key waits at the gate of the kind than this one. */
const isCrowded = (schema: string, kind: string, ring: string): string =>
  [">", "<"]
    .map((is) => `EXISTS (SELECT 1 FROM ${schema}.extras e WHERE e.door = -${kind}::bigint AND e.ring ${is} ${ring})`)
    .join(" OR ");

function toGate(schema: string): string {
  return `
  -- Moves blocks of the batch that is alone to the gate of its kind, and returns how many. When none is left, no batch is alone. It waits for nothing: while
  --- blocks are added nothing is moved, and blocks that a worker is claiming are left to the next call.
  CREATE FUNCTION ${schema}.to_gate(of_kind integer, most integer) RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    lone bigint;
    moved bigint[];
  BEGIN
    SELECT l.batch INTO lone FROM ${schema}.lone_batches l WHERE l.kind = of_kind FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 0; END IF;
    moved := ARRAY(SELECT j.seq FROM ${unkeyedReady(schema, "lone", "of_kind")} ORDER BY j.priority DESC, j.seq LIMIT most FOR NO KEY UPDATE OF j SKIP LOCKED);
    UPDATE ${schema}.jobs j SET lane = ${LANE.held} WHERE j.seq = ANY (moved);
    PERFORM ${schema}.keyed_blocks(lone, moved, ${PLACE.held}::smallint);
    IF cardinality(moved) < most AND NOT EXISTS (SELECT 1 FROM ${unkeyedReady(schema, "lone", "of_kind")}) THEN
      DELETE FROM ${schema}.lone_batches l WHERE l.kind = of_kind;
    END IF;
    RETURN cardinality(moved);
  END $$;`;
}

/**
 * Waits for claims, ends and returns that are under way, as a pause does for those of admitted jobs, and sees what they came to. Suspects and blocks that run
 * have no key also when the batch is not alone any more.
 */
function boundBatch(schema: string): string {
  return `
  -- The key of a batch has a limit or a pause now: blocks that wait go to the gate, and those that run count. In the transaction that bounds the key.
  CREATE FUNCTION ${schema}.bound_batch(of_ring bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    lone ${schema}.lone_batches;
    own bigint;
    found bigint[];
  BEGIN
    SELECT * INTO lone FROM ${schema}.lone_batches l WHERE l.ring = of_ring FOR UPDATE;
    IF lone.kind IS NOT NULL THEN
      found := ARRAY(SELECT j.seq FROM ${unkeyedReady(schema, "lone.batch", "lone.kind")} ORDER BY j.seq FOR NO KEY UPDATE OF j);
      UPDATE ${schema}.jobs j SET lane = ${LANE.held} WHERE j.seq = ANY (found);
      PERFORM ${schema}.keyed_blocks(lone.batch, found, ${PLACE.held}::smallint);
      DELETE FROM ${schema}.lone_batches l WHERE l.kind = lone.kind;
    END IF;
    SELECT b.seq INTO own FROM ${schema}.batch_state b WHERE b.ring = of_ring AND b.state < ${COMPLETED};
    IF own IS NULL THEN RETURN; END IF;
    found := ARRAY(SELECT j.seq FROM ${unkeyed(schema, "own", `j.state = ${STATE.queued} AND j.lane = ${LANE.alone}`)} ORDER BY j.seq FOR NO KEY UPDATE OF j);
    UPDATE ${schema}.jobs j SET lane = ${LANE.held} WHERE j.seq = ANY (found);
    PERFORM ${schema}.keyed_blocks(own, found, ${PLACE.held}::smallint);
    found := ARRAY(SELECT j.seq FROM ${unkeyed(schema, "own", `j.state = ${STATE.running}`)} ORDER BY j.seq FOR NO KEY UPDATE OF j);
    PERFORM ${schema}.keyed_blocks(own, found, ${PLACE.taken}::smallint);
  END $$;`;
}

function isAlone(schema: string): string {
  const hasRows = `EXISTS (SELECT 1 FROM ${schema}.batch_state b WHERE b.seq = lone AND b.state < ${COMPLETED})`;
  return `
  -- Whether blocks of this batch may wait among the ready jobs. Until the transaction ends nothing bounds its key, and no block of it is moved.
  CREATE FUNCTION ${schema}.is_alone(of_batch bigint, of_kind integer, of_ring bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    lone bigint;
  BEGIN
    SELECT l.batch INTO lone FROM ${schema}.lone_batches l WHERE l.kind = of_kind;
    IF lone = of_batch THEN
      -- While another batch waits at the gate nothing is added here: a submitter without a pause would keep the blocks from being moved.
      IF ${isCrowded(schema, "of_kind", "of_ring")} THEN RETURN false; END IF;
      -- Blocks are being moved at this moment, or it is not alone any more.
      PERFORM 1 FROM ${schema}.lone_batches l WHERE l.kind = of_kind AND l.batch = of_batch FOR SHARE SKIP LOCKED;
      RETURN FOUND;
    END IF;
    IF ${hasRows} THEN RETURN false; END IF;
    IF lone IS NOT NULL THEN
      -- It has ended. Whether it has begun a new round at this moment is asked again while nothing of it can be added.
      PERFORM 1 FROM ${schema}.lone_batches l WHERE l.kind = of_kind AND l.batch = lone FOR UPDATE SKIP LOCKED;
      IF NOT FOUND OR ${hasRows} THEN RETURN false; END IF;
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(hashtextextended('outlive key ${schema.slice(1, -1)} ' || of_ring, 0)) THEN RETURN false; END IF;
    IF EXISTS (SELECT 1 FROM ${schema}.extras e WHERE e.door = -of_kind::bigint)
      OR EXISTS (SELECT 1 FROM ${schema}.jobs j WHERE j.kind = of_kind AND j.state = ${STATE.queued} AND j.lane = ${LANE.open})
      OR EXISTS (SELECT 1 FROM ${schema}.keys k WHERE k.id = of_ring AND (${bounds("k")}))
      OR EXISTS (SELECT 1 FROM ${schema}.limits l WHERE l.name = 'fair') THEN RETURN false; END IF;
    UPDATE ${schema}.batch_state b SET ring = of_ring WHERE b.seq = of_batch;
    INSERT INTO ${schema}.lone_batches AS l (kind, batch, ring) VALUES (of_kind, of_batch, of_ring)
      ON CONFLICT (kind) DO UPDATE SET batch = of_batch, ring = of_ring WHERE l.batch = lone;
    RETURN FOUND;
  END $$;`;
}

/** Without a key a claim does not count as a start. */
function addUnratedBlocks(schema: string): string {
  return replacing(addBlockJobs(schema))
    .replace("input, input_sum, extras) OVERRIDING", "input, input_sum, extras, rated) OVERRIDING")
    .replace(", true FROM drafts d", ", true, false FROM drafts d");
}

/** A block that is ready again and has no key stays where it is as long as its batch is alone, and goes to the gate if it is not. */
export function noteMoveOfBlocks(schema: string): string {
  return noteFairMove(schema)
    .replace(
      "    IF own.key1 IS NULL THEN RETURN NULL; END IF;\n",
      `    IF own.key1 IS NULL THEN
      IF NEW.state = ${STATE.queued} AND NEW.lane <> ${LANE.delayed} THEN
        SELECT b.seq INTO of_batch FROM ${schema}.blocks k JOIN ${schema}.batch_state b ON b.seq = k.batch WHERE k.job = NEW.seq AND b.ring IS NOT NULL;
        IF FOUND THEN
          PERFORM 1 FROM ${schema}.lone_batches l WHERE l.kind = NEW.kind AND l.batch = of_batch FOR KEY SHARE SKIP LOCKED;
          IF NOT FOUND THEN
            UPDATE ${schema}.jobs j SET lane = ${LANE.held} WHERE j.seq = NEW.seq;
            PERFORM ${schema}.keyed_blocks(of_batch, ARRAY[NEW.seq], ${PLACE.held}::smallint);
          END IF;
        END IF;
      END IF;
      RETURN NULL;
    END IF;\n`,
    )
    .replace("    noted text;\n", "    noted text;\n    of_batch bigint;\n");
}

/** As it was; jobs that have no row in extras cost a look for it. */
export function noteEndsWithoutExtras(schema: string): string {
  return noteEndsWithoutWakes(schema)
    .replace(
      "    WITH own AS (UPDATE",
      `    IF EXISTS (SELECT 1 FROM ${schema}.extras e WHERE e.job = ANY (note_ends.ended)) THEN
    WITH own AS (UPDATE`,
    )
    .replace("    UPDATE " + schema + ".reruns r SET due", `    END IF;\n    UPDATE ${schema}.reruns r SET due`);
}

/** As `jobKey` of core makes the number of the key by which the blocks of a batch take turns. */
function ringOf(schema: string): string {
  const times = (factor: string, by: string): string => `(${factor} * ${by}) & 4294967295`;
  // Both are larger than a bigint has room for.
  const timesLarge = (factor: string, by: string): string => `((${factor})::numeric * ${by} % 4294967296)::bigint`;
  return `
  CREATE FUNCTION ${schema}.ring_of(batch text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    a bigint := 2654435769;
    b bigint := 2246822507;
    code integer;
  BEGIN
    -- "fair", a zero, and the id, which is ASCII.
    FOREACH code IN ARRAY ARRAY[102, 97, 105, 114, 0] || ARRAY(SELECT ascii(c) FROM regexp_split_to_table(ring_of.batch, '') c) LOOP
      a := ${times("(a # code)", "668265261")};
      b := ${times("(b # code)", "374761393")};
      a := a # (b >> 15);
      b := b # (a >> 13);
    END LOOP;
    a := ${timesLarge("a # (a >> 16)", "2146121005")};
    b := ${timesLarge("b # (b >> 15)", "2221713035")};
    RETURN (a # (b >> 16)) * 1048576 + ((b # (a >> 16)) >> 12);
  END $$;`;
}

/**
 * The blocks of a batch that SQL submits take turns like those of any other. They had no key, and passed all that wait at the gate. They never count as alone:
 * the caller's transaction may last, and nothing may wait for it.
 */
function submitAtGate(schema: string): string {
  return replacing(submitFunction(schema)).replace(
    "      UPDATE " + schema + ".batch_state b SET rows = total,",
    `      IF own_kind.fair THEN
        UPDATE ${schema}.jobs j SET lane = ${LANE.held} FROM ${schema}.job_ids i WHERE i.id = ANY (ids) AND j.seq = i.seq;
        UPDATE ${schema}.batch_state b SET ring = ${schema}.ring_of(new_batch) WHERE b.seq = batch_seq;
        PERFORM ${schema}.keyed_blocks(batch_seq, ARRAY(SELECT i.seq FROM ${schema}.job_ids i WHERE i.id = ANY (ids)), ${PLACE.held}::smallint);
      END IF;
      UPDATE ${schema}.batch_state b SET rows = total,`,
  );
}

/** A role that may use steps may use the table, and one that may end jobs the functions. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${schema}.lone_batches TO %I', allowed.rights, allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.jobs'::regclass AND a.privilege_type = 'UPDATE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${FUNCTIONS.map((name) => `${schema}.${name}`).join(", ")} TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
