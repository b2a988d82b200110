// Ends of attempts, and the answer to a write whose fence did not hold. Inside a transaction.
import type { JobState } from "../../core/job.ts";
import { JOB_STATES } from "../../core/job.ts";
import type { Lease } from "../../core/lease.ts";
import { mustRunAlone } from "../../core/blame.ts";
import { APPLIED, REPEATED, type Settlement, type Stale, type WriteAnswer } from "../../core/store.ts";
import { type Change, honourCancel } from "../../core/transitions.ts";
import { checksumOf } from "./checksums.ts";
import type { Database } from "./database.ts";
import { LANE, NEVER_DUE, OUTCOME, STATE } from "../codes.ts";
import type { Workers } from "./workers.ts";

/** The guard of every fenced write: this attempt, and only while it runs. */
export const OWNED = "seq = ? AND state = 1 AND fence = ? AND epoch = ? AND worker = ?";

const OWNS = `SELECT 1 FROM outlive_jobs WHERE ${OWNED}`;
const SUCCEED = "UPDATE outlive_jobs SET state = 2, outcome = 0, finished_at = ?";
const SUCCEED_BARE = `${SUCCEED} WHERE ${OWNED}`;
const SUCCEED_WITH = `${SUCCEED}, result = ?, result_sum = ? WHERE ${OWNED}`;

/** Refused writes kept in the history of one job: a zombie that writes in a loop must not fill the disk. */
const MAX_REJECTIONS = 100;

export class Settling {
  readonly #db: Database;
  readonly #workers: Workers;

  constructor(db: Database, workers: Workers) {
    this.#db = db;
    this.#workers = workers;
  }

  settle(settlements: readonly Settlement[], now: number): WriteAnswer[] {
    return settlements.map(({ lease, change }) => {
      const applied = change.name === "succeed" ? this.#succeed(lease, change, now) : this.#end(lease, change, now);
      return applied ? APPLIED : this.refused(lease, change.name, now, change);
    });
  }

  /** Whether this attempt owns its job now. */
  owns(lease: Lease): boolean {
    this.#workers.recheck(lease.worker);
    return this.#db.sql(OWNS).get(lease.row, lease.fence, lease.epoch, this.#workers.seqOf(lease.worker)) !== undefined;
  }

  /** The hot one: few columns, no history. A running job has no result, so that none needs not be written. */
  #succeed(lease: Lease, { result }: Change, now: number): boolean {
    const { row, fence, epoch } = lease;
    const worker = this.#workers.seqOf(lease.worker);
    const { changes } =
      result === null
        ? this.#db.sql(SUCCEED_BARE).run(now, row, fence, epoch, worker)
        : this.#db.sql(SUCCEED_WITH).run(now, result, checksumOf(result, lease.jobId), row, fence, epoch, worker);
    return changes === 1;
  }

  /** What became of the row since the claim counts: a step has set its crashes back, a cancel was asked for. */
  #end(lease: Lease, settled: Change, now: number): boolean {
    const where = { sql: OWNED, values: [lease.row, lease.fence, lease.epoch, this.#workers.seqOf(lease.worker)] };
    const row = this.#db
      .sql(`SELECT crashes, blamed, losses, cancel_requested FROM outlive_jobs WHERE ${OWNED}`)
      .get(...where.values) as
      | { crashes: number; blamed: number; losses: number; cancel_requested: number }
      | undefined;
    if (!row) return false;
    const { crashes, blamed, losses } = row;
    const kept = { ...settled, counters: { ...settled.counters, crashes, blamed, losses } };
    const change = row.cancel_requested === 1 ? honourCancel(kept) : kept;
    applyChange(this.#db, change, now, where);
    writeHistory(this.#db, {
      job: lease.row,
      at: now,
      change,
      from: "running",
      actor: `worker/${lease.worker}`,
      epoch: lease.epoch,
      fence: lease.fence,
      incident: null,
    });
    return true;
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
      .get(lease.row, lease.jobId) as
      | { state: number; epoch: number; fence: number; outcome: number | null; worker: string | null }
      | undefined;
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

  /** A success leaves no history row, but whoever queued the job again by hand left one that names the attempt. */
  #redriven({ row, epoch, fence }: Lease): boolean {
    return (
      this.#db
        .sql(
          `SELECT 1 FROM outlive_history WHERE job = ? AND epoch = ? AND fence = ? AND event = 'retry' AND from_state = ${STATE.succeeded}`,
        )
        .get(row, epoch, fence) !== undefined
    );
  }

  #acceptedBefore(
    lease: Lease,
    row: { state: number; epoch: number; fence: number; outcome: number | null; worker: string | null },
    change: Change,
  ): boolean {
    if (change.name === "succeed") {
      const stands =
        row.epoch === lease.epoch &&
        row.fence === lease.fence &&
        row.state !== STATE.running &&
        row.worker === lease.worker &&
        row.outcome === OUTCOME.succeeded;
      return stands || this.#redriven(lease);
    }
    // Whatever is not a success left a history row by its worker, which neither a newer attempt nor an operator takes away.
    return (
      this.#db
        .sql("SELECT 1 FROM outlive_history WHERE job = ? AND epoch = ? AND fence = ? AND actor = ? AND event = ?")
        .get(lease.row, lease.epoch, lease.fence, `worker/${lease.worker}`, change.name) !== undefined
    );
  }
}

