// Chance without chance, for tests of what core does with a Random.
import type { Random } from "../../src/job/time.ts";

/** `next` always returns `value`, `hex` counts up. */
export function fixedRandom(value = 0.5): Random {
  let count = 0;
  return { next: () => value, hex: (bytes) => (++count).toString(16).padStart(bytes * 2, "0") };
}
