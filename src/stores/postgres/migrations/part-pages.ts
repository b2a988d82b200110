// How many parts a page of 64 ordinals has, so that a report of missing ordinals goes only through pages that are not full: of a series of
// 1,000,000 parts it took 1.5 s. A page may have more parts than are counted here (those from before this step, and of programs that do not know it), and
// is then gone through. Counts come with the deltas.
import type { Migration } from "../migrate.ts";

export const PART_PAGE_TABLES = ["part_pages"] as const;

export const partPages: Migration = {
  name: "pages of parts",
  drops: "the counts by which missing parts are found fast. The parts stay",
  locks: ["collection_deltas"],
  up: (schema) => `
  ALTER TABLE ${schema}.collection_deltas ADD COLUMN page integer;
  CREATE TABLE ${schema}.part_pages (
    collection bigint NOT NULL,
    have integer NOT NULL,
    page integer NOT NULL,
    series smallint NOT NULL,
    PRIMARY KEY (collection, series, page)
  );
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT r.rolname AS role, string_agg(DISTINCT a.privilege_type, ', ') AS rights FROM pg_class c
      CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE c.oid = '${schema}.steps'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') GROUP BY r.rolname
    LOOP
      EXECUTE format('GRANT %s ON ${schema}.part_pages TO %I', allowed.rights, allowed.role);
    END LOOP;
  END $$;`,
  down: (schema) => `
  DROP TABLE ${schema}.part_pages;
  ALTER TABLE ${schema}.collection_deltas DROP COLUMN page;`,
};
