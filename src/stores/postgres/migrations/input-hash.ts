// A second checksum of inputs, for claims. SHA-256 takes 1.4 of the 10.5 µs that the server spends on each of 500 claimed jobs, the server's own hash less
// than 0.1. It is not the same in every version of PostgreSQL and on every platform, so that one that differs proves nothing: then the first one decides, as
// it does for jobs that have only that.
import type { Migration } from "../migrate.ts";
import { checksum } from "./frozen.ts";
import { plainJobs } from "./plain-jobs.ts";
import { replacing } from "./seed-views.ts";

export const inputHash: Migration = {
  name: "input hash",
  drops: "the hashes by which claims compare inputs quickly",
  locks: ["jobs"],
  up: (schema) => `
  ALTER TABLE ${schema}.jobs ADD COLUMN input_hash bigint;
  ${addPlainJobs(schema)
    .replace("id, input, input_sum) OVERRIDING", "id, input, input_sum, input_hash) OVERRIDING")
    .replace(
      `${checksum("d.input", "d.id")} FROM`,
      `${checksum("d.input", "d.id")},
        hashtextextended(d.input COLLATE "C", hashtextextended(d.id COLLATE "C", 0)) FROM`,
    )}`,
  down: (schema) => `
  ${addPlainJobs(schema)}
  ALTER TABLE ${schema}.jobs DROP COLUMN input_hash;`,
};

/** As `plainJobs` has it, without the grants, which stay. */
function addPlainJobs(schema: string): string {
  const [text] = plainJobs.up(schema).split("  DO $$ DECLARE allowed");
  return replacing(text!);
}
