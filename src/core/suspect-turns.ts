// How a worker divides its time between ordinary jobs and jobs that must run alone. To run one alone, a busy worker has to stop claiming
// until it is idle. That must not last: a job in flight may never end. And ordinary jobs must not wait for a long row of suspects.
//
// - A worker empties itself for at most EMPTYING_MS. If it is not idle by then, it gives its reservation up, claims as usual for ten times
//   as long, and may take twice as long the next time, up to MAX_EMPTYING_MS. So suspects get their turn also between long handlers, and
//   cost at most an eleventh of the time if a handler never ends.
// - Once idle, it runs suspects for as long as it took to become idle, at least EMPTYING_MS, and finishes the one that runs. Then ordinary
//   jobs of the same priority come first for as long as all of that took. If none is ready, the suspects go on.
//
// A higher priority goes first in either direction; that is decided in the claim (alone.ts).
import type { SettleAndClaim } from "./settlement.ts";

/** How long a worker stops claiming, at first, in order to become idle for a job that must run alone. */
export const EMPTYING_MS = 5_000;
/** The longest time for which it does so, after it has failed to become idle several times. */
export const MAX_EMPTYING_MS = 60_000;
/** After it has failed, it claims as usual for this many times as long. */
const REST_FACTOR = 10;

export class SuspectTurns {
  /** Since when it has been taken up by suspects; null: it is not. */
  #sinceMono: number | null = null;
  /** When it was idle and took the first of them; null: it still empties itself. */
  #idleMono: number | null = null;
  #restUntilMono = Number.NEGATIVE_INFINITY;
  #emptyingMs = EMPTYING_MS;

  /** Before a turn that may claim: whether ordinary jobs come first in it. */
  ordinaryFirst(mono: number): boolean {
    if (mono >= this.#endMono()) this.#end(mono);
    return mono < this.#restUntilMono;
  }

  /** After a turn that had room. */
  noted({ claimed, emptying = false }: Pick<SettleAndClaim, "claimed" | "emptying">, mono: number): void {
    if (claimed.some(({ alone }) => alone)) {
      this.#sinceMono ??= mono;
      this.#idleMono ??= mono;
    } else if (emptying) this.#sinceMono ??= mono;
    else if (this.#sinceMono !== null) this.#end(mono);
  }

  /** In how many ms ordinary jobs may be claimed again, after a turn that claimed nothing alone; null: they may be now. */
  endsInMs(mono: number): number | null {
    return this.#sinceMono === null ? null : Math.max(0, this.#endMono() - mono);
  }

  #endMono(): number {
    if (this.#sinceMono === null) return Number.POSITIVE_INFINITY;
    if (this.#idleMono === null) return this.#sinceMono + this.#emptyingMs;
    return this.#idleMono + Math.max(EMPTYING_MS, this.#idleMono - this.#sinceMono);
  }

  #end(mono: number): void {
    const tookMs = mono - this.#sinceMono!;
    const emptyingMs = Math.min(this.#emptyingMs, (this.#idleMono ?? mono) - this.#sinceMono!);
    const failed = this.#idleMono === null && emptyingMs === this.#emptyingMs;
    this.#restUntilMono = mono + (failed ? REST_FACTOR * emptyingMs : tookMs);
    this.#emptyingMs = Math.min(MAX_EMPTYING_MS, Math.max(EMPTYING_MS, 2 * emptyingMs));
    this.#sinceMono = null;
    this.#idleMono = null;
  }
}
