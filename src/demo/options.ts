// What a run of the demo can be told, within which limits, and what holds when nothing is said.

export interface DemoOptions {
  readonly store: "sqlite" | "postgres";
  /** The PostgreSQL server to play on, in a schema of the demo's own; null: it starts one of its own. */
  readonly url: string | null;
  /** Transfers to make; the poison job comes on top. */
  readonly jobs: number;
  readonly workers: number;
  /** About how long the whole takes. */
  readonly seconds: number;
  readonly seed: number;
  readonly json: boolean;
  readonly keep: boolean;
}

/** The stores that there is a demo on. */
export const STORES: readonly DemoOptions["store"][] = ["sqlite", "postgres"];

/** Whole numbers, both ends included. */
export const LIMITS = {
  jobs: { least: 100, most: 200_000, usual: 5_000 },
  workers: { least: 2, most: 16, usual: 4 },
  seconds: { least: 5, most: 600, usual: 20 },
  seed: { least: 0, most: 2 ** 31 },
} as const;

export function newSeed(): number {
  return Math.floor(Math.random() * 1e6);
}
