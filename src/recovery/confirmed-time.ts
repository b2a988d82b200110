// How much of the store's clock this process can confirm. The store's clock is the wall clock of some machine: it gets
// stepped, and it leaps ahead when that machine wakes up. A deadline counts as passed only as far as this process's own
// monotonic clock has seen that time go by.
import type { Clock } from "../job/time.ts";

/** What the caller's monotonic clock confirms about the store's clock, in whole ms. */
export interface ConfirmedTime {
  /**
   * The store's clock, provided it has not been stepped since it was last read. The store may be ahead of this value;
   * the caller never is.
   */
  readonly asOf: number;
  /** For how long both clocks have agreed. A deadline longer than this has not been watched from its start. */
  readonly steadyMs: number;
}

/** Trusts the store's clock, as a manual call does. */
export const TRUSTED: ConfirmedTime = { asOf: Number.MAX_SAFE_INTEGER, steadyMs: Number.MAX_SAFE_INTEGER };

/** Both clocks may drift apart by this much between two readings (a slewing NTP); more is a step or a sleep. */
const DRIFT_MS = 500;
/** How fast they may drift apart: the maximum rate at which Linux slews. */
const DRIFT_RATE = 500e-6;

/** One reading of the store's clock. */
export interface ClockReading {
  readonly now: number;
  /** The read happened between these two instants of our own monotonic clock. */
  readonly sentMono: number;
  readonly receivedMono: number;
}

export class ConfirmedClock {
  readonly #clock: Clock;
  #last: ClockReading;
  #steadySinceMono: number;
  /** The store's clock is ahead of our own by at least this much. */
  #aheadMs: number;

  constructor(clock: Clock, first: ClockReading) {
    this.#clock = clock;
    this.#last = first;
    this.#steadySinceMono = first.receivedMono;
    this.#aheadMs = first.now - first.receivedMono;
  }

  /** The store returned `now` for a request sent at `sentMono`. */
  read(now: number, sentMono: number): void {
    const reading = { now, sentMono, receivedMono: this.#clock.mono() };
    // Assume the clock was read at the last possible moment. An earlier reading with a shorter round trip may be more
    // precise.
    const aheadMs = now - reading.receivedMono;
    if (agree(this.#last, reading)) {
      const driftMs = (reading.receivedMono - this.#last.receivedMono) * DRIFT_RATE;
      this.#aheadMs = Math.max(this.#aheadMs - driftMs, aheadMs);
    } else {
      this.#steadySinceMono = reading.receivedMono;
      this.#aheadMs = aheadMs;
    }
    this.#last = reading;
  }

  confirmed(): ConfirmedTime {
    const mono = this.#clock.mono();
    return { asOf: Math.floor(mono + this.#aheadMs), steadyMs: Math.floor(mono - this.#steadySinceMono) };
  }
}

/** Whether as much time passed on the store's clock as on ours. A slow round trip is not a disagreement. */
function agree(last: ClockReading, next: ClockReading): boolean {
  const passed = next.now - last.now;
  return (
    passed <= next.receivedMono - last.sentMono + DRIFT_MS && passed >= next.sentMono - last.receivedMono - DRIFT_MS
  );
}

/** When a running job has to end, by the store's clock. */
export interface Expiry {
  /** Deadline plus grace. */
  readonly expiresAt: number;
  /** How long the attempt may take, including the grace. */
  readonly allowedMs: number;
}

/** By how many ms a job is past its deadline and grace; null: it is not overdue, or that is not confirmed. */
export function overdueBy(job: Expiry, now: number, confirmed: ConfirmedTime = TRUSTED): number | null {
  if (confirmed.steadyMs <= job.allowedMs) return null;
  const overdueMs = Math.min(now, confirmed.asOf) - job.expiresAt;
  return overdueMs > 0 ? overdueMs : null;
}
