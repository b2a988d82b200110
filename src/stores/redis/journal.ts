// What the server acknowledged to this process, for as long as a server may still lose it: jobs that were enqueued, attempts that ended, signals that were sent. Each
// has the number of the operation that wrote it. A store that went back says how many operations it has, so what is missing is known exactly, and is
// sent again: the same ids, the same fences, so what survived is not done twice.
import type { ScriptName } from "./scripts.ts";

/** Sent again as this script with these arguments. */
export interface Resendable {
  readonly script: Extract<ScriptName, "enqueue" | "settleAgain" | "signal">;
  readonly args: readonly string[];
}

interface Entry extends Resendable {
  /** Infinity: the store has lost it, and it was not sent again yet. */
  ops: number;
  readonly atMono: number;
  readonly chars: number;
}

/** `everysec` loses two seconds at most; a replica that is promoted is seldom further behind than this. */
export const KEPT_MS = 10_000;
export const KEPT_CHARS = 8_000_000;

export class Journal {
  #entries: Entry[] = [];
  #chars = 0;

  /** Of a call that wrote, as its operation `ops`. */
  note({ script, args }: Resendable, ops: number, atMono: number): void {
    let chars = 0;
    for (const arg of args) chars += arg.length;
    this.#entries.push({ script, args, ops, atMono, chars });
    this.#chars += chars;
    let old = 0;
    for (const entry of this.#entries) {
      if (entry.ops === Number.POSITIVE_INFINITY) break;
      if (this.#chars <= KEPT_CHARS && atMono - entry.atMono <= KEPT_MS) break;
      this.#chars -= entry.chars;
      old++;
    }
    if (old > 0) this.#entries.splice(0, old);
  }

  /** What the store does not have if `has` is the number of its operations, in the order in which it was written. */
  lost(has: number): readonly Entry[] {
    const lost = this.#entries.filter(({ ops }) => ops > has);
    for (const entry of lost) entry.ops = Number.POSITIVE_INFINITY;
    return lost;
  }
}
