// The parts of a store alongside its fourteen verbs (port.ts): what people, reports and metrics read; what people change by hand; what an
// open, the maintenance and an operator ask of the store itself; losses of contact; the user's own transactions; and what is known about the store's own health.
import type { AuditEntry, AuditQuery, AuditRecord } from "../job/audit.ts";
import type { JobDetails, JobInfo, JobState } from "../job/job.ts";
import type { JobKey, KeyLimit, KeyPause, KeyState } from "../job/limits.ts";
import type { JobOutcome } from "../job/waits.ts";
import type { Incident, IncidentSummary } from "../recovery/incident.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../recovery/losses.ts";
import type { CommitControl } from "../worker/run.ts";
import type { FencedWrite, Pending, Settlement, WriteAnswer } from "./port.ts";

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

  /** Whether jobs of this kind count against limits, so that only a program that has its contract can enqueue them. False: not, or it was never declared. */
  isLimited(kind: string): Promise<boolean>;

  /** How many ready jobs of its kind would be claimed before this one; null: it is not ready. */
  ahead(id: string): Promise<number | null>;

  /**
   * The keys that have something of their own: a limit, a weight, a pause or a hold-off that has not passed; by limit and key. Or the one that is asked
   * for, whether it has or not. Absent: this store does not tell.
   */
  keys?(query: KeyQuery): Promise<readonly KeyState[]>;

  /** What people changed, the newest first. */
  audit(query: AuditQuery): Promise<readonly AuditRecord[]>;

  /** The live workers that hold suspects, and how many. */
  suspects(): Promise<readonly WorkerSuspects[]>;

  /** Which process holds the store's write lock now, as far as this host can tell; null: none, or not known. */
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

/** Which jobs. What is omitted does not matter. */
export interface JobFilter {
  /** Only jobs in this state. */
  readonly state?: JobState;
  /** Only jobs of the kind with this name. */
  readonly kind?: string;
  /** Only jobs that this one enqueued with `run.enqueue`. */
  readonly parent?: string;
  /** Only jobs whose id, dedupe key or error contains this text. */
  readonly text?: string;
  /** Only jobs that were enqueued before this instant, in milliseconds since 1970 by the store's clock. */
  readonly createdBefore?: number;
  /** Only jobs that were enqueued after this instant, in milliseconds since 1970 by the store's clock. */
  readonly createdAfter?: number;
}

export type KeyQuery =
  | { readonly key: JobKey }
  /** Of one limit; null: of all. At most `most` of them. */
  | { readonly limit: string | null; readonly most: number };

/** A page of a list of jobs. */
export interface ListPage {
  /** May be fewer than were asked for although more follow: a page is also bounded by how many rows it reads. */
  readonly jobs: readonly JobInfo[];
  /** Pass it to get what follows; null: that was all. */
  readonly next: string | null;
}

/** How many jobs of a kind are in which state. */
export interface KindCounts {
  /** The kind's name. */
  readonly kind: string;
  /** Whether workers take no jobs of this kind. */
  readonly paused: boolean;
  /** Who paused it, and why. Omitted: it is not paused. */
  readonly pause?: KindPaused;
  /** Jobs that could be claimed now. */
  readonly ready: number;
  /** How long the oldest of those has been ready, in ms; null: none is. */
  readonly oldestReadyMs: number | null;
  /** Jobs that are queued, but not due yet. */
  readonly delayed: number;
  /** Jobs that are due and wait for room in a limit, or for their key's turn among the others of a fair kind. */
  readonly held: number;
  /** Jobs that a worker holds. */
  readonly running: number;
  /** Jobs that succeeded and are not purged yet. */
  readonly succeeded: number;
  /** Jobs that failed for good. */
  readonly dead: number;
  /** Jobs that were cancelled. */
  readonly cancelled: number;
  /** Jobs that are kept from running because their workers died. */
  readonly quarantined: number;
}

