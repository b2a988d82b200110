// The store port: what the engine asks of a database, in fourteen verbs. They speak intentions, work on arrays, and each comment says
// what is atomic, what is checked, and what comes back when the check fails. A refused write is a value, never an exception; a verb
// rejects only when the store itself fails, and then nothing of it was written unless its comment says otherwise. What people ask, what
// only some stores can do, and what an open needs are small interfaces of their own, offered as properties. Data crosses the port, never
// a callback, except in `transactions`.
import type { BegunRow, RowEnds } from "../job/batches.ts";
import type { StoredError } from "../job/errors.ts";
import type { HeldSuspects, InFlight } from "../job/isolation.ts";
import type { ClaimedJob, Counters, Enqueued, JobDraft, JobState, KindSettings } from "../job/job.ts";
import type { HeldSummary, Lease } from "../job/lease.ts";
import type { JobKey } from "../job/limits.ts";
import { afterChange, type Change, type CrashDecision, type JobView } from "../job/transitions.ts";
import { shownWait } from "../job/waits.ts";
import type { ConfirmedTime } from "../recovery/confirmed-time.ts";
import type { Batches } from "./batches.ts";
import type { Schedules } from "./schedules.ts";
import type { Collections } from "./collections.ts";
import type { StoreNote, Inspecting, Losses, Operating, Transactions, Upkeep } from "./store-parts.ts";
import type { Death, HowLost, WorkerRecord, WorkerRow } from "./liveness.ts";

export type * from "./batches.ts";
export type * from "./schedules.ts";
export type * from "./collections.ts";
export type * from "./store-parts.ts";
export { changedCount } from "./store-parts.ts";

export interface Store<Tx = unknown> {
  /** "sqlite", "postgres", ...: which form of `commit` fits. */
  readonly name: string;

  /** How many drafts `enqueue` takes best at once, for a caller that may cut as it likes. Omitted: 1,000. */
  readonly bulk?: number;

  /** How many such calls it takes best at a time; they are carried out in order. Omitted: one. */
  readonly bulkAtOnce?: number;

  /** How many jobs one `purge` deletes best, in a caller's steady pace. Omitted: 500. */
  readonly purgesAtOnce?: number;

  /** True: the write that makes work ready wakes the workers that sleep, so a wake-up is lost only with the connection that would have heard it. */
  readonly wakesSurely?: boolean;

  /** Writes or replaces the settings of these kinds, in one transaction. */
  declare(kinds: readonly KindSettings[]): Promise<void>;

  /**
   * One transaction. A known id, or a dedupe key held by an unfinished job of the kind, adds nothing and says `created: false`. Resolves when durable. `call`: the
   * drafts are one batch of several. If one is not stored, those of the same call that were handed over later are not either, except what was on its way to Redis.
   */
  enqueue(drafts: readonly JobDraft[], call?: object): Promise<readonly Enqueued[]>;

  /**
   * Writes the worker's row as live and returns the epoch under which it claims, and the store's clock. The liveness lock is held already. A
   * predecessor with which contact was lost has returned: that loss is resolved in the same transaction. From here on the worker is known by
   * its whole id: a row that a restore brought back, or that another worker has under the same short number, is not its own, and no write of
   * it is accepted.
   */
  register(worker: WorkerRecord): Promise<{ readonly epoch: number; readonly now: number }>;

  /**
   * The worker's loop in one transaction: applies each settlement whose fence holds, enqueues what follows from those (`Change.follow`), then,
   * if the worker's row is live, acts on wakes (jobs whose wait may have ended), makes ready what is due and claims what is ready, writing owner, epoch, fence, start and deadline in the same step. Repeating it after a lost answer is safe.
   * Jobs are claimed by priority, whether they are suspects or not; of suspects only as many as may run together with those that the worker
   * holds (`suspectsToTake` in isolation.ts). A claimed job whose input or kept steps are not what was written is not handed out:
   * it is quarantined (`transitions.quarantine`) in the same transaction.
   */
  turn(worker: string, settlements: readonly Settlement[], room: Room): Promise<TurnAnswer>;

