// Replaces the view dead_jobs and the function enqueue by versions that no stored text and no caller can harm.
import type { Migration } from "../migrate.ts";
import { formerDeadJobs, tolerantDeadJobs } from "./dead-jobs.ts";
import { enqueueWithLimits, formerEnqueue } from "./enqueue-limits.ts";

export const textsAndLimits: Migration = {
  name: "texts and limits",
  drops: "the limits of the function enqueue, and what lets the view dead_jobs read damaged texts",
  up: (schema) => [tolerantDeadJobs(schema), enqueueWithLimits(schema)].join("\n"),
  down: (schema) => [formerEnqueue(schema), formerDeadJobs(schema)].join("\n"),
};
