// The store port: what the engine asks of a database. It speaks intentions, works on arrays, and every method says what is
// atomic, what is checked, and what comes back when the check fails. A refused write is a value, never an exception; a method
// rejects only when the store itself fails, and then nothing of it was written unless the sentence says otherwise. The forms
// that cross it are beside it (settlement.ts, recover-request.ts, inspection.ts) and come with it: who speaks to the port imports one file.
import type { CommitControl } from "./commit.ts";
import type { ConfirmedTime } from "./confirmed-time.ts";
import type { Counters, Enqueued, JobDetails, JobDraft, KindSettings } from "./job.ts";
import type { StoredError } from "./errors.ts";
import type { Incident, IncidentSummary } from "./incident.ts";
import type {
  Backup,
  BackupOptions,
  Finding,
  JobFilter,
  KindCounts,
  ListPage,
  LockHolder,
  OperatorAnswer,
  StoreHealth,
  Upkeep,
  WorkerSuspects,
} from "./inspection.ts";
import type { Inconsistency, Opening } from "./integrity.ts";
import type { Lease } from "./lease.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "./losses.ts";
import type { WorkerRecord, WorkerRow } from "./liveness.ts";
import type {
  Condemned,
  CondemnRequest,
  HeldJob,
  HeldJobs,
  OverdueQuery,
  TakeBackAnswer,
  TakeBackRequest,
} from "./recover-request.ts";
import type { AttemptWrite, Room, SettleAndClaim, Settlement, WriteAnswer } from "./settlement.ts";

export type * from "./inspection.ts";
export * from "./recover-request.ts";
export * from "./settlement.ts";

/** What a worker says of itself with each heartbeat. */
export interface Beat {
  /** How long the main loop has stood still, in ms. */
  readonly loopLagMs: number;
  /** What is overdue only by a time that this does not confirm is not reported. Absent: the store's clock is trusted. */
  readonly confirmed?: ConfirmedTime;
}

export interface BeatAnswer {
  readonly live: boolean;
  /** As in `SettleAndClaim`. */
  readonly replaced?: string;
  /** The store's clock, in ms. Of no meaning if the row is not live. */
  readonly now: number;
  /** What the store says this worker owns. */
  readonly held: readonly { readonly lease: Lease; readonly counters: Counters }[];
  /** How far past its deadline and grace the most overdue of them is, in ms; null: none is. */
  readonly overdueMs: number | null;
  readonly overdueJobId: string | null;
  /** The version of the schema in the store now: greater than our own after a deploy elsewhere. */
  readonly schemaVersion: number;
}

export interface WorkerQuery {
  /** Who is at work or being recovered (default); who is over and still holds jobs; or everybody whose row is kept, which may be all deaths and deploys of months. */
  readonly which?: "present" | "leftBehind" | "all";
  /** Only ids greater than this one. */
  readonly after?: string;
  readonly limit?: number;
}

export interface PurgeRequest {
  readonly finishedOlderThanMs: number;
  readonly incidentsOlderThanMs: number;
  /** At most this many jobs looked at in this transaction. */
  readonly limit: number;
}

export interface PurgeAnswer {
  readonly jobs: number;
  readonly incidents: number;
  readonly more: boolean;
  /** Jobs that the database did not let go, a row of the user's refers to them for instance, and why the first was kept; omitted: none. */
  readonly refused?: { readonly jobs: number; readonly jobId: string; readonly error: StoredError };
}

/** The user's own transaction as the store runs it; `Tx` is the store's own. Whether it may be asynchronous, the store's form says. */
export type TransactionBody<Tx, T> = (tx: Tx) => T | Promise<T>;

export interface Store<Tx = unknown> {
  /** "sqlite", "postgres", ...: which form of `commit` fits. */
  readonly name: string;

  /** Writes or replaces the settings of these kinds. */
  declare(kinds: readonly KindSettings[]): Promise<void>;

  /** One transaction. A known id, or a dedupe key held by an unfinished job of the kind, adds nothing and says `created: false`. Resolves when durable. */
  enqueue(drafts: readonly JobDraft[]): Promise<readonly Enqueued[]>;

