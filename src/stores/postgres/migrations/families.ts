// Cancels that include the children of a job. The row says what is to be done; workers do it, a piece in each turn (families.ts of the
// store). A worker of an older version takes the wake and does not know the row, so act_on_wakes keeps the wake as long as the row is due.
import type { Migration } from "../migrate.ts";
import { actOnWakesFirst } from "./consequences.ts";

export const FAMILY_TABLES = ["family_cancels"] as const;

export const families: Migration = {
  name: "family cancels",
  drops: "which cancels include the children of a job. Children that are not cancelled yet go on",
  up: (schema) => `
  CREATE TABLE ${schema}.family_cancels (
    job bigint PRIMARY KEY,                  -- the parent
    due boolean NOT NULL DEFAULT true,       -- whether a turn has something to do; false: the parent runs and may enqueue more
    actor text NOT NULL
  );
  CREATE INDEX signals_oldest ON ${schema}.signals (at) WHERE read_at IS NULL;
  CREATE INDEX family_cancels_due ON ${schema}.family_cancels (job) WHERE due;
  ${keepingWakes(schema)}
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${schema}.family_cancels TO %I', allowed.rights, allowed.role);
    END LOOP;
  END $$;`,
  down: (schema) => `
  ${actOnWakesFirst(schema)}
  DROP INDEX ${schema}.signals_oldest;
  DROP TABLE ${schema}.family_cancels;`,
};

function keepingWakes(schema: string): string {
  return actOnWakesFirst(schema).replace(
    "    IF waiters IS NULL THEN RETURN; END IF;\n",
    `    IF waiters IS NULL THEN RETURN; END IF;
    INSERT INTO ${schema}.wakes (job, at) SELECT f.job, ${schema}.now_ms() FROM ${schema}.family_cancels f WHERE f.due AND f.job = ANY (waiters);
`,
  );
}
