// How long a place stays empty after a death: growing, so that a process that dies at its start does not eat the machine, and small
// again after a minute of good running.

const FIRST_MS = 100;
const LONGEST_MS = 30_000;
const GOOD_RUN_MS = 60_000;

export class RestartDelay {
  #nextMs = FIRST_MS;

  /** The delay after a life of `upMs`. */
  next(upMs: number): number {
    if (upMs >= GOOD_RUN_MS) this.#nextMs = FIRST_MS;
    const delayMs = this.#nextMs;
    this.#nextMs = Math.min(LONGEST_MS, delayMs * 2);
    return delayMs;
  }
}
