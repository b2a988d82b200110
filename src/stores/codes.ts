// The codes that stand for states, outcomes and lanes in the tables of every store.
import { ANY_NUMBER } from "../core/isolation.ts";
import { JOB_STATES, type JobState, type Outcome, OUTCOMES } from "../core/job.ts";

/** Codes of states and outcomes: their places in core's lists, which only ever grow at the end. */
export const STATE = Object.fromEntries(JOB_STATES.map((state, code) => [state, code])) as Readonly<
  Record<JobState, number>
>;
export const OUTCOME = Object.fromEntries(OUTCOMES.map((outcome, code) => [outcome, code])) as Readonly<
  Record<Outcome, number>
>;

/** Where a queued job waits: for its time, for any worker, or for one that holds few enough suspects. */
export const LANE = { delayed: 0, open: 1, suspect: 2 } as const;

/**
 * The due time of a delayed job that waits for no time, but until it is known what happened to the workers that held it
 * (core's losses.ts): the last millisecond of the year 9999. A lane of its own would need an index, and building one stops all
 * writers of a large table.
 */
export const NEVER_DUE = 253_402_300_799_999;

/** As `boundOf` in core's isolation.ts. `job` is the name of the row, with a dot, or nothing. */
export const boundSql = (job: string): string =>
  `CASE WHEN ${job}together > 0 THEN ${job}together WHEN ${job}crashes + ${job}losses > 1 THEN 1 ELSE ${ANY_NUMBER} END`;