  /** The small writes of attempts, each under its own fence, all in one transaction; a new step also resets the job's crash counters. A write whose fence does not hold is answered with `stale`. */
  write(writes: readonly FencedWrite[]): Promise<readonly WriteAnswer[]>;

  /** The sign of life: one update of the worker's row, made only if that is live. Returns whether it is, and a summary of what the store says is held. A last word is kept whether the row is live or not. */
  beat(worker: string, beat: Beat): Promise<BeatAnswer>;

  /** Marks the worker stopped, in one transaction, if it is live and holds nothing; otherwise writes nothing and leaves it to recovery. Returns whether it did. */
  leave(worker: string): Promise<boolean>;

  /** Workers, by id: those that the query names, by default the live and recovering ones. Reads only. */
  workers(query: WorkerQuery): Promise<readonly WorkerRow[]>;

  /**
   * Recovery is three verbs, and recovery/ decides between them. One transaction: marks the worker `recovering`, so that it claims nothing any
   * more, and opens its one incident, or returns the one that another recovery has opened. Checked: the worker has not ended, or still holds
   * jobs, and, without a proof of its death, neither its heartbeat nor its lock has changed since the request's row was read. Returns null
   * if not, and nothing was written; "locked" if a transaction of another session holds the worker's row.
   */
  condemn(request: CondemnRequest): Promise<Condemned | "locked" | null>;

  /** Running jobs that may have to be taken from their workers: what a condemned worker still holds, or what is overdue, whichever worker holds it. At most `limit`. Reads only. */
  heldBy(query: HeldQuery): Promise<HeldJobs>;

  /**
   * One transaction: each verdict's change under guard (this worker, condemned by this incident, this fence, still running, and, if it is
   * overdue, its deadline not moved), what follows from it (`Change.follow`), its history row and the incident's row. Safe to repeat and to run alongside another recovery. It does not wait for a job that a
   * transaction of another session holds, a frozen commit for instance. With `last`, and nothing left that the worker holds except what
   * could not be decided, the incident is completed and the worker is `gone`.
   */
  takeBack(request: TakeBackRequest): Promise<TakeBackAnswer>;

  /**
   * Deletes finished jobs with all that belongs to them, old incidents and old rows of finished workers, in a piece so small that no
   * other process waits for it. Returns how many of each were deleted. A job that can't be deleted is kept and stops none of the others.
   */
  purge(request: PurgeRequest): Promise<PurgeAnswer>;

  /** Calls `listener` when another process may have made work ready, until the returned function is called. Best effort: polling is the fallback. */
  onWakeup(listener: (what: Wakeup) => void): () => void;

  /** Sends this to every process that listens, this one included, on the way that wake-ups take. Best effort. Absent: nothing shows that wake-ups arrive, and every worker polls. */
  notify?(what: Wakeup): void;

  /** Finishes what was asked for and lets go of the store. Every later call is refused. */
  close(): Promise<void>;

  /** What people and reports read. */
  readonly inspect: Inspecting;
  /** What people change. */
  readonly operate: Operating;
  /** What became of workers with which contact was lost. */
  readonly losses: Losses;
  /** What an open and the maintenance ask of the store itself. */
  readonly upkeep: Upkeep;
  /** The user's own writes in the store's transactions. Absent: this store has none, and `commit` is refused. */
  readonly transactions?: Transactions<Tx>;
  /** Batches of rows. Absent: this store has none, and `batch()` kinds are refused. */
  readonly batches?: Batches;
  /** Schedules. Absent: this store has none, and `schedule()` is refused. */
  readonly schedules?: Schedules;
  /** Collections of numbered messages. Absent: this store has none, and `collection()` kinds are refused. */
  readonly collections?: Collections;
}

/** wake: work may be ready. proof: the process that polls for all has just done so, and its messages arrive. */
export type Wakeup = "wake" | "proof";

