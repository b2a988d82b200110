// The rows of a batch as programs list them: each with its line, what it is, and how it ended. Read block by block, in constant memory.
import { type BatchRow, decodeBlock, FIRST_ROUND, isFilling, type RowSums, unmarkedRowsAre } from "../job/batches.ts";
import { ErrorCode, type StoredError } from "../job/errors.ts";
import type { Json } from "../job/json.ts";
import type { Batches, FailedBlock, KeptBlock } from "../stores/batches.ts";

/** A row that failed. */
export interface FailedBatchRow {
  /** Its line, counted from 1. */
  readonly line: number;
  /** The row. */
  readonly input: Json;
  /** Why it failed; null if nothing is known. */
  readonly error: StoredError | null;
  /** quarantined: it killed its workers. failed: it threw. */
  readonly state: "failed" | "quarantined";
  /** What is stored of it is not what was written, because the store was damaged. It is shown as it was found, and is not run again. */
  readonly corrupt?: true;
}

/** A row of a batch. */
export interface ListedBatchRow extends Omit<FailedBatchRow, "state"> {
  /** waiting: its block has not begun, or is tried again later. running: its block runs, and this row has not ended as far as is durable. aborted: it had not ended when the batch was aborted. */
  readonly state: keyof RowSums | "waiting" | "running";
}

const FAILED_BLOCKS = 100;
/** Of whole blocks, which have up to 256 KiB each: fewer, because a read of them occupies the store, and the thread of SQLite. */
const WHOLE_BLOCKS = 10;

/**
 * All rows, those of each round by line. A row that failed before the latest round is in a later one, or waits for the job that adds it: the first that
 * failed are added first, so as many of them are passed over as the latest round had when the batch was read.
 */
export async function* allRowsOf(batches: Batches, batch: BatchRow): AsyncGenerator<ListedBatchRow> {
  const { id, round: latest, rows, blocks } = batch;
  const filling = isFilling(batch);
  const state = batch.state === "open" && { state: "waiting" as const };
  let added = 0;
  for (let round = FIRST_ROUND; round <= latest; round++)
    for await (const row of rowsOf(batches, id, round, filling && round === latest ? blocks : Infinity))
      if (round === latest || (row.state !== "failed" && row.state !== "quarantined")) yield row;
      else if (filling && round === latest - 1 && ++added > rows) yield { ...row, ...state };
}

/** The failed rows of one round, by line. */
export async function* failedRowsOf(batches: Batches, id: string, round: number): AsyncGenerator<FailedBatchRow> {
  let after: number | null = null;
  for (;;) {
    const blocks: Awaited<ReturnType<Batches["failures"]>> = await batches.failures(id, round, after, FAILED_BLOCKS);
    for (const { rows, whole } of blocks) {
      const failed = rows.map(failedRowOf);
      if (whole) failed.push(...rowsOfWhole(whole));
      yield* failed.toSorted((a, b) => a.line - b.line);
    }
    const last = blocks.at(-1);
    if (!last || blocks.length < FAILED_BLOCKS) return;
    after = last.number;
  }
}

/** Of the blocks with a number below `end`. */
async function* rowsOf(batches: Batches, id: string, round: number, end: number): AsyncGenerator<ListedBatchRow> {
  for (let after: number | null = null; ;) {
    const blocks: readonly KeptBlock[] = await batches.blocks(id, round, after, WHOLE_BLOCKS);
    for (const { number, rows, job } of blocks) {
      if (number >= end) return;
      const failed = rows.map(failedRowOf);
      const lines = new Set(rows.map(({ line }) => line));
      const others = job === null ? [] : rowsOfJob(job).filter(({ line }) => !lines.has(line));
      yield* [...failed, ...others].toSorted((a, b) => a.line - b.line);
    }
    const last = blocks.at(-1);
    if (!last) return;
    after = last.number;
  }
}

/** The rows of a block by its marks and its state. */
function rowsOfJob({ state, input, marks, error }: NonNullable<KeptBlock["job"]>): ListedBatchRow[] {
  const left = unmarkedRowsAre(state) ?? (state === "running" ? "running" : "waiting");
  const ofBlock = left === "failed" || left === "quarantined" ? error : null;
  if (isDamaged(error)) return [damaged(input, error, left)];
  try {
    return decodeBlock(input).rows.map(({ line, input: row }, at) =>
      marks[at] === "1"
        ? { line, input: row, error: null, state: "succeeded" }
        : { line, input: row, error: ofBlock, state: left },
    );
  } catch {
    return [damaged(input, error, left)];
  }
}

function isDamaged(error: StoredError | null): boolean {
  return error?.code === ErrorCode.corrupt;
}

/** Of a damaged block it is not known which its rows were: one entry without a line stands for them. */
function damaged<S>(input: string, error: StoredError | null, state: S) {
  return { line: 0, ...readable(input), error, state, corrupt: true as const };
}

/** The rows of a block that ended as a whole. */
function rowsOfWhole({ input, marks, error, as }: NonNullable<FailedBlock["whole"]>): FailedBatchRow[] {
  if (isDamaged(error)) return [damaged(input, error, as)];
  return decodeBlock(input).rows.flatMap(({ line, input: row }, at) =>
    marks[at] === "1" ? [] : [{ line, input: row, error, state: as }],
  );
}

function failedRowOf({ line, input, error, as }: FailedBlock["rows"][number]): FailedBatchRow {
  const corrupt = error.code === ErrorCode.corrupt && { corrupt: true as const };
  return { line, ...readable(input), error, state: as, ...corrupt };
}

/** A damaged text is shown as it was found. */
function readable(text: string): Pick<FailedBatchRow, "input" | "corrupt"> {
  try {
    return { input: JSON.parse(text) as Json };
  } catch {
    return { input: text, corrupt: true };
  }
}
