// How many jobs a worker may run at once, in all and of each kind.
import type { Room } from "./store.ts";

export interface Concurrency {
  /** Most jobs in flight together. */
  readonly total: number;
  /** Most in flight of one kind; a kind that is not named is limited by `total` only. */
  readonly perKind: ReadonlyMap<string, number>;
}

export class Slots {
  static readonly NONE: Room = { total: 0, kinds: [], idle: false };

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

  /** What can be taken while `running` handlers are at work. A kind's own limit counts until its settlements are durable. */
  room(running: number): Room {
    const total = Math.max(0, this.#concurrency.total - running);
    const kinds = this.#kinds.map((kind) => {
      const limit = this.#concurrency.perKind.get(kind);
      return {
        kind,
        room: limit === undefined ? total : Math.max(0, Math.min(total, limit - (this.#running.get(kind) ?? 0))),
      };
    });
    return { total, kinds: kinds.filter(({ room }) => room > 0), idle: running === 0 };
  }
}
