// While one batch waits alone at the gate of its kind, its blocks are claimed there, as plain jobs are from the ready index: no visit, no admission,
// and no wake when one ends. A second batch, a limit or a pause of the key closes this way, and visits decide again.
import type { Migration } from "../migrate.ts";
import { noteEndsOfBlocks } from "./batches.ts";
import { LANE, STATE } from "./frozen.ts";
import { replacing } from "./seed-views.ts";

const LONE_RING = "lone_ring(integer)";

export const openGates: Migration = {
  name: "open gates",
  drops: "nothing but speed of batches that run alone",
  up: (schema) => [loneRing(schema), noteEndsWithoutWakes(schema), grants(schema)].join("\n"),
  down: (schema) => `
  ${replacing(noteEndsOfBlocks(schema))}
  DROP FUNCTION ${schema}.${LONE_RING};`,
};

/** SQL: the key of a kind that is fair by a function, and nothing else: no program declares a limit for it. */
const isFairAlone = (row: string): string =>
  `${row}.key2 IS NULL AND ${row}.key1 = ${row}.fair AND starts_with(${row}.keys, '[["fair",')`;

/** SQL: the key has something of its own that its jobs have to wait for. */
export const bounds = (key: string): string =>
  `${key}.running IS NOT NULL OR ${key}.interval_ms IS NOT NULL OR ${key}.paused_at IS NOT NULL OR ${key}.held_off_until > 0 OR ${key}.arrival_at > 0`;

/**
 * A pause takes the lock of the key alone, so the claim that asks here ends before the pause is written, or sees it: each statement in here sees what was
 * committed before it. A suspect that is first, or a job with another key, needs a visit: then the gate is not open, and none of them is passed for long.
 */
function loneRing(schema: string): string {
  return `
  -- The key whose jobs may be claimed at the gate of this kind, because no other waits there and nothing bounds it; null: none. The key stays as it is
  -- until the transaction ends.
  CREATE FUNCTION ${schema}.lone_ring(of_kind integer) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    of_gate bigint := -of_kind;
    lone bigint;
  BEGIN
    SELECT e.ring INTO lone FROM (
        SELECT w.* FROM ${schema}.extras w WHERE w.door = of_gate ORDER BY w.ring, w.rank DESC, w.job LIMIT 1) e
      WHERE ${isFairAlone("e")} AND e.ring = e.fair AND NOT EXISTS (SELECT 1 FROM ${schema}.extras o WHERE o.door = of_gate AND o.ring > e.ring)
        AND NOT EXISTS (SELECT 1 FROM ${schema}.jobs j
          WHERE j.seq = e.job AND j.state = ${STATE.queued} AND j.lane = ${LANE.held} AND j.crashes + j.losses > 0);
    -- What a visit has admitted goes first: it may be of a key that waits here no longer.
    IF lone IS NULL OR EXISTS (SELECT 1 FROM ${schema}.jobs j WHERE j.kind = of_kind AND j.state = ${STATE.queued} AND j.lane = ${LANE.open}) THEN RETURN NULL; END IF;
    IF NOT pg_try_advisory_xact_lock_shared(hashtextextended('outlive key ${schema.slice(1, -1)} ' || lone, 0)) THEN RETURN NULL; END IF;
    IF EXISTS (SELECT 1 FROM ${schema}.keys k WHERE k.id = lone AND (${bounds("k")}))
      OR EXISTS (SELECT 1 FROM ${schema}.limits l WHERE l.name = 'fair') THEN RETURN NULL; END IF;
    RETURN lone;
  END $$;`;
}

/**
 * As it was, but the end of a job that counts against nothing wakes nothing. A limit that is set on its key at this moment may have counted the job:
 * whatever it holds looks again by time (admission.ts).
 */
export function noteEndsWithoutWakes(schema: string): string {
  return replacing(noteEndsOfBlocks(schema))
    .replace(
      "RETURNING e.parent, e.watched, e.key1, e.key2, e.key3)",
      `RETURNING e.parent, e.watched, CASE WHEN ${isFairAlone("e")} THEN e.key1 END AS free, e.key1, e.key2, e.key3)`,
    )
    .replace(
      "array_agg(DISTINCT k.key) FILTER (WHERE k.key IS NOT NULL)\n",
      `array_agg(DISTINCT k.key) FILTER (WHERE k.key IS NOT NULL AND (o.free IS NULL
        OR EXISTS (SELECT 1 FROM ${schema}.keys b WHERE b.id = o.free AND (${bounds("b")})) OR EXISTS (SELECT 1 FROM ${schema}.limits l WHERE l.name = 'fair')))\n`,
    );
}

/** A role that may end jobs may ask. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.jobs'::regclass AND a.privilege_type = 'UPDATE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${LONE_RING} TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
