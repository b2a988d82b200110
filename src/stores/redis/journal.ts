// What the server acknowledged to this process, for as long as a server may still lose it: jobs that were enqueued, attempts that ended, signals that were sent. Each
// has the number of the operation that wrote it. A store that went back says how many operations it has, so what is missing is known exactly, and is
// sent again: the same ids, the same fences, so what survived is not done twice. What can't be sent waits for the next connection. Neither part grows without bound.
import type { ScriptName } from "./scripts.ts";

/** Sent again as this script with these arguments. */
export interface Resendable {
  readonly script: Extract<ScriptName, "enqueue" | "settleAgain" | "signal">;
  readonly args: readonly string[];
}

interface Unsent extends Resendable {
  readonly chars: number;
}

interface Entry extends Unsent {
  readonly ops: number;
  readonly atMono: number;
}

/** `everysec` loses two seconds at most; a replica that is promoted is seldom further behind than this. */
export const KEPT_MS = 10_000;
export const KEPT_CHARS = 8_000_000;

export class Journal {
  #entries: Entry[] = [];
  #chars = 0;
  /** What the store has lost, and what was not sent again yet. */
  #unsent: Unsent[] = [];

  /** Of a call that wrote, as its operation `ops`. */
  note({ script, args }: Resendable, ops: number, atMono: number): void {
    const chars = sizeOf(args);
    this.#entries.push({ script, args, ops, atMono, chars });
    this.#chars += chars;
    let old = 0;
    for (const entry of this.#entries) {
      if (this.#chars <= KEPT_CHARS && atMono - entry.atMono <= KEPT_MS) break;
      this.#chars -= entry.chars;
      old++;
    }
    if (old > 0) this.#entries.splice(0, old);
  }

  /** The store has only this number of operations. Returns how many calls are dropped because too much waits to be sent again; the oldest are. */
  lose(has: number): number {
    const lost = this.#entries.filter(({ ops }) => ops > has);
    this.#entries = this.#entries.filter(({ ops }) => ops <= has);
    this.#chars = charsOf(this.#entries);
    this.#unsent.push(...lost);
    let chars = charsOf(this.#unsent);
    let dropped = 0;
    for (; chars > KEPT_CHARS; dropped++) chars -= this.#unsent[dropped]!.chars;
    this.#unsent.splice(0, dropped);
    return dropped;
  }

  /** In the order in which it was written. */
  get unsent(): readonly Resendable[] {
    return this.#unsent;
  }

  /** Now it was sent again; `ops`: as which operation, or null if nothing of it was missing. */
  sent(one: Resendable, ops: number | null, atMono: number): void {
    this.#unsent = this.#unsent.filter((other) => other !== one);
    if (ops !== null) this.note(one, ops, atMono);
  }
}

function sizeOf(args: readonly string[]): number {
  let chars = 0;
  for (const arg of args) chars += arg.length;
  return chars;
}

function charsOf(entries: readonly Unsent[]): number {
  return entries.reduce((sum, { chars }) => sum + chars, 0);
}
