// The part of the store port that batches need, offered as a property of the store. A batch has no owner: any process may call any of this at
// any time. What the rows of a batch came to is known from its blocks: marks (`RowEnds`) and ended blocks append a delta in their own
// transaction, and nothing that runs locks the batch's own row. So the end is looked for after the commit: two transactions do not see
// each other's last row, and whichever commits last is seen by the next check. Where an audit entry is given, it is written in the
// transaction of the change, and only if something was changed.
import type { AuditEntry } from "../job/audit.ts";
import type { BatchDraft, BatchRow, BatchState, BlockDraft, FailedRow } from "../job/batches.ts";
import type { StoredError } from "../job/errors.ts";
import type { JobDraft, JobState } from "../job/job.ts";

export interface Batches {
  /** One transaction: adds the batch as open, or returns the one of its kind that has the same key. */
  open(draft: BatchDraft, entry?: AuditEntry): Promise<OpenedBatch>;

  /**
   * One transaction: adds these blocks if the batch is in this round and takes them (`takesBlocks`). A number that is there already adds nothing.
   * Rejected rows count as failed at once. Resolves when durable. `asNext`: the blocks are new ones that come right after those that are there; if another submitter was
   * quicker, they are not added and the answer says where the next block begins.
   */
  append(batch: string, round: number, blocks: readonly BlockDraft[], asNext?: boolean): Promise<AppendAnswer>;

  /**
   * One transaction: an open batch is sealed and, if it was held, released. One that is aborted while its round is filled (`isFilling`) stays aborting, and
   * has all of its rows from now on. Any other state is returned as it is.
   */
  seal(batch: string, round: number, entry?: AuditEntry): Promise<BatchState | "missing">;

  /** One transaction: an open or sealed batch is aborting from now on. Any other state is returned as it is. */
  abort(batch: string, entry?: AuditEntry): Promise<BatchState | "missing">;

  /**
   * One small transaction: cancels queued blocks of batches that are aborting and asks running ones to end; makes blocks of released batches ready.
   * Returns whether more is left. Any process may call it, again and again.
   */
  tend(limit: number): Promise<boolean>;

  /** Batches as they are now, sums included, in the order of the ids; unknown ones are omitted. Reads only, takes no lock, and scans no blocks. */
  get(ids: readonly string[]): Promise<readonly BatchRow[]>;

  /** A page of batches, the newest first. */
  list(filter: BatchFilter, limit: number, after: string | null): Promise<readonly BatchRow[]>;

  /** One small transaction: adds deltas to the rows of their batches. Returns the ids of batches that have not ended and may have something to decide, at most `limit`. */
  fold(limit: number): Promise<readonly string[]>;

  /**
   * One transaction: ends the batch if it is still in this state and round, and enqueues what follows. Returns whether it did: it is false for
   * all but one of those who try.
   */
  finish(end: BatchEnd): Promise<boolean>;

  /** Blocks of one round with rows that failed or were quarantined, in their order, at most `limit`. */
  failures(batch: string, round: number, after: number | null, limit: number): Promise<readonly FailedBlock[]>;

  /** All blocks of one round, in their order, at most `limit`. */
  blocks(batch: string, round: number, after: number | null, limit: number): Promise<readonly KeptBlock[]>;

  /** What rows of one round wrote to a file, of at most `limit` blocks in the order of their numbers. `after`: the `next` of the page before. */
  outputs(batch: string, round: number, file: string, after: number | null, limit: number): Promise<OutputPage>;

  /** The names of the files that rows wrote to. */
  outputFiles(batch: string): Promise<readonly string[]>;

  /** Keeps what the outputs were assembled to, as JSON text, if the batch is still in this round. */
  setOutputs(batch: string, round: number, outputs: string): Promise<void>;

  /** One transaction: a batch that has ended, in this round, is open again in the next one, and the draft is enqueued. Returns whether it did. */
  reopen(batch: string, round: number, draft: JobDraft, entry?: AuditEntry): Promise<boolean>;

  /** Deletes batches that ended long ago, and whose last job has, with their blocks, in pieces; a block whose own job has not ended is cancelled. Returns how many batches went and whether more is left. */
  purge(endedOlderThanMs: number, limit: number): Promise<{ readonly batches: number; readonly more: boolean }>;
}

export interface OpenedBatch {
  readonly created: boolean;
  readonly batch: BatchRow;
}

/**
 * `appended`: the blocks and rows that this call added. `moved`: the blocks and rows that are there, which are not those that the caller thought;
 * `added` blocks of the call, the first ones, are among them.
 */
export type AppendAnswer =
  | { readonly is: "appended"; readonly blocks: number; readonly rows: number }
  | { readonly is: "moved"; readonly blocks: number; readonly rows: number; readonly added: number }
  | { readonly is: "closed"; readonly state: BatchState }
  | { readonly is: "missing" };

export interface BatchFilter {
  readonly kind?: string;
  readonly state?: BatchState;
  /** Only batches created after this instant, in ms of the store's clock. */
  readonly createdAfter?: number;
}

export interface BatchEnd {
  readonly batch: string;
  readonly round: number;
  /** The state that the decision was made in. */
  readonly from: BatchState;
  readonly to: "completed" | "failed" | "aborted";
  readonly follow: readonly JobDraft[];
}

/** What failed of one block. */
export interface FailedBlock {
  readonly number: number;
  /** By line. */
  readonly rows: readonly Omit<FailedRow, "row">[];
  /** The block itself ended as dead or quarantined: each row without a mark shares its end. Null: it did not. */
  readonly whole: {
    /** The block's job input (`decodeBlock`). */
    readonly input: string;
    /** As in `ClaimedBlock`. */
    readonly marks: string;
    readonly error: StoredError | null;
    readonly as: FailedRow["as"];
  } | null;
}

/** What is known of the rows of one block. */
export interface KeptBlock extends Pick<FailedBlock, "number" | "rows"> {
  /** Null: it has none, because none of its rows fits the schema. */
  readonly job: {
    readonly state: JobState;
    /** Its input (`decodeBlock`). */
    readonly input: string;
    /** As in `ClaimedBlock`. */
    readonly marks: string;
    readonly error: StoredError | null;
  } | null;
}

export interface OutputPage {
  /** Of each block, in their order: the texts of its parts (`OutputPart`). */
  readonly blocks: readonly (readonly string[])[];
  /** The number of the last block of this page; null: that was all. */
  readonly next: number | null;
}
