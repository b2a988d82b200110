// Between the rows of incidents, whose columns have the same names in every store, and core's forms. Nothing here reads or writes.
import { type Counters, NO_COUNTERS } from "../job/job.ts";
import type { StoreNote } from "./integrity.ts";
import type { Incident, IncidentJob, IncidentSummary } from "../recovery/incident.ts";
import { type Flag, fromStored } from "./rows.ts";

export interface SummaryColumns {
  readonly id: string;
  readonly recovery: string;
  readonly worker: string;
  readonly how: Incident["how"];
  readonly resolution: Incident["resolution"];
  readonly detected_at: number;
  readonly completed_at: number | null;
}

export interface IncidentColumns extends SummaryColumns {
  readonly evidence: string | null;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly worker_started_at: number;
  readonly last_heartbeat_at: number;
  readonly last_seen_alive_at: number | null;
  readonly loop_lag_ms: number;
  readonly started_at: number;
  readonly recovered_by: string;
  readonly integrity: string;
  readonly wal_frames: number;
  readonly held_at_death: number;
}

export interface IncidentJobColumns {
  readonly incident: string;
  readonly job_id: string;
  readonly kind: string;
  readonly decision: string;
  readonly counters: string;
  readonly max_crashes: number;
  readonly fence: number;
  readonly last_step: string | null;
  readonly alone: Flag;
  readonly success: Flag;
  readonly error: string | null;
  readonly resumed_at: number | null;
}

export function incidentSummary(row: SummaryColumns, jobCount: number): IncidentSummary {
  const { id, recovery, worker, how, resolution, detected_at: detectedAt, completed_at: completedAt } = row;
  return { id, recovery, worker, how, resolution, detectedAt, completedAt, jobCount };
}

/** `jobs`: those of this incident, in the order in which they are shown. */
export function wholeIncident(row: IncidentColumns, jobs: readonly IncidentJobColumns[]): Incident {
  return {
    ...incidentSummary(row, jobs.length),
    host: row.host,
    pid: row.pid,
    version: row.version,
    workerStartedAt: row.worker_started_at,
    lastHeartbeatAt: row.last_heartbeat_at,
    lastSeenAliveAt: row.last_seen_alive_at,
    loopLagMs: row.loop_lag_ms,
    evidence: row.evidence,
    startedAt: row.started_at,
    by: row.recovered_by,
    integrity: row.integrity,
    summary: flushed(row.wal_frames),
    heldAtDeath: row.held_at_death,
    jobs: jobs.map(incidentJob),
  };
}

/** What an incident keeps of the open that it belongs to: how many frames of the write-ahead log were flushed. */
export function flushed(frames: number): StoreNote {
  return { lines: [`WAL Checkpointed: ${frames} frames`], facts: { walFramesCheckpointed: frames } };
}

/** The frames that `flushed` named. */
export function flushedFrames(summary: StoreNote | null): number {
  return Number(summary?.facts["walFramesCheckpointed"] ?? 0);
}

function incidentJob(row: IncidentJobColumns): IncidentJob {
  return {
    jobId: row.job_id,
    kind: row.kind,
    decision: fromStored(row.decision) as IncidentJob["decision"],
    // Counters of before losses were counted have none.
    counters: { ...NO_COUNTERS, ...(JSON.parse(row.counters) as Counters) },
    limit: row.max_crashes,
    fence: row.fence,
    lastStep: row.last_step,
    alone: Boolean(row.alone),
    success: Boolean(row.success),
    error: row.error,
    resumedAt: row.resumed_at,
  };
}
