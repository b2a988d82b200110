// The scenarios: which acts one after the other, and which of them are watched.
import type { ActName } from "./acts.ts";

export interface Scenario {
  readonly name: string;
  /** Played before, unwatched: the file that the watched acts find. */
  readonly before: readonly ActName[];
  /** Recorded, every call. The last of them is the one that is killed at each of its calls. */
  readonly watched: readonly ActName[];
}

/** The database in a scenario's folder. */
export const DATABASE = "jobs.db";

export const SCENARIOS: readonly Scenario[] = [
  { name: "create", before: [], watched: ["create"] },
  { name: "enqueue", before: ["prepare"], watched: ["enqueue"] },
  { name: "settle", before: ["prepare"], watched: ["settle"] },
  { name: "commit", before: ["prepare"], watched: ["commit"] },
  { name: "recovery", before: ["prepare"], watched: ["die", "rescue"] },
  { name: "purge", before: ["prepare"], watched: ["purge"] },
  { name: "checkpoint", before: ["prepare"], watched: ["checkpoint"] },
  { name: "reopen", before: ["prepare"], watched: ["reopen"] },
  { name: "large", before: ["prepare"], watched: ["large"] },
  { name: "fleet", before: ["prepare"], watched: ["fleet"] },
];
