// How long a job waits after an attempt that failed. Pure: the random part comes in as a number.
import type { Backoff } from "./job.ts";

/** Delay before the attempt after the `failures`-th failure (1 for the first). `random` is uniform in [0, 1). */
export function backoffMs(backoff: Backoff, failures: number, random: number): number {
  const steps = Math.max(1, failures);
  // 2^53 would do, but a base of some minutes passes what a number of ms can mean long before.
  const plain = backoff.type === "linear" ? backoff.baseMs * steps : backoff.baseMs * 2 ** Math.min(steps - 1, 40);
  const capped = Math.min(plain, backoff.maxMs);
  return Math.round(capped * (1 - backoff.jitter + backoff.jitter * random));
}
