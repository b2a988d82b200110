// Wake-ups between simulated processes: one made work ready, the others hear of it a moment later, or not at all.
import type { SeededRandom } from "./random.ts";
import type { Thread } from "./thread.ts";

/** Best effort is the port's word for it: this share of wake-ups is not heard. */
const UNHEARD = 0.5;

export class WakeupHub {
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
