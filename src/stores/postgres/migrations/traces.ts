// The trace contexts that came with enqueues, by the id of the job: the statement that adds jobs does not know their numbers. Kept outside of the jobs, so
// that jobs of programs without tracing have no column for it. One whose enqueue added no job goes with the retention.
import type { Migration } from "../migrate.ts";

export const TRACE_TABLES = ["traces"] as const;

export const traces: Migration = {
  name: "traces",
  drops: "the trace contexts of jobs",
  up: (schema) => `
  CREATE TABLE ${schema}.traces (
    job text COLLATE "C" PRIMARY KEY,
    trace text NOT NULL,
    at bigint NOT NULL DEFAULT ${schema}.now_ms()
  );
  CREATE INDEX traces_at ON ${schema}.traces (at);
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${schema}.traces TO %I', allowed.rights, allowed.role);
    END LOOP;
  END $$;`,
  down: (schema) => `
  DROP TABLE ${schema}.traces;`,
};