/**
 * Writes what a change says into the rows that `where` names. Answers whether there was one. The result is left alone: only a
 * success, which is not written here, brings one, and only a retry takes it away.
 */
export function applyChange(
  db: Database,
  change: Change,
  now: number,
  where: { sql: string; values: readonly (number | null)[] },
  incident: string | null = null,
): boolean {
  const { to, counters, outcome } = change;
  const queued = to === "queued";
  const { lane, runAt } = whereItWaits(change, now);
  const { changes } = db
    .sql(
      `UPDATE outlive_jobs SET state = ?, lane = ?, errors = ?, crashes = ?, blamed = ?, timeouts = ?, interruptions = ?, losses = ?, outcome = ifnull(?, outcome),
         run_at = ?, finished_at = ?, error = ifnull(?, error), cancel_requested = 0, reserved_by = NULL, incident = ? WHERE ${where.sql}`,
    )
    .run(
      STATE[to],
      lane,
      counters.errors,
      counters.crashes,
      counters.blamed,
      counters.timeouts,
      counters.interruptions,
      counters.losses,
      outcome === null ? null : OUTCOME[outcome],
      runAt,
      now,
      change.error === null ? null : JSON.stringify(change.error),
      queued ? incident : null,
      ...where.values,
    );
  return changes > 0;
}

/** The lane of a job that is queued again, and when it is due; for any other it means nothing. */
export function whereItWaits(change: Change, now: number): { lane: number; runAt: number | null } {
  if (change.to === "queued" && change.waitsForResolution) return { lane: LANE.delayed, runAt: NEVER_DUE };
  if (change.to === "queued" && change.delayMs > 0) return { lane: LANE.delayed, runAt: now + change.delayMs };
  return { lane: mustRunAlone(change.counters) ? LANE.alone : LANE.open, runAt: null };
}

export interface HistoryRow {
  readonly job: number;
  readonly at: number;
  readonly change: Change;
  readonly from: JobState;
  readonly actor: string;
  readonly epoch: number;
  readonly fence: number;
  readonly incident: string | null;
}

/** One entry for everything abnormal; a change without a reason (a success) leaves none. */
export function writeHistory(db: Database, row: HistoryRow): void {
  if (row.change.reason === null) return;
  insertHistory(db, [
    row.job,
    row.at,
    row.change.name,
    STATE[row.from],
    STATE[row.change.to],
    row.actor,
    row.epoch,
    row.fence,
    row.change.reason,
    row.incident,
  ]);
}

export function insertHistory(db: Database, values: (string | number | null)[]): void {
  db.sql(
    "INSERT INTO outlive_history (job, at, event, from_state, to_state, actor, epoch, fence, reason, incident) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
  ).run(...values);
}
