// What speaks for a worker in the simulated world. On one host that is the kernel: a lock goes with its process, at once, and
// what is left is a free one, which proves the death until it is cleaned away. On a server it is a session: it goes with its
// process, but also with its connection, so that a missing one proves nothing. And each host's kernel knows its own processes.
import type { Liveness, Probe, ProcessCheck } from "../../../src/stores/liveness.ts";
import type { SimProcess } from "./process.ts";
import { CONTACT_MS, LEASE_MS } from "./profile.ts";

export interface KernelOptions {
  /** False: locks prove nothing in this history (another boot), and only leases decide. */
  readonly locksProve: boolean;
  /** The lock of a worker is a session on a server. */
  readonly sessions: boolean;
  /** Whether a host's kernel is asked about its processes. */
  readonly processesProve: boolean;
  readonly now: () => number;
  readonly byPid: (pid: number) => SimProcess | null;
}

/** How long a watcher that was cut off itself holds back. */
const HOLD_MS = 1_000;
/** Looks that are further apart do not show that a session was missing all the time between them. */
const LOOKS_APART_MS = 2_000;

export class Kernel {
  readonly #holders = new Map<string, SimProcess | null>();
  readonly #options: KernelOptions;

  constructor(options: KernelOptions) {
    this.#options = options;
  }

  /** Whether the process that took the lock of this worker still holds it, and the others can see that. */
  holds(worker: string): boolean {
    const holder = this.#holders.get(`${worker}.lock`) ?? null;
    return holder !== null && !(this.#options.sessions && holder.wasCutOffFor(CONTACT_MS, 2 * LEASE_MS));
  }

  /** Whether a living process has this worker's lock, whether or not the others can see it: then no proof of its death can exist. */
  isAlive(worker: string): boolean {
    return (this.#holders.get(`${worker}.lock`) ?? null) !== null;
  }

  /** Whether its lock proves to every process that this worker is dead. */
  isFree(worker: string): boolean {
    const { locksProve, sessions } = this.#options;
    return locksProve && !sessions && this.#holders.get(`${worker}.lock`) === null;
  }

  died(process: SimProcess): void {
    for (const [name, holder] of this.#holders) if (holder === process) this.#holders.set(name, null);
  }

  /** What the kernel of this process's host says of the others there. */
  processCheckFor(process: SimProcess): ProcessCheck {
    return ({ pid, namespace }) => {
      const other = this.#options.byPid(pid);
      if (!this.#options.processesProve || other === null || namespace !== process.host) return "unknown";
      return other.alive ? "alive" : "gone";
    };
  }

  livenessFor(process: SimProcess): Liveness {
    const { locksProve, sessions } = this.#options;
    const probe = (name: string): Probe => {
      const holder = this.#holders.get(name);
      if (holder === undefined) return "unknown";
      return holder === null ? "free" : "held";
    };
    const liveness: Liveness = {
      take: async (workerId) => {
        const name = `${workerId}.lock`;
        if (process.alive) this.#holders.set(name, process);
        return {
          evidence: { name, identity: "1" },
          // Removed before it is released, as the file is. What stays is a proof of death.
          drop: async (remove) => {
            if (!process.alive) return;
            if (remove) this.#holders.delete(name);
            else this.#holders.set(name, null);
          },
        };
      },
      probe: async ({ lock }) => (!locksProve || lock.name === null ? "unknown" : probe(lock.name)),
      clean: async ({ lock }) => {
        if (lock.name === null || this.#holders.get(lock.name) !== null) return false;
        return this.#holders.delete(lock.name);
      },
    };
    return sessions ? this.#bySession(process, liveness) : liveness;
  }

  /** A session that is missing proves no death; and a watcher whose own was cut has missed everything. */
  #bySession(process: SimProcess, liveness: Liveness): Liveness {
    const { now, locksProve } = this.#options;
    const missing = new Map<string, { readonly since: number; readonly last: number; readonly beats: number }>();
    let cuts = process.cuts.length;
    let holdUntil = 0;
    const noteOwnCut = (): void => {
      if (cuts === process.cuts.length && !process.isCut) return;
      cuts = process.cuts.length;
      holdUntil = now() + HOLD_MS;
      missing.clear();
    };
    return {
      ...liveness,
      manyHosts: true,
      probe: async ({ lock, beats }) => {
        noteOwnCut();
        if (process.isCut) throw new Error("the watcher's own session is cut");
        if (!locksProve || lock.name === null) return "unknown";
        const holder = this.#holders.get(lock.name) ?? null;
        if (holder !== null && !holder.isCut) {
          missing.delete(lock.name);
          return "held";
        }
        if (now() < holdUntil) return "unknown";
        const seen = missing.get(lock.name);
        const goesOn = seen?.beats === beats && now() - seen.last <= LOOKS_APART_MS;
        const since = goesOn ? seen.since : now();
        missing.set(lock.name, { since, last: now(), beats });
        return now() - since >= CONTACT_MS ? "missing" : "unknown";
      },
      clean: async () => false,
      holdMs: () => (noteOwnCut(), Math.max(0, holdUntil - now())),
      isWaitingForContact: () => missing.size > 0,
    };
  }
}
