// The worker's sign of life: one row update per process and interval. A failing beat is retried and counted and never stops
// the worker; what it may trust meanwhile shrinks by itself (lease.ts).
import type { Clock } from "./clock.ts";
import type { ConfirmedTime } from "./confirmed-time.ts";
import { toStoredError, whyStoreReplaced } from "./errors.ts";
import type { Emitter } from "./events.ts";
import type { BeatAnswer, Store } from "./store.ts";

const NOT_LIVE: BeatAnswer = { live: false, now: 0, held: [], overdueMs: null, overdueJobId: null, schemaVersion: 0 };

export class Heartbeat {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #events: Emitter;
  readonly #worker: string;
  readonly #loopLagMs: () => number;
  readonly #confirmed: () => ConfirmedTime;
  readonly #timeoutMs: number;
  failures = 0;

  constructor(deps: {
    store: Store;
    clock: Clock;
    events: Emitter;
    worker: string;
    intervalMs: number;
    loopLagMs: () => number;
    confirmed: () => ConfirmedTime;
  }) {
    this.#store = deps.store;
    this.#clock = deps.clock;
    this.#events = deps.events;
    this.#worker = deps.worker;
    this.#loopLagMs = deps.loopLagMs;
    this.#confirmed = deps.confirmed;
    this.#timeoutMs = Math.max(50, deps.intervalMs / 3);
  }

  /** One beat. `sentAtMono` is taken before the store is asked: what was held then is held for a lease from then. Null: it failed or timed out. */
  async tick(): Promise<{ sentAtMono: number; answer: BeatAnswer } | null> {
    const sentAtMono = this.#clock.mono();
    const beat = { loopLagMs: Math.round(this.#loopLagMs()), confirmed: this.#confirmed() };
    try {
      const answer = await this.#inTime(this.#store.beat(this.#worker, beat));
      this.failures = 0;
      return { sentAtMono, answer };
    } catch (thrown) {
      const replaced = whyStoreReplaced(thrown);
      if (replaced !== null) return { sentAtMono, answer: { ...NOT_LIVE, replaced } };
      this.failures++;
      this.#events.emit("heartbeat.failed", {
        worker: this.#worker,
        error: toStoredError(thrown),
        failures: this.failures,
      });
      return null;
    }
  }

  /** When to beat next: the interval, or sooner after a failure, doubling from 100 ms. */
  nextInMs(intervalMs: number): number {
    return this.failures === 0 ? intervalMs : Math.min(intervalMs / 2, 100 * 2 ** Math.min(this.failures - 1, 10));
  }

  #inTime(beat: Promise<BeatAnswer>): Promise<BeatAnswer> {
    return new Promise((resolve, reject) => {
      const callOff = this.#clock.after(this.#timeoutMs, () =>
        reject(new Error(`no answer within ${Math.round(this.#timeoutMs)} ms`)),
      );
      beat.then(resolve, reject).finally(callOff);
    });
  }
}
