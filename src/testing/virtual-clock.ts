// A clock that stands still until a test moves it, for tests of anything that takes a Clock. Only `soon` is real: it
// represents the turn of the event loop, at which stores cut their group commits, and no test should have to drive that
// manually.
import type { Clock } from "../job/time.ts";

/** A clock that a test moves: nothing waits in real time. */
export interface VirtualClock extends Clock {
  /**
   * Moves both clocks forward by `ms`. Each due timer runs at its own instant, in order. After each task one turn of
   * the event loop passes, so that what it starts may set further timers within the same `ms`.
   */
  advance(ms: number): Promise<void>;
  /** Lets everything run that needs no time. */
  settle(): Promise<void>;
  /** Freezes the process (a stopped process, a sleeping laptop): time passes on both clocks, and nothing runs. */
  freeze(ms: number): void;
  /** Moves only the wall clock, forward or back, as an operator or a time server does. Fires nothing. */
  jump(ms: number): void;
  /** In how many ms the next timer is due; null: none is set. */
  nextTimerInMs(): number | null;
}

interface Timer {
  readonly atMono: number;
  readonly task: () => void;
}

/** Starts at `startAt` (wall, ms since 1970); its monotonic clock starts at 0. */
export function virtualClock(startAt: number = Date.UTC(2026, 0, 1)): VirtualClock {
  let mono = 0;
  let wallAhead = startAt;
  let soonCount = 0;
  const timers = new Set<Timer>();
  const next = (): Timer | undefined => {
    let first: Timer | undefined;
    for (const timer of timers) if (first === undefined || timer.atMono < first.atMono) first = timer;
    return first;
  };
  const settle = async (): Promise<void> => {
    do await turn();
    while (soonCount > 0);
  };
  return {
    now: () => wallAhead + mono,
    mono: () => mono,
    after(ms, task) {
      const timer = { atMono: mono + Math.max(0, ms), task };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
    soon(task) {
      soonCount++;
      setImmediate(() => {
        soonCount--;
        task();
      });
    },
    settle,
    async advance(ms) {
      const until = mono + ms;
      await settle();
      for (let timer = next(); timer !== undefined && timer.atMono <= until; timer = next()) {
        timers.delete(timer);
        mono = Math.max(mono, timer.atMono);
        timer.task();
        await settle();
      }
      mono = Math.max(mono, until);
    },
    freeze(ms) {
      mono += ms;
    },
    jump(ms) {
      wallAhead += ms;
    },
    nextTimerInMs() {
      const timer = next();
      return timer === undefined ? null : timer.atMono - mono;
    },
  };
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
