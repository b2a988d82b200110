// What a job is: its states, its counters, the settings of its kind, and the forms in which it crosses the store port.
// Nothing here changes anything; the changes are in transitions.ts.
import type { ClaimedBlock } from "./batches.ts";
import type { StoredError } from "./errors.ts";
import type { Json } from "./json.ts";
import type { Lease } from "./lease.ts";
import type { Became, DedupePolicy, JobKey, LimitSettings } from "./limits.ts";
import type { KeptWait } from "./waits.ts";

export const JOB_STATES = ["queued", "running", "succeeded", "dead", "cancelled", "quarantined"] as const;
/** queued: it waits, or is due later. running: a worker holds it. It has ended as succeeded, dead (it failed for good), cancelled or quarantined. */
export type JobState = (typeof JOB_STATES)[number];

/** States that a job leaves only by an explicit, recorded retry. */
export const TERMINAL_STATES = ["succeeded", "dead", "cancelled", "quarantined"] as const satisfies readonly JobState[];

export function isTerminal(state: JobState): boolean {
  return state !== "queued" && state !== "running";
}

/** How often attempts of a job ended in each way that is not success. Raised when an attempt ends, never at the claim. */
export interface Counters {
  /** Attempts that failed with an error. */
  readonly errors: number;
  /** Deaths of a worker while this job was in flight. A new durable step resets it. */
  readonly crashes: number;
  /** Deaths of a worker of which this job was the only suspect. Only these count toward quarantine. */
  readonly blamed: number;
  /** Attempts that ran out of time. */
  readonly timeouts: number;
  /** Releases at no cost: a shutdown, a lost lease, a claim whose answer was lost. */
  readonly interruptions: number;
  /** Times that contact with its worker was lost and it is not yet known whether the worker died. A new durable step resets it. */
  readonly losses: number;
}

export const NO_COUNTERS: Counters = { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 };

export const OUTCOMES = [
  "succeeded",
  "failed",
  "timed-out",
  "crashed",
  "released",
  "cancelled",
  "rejected",
  "corrupt",
  "lost",
  "waiting",
  "expired",
  "removed",
] as const;
/** How an attempt ended. */
export type Outcome = (typeof OUTCOMES)[number];

/** How often a job of a kind may fail in each way. */
export interface Limits {
  /** Attempts that end with an error. */
  readonly errors: number;
  /** Attempts that pass their deadline. */
  readonly timeouts: number;
  /** Deaths of a worker of which it was the only suspect. */
  readonly crashes: number;
}

/** What recovery does with a job whose worker died: count a crash and queue again, queue again uncounted, or give up. */
export type CrashAction = "retry" | "requeue" | "fail";

/** How long a job waits before its next attempt. */
export interface Backoff {
  /** How the delay grows after each failure. */
  readonly type: "exponential" | "linear";
  /** The first delay, in ms. */
  readonly baseMs: number;
  /** The longest delay, in ms. */
  readonly maxMs: number;
  /** Share of the delay that is random, 0 to 1. */
  readonly jitter: number;
}

/** Everything that a decision about a job of this kind needs. Kept in the store, so that any process decides the same. */
export interface KindSettings {
  /** The kind's name. */
  readonly name: string;
  /** How long an attempt may run, in ms; null: any time. */
  readonly timeoutMs: number | null;
  /** The longest that an attempt may run, even if it calls `run.heartbeat()`, in ms; null: no cap. */
  readonly maxRuntimeMs: number | null;
  /** How long after its deadline, or after a cancel, a handler may still end on its own, in ms. */
  readonly graceMs: number;
  /** How often a job may fail. */
  readonly limits: Limits;
  /** How long it waits after a failure. */
  readonly backoff: Backoff;
  /** "resend" and "marked" are the actions of requests (requests.ts), and no option of a job. */
  readonly onCrash: CrashAction | "resend" | "marked";
  /** The limits that its jobs count against. Omitted: none. */
  readonly keyed?: readonly LimitSettings[];
  /** The keys of its jobs take turns (`JobDraft.fair`). Once a program has declared it, the store keeps to it. Omitted: no. */
  readonly fair?: boolean;
  /** How long its jobs may wait for their first attempt, in ms, unless an enqueue says otherwise. The store keeps it with each job. Omitted: any time. */
  readonly expiresMs?: number;
  /** How long its finished jobs are kept, by the state in which they ended. What is omitted is kept as the engine's retention says. */
  readonly retention?: KindRetention;
}

