// Incidents as they are stored: pages for a list, one complete incident for its report, the incident of a death as recovery writes it,
// and losses of contact until they are resolved.
import { type Incident, type IncidentSummary, withLastWord } from "../../recovery/incident.ts";
import type { HowLost } from "../liveness.ts";
import type { Condemned, CondemnRequest, RecoveredJob, Losses } from "../port.ts";
import {
  flushedFrames,
  type IncidentColumns,
  type IncidentJobColumns,
  incidentSummary,
  type SummaryColumns,
  toStored,
  wholeIncident,
  type CounterColumns,
  counters,
  LANE,
  NEVER_DUE,
  OUTCOME,
  STATE,
  type WorkerColumns,
  workerRow,
} from "../rows.ts";
import { BEGUN, begunRows, endRows } from "./blocks.ts";
import { list, type Session, texts } from "./statements.ts";
import { isOnTrial } from "../../job/isolation.ts";
import { JOB_STATES } from "../../job/job.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../../recovery/losses.ts";
import type { Connection } from "./connection.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import { deathsElsewhere, insertHistory, laneOf } from "./settle.ts";

/** Newest first; ids sort by time. */
export async function listIncidents(session: Session, limit: number, after: string | null): Promise<IncidentSummary[]> {
  const rows = await session.rows<SummaryColumns & { jobs: number }>(
    `SELECT id, recovery, worker, how, resolution, detected_at, completed_at, (SELECT count(*) FROM outlive.incident_jobs j WHERE j.incident = i.id) AS jobs
     FROM outlive.incidents i WHERE $1::text IS NULL OR id < $1 ORDER BY id DESC LIMIT $2`,
    [after, limit],
  );
  return rows.map((row) => incidentSummary(row, row.jobs));
}

export async function getIncident(session: Session, id: string): Promise<Incident | null> {
  const rows = await session.rows<IncidentColumns>("SELECT * FROM outlive.incidents WHERE id = $1", [id]);
  return (await whole(session, rows))[0] ?? null;
}

/**
 * The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides no
 * earlier one.
 */
export async function latestRecovery(session: Session): Promise<Incident[]> {
  const rows = await session.rows<IncidentColumns>(
    "SELECT * FROM outlive.incidents WHERE recovery = (SELECT recovery FROM outlive.incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
  );
  return whole(session, rows);
}

// The claim that runs a job again stops the incident's clock in a separate statement, and the claiming worker may be
// cut off before it. The job's later fence then shows that it was claimed since, and its row shows when. After several
// attempts that is the latest of them.
const JOBS = `SELECT i.*, coalesce(i.resumed_at, (SELECT j.started_at FROM outlive.jobs j WHERE j.seq = i.job AND j.fence > i.fence)) AS resumed_at
  FROM outlive.incident_jobs i WHERE i.incident = ANY ($1::text[]) ORDER BY i.incident, i.job`;

async function whole(session: Session, rows: readonly IncidentColumns[]): Promise<Incident[]> {
  if (rows.length === 0) return [];
  const jobs = await session.rows<IncidentJobColumns>(JOBS, [texts(rows.map(({ id }) => id))]);
  return rows.map((row) =>
    wholeIncident(
      row,
      jobs.filter(({ incident }) => incident === row.id),
    ),
  );
}

// The incident of a death as recovery writes it. Inside recovery's transaction, which holds the dead worker's row.

/** The locked row of a worker that is being recovered. */
export interface DeadWorker {
  readonly seq: number;
  readonly last_word: string | null;
  /** The incident of its death, if a recovery has begun. */
  readonly incident: string | null;
}

const OPEN = `WITH marked AS (UPDATE outlive.fleet SET state = 'recovering', incident = $1 WHERE seq = $18)
  INSERT INTO outlive.incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at,
    last_seen_alive_at, loop_lag_ms, detected_at, started_at, recovered_by, integrity, wal_frames, held_at_death, suspects_at_death)
  SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, least($14::bigint, outlive.now_ms()), $15, $16, $17, count(*), count(*) FILTER (WHERE crashes + losses > 0)
  FROM outlive.jobs WHERE state = 1 AND worker = $18
  RETURNING held_at_death, suspects_at_death`;

