// What crosses the store port when work is taken from its owner: who is condemned, what it holds, and what was decided about each job.
// The verbs are in store.ts; the decisions are made between them (recovery.ts).
import type { InFlight } from "./isolation.ts";
import type { ConfirmedTime } from "./confirmed-time.ts";
import type { Counters, KindSettings } from "./job.ts";
import type { Death, HowLost, WorkerRow } from "./liveness.ts";
import { afterChange, type Change, type CrashVerdict, type JobView } from "./transitions.ts";

/** A running job as recovery reads it. `row`, `worker`, `epoch` and `fence` are the guard of what is decided about it. */
export interface HeldJob extends JobView {
  /** The store's own short name of the job's row. */
  readonly row: number;
  readonly worker: string;
  readonly epoch: number;
  readonly fence: number;
  readonly kind: KindSettings;
  /** Null: never overdue. */
  readonly deadlineAt: number | null;
  readonly lastStep: string | null;
  /**
   * How many workers died without holding it, of those that are being recovered, or were since this job's first counted crash or
   * within the last BACKGROUND_MS, by the store's clock. Needed only where `isOnTrial` says so; 0 is right elsewhere.
   */
  readonly deathsElsewhere: number;
}

export interface HeldJobs {
  readonly jobs: readonly HeldJob[];
  /** It holds more than these. */
  readonly more: boolean;
}

/** The recovery pass that a death belongs to; incidents of one pass share a report. */
export interface PassRecord {
  readonly id: string;
  readonly startedAt: number;
  readonly by: string;
  readonly integrity: string;
  readonly walFrames: number;
}

export interface CondemnRequest {
  readonly worker: WorkerRow;
  readonly death: Death;
  readonly recovery: PassRecord;
  /** The id of the incident if none has been opened about this death; a death has one. */
  readonly incident: string;
}

/** A worker of which nothing is claimed any more, and its one incident. What is fixed here holds for every job, whoever recovers it. */
export interface Condemned extends InFlight {
  readonly worker: string;
  readonly incident: string;
  /** This call opened the incident: it reports the death. */
  readonly opened: boolean;
  /** How the first that condemned it knew. */
  readonly how: HowLost;
  /** The row of the last job that a recovery of this incident has dealt with; 0: none. `heldBy` goes on after it. */
  readonly cursor: number;
}

export interface OverdueQuery {
  readonly marginMs: number;
  readonly limit: number;
  /** Only as far as this confirms the store's clock: at `asOf` at the latest, and only jobs whose timeout + grace + margin are less than `steadyMs`. Omitted: the store's clock is trusted. */
  readonly confirmed?: ConfirmedTime;
}

/** What was decided about one job. */
export interface Verdict {
  readonly job: HeldJob;
  /** Whether it was the only suspect of its dead worker (isolation.ts). */
  readonly alone: boolean;
  readonly decision: CrashVerdict["decision"] | "none";
  /** Null: no decision could be made. The job stays as it is. */
  readonly change: Change | null;
  /** Why not. */
  readonly error: string | null;
}

export interface TakeBackRequest {
  readonly verdicts: readonly Verdict[];
  /** The worker that held them all. Null: the jobs are overdue, and their workers live. */
  readonly of: Condemned | null;
  /** These are the last that it held. */
  readonly last: boolean;
}

/**
 * taken: its change was written. cancelled: the alternative was, for a cancel had been requested. moved: the guard did not hold, the job has
 * ended or belongs to another attempt. locked: a transaction of another session holds the row. Or what the store said of this row.
 */
export type Taken = "taken" | "cancelled" | "moved" | "locked" | { readonly refused: string };

export interface TakeBackAnswer {
  /** One for each verdict with a change, in their order; "taken" means nothing for a verdict without one. */
  readonly taken: readonly Taken[];
  /**
   * With `last`: how many jobs of the worker are held by transactions of other sessions. The worker stays `recovering` and its incident
   * open. Omitted: none, and both are finished.
   */
  readonly locked?: number;
}

/** What an incident keeps of one job. */
export interface RecoveredJob {
  readonly jobId: string;
  readonly kind: string;
  readonly decision: Verdict["decision"];
  readonly counters: Counters;
  readonly limit: number;
  readonly fence: number;
  readonly lastStep: string | null;
  /** Whether it was the only suspect of its worker: a death, or a loss that turns out to be one, is then its own. */
  readonly alone: boolean;
  readonly success: boolean;
  readonly error: string | null;
}

/** Null: the job was not this recovery's to deal with. */
export function recoveredJob({ job, alone, decision, change, error }: Verdict, taken: Taken): RecoveredJob | null {
  const { id: jobId, kind, counters, fence, lastStep } = job;
  const of = { jobId, kind: kind.name, limit: kind.limits.crashes, fence, lastStep, alone };
  if (change === null) return { ...of, decision, counters, success: false, error };
  if (taken === "moved" || taken === "locked") return null;
  if (typeof taken === "object") return { ...of, decision: "none", counters, success: false, error: taken.refused };
  const isCancelled = taken === "cancelled" && change.ifCancelled !== undefined;
  const written = isCancelled ? change.ifCancelled : change;
  const after = { counters: afterChange(counters, written), success: true, error: null };
  return { ...of, decision: isCancelled ? "cancel" : decision, ...after };
}

export interface OverdueJob {
  readonly jobId: string;
  readonly kind: string;
  readonly worker: string;
  readonly change: Change;
}
