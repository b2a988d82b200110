// Ends of attempts, and the answer to a write whose fence did not hold. Inside a transaction.
import { isTerminal, JOB_STATES, type JobState } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import type { Change } from "../../job/transitions.ts";
import { APPLIED, REPEATED, type Settlement, type Stale, type WriteAnswer } from "../port.ts";
import { LANE, NEVER_DUE, OUTCOME, type SettledColumns, STATE, succeededBy } from "../rows.ts";
import { endRows, endRowsBySuccess } from "./blocks.ts";
import { checksumOf } from "./checksums.ts";
import { type Database, LEAST_RUN, wholly } from "./database.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import { returnStarts } from "./key-facts.ts";
import { relocate, wakeKeys } from "./keys.ts";
import { beginWait, consequences, dueAt, endAll } from "./waits.ts";
import type { Workers } from "./workers.ts";

/** The guard of every fenced write: this attempt, and only while it runs. */
export const OWNED = "seq = ? AND state = 1 AND fence = ? AND epoch = ? AND worker = ?";

const OWNED_BY = `SELECT crashes + losses FROM outlive_jobs WHERE ${OWNED}`;
const SUCCEED = "UPDATE outlive_jobs SET state = 2, outcome = 0, finished_at = ?";
// Most jobs have no extras, and nothing follows from their success. The others are found by a second try.
const SUCCEED_BARE = `${SUCCEED} WHERE ${OWNED} AND extras = 0`;
const SUCCEED_WITH = `${SUCCEED}, result = ?, result_sum = ? WHERE ${OWNED} AND extras = 0`;
const SUCCEED_EXTRAS_BARE = `${SUCCEED} WHERE ${OWNED} AND extras = 1`;
const SUCCEED_EXTRAS = `${SUCCEED}, result = ?, result_sum = ? WHERE ${OWNED} AND extras = 1`;
// Neighbours in one statement, along the table: half of what a statement for each costs.
const SUCCEED_RUN = `UPDATE outlive_jobs NOT INDEXED SET state = 2, outcome = 0, finished_at = ?
  WHERE seq BETWEEN ? AND ? AND state = 1 AND fence = ? AND epoch = ? AND worker = ? AND extras = ?`;
/** How many runs are settled one by one after one that could not be settled as a whole. */
const RUN_SKIPS = 16;

/** Refused writes kept in the history of one job: a zombie that writes in a loop must not fill the disk. */
const MAX_REJECTIONS = 100;

export class Settling {
  readonly #db: Database;
  readonly #kinds: Kinds;
  readonly #workers: Workers;
  /** The jobs with extras that succeeded in this transaction. */
  #ended: number[] = [];
  /** Whether the latest success was of a job with extras: the next one most likely is, too. */
  #hadExtras = false;
  #runSkips = 0;

  constructor(db: Database, kinds: Kinds, workers: Workers) {
    this.#db = db;
    this.#kinds = kinds;
    this.#workers = workers;
  }

