// The end of a job hands its slot over to the next job at the door, in the transaction that ends it: the number of jobs that count against the key stays the same in
// every snapshot, so it needs no wake, no lock of the key and no admission. Only slots of keys with nothing but a running limit are handed over, and only by a
// worker's turn. Whatever else there is (a second key, a rate, a strict order, turns, anything of the key's own) is left to a wake and an admission.
//
// Why no limit is exceeded: an admission counts under the lock of its key and adds to that; what is handed over adds nothing. Why no key is stuck: a transaction
// that lowers the count of a key writes a wake, and one that hands over all of its slots has not lowered it. Why nothing starts after a pause: the pause waits
// for transactions that hand over slots, and those that come after it see it.
import type { Migration } from "../migrate.ts";
import { LANE, STATE } from "./frozen.ts";
import { PLACE } from "./keys.ts";
import { noteEndsWithoutExtras } from "./lone-batches.ts";

const HAND_OVER_SLOTS = "hand_over_slots(bigint[], integer[], text[])";
const NOTE_ENDS = "note_ends(bigint[], boolean)";

export const handedSlots: Migration = {
  name: "handed slots",
  drops: "nothing but speed of jobs with a running limit",
  locks: ["keys"],
  up: (schema) =>
    [handOverSlots(schema), noteEndsAndHandOver(schema), waitForHandOver(schema), grants(schema)].join("\n"),
  down: (schema) => `
  DROP TRIGGER wait_for_hand_over ON ${schema}.keys;
  DROP FUNCTION ${schema}.wait_for_hand_over();
  DROP FUNCTION ${schema}.${NOTE_ENDS};
  DROP FUNCTION ${schema}.${HAND_OVER_SLOTS};`,
};

/** Shared by all transactions that hand over slots. A pause has it alone. */
const lock = (schema: string): string => `hashtextextended('outlive hand-over ${schema.slice(1, -1)}', 0)`;

const counted = (schema: string, key: string): string =>
  `(SELECT count(*) FROM ${schema}.extras c WHERE c.${key} = k.key AND c.place = ${PLACE.taken} AND c.place > 1)`;

/**
 * Each statement in here sees what was committed before it, and what its caller has written: the ended jobs count no more. So many of the first jobs at a door
 * are read as there is room, and one of them that is not for here, or that another transaction has locked, leaves its room to the wake.
 */
function handOverSlots(schema: string): string {
  // Without bitmap scans: the count of a key would read the page of each dead entry of its index again and again, and not mark it.
  return `
  -- Of each of these keys so many jobs have ended in this transaction, and \`names\` are their limits. Returns the keys of which fewer were handed over, and how many jobs became ready.
  CREATE FUNCTION ${schema}.hand_over_slots(INOUT keys bigint[], ended integer[], names text[], OUT handed_over integer)
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_bitmapscan = off AS $$
  DECLARE
    held tid[];
    doors bigint[];
    -- Most programs have neither, and then no key is asked for them.
    any_fair boolean;
    any_second boolean;
    noted text;
  BEGIN
    handed_over := 0;
    -- A key is being paused.
    IF NOT pg_try_advisory_xact_lock_shared(${lock(schema)}) THEN RETURN; END IF;
    any_fair := EXISTS (SELECT 1 FROM ${schema}.kinds f WHERE f.fair);
    -- In the order of its index: an EXISTS read the whole table if its statistics were not made yet.
    any_second := (SELECT e.key2 FROM ${schema}.extras e WHERE e.key2 IS NOT NULL AND e.place > 1 ORDER BY e.key2 LIMIT 1) IS NOT NULL;
    held := ARRAY(
      SELECT n.held FROM (
        SELECT k.key, least(k.n, l.running - ${counted(schema, "key1")} - CASE WHEN any_second THEN ${counted(schema, "key2")} + ${counted(schema, "key3")} ELSE 0 END) AS room
        FROM unnest(hand_over_slots.keys, hand_over_slots.ended, hand_over_slots.names) AS k (key, n, name)
          JOIN ${schema}.limits l ON l.name = k.name AND l.running IS NOT NULL AND l.interval_ms IS NULL AND NOT l.strict
        WHERE NOT EXISTS (SELECT 1 FROM ${schema}.keys o WHERE o.id = k.key)
          AND NOT (any_fair AND EXISTS (SELECT 1 FROM ${schema}.extras w WHERE w.door = k.key AND w.ring > 0)) OFFSET 0) r
      CROSS JOIN LATERAL (
        SELECT w.held FROM (
          SELECT e.job, e.ctid AS held, e.key2, e.strict, e.ring FROM ${schema}.extras e WHERE e.door = r.key ORDER BY e.ring, e.rank DESC, e.job LIMIT r.room) w
        JOIN ${schema}.jobs j ON j.seq = w.job WHERE w.key2 IS NULL AND NOT w.strict AND w.ring = 0 AND j.state + 0 = ${STATE.queued} AND j.lane = ${LANE.held}
        FOR NO KEY UPDATE OF j SKIP LOCKED) n
      WHERE r.room > 0);
    IF cardinality(held) = 0 THEN RETURN; END IF;
    noted := set_config('outlive_tx.notes', 'admits', true);
    -- A row that was changed before its job was locked, by an event for instance, is not there any more: its job gets another place. No row is changed after that.
    WITH moved AS (UPDATE ${schema}.extras e SET place = ${PLACE.taken}, door = NULL WHERE e.ctid = ANY (held) RETURNING e.job, e.key1),
    ready AS (UPDATE ${schema}.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN ${LANE.alone} ELSE ${LANE.open} END, rated = false
      WHERE j.seq = ANY (ARRAY(SELECT m.job FROM moved m)))
    SELECT array_agg(m.key1) INTO doors FROM moved m;
    handed_over := coalesce(cardinality(doors), 0);
    hand_over_slots.keys := ARRAY(SELECT k.key FROM (SELECT * FROM unnest(hand_over_slots.keys, hand_over_slots.ended) AS o (key, n) UNION ALL SELECT d.key, -1 FROM unnest(doors) AS d (key)) k
      GROUP BY k.key HAVING sum(k.n) > 0);
  END $$;`;
}

