// Stores losses of contact: which are open, what became of their workers, and what was decided about their jobs.
// recovery/losses.ts decides.
import { isOnTrial } from "../../job/isolation.ts";
import { JOB_STATES } from "../../job/job.ts";
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
import type { Connection } from "./connection.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import { deathsElsewhere, insertHistory, laneOf } from "./settle.ts";
import type { Session } from "./statements.ts";

export function losses(connection: Connection, kinds: Kinds): Losses {
  return {
    open: () => openLosses(connection),
    resolve: (worker, resolution) => resolveLoss(connection, worker, resolution),
    jobs: (incident, limit) => lostJobs(connection, kinds, incident, limit),
    judge: (incident, verdicts) => connection.maintain((tx) => judgeLoss(tx, kinds, incident, verdicts)),
  };
}

/** Worded as in the partial index. */
const OPEN = "i.how <> 'gone' AND i.judged_at IS NULL";
const MAX_LOSSES = 100;

interface LossColumns extends Omit<WorkerColumns, "id"> {
  readonly incident: string;
  readonly resolution: Resolution | null;
  /** Null: its row is gone. */
  readonly id: string | null;
}

async function openLosses(session: Session): Promise<Loss[]> {
  const rows = await session.rows<LossColumns>(
    `SELECT i.id AS incident, i.resolution, 0 AS held_count, w.id, w.state, w.host, w.boot_id, w.namespace, w.pid, w.start_ticks,
       w.predecessor, w.version, w.lease_ms, w.concurrency, w.kinds, w.lock_name, w.lock_identity, w.started_at, w.heartbeat_at, w.beats, w.loop_lag_ms, w.last_word
     FROM outlive.incidents i LEFT JOIN outlive.fleet w ON w.id = i.worker
     WHERE ${OPEN} AND i.completed_at IS NOT NULL ORDER BY i.id LIMIT ${MAX_LOSSES}`,
  );
  return rows.map((row) => ({
    incident: row.incident,
    worker: row.id === null ? null : workerRow({ ...row, id: row.id }),
    resolution: row.resolution,
  }));
}

const RESOLVE = `WITH resolved AS (
    UPDATE outlive.incidents i SET resolution = $2 WHERE i.worker = $1 AND i.resolution IS NULL AND ${OPEN} RETURNING i.resolution)
  SELECT coalesce((SELECT resolution FROM resolved), (SELECT i.resolution FROM outlive.incidents i WHERE i.worker = $1 AND ${OPEN} LIMIT 1)) AS resolution`;

/** A loss resolves once: the first resolution stands. */
export async function resolveLoss(
  session: Session,
  worker: string,
  resolution: Resolution,
): Promise<Resolution | null> {
  const [row] = await session.rows<{ resolution: Resolution | null }>(RESOLVE, [worker, resolution]);
  return row!.resolution;
}

interface LostColumns extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: number;
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
  readonly alone: boolean;
  readonly moved_on: boolean;
  readonly deaths_elsewhere: number;
}

const UNJUDGED = "l.incident = $1 AND l.decision = 'lost' AND l.judgement IS NULL";

// A manual retry leaves a row in the history with the fence of the attempt before it.
const LOST = `SELECT j.seq, j.id, j.kind, j.state, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, l.alone,
    EXISTS (SELECT 1 FROM outlive.steps s WHERE s.job = j.seq AND s.fence > l.fence)
      OR EXISTS (SELECT 1 FROM outlive.history h WHERE h.job = j.seq AND h.event = 'retry' AND h.fence >= l.fence) AS moved_on,
    CASE WHEN l.alone THEN ${deathsElsewhere("outlive", "j.seq", "j.crashes", "outlive.now_ms()", "l.incident")} ELSE 0 END AS deaths_elsewhere
  FROM outlive.incident_jobs l JOIN outlive.jobs j ON j.seq = l.job AND j.id = l.job_id
  WHERE ${UNJUDGED} ORDER BY l.job LIMIT $2`;

