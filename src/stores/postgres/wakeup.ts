// Wake-ups between processes: NOTIFY on one channel per schema, in separate transactions, never in a hot one, and never
// more than one in flight. A missed wake-up costs one poll interval at most. The maintenance listens on its long-lived
// session and calls `heard`.
import type { Clock } from "../../job/time.ts";
import type { Wakeup } from "../port.ts";
import { wakeupChannel } from "./address.ts";
import type { Connection } from "./connection.ts";

/** The payload of a message that shows that messages arrive. Earlier versions take it for a wake-up. */
const PROOF = "proof";

/** What a notification with this payload says. */
export function wakeupOf(payload: string | undefined): Wakeup {
  return payload === PROOF ? "proof" : "wake";
}

/** Wake-ups closer together than this are merged into one. */
const APART_MS = 10;

export class WakeupChannel {
  readonly #connection: Connection;
  readonly #clock: Pick<Clock, "after">;
  readonly #channel: string;
  readonly #listeners = new Set<(what: Wakeup) => void>();
  #isSending = false;
  #again = false;
  #closed = false;

  constructor(connection: Connection, clock: Pick<Clock, "after">) {
    this.#connection = connection;
    this.#clock = clock;
    this.#channel = wakeupChannel(connection.schema);
  }

  notify(what: Wakeup = "wake"): void {
    if (this.#closed) return;
    if (what === "proof") return void this.#send(PROOF);
    if (this.#isSending) {
      this.#again = true;
      return;
    }
    this.#isSending = true;
    void this.#send("").then(() => this.#clock.after(APART_MS, () => this.#sent()));
  }

  /** If it fails, the other workers poll. */
  #send(payload: string): Promise<unknown> {
    return this.#connection
      .run("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)", [this.#channel, payload])
      .catch(() => {});
  }

  onWakeup(listener: (what: Wakeup) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** A notification arrived. */
  readonly heard = (what: Wakeup = "wake"): void => {
    for (const listener of this.#listeners) listener(what);
  };

  close(): void {
    this.#closed = true;
    this.#listeners.clear();
  }

  #sent(): void {
    this.#isSending = false;
    if (!this.#again) return;
    this.#again = false;
    this.notify();
  }
}