/** More than a turn settles. What is returned goes through an integer with other bits of the turn (claim.ts). */
const MAX_HANDED_OVER = 30_000;

/** As the one without `hand_over`, which workers of earlier versions call. Keys of jobs with one key, no turns and no strict order are counted apart. */
export function noteEndsAndHandOver(schema: string): string {
  return noteEndsWithoutExtras(schema)
    .replace("added up.", "added up. From 256 on: how many jobs became ready.")
    .replace("CREATE OR REPLACE FUNCTION", "CREATE FUNCTION")
    .replace("note_ends(ended bigint[])", "note_ends(ended bigint[], hand_over boolean)")
    .replace(
      "    noted text;\n",
      "    noted text;\n    ones bigint[];\n    counts integer[];\n    names text[];\n    handed_over integer := 0;\n",
    )
    .replace(
      "e.key1, e.key2, e.key3)\n",
      `e.key1, e.key2, e.key3,
      CASE WHEN e.key2 IS NULL AND e.fair IS NULL AND NOT e.strict THEN e.keys END AS lone),
    one AS (SELECT o.key1 AS key, count(*)::integer AS n, (min(o.lone COLLATE "C")::json -> 0) ->> 0 AS name FROM own o WHERE o.lone IS NOT NULL GROUP BY o.key1)\n`,
    )
    .replace("WHERE k.key IS NOT NULL AND (o.free", "WHERE k.key IS NOT NULL AND o.lone IS NULL AND (o.free")
    .replace(
      "INTO parents, is_watched, keys FROM own o",
      `, (SELECT array_agg(key) FROM one), (SELECT array_agg(n) FROM one), (SELECT array_agg(name) FROM one)
    INTO parents, is_watched, keys, ones, counts, names FROM own o`,
    )
    .replace(
      "    IF keys IS NOT NULL THEN\n",
      `    IF hand_over AND ones IS NOT NULL THEN SELECT h.keys, h.handed_over INTO ones, handed_over FROM ${schema}.hand_over_slots(ones, counts, names) h; END IF;
    keys := keys || ones;
    IF cardinality(keys) > 0 THEN\n`,
    )
    .replace("RETURN written;", `RETURN written + 256 * least(handed_over, ${MAX_HANDED_OVER});`);
}

function waitForHandOver(schema: string): string {
  return `
  CREATE FUNCTION ${schema}.wait_for_hand_over() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  BEGIN
    PERFORM pg_advisory_xact_lock(${lock(schema)});
    RETURN NULL;
  END $$;
  CREATE TRIGGER wait_for_hand_over AFTER INSERT OR UPDATE OF paused_at ON ${schema}.keys FOR EACH ROW WHEN (NEW.paused_at IS NOT NULL) EXECUTE FUNCTION ${schema}.wait_for_hand_over();`;
}

/** A role that may end jobs may note that. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.jobs'::regclass AND a.privilege_type = 'UPDATE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${NOTE_ENDS} TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
