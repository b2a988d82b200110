// The options of the demo, with their limits and defaults.

export interface DemoOptions {
  /** The PostgreSQL server to run on, in a schema of the demo's own; null: a temporary SQLite file. */
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
