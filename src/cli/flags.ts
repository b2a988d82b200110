// The forms of option values, and the filters that several commands share. A value that does not fit is a usage error that says
// what fits.
import { type Command, InvalidArgumentError, Option } from "commander";
import { type Duration, durationMs } from "../core/duration.ts";
import { JOB_STATES, type JobState } from "../core/job.ts";
import type { JobFilter } from "../core/store.ts";

export function wholeNumber(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^-?\d+$/.test(text) || value < least || value > most)
      throw new InvalidArgumentError(`Use a whole number from ${least} to ${most}.`);
    return value;
  };
}

/** In ms. */
export function duration(text: string): number {
  try {
    return durationMs(text as Duration, "It");
  } catch {
    throw new InvalidArgumentError('Use a number and a unit: "250ms", "30s", "5m", "12h" or "7d".');
  }
}

export function instant(text: string): Date {
  const at = new Date(text);
  if (!/^\d{4}-/.test(text) || Number.isNaN(at.getTime()))
    throw new InvalidArgumentError('Use an instant of ISO 8601: "2026-12-31T23:00:00Z".');
  return at;
}

export interface FilterFlags {
  readonly state?: JobState;
  readonly kind?: string;
  readonly text?: string;
  readonly olderThan?: number;
  readonly newerThan?: number;
}

export function withFilters(command: Command, states: readonly JobState[] = JOB_STATES): Command {
  if (states.length > 1)
    command.addOption(new Option("--state <state>", "only jobs in this state").choices([...states]));
  return command
    .option("--kind <kind>", "only jobs of this kind")
    .option("--text <text>", "only jobs whose id, dedupe key or error contains this text")
    .option("--older-than <duration>", "only jobs enqueued longer ago than this", duration)
    .option("--newer-than <duration>", "only jobs enqueued within this time", duration);
}

export function filterOf(flags: FilterFlags, now: number): JobFilter {
  return {
    ...(flags.state !== undefined && { state: flags.state }),
    ...(flags.kind !== undefined && { kind: flags.kind }),
    ...(flags.text !== undefined && { text: flags.text }),
    ...(flags.olderThan !== undefined && { createdBefore: now - flags.olderThan }),
    ...(flags.newerThan !== undefined && { createdAfter: now - flags.newerThan }),
  };
}