/** One incident per death: the first transaction opens it, later ones continue it. */
export async function openIncident(session: Session, request: CondemnRequest, worker: DeadWorker): Promise<Condemned> {
  if (worker.incident !== null) {
    const known = await goOn(session, request.worker.id, worker.incident);
    if (known) return known;
  }
  const { worker: dead, death, recovery } = request;
  const [opened] = await session.rows<{ held_at_death: number; suspects_at_death: number }>(OPEN, [
    request.incident,
    recovery.id,
    dead.id,
    death.how,
    withLastWord(death.evidence, worker.last_word),
    dead.host,
    dead.pid,
    dead.version,
    dead.startedAt,
    dead.heartbeatAt,
    death.lastSeenAliveAt,
    Math.round(dead.loopLagMs),
    death.detectedAt,
    recovery.startedAt,
    recovery.by,
    recovery.integrity,
    flushedFrames(recovery.summary),
    worker.seq,
  ]);
  const { held_at_death: heldAtDeath, suspects_at_death: suspectsAtDeath } = opened!;
  return {
    worker: dead.id,
    incident: request.incident,
    opened: true,
    cursor: 0,
    heldAtDeath,
    suspectsAtDeath,
    how: death.how,
  };
}

interface IncidentState {
  readonly cursor: number;
  readonly held_at_death: number;
  readonly suspects_at_death: number;
  readonly how: HowLost;
  readonly completed_at: number | null;
}

/** Null: retention has removed it. */
async function goOn(session: Session, worker: string, incident: string): Promise<Condemned | null> {
  const [known] = await session.rows<IncidentState>(
    "SELECT cursor, held_at_death, suspects_at_death, how, completed_at FROM outlive.incidents WHERE id = $1",
    [incident],
  );
  if (!known) return null;
  const { cursor, how, completed_at: completedAt } = known;
  const inFlight = { heldAtDeath: known.held_at_death, suspectsAtDeath: known.suspects_at_death };
  if (completedAt === null) return { worker, incident, opened: false, cursor, how, ...inFlight };
  // It was closed with jobs that could not be recovered: they are retried in the same incident. If this process is
  // killed before the incident is closed again, the next recovery continues with this worker.
  await session.run(
    `WITH marked AS (UPDATE outlive.fleet SET state = 'recovering' WHERE id = $2)
     UPDATE outlive.incidents SET completed_at = NULL, cursor = 0, judged_at = NULL WHERE id = $1`,
    [incident, worker],
  );
  return { worker, incident, opened: false, cursor: 0, how, ...inFlight };
}

const ADD_JOBS = `INSERT INTO outlive.incident_jobs (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, alone, success, error)
  SELECT $1, j.* FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::int[], $9::text[], $10::boolean[], $11::boolean[], $12::text[]) AS j
  ON CONFLICT (incident, job) DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = excluded.success, error = excluded.error`;

export async function insertIncidentJobs(
  session: Session,
  incident: string,
  rows: readonly { readonly seq: number }[],
  jobs: readonly RecoveredJob[],
): Promise<void> {
  await session.run(ADD_JOBS, [
    incident,
    list(rows.map(({ seq }) => seq)),
    texts(jobs.map(({ jobId }) => jobId)),
    texts(jobs.map(({ kind }) => kind)),
    texts(jobs.map(({ decision }) => toStored(decision))),
    texts(jobs.map((job) => JSON.stringify(job.counters))),
    list(jobs.map(({ limit }) => limit)),
    list(jobs.map(({ fence }) => fence)),
    texts(jobs.map(({ lastStep }) => lastStep)),
    list(jobs.map(({ alone }) => alone)),
    list(jobs.map(({ success }) => success)),
    texts(jobs.map(({ error }) => error)),
  ]);
}

const STAMP = `UPDATE outlive.incident_jobs i SET resumed_at = j.started_at FROM outlive.jobs j
  WHERE j.seq = ANY ($1::bigint[]) AND i.incident = j.incident AND i.job = j.seq AND i.fence < j.fence AND i.resumed_at IS NULL`;

/**
 * Stops the clock of the incidents that requeued these running jobs. A claim normally does that itself in a separate
 * statement; its worker died in between.
 */
export async function stampResumed(session: Session, rows: readonly { readonly seq: number }[]): Promise<void> {
  await session.run(STAMP, [list(rows.map(({ seq }) => seq))]);
}

// Losses of contact: which are open, what became of their workers, and what was decided about their jobs.
// recovery/losses.ts decides.

