// Nothing delays the detection of a death: a worker whose lock the kernel has released is found at the next check of any worker that was
// left alone meanwhile, whatever else that worker's keeper has to do.
import type { SimProcess } from "../world/process.ts";
import { demand } from "./violation.ts";
import type { KnownWorker, Model } from "./model.ts";

/** A keeper checks all locks every 750 ms, and begins with that when its thread has started. */
const FOUND_WITHIN_MS = 2_500;

export class DetectionLaw {
  readonly #model: Model;
  readonly #isFree: (worker: string) => boolean;
  /** Since when (virtual ms) the lock of a worker has been free, by its number. */
  readonly #freeSince = new Map<number, number>();

  /** `isFree`: the lock proves that this worker is dead. */
  constructor(model: Model, isFree: (worker: string) => boolean) {
    this.#model = model;
    this.#isFree = isFree;
  }

  onTime(now: number): void {
    for (const [seq, { row }] of this.#model.workers) {
      if (row.state !== "live" || !this.#isFree(row.id)) {
        this.#freeSince.delete(seq);
        continue;
      }
      const since = this.#freeSince.get(seq) ?? now;
      this.#freeSince.set(seq, since);
      if (now - since <= FOUND_WITHIN_MS) continue;
      for (const watcher of this.#model.workers.values()) {
        const process = watching(watcher);
        if (!process) continue;
        const watchedMs = now - Math.max(since, watcher.bornAt, process.troubledUntil);
        demand(
          watchedMs <= FOUND_WITHIN_MS,
          () =>
            `${process.name} has not noticed the death of ${row.id}, whose lock has been free for ${Math.round(now - since)} ms`,
        );
      }
    }
  }

  /** The rows are older ones. */
  wentBack(): void {
    this.#freeSince.clear();
  }
}

/** The process of a worker that watches the others; null: it does not. */
function watching({ row, process }: KnownWorker): SimProcess | null {
  return row.state === "live" && process?.alive && !process.paused && !process.isLeaving ? process : null;
}