/** The pause of a kind. */
export interface KindPaused {
  /** Who paused it. */
  readonly by: string;
  /** Why; null: no reason was given. */
  readonly reason: string | null;
  /** Since when, in milliseconds since 1970. */
  readonly at: number;
  /** When it ends, in milliseconds since 1970; null: when the kind is resumed. */
  readonly until: number | null;
}

/** The suspects that a live worker holds. */
export interface WorkerSuspects {
  readonly worker: string;
  readonly count: number;
  /** The smallest number of suspects that one of them may run with, itself included; ANY_NUMBER: none has a bound. */
  readonly together: number;
}

/** How the store is. */
export interface StoreHealth {
  /** Whether it can be worked on. */
  readonly ok: boolean;
  /** What the store is, and then its main facts: "PostgreSQL 17.2", "database app", "3 sessions". */
  readonly summary: readonly [what: string, ...facts: string[]];
  /** The same, and more, for programs. */
  readonly detail: Readonly<Record<string, string | number | boolean>>;
}

/** A process that holds the store's write lock. */
export interface LockHolder {
  /** Its PID. */
  readonly pid: number;
  /** Its command line. */
  readonly command: string;
  /** Changes with every commit of another process: the same holder with the same number at two checks lets no other process through. */
  readonly version: number;
}

// What people change by hand: jobs, one or many, kinds and keys, and what a supervisor knows of a death. Where an audit entry is given, it is
// written in the transaction of the change, and only if something was changed.

export interface Operating {
  /**
   * One transaction: a queued job is cancelled; a running one is asked to end, and its worker learns of it with its next turn. Any other state is returned, and nothing is written.
   * With `children` the same transaction records that its children which have not begun are to be cancelled, those that it enqueues from now on
   * included; for a job that is cancelled already it records only that. Turns of any workers do it, a piece each. A retry of the job withdraws it.
   */
  cancel(id: string, actor: string, options?: CancelOptions): Promise<OperatorAnswer>;

  /**
   * One transaction: a terminal job is queued again. Refused, with nothing written, if it is not terminal, if another job holds its dedupe key, or
   * if it is a block: what its rows came to has been counted, and a batch retries them in another round.
   */
  retry(id: string, actor: string): Promise<OperatorAnswer>;

  /**
   * One transaction: the same change of each of these jobs, in their order. Returns one answer for each; a job that is refused stops no other. Each is
   * changed as `cancel` and `retry` do it; see `HandChange`.
   */
  change(ids: readonly string[], change: HandChange, entry: AuditEntry): Promise<readonly OperatorAnswer[]>;

  /**
   * One transaction: keeps a signal for an unfinished job until it is read or the job has ended, and wakes the job if it waits for it. Sent again with the
   * same id it is kept once.
   */
  signal(signal: Signal, entry?: AuditEntry): Promise<SignalAnswer>;

  /** Gives one key a limit of its own, in one transaction; null: that of its limit again. */
  setLimit(key: JobKey, own: KeyLimit | null, entry?: AuditEntry): Promise<void>;

  /** Nothing of this key is claimed after the transaction of this has committed, also what was admitted before; running jobs continue. Null: it may start again. Absent: this store pauses kinds only, and its kinds are not fair. */
  pauseKey?(key: JobKey, pause: KeyPause | null, entry?: AuditEntry): Promise<void>;

  /**
   * Paused kinds are not claimed by any worker. A pause with an end ends then, by the store's clock, whether or not any process does something. A second
   * pause replaces the first. Returns false, and writes nothing, if the kind was never declared.
   */
  setPaused(kind: string, paused: boolean, how?: KindPause, entry?: AuditEntry): Promise<boolean>;

  /** Keeps how a worker's process ended, in its row and, in the same transaction, in the evidence of its incident if there is one. A worker without a row: nothing is written. */
  noteDeath(worker: string, words: string): Promise<void>;
}

