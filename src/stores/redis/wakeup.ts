// Wake-ups between processes: one channel per store, never more than one message in flight. A missed wake-up costs one poll interval at most.
import type { Clock } from "../../job/time.ts";
import type { Wakeup } from "../port.ts";
import type { Connection } from "./connection.ts";

/** A message that shows that messages arrive. Earlier versions take it for a wake-up. */
const PROOF = "proof";

/** What such a message says. */
export function wakeupOf(message: string): Wakeup {
  return message === PROOF ? "proof" : "wake";
}

/** Wake-ups closer together than this are merged into one. */
const APART_MS = 10;

export function wakeupChannel(tag: string): string {
  return `${tag}wakeup`;
}

export class WakeupChannel {
  readonly #connection: Connection;
  readonly #clock: Pick<Clock, "after">;
  readonly #listeners = new Set<(what: Wakeup) => void>();
  #underWay = false;
  #again = false;
  #closed = false;

  constructor(connection: Connection, clock: Pick<Clock, "after">) {
    this.#connection = connection;
    this.#clock = clock;
  }

  notify(what: Wakeup = "wake"): void {
    if (this.#closed) return;
    if (what === "proof") return void this.#send(PROOF);
    if (this.#underWay) {
      this.#again = true;
      return;
    }
    this.#underWay = true;
    void this.#send("").then(() => this.#clock.after(APART_MS, () => this.#sent()));
  }

  /** If it fails, the other workers poll. */
  #send(message: string): Promise<unknown> {
    return this.#connection.command("PUBLISH", wakeupChannel(this.#connection.tag), message).catch(() => {});
  }

  onWakeup(listener: (what: Wakeup) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** A message arrived. */
  heard(what: Wakeup = "wake"): void {
    for (const listener of this.#listeners) listener(what);
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
