// Finds a process that blocks the store: it holds the write lock at every look for a whole lease, and meanwhile its own heartbeat,
// which needs that lock, has not moved. A process that only writes a lot beats in between. Looks and clock are given to it.

export interface Look {
  /** The process that holds the write lock just now; null: nobody. */
  readonly holder: number | null;
  /** How often the workers of each process have beaten. */
  readonly beats: ReadonlyMap<number, number>;
  readonly mono: number;
}

export class StoreWatch {
  readonly #leaseMs: number;
  #since: { readonly holder: number; readonly beats: number; readonly mono: number } | null = null;

  constructor(leaseMs: number) {
    this.#leaseMs = leaseMs;
  }

  /** Who has blocked the store for a lease, and how long; null: nobody. */
  look({ holder, beats, mono }: Look): { readonly pid: number; readonly forMs: number } | null {
    if (holder === null) {
      this.#since = null;
      return null;
    }
    const beaten = beats.get(holder) ?? 0;
    if (this.#since?.holder !== holder || this.#since.beats !== beaten) {
      this.#since = { holder, beats: beaten, mono };
      return null;
    }
    const forMs = mono - this.#since.mono;
    return forMs >= this.#leaseMs ? { pid: holder, forMs } : null;
  }
}