async function lostJobs(session: Session, kinds: Kinds, incident: string, limit: number): Promise<LostJob[]> {
  const rows = await session.rows<LostColumns>(LOST, [incident, limit]);
  const settings = await kinds.settings(
    session,
    rows.map(({ kind }) => kind),
  );
  return rows.map((row) => {
    const kind = settings.get(row.kind)!;
    return {
      id: row.id,
      row: row.seq,
      state: JOB_STATES[row.state]!,
      epoch: row.epoch,
      fence: row.fence,
      counters: counters(row),
      kind,
      alone: row.alone,
      movedOn: row.moved_on,
      deathsElsewhere: isOnTrial(row, row.alone, kind.limits) ? row.deaths_elsewhere : 0,
    };
  });
}

// A delayed job keeps its time, and a running one everything but its counters.
const WAITS = `j.state = ${STATE.queued} AND (j.lane <> ${LANE.delayed} OR j.run_at = ${NEVER_DUE})`;
const APPLY = `UPDATE outlive.jobs j SET state = $1::smallint, crashes = j.crashes + $2::int, blamed = j.blamed + $3::int, losses = greatest(0, j.losses + $4::int),
    outcome = coalesce($5::smallint, j.outcome), error = coalesce($6::text, j.error),
    lane = CASE WHEN ${WAITS} THEN coalesce($7::smallint, CASE WHEN j.crashes + $2::int + greatest(0, j.losses + $4::int) > 0
      THEN ${LANE.suspect} ELSE ${LANE.open} END) ELSE j.lane END,
    run_at = CASE WHEN ${WAITS} THEN $8::bigint ELSE j.run_at END,
    finished_at = CASE WHEN $1::smallint = ${STATE.quarantined} THEN outlive.now_ms() ELSE j.finished_at END
  WHERE j.seq = $9 AND j.state = $10 AND j.epoch = $11 AND j.fence = $12 AND j.crashes = $13 AND j.blamed = $14 AND j.losses = $15`;

const CLOSE = `UPDATE outlive.incidents SET judged_at = outlive.now_ms() WHERE id = $1 AND judged_at IS NULL AND resolution IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM outlive.incident_jobs l JOIN outlive.jobs j ON j.seq = l.job AND j.id = l.job_id WHERE ${UNJUDGED})`;

/** Inside a transaction. Returns whether the loss is closed: none of its jobs is left to judge. */
async function judgeLoss(
  session: Session,
  kinds: Kinds,
  incident: string,
  verdicts: readonly LossVerdict[],
): Promise<boolean> {
  for (const verdict of verdicts) {
    const { change } = verdict;
    if (change !== null && !(await applied(session, incident, verdict, change))) continue;
    if (change?.follow !== undefined) await insertFollowing(session, kinds, [change]);
    await session.run("UPDATE outlive.incident_jobs SET judgement = $3 WHERE incident = $1 AND job = $2", [
      incident,
      verdict.job.row,
      toStored(verdict.decision),
    ]);
  }
  return (await session.run(CLOSE, [incident])) === 1;
}

/** False: the job has moved on since it was read. */
async function applied(
  session: Session,
  incident: string,
  { job }: LossVerdict,
  change: NonNullable<LossVerdict["change"]>,
): Promise<boolean> {
  const done = await session.run(APPLY, [
    STATE[change.to],
    change.add.crashes ?? 0,
    change.add.blamed ?? 0,
    change.add.losses ?? 0,
    change.outcome === null ? null : OUTCOME[change.outcome],
    change.error === null ? null : JSON.stringify(change.error),
    laneOf(change),
    change.waitsForResolution ? NEVER_DUE : null,
    job.row,
    STATE[job.state],
    job.epoch,
    job.fence,
    job.counters.crashes,
    job.counters.blamed,
    job.counters.losses,
  ]);
  if (done === 0) return false;
  const { row, epoch, fence, state } = job;
  const states = { from: STATE[state], to: STATE[change.to] };
  const actor = "system/recovery";
  const reason = change.reason ?? "";
  await insertHistory(session, [{ job: row, event: change.name, ...states, actor, epoch, fence, reason, incident }]);
  return true;
}
