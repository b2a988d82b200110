// What people, reports and metrics read of a store. Everything here reads only, and none of it is needed to run a job.
import type { JobDetails, JobInfo, JobState } from "../job/job.ts";
import type { JobOutcome } from "../job/waits.ts";
import type { Incident, IncidentSummary } from "../recovery/incident.ts";

export interface Inspecting {
  /** One job whole, or null. */
  get(id: string): Promise<JobDetails | null>;

  /** How these jobs stand, in the order of the ids. */
  outcomes(ids: readonly string[]): Promise<readonly JobOutcome[]>;

  /** A page of jobs, the newest first. `after` is the `next` of the page before; a text that this store did not make is refused with OPTION_INVALID. */
  list(filter: JobFilter, limit: number, after: string | null): Promise<ListPage>;

  /** All kinds with the number of their jobs by state, as of one moment. */
  counts(): Promise<readonly KindCounts[]>;

  /** How many ready jobs of its kind would be claimed before this one; null: it is not ready. */
  ahead(id: string): Promise<number | null>;

  /** The live workers that hold suspects, and how many. */
  suspects(): Promise<readonly WorkerSuspects[]>;

  /** Which process holds the store's write lock just now, as far as this host can tell; null: none, or not known. */
  writer(): Promise<LockHolder | null>;

  /** The newest first; `after` is the id of the last one of the page before. */
  incidents(limit: number, after: string | null): Promise<readonly IncidentSummary[]>;

  /** One incident whole, or null. */
  incident(id: string): Promise<Incident | null>;

  /** All incidents of the latest recovery pass that found anything. */
  latestRecovery(): Promise<readonly Incident[]>;

  /** Whether the store can be worked on, and what it says of itself. */
  health(): Promise<StoreHealth>;
}

export interface JobFilter {
  readonly state?: JobState;
  readonly kind?: string;
  /** Only jobs that this one enqueued with `run.enqueue`. */
  readonly parent?: string;
  /** Only jobs whose id, dedupe key or error contains this text. */
  readonly text?: string;
  /** Only jobs enqueued before or after this instant, in ms of the store's clock. */
  readonly createdBefore?: number;
  readonly createdAfter?: number;
}

export interface ListPage {
  /** May be fewer than were asked for although more follow: a page is bounded by what it looks at, too. */
  readonly jobs: readonly JobInfo[];
  /** Pass it to get what follows; null: that was all. */
  readonly next: string | null;
}

export interface KindCounts {
  readonly kind: string;
  readonly paused: boolean;
  /** Could be claimed now. */
  readonly ready: number;
  /** How long the oldest of those has been ready; null: none is. */
  readonly oldestReadyMs: number | null;
  /** Queued, but not due yet. */
  readonly delayed: number;
  readonly running: number;
  readonly succeeded: number;
  readonly dead: number;
  readonly cancelled: number;
  readonly quarantined: number;
}

/** The suspects that a live worker holds. */
export interface WorkerSuspects {
  readonly worker: string;
  readonly count: number;
  /** The smallest number of suspects that one of them may run with, itself included; ANY_NUMBER: none has a bound. */
  readonly together: number;
}

export interface StoreHealth {
  readonly ok: boolean;
  readonly detail: Readonly<Record<string, string | number | boolean>>;
}

export interface LockHolder {
  readonly pid: number;
  readonly command: string;
  /** Changes with every commit of another process: the same holder with the same number at two looks lets nobody through. */
  readonly version: number;
}