  /**
   * Writes the worker's row as live and returns the epoch under which it claims, and the store's clock. The liveness lock is held already. A
   * predecessor with which contact was lost has returned: that loss is resolved in the same transaction. From here on the worker is known by
   * its whole id: a row that a restore brought back, or that another worker has under the same short number, is not its own, and no write of
   * it is accepted.
   */
  register(worker: WorkerRecord): Promise<{ readonly epoch: number; readonly now: number }>;

  /**
   * The worker's loop in one transaction: applies each settlement whose fence holds, then, if the worker's row is live, claims
   * what is ready, writing owner, epoch, fence, start and deadline in the same step. Repeating it after a lost answer is safe.
   * Jobs are claimed by priority, whether they are suspects or not; of suspects only as many as may run together with those that the worker
   * holds (`suspectsToTake` in isolation.ts). A claimed job whose input or kept steps are not what was written is not handed out:
   * it is quarantined (`transitions.quarantine`) in the same transaction.
   */
  settleAndClaim(worker: string, settlements: readonly Settlement[], room: Room): Promise<SettleAndClaim>;

  /**
   * The user's writes and the job's success in one transaction, fenced: if the fence does not hold, `body` is not run or its
   * writes are rolled back, and the answer says stale. If `body` throws, nothing is written and its error comes out. `control` is
   * kept up to date with what is under way; when it is interrupted before the commit itself, nothing is written, no lock is
   * left, and the call rejects with the reason, whether or not `body` has ended. Without it the store sets its own limit to waiting.
   */
  commit<T>(
    settlement: Settlement,
    body: TransactionBody<Tx, T>,
    encode: (value: T) => string | null,
    control?: CommitControl,
  ): Promise<{ answer: WriteAnswer; value: T | undefined }>;

  /** The user's own transaction, with `enqueue` inside it. Nothing is fenced. */
  transact<T>(body: TransactionBody<Tx, T>): Promise<T>;

  /** Each write under its own fence; a new step also sets the job's crash counters back. One transaction for all. */
  record(writes: readonly { readonly lease: Lease; readonly write: AttemptWrite }[]): Promise<readonly WriteAnswer[]>;

  /** One row update: the sign of life. Answers whether the row is still live and what the store says is held. */
  beat(worker: string, beat: Beat): Promise<BeatAnswer>;

  /** Leaves a last word in the worker's row, read by recovery ("killed itself: job 7 was overdue and the loop blocked"). */
  note(worker: string, lastWord: string): Promise<void>;

  /** Marks the worker stopped if it holds nothing; otherwise leaves it to recovery. Answers whether it did. */
  deregister(worker: string): Promise<boolean>;

  /** Workers, by id: those that the query names, by default the live and recovering ones. */
  workers(query: WorkerQuery): Promise<readonly WorkerRow[]>;

  /** Sets the epoch to max(stored + 1, now): called by an open that finds no live worker. */
  raiseEpoch(): Promise<number>;

  /**
   * If the store came back from a backup since this was last called or a worker last registered, in one transaction: the epoch rises above
   * every epoch that was issued, and the rows of all workers are marked as restored, so that none of their writes is accepted. Returns
   * how it is known; null: nothing says that it was restored. Absent: this store can't tell, and `recover --restored` says it.
   */
  noticeRestore?(): Promise<string | null>;

  /**
   * Recovery is three verbs, and core decides between them. One transaction: marks the worker `recovering`, so that it claims nothing any
   * more, and opens its one incident, or returns the one that another recovery has opened. Checked: the worker has not ended, or still holds
   * jobs, and, without a proof of its death, neither its heartbeat nor its lock has changed since the request's row was read. Returns null
   * if not, and nothing was written; "locked" if a transaction of another session holds the worker's row.
   */
  condemn(request: CondemnRequest): Promise<Condemned | "locked" | null>;

  /** What a condemned worker still holds, by row, after the cursor; at most `limit`. Reads only. */
  heldBy(condemned: Condemned, limit: number): Promise<HeldJobs>;

  /** Running jobs past deadline + grace + margin, whoever owns them, the most overdue first. Reads only. */
  overdue(query: OverdueQuery): Promise<readonly HeldJob[]>;

