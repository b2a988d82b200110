// The store port: what the engine asks of a database. It speaks intentions, works on arrays, and every method says what is
// atomic, what is checked, and what comes back when the check fails. A refused write is a value, never an exception; a method
// rejects only when the store itself fails, and then nothing of it was written unless the sentence says otherwise.
import type { ClaimedJob, Counters, Enqueued, JobDetails, JobDraft, JobInfo, JobState, KindSettings } from "./job.ts";
import type { Incident, IncidentSummary } from "./incident.ts";
import type { Inconsistency, Opening } from "./integrity.ts";
import type { Lease } from "./lease.ts";
import type { Change, CrashVerdict, JobView } from "./transitions.ts";
import type { Death, WorkerRecord, WorkerRow } from "./liveness.ts";

/** How a settled attempt ended. */
export interface Settlement {
  readonly lease: Lease;
  readonly change: Change;
  /** The worker's own mark; stores do not look at it. */
  readonly slot?: number;
}

/** The fence did not hold: what the row says now. Nothing was changed; the store has counted and recorded it. */
export interface Stale {
  readonly lease: Lease;
  /** What was tried: "succeed", "step render", ... */
  readonly tried: string;
  readonly state: JobState | "missing";
  readonly worker: string | null;
  readonly epoch: number;
  readonly fence: number;
}

/**
 * `applied`: written now. `repeated`: this same settlement of this same attempt had been accepted before, nothing changed.
 * `stale`: the attempt does not own the job any more, nothing changed.
 */
export type WriteAnswer =
  | { readonly is: "applied"; readonly enqueued?: readonly Enqueued[] }
  | { readonly is: "repeated" }
  | { readonly is: "stale"; readonly stale: Stale };

export const APPLIED: WriteAnswer = { is: "applied" };
export const REPEATED: WriteAnswer = { is: "repeated" };

/** A small write about a running attempt. */
export type AttemptWrite =
  | { readonly type: "step"; readonly name: string; readonly result: string | null }
  | { readonly type: "progress"; readonly value: string }
  | { readonly type: "log"; readonly message: string }
  | { readonly type: "heartbeat" }
  | { readonly type: "enqueue"; readonly drafts: readonly JobDraft[] };

/** Lines kept of one job's log; the oldest go first. */
export const MAX_LOG_LINES = 1_000;

/** `tried` of a small write that was refused. */
export function triedBy(write: AttemptWrite): string {
  switch (write.type) {
    case "step":
      return `step ${write.name}`;
    case "enqueue":
      return `enqueue ${write.drafts.map((draft) => draft.kind).join(", ")}`;
    default:
      return write.type;
  }
}

/** How many jobs a worker can take: of each kind at most `room`, `total` together. */
export interface Room {
  readonly total: number;
  /** Kinds with `shares` have one room in common: `room` is what is left of it for all of them together. */
  readonly kinds: readonly { readonly kind: string; readonly room: number; readonly shares?: boolean }[];
  /** True if nothing is in flight in the worker, so that it may take a job that must run alone. */
  readonly idle: boolean;
}

/** A claimed job that was quarantined in the same transaction, because what is stored of it is not what was written. */
export interface CorruptJob {
  readonly lease: Lease;
  readonly kind: string;
  readonly change: Change;
}

export interface SettleAndClaim {
  readonly settled: readonly WriteAnswer[];
  readonly claimed: readonly ClaimedJob[];
  /** Claimed beside those and quarantined at once: the input or a kept step does not match its checksum. Left out: none. */
  readonly corrupt?: readonly CorruptJob[];
  /** False if the worker's own row is not live any more: nothing was claimed, and it must register again under a new id. */
  readonly live: boolean;
  /** Running jobs of this worker whose cancel was asked for. */
  readonly cancels: readonly string[];
  /** In how many ms the next delayed job is due; null: none waits. */
  readonly nextDueInMs: number | null;
}

/** What a worker says of itself with each heartbeat. */
export interface Beat {
  /** How long the main loop has stood still, in ms. */
  readonly loopLagMs: number;
}

export interface BeatAnswer {
  readonly live: boolean;
  /** What the store says this worker owns. */
  readonly held: readonly { readonly lease: Lease; readonly counters: Counters }[];
  /** How far past its deadline and grace the most overdue of them is, in ms; null: none is. */
  readonly overdueMs: number | null;
  readonly overdueJobId: string | null;
  /** The version of the schema in the store now: greater than our own after a deploy elsewhere. */
  readonly schemaVersion: number;
}

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
  /** Pure. An exception is recorded as that job's own failure and stops nobody else. */
  readonly decide: (job: HeldJob, heldAtDeath: number) => CrashVerdict;
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
}

export interface OverdueJob {
  readonly jobId: string;
  readonly worker: string;
  readonly change: Change;
}