/** What waits in the store, as far as the process that polls for all has to know. */
export interface Pending {
  /** A worker's turn may find something to do now, or the store could not find out in time. True at the latest a second after it is so, or ten seconds where polls take long. */
  readonly now: boolean;
  /** In how many ms that may change by time alone; null: nothing is known to come. */
  readonly nextInMs: number | null;
  /** Another number after each write to the store, for those who need not look again. Absent: the store does not count them. */
  readonly changes?: number;
  /** Nothing that the maintenance tends waits for a time: no deadline, no open loss, no unfinished batch or collection. Absent: not known. */
  readonly isQuiet?: boolean;
}

/** What a worker says of itself with each heartbeat. */
export interface Beat {
  /** How long the main loop has stood still, in ms. */
  readonly loopLagMs: number;
  /** What is overdue only by a time that this does not confirm is not reported. Absent: the store's clock is trusted. */
  readonly confirmed?: ConfirmedTime;
  /** Kept in the worker's row and shown by its incident ("killed itself: job 7 was overdue and the loop blocked"). */
  readonly lastWord?: string;
  /** It may poll, for this many ms at most: the sign of life is never later than that because of it. Absent: it does not poll. */
  readonly pollMs?: number;
  /** Asks for the leases that it holds, too: their summary was not what the worker expected. */
  readonly leases?: boolean;
}

export interface BeatAnswer {
  readonly live: boolean;
  /** As in `TurnAnswer`. */
  readonly replaced?: string;
  /** The store's clock, in ms. Of no meaning if the row is not live. */
  readonly now: number;
  /** What the store says this worker owns. Computed of the rows of jobs: a heartbeat has the same size however many there are. */
  readonly held: HeldSummary;
  /** All of it, if that was asked for. */
  readonly leases?: readonly HeldLease[];
  /** How far past its deadline and grace the most overdue of them is, in ms; null: none is. */
  readonly overdueMs: number | null;
  readonly overdueJobId: string | null;
  /** The version of the schema in the store now: greater than our own after a deploy elsewhere. */
  readonly schemaVersion: number;
  /** What a poll of this worker may find, if it may poll: jobs of all kinds, paused or not. Absent: it holds jobs, or the turns of this store are its polls. */
  readonly pending?: Pending;
}

/** A job that the store says a worker owns. */
export interface HeldLease {
  readonly lease: Lease;
  readonly counters: Counters;
}

/** Which workers are read. */
export interface WorkerQuery {
  /** Workers at work or being recovered (default); ended workers that still hold jobs; or every worker whose row is kept, which may be all deaths and deploys of months. */
  readonly which?: "present" | "leftBehind" | "all";
  /** Only ids greater than this one. */
  readonly after?: string;
  /** At most this many. Default: all. */
  readonly limit?: number;
  /** With the ids of the jobs that each of them holds, at most this many. Read from the rows of jobs, for people. */
  readonly heldIds?: number;
}

export interface PurgeRequest {
  readonly finishedOlderThanMs: number;
  readonly incidentsOlderThanMs: number;
  /** At most this many jobs checked in this transaction. */
  readonly limit: number;
}

export interface PurgeAnswer {
  readonly jobs: number;
  readonly incidents: number;
  readonly more: boolean;
  /** Jobs that the database did not let go, a row of the user's refers to them for instance, and why the first was kept; omitted: none. */
  readonly refused?: { readonly jobs: number; readonly jobId: string; readonly error: StoredError };
}

// About an attempt: how it ended, what it writes while it runs, and what a worker's turn claims in exchange.

/** How a settled attempt ended. */
export interface Settlement {
  readonly lease: Lease;
  readonly change: Change;
  /** The worker's own mark; stores do not interpret it. */
  readonly slot?: number;
}

/** The fence did not hold: what the row says now. Nothing was changed; the store has counted and recorded it. */
export interface Stale {
  /** The attempt that tried to write. */
  readonly lease: Lease;
  /** What was tried: "succeed", "step render", ... */
  readonly tried: string;
  /** The job's state now. */
  readonly state: JobState | "missing";
  /** The worker of its latest attempt; null: none. */
  readonly worker: string | null;
  /** The epoch of its latest attempt. */
  readonly epoch: number;
  /** The number of its latest attempt. */
  readonly fence: number;
}