export function losses(connection: Connection, kinds: Kinds): Losses {
  return {
    open: () => openLosses(connection),
    resolve: (worker, resolution) => resolveLoss(connection, worker, resolution),
    jobs: (incident, limit) => lostJobs(connection, kinds, incident, limit),
    judge: (incident, verdicts) => connection.maintain((tx) => judgeLoss(tx, kinds, incident, verdicts)),
  };
}

/** Worded as in the partial index. */
const IS_OPEN = "i.how <> 'gone' AND i.judged_at IS NULL";
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
     WHERE ${IS_OPEN} AND i.completed_at IS NOT NULL ORDER BY i.id LIMIT ${MAX_LOSSES}`,
  );
  return rows.map((row) => ({
    incident: row.incident,
    worker: row.id === null ? null : workerRow({ ...row, id: row.id }),
    resolution: row.resolution,
  }));
}

const RESOLVE = `WITH resolved AS (
    UPDATE outlive.incidents i SET resolution = $2 WHERE i.worker = $1 AND i.resolution IS NULL AND ${IS_OPEN} RETURNING i.resolution)
  SELECT coalesce((SELECT resolution FROM resolved), (SELECT i.resolution FROM outlive.incidents i WHERE i.worker = $1 AND ${IS_OPEN} LIMIT 1)) AS resolution`;

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
  readonly begun: number | null;
}

const UNJUDGED = "l.incident = $1 AND l.decision = 'lost' AND l.judgement IS NULL";

// A manual retry leaves a row in the history with the fence of the attempt before it.
const LOST = `SELECT j.seq, j.id, j.kind, j.state, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, l.alone,
    EXISTS (SELECT 1 FROM outlive.steps s WHERE s.job = j.seq AND s.fence > l.fence)
      OR EXISTS (SELECT 1 FROM outlive.history h WHERE h.job = j.seq AND h.event = 'retry' AND h.fence >= l.fence) AS moved_on,
    CASE WHEN l.alone THEN ${deathsElsewhere("outlive", "j.seq", "j.crashes", "outlive.now_ms()", "l.incident")} ELSE 0 END AS deaths_elsewhere,
    ${BEGUN} AS begun
  FROM outlive.incident_jobs l JOIN outlive.jobs j ON j.seq = l.job AND j.id = l.job_id
  WHERE ${UNJUDGED} ORDER BY l.job LIMIT $2`;

async function lostJobs(session: Session, kinds: Kinds, incident: string, limit: number): Promise<LostJob[]> {
  const rows = await session.rows<LostColumns>(LOST, [incident, limit]);
  const settings = await kinds.settings(
    session,
    rows.map(({ kind }) => kind),
  );
  const begun = await begunRows(session, rows);
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
      ...begun.get(row.seq),
    };
  });
}

// A delayed job keeps its time, and a running one everything but its counters.
const WAITS = `j.state = ${STATE.queued} AND (j.lane <> ${LANE.delayed} OR j.run_at = ${NEVER_DUE})`;
const CRASHES = "j.crashes * $16::int + $2::int";
const LOSSES = "greatest(0, j.losses * $16::int + $4::int)";
const APPLY = `UPDATE outlive.jobs j SET state = $1::smallint, crashes = ${CRASHES}, blamed = j.blamed * $16::int + $3::int, losses = ${LOSSES},
    errors = j.errors * $16::int, timeouts = j.timeouts * $16::int, interruptions = j.interruptions * $16::int, together = j.together * $16::int,
    outcome = coalesce($5::smallint, j.outcome), error = coalesce($6::text, j.error),
    lane = CASE WHEN ${WAITS} THEN coalesce($7::smallint, CASE WHEN ${CRASHES} + ${LOSSES} > 0
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
    change.resets ? 0 : 1,
  ]);
  if (done === 0) return false;
  // A change that convicts a row queues the block again, and does not end it.
  if (change.rows) await endRows(session, [{ job: job.row, ends: change.rows, withRest: false }]);
  const { row, epoch, fence, state } = job;
  const states = { from: STATE[state], to: STATE[change.to] };
  const actor = "system/recovery";
  const reason = change.reason ?? "";
  await insertHistory(session, [{ job: row, event: change.name, ...states, actor, epoch, fence, reason, incident }]);
  return true;
}
