// The history of one seed as text: what happened when, in whose process. Its hash is the proof that a replay is the same; its
// end is what a person reads when a promise was broken.
import { createHash } from "node:crypto";
import type { Scheduler } from "./scheduler.ts";

/** The part of a worker's id that is the same for every worker of this real process and would differ in the next one. */
const STARTED = `-${Math.round(performance.timeOrigin).toString(36)}-`;

export class Story {
  readonly #scheduler: Scheduler;
  readonly #hash = createHash("sha256");
  readonly #lines: string[] = [];
  readonly #keep: number;

  /** `keep`: how many of the last lines are kept for reading. */
  constructor(scheduler: Scheduler, keep: number) {
    this.#scheduler = scheduler;
    this.#keep = keep;
  }

  tell(who: string, what: string): void {
    const line = `${this.#scheduler.now.toFixed(3).padStart(11)}  ${who.padEnd(10)} ${what.replaceAll(STARTED, "-")}`;
    this.#hash.update(line);
    this.#lines.push(line);
    if (this.#lines.length > 2 * this.#keep) this.#lines.splice(0, this.#lines.length - this.#keep);
  }

  last(): readonly string[] {
    return this.#lines.slice(-this.#keep);
  }

  digest(): string {
    return this.#hash.copy().digest("hex");
  }
}
