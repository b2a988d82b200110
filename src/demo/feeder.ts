// Enqueues the jobs: half of them before anything dies, the rest while everything does. Remembers every id whose enqueue
// resolved: that is the promise which the audit holds against the store.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../index.ts";
import { ACCOUNTS } from "./bank.ts";
import type { Chance } from "./chance.ts";
import { checkedTransfer, poison, POISON_ID, transfer, type Transfer } from "./jobs.ts";

const EVERY_MS = 100;
/** The share that is there before the first kill. */
const AT_ONCE = 0.5;
/** After how many jobs the poison is planted, so that it sits among innocent ones. */
const POISON_AFTER = 0.05;
/** The share of transfers with steps. */
const CHECKED = 0.25;

export interface FeedOptions {
  readonly jobs: number;
  /** How long a job works on average. */
  readonly workMs: number;
  readonly signal: AbortSignal;
}

export class Feeder {
  /** Ids whose enqueue resolved. */
  readonly promised: string[] = [];
  readonly #engine: Engine;
  readonly #chance: Chance;
  readonly #options: FeedOptions;

  constructor(engine: Engine, chance: Chance, options: FeedOptions) {
    this.#engine = engine;
    this.#chance = chance;
    this.#options = options;
  }

  /** The first half, with the poison in it. */
  async fill(): Promise<void> {
    const { jobs } = this.#options;
    await this.#transfers(Math.floor(jobs * POISON_AFTER));
    const { id } = await this.#engine.enqueue(poison, {}, { id: POISON_ID });
    this.promised.push(id);
    await this.#transfers(Math.floor(jobs * AT_ONCE));
  }

  /** The other half, in step with `progress`, which goes from 0 to 1: there is work as long as there is a nemesis. */
  async stream(progress: () => number): Promise<void> {
    const { jobs, signal } = this.#options;
    const first = this.#made;
    while (this.#made < jobs && !signal.aborted) {
      await pause(EVERY_MS, undefined, { signal }).catch(() => {});
      await this.#transfers(first + Math.floor((jobs - first) * progress()));
    }
  }

  #made = 0;

  async #transfers(upTo: number): Promise<void> {
    const enqueued: Promise<unknown>[] = [];
    while (this.#made < upTo && !this.#options.signal.aborted) {
      const id = `transfer-${String(++this.#made).padStart(6, "0")}`;
      const kind = this.#chance.next() < CHECKED ? checkedTransfer : transfer;
      enqueued.push(this.#engine.enqueue(kind, this.#input(), { id }).then(() => this.promised.push(id)));
    }
    await Promise.all(enqueued);
  }

  #input(): Transfer {
    const { workMs } = this.#options;
    const from = this.#chance.whole(1, ACCOUNTS);
    const to = (from + this.#chance.whole(1, ACCOUNTS - 1) - 1) % ACCOUNTS;
    return {
      from,
      to: to + 1,
      amount: this.#chance.whole(1, 500),
      workMs: Math.round(workMs * (0.4 + 1.2 * this.#chance.next())),
    };
  }
}
