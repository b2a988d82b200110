// Wake-ups between processes: NOTIFY on one channel per schema, in transactions of their own, never in a hot one, and never more
// than one on its way. A missed ring costs one poll interval, no more. Whoever has a session that stays listens on it (the maintenance) and
// says so by `heard`.
import type { Clock } from "../../job/time.ts";
import { bellChannel } from "./address.ts";
import type { Connection } from "./connection.ts";

/** Rings that follow each other faster than this are one. */
const APART_MS = 10;

export class WakeupChannel {
  readonly #connection: Connection;
  readonly #clock: Pick<Clock, "after">;
  readonly #channel: string;
  readonly #listeners = new Set<() => void>();
  #wakeups = false;
  #again = false;
  #closed = false;

  constructor(connection: Connection, clock: Pick<Clock, "after">) {
    this.#connection = connection;
    this.#clock = clock;
    this.#channel = bellChannel(connection.schema);
  }

  ring(): void {
    if (this.#closed) return;
    if (this.#wakeups) {
      this.#again = true;
      return;
    }
    this.#wakeups = true;
    // The others poll, should it fail.
    void this.#connection
      .run("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')", [this.#channel])
      .catch(() => {})
      .then(() => this.#clock.after(APART_MS, () => this.#rung()));
  }

  onWakeup(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** Somebody rang. */
  heard(): void {
    for (const listener of this.#listeners) listener();
  }

  close(): void {
    this.#closed = true;
    this.#listeners.clear();
  }

  #rung(): void {
    this.#wakeups = false;
    if (!this.#again) return;
    this.#again = false;
    this.ring();
  }
}
