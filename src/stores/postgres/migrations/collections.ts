// Collections of numbered messages. A part is found by (collection, series, ordinal) and by nothing else. Parts that came are also a row of
// collection_deltas, appended in the transaction that keeps them: no putter locks the row of a collection, except the first of one that is
// requested. Two transactions do not see each other's last part, so the end is looked for after the commit.
import type { Migration } from "../migrate.ts";

/** In the order in which they are dropped. */
export const COLLECTION_TABLES = ["parked", "parts", "collection_deltas", "series_state", "collection_state"] as const;

export const collections: Migration = {
  name: "collections",
  drops: "all collections with their parts and parked messages. Their blobs stay",
  up: (schema) => `${tables(schema)}${grants(schema)}`,
  down: (schema) => `DROP TABLE ${COLLECTION_TABLES.map((table) => `${schema}.${table}`).join(", ")};`,
};

function tables(schema: string): string {
  return `
  CREATE TABLE ${schema}.collection_state (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at bigint NOT NULL,
    active_at bigint NOT NULL,               -- without what is in collection_deltas
    due_at bigint,                           -- when it is abandoned if nothing comes; null: it has ended
    idle_ms bigint NOT NULL,
    total_ms bigint NOT NULL,
    keep_ms bigint NOT NULL,
    kind integer NOT NULL,
    state smallint NOT NULL,                 -- place in core's COLLECTION_STATES
    touched boolean NOT NULL,                -- it may be complete
    id text COLLATE "C" NOT NULL UNIQUE,
    input text NOT NULL,                     -- JSON
    input_sum bytea NOT NULL,
    transitions text NOT NULL,               -- STATE AT,STATE AT
    why text
  ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  CREATE INDEX collection_state_due ON ${schema}.collection_state (due_at) WHERE due_at IS NOT NULL;
  CREATE INDEX collection_state_touched ON ${schema}.collection_state (seq) WHERE touched;
  CREATE INDEX collection_state_state ON ${schema}.collection_state (state, kind, seq);

  CREATE TABLE ${schema}.series_state (
    collection bigint NOT NULL,
    expected bigint,                         -- null: not announced
    have bigint NOT NULL DEFAULT 0,          -- these two without what is in collection_deltas
    bytes bigint NOT NULL DEFAULT 0,
    place smallint NOT NULL,                 -- among the series of its kind
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (collection, place)
  ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

  CREATE TABLE ${schema}.parts (
    collection bigint NOT NULL,
    ordinal bigint NOT NULL,
    bytes bigint NOT NULL,
    series smallint NOT NULL,                -- its place
    sha256 text COLLATE "C" NOT NULL,
    blob text COLLATE "C" NOT NULL,
    PRIMARY KEY (collection, series, ordinal)
  );

  CREATE TABLE ${schema}.collection_deltas (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collection bigint NOT NULL,
    bytes bigint NOT NULL,
    at bigint NOT NULL,
    parts integer NOT NULL,
    series smallint NOT NULL
  ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0);
  CREATE INDEX collection_deltas_collection ON ${schema}.collection_deltas (collection);

  CREATE TABLE ${schema}.parked (
    at bigint NOT NULL,
    ordinal bigint,
    bytes bigint NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    collection text COLLATE "C",
    series text,
    reason text NOT NULL,
    blob text
  );
  CREATE INDEX parked_collection ON ${schema}.parked (collection) WHERE collection IS NOT NULL;`;
}

/** Roles that may write steps may write these. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${COLLECTION_TABLES.map((table) => `${schema}.${table}`).join(", ")} TO %I', allowed.rights, allowed.role);
    END LOOP;
  END $$;`;
}
