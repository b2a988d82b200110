// What a program has around its enqueues, as the client and a run pass jobs through it. The chain itself is made in engine/middleware.ts.
import type { JobContract } from "./contract.ts";
import type { EnqueueOptions } from "./enqueue.ts";
import type { Enqueued } from "./job.ts";

/** A job that is about to be enqueued. */
export interface JobToEnqueue {
  /** Its contract. What `next` gets must have the same. */
  readonly job: JobContract<never, never, unknown>;
  /** Its input, as the caller passed it. The schema checks what `next` gets. */
  readonly input: unknown;
  /** The options of the call. */
  readonly options: EnqueueOptions;
}

/** `last` enqueues what has come through. */
export type EnqueueAround = (job: JobToEnqueue, last: (job: JobToEnqueue) => Promise<Enqueued>) => Promise<Enqueued>;

/** Many jobs of one call: each passes through, and those that have come to the end share one write. Its caller awaits `flushed` after the last `add`. */
export class ManyAround {
  readonly #around: EnqueueAround;
  #arrived: { readonly resolve: (enqueued: Enqueued) => void; readonly reject: (thrown: unknown) => void }[] = [];
  #all: Promise<Enqueued>[] = [];

  constructor(around: EnqueueAround) {
    this.#around = around;
  }

  /** Resolves when the job has come to the end, where `push` takes it, or has ended before. Rejects if it was refused on its way. */
  async add(job: JobToEnqueue, push: (job: JobToEnqueue) => Promise<void>): Promise<void> {
    const { promise: arrived, resolve: arrive } = Promise.withResolvers<void>();
    const enqueued = this.#around(job, async (passed) => {
      await push(passed);
      const { promise, resolve, reject } = Promise.withResolvers<Enqueued>();
      this.#arrived.push({ resolve, reject });
      arrive();
      return promise;
    });
    this.#all.push(enqueued);
    // `flushed` rejects with it; until then it is not an unhandled rejection.
    enqueued.catch(() => {});
    await Promise.race([arrived, enqueued]);
  }

  /** `write` makes durable what was pushed, in that order. Resolves with what the chain of each made of it. */
  async flushed(write: () => Promise<readonly Enqueued[]>): Promise<readonly Enqueued[]> {
    const arrived = this.#arrived.splice(0);
    const all = this.#all.splice(0);
    try {
      const written = await write();
      arrived.forEach(({ resolve }, i) => resolve(written[i]!));
    } catch (thrown) {
      for (const { reject } of arrived) reject(thrown);
    }
    return Promise.all(all);
  }
}