  /**
   * What follows is enqueued after the last settlement: a dedupe key that one of these jobs had is free then. Keys that get room are added to
   * `roomy`, for a caller that looks at them in the same transaction; without it the next turn does.
   */
  settle(settlements: readonly Settlement[], now: number, roomy?: Set<number>): WriteAnswer[] {
    const followed: Change[] = [];
    this.#ended = [];
    const answers: WriteAnswer[] = [];
    for (let at = 0; at < settlements.length;) {
      const end = endOfRun(settlements, at);
      const together = end - at >= LEAST_RUN && this.#succeedRun(settlements[at]!.lease, end - at, now);
      for (; at < end; at++) answers.push(together ? APPLIED : this.#settleOne(settlements[at]!, followed, now));
    }
    if (this.#ended.length > 0) {
      const keys = endAll(this.#db, this.#ended, now);
      if (roomy) for (const key of keys) roomy.add(key);
      else wakeKeys(this.#db, keys, now);
    }
    if (followed.length > 0) insertFollowing(this.#db, this.#kinds, followed, now);
    return answers;
  }

  #settleOne({ lease, change }: Settlement, followed: Change[], now: number): WriteAnswer {
    const applied = change.name === "succeed" ? this.#succeed(lease, change, now) : this.#end(lease, change, now);
    if (applied === null) return this.refused(lease, change.name, now, change);
    if (applied.follow !== undefined) followed.push(applied);
    return APPLIED;
  }

  /** Whether this attempt owns its job now. */
  owns(lease: Lease): boolean {
    return this.owned(lease) !== undefined;
  }

  /** The crashes and losses that count against the job of this attempt; undefined: the attempt does not own it. */
  owned({ row, fence, epoch, worker }: Lease): number | undefined {
    this.#workers.begin();
    const [suspicions] =
      (this.#db.sqlArrays(OWNED_BY).get(row, fence, epoch, this.#workers.ownSeq(worker)) as unknown as
        | [number]
        | undefined) ?? [];
    return suspicions;
  }

  /** `count` neighbours from this one on, all or none. False: one of them is not ours any more, or only some have extras, and nothing is written. */
  #succeedRun({ row, fence, epoch, worker: id }: Lease, count: number, now: number): boolean {
    if (this.#runSkips > 0) {
      this.#runSkips--;
      return false;
    }
    const last = row + count - 1;
    const worker = this.#workers.ownSeq(id);
    const succeed = (extras: boolean): number =>
      Number(this.#db.sql(SUCCEED_RUN).run(now, row, last, fence, epoch, worker, extras ? 1 : 0).changes);
    const together = wholly(this.#db, () => {
      const changes = succeed(this.#hadExtras);
      if (changes > 0) return changes === count;
      // None is of the sort of those before: all may be of the other.
      this.#hadExtras = !this.#hadExtras;
      return succeed(this.#hadExtras) === count;
    });
    if (!together) this.#runSkips = RUN_SKIPS;
    else if (this.#hadExtras) for (let job = row; job <= last; job++) this.#ended.push(job);
    return together;
  }

  /** The hot one: few columns, no history. A running job has no result, so that none needs not be written. */
  #succeed(lease: Lease, change: Change, now: number): Change | null {
    const { row, fence, epoch } = lease;
    const { result } = change;
    const worker = this.#workers.ownSeq(lease.worker);
    if (this.#hadExtras && this.#succeedWithExtras(lease, change, worker, now)) return change;
    const { changes } =
      result === null
        ? this.#db.sql(SUCCEED_BARE).run(now, row, fence, epoch, worker)
        : this.#db.sql(SUCCEED_WITH).run(now, result, checksumOf(result, lease.jobId), row, fence, epoch, worker);
    if (changes === 1) this.#hadExtras = false;
    else if (this.#hadExtras || !this.#succeedWithExtras(lease, change, worker, now)) return null;
    return change;
  }

  #succeedWithExtras({ row, fence, epoch, jobId }: Lease, change: Change, worker: number, now: number): boolean {
    const { result, rows } = change;
    const { changes } =
      result === null
        ? this.#db.sql(SUCCEED_EXTRAS_BARE).run(now, row, fence, epoch, worker)
        : this.#db.sql(SUCCEED_EXTRAS).run(now, result, checksumOf(result, jobId), row, fence, epoch, worker);
    if (changes === 0) return false;
    if (rows !== undefined) endRowsBySuccess(this.#db, row, rows);
    this.#hadExtras = true;
    this.#ended.push(row);
    return true;
  }

  #end(lease: Lease, change: Change, now: number): Change | null {
    const { row: job, epoch, fence } = lease;
    const where = { sql: OWNED, values: [job, fence, epoch, this.#workers.ownSeq(lease.worker)] };
    const actor = `worker/${lease.worker}`;
    return applyChange(this.#db, change, now, where, { job, from: "running", actor, epoch, fence, incident: null });
  }

  /**
   * Why a fenced write changed nothing. If this very settlement of this very attempt was accepted before (the answer was lost),
   * it is repeated; otherwise it is stale, and the refusal is kept in the job's history.
   */
  refused(lease: Lease, tried: string, now: number, change: Change | null = null): WriteAnswer {
    const row = this.#db
      .sql(
        "SELECT j.state, j.epoch, j.fence, j.outcome, w.id AS worker FROM outlive_jobs j LEFT JOIN outlive_workers w ON w.seq = j.worker WHERE j.seq = ? AND j.id = ?",
      )
      .get(lease.row, lease.jobId) as unknown as SettledColumns | undefined;
    if (row && change?.outcome && this.#acceptedBefore(lease, row, change)) return REPEATED;
    const stale: Stale = row
      ? { lease, tried, state: JOB_STATES[row.state]!, worker: row.worker, epoch: row.epoch, fence: row.fence }
      : { lease, tried, state: "missing", worker: null, epoch: 0, fence: 0 };
    if (row && this.#rejections(lease.row) < MAX_REJECTIONS) {
      const reason = `refused: "${tried}" by worker ${lease.worker} with (epoch ${lease.epoch}, fence ${lease.fence})`;
      insertHistory(this.#db, [
        lease.row,
        now,
        "write.rejected",
        row.state,
        row.state,
        `worker/${lease.worker}`,
        lease.epoch,
        lease.fence,
        reason,
        null,
      ]);
    }
    return { is: "stale", stale };
  }

  #rejections(job: number): number {
    const { n } = this.#db
      .sql("SELECT count(*) AS n FROM outlive_history WHERE job = ? AND event = 'write.rejected'")
      .get(job) as { n: number };
    return n;
  }

  /** A success leaves no history row, but a retry by hand left one that names the attempt. */
  #redriven({ row, epoch, fence }: Lease): boolean {
    return (
      this.#db
        .sql(
          `SELECT 1 FROM outlive_history WHERE job = ? AND epoch = ? AND fence = ? AND event = 'retry' AND from_state = ${STATE.succeeded}`,
        )
        .get(row, epoch, fence) !== undefined
    );
  }

  #acceptedBefore(lease: Lease, row: SettledColumns, change: Change): boolean {
    if (change.name === "succeed") return succeededBy(lease, row) || this.#redriven(lease);
    // Whatever is not a success left a history row by its worker, which neither a newer attempt nor an operator takes away.
    return (
      this.#db
        .sql("SELECT 1 FROM outlive_history WHERE job = ? AND epoch = ? AND fence = ? AND actor = ? AND event = ?")
        .get(lease.row, lease.epoch, lease.fence, `worker/${lease.worker}`, change.name) !== undefined
    );
  }
}

/** Where the run of neighbours ends that begins here: successes of one claim without a result, in the order of their rows. */
function endOfRun(settlements: readonly Settlement[], from: number): number {
  const { lease: first, change } = settlements[from]!;
  let end = from + 1;
  if (!isBare(change)) return end;
  for (; end < settlements.length; end++) {
    const { lease, change: next } = settlements[end]!;
    const isNext = lease.row === first.row + end - from && lease.fence === first.fence;
    if (!isNext || lease.epoch !== first.epoch || lease.worker !== first.worker || !isBare(next)) break;
  }
  return end;
}

function isBare({ name, result, rows, follow }: Change): boolean {
  return name === "succeed" && result === null && rows === undefined && follow === undefined;
}

/** Of which attempt a change is, and who made it: what its history row says, apart from the change itself. */
export interface ChangeOf {
  readonly job: number;
  readonly from: JobState;
  readonly actor: string;
  readonly epoch: number;
  readonly fence: number;
  readonly incident: string | null;
}

// Where a job waits follows from its counters as they are then: a step may have reset them since the change was decided.
const APPLY = `UPDATE outlive_jobs SET
    errors = max(0, errors * ?1 + ?2), crashes = max(0, crashes * ?1 + ?3), blamed = max(0, blamed * ?1 + ?4),
    timeouts = max(0, timeouts * ?1 + ?5), interruptions = max(0, interruptions * ?1 + ?6), losses = max(0, losses * ?1 + ?7),
    state = ?8, outcome = ifnull(?9, outcome), error = ifnull(?10, error), run_at = ?11,
    lane = ifnull(?12, CASE WHEN max(0, crashes * ?1 + ?3) + max(0, losses * ?1 + ?7) > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END),
    finished_at = ?13, incident = ?14, together = ifnull(?15, together * ?1), cancel_requested = 0`;
const NO_RESULT = ", result = NULL, result_sum = NULL";

/**
 * Writes what a change says into the row that `where` names, and its history. If a cancel was requested, writes the alternative. Returns what
 * was written; null: there was no such row. What follows from it is the caller's to enqueue. The result stays: only a success, which is not written here, brings one, and only
 * a change that resets the job removes it.
 */
export function applyChange(
  db: Database,
  change: Change,
  now: number,
  where: { sql: string; values: readonly (number | null)[] },
  of: ChangeOf,
): Change | null {
  const { ifCancelled } = change;
  const applied = ifCancelled
    ? write(db, change, now, { ...where, sql: `${where.sql} AND cancel_requested = 0` }, of.incident)
      ? change
      : write(db, ifCancelled, now, where, of.incident)
        ? ifCancelled
        : null
    : write(db, change, now, where, of.incident)
      ? change
      : null;
  if (applied === null) return null;
  writeHistory(db, applied, now, of);
  if (applied.unstarted) returnStarts(db, of.job, now);
  if (applied.wait) beginWait(db, of.job, applied.wait, now);
  if (applied.rows) endRows(db, of.job, applied.rows);
  if (isTerminal(applied.to) !== isTerminal(of.from)) consequences(db, of.job, applied.to, now);
  relocate(db, [of.job], now);
  return applied;
}

function write(
  db: Database,
  change: Change,
  now: number,
  where: { sql: string; values: readonly (number | null)[] },
  incident: string | null,
): boolean {
  const { to, add, outcome } = change;
  const { lane, runAt } = whereItWaits(change, now);
  const { changes } = db
    .sql(`${APPLY}${change.resets ? NO_RESULT : ""} WHERE ${where.sql}`)
    .run(
      change.resets ? 0 : 1,
      add.errors ?? 0,
      add.crashes ?? 0,
      add.blamed ?? 0,
      add.timeouts ?? 0,
      add.interruptions ?? 0,
      add.losses ?? 0,
      STATE[to],
      outcome === null ? null : OUTCOME[outcome],
      change.error === null ? null : JSON.stringify(change.error),
      runAt,
      lane,
      now,
      to === "queued" ? incident : null,
      change.together ?? null,
      ...where.values,
    );
  return changes > 0;
}

/** The lane of a job that is delayed, and when it is due. Null: its counters say which lane. */
export function whereItWaits(change: Change, now: number): { lane: number | null; runAt: number | null } {
  if (change.to === "queued" && change.waitsForResolution) return { lane: LANE.delayed, runAt: NEVER_DUE };
  if (change.to === "queued" && change.wait) return { lane: LANE.delayed, runAt: dueAt(change.wait, now) };
  if (change.to === "queued" && change.delayMs > 0) return { lane: LANE.delayed, runAt: now + change.delayMs };
  return { lane: null, runAt: null };
}

/** One entry for everything abnormal; a change without a reason (a success) leaves none. */
export function writeHistory(db: Database, change: Change, at: number, of: ChangeOf): void {
  if (change.reason === null) return;
  insertHistory(db, [
    of.job,
    at,
    change.name,
    STATE[of.from],
    STATE[change.to],
    of.actor,
    of.epoch,
    of.fence,
    change.reason,
    of.incident,
  ]);
}

// The job's own row still has the start and the worker of its latest attempt.
const INSERT_HISTORY = `INSERT INTO outlive_history (job, at, event, from_state, to_state, actor, epoch, fence, reason, incident, started_at, owner)
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, (SELECT started_at FROM outlive_jobs WHERE seq = ?1 AND fence = ?8 AND fence > 0),
    (SELECT w.id FROM outlive_jobs j JOIN outlive_workers w ON w.seq = j.worker WHERE j.seq = ?1 AND j.fence = ?8 AND j.fence > 0))`;

export function insertHistory(db: Database, values: (string | number | null)[]): void {
  db.sql(INSERT_HISTORY).run(...values);
}
