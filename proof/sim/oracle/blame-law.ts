// Promise 8, the part about blame: only a death of which the job was the only suspect is held against it, never its first one; suspects that ran
// with the one that killed are never blamed for it; no more of them run in one process than each allows, and each death halves that; and a worker
// never holds more than it may.
import type { ClaimedJob } from "../../../src/job/job.ts";
import type { KindFacts } from "../workloads/workload.ts";
import { attemptOf, type Model, type Moment, STATE } from "./model.ts";
import type { HistoryRow, IncidentRow, JobRow } from "./watch.ts";
import { demand } from "./violation.ts";

/** Deaths of others may be forgotten after this long, by a clock that may have jumped. */
const BACKGROUND_MS = 600_000;
/** However many others died, this many times its limit is the end. */
const HARD_LIMIT = 3;

export class BlameLaw {
  readonly #model: Model;
  readonly #facts: (kind: string) => KindFacts;
  readonly #concurrency: number;
  readonly #ahead: number;
  /** What each worker knows that it holds, by its id: claims that were answered, until they were settled. */
  readonly #known = new Map<string, Map<string, string>>();
  /** What was in flight when each incident was opened, by its id. */
  readonly #inFlight = new Map<string, { readonly held: number; readonly suspects: ReadonlySet<number> }>();

  constructor(model: Model, facts: (kind: string) => KindFacts, concurrency: number, ahead: number) {
    this.#model = model;
    this.#facts = facts;
    this.#concurrency = concurrency;
    this.#ahead = ahead;
  }

  /** A crash was counted against the job. `before`: wall clock, before anything of this event. */
  onCrash(was: JobRow, is: JobRow, history: readonly HistoryRow[], before: number): void {
    this.#bounds(is, history, before);
    this.#halved(was, is, history);
    if (is.blamed !== was.blamed + 1) return;
    const counted = (event: string): boolean => event === "crash" || event === "countLoss";
    const entry = history.find((row) => row.job === is.seq && counted(row.event) && row.fence === is.fence);
    const incident = this.#model.incidents.get(entry?.incident ?? "");
    const inFlight = this.#inFlight.get(incident?.id ?? "");
    demand(
      incident !== undefined && inFlight?.suspects.size === 1 && inFlight.suspects.has(is.seq),
      () =>
        `job ${is.id} is blamed although it was not the only suspect of the ${inFlight?.held} jobs in flight, ` +
        `${inFlight?.suspects.size} of which were suspects`,
    );
    const owner = this.#model.workersById.get(incident.worker);
    demand(
      this.#facts(is.kind).poison || owner?.process?.cause !== "poison" || !this.#poisonWasHeld(owner.row.seq),
      () => `job ${is.id} is blamed for the death of ${owner?.row.id}, which another job had killed`,
    );
  }