/** In ms, by terminal state. */
export type KindRetention = Readonly<Partial<Record<(typeof TERMINAL_STATES)[number], number>>>;

/** A job on its way into the store. */
export interface JobDraft {
  readonly id: string;
  readonly kind: string;
  /** JSON text. */
  readonly input: string;
  /** Higher runs first. */
  readonly priority: number;
  /** Wall time in ms before which it is not claimed; null: at once. */
  readonly runAt: number | null;
  /** Relative form of `runAt`, added to the store's own clock; 0: at once. */
  readonly delayMs: number;
  readonly dedupeKey: string | null;
  /** What is done if an unfinished job holds the dedupe key. Omitted: that job is kept as it is. */
  readonly dedupe?: DedupePolicy;
  /** What it counts against. Omitted: nothing. */
  readonly keys?: readonly JobKey[];
  /** The id of that one of its keys by which its kind is fair. Omitted: it is not. */
  readonly fair?: number;
  /** The trace context of what enqueued it. Omitted: none. */
  readonly trace?: string;
  /** It is cancelled if no attempt has begun within this time after it was due: after its enqueue, or after `runAt` or `delayMs`. Omitted: it never expires. */
  readonly expiresMs?: number;
}

declare const RESULT: unique symbol;
/** The id of a job whose result is a `Result`. A text like any other; only the compiler knows the difference. */
export type JobId<Result = Json> = string & { readonly [RESULT]?: Result };

/** What an enqueue returns. */
export interface Enqueued<Result = Json> {
  /** The id of the job that is in the store now: the new one, or the unfinished one that holds the dedupe key. */
  readonly id: JobId<Result>;
  /** False if the id or the dedupe key was there already. */
  readonly created: boolean;
  /** What was done to the job that holds the dedupe key. Omitted: nothing, or the job is new. */
  readonly became?: Exclude<Became, "kept">;
}

/** What many enqueues return. */
export interface EnqueuedMany {
  /** How many there were. */
  readonly count: number;
  /** How many of them are new. */
  readonly created: number;
}

/** A job as a worker gets it with the claim. */
export interface ClaimedJob {
  readonly lease: Lease;
  readonly kind: string;
  readonly input: string;
  readonly counters: Counters;
  /** Time left until the deadline when it was claimed; null: none. */
  readonly deadlineInMs: number | null;
  /** If it was in flight at a death: with how many such jobs, itself included, it may run in one process, or ANY_NUMBER (isolation.ts). Null: it is not a suspect. */
  readonly together: number | null;
  /** How the attempt before this one ended; null at the first. */
  readonly lastOutcome: Outcome | null;
  /** Steps kept from earlier attempts, in the order in which they were written. */
  readonly steps: readonly StoredStep[];
  /** The wait that its latest attempt began, if that has not been passed yet. Omitted: none. */
  readonly wait?: KeptWait;
  /** A block of rows of which some have ended. Omitted: it is not a block, or all of its rows are left. */
  readonly block?: ClaimedBlock;
}

export interface StoredStep {
  readonly name: string;
  /** JSON text; null stands for undefined. */
  readonly result: string | null;
}