/**
 * `applied`: written now. `repeated`: this same settlement of this same attempt had been accepted before, nothing changed.
 * `stale`: the attempt does not own the job any more, nothing changed.
 */
export type WriteAnswer =
  | { readonly is: "applied"; readonly enqueued?: readonly Enqueued[]; readonly signal?: ReadSignal }
  | { readonly is: "repeated" }
  | { readonly is: "stale"; readonly stale: Stale };

/** What a wait for a signal came to. `kept`: its outcome is kept as a step now, JSON text, or null if it ended by time. Not kept: there is no such signal yet. */
export type ReadSignal = { readonly kept: true; readonly payload: string | null } | { readonly kept: false };

export const APPLIED: WriteAnswer = { is: "applied" };
export const REPEATED: WriteAnswer = { is: "repeated" };

/** A small write about a running attempt. */
export type AttemptWrite =
  | { readonly type: "step"; readonly name: string; readonly result: string | null }
  | { readonly type: "progress"; readonly value: string }
  | { readonly type: "log"; readonly message: string }
  | { readonly type: "heartbeat" }
  /** The jobs get this one as their parent. */
  | { readonly type: "enqueue"; readonly drafts: readonly JobDraft[] }
  /** Nothing of this key starts for this long. */
  | { readonly type: "holdOff"; readonly key: JobKey; readonly forMs: number }
  /** Reads the oldest signal of this name and keeps it as a step; without one, and if the wait `hasEnded` by time, keeps null. */
  | { readonly type: "signal"; readonly step: string; readonly name: string; readonly hasEnded: boolean }
  /** Rows of a block have ended. */
  | { readonly type: "rows"; readonly ends: RowEnds }
  /** A row of a block is about to begin: if the worker dies, it is known which row ran. An index within the block. */
  | { readonly type: "rowBegins"; readonly row: number };

/** A small write with the lease of its attempt. */
export interface FencedWrite {
  readonly lease: Lease;
  readonly write: AttemptWrite;
}

/** Lines kept of one job's log; the oldest go first. */
export const MAX_LOG_LINES = 1_000;

/** `tried` of a small write that was refused. */
export function triedBy(write: AttemptWrite): string {
  switch (write.type) {
    case "step":
      return `step ${write.name}`;
    case "signal":
      return `signal ${write.name}`;
    case "holdOff":
      return `holdOff ${write.key.limit}`;
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
  readonly kinds: readonly RoomOfKind[];
  /** The suspects that it holds, which limit how many more it takes (isolation.ts). Omitted: none. */
  readonly suspects?: HeldSuspects;
  /**
   * After `total`, so many more that wait for a free slot: the next ones in the order of all kinds, up to the first that is not of a kind with `ahead`, and
   * none while a suspect waits that the worker may take, or a job at the gate of one of its fair kinds: that is let through when a slot is free, and what is
   * claimed ahead would take each slot before it. A store may claim fewer of these than there are. Omitted: none.
   */
  readonly ahead?: number;
}

export interface RoomOfKind {
  readonly kind: string;
  readonly room: number;
  readonly shares?: boolean;
  /** Its jobs may be claimed ahead; `room` does not limit those. */
  readonly ahead?: boolean;
  /** Its keys take turns. Given only next to `ahead`. */
  readonly fair?: boolean;
}

export const NO_ROOM: Room = { total: 0, kinds: [] };

/** What a claim that has `ahead` adds to the deadlines that it writes: a job that waits for a slot starts, or is released, before that. */
export const AHEAD_BOUND_MS = 1_000;

/** A claimed job that was quarantined in the same transaction, because what is stored of it is not what was written. */
export interface CorruptJob {
  readonly lease: Lease;
  readonly kind: string;
  readonly change: Change;
}

export interface TurnAnswer {
  readonly settled: readonly WriteAnswer[];
  readonly claimed: readonly ClaimedJob[];
  /** Also claimed, and quarantined at once: the input or a kept step does not match its checksum. Omitted: none. */
  readonly corrupt?: readonly CorruptJob[];
  /** False if the worker's own row is not live any more: nothing was claimed, and it must register again under a new id. */
  readonly live: boolean;
  /**
   * Why the store is not the one that this worker registered with: it was restored from a backup, its row is gone or is another worker's,
   * the epoch fell. Then it is not live, and must stop instead of registering again. Absent: nothing says so.
   */
  readonly replaced?: string;
  /** Running jobs of this worker whose cancel was asked for. */
  readonly cancels: readonly string[];
  /** In how many ms there is more to do: the next delayed job is due, or now, because wakes are left. Null: nothing is known to come. */
  readonly nextDueInMs: number | null;
  /** How many jobs were made ready because their wait had ended. Omitted: none. */
  readonly woken?: number;
}

// When work is taken from its owner: who is condemned, what it holds, and what was decided about each job. The decisions are made
// between the verbs (recovery/recover.ts).

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
  /** The row that the attempt had begun, if it marked that (`rowBegins`) and the row has not ended. Omitted: the job is not a block, or nothing says which. */
  readonly begun?: BegunRow;
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
  /** What the open that it belongs to found the store to do; null: it belongs to none. A store keeps of it what it says again in its incidents. */
  readonly summary: StoreNote | null;
}

