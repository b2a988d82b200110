// What a worker holds: claimed, and not durably settled yet. An array of slots and not a Map: with a Map that is filled and emptied
// without end, a drain of 500,000 jobs held 229-244 MB and paused for up to 194 ms to collect; with slots 125 MB and 0.3 ms.
import type { CommitControl } from "./commit.ts";
import type { ClaimedJob } from "./job.ts";
import type { RunnableKind } from "./kind.ts";
import type { Attempt } from "./run.ts";
import type { Change } from "./transitions.ts";

/** A job that was claimed and whose settlement is not durable yet. */
export interface Held {
  readonly job: ClaimedJob;
  readonly kind: RunnableKind;
  readonly run: Attempt;
  readonly startedMono: number;
  /** Its place; -1: it is not held any more. */
  slot: number;
  deadlineMono: number;
  /** When a handler that was told to stop is given up, and why it had to stop; null: its time to end has not begun. */
  giveUp: { readonly atMono: number; readonly why: "timeout" | "cancelled" | "lease-lost" } | null;
  /** Its end is on its way to the store. */
  settling: boolean;
  /** The commit that is under way, which also sets `settling`; null: none is. */
  commit: CommitControl | null;
  /** What becomes of the job once the commit is rolled back that was interrupted; null: the handler decides. */
  afterCommit: (() => Change) | null;
  /** It was told that the lease is lost. */
  untrusted: boolean;
}

export class HeldJobs {
  readonly #slots: (Held | undefined)[] = [];
  readonly #free: number[] = [];

  get size(): number {
    return this.#slots.length - this.#free.length;
  }

  add(held: Held): void {
    held.slot = this.#free.pop() ?? this.#slots.length;
    this.#slots[held.slot] = held;
  }

  /** False: it was not held any more. */
  remove(held: Held): boolean {
    if (held.slot < 0) return false;
    this.#slots[held.slot] = undefined;
    this.#free.push(held.slot);
    held.slot = -1;
    return true;
  }

  at(slot: number): Held | undefined {
    return this.#slots[slot];
  }

  /** By a walk over the slots: for what happens rarely. */
  find(jobId: string): Held | undefined {
    return this.#slots.find((held) => held?.run.id === jobId);
  }

  all(): Held[] {
    return this.#slots.filter((held) => held !== undefined);
  }
}
