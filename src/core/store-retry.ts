// When a worker tries its store again after a failure: later each time, up to five seconds, and sooner at a sign that the store is back.
import type { CallOff, Clock } from "./clock.ts";

const MIN_MS = 50;
const MAX_MS = 5_000;
/** A sign brings the next try forward to this after the failure, so that many signs are no storm. */
const SIGNALLED_MS = 500;

export class StoreRetry {
  readonly #clock: Clock;
  readonly #again: () => void;
  #failures = 0;
  #wait: { readonly sinceMono: number; readonly atMono: number; readonly callOff: CallOff } | null = null;

  /** `again`: the next try is due. */
  constructor(clock: Clock, again: () => void) {
    this.#clock = clock;
    this.#again = again;
  }

  get isWaiting(): boolean {
    return this.#wait !== null;
  }

  /** Answers in how many ms the next try comes. */
  failed(): number {
    const inMs = Math.min(MAX_MS, MIN_MS * 2 ** Math.min(this.#failures++, 10));
    const sinceMono = this.#clock.mono();
    this.#waitUntil(sinceMono, sinceMono + inMs);
    return inMs;
  }

  succeeded(): void {
    this.#failures = 0;
  }

  /** The store may be back. */
  signalled(): void {
    if (!this.#wait) return;
    const { sinceMono, atMono } = this.#wait;
    if (sinceMono + SIGNALLED_MS < atMono) this.#waitUntil(sinceMono, sinceMono + SIGNALLED_MS);
  }

  close(): void {
    this.#wait?.callOff();
    this.#wait = null;
  }

  #waitUntil(sinceMono: number, atMono: number): void {
    this.#wait?.callOff();
    const callOff = this.#clock.after(Math.max(0, atMono - this.#clock.mono()), () => {
      this.#wait = null;
      this.#again();
    });
    this.#wait = { sinceMono, atMono, callOff };
  }
}
