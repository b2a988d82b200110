// Every slot comes back: a worker that stops claiming in order to run a suspect alone does so for a bounded time. Its reservation shows
// for how long; it is given up when the time is up, so that the worker claims other work and another worker may take the suspect.
import type { SimProcess } from "../world/process.ts";
import { type Model, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** The first time a worker stops claiming for so long, and each later time for up to twice as long as before. */
const FIRST_MS = 5_000;
/** The worker gives it up in its next turn. */
const TURN_MS = 1_500;
const ALONE_FROM_CRASHES = 2;

interface Reservation {
  readonly worker: number;
  readonly allowedMs: number;
  readonly since: number;
  /** When the worker was last unable to give it up. */
  busyAt: number;
}

export class ReservationLaw {
  readonly #model: Model;
  readonly #concurrency: number;
  /** By the number of the job. */
  readonly #reservations = new Map<number, Reservation>();
  /** How many reservations each worker has made, by its number. */
  readonly #counts = new Map<number, number>();

  constructor(model: Model, concurrency: number) {
    this.#model = model;
    this.#concurrency = concurrency;
  }

  onChange(is: JobRow, now: number): void {
    const { seq, reserved: worker } = is;
    if (worker === null || is.state !== STATE.queued) return void this.#reservations.delete(seq);
    if (this.#reservations.get(seq)?.worker === worker) return;
    const before = this.#counts.get(worker) ?? 0;
    this.#counts.set(worker, before + 1);
    this.#reservations.set(seq, { worker, allowedMs: FIRST_MS * 2 ** before, since: now, busyAt: now });
  }

  onTime(now: number): void {
    for (const [job, reservation] of this.#reservations) {
      const owner = this.#model.workers.get(reservation.worker);
      // A reservation of a worker that has ended holds up no other.
      if (owner?.row.state !== "live" || !owner.process?.alive) continue;
      if (!this.#mayClaim(owner.process, reservation.worker)) reservation.busyAt = now;
      const lastedMs = now - reservation.since;
      const freeMs = now - Math.max(reservation.busyAt, owner.process.troubledUntil);
      demand(
        lastedMs <= reservation.allowedMs + TURN_MS || freeMs <= TURN_MS,
        () =>
          `${owner.row.id} has reserved job ${this.#model.jobs.get(job)?.id} for ${Math.round(lastedMs)} ms; ${reservation.allowedMs} ms are allowed`,
      );
    }
  }

  /** The rows are older ones. */
  wentBack(): void {
    this.#reservations.clear();
    this.#counts.clear();
  }

  /** Whether its next turn can claim, and so give up what it has reserved. */
  #mayClaim(process: SimProcess, worker: number): boolean {
    if (process.blockedAt !== null || process.isLeaving) return false;
    const held = [...this.#model.jobs.values()].filter((job) => job.state === STATE.running && job.worker === worker);
    return (
      held.length < this.#concurrency && held.every(({ crashes, losses }) => crashes + losses < ALONE_FROM_CRASHES)
    );
  }
}