/** How a kind is paused. */
export interface KindPause {
  readonly actor: string;
  readonly reason: string | null;
  /** When it ends: at an instant of the store's clock, or so long from now. Both null: when it is resumed. */
  readonly untilAt: number | null;
  readonly forMs: number | null;
}

/**
 * cancel: as `cancel`. retry: as `retry`; with an `input` the job gets it, and its kept steps are deleted, because they came of the former one.
 * promote: a delayed job becomes ready; "not-delayed" if it is not delayed, or waits for something else than a time. remove: the job is deleted with all that
 * belongs to it: steps, results, logs, signals, what comes after it by its dedupe key, and what it was planned for. One that has not ended ends first, with all
 * consequences. As long as its parent is unfinished, an empty row with its id stays (`transitions.remove`), which can't be retried. A running one is refused, and so is
 * the block of a batch.
 */
export type HandChange =
  | { readonly do: "cancel"; readonly children?: boolean }
  | { readonly do: "retry"; readonly input?: string }
  | { readonly do: "promote" }
  | { readonly do: "remove" };

/** Options of `cancel`. */
export interface CancelOptions {
  /** Also its children that have not begun (no worker has claimed them yet). Those that have begun continue. Default false. */
  readonly children?: boolean;
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
  | { readonly is: "removed" }
  | { readonly is: "not-delayed" }
  | { readonly is: "missing" }
  | { readonly is: "wrong-state"; readonly state: JobState }
  | { readonly is: "key-held"; readonly holder: string; readonly dedupeKey: string }
  | { readonly is: "of-batch"; readonly batch: string };

/** How many of these answers are changes. */
export function changedCount(answers: readonly OperatorAnswer[]): number {
  return answers.filter(({ is }) => is === "applied" || is === "requested" || is === "removed").length;
}

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

  /**
   * What waits for workers of these kinds: jobs that are ready and not paused, jobs that are due, wakes, requested cancels. One process asks for all, so
   * that the others need not poll. Reads only, up to a bound that does not depend on the number of jobs. Absent: every worker polls.
   */
  pending?(kinds: readonly string[]): Promise<Pending>;

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
  /** Whether a person should check it. */
  readonly level: "info" | "warn";
  /** What it is, in words. */
  readonly text: string;
  /** The same for programs. */
  readonly facts: Readonly<Record<string, unknown>>;
}

/** One thing that an operator should know of the store. */
export interface Finding {
  /** How bad it is. */
  readonly level: "ok" | "warning" | "error";
  /** What it is, in words. */
  readonly text: string;
}

/** Options of a backup. */
export interface BackupOptions {
  /** Replaces a file of that name. Default false: it is refused. */
  readonly force?: boolean;
  /** Called a few times a second. Default: none. */
  readonly onProgress?: (progress: {
    /** How many bytes were copied. */
    readonly bytes: number;
    /** The size of the store in bytes; the copy may be smaller. */
    readonly totalBytes: number;
  }) => void;
  /** Ends it when it aborts; nothing is left behind. Default: none. */
  readonly signal?: AbortSignal;
}

/** A copy that is complete, sound and on the disk. */
export interface Backup {
  /** The path of the copy. */
  readonly file: string;
  /** Its size in bytes. */
  readonly bytes: number;
  /** How long it took, in milliseconds. */
  readonly tookMs: number;
}

// Losses of contact as a store keeps them. Without a proof of death nothing is counted against a worker's jobs; what happened to the
// worker is found out later, and only then are its jobs judged (recovery/losses.ts decides).

export interface Losses {
  /** Losses that are not resolved, or whose jobs are not all judged; the oldest first, at most 100. Reads only. */
  open(): Promise<readonly Loss[]>;

  /** Writes what became of a worker with which contact was lost. A loss resolves once: returns the resolution that stands. Null: there is no such loss. */
  resolve(worker: string, resolution: Resolution): Promise<Resolution | null>;

  /** The jobs of a loss that are not judged yet, as they are now. Jobs whose rows are gone are omitted. Reads only. */
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

