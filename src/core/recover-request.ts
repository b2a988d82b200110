// What crosses the store port when work is taken from its owner: what recovery finds, asks for and gets, and what was overdue. The
// verbs are in store.ts.
import type { Counters, KindSettings } from "./job.ts";
import type { Death, HowLost, WorkerRow } from "./liveness.ts";
import type { Change, CrashVerdict, JobView } from "./transitions.ts";

/** One job as recovery finds it. */
export interface HeldJob extends JobView {
  readonly kind: KindSettings;
  readonly cancelRequested: boolean;
  /**
   * How many workers died without holding it, of those whose recovery was completed since this job's first counted crash or
   * within the last BACKGROUND_MS, by the store's clock. Needed only where `isOnTrial` says so; 0 is right elsewhere.
   */
  readonly deathsElsewhere: number;
}

export interface RecoverRequest {
  readonly worker: WorkerRow;
  readonly death: Death;
  /** The recovery pass that this belongs to; incidents of one pass share a report. */
  readonly recovery: {
    readonly id: string;
    readonly startedAt: number;
    readonly by: string;
    readonly integrity: string;
    readonly walFrames: number;
  };
  /** The id of the incident if this is the first transaction about this death; a death has one. */
  readonly incident: string;
  /** At most this many jobs in this transaction. */
  readonly limit: number;
  /** Pure. `how` is the incident's own, as its first transaction wrote it. An exception is recorded as that job's own failure and stops nobody else. */
  readonly decide: (job: HeldJob, heldAtDeath: number, how: HowLost) => CrashVerdict;
}

export interface RecoveredJob {
  readonly jobId: string;
  readonly kind: string;
  readonly decision: CrashVerdict["decision"] | "none";
  readonly counters: Counters;
  readonly limit: number;
  readonly fence: number;
  readonly lastStep: string | null;
  readonly success: boolean;
  readonly error: string | null;
}

export interface RecoverAnswer {
  /** Null: it was not dead, or its recovery was over already; nothing was written. */
  readonly incident: string | null;
  readonly jobs: readonly RecoveredJob[];
  /** False: more are left, ask again. */
  readonly done: boolean;
  /**
   * How many jobs were left out because a transaction of another session holds them; omitted: none. The worker stays `recovering`
   * and its incident open: ask again in a while. With `incident: null` it is the worker's own row that is held.
   */
  readonly locked?: number;
}

export interface OverdueJob {
  readonly jobId: string;
  readonly worker: string;
  readonly change: Change;
}
