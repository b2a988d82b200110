// Batches: many rows of one operation. A block of rows is a job; a row is not. A block shrinks: rows that have ended are marked, each attempt
// runs what is left, and the block's counters are the counters of every row that is left. A batch ends once, when it is sealed and every
// row has ended. What the rows came to is kept as sums that stores add up from marks and from ended blocks; the decisions are here. Pure.
import type { StoredError } from "./errors.ts";
import type { JobDraft, JobState } from "./job.ts";
import type { Json } from "./json.ts";

export const BATCH_STATES = ["open", "sealed", "aborting", "completed", "failed", "aborted"] as const;
/**
 * open: rows may still come. sealed: no more rows come. aborting: its blocks are being cancelled. It has ended as completed, as failed (more
 * rows failed than it tolerates), or as aborted.
 */
export type BatchState = (typeof BATCH_STATES)[number];

export function hasEnded(state: BatchState): boolean {
  return state === "completed" || state === "failed" || state === "aborted";
}

/** How many rows ended in each way. */
export interface RowSums {
  /** Rows that succeeded. */
  readonly succeeded: number;
  /** Rows that failed. */
  readonly failed: number;
  /** Rows that killed their workers. */
  readonly quarantined: number;
  /** Rows that had not ended when the batch was aborted. */
  readonly aborted: number;
}

/** How many rows a batch has, and how many of them ended in each way. */
export interface RowTotals extends RowSums {
  /** All rows. */
  readonly total: number;
}

export const NO_ROWS: RowSums = { succeeded: 0, failed: 0, quarantined: 0, aborted: 0 };

export function endedRows({ succeeded, failed, quarantined, aborted }: RowSums): number {
  return succeeded + failed + quarantined + aborted;
}

/** What the rows count as that a block leaves unmarked when it ends. One rule for every way to end. */
export function unmarkedRowsAre(state: JobState): keyof RowSums | null {
  switch (state) {
    case "succeeded":
      return "succeeded";
    case "dead":
      return "failed";
    case "quarantined":
      return "quarantined";
    case "cancelled":
      return "aborted";
    default:
      return null;
  }
}

/** Rows of a block that ended for good, with what they leave behind. Applied under the fence, each row once however often it is sent. */
export interface RowEnds {
  /** Indexes within the block. */
  readonly succeeded: readonly number[];
  readonly failed: readonly FailedRow[];
  /** What the rows wrote to output files. Kept only for rows that end by this. */
  readonly outputs: readonly OutputPart[];
}

export interface FailedRow {
  /** Its index within the block. */
  readonly row: number;
  readonly line: number;
  /** JSON text. */
  readonly input: string;
  readonly error: StoredError;
  /** quarantined: it killed its workers. failed: it threw. */
  readonly as: "failed" | "quarantined";
}

/** What some rows of one block wrote to one file. */
export interface OutputPart {
  readonly file: string;
  /** JSON text: pairs of a line and what was written there, by line. */
  readonly texts: string;
}

export const NO_ENDS: RowEnds = { succeeded: [], failed: [], outputs: [] };

export function bothEnds(one: RowEnds, other: RowEnds): RowEnds {
  return {
    succeeded: [...one.succeeded, ...other.succeeded],
    failed: [...one.failed, ...other.failed],
    outputs: [...one.outputs, ...other.outputs],
  };
}

/** What a worker gets with the claim of a block of which rows have ended in earlier attempts. */
export interface ClaimedBlock {
  /** One character for each row: "1" if it has ended, "0" if it is left. */
  readonly marks: string;
}

/** What recovery reads of a block whose attempt had marked the beginning of a row. */
export interface BegunRow {
  /** Its index within the block. */
  readonly row: number;
  /** The input of the block's job. */
  readonly input: string;
}

// The input of a block's job. Rows are kept as the texts that they were encoded to: a block is cut by its size, and no row is encoded twice.

export interface BlockRows {
  readonly batch: string;
  readonly round: number;
  readonly number: number;
  readonly rows: readonly { readonly line: number; readonly input: Json }[];
}

/** `rows`: the line and the JSON text of each. */
export function encodeBlock(
  batch: string,
  round: number,
  number: number,
  rows: readonly { readonly line: number; readonly input: string }[],
): string {
  const head = JSON.stringify({ batch, round, number, lines: rows.map(({ line }) => line) });
  return `${head.slice(0, -1)},"rows":[${rows.map(({ input }) => input).join(",")}]}`;
}

