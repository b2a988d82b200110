// Time in the domain: the port for the clock, timers and randomness, and how lengths of time and instants are written. The domain has no
// clock, timer or randomness of its own, so that the simulator can provide all three from one seed.
import { ErrorCode, OutliveError } from "./errors.ts";

/** A timer that can be called off. Calling it off twice, or after it fired, does nothing. */
export type CallOff = () => void;

/** Where the time comes from. */
export interface Clock {
  /** Wall clock in ms. Jumps; only for what people read and for what the store's own host compares with itself. */
  now(): number;
  /** Monotonic clock in ms, the same for all threads of the process. Never compared with another process's. */
  mono(): number;
  /** Runs `task` after `ms` (at most 2^31-1, longer waits are rows in the store). */
  after(ms: number, task: () => void): CallOff;
  /** Runs `task` when everything that is already due in this turn has run: the edge at which group commits are cut. */
  soon(task: () => void): void;
}

/**
 * A clock whose monotonic time stands still within a millisecond of the time of day: it is read again when that has changed. In a process that has run little
 * one reading of the monotonic clock costs 1 µs, and one of the time of day a tenth of that.
 */
export function coarseClock(clock: Clock): Clock {
  let seenAt = Number.NaN;
  let mono = Number.NaN;
  return {
    now: () => clock.now(),
    mono() {
      const now = clock.now();
      if (now !== seenAt) {
        seenAt = now;
        mono = clock.mono();
      }
      return mono;
    },
    after: (ms, task) => clock.after(ms, task),
    soon: (task) => clock.soon(task),
  };
}

export interface Random {
  /** Uniform in [0, 1). */
  next(): number;
  /** `count` random bytes as lower-case hex. */
  hex(count: number): string;
}

/** Resolves after `ms`, or at once when `signal` aborts. Never rejects. */
export function pause(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const callOff = clock.after(ms, done);
    signal?.addEventListener("abort", done, { once: true });
    function done(): void {
      callOff();
      signal?.removeEventListener("abort", done);
      resolve();
    }
  });
}

// How durations are written: "250ms", "30s", "5m", "12h", "7d". Inside the engine durations are numbers that end in Ms.

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

/** An instant as ISO text. A damaged row may hold a number that is not an instant: it is shown as the latest possible one. */
export function isoInstant(at: number): string {
  return new Date(Math.max(-LATEST, Math.min(LATEST, at))).toISOString();
}

/** The limit of ECMAScript's Date. */
const LATEST = 8.64e15;
