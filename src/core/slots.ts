// How many jobs a worker may run at once, in all and of each kind.
import type { Room } from "./store.ts";

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
