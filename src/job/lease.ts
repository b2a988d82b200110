// The lease is a value: which attempt of which job, by which worker, under which fence. Every write about an attempt carries
// one, and no write of the store takes a bare job id. Also: for how long a worker may trust what it holds.

/** One attempt's authority over one job. */
export interface Lease {
  /** The name of the job's kind. */
  readonly kind: string;
  /** The job's id. */
  readonly jobId: string;
  /** The store's own short name of the job's row. */
  readonly row: number;
  /** The worker's id. */
  readonly worker: string;
  /** The store's epoch at the claim. */
  readonly epoch: number;
  /** Grows with every claim of the job; also the number of the attempt. */
  readonly fence: number;
}

/** What a worker holds, in two numbers that do not grow with it. */
export interface HeldSummary {
  readonly count: number;
  /** The sum of `leaseHash`: the order does not matter, and a lease is added and removed without looking at the others. */
  readonly digest: number;
}

/**
 * Of row, epoch and fence, so that a store computes the same in its own language (`LEASE_HASH` in stores/rows.ts): x is a linear mix of them,
 * and the hash is the upper half of its square. The sum of a linear mix alone would not tell the rows 1 and 4 from 2 and 3.
 */
export function leaseHash({ row, epoch, fence }: Pick<Lease, "row" | "epoch" | "fence">): number {
  const x = (Math.imul(row, HASH.row) + Math.imul(epoch, HASH.epoch) + Math.imul(fence, HASH.fence)) & HASH.mask;
  return Math.floor((x * x) / 2 ** HASH.shift);
}

/** Odd, so that no two rows of 2^26 have the same x; 26 bits, so that the square is exact. */
export const HASH = { row: 40_503_021, epoch: 15_485_863, fence: 22_695_477, mask: 2 ** 26 - 1, shift: 20 } as const;

export function sameAttempt(a: Lease, b: { readonly epoch: number; readonly fence: number }): boolean {
  return a.epoch === b.epoch && a.fence === b.fence;
}

/** What a worker allows for between its own clock and what the watchers see: a tenth of the lease, at least 50 ms. */
export function leaseMarginMs(leaseMs: number): number {
  return Math.min(leaseMs / 2, Math.max(50, leaseMs / 10));
}

/**
 * Until when (own monotonic clock) a worker may believe that it still owns what it holds, if the heartbeat that it sent at
 * `sentAtMono` was accepted. The fence is the real guard; this only keeps a process that was paused from continuing for nothing.
 */
export function trustedUntil(sentAtMono: number, leaseMs: number): number {
  return sentAtMono + leaseMs - leaseMarginMs(leaseMs);
}

/** How far a worker may trust its own state. */
export interface Trust {
  /** Until when (own monotonic clock) it may trust that it holds its leases. */
  readonly untilMono: number;
  /** Whether the session that proves this worker alive is connected. */
  readonly inContact: boolean;
}

/** Trust from the heartbeats that the store accepted. Registering is the first. */
export class TrustByHeartbeat implements Trust {
  readonly #leaseMs: number;
  #untilMono: number;
  /**
   * Reads the last accepted heartbeat where it can be known before its message arrives (`MaintenanceListener.beatsAt`).
   */
  lastBeatMono: () => number | null = () => null;
  hasContact: () => boolean = () => true;

  constructor(leaseMs: number, registeredMono: number) {
    this.#leaseMs = leaseMs;
    this.#untilMono = trustedUntil(registeredMono, leaseMs);
  }

  get untilMono(): number {
    const last = this.lastBeatMono();
    return last === null ? this.#untilMono : Math.max(this.#untilMono, trustedUntil(last, this.#leaseMs));
  }

  get inContact(): boolean {
    return this.hasContact();
  }

  beaten(sentAtMono: number): void {
    this.#untilMono = Math.max(this.#untilMono, trustedUntil(sentAtMono, this.#leaseMs));
  }
}
