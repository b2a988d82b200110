// Promise 8, the part about blame: only a death with nothing else in flight is held against a job; the jobs beside the one that
// killed are never blamed for it; from its second crash on a job runs alone; and a worker never holds more than it may.
import type { KindFacts } from "../workloads/workload.ts";
import { attemptOf, type Model, type Moment, STATE } from "./model.ts";
import type { HistoryRow, JobRow } from "./watch.ts";
import { demand } from "./violation.ts";

const ALONE_FROM_CRASHES = 2;
/** Deaths of others may be forgotten after so long, by a clock that may have jumped. */
const BACKGROUND_MS = 600_000;
/** However many others died, this many times its limit is the end. */
const HARD_LIMIT = 3;

export class BlameLaw {
  readonly #model: Model;
  readonly #facts: (kind: string) => KindFacts;
  readonly #concurrency: number;
  /** What each worker knows that it holds, by its id: claims that were answered, until they were settled. */
  readonly #known = new Map<string, Map<string, { readonly alone: boolean }>>();

  constructor(model: Model, facts: (kind: string) => KindFacts, concurrency: number) {
    this.#model = model;
    this.#facts = facts;
    this.#concurrency = concurrency;
  }

  /** A crash was counted against the job. `before`: wall clock, before anything of this event. */
  onCrash(was: JobRow, is: JobRow, history: readonly HistoryRow[], before: number): void {
    this.#bounds(is, before);
    if (is.blamed !== was.blamed + 1) return;
    const counted = (event: string): boolean => event === "crash" || event === "countLoss";
    const entry = history.find((row) => row.job === is.seq && counted(row.event) && row.fence === is.fence);
    const incident = this.#model.incidents.get(entry?.incident ?? "");
    demand(incident?.held === 1, () => `job ${is.id} is blamed although ${incident?.held} jobs were in flight`);
    const owner = this.#model.workersById.get(incident.worker);
    demand(
      this.#facts(is.kind).poison || owner?.process?.cause !== "poison" || !this.#poisonWasHeld(owner.row.seq),
      () => `job ${is.id} is blamed for the death of ${owner?.row.id}, which another job had killed`,
    );
  }

  /**
   * Deaths alone beyond the limit are the job's fault unless as many workers died that did not hold it. Incidents of the same
   * event may have been counted or not.
   */
  #bounds(is: JobRow, before: number): void {
    const { crashes: limit } = this.#facts(is.kind).limits;
    const elsewhere = this.#model.deathsElsewhere(is.seq, Infinity);
    const told = (): string =>
      `job ${is.id} is in state ${is.state} after ${is.blamed} deaths alone (limit ${limit}) beside ${elsewhere} others`;
    demand(
      is.state !== STATE.queued || is.blamed < limit || (elsewhere >= is.blamed && is.blamed < HARD_LIMIT * limit),
      told,
    );
    demand(
      is.state !== STATE.quarantined ||
        (is.blamed >= limit &&
          (is.blamed >= HARD_LIMIT * limit ||
            is.blamed > this.#model.deathsElsewhere(is.seq, before, before - BACKGROUND_MS))),
      told,
    );
  }

  onMoment(moment: Moment): void {
    for (const answer of moment.answers) {
      if (answer.of === "lost") for (const { lease } of answer.claimed) this.#of(lease.worker).delete(keyOf(lease));
      if (answer.of === "commit") {
        const { lease } = answer.settlement;
        this.#of(lease.worker).delete(keyOf(lease));
      }
      if (answer.of !== "settleAndClaim") continue;
      const { worker, settlements, asked } = answer;
      const { claimed } = answer.answer;
      const known = this.#of(worker);
      for (const { lease } of settlements) known.delete(keyOf(lease));
      demand(claimed.length <= asked, () => `${worker} asked for ${asked} jobs and got ${claimed.length}`);
      for (const { lease } of claimed) {
        const row = this.#model.jobsById.get(lease.jobId);
        // A newer attempt of the same job in the same worker: the older one was fenced out and is over.
        for (const key of known.keys()) if (key.startsWith(`${lease.jobId} `)) known.delete(key);
        const alone = (row?.crashes ?? 0) + (row?.losses ?? 0) >= ALONE_FROM_CRASHES;
        demand(
          ![...known.values()].some((held) => held.alone || alone),
          () =>
            `${worker} got ${lease.jobId} beside ${[...known.keys()].join(", ")}, though one of them must run alone`,
        );
        known.set(keyOf(lease), { alone });
      }
      demand(
        known.size <= this.#concurrency,
        () =>
          `${worker} holds ${known.size} jobs at once, ${this.#concurrency} are allowed: ${[...known.keys()].join(", ")}`,
      );
      if (answer.lost) for (const { lease } of claimed) known.delete(keyOf(lease));
    }
  }

  /** Whether a job that kills was still this worker's, or was taken from it by the same recovery. */
  #poisonWasHeld(worker: number): boolean {
    for (const job of this.#model.jobs.values())
      if (job.worker === worker && this.#facts(job.kind).poison && (job.state === STATE.running || job.outcome === 3))
        return true;
    return false;
  }

  #of(worker: string): Map<string, { readonly alone: boolean }> {
    let known = this.#known.get(worker);
    if (!known) this.#known.set(worker, (known = new Map()));
    return known;
  }
}

function keyOf(lease: { jobId: string; epoch: number; fence: number }): string {
  return attemptOf({ id: lease.jobId, epoch: lease.epoch, fence: lease.fence });
}
