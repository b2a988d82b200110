// The worker's heartbeat: one row update per process and interval. A failed heartbeat is retried and counted, and never
// stops the worker. Until one succeeds, the worker's trust in its leases runs out (lease.ts).
import { toStoredError, whyStoreReplaced } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Clock } from "../job/time.ts";
import type { MaintenanceHandle, MaintenanceListener } from "../stores/backend.ts";
import type { BeatAnswer, Store } from "../stores/port.ts";
import type { ConfirmedTime } from "./confirmed-time.ts";
import type { MaintenanceOptions } from "./maintenance.ts";

const NOT_LIVE: BeatAnswer = {
  live: false,
  now: 0,
  held: { count: 0, digest: 0 },
  overdueMs: null,
  overdueJobId: null,
  schemaVersion: 0,
};

/** What a poll may cost a heartbeat. */
const MAX_POLL_MS = 50;

export class Heartbeat {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #events: Emitter;
  readonly #worker: string;
  readonly #loopLagMs: () => number;
  readonly #confirmed: () => ConfirmedTime;
  readonly #timeoutMs: number;
  readonly #pollMs: number;
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
    this.#pollMs = Math.floor(Math.min(MAX_POLL_MS, this.#timeoutMs / 3));
  }

  /**
   * Sends one heartbeat. `leases`: also ask for a list of what is held. `sentAtMono` is taken before the request: what
   * was held then is held for one lease from then on. Null: the heartbeat failed or timed out.
   */
  async tick(leases = false, polls = false): Promise<{ sentAtMono: number; answer: BeatAnswer } | null> {
    const sentAtMono = this.#clock.mono();
    const loopLagMs = Math.round(this.#loopLagMs());
    const beat = {
      loopLagMs,
      confirmed: this.#confirmed(),
      ...(leases && { leases }),
      ...(polls && { pollMs: this.#pollMs }),
    };
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

  /** When to send the next heartbeat: after the interval, or sooner after a failure, doubling from 100 ms. */
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

// Heartbeats from the main thread while the maintenance thread boots or restarts. On a busy machine a boot may take
// longer than a short lease, and the worker would lose the leases of its first jobs.

export class InterimHeartbeat {
  readonly #deps: { readonly clock: Clock; readonly store: Store };
  readonly #options: MaintenanceOptions;
  readonly #host: Pick<MaintenanceListener, "beaten">;
  #callOff: (() => void) | undefined;

  constructor(
    deps: { readonly clock: Clock; readonly store: Store },
    options: MaintenanceOptions,
    host: Pick<MaintenanceListener, "beaten">,
  ) {
    this.#deps = deps;
    this.#options = options;
    this.#host = host;
  }

  /** Sends heartbeats until the maintenance that `start` starts calls `end`, or until it is stopped. */
  async until(start: () => Promise<MaintenanceHandle>): Promise<MaintenanceHandle> {
    this.begin();
    try {
      const maintenance = await start();
      const stop = (): Promise<void> => {
        this.end();
        return maintenance.stop();
      };
      return { beat: (leases) => maintenance.beat(leases), stop };
    } catch (thrown) {
      this.end();
      throw thrown;
    }
  }

  begin(): void {
    this.#callOff = this.#deps.clock.after(this.#options.times.heartbeatMs, () => {
      void this.#beat()
        // Once the maintenance is up, it reports the failure.
        .catch(() => {})
        .finally(() => {
          if (this.#callOff) this.begin();
        });
    });
  }

  end(): void {
    this.#callOff?.();
    this.#callOff = undefined;
  }

  async #beat(): Promise<void> {
    const sentAtMono = this.#deps.clock.mono();
    const answer = await this.#deps.store.beat(this.#options.worker, { loopLagMs: 0 });
    if (this.#callOff && answer.live) this.#host.beaten(sentAtMono, answer);
  }
}
