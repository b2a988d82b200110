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
  jobs: { min: 100, max: 200_000, default: 5_000 },
  workers: { min: 2, max: 16, default: 4 },
  seconds: { min: 5, max: 600, default: 20 },
  seed: { min: 0, max: 2 ** 31 },
} as const;

export function newSeed(): number {
  return Math.floor(Math.random() * 1e6);
}
