// The parts of a store alongside its fourteen verbs (port.ts): what people, reports and metrics read; what people change by hand; what an
// open, the maintenance and an operator ask of the store itself; losses of contact; and the user's own transactions.
import type { JobDetails, JobInfo, JobState } from "../job/job.ts";
import type { JobKey, KeyLimit, KeyPause, KeyState } from "../job/limits.ts";
import type { JobOutcome } from "../job/waits.ts";
import type { Incident, IncidentSummary } from "../recovery/incident.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../recovery/losses.ts";
import type { CommitControl } from "../worker/run.ts";
import type { Inconsistency, Opening } from "./integrity.ts";
import type { Settlement, WriteAnswer } from "./port.ts";

// What people, reports and metrics read. Everything here reads only, and none of it is needed to run a job.

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

  /**
   * The keys that have something of their own: a limit, a weight, a pause or a hold-off that has not passed; by limit and key. Or the one that is asked
   * for, whether it has or not. Absent: this store does not tell.
   */
  keys?(query: KeyQuery): Promise<readonly KeyState[]>;

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

export type KeyQuery =
  | { readonly key: JobKey }
  /** Of one limit; null: of all. At most `most` of them. */
  | { readonly limit: string | null; readonly most: number };

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
  /** Queued, and ready but for a limit that has no room for it, or for its key's turn among the others of a fair kind. */
  readonly held: number;
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

// What people change by hand: cancel, retry, pause, and what a supervisor knows of a death.

export interface Operating {
  /** One transaction: a queued job is cancelled; a running one is asked to end, and its worker learns of it with its next turn. Any other state is returned, and nothing is written. */
  cancel(id: string, actor: string): Promise<OperatorAnswer>;

  /** One transaction: a terminal job is queued again. Refused, with nothing written, if it is not terminal or if another job holds its dedupe key. */
  retry(id: string, actor: string): Promise<OperatorAnswer>;

  /**
   * One transaction: keeps a signal for an unfinished job until it is read or the job has ended, and wakes the job if it waits for it. Sent again with the
   * same id it is kept once.
   */
  signal(signal: Signal): Promise<SignalAnswer>;

  /** Gives one key a limit of its own, in one transaction; null: that of its limit again. */
  setLimit(key: JobKey, own: KeyLimit | null): Promise<void>;

  /** Nothing of this key is claimed after the transaction of this has committed, also what was admitted before; what runs goes on. Null: it may start again. Absent: this store pauses kinds only, and its kinds are not fair. */
  pauseKey?(key: JobKey, pause: KeyPause | null): Promise<void>;

  /** Paused kinds are not claimed by any worker. Returns false if the kind was never declared. */
  setPaused(kind: string, paused: boolean): Promise<boolean>;

  /** Keeps how a worker's process ended, in its row and, in the same transaction, in the evidence of its incident if there is one. A worker without a row: nothing is written. */
  noteDeath(worker: string, words: string): Promise<void>;
}

export interface Signal {
  readonly job: string;
  readonly name: string;
  /** JSON text. */
  readonly payload: string;
  /** The sender's own, by which a repetition is known. */
  readonly id: string;
}

/** `repeated`: a signal with this id was kept before. `full`: too many are kept that were not read. Then, and if the job is missing or has ended, nothing was written. */
export type SignalAnswer =
  | { readonly is: "kept" | "repeated" | "missing" | "full" }
  | { readonly is: "ended"; readonly state: JobState };

/** What an operator's change of one job came to. */
export type OperatorAnswer =
  | { readonly is: "applied"; readonly state: JobState }
  | { readonly is: "requested" }
  | { readonly is: "missing" }
  | { readonly is: "wrong-state"; readonly state: JobState }
  | { readonly is: "key-held"; readonly holder: string; readonly dedupeKey: string };

// What an open, the maintenance and an operator ask of the store itself: its epoch, its restores, its files or its server.

export interface Upkeep {
  /** Sets the epoch to max(stored + 1, now) in one transaction and returns it: called by an open that finds no live worker. */
  raiseEpoch(): Promise<number>;

  /**
   * If the store came back from a backup since this was last called or a worker last registered, in one transaction: the epoch rises above
   * every epoch that was issued, and the rows of all workers are marked as restored, so that none of their writes is accepted. Returns
   * how it is known; null: nothing says that it was restored. Absent: this store can't tell, and `recover --restored` says it.
   */
  noticeRestore?(): Promise<string | null>;

  /** The latest open that found something about the store itself; null: none did. Absent: an open of this store checks nothing. */
  latestOpening?(): Promise<Opening | null>;
  /** Keeps it, in place of the one before. */
  noteOpening?(opening: Opening): Promise<void>;

  /** Resolves when a write of this process got through; rejects if none does. Absent: no process can keep all others from writing. */
  untilWritable?(): Promise<void>;

