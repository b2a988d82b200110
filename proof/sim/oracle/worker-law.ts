// The rows of workers: one that has ended never comes back, one that left in peace is not called dead, a death has one incident,
// and silence is called so only after a whole lease without an accepted heartbeat.
import { type KnownWorker, type Model, STATE } from "./model.ts";
import type { SimProcess } from "../world/process.ts";
import { LEASE_MS } from "../world/profile.ts";
import type { WorkerRow } from "./watch.ts";
import { demand } from "./violation.ts";

const NEXT: Readonly<Record<string, readonly string[]>> = {
  live: ["live", "recovering", "gone", "stopped"],
  recovering: ["recovering", "gone"],
  // A recovery tries again for jobs that an earlier one could not deal with.
  gone: ["gone", "recovering"],
  stopped: ["stopped"],
};

/** Leases for which nothing happened to a worker, its calls or its store: it is in good health, and its work may not be taken. */
const HEALTHY_LEASES = 1;

export class WorkerLaw {
  readonly #model: Model;
  readonly #holds: (worker: string) => boolean;

  constructor(model: Model, holds: (worker: string) => boolean) {
    this.#model = model;
    this.#holds = holds;
  }

  onChange(was: WorkerRow, is: WorkerRow, known: KnownWorker | undefined, now: number): void {
    const process = known?.process;
    const over = was.state === "live" && is.state !== "live";
    demand(
      !over ||
        is.state === "stopped" ||
        !process?.alive ||
        !this.#holdsWork(is) ||
        now - Math.max(process.troubledUntil, known!.bornAt) < HEALTHY_LEASES * is.lease,
      () =>
        `worker ${is.id} was taken for dead in good health: nothing was done to it since ${process?.troubledUntil.toFixed(1)}`,
    );
    demand(
      !over || is.state !== "stopped" || !this.#holdsWork(is),
      () => `worker ${is.id} stopped and still holds jobs`,
    );
    demand(
      was.state !== "gone" || is.state === "gone" || this.#holdsWork(is),
      () => `worker ${is.id} was gone and held nothing, and became ${is.state}`,
    );
    demand(
      NEXT[was.state]?.includes(is.state) ?? false,
      () => `worker ${is.id} was ${was.state} and became ${is.state}`,
    );
    const silentMs = now - (known?.aliveAt ?? now);
    demand(
      was.state !== "live" ||
        is.state === "live" ||
        is.state === "stopped" ||
        !this.#holds(is.id) ||
        silentMs >= is.lease,
      () =>
        `worker ${is.id} was taken for dead, but its lock was held and its last accepted heartbeat was ${silentMs.toFixed(1)} ms ago (lease ${is.lease} ms)`,
    );
  }

  /** `at`: when it expired. A loop that was blocked since may have reported it much later. */
  onLeaseLost(process: SimProcess, at: number): void {
    demand(
      at - process.troubledUntil < HEALTHY_LEASES * LEASE_MS,
      () =>
        `${process.name} lost its lease in good health: nothing was done to it since ${process.troubledUntil.toFixed(1)}`,
    );
  }

  /** A row whose registration was never answered holds nothing, and may be recovered at any time. */
  #holdsWork({ seq }: WorkerRow): boolean {
    for (const { state, worker } of this.#model.jobs.values())
      if (state === STATE.running && worker === seq) return true;
    return false;
  }
}
