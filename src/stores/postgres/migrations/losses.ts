// Proof of death, or contact lost: which process a worker is, and what became of the workers with which contact was lost. Columns
// with constant defaults only, and an index of a small table: no table is rewritten, and no lock is held for long.
import type { Migration } from "../migrate.ts";

export const losses: Migration = {
  name: "losses of contact",
  drops: "which process each worker is, and what is known of workers with which contact was lost",
  up: (schema) => `
  ALTER TABLE ${schema}.fleet ADD COLUMN namespace text, ADD COLUMN start_ticks text, ADD COLUMN predecessor text;
  ALTER TABLE ${schema}.jobs ADD COLUMN losses integer NOT NULL DEFAULT 0;
  -- judged_at: when all jobs of a loss were judged. judgement: what was decided about a lost job when its loss was resolved.
  ALTER TABLE ${schema}.incidents ADD COLUMN resolution text, ADD COLUMN judged_at bigint;
  ALTER TABLE ${schema}.incident_jobs ADD COLUMN judgement text;
  -- A silent worker was counted as dead at once.
  UPDATE ${schema}.incidents SET resolution = 'died', judged_at = completed_at WHERE how <> 'gone';
  CREATE INDEX incidents_open_losses ON ${schema}.incidents (id) WHERE how <> 'gone' AND judged_at IS NULL;`,
  down: (schema) => `
  DROP INDEX ${schema}.incidents_open_losses;
  ALTER TABLE ${schema}.incident_jobs DROP COLUMN judgement;
  ALTER TABLE ${schema}.incidents DROP COLUMN resolution, DROP COLUMN judged_at;
  ALTER TABLE ${schema}.jobs DROP COLUMN losses;
  ALTER TABLE ${schema}.fleet DROP COLUMN namespace, DROP COLUMN start_ticks, DROP COLUMN predecessor;`,
};
