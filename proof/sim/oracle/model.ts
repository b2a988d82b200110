// What the rows say, kept in memory from what the watch saw: the present row of each job and worker, and
// what happened within the present event. The laws compare with it; nothing of it comes from the engine's answers.
import type { Answer } from "./witness.ts";
import type { SimProcess } from "../world/process.ts";
import type { HistoryRow, IncidentRow, JobRow, LedgerRow, Seen, StepRow, Watch, WorkerRow } from "./watch.ts";

/** The codes in the file, written down here again: an oracle does not borrow the engine's tables. */
export const STATE = { queued: 0, running: 1, succeeded: 2, dead: 3, cancelled: 4, quarantined: 5 } as const;
export const STATE_NAMES = ["queued", "running", "succeeded", "dead", "cancelled", "quarantined"] as const;
export const OUTCOME = {
  succeeded: 0,
  failed: 1,
  timedOut: 2,
  crashed: 3,
  released: 4,
  cancelled: 5,
  rejected: 6,
  corrupt: 7,
  lost: 8,
  waiting: 9,
} as const;

/** As the engine calls them, in the order of their codes. */
export const OUTCOME_NAMES = [
  "succeeded",
  "failed",
  "timed-out",
  "crashed",
  "released",
  "cancelled",
  "rejected",
  "corrupt",
  "lost",
  "waiting",
] as const;

export function isTerminal(state: number): boolean {
  return state >= STATE.succeeded;
}

export interface KnownWorker {
  row: WorkerRow;
  /** Virtual ms of its registration or latest accepted heartbeat. */
  aliveAt: number;
  readonly bornAt: number;
  process: SimProcess | null;
}

/** Everything that came of one event. */
export interface Moment {
  readonly now: number;
  readonly wall: number;
  readonly process: SimProcess | null;
  readonly seen: readonly Seen[];
  readonly answers: readonly Answer[];
}

export class Model {
  readonly jobs = new Map<number, JobRow>();
  readonly jobsById = new Map<string, JobRow>();
  readonly workers = new Map<number, KnownWorker>();
  readonly workersById = new Map<string, KnownWorker>();
  readonly incidents = new Map<string, IncidentRow>();
  /** How many attempts of each worker, by its id, ended otherwise than by its recovery, although that may have begun. */
  readonly endedBeside = new Map<string, number>();
  /** The jobs that each incident took, by its id. */
  readonly takenIn = new Map<string, Set<number>>();
  readonly #process: (pid: number) => SimProcess | null;

  constructor(process: (pid: number) => SimProcess | null) {
    this.#process = process;
  }

  /** After the laws have looked at it. */
  learn(seen: Seen, now: number): void {
    switch (seen.subject) {
      case "job": {
        const { is } = seen;
        if (is) {
          this.jobs.set(is.seq, is);
          this.jobsById.set(is.id, is);
        }
        return;
      }
      case "worker": {
        const { was, is } = seen;
        if (!is) return;
        const known = this.workers.get(is.seq);
        if (!known) {
          const fresh = { row: is, aliveAt: now, bornAt: now, process: this.#process(is.pid) };
          this.workers.set(is.seq, fresh);
          this.workersById.set(is.id, fresh);
          return;
        }
        if (was && was.beats !== is.beats) known.aliveAt = now;
        known.row = is;
        return;
      }
      case "incident":
        if (seen.is) this.incidents.set(seen.is.id, seen.is);
        return;
      case "history": {
        const { is } = seen;
        if (!is || is.incident === null) return;
        const taken = this.takenIn.get(is.incident) ?? new Set();
        this.takenIn.set(is.incident, taken.add(is.job));
        return;
      }
      default:
        return;
    }
  }

  /** How many workers died, and were recovered whole between `since` and `wall`, without holding this job. */
  deathsElsewhere(job: number, wall: number, since = Number.NEGATIVE_INFINITY): number {
    let count = 0;
    for (const { id, completed, how, resolution } of this.incidents.values()) {
      const died = how === "gone" || resolution === "died" || resolution === "away";
      // A death counts from the moment at which its worker is condemned; when that was, only its end tells.
      const isInTime = completed === null ? wall === Infinity : completed <= wall && completed >= since;
      if (died && isInTime && !this.takenIn.get(id)?.has(job)) count++;
    }
    return count;
  }

  /** As `deathsElsewhere`, whenever it was, and with those whose recovery has not ended: the store counts them, too. `own`: the incident that takes the job now. */
  allDeathsElsewhere(job: number, own: string | null): number {
    const open = [...this.incidents.values()].filter(
      ({ id, completed, how, resolution }) =>
        completed === null &&
        id !== own &&
        (how === "gone" || resolution === "died" || resolution === "away") &&
        !this.takenIn.get(id)?.has(job),
    );
    return this.deathsElsewhere(job, Infinity) + open.length;
  }

  /** The rows are older ones: after a loss of power, or a restore. `restored`: their workers do not speak for a process any more. */
  reload(watch: Watch, restored: boolean): void {
    const workers = new Map(this.workersById);
    for (const memory of [this.jobs, this.jobsById, this.workers, this.workersById, this.incidents, this.takenIn])
      memory.clear();
    for (const is of watch.all("job")) this.learn({ subject: "job", was: null, is }, 0);
    for (const is of watch.all("incident")) this.learn({ subject: "incident", was: null, is }, 0);
    for (const is of watch.all("history")) this.learn({ subject: "history", was: null, is }, 0);
    for (const is of watch.all("worker"))
      this.learn({ subject: "worker", was: null, is }, workers.get(is.id)?.aliveAt ?? 0);
    if (restored) for (const known of this.workers.values()) known.process = null;
  }
}

export function attemptOf(job: { readonly id: string; readonly epoch: number; readonly fence: number }): string {
  return `${job.id} ${job.epoch} ${job.fence}`;
}

export function changesOfJobs(moment: Moment): readonly { was: JobRow | null; is: JobRow | null }[] {
  return moment.seen.flatMap((seen) => (seen.subject === "job" ? [seen] : []));
}

export function historyOf(moment: Moment): readonly HistoryRow[] {
  return moment.seen.flatMap((seen) => (seen.subject === "history" && seen.is ? [seen.is] : []));
}

export function stepsOf(moment: Moment): readonly { was: StepRow | null; is: StepRow | null }[] {
  return moment.seen.flatMap((seen) => (seen.subject === "step" ? [seen] : []));
}

export function ledgerOf(moment: Moment): readonly { was: LedgerRow | null; is: LedgerRow | null }[] {
  return moment.seen.flatMap((seen) => (seen.subject === "ledger" ? [seen] : []));
}
