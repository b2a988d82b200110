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
import { BEGUN, begunRow, endRows } from "./blocks.ts";
import type { Database } from "./database.ts";
import { isTerminal, JOB_STATES } from "../../job/job.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../../recovery/losses.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import type { Recovering } from "./recover.ts";
import { whereItWaits, writeHistory } from "./settle.ts";
import { relocate } from "./keys.ts";
import { consequences } from "./waits.ts";
import type { FileAccess } from "./writer.ts";

/** Newest first; ids sort by time. */
export function listIncidents(db: Database, limit: number, after: string | null): IncidentSummary[] {
  const rows = db
    .sql(
      `SELECT id, recovery, worker, how, resolution, detected_at, completed_at, (SELECT count(*) FROM outlive_incident_jobs j WHERE j.incident = i.id) AS jobs
       FROM outlive_incidents i WHERE ? IS NULL OR id < ? ORDER BY id DESC LIMIT ?`,
    )
    .all(after, after, limit) as unknown as (SummaryColumns & { readonly jobs: number })[];
  return rows.map((row) => incidentSummary(row, row.jobs));
}

export function getIncident(db: Database, id: string): Incident | null {
  const row = db.sql("SELECT * FROM outlive_incidents WHERE id = ?").get(id) as unknown as IncidentColumns | undefined;
  return row ? whole(db, row) : null;
}

/**
 * The deaths that the latest recovery found together. A recovery that found nothing wrote nothing, so it hides no
 * earlier one.
 */
export function latestRecovery(db: Database): Incident[] {
  const rows = db
    .sql(
      "SELECT * FROM outlive_incidents WHERE recovery = (SELECT recovery FROM outlive_incidents ORDER BY id DESC LIMIT 1) ORDER BY id",
    )
    .all() as unknown as IncidentColumns[];
  return rows.map((row) => whole(db, row));
}

function whole(db: Database, row: IncidentColumns): Incident {
  const jobs = db.sql("SELECT * FROM outlive_incident_jobs WHERE incident = ? ORDER BY job").all(row.id);
  return wholeIncident(row, jobs as unknown as IncidentJobColumns[]);
}

// The incident of a death as recovery writes it. Inside recovery's transaction.

interface IncidentState {
  readonly last_word: string | null;
  readonly id: string | null;
  readonly cursor: number;
  readonly held_at_death: number;
  readonly suspects_at_death: number;
  readonly how: HowLost;
  readonly completed_at: number | null;
}

