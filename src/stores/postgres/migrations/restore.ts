// The step that makes a restore known. A dump brings every row back, the epoch and the sequences included, so the rows alone can't tell.
import type { Migration } from "../migrate.ts";

export const restore: Migration = {
  name: "restores",
  drops: "what tells a restored dump from the store itself (columns of meta and fleet)",
  locks: ["fleet", "meta"],
  up: (schema) => `
  --- Of the epoch: by which transaction, in which table and in which database this row was written. A dump brings the row back, but
  --- whatever restores it is another transaction, so the row contradicts itself from then on (restore-mark.ts compares them).
  ALTER TABLE ${schema}.meta ADD COLUMN written_by xid, ADD COLUMN written_in oid, ADD COLUMN written_at oid;
  --- These tables may themselves be a restored dump of an older schema: no epoch that was issued before comes again.
  INSERT INTO ${schema}.meta AS m (key, value, written_by, written_in, written_at)
    SELECT 'epoch', ${schema}.now_ms(), pg_current_xact_id()::xid, '${schema}.meta'::regclass, oid FROM pg_database WHERE datname = current_database()
    ON CONFLICT (key) DO UPDATE SET value = greatest(m.value + 1, excluded.value),
      written_by = excluded.written_by, written_in = excluded.written_in, written_at = excluded.written_at;

  -- True: this row came back with a backup. No write of its worker is accepted, and its jobs are taken at once.
  ALTER TABLE ${schema}.fleet ADD COLUMN restored boolean NOT NULL DEFAULT false;
  ${heartbeatOfThisStore(schema)}`,
  down: (schema) => `${heartbeat(schema, "")}
  ALTER TABLE ${schema}.fleet DROP COLUMN restored;
  ALTER TABLE ${schema}.meta DROP COLUMN written_by, DROP COLUMN written_in, DROP COLUMN written_at;`,
};

/** As this step made it. */
export function heartbeatOfThisStore(schema: string): string {
  return heartbeat(schema, OF_THIS_STORE(schema));
}

/** The further condition of this step, on the attempt `j` and its worker `f`. */
export const OF_THIS_STORE = (schema: string): string => `
        AND j.epoch >= f.epoch AND NOT f.restored AND EXISTS (SELECT 1 FROM ${schema}.meta m WHERE m.key = 'epoch' AND m.written_by = m.xmin
          AND m.written_in = m.tableoid AND m.written_at = split_part(pg_relation_filepath(m.tableoid), '/', -2)::oid)`;

/**
 * `job_heartbeat` with a further condition. Its arguments name no epoch, but a worker claims only under the epoch of its registration
 * or a later one, so an older one in the row is that of an attempt from before.
 */
function heartbeat(schema: string, further: string): string {
  return `
  -- Whether this attempt still owns the job; if so, its deadline moves to a whole timeout from now, at most to maxRuntime after its start.
  CREATE OR REPLACE FUNCTION ${schema}.job_heartbeat(job text, worker text, fence bigint) RETURNS boolean
  LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH beaten AS (
      UPDATE ${schema}.jobs j SET deadline_at = CASE WHEN k.timeout_ms IS NOT NULL THEN least(${schema}.now_ms() + k.timeout_ms, j.started_at + k.max_runtime_ms) END
      FROM ${schema}.kinds k, ${schema}.fleet f
      WHERE j.seq = (SELECT i.seq FROM ${schema}.job_ids i WHERE i.id = job_heartbeat.job) AND j.state + 0 = 1 AND j.fence = job_heartbeat.fence
        AND f.id = job_heartbeat.worker AND j.worker + 0 = f.seq AND k.id = j.kind${further}
      RETURNING 1
    ) SELECT EXISTS (SELECT 1 FROM beaten)
  $$;`;
}

// Proof of death, or contact lost: which process a worker is, and what became of the workers with which contact was lost. Columns
// with constant defaults only, and an index of a small table: no table is rewritten, and no lock is held for long.

const COLUMNS = {
  fleet: (schema: string) => `
  ALTER TABLE ${schema}.fleet ADD COLUMN namespace text, ADD COLUMN start_ticks text, ADD COLUMN predecessor text;`,
  jobs: (schema: string) => `
  ALTER TABLE ${schema}.jobs ADD COLUMN losses integer NOT NULL DEFAULT 0;`,
  incidents: (schema: string) => `
  -- judged_at: when all jobs of a loss were judged. judgement: what was decided about a lost job when its loss was resolved.
  ALTER TABLE ${schema}.incidents ADD COLUMN resolution text, ADD COLUMN judged_at bigint;`,
  incidentJobs: (schema: string) => `
  ALTER TABLE ${schema}.incident_jobs ADD COLUMN judgement text;`,
};

const judged = (schema: string): string => `
  -- A silent worker was counted as dead at once.
  UPDATE ${schema}.incidents SET resolution = 'died', judged_at = completed_at WHERE how <> 'gone';
  CREATE INDEX incidents_open_losses ON ${schema}.incidents (id) WHERE how <> 'gone' AND judged_at IS NULL;`;

export const losses: Migration = {
  name: "losses of contact",
  drops: "which process each worker is, and what is known of workers with which contact was lost",
  up: (schema) =>
    [COLUMNS.fleet, COLUMNS.jobs, COLUMNS.incidents, COLUMNS.incidentJobs, judged]
      .map((text) => text(schema))
      .join("\n"),
  // What takes long, if there are many incidents, comes before the tables that every claim and every heartbeat needs.
  sent: (schema) =>
    [
      COLUMNS.incidents,
      judged,
      (name: string) => `LOCK TABLE ${name}.fleet, ${name}.jobs, ${name}.incident_jobs IN ACCESS EXCLUSIVE MODE;`,
      COLUMNS.fleet,
      COLUMNS.jobs,
      COLUMNS.incidentJobs,
    ]
      .map((text) => text(schema))
      .join("\n"),
  down: (schema) => `
  DROP INDEX ${schema}.incidents_open_losses;
  ALTER TABLE ${schema}.incident_jobs DROP COLUMN judgement;
  ALTER TABLE ${schema}.incidents DROP COLUMN resolution, DROP COLUMN judged_at;
  ALTER TABLE ${schema}.jobs DROP COLUMN losses;
  ALTER TABLE ${schema}.fleet DROP COLUMN namespace, DROP COLUMN start_ticks, DROP COLUMN predecessor;`,
};
