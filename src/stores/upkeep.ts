// What an open, the maintenance and an operator ask of the store itself: its epoch, its restores, its files or its server.
import type { Inconsistency, Opening } from "./integrity.ts";

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
