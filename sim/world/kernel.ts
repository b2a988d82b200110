// What the kernel of the simulated host knows: which process holds which liveness lock. A lock goes with its process, at once
// and without anybody's doing; what is left is a free one, which proves the death until it is cleaned away.
import type { Liveness } from "../../src/core/liveness.ts";
import type { SimProcess } from "./process.ts";

export class Kernel {
  readonly #holders = new Map<string, SimProcess | null>();
  /** False: locks prove nothing in this history (another host, another boot), and only leases decide. */
  readonly #proves: boolean;

  constructor(proves: boolean) {
    this.#proves = proves;
  }

  /** Whether the process that took the lock of this worker still holds it. */
  holds(worker: string): boolean {
    return (this.#holders.get(`${worker}.lock`) ?? null) !== null;
  }

  died(process: SimProcess): void {
    for (const [name, holder] of this.#holders) if (holder === process) this.#holders.set(name, null);
  }

  livenessFor(process: SimProcess): Liveness {
    return {
      take: async (workerId) => {
        const name = `${workerId}.lock`;
        if (process.alive) this.#holders.set(name, process);
        return {
          evidence: { name, identity: "1" },
          // Unlocked first, removed a moment later, as with a file.
          drop: async () => {
            if (!process.alive) return;
            this.#holders.set(name, null);
            process.main.soon(() => void this.#holders.delete(name));
          },
        };
      },
      probe: async ({ lock }) => {
        if (!this.#proves || lock.name === null) return "unknown";
        const holder = this.#holders.get(lock.name);
        if (holder === undefined) return "unknown";
        return holder === null ? "free" : "held";
      },
      clean: async ({ lock }) => {
        if (lock.name === null || this.#holders.get(lock.name) !== null) return false;
        return this.#holders.delete(lock.name);
      },
    };
  }
}
