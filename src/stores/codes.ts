// The codes that stand for states, outcomes and lanes in the tables of every store.
import { JOB_STATES, type JobState, type Outcome, OUTCOMES } from "../core/job.ts";

/** Codes of states and outcomes: their places in core's lists, which only ever grow at the end. */
export const STATE = Object.fromEntries(JOB_STATES.map((state, code) => [state, code])) as Readonly<
  Record<JobState, number>
>;
export const OUTCOME = Object.fromEntries(OUTCOMES.map((outcome, code) => [outcome, code])) as Readonly<
  Record<Outcome, number>
>;

/** Where a queued job waits: for its time, for anybody, or for a worker with nothing else in flight. */
export const LANE = { delayed: 0, open: 1, suspect: 2 } as const;

/**
 * The due time of a delayed job that waits for no time, but until it is known what happened to the workers that held it
 * (core's losses.ts): the last millisecond of the year 9999. A lane of its own would need an index, and building one stops all
 * writers of a large table.
 */
export const NEVER_DUE = 253_402_300_799_999;
