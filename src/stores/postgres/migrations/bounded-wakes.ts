// Wakes of keys and events of dedupe keys are taken by workers. While none runs, every transaction that adds jobs of a key leaves a wake, and every event a row: so a
// tick folds them. What a wake says does not depend on how many there are, and of the events of a job the last one counts.
import type { Migration } from "../migrate.ts";
import { wakingTickAtOnce } from "./consequences.ts";

/** How many wakes, and how many events, may be there before a tick folds them. Workers take as many in a second. */
const MOST = 10_000;
/** How many keys or jobs, and how many wakes of them, one call folds at most. */
const FOLDED = 10_000;
const FOLDED_ROWS = 200_000;

export const boundedWakes: Migration = {
  name: "bounded wakes",
  drops: "that ticks fold wakes of keys and events of dedupe keys while no worker takes them",
  up: (schema) => `
  ${foldWakes(schema)}
  ${foldingTick(schema)}
  DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN
      SELECT DISTINCT r.rolname AS role FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
      WHERE p.oid = '${schema}.tick(integer)'::regprocedure AND a.privilege_type = 'EXECUTE'
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION ${schema}.fold_wakes(integer) TO %I', allowed.role);
    END LOOP;
  END $$;`,
  down: (schema) => `
  ${wakingTickAtOnce(schema)}
  DROP FUNCTION ${schema}.fold_wakes(integer);`,
};

/**
 * Of the wakes of a key the oldest stays, and only if this transaction could lock it. An admission that has taken it, and is not committed, may not see what the others
 * announce; one that takes it after this sees all of it. The events of a job are changed under the lock of its row, as everywhere. What applies them
 * asks for the last one, for the last that asks for a rerun, for the earliest bound, and whether a worker has seen all of them (reruns.ts of the store).
 */
function foldWakes(schema: string): string {
  return `
  -- Removes wakes of keys and events of dedupe keys that others of the same key or job stand for, if there are more than this many. Returns how many it removed.
  CREATE FUNCTION ${schema}.fold_wakes(most integer DEFAULT ${MOST}) RETURNS integer
  LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  DECLARE
    removed integer := 0;
    more integer;
    locked bigint[];
  BEGIN
    IF (SELECT count(*) FROM (SELECT 1 FROM ${schema}.key_wakes LIMIT fold_wakes.most + 1) n) > fold_wakes.most THEN
      WITH several AS MATERIALIZED (SELECT w.key FROM ${schema}.key_wakes w GROUP BY w.key HAVING count(*) > 1 LIMIT ${FOLDED}),
      locked AS MATERIALIZED (SELECT w.id, w.key FROM ${schema}.key_wakes w JOIN several s ON s.key = w.key LIMIT ${FOLDED_ROWS} FOR UPDATE OF w SKIP LOCKED)
      DELETE FROM ${schema}.key_wakes w USING (SELECT l.id, row_number() OVER (PARTITION BY l.key ORDER BY l.id) AS nth FROM locked l) l WHERE w.id = l.id AND l.nth > 1;
      GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    IF (SELECT count(*) FROM (SELECT 1 FROM ${schema}.reruns LIMIT fold_wakes.most + 1) n) > fold_wakes.most THEN
      locked := ARRAY(SELECT j.seq FROM ${schema}.jobs j WHERE j.seq = ANY (ARRAY(SELECT r.job FROM ${schema}.reruns r GROUP BY r.job HAVING count(*) > 2 LIMIT ${FOLDED}))
        ORDER BY j.seq FOR NO KEY UPDATE SKIP LOCKED);
      WITH folded AS MATERIALIZED (
        SELECT r.job, max(r.ord) AS last, coalesce(max(r.ord) FILTER (WHERE r.draft::json #>> '{dedupe,then}' = 'rerun'), max(r.ord)) AS last_rerun,
          min(r.latest_at) AS latest_at, bool_or(r.due) AS due, bool_and(r.seen) AS seen
        FROM ${schema}.reruns r WHERE r.job = ANY (locked) GROUP BY r.job),
      kept AS (UPDATE ${schema}.reruns r SET latest_at = f.latest_at, due = f.due, seen = f.seen FROM folded f WHERE r.job = f.job AND r.ord IN (f.last, f.last_rerun))
      DELETE FROM ${schema}.reruns r USING folded f WHERE r.job = f.job AND r.ord NOT IN (f.last, f.last_rerun);
      GET DIAGNOSTICS more = ROW_COUNT;
      removed := removed + more;
    END IF;
    RETURN removed;
  END $$;`;
}

function foldingTick(schema: string): string {
  return wakingTickAtOnce(schema).replace(
    `    BEGIN\n      PERFORM ${schema}.act_on_wakes(10000);`,
    `    BEGIN
      PERFORM ${schema}.fold_wakes();
    EXCEPTION WHEN query_canceled OR OTHERS THEN
      RAISE WARNING 'outlive: no wakes were folded in this tick: %', SQLERRM;
    END;
    BEGIN
      PERFORM ${schema}.act_on_wakes(10000);`,
  );
}
