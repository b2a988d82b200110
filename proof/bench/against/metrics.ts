// What `--against` measures, and over how many jobs in one round: enough for about a second of CPU or more.
import type { StoreName } from "../stores/tested-store.ts";

export const AGAINST_NAMES = ["drain", "enqueue", "step", "commit"] as const;
export type AgainstName = (typeof AGAINST_NAMES)[number];

export interface Counts {
  readonly jobs: Readonly<Record<AgainstName, number>>;
  /** Run before anything is measured, so that the code is compiled and the tables have pages. */
  readonly warmUp: number;
}

const WHOLE: Readonly<Record<StoreName, Counts>> = {
  sqlite: { jobs: { drain: 50_000, enqueue: 20_000, step: 20_000, commit: 10_000 }, warmUp: 5_000 },
  postgres: { jobs: { drain: 20_000, enqueue: 10_000, step: 4_000, commit: 2_000 }, warmUp: 1_000 },
  redis: { jobs: { drain: 50_000, enqueue: 20_000, step: 10_000, commit: 0 }, warmUp: 2_000 },
};

const QUICK: Counts = { jobs: { drain: 1_000, enqueue: 500, step: 500, commit: 200 }, warmUp: 100 };

export function countsOf(store: StoreName, quick: boolean): Counts {
  return quick ? QUICK : WHOLE[store];
}
