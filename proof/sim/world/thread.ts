// One thread of a simulated process, as the engine sees it: a clock whose timers are events of the scheduler. A stopped thread
// keeps its memory and misses its time; when it goes on, everything that became due meanwhile is due at once.
import type { CallOff, Clock } from "../../../src/job/time.ts";
import type { SimProcess } from "./process.ts";
import type { SeededRandom } from "./random.ts";
import type { Event, Scheduler } from "./scheduler.ts";

/** A timer fires up to this much late. Never early, and never twice at the same instant in two threads. */
const LATE_MS = 2;
/** How long the end of a turn is away. */
const TURN_MS = 0.2;

export class Thread {
  readonly name: string;
  readonly process: SimProcess;
  dead = false;
  stopped = false;
  /** What the program sees: its wall clock may be wrong and may jump. */
  readonly clock: Clock;
  readonly #scheduler: Scheduler;
  readonly #random: Pick<SeededRandom, "next">;
  readonly #deferred: Event[] = [];
  #lastSoonAt = 0;

  constructor(
    name: string,
    process: SimProcess,
    scheduler: Scheduler,
    random: Pick<SeededRandom, "next">,
    monoOrigin: number,
  ) {
    this.name = name;
    this.process = process;
    this.#scheduler = scheduler;
    this.#random = random;
    this.clock = {
      now: () => Math.floor(scheduler.wall + process.clockErrorMs),
      mono: () => monoOrigin + scheduler.now,
      after: (ms, task) => this.after(ms, task),
      soon: (task) => this.soon(task),
    };
  }

  after(ms: number, task: () => void): CallOff {
    const at = this.#scheduler.now + Math.max(0, ms) + this.#random.next() * LATE_MS;
    return this.#scheduler.at(at, this, task);
  }

  /** The turns of one thread stay in their order; other threads may come in between. */
  soon(task: () => void): void {
    this.#lastSoonAt = Math.max(this.#lastSoonAt, this.#scheduler.now) + this.#random.next() * TURN_MS;
    this.#scheduler.at(this.#lastSoonAt, this, task);
  }

  /** An event that came while the thread was stopped. */
  defer(event: Event): void {
    this.#deferred.push(event);
  }

  stop(): void {
    this.stopped = true;
  }

  goOn(): void {
    if (!this.stopped) return;
    this.stopped = false;
    for (const event of this.#deferred.splice(0)) {
      event.at = this.#scheduler.now;
      this.#scheduler.push(event);
    }
  }

  kill(): void {
    this.dead = true;
    this.#deferred.length = 0;
  }
}
