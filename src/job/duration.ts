// The one way to say how long: "250ms", "30s", "5m", "12h", "7d". Inside the engine durations are numbers that end in Ms.
import { ErrorCode, OutliveError } from "./errors.ts";

/** A length of time: a number and a unit, for instance `"250ms"`, `"30s"`, `"5m"`, `"1.5h"`, `"7d"`. */
export type Duration = `${number}${"ms" | "s" | "m" | "h" | "d"}`;

const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;
const PATTERN = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/;

/** Milliseconds of a duration. `what` names the option in the error. Whole milliseconds, at most ten years. */
export function durationMs(value: Duration, what: string): number {
  const match = typeof value === "string" ? PATTERN.exec(value) : null;
  const ms = match ? Math.round(Number(match[1]) * UNIT_MS[match[2] as keyof typeof UNIT_MS]) : Number.NaN;
  if (!(ms >= 0 && ms <= 3_650 * UNIT_MS.d)) {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${what} is ${typeof value === "string" ? JSON.stringify(value) : String(value)}, which is not a duration.`,
      'Write a number and a unit: "250ms", "30s", "5m", "12h" or "7d" (at most 3650d).',
      { option: what, value },
    );
  }
  return ms;
}

/** A short text for people: 1234 is "1.2s", 90000 is "1.5m". */
export function humanMs(ms: number): string {
  if (Math.round(ms) < 1_000) return `${Math.round(ms)}ms`;
  if (ms < 59_950) return `${trim(ms / 1_000)}s`;
  if (ms < 59.95 * 60_000) return `${trim(ms / 60_000)}m`;
  if (ms < 23.95 * 3_600_000) return `${trim(ms / 3_600_000)}h`;
  return `${trim(ms / 86_400_000)}d`;
}

function trim(value: number): string {
  return String(Number(value.toFixed(1)));
}

/** An instant as ISO text. A damaged row may hold a number that is none: it is shown as the latest that there is. */
export function isoInstant(at: number): string {
  return new Date(Math.max(-LATEST, Math.min(LATEST, at))).toISOString();
}

/** The limit of ECMAScript's Date. */
const LATEST = 8.64e15;