  /**
   * The user's writes and a small write of the attempt in one transaction, fenced as `commit` is: the job goes on. For the end of one row of a
   * block. If all rows of the write have ended before, `body` is not run, and the answer says repeated.
   */
  write<T>(write: FencedWrite, body: TransactionBody<Tx, T>, control?: CommitControl): Promise<Committed<T>>;

  /** The user's own transaction, with `enqueue` and `signal` inside it. Nothing is fenced. If `body` throws, nothing is written and its error comes out. */
  transact<T>(body: TransactionBody<Tx, T>): Promise<Transacted<T>>;
}

export interface Transacted<T> {
  readonly value: T;
  /** How many jobs `body` enqueued. */
  readonly enqueued: number;
  /** How many signals `body` sent. Omitted: none. */
  readonly signalled?: number;
}

export interface Committed<T> {
  readonly answer: WriteAnswer;
  /** What `body` returned; undefined if it was not run. */
  readonly value: T | undefined;
  /** How many jobs `body` enqueued. */
  readonly enqueued: number;
  /** How many signals `body` sent. Omitted: none. */
  readonly signalled?: number;
}

// What is known about the store's own health: the verdict of a check, what a repair did and lost, and rows that
// contradict each other.

/** UNFINISHED: a time limit ended the check, and the rest is unknown. It never counts as PASSED. */
export type Verdict = "PASSED" | "REPAIRED" | "FAILED" | "UNFINISHED" | "NOT_CHECKED";

/** What an open found out about the store before recovery; a recovery pass by a worker checks nothing. */
export interface StoreFindings {
  /** What the check of the file found. */
  readonly integrity: Verdict;
  /** What the store did to itself during this open. Stored with every incident of the pass. */
  readonly summary?: StoreNote;
  /** The check itself; null: there was none. */
  readonly check?: IntegrityCheck | null;
  /** What was repaired; null: nothing needed repair. */
  readonly repair?: Repair | null;
  /** What contradicts itself in the store. */
  readonly inconsistencies?: readonly Inconsistency[];
  /** What the store had to correct, or could not correct. Without lines it is not noteworthy. */
  readonly notice?: StoreNote;
  /** How long all of this took, including the wait for another process's start-up. */
  readonly tookMs?: number;
}

/**
 * What a store reports about itself, as the store words it: the engine stores and shows it, and bases no decision on
 * it.
 */
export interface StoreNote {
  /** For the text of a report. */
  readonly lines: readonly string[];
  /** For its JSON, under these names. */
  readonly facts: Readonly<Record<string, string | number | null>>;
}

/** "PASSED (quick)": the verdict with the depth of the check behind it, as logged and stored with an incident. */
export function integrityText({ integrity, check }: Pick<StoreFindings, "integrity" | "check">): string {
  return check ? `${integrity} (${check.depth})` : integrity;
}

/** Parses the output of `integrityText`. Incidents of earlier versions have no depth. */
export function parseIntegrity(text: string): { readonly integrity: string; readonly depth: CheckDepth | null } {
  const [, integrity, depth] = /^(.*?)(?: \((quick|full)\))?$/.exec(text)!;
  return { integrity: integrity!, depth: (depth as CheckDepth | undefined) ?? null };
}

export const NOTHING_CHECKED: StoreFindings = { integrity: "NOT_CHECKED" };

/**
 * An open that found something about the store itself. Stored separately from incidents, which are about deaths; only
 * the latest is kept.
 */
export interface Opening {
  /** The recovery pass of that open: its incidents, if any, carry the same id. */
  readonly recovery: string;
  readonly startedAt: number;
  readonly completedAt: number;
  readonly findings: StoreFindings;
}

/**
 * Whether an open has to be stored and reported although no worker had died. A sound store with nothing to correct is
 * not noteworthy.
 */
