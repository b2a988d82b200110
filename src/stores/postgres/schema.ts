// The name of our schema and the codes in its tables. The name is checked here, once, before any of it reaches SQL.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { JOB_STATES, OUTCOMES, type JobState, type Outcome } from "../../core/job.ts";

export const DEFAULT_SCHEMA = "outlive";

/** Codes of states and outcomes in the tables: their places in core's lists, which only ever grow at the end. */
export const STATE = Object.fromEntries(JOB_STATES.map((state, code) => [state, code])) as Readonly<
  Record<JobState, number>
>;
export const OUTCOME = Object.fromEntries(OUTCOMES.map((outcome, code) => [outcome, code])) as Readonly<
  Record<Outcome, number>
>;

/** Where a queued job waits: for its time, for anybody, or for a worker with nothing else in flight. */
export const LANE = { delayed: 0, open: 1, alone: 2 } as const;

/** The schema's name as SQL has it, or an error: small letters, digits and underscores, at most 40. */
export function quotedSchema(name: string): string {
  if (/^[a-z_][a-z0-9_]{0,39}$/.test(name)) return `"${name}"`;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(name)} can't be the name of Outlive's schema.`,
    "Use small letters, digits and underscores, at most 40, the first no digit.",
    { schema: name },
  );
}

/** The channel on which workers of this schema are woken. */
export function bellChannel(name: string): string {
  return `${name}_bell`;
}
