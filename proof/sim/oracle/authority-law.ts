// Promises 5 and 6: an attempt ends by its own settlement under its own fence, or by a recovery that had the right to it (the
// owner's lock is gone, or its lease has expired, or the job's deadline). No worker claims that is not live.
import type { Settlement } from "../../../src/stores/port.ts";
import type { DeadlineLaw } from "./deadline-law.ts";
import { attemptOf, type KnownWorker, type Model, type Moment, STATE } from "./model.ts";
import { demand, Violation } from "./violation.ts";
import type { HistoryRow, JobRow } from "./watch.ts";
import type { Answer } from "./witness.ts";

/** Others wait this much longer than an overdue job's own deadline and grace. */
const EXPIRE_MARGIN_MS = 2_000;

/** What was read of the store is written back within this time, or not at all. */
const READ_MS = 1_000;

export class AuthorityLaw {
  readonly #model: Model;
  readonly #deadlines: DeadlineLaw;
  readonly #holds: (worker: string) => boolean;
  readonly #graceMs: (kind: string) => number;
  #latest = 0;
  #last = 0;
  /** The latest time that the clock was set back. */
  #setBack = { byMs: 0, until: Number.NEGATIVE_INFINITY };

  constructor(
    model: Model,
    deadlines: DeadlineLaw,
    holds: (worker: string) => boolean,
    graceMs: (kind: string) => number,
  ) {
    this.#model = model;
    this.#deadlines = deadlines;
    this.#holds = holds;
    this.#graceMs = graceMs;
  }

  /** What was due once stays so, even if the clock goes back. */
  onTime(wall: number): void {
    if (wall < this.#last) this.#setBack = { byMs: this.#last - wall, until: wall + READ_MS };
    this.#last = wall;
    this.#latest = Math.max(this.#latest, wall);
  }

  /** The clock as a process that reads what is overdue, and then takes it, may have read it before it was moved back. */
  #readAt(wall: number): number {
    return wall < this.#setBack.until ? wall + this.#setBack.byMs : wall;
  }

  onClaim(is: JobRow, moment: Moment): void {
    demand(
      is.runAt === null || is.runAt <= this.#latest,
      () => `job ${is.id} was claimed ${is.runAt! - moment.wall} ms before its time`,
    );
    const owner = this.#ownerOf(is);
    demand(
      owner.row.state === "live",
      () => `job ${is.id} was claimed for ${owner.row.id}, which is ${owner.row.state}`,
    );
    demand(
      owner.process === moment.process && owner.process !== null && owner.process.alive,
      () => `job ${is.id} was claimed for ${owner.row.id} by ${moment.process?.name}`,
    );
  }

  /** The attempt of `was` has ended. Returns whether it was taken from its owner. */
  onEnd(was: JobRow, is: JobRow, moment: Moment, history: readonly HistoryRow[]): boolean {
    const own = moment.answers.some((answer) => settlementOf(answer, was) !== undefined);
    const owner = this.#ownerOf(was);
    if (own) {
      if (owner.row.state !== "live") this.#endedBeside(owner);
      return false;
    }
    const entry = history.find((row) => row.job === was.seq && row.fence === was.fence && row.to === is.state);
    const told = (): string => `attempt ${attemptOf(was)} of ${owner.row.id} was ended by ${moment.process?.name}`;
    if (!entry || entry.actor !== "system/recovery")
      throw new Violation(`${told()} without an accepted settlement (${entry?.actor ?? "no history"})`);
    if (entry.incident === null) {
      const dueAt = was.deadline === null ? Infinity : was.deadline + this.#graceMs(was.kind) + EXPIRE_MARGIN_MS;
      demand(this.#readAt(moment.wall) > dueAt, () => `${told()} as overdue, ${dueAt - moment.wall} ms too early`);
      this.#deadlines.onExpired(was, EXPIRE_MARGIN_MS, moment.now);
      this.#endedBeside(owner);
      return true;
    }
    const silentMs = moment.now - owner.aliveAt;
    demand(
      !this.#holds(owner.row.id) || silentMs >= owner.row.lease,
      () =>
        `${told()} as dead, but its lock was held and its last accepted heartbeat was ${silentMs.toFixed(1)} ms ago (lease ${owner.row.lease} ms)`,
    );
    return true;
  }

  #endedBeside({ row }: KnownWorker): void {
    const { endedBeside } = this.#model;
    endedBeside.set(row.id, (endedBeside.get(row.id) ?? 0) + 1);
  }

  #ownerOf(row: JobRow): KnownWorker {
    const owner = row.worker === null ? undefined : this.#model.workers.get(row.worker);
    demand(owner !== undefined, () => `job ${row.id} is held by worker ${row.worker}, which has no row`);
    return owner;
  }
}

/** The settlement of exactly this attempt by its owner, if this answer says that it was accepted now. */
export function settlementOf(answer: Answer, was: JobRow): Settlement | undefined {
  if (answer.of === "commit")
    return answer.answer.is === "applied" && matches(answer.settlement.lease, was) ? answer.settlement : undefined;
  if (answer.of !== "turn") return undefined;
  return answer.settlements.find(({ lease }, i) => answer.answer.settled[i]?.is === "applied" && matches(lease, was));
}

function matches(lease: { jobId: string; epoch: number; fence: number }, was: JobRow): boolean {
  return (
    was.state === STATE.running && lease.jobId === was.id && lease.epoch === was.epoch && lease.fence === was.fence
  );
}
