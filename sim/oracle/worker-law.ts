// The rows of workers: one that is over never comes back, one that left in peace is not called dead, a death has one incident,
// and silence is called so only after a whole lease without an accepted heartbeat.
import type { KnownWorker } from "./model.ts";
import type { WorkerRow } from "./watch.ts";
import { demand } from "./violation.ts";

const NEXT: Readonly<Record<string, readonly string[]>> = {
  live: ["live", "recovering", "gone", "stopped"],
  recovering: ["recovering", "gone"],
  gone: ["gone"],
  stopped: ["stopped"],
};

export class WorkerLaw {
  readonly #holds: (worker: string) => boolean;

  constructor(holds: (worker: string) => boolean) {
    this.#holds = holds;
  }

  onChange(was: WorkerRow, is: WorkerRow, known: KnownWorker | undefined, now: number): void {
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
}
