// What the bench needs of a store that it measures: new, empty places on it, jobs put there in advance, and its own floors.
import type { Bench } from "../harness.ts";

export const STORE_NAMES = ["sqlite", "postgres", "redis"] as const;
export type StoreName = (typeof STORE_NAMES)[number];

/** Jobs that are there before anything is measured. */
export interface Filling {
  readonly kind: "noop" | "unknown";
  readonly priority: number;
  readonly delay?: "30d";
  /** They have succeeded long ago. Default false: they are queued. */
  readonly finished?: boolean;
  /** How long ago they were enqueued and ended, on PostgreSQL. Default 0. */
  readonly ageMs?: number;
}

export interface TestedStore {
  readonly name: StoreName;
  /** What the floor drains in one transaction. */
  readonly floorBatch: number;
  /** The programs under proof/bench/programs that do the least. Both are given `url` and `batch`. */
  readonly floors: { readonly drain: string; readonly enqueue: string };
  /** The address of a new, empty store, with the schema of this source tree or of the one that is given. */
  place(tree?: string): Promise<string>;
  /** CPU of the store's server so far, in ms; 0 if it has none, null where it can't be read. */
  cpuMs(): Promise<number | null>;
  /** Removes it, as soon as it is not needed: a million jobs are some hundred MB. */
  drop(url: string): Promise<void>;
  fill(bench: Bench, url: string, filling: Filling, count: number): Promise<void>;
  /** From the handler of an exit, where nothing can be awaited. */
  destroyNow(): void;
}
