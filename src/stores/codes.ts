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
export const LANE = { delayed: 0, open: 1, alone: 2 } as const;
