// Migration 9: the indexes by which a worker finds the suspects that it may take. jobs_alone fits neither of its two orders: with 100,000
// suspects that wait (1,000,000 jobs), each claim read and sorted all of them, 140 to 180 ms; with these it reads the first 100, 0.1 ms.
import type { Migration } from "../migrate.ts";
import { suspectBound } from "./frozen.ts";

const INDEXES = {
  jobs_suspects_oldest: "(priority DESC, seq)",
  jobs_suspects_largest: `(priority DESC, (${suspectBound}) DESC, seq)`,
} as const;

const create = (schema: string, how: string): string[] =>
  Object.entries(INDEXES).map(
    ([name, columns]) => `${how} IF NOT EXISTS ${name} ON ${schema}.jobs ${columns} WHERE state = 0 AND lane = 2;`,
  );

export const suspects: Migration = {
  name: "indexes of suspects",
  drops: "the indexes of suspects that wait",
  locks: ["jobs"],
  ahead: (schema) => ({ indexes: Object.keys(INDEXES), texts: create(schema, "CREATE INDEX CONCURRENTLY") }),
  up: (schema) => `
  DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_index WHERE NOT indisvalid AND indexrelid IN (${Object.keys(INDEXES)
      .map((name) => `to_regclass('${schema}.${name}')`)
      .join(", ")})) THEN
      RAISE EXCEPTION 'an index of jobs was left half-built' USING HINT = 'Nothing was changed. Run: outlive migrate up';
    END IF;
  END $$;
  ${create(schema, "CREATE INDEX").join("\n  ")}
  DROP INDEX ${schema}.jobs_alone;`,
  down: (schema) => `
  CREATE INDEX jobs_alone ON ${schema}.jobs (crashes, seq) WHERE state = 0 AND lane = 2;
  DROP INDEX ${Object.keys(INDEXES)
    .map((name) => `${schema}.${name}`)
    .join(", ")};`,
};
