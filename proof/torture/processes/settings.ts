// What every run of the rig has in common: times that are short, so that thousands of deaths fit into an hour, and few jobs at once. They
// are printed with the outcome.
import type { Duration } from "../../../src/index.ts";

export const HEARTBEAT: Duration = "250ms";
export const LEASE: Duration = "1500ms";
export const LEASE_MS = 1_500;

/** Jobs that one worker runs at once. */
export const CONCURRENCY = 4;

/** Worker processes under the supervisor. */
export const SUPERVISED = 2;

/** The heap of a worker process: a job that takes more ends it. */
export const HEAP_MB = 96;

/** How many jobs a producer enqueues in a second: enough that most of those who are killed hold some, few enough that two cores have room to start programs. */
export const JOBS_PER_SECOND = 12;

/** And at once, every so often, so many that end at once or nearly so. Every third worker runs nothing else, so that it is killed with jobs that it has claimed ahead. */
export const TICKS_AT_ONCE = 40;
export const TICKS_EVERY_MS = 1_000;
export const TICK_MS = 10;
export const runsTicksOnly = (worker: number): boolean => worker % 3 === 0;

/** One job per this many kills ends its worker whenever it runs, and one per this many takes all of its memory. */
export const KILLS_PER_POISON = 250;
export const KILLS_PER_HOG = 1_000;

/** Where on PostgreSQL, in a process of the rig as its parent said it; null: the store is a file. */
export function storeOptions(schema = process.env["OUTLIVE_POSTGRES_SCHEMA"] ?? null): {
  postgres?: { schema: string };
  liveness?: string;
} {
  if (schema === null) return {};
  const liveness = process.env["OUTLIVE_LIVENESS"];
  return { postgres: { schema }, ...(liveness !== undefined && { liveness }) };
}