export interface CondemnRequest {
  readonly worker: WorkerRow;
  readonly death: Death;
  readonly recovery: PassRecord;
  /** The id of the incident if none has been opened about this death; a death has one. */
  readonly incident: string;
}

/** A worker of which nothing is claimed any more, and its one incident. What is fixed here holds for every job, whichever process recovers it. */
export interface Condemned extends InFlight {
  readonly worker: string;
  readonly heldAtDeath: number;
  readonly incident: string;
  /** This call opened the incident: it reports the death. */
  readonly opened: boolean;
  /** How the first that condemned it knew. */
  readonly how: HowLost;
  /** The row of the last job that a recovery of this incident has dealt with; 0: none. `heldBy` goes on after it. */
  readonly cursor: number;
}

/**
 * What a condemned worker still holds, by the store's own order, after the cursor; or running jobs past deadline + grace + margin, whichever worker
 * owns them, the most overdue first.
 */
export type HeldQuery =
  | { readonly condemned: Condemned; readonly limit: number }
  | { readonly overdue: Overdue; readonly limit: number };

export interface Overdue {
  readonly marginMs: number;
  /** Only as far as this confirms the store's clock: at `asOf` at the latest, and only jobs whose timeout + grace + margin are less than `steadyMs`. Omitted: the store's clock is trusted. */
  readonly confirmed?: ConfirmedTime;
}

/** What was decided about one job. */
export interface Verdict {
  readonly job: HeldJob;
  /** Whether it was the only suspect of its dead worker (isolation.ts). */
  readonly alone: boolean;
  readonly decision: CrashDecision | "none";
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
  /** The job's id. */
  readonly jobId: string;
  /** The name of its kind. */
  readonly kind: string;
  /** What was decided. none: nothing could be. */
  readonly decision: CrashDecision | "none";
  /** How its attempts ended, this one included. */
  readonly counters: Counters;
  /** How many crashes its kind allows. */
  readonly limit: number;
  /** The number of the attempt that the death ended. */
  readonly fence: number;
  /** Its last kept step; null: none. */
  readonly lastStep: string | null;
  /** Whether it was the only suspect of its worker: a death, or a loss that turns out to be one, is then its own. */
  readonly alone: boolean;
  /** Whether the decision was written. */
  readonly success: boolean;
  /** Why not; null: it was. */
  readonly error: string | null;
}

/** Null: the job was not this recovery's to deal with. */
export function recoveredJob({ job, alone, decision, change, error }: Verdict, taken: Taken): RecoveredJob | null {
  const { id: jobId, kind, counters, fence, lastStep } = job;
  const of = {
    jobId,
    kind: kind.name,
    limit: kind.limits.crashes,
    fence,
    lastStep: lastStep === null ? null : shownWait(lastStep),
    alone,
  };
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
