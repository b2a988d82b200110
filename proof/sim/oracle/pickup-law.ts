// No job waits for long that an idle worker could take, whether a wake-up announced it or not: the elected process polls for all, and when it dies another
// one does. Wake-ups get lost here, so only these polls, or a worker's own, find the work.
import type { SimProcess } from "../world/process.ts";
import { type KnownWorker, type Model, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** The elected process polls every 3 s; after a death another one is elected at its next probe, 2.5 s later at most. A worker's own poll comes after 10 s. */
const FOUND_WITHIN_MS = 7_000;
const CHECK_EVERY_MS = 250;
/** The lane of jobs that any worker may claim. */
const OPEN = 1;

export class PickupLaw {
  readonly #model: Model;
  readonly #processes: () => Iterable<SimProcess>;
  /** Since when a job has been ready, by its number. */
  readonly #readySince = new Map<number, number>();
  /** Since when a worker has held nothing, by its number. */
  readonly #idleSince = new Map<number, number>();
  #checkedAt = 0;
  /** When a worker came, went or was troubled last: the role may have had to move. */
  #unrestAt = 0;
  #fleet = "";

  constructor(model: Model, processes: () => Iterable<SimProcess>) {
    this.#model = model;
    this.#processes = processes;
  }

  onTime(now: number): void {
    if (now - this.#checkedAt < CHECK_EVERY_MS) return;
    this.#checkedAt = now;
    this.#noteUnrest(now);
    const idle = this.#idle(now);
    for (const job of this.#model.jobs.values()) {
      if (!isReady(job)) {
        this.#readySince.delete(job.seq);
        continue;
      }
      const since = this.#readySince.get(job.seq) ?? now;
      this.#readySince.set(job.seq, since);
      const waitedMs = now - Math.max(since, idle, this.#unrestAt);
      demand(
        waitedMs <= FOUND_WITHIN_MS,
        () => `nobody polls: ${job.id} is ready, and a worker has been idle for ${Math.round(waitedMs)} ms`,
      );
    }
  }

  wentBack(): void {
    this.#readySince.clear();
    this.#idleSince.clear();
  }

  #noteUnrest(now: number): void {
    for (const { alive, paused, isCut, isLeaving, blockedAt, troubledUntil } of this.#processes()) {
      if (alive) this.#unrestAt = Math.max(this.#unrestAt, troubledUntil);
      if (alive && (paused || isCut || isLeaving || blockedAt !== null)) this.#unrestAt = now;
    }
    const live = [...this.#model.workers.values()].filter(
      ({ row }) => row.state === "live" || row.state === "recovering",
    );
    const fleet = live.map(({ row, process }) => `${row.id} ${row.state} ${process?.alive}`).join("\n");
    if (fleet === this.#fleet) return;
    this.#fleet = fleet;
    this.#unrestAt = now;
  }

  /** Since when some worker has been idle; infinite: none is. */
  #idle(now: number): number {
    const busy = new Set<number>();
    for (const { state, worker } of this.#model.jobs.values()) if (state === STATE.running) busy.add(worker!);
    let earliest = Number.POSITIVE_INFINITY;
    for (const [seq, worker] of this.#model.workers) {
      if (!isAtWork(worker) || busy.has(seq)) {
        this.#idleSince.delete(seq);
        continue;
      }
      const since = this.#idleSince.get(seq) ?? now;
      this.#idleSince.set(seq, since);
      earliest = Math.min(earliest, Math.max(since, worker.bornAt));
    }
    return earliest;
  }
}

function isAtWork({ row, process }: KnownWorker): boolean {
  return row.state === "live" && process !== null && process.alive;
}

function isReady({ state, lane }: JobRow): boolean {
  return state === STATE.queued && lane === OPEN;
}
