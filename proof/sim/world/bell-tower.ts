// The bell between simulated processes: whoever made work ready rings, the others hear it a moment later, or not at all.
import type { SeededRandom } from "./random.ts";
import type { Thread } from "./thread.ts";

/** Best effort is the port's word for it: this share of rings is not heard. */
const UNHEARD = 0.5;

export class BellTower {
  readonly #listeners = new Set<{ readonly thread: Thread; readonly listener: () => void }>();
  readonly #random: SeededRandom;

  constructor(random: SeededRandom) {
    this.#random = random;
  }

  hear(thread: Thread, listener: () => void): () => void {
    const entry = { thread, listener };
    this.#listeners.add(entry);
    return () => void this.#listeners.delete(entry);
  }

  ring(): void {
    for (const entry of this.#listeners) {
      if (entry.thread.dead) this.#listeners.delete(entry);
      else if (!this.#random.chance(UNHEARD)) entry.thread.after(this.#random.next() * 3, entry.listener);
    }
  }
}
