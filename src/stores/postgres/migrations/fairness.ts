// Two steps: kinds whose keys take turns, and keys that are paused. A job of a fair kind waits at the gate of its kind, whose number is that of the
// kind, negative; `ring` is its key in the ring of the door or gate at which it is held. The first step only changes the catalog, and the second has
// its index built before, while everything goes on.
import type { Migration } from "../migrate.ts";
import { noteMoveFunction } from "./consequences.ts";
import { addHeldJobs, enqueueWithoutKeys } from "./keys.ts";

const ADD_FAIR =
  "add_held_jobs(integer[], integer[], bigint[], bigint[], text[], text[], text[], bigint, bigint[], bigint[], bigint[], text[], bigint[], bigint[])";

export const fairness: Migration = {
  name: "fairness",
  drops: "that keys take turns, weights, and pauses of keys. Jobs that wait for their key's turn become ready",
  locks: ["jobs", "kinds"],
  up: (schema) =>
    [columns(schema), addFairJobs(schema), noteFairMove(schema), enqueueWithoutTurns(schema), grants(schema)].join(
      "\n",
    ),
  down: (schema) => `
  ${noteMoveFunction(schema)}
  ${enqueueWithoutKeys(schema)}
  DROP FUNCTION ${schema}.${ADD_FAIR};
  UPDATE ${schema}.extras e SET place = 2, door = NULL WHERE e.door < 0;
  UPDATE ${schema}.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN 2 ELSE 1 END
    FROM ${schema}.extras e WHERE e.gate IS NOT NULL AND e.place = 2 AND j.seq = e.job AND j.state = 0 AND j.lane = 3;
  DELETE FROM ${schema}.keys WHERE id < 0;
  ALTER TABLE ${schema}.keys DROP COLUMN weight, DROP COLUMN paused_at, DROP COLUMN paused_until, DROP COLUMN ring_at, DROP COLUMN ring_served;
  ALTER TABLE ${schema}.extras DROP COLUMN fair, DROP COLUMN gate, DROP COLUMN ring;
  ALTER TABLE ${schema}.kinds DROP COLUMN fair;`,
};

function columns(schema: string): string {
  return `
  ALTER TABLE ${schema}.kinds ADD COLUMN fair boolean NOT NULL DEFAULT false; -- a program has declared it fair: jobs may wait at its gate
  ALTER TABLE ${schema}.extras
    ADD COLUMN fair bigint,                    -- the one of its keys by which it takes turns
    ADD COLUMN gate bigint,                    -- where it does; null: nowhere
    ADD COLUMN ring bigint NOT NULL DEFAULT 0; -- its key in the ring of the door at which it is held; 0: by rank alone
  ALTER TABLE ${schema}.keys
    ADD COLUMN weight integer,
    ADD COLUMN paused_at bigint,               -- the column reason says why
    ADD COLUMN paused_until bigint,            -- null: until it is resumed
    ADD COLUMN ring_at bigint NOT NULL DEFAULT 0, -- the key of its ring that was served last, and how often in its visit
    ADD COLUMN ring_served integer NOT NULL DEFAULT 0;`;
}

/** With the keys by which jobs take turns. A program without fair kinds calls the former one. */
export function addFairJobs(schema: string): string {
  const gate = "CASE WHEN d.fair IS NOT NULL THEN -d.kind::bigint END";
  return addHeldJobs(schema)
    .replace("-- As add_jobs, for jobs with keys,", "-- As the former one, for jobs of fair kinds,")
    .replace("latest_ms bigint[]\n", "latest_ms bigint[], fairs bigint[]\n")
    .replace("names, latest_ms)\n", "names, latest_ms, fairs)\n")
    .replace("keys, latest_ms)\n", "keys, latest_ms, fair)\n")
    .replace("door, rank, latest_at)", "door, rank, latest_at, fair, gate, ring)")
    .replace("coalesce(s.strict_key, d.key1) END, CASE", `coalesce(s.strict_key, ${gate}, d.key1) END, CASE`)
    .replace(
      "now_ms + d.latest_ms\n",
      `now_ms + d.latest_ms,
        d.fair, ${gate}, CASE WHEN s.strict_key IS NOT NULL THEN 0 ELSE coalesce(d.fair, 0) END\n`,
    )
    .replace(
      /SELECT DISTINCT (coalesce\(.*), d\.key1\), now_ms FROM (.*) WHERE j\.lane = (\d)\)/s,
      (_, strict: string, from: string, lane: string) =>
        // A gate needs no wake: every turn with room for the kind looks at it.
        `SELECT DISTINCT w.key, now_ms FROM (SELECT coalesce(${strict.slice("coalesce(".length)}, ${gate}, d.key1) AS key FROM ${from} WHERE j.lane = ${lane}) w WHERE w.key > 0)`,
    );
}

/** A job that is ready goes to the gate of its kind, unless the order of one of its limits is strict. */
export function noteFairMove(schema: string): string {
  return noteMoveFunction(schema)
    .replace("first_door := own.key1;", "first_door := coalesce(own.gate, own.key1);")
    .replace(
      /(IF own\."strict" THEN first_door := coalesce\(.*), own\.key1\); END IF;/s,
      "$1, own.gate, own.key1); END IF;",
    )
    .replace(
      "ELSE NEW.priority END\n",
      `ELSE NEW.priority END, ring = CASE WHEN own."strict" THEN 0 ELSE coalesce(own.fair, 0) END\n`,
    )
    .replace("ELSIF is_ready THEN", "ELSIF is_ready AND first_door > 0 THEN");
}

/** The former function, and it also refuses kinds whose jobs take turns: without a key one would pass all others. */
function enqueueWithoutTurns(schema: string): string {
  return enqueueWithoutKeys(schema)
    .replace("(SELECT k.keyed FROM", "(SELECT k.keyed OR k.fair FROM")
    .replace("count against limits, and", "count against limits or take turns, and");
}

/** A role that may enqueue may enqueue jobs of fair kinds. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p
      JOIN pg_class c ON c.oid = '${schema}.jobs'::regclass AND c.relnamespace = p.pronamespace
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE p.proname = 'add_jobs' AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${ADD_FAIR} TO %I', allowed.role);
    END LOOP;
  END $$;`;
}

const INDEX = "extras_held";
const create = (schema: string, how: string): string =>
  `${how} IF NOT EXISTS ${INDEX} ON ${schema}.extras (door, ring, rank DESC, job) WHERE door IS NOT NULL;`;

export const rings: Migration = {
  name: "index of rings",
  drops: "the index by which keys take turns",
  ahead: (schema) => ({ indexes: [INDEX], texts: [create(schema, "CREATE INDEX CONCURRENTLY")] }),
  up: (schema) => `
  DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_index WHERE NOT indisvalid AND indexrelid = to_regclass('${schema}.${INDEX}')) THEN
      RAISE EXCEPTION 'an index of extras was left half-built' USING HINT = 'Nothing was changed. Run: outlive migrate up';
    END IF;
  END $$;
  ${create(schema, "CREATE INDEX")}
  DROP INDEX ${schema}.extras_door;`,
  down: (schema) => `
  CREATE INDEX extras_door ON ${schema}.extras (door, rank DESC, job) WHERE door IS NOT NULL;
  DROP INDEX ${schema}.${INDEX};`,
};