/** One incident per death: the first transaction opens it, later ones continue it. */
export function openIncident(db: Database, request: CondemnRequest, worker: number, now: number): Condemned {
  const known = db
    .sql(
      `SELECT w.last_word, i.id, i.cursor, i.held_at_death, i.suspects_at_death, i.how, i.completed_at FROM outlive_workers w LEFT JOIN outlive_incidents i ON i.id = w.incident
       WHERE w.seq = ?`,
    )
    .get(worker) as unknown as IncidentState;
  if (known.id !== null) return goOn(db, request.worker.id, { ...known, id: known.id });
  const { heldAtDeath, suspectsAtDeath } = db
    .sql(
      "SELECT count(*) AS heldAtDeath, count(*) FILTER (WHERE crashes + losses > 0) AS suspectsAtDeath FROM outlive_jobs WHERE state = 1 AND worker = ?",
    )
    .get(worker) as { heldAtDeath: number; suspectsAtDeath: number };
  const { worker: dead, death, recovery } = request;
  db.sql(
    `INSERT INTO outlive_incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at, last_seen_alive_at,
       loop_lag_ms, detected_at, started_at, recovered_by, integrity, wal_frames, held_at_death, suspects_at_death) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
  ).run(
    request.incident,
    recovery.id,
    dead.id,
    death.how,
    withLastWord(death.evidence, known.last_word),
    dead.host,
    dead.pid,
    dead.version,
    dead.startedAt,
    dead.heartbeatAt,
    death.lastSeenAliveAt,
    dead.loopLagMs,
    death.detectedAt,
    Math.min(recovery.startedAt, now),
    recovery.by,
    recovery.integrity,
    flushedFrames(recovery.summary),
    heldAtDeath,
    suspectsAtDeath,
  );
  db.sql("UPDATE outlive_workers SET state = 'recovering', incident = ? WHERE seq = ?").run(request.incident, worker);
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

function goOn(db: Database, worker: string, known: IncidentState & { readonly id: string }): Condemned {
  const { id: incident, cursor, how, completed_at: completedAt } = known;
  const inFlight = { heldAtDeath: known.held_at_death, suspectsAtDeath: known.suspects_at_death };
  if (completedAt === null) return { worker, incident, opened: false, cursor, how, ...inFlight };
  // It was closed with jobs that could not be recovered: they are retried in the same incident. If this process is
  // killed before the incident is closed again, the next recovery continues with this worker.
  db.sql("UPDATE outlive_incidents SET completed_at = NULL, cursor = 0, judged_at = NULL WHERE id = ?").run(incident);
  db.sql("UPDATE outlive_workers SET state = 'recovering' WHERE id = ?").run(worker);
  return { worker, incident, opened: false, cursor: 0, how, ...inFlight };
}

export function writeIncidentJob(db: Database, incident: string, seq: number, job: RecoveredJob): void {
  db.sql(
    `INSERT INTO outlive_incident_jobs (incident, job, job_id, kind, decision, counters, max_crashes, fence, last_step, alone, success, error)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET decision = excluded.decision, counters = excluded.counters, success = excluded.success, error = excluded.error`,
  ).run(
    incident,
    seq,
    job.jobId,
    job.kind,
    toStored(job.decision),
    JSON.stringify(job.counters),
    job.limit,
    job.fence,
    job.lastStep,
    job.alone ? 1 : 0,
    job.success ? 1 : 0,
    job.error,
  );
}

export function closeIncident(db: Database, incident: string, worker: number, now: number): void {
  db.sql("UPDATE outlive_incidents SET completed_at = ? WHERE id = ? AND completed_at IS NULL").run(now, incident);
  db.sql("UPDATE outlive_workers SET state = 'gone' WHERE seq = ?").run(worker);
  db.sql("DELETE FROM outlive_cancels WHERE worker = ?").run(worker);
}

// Losses of contact: which are open, what became of their workers, and what was decided about their jobs.
// recovery/losses.ts decides.

export function losses({ db, now, write, read }: FileAccess, kinds: Kinds, recovering: Recovering): Losses {
  return {
    open: () => read(() => openLosses(db)),
    resolve: (worker, resolution) => write(() => resolveLoss(db, worker, resolution)),
    jobs: (incident, limit) => read(() => lostJobs(db, kinds, recovering, incident, limit, now())),
    judge: (incident, verdicts) => write(() => judgeLoss(db, kinds, incident, verdicts, now())),
  };
}

/** In the words of the partial index. */
const IS_OPEN = "i.how <> 'gone' AND i.judged_at IS NULL";
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
       WHERE ${IS_OPEN} AND i.completed_at IS NOT NULL ORDER BY i.id LIMIT ${MAX_LOSSES}`,
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
    `UPDATE outlive_incidents AS i SET resolution = ? WHERE i.worker = ? AND i.resolution IS NULL AND ${IS_OPEN}`,
  ).run(resolution, worker);
  const row = db.sql(`SELECT i.resolution FROM outlive_incidents i WHERE i.worker = ? AND ${IS_OPEN}`).get(worker) as
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
  readonly begun: number | null;
}

// A retry by hand leaves a row in the history with the fence of the attempt before it.
const LOST = `SELECT j.seq, j.id, j.kind, j.state, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, l.alone,
    EXISTS (SELECT 1 FROM outlive_steps s WHERE s.job = j.seq AND s.fence > l.fence)
      OR EXISTS (SELECT 1 FROM outlive_history h WHERE h.job = j.seq AND h.event = 'retry' AND h.fence >= l.fence) AS moved_on,
    ${BEGUN} AS begun
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
  return rows.map((row) => {
    const begun = row.begun === null ? null : begunRow(db, row.seq, row.begun);
    return {
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
      ...(begun && { begun }),
    };
  });
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
const APPLY = `UPDATE outlive_jobs SET state = ?1, crashes = crashes * ?17 + ?2, blamed = blamed * ?17 + ?3, losses = max(0, losses * ?17 + ?4),
    errors = errors * ?17, timeouts = timeouts * ?17, interruptions = interruptions * ?17, together = together * ?17,
    outcome = ifnull(?5, outcome), error = ifnull(?6, error),
    lane = CASE WHEN ${WAITS} THEN ifnull(?7, CASE WHEN crashes * ?17 + ?2 + max(0, losses * ?17 + ?4) > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END) ELSE lane END,
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
      change.resets ? 0 : 1,
    );
  if (changes === 0) return false;
  const { row, epoch, fence } = job;
  writeHistory(db, change, now, { job: row, from: job.state, actor: "system/recovery", epoch, fence, incident });
  if (change.rows) endRows(db, row, change.rows);
  if (isTerminal(change.to)) consequences(db, row, change.to, now);
  relocate(db, [row], now);
  return true;
}
