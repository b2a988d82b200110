// A process that sends signals: each until its answer came, some of them twice, in any order. So a signal comes before its job, before the
// wait, during it, or when the job has ended.
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import { pause } from "../../../src/job/time.ts";
import type { Signal, Store } from "../../../src/stores/port.ts";
import type { SimProcess } from "../world/process.ts";

/** What is to be sent. It outlives the processes that send it. */
export class Outbox {
  readonly #all: readonly Signal[];
  #left: Set<Signal>;
  #losses = 0;

  constructor(all: readonly Signal[]) {
    this.#all = all;
    this.#left = new Set(all);
  }

  get isEmpty(): boolean {
    return this.#all.length === 0;
  }

  get left(): readonly Signal[] {
    return [...this.#left];
  }

  /** What was kept before may be lost: everything is sent again, under the same ids. */
  wentBack(): void {
    this.#losses++;
    this.#left = new Set(this.#all);
  }

  /** Sends one. A job that is not there yet, or that has ended and may be retried by hand, gets it again later. */
  async send(store: Store, signal: Signal): Promise<void> {
    const losses = this.#losses;
    const { is } = await store.operate.signal(signal);
    if (losses === this.#losses && (is === "kept" || is === "repeated")) this.#left.delete(signal);
  }
}

export async function signal(process: SimProcess, store: Store, outbox: Outbox): Promise<never> {
  const random = process.random.fork("signaller");
  const { clock } = process.main;
  for (;;) {
    const { left } = outbox;
    await pause(clock, random.next() * 400);
    if (left.length === 0) continue;
    const one = random.pick(left);
    try {
      await outbox.send(store, one);
      if (random.chance(0.2)) await outbox.send(store, one);
    } catch (thrown) {
      if (whyStoreReplaced(thrown) !== null) throw thrown;
      // Sent again.
    }
  }
}