  /**
   * One transaction: each verdict's change under guard (this worker, condemned by this incident, this fence, still running, and, if it is
   * overdue, its deadline not moved), its history row and the incident's row. Safe to repeat and to run alongside another recovery. It does not wait for a job that a
   * transaction of another session holds, a frozen commit for instance. With `last`, and nothing left that the worker holds except what
   * could not be decided, the incident is completed and the worker is `gone`.
   */
  takeBack(request: TakeBackRequest): Promise<TakeBackAnswer>;

  /** Losses of contact that are not resolved, or whose jobs are not all judged; the oldest first, at most 100. */
  losses(): Promise<readonly Loss[]>;

  /** Writes what became of a worker with which contact was lost. A loss resolves once: returns the resolution that stands. Null: there is no such loss. */
  resolveLoss(worker: string, resolution: Resolution): Promise<Resolution | null>;

  /** The jobs of a loss that are not judged yet, as they are now. Jobs whose rows are gone are left out. */
  lostJobs(incident: string, limit: number): Promise<readonly LostJob[]>;

  /**
   * One transaction: each verdict under guard (the job is still in the state and under the fence that were read), its history row, and that
   * it was judged. What the guard refuses is read again by the next pass. Returns whether all jobs of the loss are judged now; the loss
   * is closed then.
   */
  judge(incident: string, verdicts: readonly LossVerdict[]): Promise<boolean>;

  /**
   * Deletes finished jobs with all that belongs to them, old incidents and old rows of finished workers, in a piece so small that no
   * other process waits for it. Returns how many of each were deleted. A job that can't be deleted is kept and stops none of the others.
   */
  purge(request: PurgeRequest): Promise<PurgeAnswer>;

  get(id: string): Promise<JobDetails | null>;
  list(filter: JobFilter, limit: number, after: string | null): Promise<ListPage>;
  counts(): Promise<readonly KindCounts[]>;
  /** How many ready jobs of its kind would be claimed before this one; null: it is not ready. */
  ahead(id: string): Promise<number | null>;
  /** The live workers that hold suspects, and how many. */
  suspects(): Promise<readonly WorkerSuspects[]>;
  /** Which process holds the store's write lock just now, as far as this host can tell; null: none, or not known. */
  writer(): Promise<LockHolder | null>;

  /** A queued job is cancelled; a running one is asked to end and its worker told. */
  cancel(id: string, actor: string): Promise<OperatorAnswer>;
  /** A terminal job is queued again. */
  retry(id: string, actor: string): Promise<OperatorAnswer>;
  /** Paused kinds are not claimed, by anybody. Answers false if the kind was never seen. */
  setPaused(kind: string, paused: boolean): Promise<boolean>;

  incidents(limit: number, after: string | null): Promise<readonly IncidentSummary[]>;
  /** One incident whole, or null. */
  incident(id: string): Promise<Incident | null>;
  /** All incidents of the latest recovery pass that found anything. */
  latestRecovery(): Promise<readonly Incident[]>;
  /** The latest open that found something about the store itself; null: none did. Stores that check nothing leave both out. */
  latestOpening?(): Promise<Opening | null>;
  /** Keeps it, in place of the one before. */
  noteOpening?(opening: Opening): Promise<void>;

  /** Resolves when a write of this process got through; rejects if none does. Absent: no process can keep all others from writing. */
  untilWritable?(): Promise<void>;

  health(): Promise<StoreHealth>;
  /** What an operator should know of the server behind the store. Absent: the store has none. Reads only. */
  advice?(): Promise<readonly Finding[]>;

  /** Looks after the store's own files, in small pieces that hold nobody up. Asked by the keeper now and then. */
  upkeep?(): Promise<Upkeep>;

  /** Reads everything and answers what is wrong with it, at most 100 findings; none: the store is sound. May take long. */
  integrity(): Promise<readonly string[]>;

  /** Mends in place what can be mended without losing anything, and answers what is still wrong. Nobody may work meanwhile. */
  repair(): Promise<readonly string[]>;

  /** Rows that contradict each other, by reading all of them. Absent: the store's own constraints leave no room for any. */
  inconsistencies?(): Promise<readonly Inconsistency[]>;

  /** Copies the whole store, as it is at one moment, into a new file while others work. Absent: the store has its own tools. */
  backup?(file: string, options?: BackupOptions): Promise<Backup>;

  /** Calls `listener` when another process may have made work ready. Best effort: polling is the fallback. */
  onBell(listener: () => void): () => void;

  close(): Promise<void>;
}