  /** What an operator should know of the server behind the store. Absent: the store has none. Reads only. */
  advice?(): Promise<readonly Finding[]>;

  /** Looks after the store's own files, in small pieces that block no other process. The maintenance calls it now and then. Returns what should be reported, once each. Absent: there are none. */
  tend?(): Promise<readonly StoreNews[]>;

  /** Reads everything and returns what is wrong with it, at most 100 findings; none: the store is sound. May take long. */
  integrity(): Promise<readonly string[]>;

  /** Repairs in place what can be repaired without losing anything, and returns what is still wrong. No worker may run meanwhile. */
  repair(): Promise<readonly string[]>;

  /** Rows that contradict each other, by reading all of them. Absent: the store's own constraints leave no room for any. */
  inconsistencies?(): Promise<readonly Inconsistency[]>;

  /** Copies the whole store, as it is at one moment, into a new file while others work. Absent: the store has its own tools. */
  backup?(file: string, options?: BackupOptions): Promise<Backup>;
}

/** What the store did to its own files or settings, or could not do, worded by the store. */
export interface StoreNews {
  /** Which sort of news, by a name of the store's own: "wal.held". */
  readonly what: string;
  readonly level: "info" | "warn";
  readonly text: string;
  /** The same for programs. */
  readonly facts: Readonly<Record<string, unknown>>;
}

/** One thing that an operator should know of the store. */
export interface Finding {
  readonly level: "ok" | "warning" | "error";
  readonly text: string;
}

export interface BackupOptions {
  /** Replaces a file of that name. Default false: it is refused. */
  readonly force?: boolean;
  /** Called a few times a second. `totalBytes` is the size of the store; the copy may be smaller. */
  readonly onProgress?: (progress: { readonly bytes: number; readonly totalBytes: number }) => void;
  /** Ends it when it aborts; nothing is left behind. */
  readonly signal?: AbortSignal;
}

/** A copy that is complete, sound and on the disk. */
export interface Backup {
  readonly file: string;
  readonly bytes: number;
  readonly tookMs: number;
}

// Losses of contact as a store keeps them. Without a proof of death nothing is counted against a worker's jobs; what happened to the
// worker is found out later, and only then are its jobs judged (recovery/losses.ts decides).

export interface Losses {
  /** Losses that are not resolved, or whose jobs are not all judged; the oldest first, at most 100. Reads only. */
  open(): Promise<readonly Loss[]>;

  /** Writes what became of a worker with which contact was lost. A loss resolves once: returns the resolution that stands. Null: there is no such loss. */
  resolve(worker: string, resolution: Resolution): Promise<Resolution | null>;

  /** The jobs of a loss that are not judged yet, as they are now. Jobs whose rows are gone are left out. Reads only. */
  jobs(incident: string, limit: number): Promise<readonly LostJob[]>;

  /**
   * One transaction: each verdict under guard (the job is still in the state and under the fence that were read), its history row, and that
   * it was judged. What the guard refuses is read again by the next pass. Returns whether all jobs of the loss are judged now; the loss
   * is closed then.
   */
  judge(incident: string, verdicts: readonly LossVerdict[]): Promise<boolean>;
}

// The user's own writes in the store's transactions: stores with SQL offer it. It is the only part of the port that runs a callback,
// because only the user knows these statements.

/** The user's own transaction as the store runs it; `Tx` is the store's own. Whether it may be asynchronous, the store's form says. */
export type TransactionBody<Tx, T> = (tx: Tx) => T | Promise<T>;

export interface Transactions<Tx = unknown> {
  /**
   * The user's writes, the job's success and what follows from it (`Change.follow`) in one transaction, fenced: if the fence does not hold, `body` is not run or its
   * writes are rolled back, and the answer says stale. If `body` throws, nothing is written and its error comes out. `control` is
   * kept up to date with what is under way; when it is interrupted before the commit itself, nothing is written, no lock is
   * left, and the call rejects with the reason, whether or not `body` has ended. Without it the store sets its own limit to waiting.
   */
  commit<T>(
    settlement: Settlement,
    body: TransactionBody<Tx, T>,
    encode: (value: T) => string | null,
    control?: CommitControl,
  ): Promise<Committed<T>>;

  /** The user's own transaction, with `enqueue` inside it. Nothing is fenced. If `body` throws, nothing is written and its error comes out. */
  transact<T>(body: TransactionBody<Tx, T>): Promise<Transacted<T>>;
}

export interface Transacted<T> {
  readonly value: T;
  /** How many jobs `body` enqueued. */
  readonly enqueued: number;
}

export interface Committed<T> {
  readonly answer: WriteAnswer;
  /** What `body` returned; undefined if it was not run. */
  readonly value: T | undefined;
  /** How many jobs `body` enqueued. */
  readonly enqueued: number;
}