export interface JobFilter {
  readonly state?: JobState;
  readonly kind?: string;
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

/** What an operator's change of one job came to. */
export type OperatorAnswer =
  | { readonly is: "applied"; readonly state: JobState }
  | { readonly is: "requested" }
  | { readonly is: "missing" }
  | { readonly is: "wrong-state"; readonly state: JobState }
  | { readonly is: "key-held"; readonly holder: string; readonly dedupeKey: string };

export interface StoreHealth {
  readonly ok: boolean;
  readonly detail: Readonly<Record<string, string | number | boolean>>;
}

/** What a look after the store's own files came to. */
export interface Upkeep {
  /** The size of the write-ahead log afterwards. */
  readonly walBytes: number;
  /** Frames that were flushed because it was large; 0: it was not. */
  readonly frames: number;
  /** It stays large: these processes read an old state, as far as this host can tell. null: it is not large. */
  readonly heldBy: readonly { readonly pid: number; readonly command: string }[] | null;
}

/** One thing that an operator should know of the store. */
export interface Finding {
  readonly level: "ok" | "warning" | "error";
  readonly text: string;
}

export interface LockHolder {
  readonly pid: number;
  readonly command: string;
  /** Changes with every commit of another process: the same holder with the same number at two looks lets nobody through. */
  readonly version: number;
}

export interface WorkerQuery {
  readonly over?: boolean;
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

/** The user's own transaction as the store runs it; `Tx` is the store's own. Whether it may be asynchronous, the store's form says. */
export type TransactionBody<Tx, T> = (tx: Tx) => T | Promise<T>;

export interface Store<Tx = unknown> {
  /** "sqlite", "postgres", ...: which form of `commit` fits. */
  readonly name: string;

  /** Writes or replaces the settings of these kinds. */
  declare(kinds: readonly KindSettings[]): Promise<void>;

  /** One transaction. A known id, or a dedupe key held by an unfinished job of the kind, adds nothing and says `created: false`. Resolves when durable. */
  enqueue(drafts: readonly JobDraft[]): Promise<readonly Enqueued[]>;

  /** Writes the worker's row as live and answers the epoch under which it claims. The liveness lock is held already. */
  register(worker: WorkerRecord): Promise<{ readonly epoch: number }>;

  /**
   * The worker's loop in one transaction: applies each settlement whose fence holds, then, if the worker's row is live, claims
   * what is ready, writing owner, epoch, fence, start and deadline in the same step. Repeating it after a lost answer is safe.
   * A worker for which a job waits that must run alone gets no other until it is idle. A claimed job whose input or kept steps are
   * not what was written is not handed out: it is quarantined (`transitions.quarantine`) in the same transaction.
   */
  settleAndClaim(worker: string, settlements: readonly Settlement[], room: Room): Promise<SettleAndClaim>;

  /**
   * The user's writes and the job's success in one transaction, fenced: if the fence does not hold, `body` is not run or its
   * writes are rolled back, and the answer says stale. If `body` throws, nothing is written and its error comes out.
   */
  commit<T>(
    settlement: Settlement,
    body: TransactionBody<Tx, T>,
    encode: (value: T) => string | null,
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

  /** Workers that are not over (live and recovering), by id. With `over`, also the stopped and gone ones that are still kept. */
  workers(query: WorkerQuery): Promise<readonly WorkerRow[]>;

  /** Sets the epoch to max(stored + 1, now): called by an open that finds no live worker. */
  raiseEpoch(): Promise<number>;

  /**
   * One transaction of a recovery: marks the worker `recovering` (`gone` with the last one), opens or continues its one incident,
   * and for at most `limit` jobs that it still holds writes the decision, guarded by (worker, fence, running), the history
   * row and the incident's row. Safe to repeat and to run beside another recovery. Checked: the worker is not over, and one
   * that was taken for silent has not beaten since the request's row was read.
   */
  recover(request: RecoverRequest): Promise<RecoverAnswer>;

  /** Fences out jobs past deadline + grace + `marginMs`, whoever owns them; at most `limit`. */
  expire(marginMs: number, limit: number, decide: (job: HeldJob) => Change): Promise<readonly OverdueJob[]>;

  /** Deletes finished jobs with all that belongs to them, old incidents and old rows of workers that are over. Answers how many rows of each went. */
  purge(request: PurgeRequest): Promise<{ readonly jobs: number; readonly incidents: number; readonly more: boolean }>;

  get(id: string): Promise<JobDetails | null>;
  list(filter: JobFilter, limit: number, after: string | null): Promise<ListPage>;
  counts(): Promise<readonly KindCounts[]>;
  /** How many ready jobs of its kind would be claimed before this one; null: it is not ready. */
  ahead(id: string): Promise<number | null>;
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

export interface BackupOptions {
  /** Replaces a file of that name. Default false: it is refused. */
  readonly force?: boolean;
  /** Told a few times a second. `totalBytes` is the size of the store; the copy may be smaller. */
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
