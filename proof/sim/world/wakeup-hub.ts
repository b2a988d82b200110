// Wake-ups between simulated processes: one made work ready, the others hear of it a moment later, or not at all.
import type { Wakeup } from "../../../src/stores/port.ts";
import type { SeededRandom } from "./random.ts";
import type { Thread } from "./thread.ts";

/** Best effort is the port's word for it: this share of wake-ups is not heard. */
const UNHEARD = 0.5;

export class WakeupHub {
  readonly #listeners = new Set<{ readonly thread: Thread; readonly listener: (what: Wakeup) => void }>();
  readonly #random: SeededRandom;

  constructor(random: SeededRandom) {
    this.#random = random;
  }

  hear(thread: Thread, listener: (what: Wakeup) => void): () => void {
    const entry = { thread, listener };
    this.#listeners.add(entry);
    return () => void this.#listeners.delete(entry);
  }

  wake(): void {
    this.#deliver("wake", () => !this.#random.chance(UNHEARD));
  }

  /** What the process that polls for all sends: the others rely on it, so it arrives wherever messages arrive at all. */
  send(what: Wakeup): void {
    this.#deliver(what, () => true);
  }

  #deliver(what: Wakeup, isHeard: () => boolean): void {
    for (const entry of this.#listeners) {
      if (entry.thread.dead) this.#listeners.delete(entry);
      else if (isHeard()) entry.thread.after(this.#random.next() * 3, () => entry.listener(what));
    }
  }
}
