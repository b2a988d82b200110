// How much of the store's clock this process can vouch for. The store's clock is somebody's wall clock: it is stepped, and it leaps
// ahead when a machine wakes up. A deadline counts as passed only as far as our own monotonic clock has seen the time go by.
import type { Clock } from "../job/time.ts";

/** What the monotonic clock of the caller confirms of the store's clock, in whole ms. */
export interface ConfirmedTime {
  /** The store's clock, if it has not been stepped since it was last read. The store may be ahead of it, never the caller. */
  readonly asOf: number;
  /** For how long both clocks have agreed. Whatever ends after a longer time than this has not been watched from its beginning. */
  readonly steadyMs: number;
}

/** Trusts the store's clock, as a call by hand does. */
export const TRUSTED: ConfirmedTime = { asOf: Number.MAX_SAFE_INTEGER, steadyMs: Number.MAX_SAFE_INTEGER };

/** Both clocks may drift apart by this much between two readings (a slewing NTP); more is a step or a sleep. */
const DRIFT_MS = 500;
/** How fast they may drift apart: as fast as Linux slews. */
const DRIFT_RATE = 500e-6;

/** One reading of the store's clock. */
export interface ClockReading {
  readonly now: number;
  /** It was made between these two instants of our own monotonic clock. */
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

  /** The store said `now` in answer to a question that was asked at `sentMono`. */
  read(now: number, sentMono: number): void {
    const reading = { now, sentMono, receivedMono: this.#clock.mono() };
    // As if it had been read at the last moment possible. An earlier reading that took less time may know better.
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

/** Whether as much time passed on the store's clock as on ours. How long an answer took is no disagreement. */
function agree(last: ClockReading, next: ClockReading): boolean {
  const passed = next.now - last.now;
  return (
    passed <= next.receivedMono - last.sentMono + DRIFT_MS && passed >= next.sentMono - last.receivedMono - DRIFT_MS
  );
}

/** When a running job has to end, on the store's clock. */
export interface Expiry {
  /** Its deadline and grace. */
  readonly expiresAt: number;
  /** How long its attempt may take, with the grace. */
  readonly allowedMs: number;
}

/** How far a job is past its deadline and grace, in ms; null: it is not, or that is not confirmed. */
export function overdueBy(job: Expiry, now: number, confirmed: ConfirmedTime = TRUSTED): number | null {
  if (confirmed.steadyMs <= job.allowedMs) return null;
  const overdueMs = Math.min(now, confirmed.asOf) - job.expiresAt;
  return overdueMs > 0 ? overdueMs : null;
}
