// Wake-ups between processes: one channel per store. Scripts that queue jobs wake workers that sleep (lua/records.ts). What has to reach workers that do not, as a
// cancel has, is sent by the process that wrote it, never more than one message in flight; if that process dies before, their next turn finds it.
import type { Clock } from "../../job/time.ts";
import type { Wakeup } from "../port.ts";
import type { Connection } from "./connection.ts";
import { WAKE_APART_MS } from "./lua/records.ts";

/** proof: a process checks all workers, and will say so again within this many ms. joined, left: a worker. Sent by scripts (lua/workers.ts). */
export type Message = { readonly is: "wake" | "joined" | "left" } | { readonly is: "proof"; readonly forMs: number };

const PROOF = /^proof (\d+)$/;

/** What such a message says. */
export function messageOf(text: string): Message {
  const proof = PROOF.exec(text);
  if (proof) return { is: "proof", forMs: Number(proof[1]) };
  return { is: text === "joined" || text === "left" ? text : "wake" };
}

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
    // The script that elects a process sends them.
    if (what === "proof") return;
    if (this.#underWay) {
      this.#again = true;
      return;
    }
    this.#underWay = true;
    void this.#send().then(() => this.#clock.after(WAKE_APART_MS, () => this.#sent()));
  }

  /** If it fails, the other workers poll. */
  #send(): Promise<unknown> {
    return this.#connection.command("PUBLISH", wakeupChannel(this.#connection.tag), "").catch(() => {});
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
