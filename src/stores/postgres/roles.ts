// Who may do what, as SQL for an administrator: the owner migrates, workers work, some may only enqueue, some may only read. What
// is not granted here is refused by the server itself. Run it again after each migration: new tables and functions have no grants.
import { quotedSchema } from "./address.ts";
import { BATCH_TABLES } from "./migrations/batches.ts";
import { LONE_TABLES } from "./migrations/lone-batches.ts";
import { SCHEDULE_TABLES } from "./migrations/schedules.ts";
import { PART_PAGE_TABLES } from "./migrations/part-pages.ts";
import { TRACE_TABLES } from "./migrations/traces.ts";
import { COLLECTION_TABLES } from "./migrations/collections.ts";
import { ENQUEUE_SIGNATURE } from "./migrations/enqueue.ts";
import { FAMILY_TABLES } from "./migrations/families.ts";
import { KEY_TABLES } from "./migrations/keys.ts";
import { AUDIT_TABLES } from "./migrations/operations.ts";
import { SUBMIT_SIGNATURE } from "./migrations/submit.ts";
import { VIEWS } from "./migrations/views.ts";
import { WAITING_TABLES } from "./migrations/waiting.ts";

export const ROLES = ["owner", "worker", "enqueue", "read"] as const;
export type Role = (typeof ROLES)[number];

/** "outlive_worker" of the schema "outlive". */
export function roleName(schema: string, role: Role): string {
  return `${schema}_${role}`;
}

/** What a worker writes. `meta` holds the epoch, which an open raises; `ticks` belong to cron. */
export const WRITTEN = [
  "kinds",
  "kind_deltas",
  "jobs",
  "job_ids",
  "cancels",
  "steps",
  "history",
  "logs",
  "fleet",
  "incidents",
  "incident_jobs",
  "server_run",
  ...WAITING_TABLES,
  ...KEY_TABLES,
  ...FAMILY_TABLES,
  ...BATCH_TABLES,
  ...SCHEDULE_TABLES,
  ...COLLECTION_TABLES,
  ...AUDIT_TABLES,
  ...TRACE_TABLES,
  ...PART_PAGE_TABLES,
  ...LONE_TABLES,
];

/** Tables of later steps: a schema may not have them yet. */
const LATER: ReadonlySet<string> = new Set([
  ...WAITING_TABLES,
  ...KEY_TABLES,
  ...FAMILY_TABLES,
  ...BATCH_TABLES,
  ...SCHEDULE_TABLES,
  ...COLLECTION_TABLES,
  ...AUDIT_TABLES,
  ...TRACE_TABLES,
  ...PART_PAGE_TABLES,
  ...LONE_TABLES,
]);

/** Roles without login: grant them to the users that programs log in as. */
export function rolesText(name: string): string {
  const schema = quotedSchema(name);
  const [owner, worker, enqueue, read] = ROLES.map((role) => `"${roleName(name, role)}"`);
  const tables = (list: readonly string[]): string => list.map((table) => `${schema}.${table}`).join(", ");
  return `-- Roles of the schema ${name}. Give them to users: GRANT ${worker} TO my_app;
DO $$ BEGIN
${ROLES.map((role) => `  IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '${roleName(name, role)}') THEN CREATE ROLE "${roleName(name, role)}" NOLOGIN; END IF;`).join("\n")}
END $$;

-- The owner migrates: everything belongs to it, and its members can run \`outlive migrate\`.
GRANT ${owner} TO CURRENT_USER;
GRANT CREATE ON SCHEMA ${schema} TO ${owner};
DO $$ DECLARE thing text; BEGIN
  FOR thing IN
    SELECT format('%s %s', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass) FROM pg_class c
    WHERE c.relnamespace = '${name}'::regnamespace AND c.relkind IN ('r', 'v')
    UNION ALL SELECT format('FUNCTION %s', p.oid::regprocedure) FROM pg_proc p WHERE p.pronamespace = '${name}'::regnamespace
  LOOP
    EXECUTE format('ALTER %s OWNER TO %I', thing, '${roleName(name, "owner")}');
  END LOOP;
END $$;
ALTER SCHEMA ${schema} OWNER TO ${owner};

-- Workers: every row, no table. They can't migrate, truncate or drop, and of meta they can write the epoch alone (a trigger).
GRANT USAGE ON SCHEMA ${schema} TO ${worker};
GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(WRITTEN.filter((table) => !LATER.has(table)))} TO ${worker};
GRANT SELECT, INSERT, UPDATE ON ${tables(["meta"])} TO ${worker};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA ${schema} TO ${worker};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ${schema} TO ${worker};

-- Enqueue only: one function, which runs with its owner's rights.
GRANT USAGE ON SCHEMA ${schema} TO ${enqueue};
GRANT EXECUTE ON FUNCTION ${schema}.${ENQUEUE_SIGNATURE} TO ${enqueue};

-- Read only: tables and views, inputs and results of jobs included. For a dashboard that must not see those, grant the views alone:
--   GRANT SELECT ON ${tables(VIEWS)} TO my_dashboard;
GRANT USAGE ON SCHEMA ${schema} TO ${read};
GRANT SELECT ON ALL TABLES IN SCHEMA ${schema} TO ${read};
GRANT EXECUTE ON FUNCTION ${schema}.now_ms() TO ${read};
DO $$ BEGIN
  -- Absent before the views are.
  IF to_regprocedure('${schema}.instant(bigint)') IS NOT NULL THEN GRANT EXECUTE ON FUNCTION ${schema}.instant(bigint), ${schema}.span(bigint) TO ${read}; END IF;
  IF to_regprocedure('${schema}.error_text(text, text)') IS NOT NULL THEN GRANT EXECUTE ON FUNCTION ${schema}.error_text(text, text) TO ${read}; END IF;
  IF to_regclass('${schema}.ticks') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE ON ${schema}.ticks TO ${worker}; END IF;
  IF to_regclass('${schema}.waits') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(WAITING_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.keys') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(KEY_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.family_cancels') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(FAMILY_TABLES)} TO ${worker}; END IF;
  IF to_regprocedure('${schema}.${SUBMIT_SIGNATURE}') IS NOT NULL THEN GRANT EXECUTE ON FUNCTION ${schema}.${SUBMIT_SIGNATURE} TO ${enqueue}; END IF;
  IF to_regclass('${schema}.batches') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(BATCH_TABLES)} TO ${worker};
    GRANT SELECT ON ${schema}.batches TO ${worker};
  END IF;
  IF to_regclass('${schema}.schedules') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(SCHEDULE_TABLES)} TO ${worker};
    GRANT SELECT ON ${schema}.schedules TO ${worker};
  END IF;
  IF to_regclass('${schema}.collection_state') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(COLLECTION_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.audit') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(AUDIT_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.traces') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(TRACE_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.part_pages') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(PART_PAGE_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.lone_batches') IS NOT NULL THEN GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables(LONE_TABLES)} TO ${worker}; END IF;
  IF to_regclass('${schema}.workers') IS NOT NULL THEN GRANT SELECT ON ${tables(VIEWS)} TO ${worker}; END IF;
END $$;
`;
}
