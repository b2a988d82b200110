// Wake-ups between processes: one channel per store, never more than one message in flight. A missed wake-up costs one poll interval at most.
import type { Clock } from "../../job/time.ts";
import type { Connection } from "./connection.ts";

/** Wake-ups closer together than this are merged into one. */
const APART_MS = 10;

export function bellChannel(tag: string): string {
  return `${tag}bell`;
}

export class WakeupChannel {
  readonly #connection: Connection;
  readonly #clock: Pick<Clock, "after">;
  readonly #listeners = new Set<() => void>();
  #underWay = false;
  #again = false;
  #closed = false;

  constructor(connection: Connection, clock: Pick<Clock, "after">) {
    this.#connection = connection;
    this.#clock = clock;
  }

  notify(): void {
    if (this.#closed) return;
    if (this.#underWay) {
      this.#again = true;
      return;
    }
    this.#underWay = true;
    // If it fails, the other workers poll.
    void this.#connection
      .command("PUBLISH", bellChannel(this.#connection.tag), "")
      .catch(() => {})
      .then(() => this.#clock.after(APART_MS, () => this.#sent()));
  }

  onWakeup(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** A message arrived. */
  heard(): void {
    for (const listener of this.#listeners) listener();
  }

  close(): void {
    this.#closed = true;
    this.#listeners.clear();
  }

  #sent(): void {
    this.#underWay = false;
    if (!this.#again) return;
    this.#again = false;
    this.notify();
  }
}