export function decodeBlock(input: string): BlockRows {
  return blockRows(JSON.parse(input) as StoredBlock);
}

/** The input of a block's job as JSON. */
export interface StoredBlock extends Omit<BlockRows, "rows"> {
  readonly lines: readonly number[];
  readonly rows: readonly Json[];
}

export function blockRows({ batch, round, number, lines, rows }: StoredBlock): BlockRows {
  return { batch, round, number, rows: rows.map((row, at) => ({ line: lines[at]!, input: row })) };
}

const BATCH_AT = '{"batch":"'.length;

/** The batch of a block, without decoding its rows: `encodeBlock` writes it first, and ids of batches need no escapes. */
export function batchOfBlock(input: string): string {
  return input.slice(BATCH_AT, input.indexOf('"', BATCH_AT));
}

/** Whether a block is of this batch. Half a microsecond less than a text of its own for each block. */
export function isBlockOf(input: string, batch: string): boolean {
  return input.startsWith(batch, BATCH_AT) && input[BATCH_AT + batch.length] === '"';
}

/** Rows of a block threw, and are not ended by that: the attempt fails, and its block runs again with what is left. */
export class RowsFailed extends Error {
  override readonly name = "RowsFailed";
  readonly rows: readonly FailedRow[];

  constructor(rows: readonly FailedRow[]) {
    const { line, error } = rows[0]!;
    super(`${rows.length === 1 ? "a row" : `${rows.length} rows`} failed; line ${line}: ${error.message}`);
    this.rows = rows;
  }
}

/** How many failed or quarantined rows a batch tolerates before it is aborted as failed; null: any number. */
export type Tolerance =
  | {
      /** At most this many. */
      readonly rows: number;
    }
  | {
      /** At most this share of them, from 0 to 1. */
      readonly share: number;
    }
  | null;

/** A batch on its way into the store. */
export interface BatchDraft {
  readonly id: string;
  readonly kind: string;
  /** Unique among the batches of the kind; null: none. */
  readonly key: string | null;
  /** JSON text. */
  readonly context: string;
  readonly priority: number;
  /** Rows of one block, at most. Kept, so that a submission that starts again cuts its source in the same places. */
  readonly blockRows: number;
  readonly tolerance: Tolerance;
  /** Its blocks are not claimed before it is released. */
  readonly held: boolean;
}

/** Some rows on their way into a batch. */
export interface BlockDraft {
  /** 0, 1, ... within the round: the same number is added once. */
  readonly number: number;
  /** The job that runs them; null: none of them fits the schema, and there is nothing to run. */
  readonly job: JobDraft | null;
  /** How many rows it has, rejected ones not included. */
  readonly rows: number;
  /** Rows that do not fit the schema: they have failed before they began. */
  readonly rejected: readonly FailedRow[];
}

/** A batch as its store shows it, of one moment. */
export interface BatchRow {
  readonly id: string;
  readonly kind: string;
  readonly key: string | null;
  readonly state: BatchState;
  readonly held: boolean;
  /** JSON text. */
  readonly context: string;
  readonly priority: number;
  readonly blockRows: number;
  readonly tolerance: Tolerance;
  /** 1 at first; each retry of its failed rows is another one. */
  readonly round: number;
  /** Rows and blocks of this round so far. */
  readonly rows: number;
  readonly blocks: number;
  /** Of this round. */
  readonly sums: RowSums;
  /** What earlier rounds came to. The failed rows of one are the rows of the next. */
  readonly earlier: RowSums;
  readonly createdAt: number;
  readonly sealedAt: number | null;
  readonly endedAt: number | null;
  /** Sums at two recent moments, for the rate; null: nothing has been added up yet. */
  readonly pace: Pace | null;
  /** JSON text, written by the job that assembles them; null: none yet. */
  readonly outputs: string | null;
  /** The context is not what was stored, because the store was damaged: nothing may run with it. Omitted: it is. */
  readonly corrupt?: true;
}

export interface Pace {
  readonly fromAt: number;
  readonly fromRows: number;
  readonly toAt: number;
  readonly toRows: number;
}

/** The rows of this round come from programs; those of later ones are the failed rows of the round before, which their own job adds and seals. */
export const FIRST_ROUND = 1;

export function takesRows({ state, round }: Pick<BatchRow, "state" | "round">): boolean {
  return state === "open" && round === FIRST_ROUND;
}

