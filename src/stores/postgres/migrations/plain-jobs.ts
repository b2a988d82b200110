// The way in for many jobs that ask for nothing: one kind, at once, without a key. Inserted as they are, and only if an id is known already as `add_jobs`
// does it, which looks for a conflict at every row of two tables: 7.8 instead of 12.4 us of the server's time for each of 1,000 jobs of a statement, next to
// 3.8 of the bench's raw inserts.
import type { Migration } from "../migrate.ts";
import { checksum } from "./frozen.ts";

const SIGNATURE = "add_plain_jobs(integer, text[], text[])";

export const plainJobs: Migration = {
  name: "plain jobs",
  drops: "the function by which many plain jobs are added",
  up: (schema) => `
  --- Returns the ids that were added, or null if all of them were. The block with its handler is a subtransaction: not for a user's transaction, which may
  --- call it often.
  CREATE FUNCTION ${schema}.add_plain_jobs(kind integer, ids text[], inputs text[])
  RETURNS text[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    now_ms bigint := ${schema}.now_ms();
    seqs bigint[] := ARRAY(SELECT nextval('${schema}.jobs_seq_seq') FROM generate_series(1, cardinality(ids)));
  BEGIN
    BEGIN
      INSERT INTO ${schema}.job_ids (id, seq) SELECT d.id, d.seq FROM unnest(ids, seqs) AS d (id, seq);
      INSERT INTO ${schema}.jobs (seq, lane, kind, priority, created_at, id, input, input_sum) OVERRIDING SYSTEM VALUE
      SELECT d.seq, 1, add_plain_jobs.kind, 0, now_ms, d.id, d.input, ${checksum("d.input", "d.id")} FROM unnest(seqs, ids, inputs) AS d (seq, id, input);
      INSERT INTO ${schema}.kind_deltas (kind, jobs) VALUES (add_plain_jobs.kind, cardinality(ids));
      RETURN NULL;
    EXCEPTION WHEN unique_violation THEN
      NULL;
    END;
    RETURN ${schema}.add_jobs(array_fill(add_plain_jobs.kind, ARRAY[cardinality(ids)]), array_fill(0, ARRAY[cardinality(ids)]),
      array_fill(NULL::bigint, ARRAY[cardinality(ids)]), array_fill(0::bigint, ARRAY[cardinality(ids)]), ids, array_fill(NULL::text, ARRAY[cardinality(ids)]), inputs);
  END $$;
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p
      JOIN pg_class c ON c.oid = '${schema}.jobs'::regclass AND c.relnamespace = p.pronamespace
      CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE p.proname = 'add_jobs' AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.${SIGNATURE} TO %I', allowed.role);
    END LOOP;
  END $$;`,
  down: (schema) => `
  DROP FUNCTION ${schema}.${SIGNATURE};`,
};
