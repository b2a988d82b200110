// Single authority survives a restore (promises 4, 5 and 6): once an older copy was put in the place of the store, nothing that a worker
// from before writes is accepted, no epoch of before is issued again, no write goes to the file that was moved away, and the workers from
// before stop.
import type { SimProcess } from "../world/process.ts";
import type { Moment } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow, WorkerRow } from "./watch.ts";

/** A worker notices a restore with its next heartbeat, and then ends its handlers and its maintenance. */
const STOPS_WITHIN_MS = 8_000;

export class RestoreLaw {
  readonly #process: (pid: number) => SimProcess | null;
  readonly #misplaced: () => string | null;
  /** Every worker that registered before the latest restore. */
  readonly #former = new Set<string>();
  readonly #known = new Set<string>();
  /** The latest worker of each process. */
  readonly #workerOf = new Map<SimProcess, string>();
  /** Since when (virtual ms) a process has had to stop. */
  readonly #stopping = new Map<SimProcess, number>();
  #highestEpoch = 0;
  /** The highest epoch that was issued before the latest restore. */
  #epochBefore = -1;

  /** `misplaced`: the process that wrote to a file which was no longer at the path. */
  constructor(process: (pid: number) => SimProcess | null, misplaced: () => string | null) {
    this.#process = process;
    this.#misplaced = misplaced;
  }

  restored(now: number): void {
    this.#epochBefore = this.#highestEpoch;
    for (const worker of this.#known) this.#former.add(worker);
    for (const [process, worker] of this.#workerOf)
      if (process.alive && this.#former.has(worker)) this.#stopping.set(process, now);
  }

  /** Its row, if there is one, came back with a backup. */
  isFormer(worker: string): boolean {
    return this.#former.has(worker);
  }

  /** Whether an attempt with this epoch began before the latest restore. */
  isBefore(epoch: number): boolean {
    return epoch <= this.#epochBefore;
  }

  hasToStop(process: SimProcess): boolean {
    return this.#stopping.has(process);
  }

  /** `calmAt`: since when no fault strikes any more; null: not yet. From then on a call that failed is not an excuse. */
  onTime(now: number, calmAt: number | null): void {
    const misplaced = this.#misplaced();
    demand(
      misplaced === null,
      () => `${misplaced} wrote to a file that had been moved away, where no process finds it`,
    );
    for (const [process, since] of this.#stopping) {
      if (!process.alive) this.#stopping.delete(process);
      else if (process.blockedAt !== null) this.#stopping.set(process, now);
      else
        demand(
          now - Math.max(since, calmAt ?? process.troubledUntil) < STOPS_WITHIN_MS,
          () => `${process.name} goes on, ${Math.round(now - since)} ms after its store was replaced by an older copy`,
        );
    }
  }

  onRegistered({ id, pid }: WorkerRow): void {
    this.#known.add(id);
    const process = this.#process(pid);
    if (!process) return;
    this.#workerOf.set(process, id);
    this.#stopping.delete(process);
  }

  onClaim({ id, epoch, fence }: JobRow): void {
    demand(
      !this.isBefore(epoch),
      () =>
        `job ${id} was claimed under (${epoch}, ${fence}), and epoch ${this.#epochBefore} was issued before the restore`,
    );
    this.#highestEpoch = Math.max(this.#highestEpoch, epoch);
  }

  onMoment({ answers }: Moment): void {
    if (this.#former.size === 0) return;
    for (const answer of answers) {
      if (answer.of === "turn") {
        const { settled, claimed } = answer.answer;
        if (claimed.length > 0) this.#refuse(answer.worker, `claimed ${claimed[0]!.lease.jobId}`);
        answer.settlements.forEach(({ lease, change }, i) => {
          if (settled[i]?.is === "applied") this.#refuse(lease.worker, `ended ${lease.jobId} ("${change.name}")`);
        });
      } else if (answer.of === "commit") {
        const { lease } = answer.settlement;
        if (answer.answer.is === "applied") this.#refuse(lease.worker, `committed ${lease.jobId}`);
      } else if (answer.of === "write")
        answer.writes.forEach(({ lease, write }, i) => {
          if (answer.answers[i]?.is === "applied")
            this.#refuse(lease.worker, `wrote to ${lease.jobId} ("${write.type}")`);
        });
    }
  }

  #refuse(worker: string, what: string): void {
    demand(!this.#former.has(worker), () => `worker ${worker} from before the restore ${what} in the restored store`);
  }
}