/**
 * A later round to which rows of the round before are still to be added. If it is aborted meanwhile, the rest is added as failed, with the errors that the
 * rows have, and only then the batch ends: a row that failed is in every later round, or it would be lost.
 */
export function isFilling({ state, round, sealedAt }: Pick<BatchRow, "state" | "round" | "sealedAt">): boolean {
  return round > FIRST_ROUND && sealedAt === null && !hasEnded(state);
}

/** Whether blocks may be added to this round. To one that is aborted while it is filled: only rows that have failed, right after those that are there. */
export function takesBlocks(
  batch: Pick<BatchRow, "state" | "round" | "sealedAt">,
  round: number,
  blocks: readonly BlockDraft[],
  asNext: boolean,
): boolean {
  if (batch.round !== round) return false;
  if (batch.state === "open") return true;
  return asNext && isFilling(batch) && batch.state === "aborting" && blocks.every(({ job }) => job === null);
}

/** Of all rounds: the failed rows of one are the rows of the next. */
export function totalOf({ earlier, rows }: Pick<BatchRow, "earlier" | "rows">): number {
  return earlier.succeeded + earlier.aborted + rows;
}

/** How a batch ends or goes on: what its sums say. Null: it goes on as it is. */
export function decideBatch(batch: BatchRow): "completed" | "failed" | "aborted" | "abort" | null {
  const { state, sums, rows } = batch;
  const isComplete = endedRows(sums) === rows;
  // What rows come to is judged when all are there.
  if (isFilling(batch)) return null;
  if (state === "aborting") return isComplete ? (isPastTolerance(batch) ? "failed" : "aborted") : null;
  if (hasEnded(state)) return null;
  if (isPastTolerance(batch)) return state === "sealed" && isComplete ? "failed" : "abort";
  return state === "sealed" && isComplete ? "completed" : null;
}

/** A share is of the rows that came so far, so it is judged only when all have come. */
function isPastTolerance({ tolerance, sums, rows, state }: BatchRow): boolean {
  if (tolerance === null) return false;
  const bad = sums.failed + sums.quarantined;
  if ("rows" in tolerance) return bad > tolerance.rows;
  return state !== "open" && bad > tolerance.share * rows;
}

/** The id of the job that runs `done` at the end of a round. */
export function doneId(batch: string, round: number): string {
  return `${batch}:done:${round}`;
}

/** The kind of the job that follows the end of a batch of this kind. */
export function doneKind(kind: string): string {
  return `${kind}:done`;
}

/** The id of the job that adds the failed rows of the round before to this one. */
export function roundId(batch: string, round: number): string {
  return `${batch}:round:${round}`;
}

/** The kind of the job that adds the failed rows of a round to the next one. */
export function roundKind(kind: string): string {
  return `${kind}:round`;
}

/** The kind of the job that reads a file into a batch of this kind. */
export function ingestKind(kind: string): string {
  return `${kind}:ingest`;
}

/** The file that becomes a batch: the input of such a job. */
export interface IngestedFile {
  /** A path that every worker can read, or the key of a blob. */
  readonly file: string;
  readonly from: "path" | "blob";
  readonly format: "csv" | "ndjson";
  /** The key of the batch: by it an attempt finds what an earlier one has appended. Null: the id of the job, so that each occurrence of a schedule is a batch of its own. */
  readonly key: string | null;
  readonly context: Json;
  readonly priority: number;
  readonly hold: boolean;
}

/** The job that follows the end of a round. Its id is made of batch and round, so that it is added once. */
export function doneDraft({
  id,
  kind,
  round,
  priority,
}: Pick<BatchRow, "id" | "kind" | "round" | "priority">): JobDraft {
  return {
    id: doneId(id, round),
    kind: doneKind(kind),
    input: JSON.stringify({ batch: id, round }),
    priority,
    runAt: null,
    delayMs: 0,
    dedupeKey: null,
  };
}

/** The batch that an id of a block's job names; null: it is not of that form. */
export function batchOfBlockId(
  id: string,
): { readonly batch: string; readonly round: number; readonly number: number } | null {
  const [, batch, round, number] = /^(.+):(\d+):(\d+)$/.exec(id) ?? [];
  return batch === undefined ? null : { batch, round: Number(round), number: Number(number) };
}

/** The id of a block's job: made of its place, so that a block that is submitted again is the same job. */
export function blockId(batch: string, round: number, number: number): string {
  return `${batch}:${round}:${number}`;
}
