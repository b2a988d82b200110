// What a worker holds, in three views: how many jobs it may run at once, in all and of each kind; the suspects among them; and a summary
// that its store can compare.
import type { HeldSuspects } from "../job/isolation.ts";
import type { ClaimedJob } from "../job/job.ts";
import { type HeldSummary, type Lease, leaseHash } from "../job/lease.ts";
import type { Room } from "../stores/port.ts";

export interface Concurrency {
  /** Most jobs in flight together. */
  readonly total: number;
  /** Most in flight of one kind. */
  readonly perKind: ReadonlyMap<string, number>;
  /** Most in flight of all kinds together that are not named in `perKind`; left out: `total` alone limits them. */
  readonly others?: number;
}

export class Slots {
  static readonly NONE: Room = { total: 0, kinds: [] };

  readonly #concurrency: Concurrency;
  readonly #kinds: readonly string[];
  readonly #running = new Map<string, number>();
  /** While nothing limits a kind, the rooms of all kinds are the same list. */
  readonly #unlimited: boolean;

  constructor(concurrency: Concurrency, kinds: readonly string[]) {
    this.#concurrency = concurrency;
    this.#kinds = kinds;
    this.#unlimited = concurrency.perKind.size === 0;
  }

  took(kind: string): void {
    if (!this.#unlimited) this.#running.set(kind, (this.#running.get(kind) ?? 0) + 1);
  }

  freed(kind: string): void {
    if (!this.#unlimited) this.#running.set(kind, (this.#running.get(kind) ?? 1) - 1);
  }

  /**
   * What can be taken while `running` handlers are at work. `ending` are the leases of what is settled in the same transaction
   * as the claim: their slots are free in it.
   */
  room(running: number, ending: readonly { readonly lease: { readonly kind: string } }[] = []): Room {
    const total = Math.max(0, this.#concurrency.total - running);
    const inFlight = this.#unlimited ? this.#running : new Map(this.#running);
    if (!this.#unlimited) for (const { lease } of ending) inFlight.set(lease.kind, inFlight.get(lease.kind)! - 1);
    const { perKind, others = Number.POSITIVE_INFINITY } = this.#concurrency;
    const unnamed = this.#kinds.filter((kind) => !perKind.has(kind));
    const ofOthers = this.#unlimited ? 0 : unnamed.reduce((sum, kind) => sum + (inFlight.get(kind) ?? 0), 0);
    const shared = Math.max(0, Math.min(total, others - ofOthers));
    const kinds = this.#kinds.map((kind) => {
      const limit = perKind.get(kind);
      if (limit !== undefined) return { kind, room: Math.max(0, Math.min(total, limit - (inFlight.get(kind) ?? 0))) };
      return others === Number.POSITIVE_INFINITY ? { kind, room: shared } : { kind, room: shared, shares: true };
    });
    return { total, kinds: kinds.filter(({ room }) => room > 0) };
  }
}

// The suspects that a worker holds: how many more it may take (isolation.ts). A job is one until it ends or writes a durable step.

export class Suspects {
  readonly #together = new Map<string, number>();
  #oldestFirst = false;

  took({ lease, together }: ClaimedJob): void {
    if (together !== null) this.#together.set(lease.jobId, together);
  }

  /** Each time the last one is gone, the worker turns to the other end of those that wait. */
  freed(jobId: string): void {
    if (this.#together.delete(jobId) && this.#together.size === 0) this.#oldestFirst = !this.#oldestFirst;
  }

  /** Without those that are settled in the same transaction as the claim. Undefined: it holds none, and any may come first. */
  held(ending: readonly { readonly lease: { readonly jobId: string } }[]): HeldSuspects | undefined {
    if (this.#together.size === 0)
      return this.#oldestFirst ? { count: 0, together: null, oldestFirst: true } : undefined;
    const left = new Map(this.#together);
    for (const { lease } of ending) left.delete(lease.jobId);
    if (left.size === 0) return { count: 0, together: null, oldestFirst: !this.#oldestFirst };
    let together = Number.POSITIVE_INFINITY;
    for (const one of left.values()) together = Math.min(together, one);
    return { count: left.size, together, oldestFirst: this.#oldestFirst };
  }
}

// The summary of what a worker holds, now and at the ends of its latest turns and commits. The store is asked for its own summary while the worker
// goes on, so what it returns has to be one of these, and not the latest.

/** A busy worker takes some hundred turns while a slow store answers one heartbeat. */
const KEPT = 1_024;
/** When it was so, the count, the digest. */
const FIELDS = 3;

export class HeldSummaries {
  #count = 0;
  #digest = 0;
  /** Of numbers only, and written in place: this happens with every turn. */
  readonly #marks = new Float64Array(KEPT * FIELDS);
  #marked = 0;

  constructor() {
    this.mark(Number.NEGATIVE_INFINITY);
  }

  add(lease: Lease): void {
    this.#count++;
    this.#digest += leaseHash(lease);
  }

  remove(lease: Lease): void {
    this.#count--;
    this.#digest -= leaseHash(lease);
  }

  /** From this moment (monotonic) on, what is held now is what the store may show. */
  mark(mono: number): void {
    const at = (this.#marked++ % KEPT) * FIELDS;
    this.#marks[at] = mono;
    this.#marks[at + 1] = this.#count;
    this.#marks[at + 2] = this.#digest;
  }

  /** Whether this was so at some moment since then. False if that is too long ago to be known. */
  has({ count, digest }: HeldSummary, sinceMono: number): boolean {
    for (let mark = this.#marked - 1; mark >= 0 && mark >= this.#marked - KEPT; mark--) {
      const at = (mark % KEPT) * FIELDS;
      if (this.#marks[at + 1] === count && this.#marks[at + 2] === digest) return true;
      // It was so until the mark after it, which is not earlier than that moment.
      if (this.#marks[at]! < sinceMono) return false;
    }
    return false;
  }
}
