// The suspects that a worker holds: how many more it may take (isolation.ts). A job is one until it ends or writes a durable step.
import type { HeldSuspects } from "./isolation.ts";
import type { ClaimedJob } from "./job.ts";

export class Suspects {
  readonly #together = new Map<string, number>();
  #oldestFirst = false;

  took({ lease, together }: ClaimedJob): void {
    if (together !== null) this.#together.set(lease.jobId, together);
  }

  /** Each time the last one is gone, the worker turns to the other end of those that wait. */
  freed(jobId: string): void {
    if (this.#together.delete(jobId) && this.#together.size === 0) this.#oldestFirst = !this.#oldestFirst;
  }

  /** Without those that are settled in the same transaction as the claim. Undefined: it holds none, and any may come first. */
  held(ending: readonly { readonly lease: { readonly jobId: string } }[]): HeldSuspects | undefined {
    if (this.#together.size === 0)
      return this.#oldestFirst ? { count: 0, together: null, oldestFirst: true } : undefined;
    const left = new Map(this.#together);
    for (const { lease } of ending) left.delete(lease.jobId);
    if (left.size === 0) return { count: 0, together: null, oldestFirst: !this.#oldestFirst };
    let together = Number.POSITIVE_INFINITY;
    for (const one of left.values()) together = Math.min(together, one);
    return { count: left.size, together, oldestFirst: this.#oldestFirst };
  }
}