export function isNoteworthy(findings: StoreFindings): boolean {
  const { integrity, repair, inconsistencies, notice } = findings;
  return (
    (integrity !== "PASSED" && integrity !== "NOT_CHECKED") ||
    Boolean(repair) ||
    (inconsistencies?.length ?? 0) > 0 ||
    (notice?.lines.length ?? 0) > 0
  );
}

/** What an open does about a damaged store. */
export type RepairMode = "off" | "reindex" | "auto";

/** quick: the structure of every page. full: also that indexes agree with their tables. */
export type CheckDepth = "quick" | "full";

/** A check of the store's file. */
export interface IntegrityCheck {
  /** What it found; `UNFINISHED` if its time was up first. */
  readonly verdict: "PASSED" | "FAILED" | "UNFINISHED";
  /** How much of the file it read. */
  readonly depth: CheckDepth;
  /** At most 100. */
  readonly findings: readonly string[];
  /** How long it took, in milliseconds. */
  readonly tookMs: number;
}

/** What one step of a repair did. */
export interface RepairStep {
  /** What was tried. */
  readonly step: "set-wal-aside" | "reindex" | "vacuum" | "salvage";
  /** Whether it succeeded. */
  readonly ok: boolean;
  /** What it did, or why it failed, in words. */
  readonly detail: string;
}

/** What a repair did. */
export interface Repair {
  /** What was tried, in order. */
  readonly steps: readonly RepairStep[];
  /** True if a full check after it found nothing. */
  readonly sound: boolean;
  /** What is still wrong. */
  readonly findings: readonly string[];
  /** What the salvage copied; null: it was not needed, or not allowed. */
  readonly salvage: Salvage | null;
}

/** What a salvage brought over into a new file. */
export interface Salvage {
  /** Where the damaged file is kept. */
  readonly keptAs: string;
  /** When the newest change that survived was made, in milliseconds since 1970 by the store's clock; null: none did. */
  readonly recoveryPointAt: number | null;
  /** What was copied, by table. */
  readonly tables: readonly {
    /** The name of the table. */
    readonly table: string;
    /** Rows copied. */
    readonly rows: number;
    /** Rows known to be lost; null: not countable. */
    readonly lost: number | null;
  }[];
  /** Ids of jobs that survived only in part: an input, a step or their history is missing. */
  readonly partial: readonly string[];
  /** Ids of jobs whose row is lost although something else still names them. */
  readonly lost: readonly string[];
}

/** Checks and repairs a store that may be too damaged to be opened. */
export interface StoreDoctor {
  /** A full check of the content. `readOnly`: not even an interrupted repair is finished. */
  check(options: { readonly readOnly: boolean }): Promise<IntegrityCheck>;
  /** Refused while another process uses the store. */
  repair(options: RepairOptions): Promise<Repair>;
}

export interface RepairOptions {
  /** Whether what can't be repaired may be salvaged into a new store: the old one is kept, but data may be lost. */
  readonly salvage: boolean;
  readonly onStep?: (step: RepairStep) => void;
  readonly onProgress?: (what: string) => void;
}

/** Rows that contradict each other. */
export interface Inconsistency {
  /** What contradicts itself. */
  readonly what:
    | "running-without-owner"
    | "gone-worker-holds-jobs"
    | "orphan-steps"
    | "orphan-history"
    | "orphan-logs"
    | "counter-disagrees"
    | "corrupt-content"
    | "block-without-job"
    | "batch-disagrees"
    | "collection-disagrees"
    | "held-without-door"
    | "door-without-held"
    | "slot-disagrees"
    | "key-stuck"
    | "end-disagrees"
    | "orphan-extras"
    | "lock-without-worker";
  /** One sentence for people. */
  readonly detail: string;
  /** What it is about: ids of jobs, workers, kinds, batches or locks; at most 20. */
  readonly names: readonly string[];
  /** How often it was found. */
  readonly count: number;
}

/** A full check together with contradictions found in the rows. */
export interface IntegrityReport extends IntegrityCheck {
  /** What contradicts itself in the store. */
  readonly inconsistencies: readonly Inconsistency[];
}
