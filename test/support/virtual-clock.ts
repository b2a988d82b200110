// Time that moves only when a test says so. Timers run in the order in which they are due, and between two of them everything
// that can go on without time goes on, so that a test never waits for a clock.
import type { CallOff, Clock, Random } from "../../src/core/clock.ts";

interface Timer {
  readonly at: number;
  readonly order: number;
  readonly task: () => void;
}

export class VirtualClock implements Clock {
  #mono = 1_000;
  #wallAhead: number;
  #order = 0;
  readonly #timers = new Set<Timer>();
  #soon: (() => void)[] = [];

  constructor(startsAt = Date.parse("2024-01-15T10:30:00Z")) {
    this.#wallAhead = startsAt - this.#mono;
  }

  now(): number {
    return this.#mono + this.#wallAhead;
  }

  mono(): number {
    return this.#mono;
  }

  after(ms: number, task: () => void): CallOff {
    const timer: Timer = { at: this.#mono + ms, order: this.#order++, task };
    this.#timers.add(timer);
    return () => void this.#timers.delete(timer);
  }

  soon(task: () => void): void {
    this.#soon.push(task);
  }

  /** In how many ms each pending timer is due, soonest first. */
  pending(): number[] {
    return this.#inOrder().map((timer) => timer.at - this.#mono);
  }

  /** Lets everything run that needs no time. */
  async settle(): Promise<void> {
    do {
      for (const task of this.#soon.splice(0)) task();
      await new Promise<void>((resolve) => setImmediate(resolve));
    } while (this.#soon.length > 0);
  }

  /** Moves both clocks on, running what becomes due on the way. */
  async advance(ms: number): Promise<void> {
    const until = this.#mono + ms;
    await this.settle();
    for (let next = this.#next(until); next; next = this.#next(until)) {
      this.#timers.delete(next);
      this.#mono = Math.max(this.#mono, next.at);
      next.task();
      await this.settle();
    }
    this.#mono = until;
  }

  /** The process stands still (a stopped process, a sleeping laptop): time passes and nothing runs. */
  freeze(ms: number): void {
    this.#mono += ms;
  }

  /** The wall clock is set to another time; the monotonic one goes on. */
  jumpWall(ms: number): void {
    this.#wallAhead += ms;
  }

  #next(until: number): Timer | undefined {
    return this.#inOrder().find((timer) => timer.at <= until);
  }

  #inOrder(): Timer[] {
    return [...this.#timers].toSorted((a, b) => a.at - b.at || a.order - b.order);
  }
}

/** Chance without chance: `next` always answers `value`, `hex` counts up. */
export function fixedRandom(value = 0.5): Random {
  let count = 0;
  return { next: () => value, hex: (bytes) => (++count).toString(16).padStart(bytes * 2, "0") };
}