  /** A job that is queued again after a death runs with at most half as many suspects as died with it. */
  #halved(was: JobRow, is: JobRow, history: readonly HistoryRow[]): void {
    if (is.state !== STATE.queued) return;
    const entry = history.find((row) => row.job === is.seq && row.event === "crash" && row.fence === is.fence);
    const inFlight = this.#inFlight.get(entry?.incident ?? "");
    if (!inFlight) return;
    const most = isSuspect(was) ? Math.max(1, Math.floor(inFlight.suspects.size / 2)) : Infinity;
    if (most === Infinity) return;
    demand(
      is.together >= 1 && is.together <= most,
      () => `job ${is.id} may run with ${is.together} suspects after a death of ${inFlight.held}`,
    );
  }

  /**
   * Deaths alone beyond the limit are the job's fault unless as many workers died that did not hold it. Incidents of the same
   * event may have been counted or not.
   */
  #bounds(is: JobRow, history: readonly HistoryRow[], before: number): void {
    const { crashes: limit } = this.#facts(is.kind).limits;
    const own = history.find((row) => row.job === is.seq && row.fence === is.fence)?.incident ?? null;
    const elsewhere = this.#model.allDeathsElsewhere(is.seq, own);
    const told = (): string =>
      `job ${is.id} is in state ${is.state} after ${is.blamed} deaths alone (limit ${limit}) and ${elsewhere} others`;
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
    for (const seen of moment.seen) if (seen.subject === "incident" && seen.is && !seen.was) this.#opened(seen.is);
    for (const answer of moment.answers) {
      if (answer.of === "lost") for (const { lease } of answer.claimed) this.#of(lease.worker).delete(keyOf(lease));
      if (answer.of === "commit") {
        const { lease } = answer.settlement;
        this.#of(lease.worker).delete(keyOf(lease));
      }
      if (answer.of !== "turn") continue;
      const { worker, settlements, asked, ahead } = answer;
      const { claimed } = answer.answer;
      const known = this.#of(worker);
      for (const { lease } of settlements) known.delete(keyOf(lease));
      const both = asked + ahead;
      demand(claimed.length <= both, () => `${worker} asked for ${both} jobs and got ${claimed.length}`);
      this.#aheadAreFresh(worker, claimed, asked);
      for (const { lease } of claimed) {
        const row = this.#model.jobsById.get(lease.jobId);
        // A newer attempt of the same job in the same worker: the older one was fenced out and has ended.
        for (const key of known.keys()) if (key.startsWith(`${lease.jobId} `)) known.delete(key);
        known.set(keyOf(lease), lease.jobId);
        if (row && isSuspect(row)) this.#fits(worker, known);
      }
      demand(
        known.size <= this.#concurrency + this.#ahead,
        () =>
          `${worker} holds ${known.size} jobs at once, ${this.#concurrency} and ${this.#ahead} ahead are allowed: ${[...known.keys()].join(", ")}`,
      );
      if (answer.lost) for (const { lease } of claimed) known.delete(keyOf(lease));
    }
  }

  /** What waits for a slot is held, and a death would count against it: only jobs that it costs nothing may wait. */
  #aheadAreFresh(worker: string, claimed: readonly ClaimedJob[], asked: number): void {
    if (claimed.length <= asked) return;
    const suspect = claimed.find(({ together }) => together !== null);
    const countsStarts = (kind: string): boolean =>
      this.#facts(kind).limited?.some(({ rate }) => rate !== undefined) === true;
    const others = claimed.slice(asked).filter(({ kind }) => countsStarts(kind));
    demand(suspect === undefined, () => `${worker} claimed ahead with the suspect ${suspect!.lease.jobId}`);
    demand(others.length === 0, () => `${worker} claimed ahead ${others[0]!.lease.jobId}, whose kind has a rate`);
  }

  /** The model is that of after the event, and condemning a worker changes no job. */
  #opened({ id, worker }: IncidentRow): void {
    const seq = this.#model.workersById.get(worker)?.row.seq;
    const held = [...this.#model.jobs.values()].filter((job) => job.state === STATE.running && job.worker === seq);
    this.#inFlight.set(id, { held: held.length, suspects: new Set(held.filter(isSuspect).map((job) => job.seq)) });
  }

  #fits(worker: string, known: ReadonlyMap<string, string>): void {
    const rows = [...known.values()].flatMap((id) => this.#model.jobsById.get(id) ?? []).filter(isSuspect);
    const together = Math.min(...rows.map((row) => row.together || Infinity));
    demand(
      rows.length <= together,
      () =>
        `${worker} holds ${rows.length} suspects (${rows.map(({ id }) => id).join(", ")}), and one of them may run with ${together}`,
    );
  }

  /** Whether a suspect that kills was still this worker's, or was taken from it by the same recovery. A fresh one is not to blame yet. */
  #poisonWasHeld(worker: number): boolean {
    for (const job of this.#model.jobs.values()) {
      if (job.worker !== worker || !this.#facts(job.kind).poison) continue;
      const deaths = job.crashes + job.losses;
      if ((job.state === STATE.running && deaths > 0) || (job.outcome === 3 && deaths > 1)) return true;
    }
    return false;
  }

  #of(worker: string): Map<string, string> {
    let known = this.#known.get(worker);
    if (!known) this.#known.set(worker, (known = new Map()));
    return known;
  }
}

function isSuspect({ crashes, losses }: JobRow): boolean {
  return crashes + losses > 0;
}

function keyOf(lease: { jobId: string; epoch: number; fence: number }): string {
  return attemptOf({ id: lease.jobId, epoch: lease.epoch, fence: lease.fence });
}
