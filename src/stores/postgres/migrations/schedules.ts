// Schedules. What is due is one index; the rest of a row is one JSON text, which the domain writes whole (job/schedules.ts). What a job was planned for is
// kept outside of the jobs, so that others have no column for it.
import type { Migration } from "../migrate.ts";

export const SCHEDULE_TABLES = ["schedule_rows", "occurrences", "declarations"] as const;

export const schedules: Migration = {
  name: "schedules",
  drops: "all schedules, what jobs were planned for, and the view schedules",
  up: (schema) => [tables(schema), view(schema), grants(schema)].join("\n"),
  down: (schema) => `
  DROP VIEW ${schema}.schedules;
  DROP TABLE ${SCHEDULE_TABLES.map((table) => `${schema}.${table}`).join(", ")};`,
};

function tables(schema: string): string {
  return `
  CREATE TABLE ${schema}.schedule_rows (
    name text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    due_at bigint,
    body text NOT NULL,
    body_sum bytea NOT NULL
  ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
  CREATE INDEX schedule_rows_due ON ${schema}.schedule_rows (due_at) WHERE due_at IS NOT NULL;
  CREATE TABLE ${schema}.occurrences (
    job text COLLATE "C" PRIMARY KEY,
    schedule text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    caught_up boolean NOT NULL
  );
  CREATE INDEX occurrences_schedule ON ${schema}.occurrences (schedule, at);
  CREATE TABLE ${schema}.declarations (
    worker text COLLATE "C" NOT NULL,
    schedule text COLLATE "C" NOT NULL,
    digest text NOT NULL,
    zone_data text NOT NULL,
    PRIMARY KEY (worker, schedule)
  );`;
}

function view(schema: string): string {
  return `
  CREATE VIEW ${schema}.schedules AS
  SELECT s.name, s.kind, s.body::jsonb -> 'timing' AS timing, to_timestamp((s.body::jsonb ->> 'nextAt')::bigint / 1000.0) AS next_at,
    to_timestamp((s.body::jsonb ->> 'lastAt')::bigint / 1000.0) AS last_at, s.body::jsonb ->> 'lastJob' AS last_job,
    (s.body::jsonb ->> 'fired')::bigint AS fired, s.body::jsonb -> 'skipped' AS skipped, s.body::jsonb -> 'pause' AS pause
  FROM ${schema}.schedule_rows s;`;
}

/** A role that may use steps may use these tables; one that may see workers may see schedules. */
function grants(schema: string): string {
  return `
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${SCHEDULE_TABLES.map((table) => `${schema}.${table}`).join(", ")} TO %I', allowed.rights, allowed.role);
    END LOOP;
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.workers'::regclass AND a.privilege_type = 'SELECT'
    LOOP
      EXECUTE format('GRANT SELECT ON ${schema}.schedules TO %I', allowed.role);
    END LOOP;
  END $$;`;
}
