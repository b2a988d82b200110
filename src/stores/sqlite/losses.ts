// Losses of contact as they are kept: which are open, what became of their workers, and what was decided about their jobs.
// recovery/losses.ts decides.
import { isTerminal, JOB_STATES } from "../../job/job.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../../recovery/losses.ts";
import type { Losses } from "../port.ts";
import {
  type CounterColumns,
  counters,
  LANE,
  NEVER_DUE,
  OUTCOME,
  STATE,
  toStored,
  type WorkerColumns,
  workerRow,
} from "../rows.ts";
import type { Database } from "./database.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import type { Recovering } from "./recover.ts";
import { whereItWaits, writeHistory } from "./settle.ts";
import { relocate } from "./keys.ts";
import { consequences } from "./waits.ts";
import type { FileAccess } from "./writer.ts";

export function losses({ db, now, write, read }: FileAccess, kinds: Kinds, recovering: Recovering): Losses {
  return {
    open: () => read(() => openLosses(db)),
    resolve: (worker, resolution) => write(() => resolveLoss(db, worker, resolution)),
    jobs: (incident, limit) => read(() => lostJobs(db, kinds, recovering, incident, limit, now())),
    judge: (incident, verdicts) => write(() => judgeLoss(db, kinds, incident, verdicts, now())),
  };
}

/** In the words of the partial index. */
const OPEN = "i.how <> 'gone' AND i.judged_at IS NULL";
const MAX_LOSSES = 100;

interface LossColumns {
  readonly id: string;
  readonly worker: string;
  readonly resolution: Resolution | null;
}

function openLosses(db: Database): Loss[] {
  const rows = db
    .sql(
      `SELECT i.id, i.worker, i.resolution FROM outlive_incidents i
       WHERE ${OPEN} AND i.completed_at IS NOT NULL ORDER BY i.id LIMIT ${MAX_LOSSES}`,
    )
    .all() as unknown as LossColumns[];
  return rows.map(({ id: incident, worker, resolution }) => {
    const row = db.sql("SELECT w.*, 0 AS held_count FROM outlive_workers w WHERE w.id = ?").get(worker);
    const lost = row === undefined ? null : workerRow(row as unknown as WorkerColumns);
    return { incident, worker: lost, resolution };
  });
}

/** A loss resolves once: the first resolution stands. Inside a transaction. */
export function resolveLoss(db: Database, worker: string, resolution: Resolution): Resolution | null {
  db.sql(
    `UPDATE outlive_incidents AS i SET resolution = ? WHERE i.worker = ? AND i.resolution IS NULL AND ${OPEN}`,
  ).run(resolution, worker);
  const row = db.sql(`SELECT i.resolution FROM outlive_incidents i WHERE i.worker = ? AND ${OPEN}`).get(worker) as
    | { resolution: Resolution }
    | undefined;
  return row?.resolution ?? null;
}

interface LostColumns extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: number;
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
  readonly alone: number;
  readonly moved_on: number;
}

// A retry by hand leaves a row in the history with the fence of the attempt before it.
const LOST = `SELECT j.seq, j.id, j.kind, j.state, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, l.alone,
    EXISTS (SELECT 1 FROM outlive_steps s WHERE s.job = j.seq AND s.fence > l.fence)
      OR EXISTS (SELECT 1 FROM outlive_history h WHERE h.job = j.seq AND h.event = 'retry' AND h.fence >= l.fence) AS moved_on
  FROM outlive_incident_jobs l JOIN outlive_jobs j ON j.seq = l.job AND j.id = l.job_id
  WHERE l.incident = ? AND l.decision = 'lost' AND l.judgement IS NULL ORDER BY l.job LIMIT ? + 0`;

function lostJobs(
  db: Database,
  kinds: Kinds,
  recovering: Recovering,
  incident: string,
  limit: number,
  now: number,
): LostJob[] {
  const rows = db.sql(LOST).all(incident, limit) as unknown as LostColumns[];
  return rows.map((row) => ({
    id: row.id,
    row: row.seq,
    state: JOB_STATES[row.state]!,
    epoch: row.epoch,
    fence: row.fence,
    counters: counters(row),
    kind: kinds.settingsById(row.kind),
    alone: row.alone === 1,
    movedOn: row.moved_on === 1,
    deathsElsewhere: recovering.deathsElsewhere(row, row.alone === 1, incident, now),
  }));
}

/** Inside a transaction. Returns whether the loss is closed: none of its jobs is left to be judged. */
function judgeLoss(
  db: Database,
  kinds: Kinds,
  incident: string,
  verdicts: readonly LossVerdict[],
  now: number,
): boolean {
  for (const verdict of verdicts) {
    const { change } = verdict;
    if (change !== null && !applied(db, incident, verdict, change, now)) continue;
    if (change?.follow !== undefined) insertFollowing(db, kinds, [change], now);
    db.sql("UPDATE outlive_incident_jobs SET judgement = ? WHERE incident = ? AND job = ?").run(
      toStored(verdict.decision),
      incident,
      verdict.job.row,
    );
  }
  if (db.sql(LOST).get(incident, 1) !== undefined) return false;
  const { changes } = db
    .sql("UPDATE outlive_incidents SET judged_at = ? WHERE id = ? AND judged_at IS NULL AND resolution IS NOT NULL")
    .run(now, incident);
  return changes === 1;
}

// A delayed job keeps its time, and a running one everything but its counters.
const WAITS = `state = ${STATE.queued} AND (lane <> ${LANE.delayed} OR run_at = ${NEVER_DUE})`;
const APPLY = `UPDATE outlive_jobs SET state = ?1, crashes = crashes + ?2, blamed = blamed + ?3, losses = max(0, losses + ?4),
    outcome = ifnull(?5, outcome), error = ifnull(?6, error),
    lane = CASE WHEN ${WAITS} THEN ifnull(?7, CASE WHEN crashes + ?2 + max(0, losses + ?4) > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END) ELSE lane END,
    run_at = CASE WHEN ${WAITS} THEN ?8 ELSE run_at END,
    finished_at = CASE WHEN ?1 = ${STATE.quarantined} THEN ?9 ELSE finished_at END
  WHERE seq = ?10 AND state = ?11 AND epoch = ?12 AND fence = ?13 AND crashes = ?14 AND blamed = ?15 AND losses = ?16`;

/** False: the job has moved on since it was read. */
function applied(
  db: Database,
  incident: string,
  { job }: LossVerdict,
  change: NonNullable<LossVerdict["change"]>,
  now: number,
): boolean {
  const { lane, runAt } = whereItWaits(change, now);
  const { changes } = db
    .sql(APPLY)
    .run(
      STATE[change.to],
      change.add.crashes ?? 0,
      change.add.blamed ?? 0,
      change.add.losses ?? 0,
      change.outcome === null ? null : OUTCOME[change.outcome],
      change.error === null ? null : JSON.stringify(change.error),
      lane,
      runAt,
      now,
      job.row,
      STATE[job.state],
      job.epoch,
      job.fence,
      job.counters.crashes,
      job.counters.blamed,
      job.counters.losses,
    );
  if (changes === 0) return false;
  const { row, epoch, fence } = job;
  writeHistory(db, change, now, { job: row, from: job.state, actor: "system/recovery", epoch, fence, incident });
  if (isTerminal(change.to)) consequences(db, row, true, now);
  relocate(db, [row], now);
  return true;
}
