// The lease is a value: which attempt of which job, by which worker, under which fence. Every write about an attempt carries
// one, and no write of the store takes a bare job id. Also: for how long a worker may trust what it holds.

/** One attempt's authority over one job. */
export interface Lease {
  readonly kind: string;
  readonly jobId: string;
  /** The store's own short name of the job's row. */
  readonly row: number;
  readonly worker: string;
  readonly epoch: number;
  /** Grows with every claim of the job; also the number of the attempt. */
  readonly fence: number;
}

export function sameAttempt(a: Lease, b: { readonly epoch: number; readonly fence: number }): boolean {
  return a.epoch === b.epoch && a.fence === b.fence;
}

/** What a worker allows for between its own clock and what the watchers see: a tenth of the lease, at least 50 ms. */
export function leaseMarginMs(leaseMs: number): number {
  return Math.min(leaseMs / 2, Math.max(50, leaseMs / 10));
}

/**
 * Until when (own monotonic clock) a worker may believe that it still owns what it holds, if the heartbeat that it sent at
 * `sentAtMono` was accepted. The fence is the real guard; this only keeps a process that was paused from going on in vain.
 */
export function trustedUntil(sentAtMono: number, leaseMs: number): number {
  return sentAtMono + leaseMs - leaseMarginMs(leaseMs);
}
