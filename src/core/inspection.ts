// What crosses the store port for people: what they ask for, what they are shown, and what became of what they changed. The verbs
// are in store.ts.
import type { JobInfo, JobState } from "./job.ts";

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

/** The suspects that a live worker holds. */
export interface WorkerSuspects {
  readonly worker: string;
  readonly count: number;
  /** The smallest number of suspects that one of them may run with, itself included; ANY_NUMBER: none has a bound. */
  readonly together: number;
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