/** A job as `engine.get` and `engine.list` show it. */
export interface JobInfo {
  /** The job's id. */
  readonly id: string;
  /** The name of its kind. */
  readonly kind: string;
  /** Its state. */
  readonly state: JobState;
  /** Higher ones run first; 0 unless the enqueue said otherwise. */
  readonly priority: number;
  /** The key under which duplicates are noticed; null if it has none. */
  readonly dedupeKey: string | null;
  /** When it was enqueued, in milliseconds since 1970. */
  readonly createdAt: number;
  /** When it may be claimed, in milliseconds since 1970, if a time was set or a retry waits; null: at once. */
  readonly runAt: number | null;
  /** When its latest attempt began, in milliseconds since 1970; null before the first. */
  readonly startedAt: number | null;
  /** When its attempt times out, in milliseconds since 1970, including a second that a busy worker may hold it before it starts; null if it does not run. */
  readonly deadlineAt: number | null;
  /** When it ended, in milliseconds since 1970; null if it has not. */
  readonly finishedAt: number | null;
  /** The worker of the latest attempt. */
  readonly worker: string | null;
  /** How often the store has been restored or rolled back when the latest attempt began. */
  readonly epoch: number;
  /** The number of the latest attempt, which grows with every claim; 0: it was never claimed. */
  readonly attempt: number;
  /** How its attempts ended, counted. */
  readonly counters: Counters;
  /** How its latest attempt ended; null if none has. */
  readonly lastOutcome: Outcome | null;
  /** The latest error; null if there was none. */
  readonly error: StoredError | null;
  /** Whether it was asked to stop while it ran. */
  readonly cancelRequested: boolean;
  /** With how many suspects, itself included, it may run in one process; 0: with any number. */
  readonly together: number;
  /** The job that enqueued it with `run.enqueue`; null: none did. */
  readonly parent: string | null;
  /** What it waits for, if its latest attempt ended as waiting: "run.sleep#1", ... Null: nothing. */
  readonly waitsAt: string | null;
  /** What it counts against; empty: nothing. */
  readonly keys: readonly Pick<JobKey, "limit" | "key">[];
  /** The key that has no room for it; null: it does not wait for one. */
  readonly heldBy:
    | (Pick<JobKey, "limit" | "key"> & {
        /** It waits for nothing but its key's turn among the others of a fair kind. */
        readonly turn?: true;
      })
    | null;
  /** It is cancelled if no attempt has begun by then, in milliseconds since 1970. Omitted: it does not expire, or has begun. */
  readonly expiresAt?: number;
  /** It is debounced, and is not postponed beyond this instant, in milliseconds since 1970. Omitted: it is not debounced, or its store does not say. */
  readonly latestAt?: number;
  /** Queued, and not claimed before it is known what happened to the workers with which contact was lost while they held it. */
  readonly waitsForResolution: boolean;
}

/** One entry of a job's history. A success writes none; everything abnormal does. */
export interface HistoryEntry {
  /** When it happened, in milliseconds since 1970. */
  readonly at: number;
  /** What happened. */
  readonly event: string;
  /** The state before. */
  readonly from: JobState;
  /** The state after. */
  readonly to: JobState;
  /** Who did it: `worker/<id>`, `system/recovery`, `operator`. */
  readonly actor: string;
  /** The store's epoch at that time. */
  readonly epoch: number;
  /** The number of the attempt that it is about, or after which it happened. */
  readonly attempt: number;
  /** When that attempt started, in milliseconds since 1970; null: there was none, or it was not recorded (entries of plain SQL or of older versions). */
  readonly startedAt: number | null;
  /** The worker of that attempt; null as for `startedAt`. */
  readonly owner: string | null;
  /** Why it happened, in words. */
  readonly reason: string;
  /** The incident that it belongs to; null if there is none. */
  readonly incident: string | null;
}

/** What one call of `run.log` wrote. */
export interface LogLine {
  /** When, in milliseconds since 1970. */
  readonly at: number;
  /** The number of the attempt. */
  readonly attempt: number;
  /** The text. */
  readonly message: string;
}

/** Everything about one job. */
export interface JobDetails extends JobInfo {
  /** The trace context that came with its enqueue (`trace`). Omitted: none did. */
  readonly trace?: string;
  /** The job's input. */
  readonly input: unknown;
  /** What its handler returned; null if it has not succeeded. */
  readonly result: unknown;
  /** What it reported last by `run.progress`; null if nothing. */
  readonly progress: unknown;
  /** The kept steps. */
  readonly steps: readonly {
    /** The step's name. */
    readonly name: string;
    /** Its kept result. */
    readonly result: unknown;
    /** When it was kept, in milliseconds since 1970. */
    readonly at: number;
    /** The attempt that ran it. */
    readonly attempt: number;
  }[];
  /** What happened to it, oldest first. */
  readonly history: readonly HistoryEntry[];
  /** What it wrote by `run.log`, oldest first. */
  readonly log: readonly LogLine[];
  /**
   * What is not what was stored, because the store was damaged: "input", "result", "step NAME". It is shown as it is found and must
   * not be trusted. Empty where nothing is wrong.
   */
  readonly corrupt: readonly string[];
}

// How long a job waits after an attempt that failed. Pure: the random part comes in as a number.

/** Delay before the attempt after the `failures`-th failure (1 for the first). `random` is uniform in [0, 1). */
export function backoffMs(backoff: Backoff, failures: number, random: number): number {
  const steps = Math.max(1, failures);
  // 2^53 would do, but a base of some minutes passes what a number of ms can mean long before.
  const plain = backoff.type === "linear" ? backoff.baseMs * steps : backoff.baseMs * 2 ** Math.min(steps - 1, 40);
  const capped = Math.min(plain, backoff.maxMs);
  return Math.round(capped * (1 - backoff.jitter + backoff.jitter * random));
}
