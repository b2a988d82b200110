// Nothing delays the detection of a death: a worker whose lock the kernel has released is found at the next check of any worker that was
// left alone meanwhile, whatever else that worker's maintenance has to do. If contact with it was lost before, that check is the late proof
// that resolves the loss.
import type { SimProcess } from "../world/process.ts";
import { demand } from "./violation.ts";
import type { KnownWorker, Model } from "./model.ts";

/** Maintenance checks all locks every 750 ms, and begins with that when its thread has started. */
const FOUND_WITHIN_MS = 2_500;

export class DetectionLaw {
  readonly #model: Model;
  readonly #isFree: (worker: string) => boolean;
  /** Since when (virtual ms) the lock of a worker has been free, by its number. */
  readonly #freeSince = new Map<number, number>();
  /** Since when the lock of a lost worker has been free, by its incident. */
  readonly #provedSince = new Map<string, number>();

  /** `isFree`: the lock proves that this worker is dead. */
  constructor(model: Model, isFree: (worker: string) => boolean) {
    this.#model = model;
    this.#isFree = isFree;
  }

  onTime(now: number): void {
    this.#lateProofs(now);
    for (const [seq, { row }] of this.#model.workers) {
      if (row.state !== "live" || !this.#isFree(row.id)) {
        this.#freeSince.delete(seq);
        continue;
      }
      const since = this.#freeSince.get(seq) ?? now;
      this.#freeSince.set(seq, since);
      this.#expectNoticed(since, now, `the death of ${row.id}, whose lock`);
    }
  }

  /** A loss that is not resolved, of a worker whose lock is free by now. */
  #lateProofs(now: number): void {
    for (const { id, worker, how, resolution, completed } of this.#model.incidents.values()) {
      if (how === "gone" || resolution !== null || completed === null || !this.#isFree(worker)) {
        this.#provedSince.delete(id);
        continue;
      }
      const since = this.#provedSince.get(id) ?? now;
      this.#provedSince.set(id, since);
      this.#expectNoticed(since, now, `that the lost worker ${worker} has died, whose lock`);
    }
  }

  #expectNoticed(since: number, now: number, what: string): void {
    if (now - since <= FOUND_WITHIN_MS) return;
    for (const watcher of this.#model.workers.values()) {
      const process = watching(watcher);
      if (!process) continue;
      const watchedMs = now - Math.max(since, watcher.bornAt, process.troubledUntil);
      demand(
        watchedMs <= FOUND_WITHIN_MS,
        () => `${process.name} has not noticed ${what} has been free for ${Math.round(now - since)} ms`,
      );
    }
  }

  /** The rows are older ones. */
  wentBack(): void {
    this.#freeSince.clear();
    this.#provedSince.clear();
  }
}

/** The process of a worker that watches the others; null: it does not. */
function watching({ row, process }: KnownWorker): SimProcess | null {
  return row.state === "live" && process?.alive && !process.paused && !process.isLeaving ? process : null;
}
