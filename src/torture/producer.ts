// Enqueues the jobs of a run and remembers every id whose enqueue resolved, with its input: that is the promise which the audit compares
// with the store.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../index.ts";
import type { Chance } from "./killer.ts";
import { ACCOUNTS, checkedTransfer, poison, transfer, type Transfer } from "./tables.ts";

const EVERY_MS = 100;
/** The share of transfers with steps. */
const CHECKED = 0.25;
const POISON_ID = "poison-1";

export interface ProducerOptions {
  /** How long a transfer works on average. */
  readonly workMs: number;
  readonly signal: AbortSignal;
}

export class Producer {
  /** Jobs whose enqueue resolved, with the input of a transfer; null: the poison job. */
  readonly promised = new Map<string, Transfer | null>();
  /** Transfers so far. */
  transfers = 0;
  readonly #engine: Engine;
  readonly #chance: Chance;
  readonly #options: ProducerOptions;

  constructor(engine: Engine, chance: Chance, options: ProducerOptions) {
    this.#engine = engine;
    this.#chance = chance;
    this.#options = options;
  }

  /** `upTo`: how many there shall be in all. */
  async enqueueTransfers(upTo: number): Promise<void> {
    const enqueued: Promise<unknown>[] = [];
    while (this.transfers < upTo && !this.#options.signal.aborted) {
      const id = `transfer-${String(++this.transfers).padStart(6, "0")}`;
      const kind = this.#chance.next() < CHECKED ? checkedTransfer : transfer;
      const input = this.#input();
      enqueued.push(this.#engine.enqueue(kind, input, { id }).then(() => this.promised.set(id, input)));
    }
    await Promise.all(enqueued);
  }

  /** The job that kills whichever worker runs it. */
  async enqueuePoison(): Promise<void> {
    const { id } = await this.#engine.enqueue(poison, {}, { id: POISON_ID });
    this.promised.set(id, null);
  }

  /** Transfers in step with `upTo`, until it is null. */
  async stream(upTo: () => number | null): Promise<void> {
    const { signal } = this.#options;
    for (let due = upTo(); due !== null && !signal.aborted; due = upTo()) {
      await this.enqueueTransfers(Math.floor(due));
      await pause(EVERY_MS, undefined, { signal }).catch(() => {});
    }
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
