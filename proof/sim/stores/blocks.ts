// The parts of scripts that are about the rows of a block, whatever ends them. A row counts once: by its mark, or with its block if that ends
// before it. Sums are counters of the batch's own record: a script is alone on the server, so nothing is added up later.
import {
  type BegunRow,
  type ClaimedBlock,
  decodeBlock,
  endedRows,
  type FailedRow,
  NO_ROWS,
  type OutputPart,
  type RowEnds,
  type RowSums,
  unmarkedRowsAre,
} from "../../../src/job/batches.ts";
import type { JobState } from "../../../src/job/job.ts";
import { type BlockRecord, type Data, type JobRecord, sumOf } from "./records.ts";

/** A batch that was deleted, or is in another round, has no rows left that could end. */
export function addToSums(data: Data, batch: string, seq: number, round: number, added: RowSums): void {
  const found = data.batch(batch);
  if (found === null || found.seq !== seq || found.round !== round) return;
  const sums = Object.fromEntries(
    Object.entries(found.sums).map(([as, count]) => [as, count + added[as as keyof RowSums]]),
  ) as unknown as RowSums;
  data.putBatch({ ...found, sums, touched: true });
}

/** Rows that were marked before change nothing, and leave nothing. `withRest`: every other row of the block succeeds with this. */
export function endRows(data: Data, job: JobRecord, ends: RowEnds, withRest = false): void {
  const block = data.blockOf(job.row);
  if (block === null) return;
  const marks = marksOf(block).split("");
  const before = linesEnded(job, marks);
  const end = (row: number): boolean => {
    if (marks[row] !== "0") return false;
    marks[row] = "1";
    return true;
  };
  // A success ends every row that it does not call failed, so that it needs no other marks.
  const succeeded = withRest ? 0 : ends.succeeded.filter(end).length;
  const failed = ends.failed.filter(({ row }) => end(row));
  const keepsOutputs = withRest || succeeded + failed.length > 0;
  const outputs = keepsOutputs ? ends.outputs.flatMap((part) => withoutLines(part, before)) : [];
  if (succeeded + failed.length + outputs.length === 0) return;
  data.putBlock({
    ...block,
    marks: succeeded + failed.length === 0 ? block.marks : marks.join(""),
    bad: block.bad || failed.length > 0,
    failed: [...block.failed, ...failed],
    outputs: [...block.outputs, ...outputs],
  });
  const quarantined = failed.filter(({ as }) => as === "quarantined").length;
  const added = { ...NO_ROWS, succeeded, failed: failed.length - quarantined, quarantined };
  if (endedRows(added) > 0) addToSums(data, block.batch, block.seq, block.round, added);
}

/** The block's job has come to this state: if that is its end, the rows without a mark end with it. */
export function endBlock(data: Data, job: number, state: JobState): void {
  const as = unmarkedRowsAre(state);
  const block = as === null ? null : data.blockOf(job);
  const left = block === null ? 0 : countLeft(block);
  if (as === null || block === null || left === 0) return;
  if (as === "failed" || as === "quarantined") data.putBlock({ ...block, bad: true });
  addToSums(data, block.batch, block.seq, block.round, { ...NO_ROWS, [as]: left });
}

export function marksOf({ marks, rows }: BlockRecord): string {
  return marks ?? "0".repeat(rows);
}

export function countLeft(block: BlockRecord): number {
  return marksOf(block).replaceAll("1", "").length;
}

function linesEnded({ input }: JobRecord, marks: readonly string[]): ReadonlySet<number> {
  if (!marks.includes("1")) return new Set();
  return new Set(decodeBlock(input).rows.flatMap(({ line }, row) => (marks[row] === "1" ? [line] : [])));
}

function withoutLines(part: OutputPart, lines: ReadonlySet<number>): OutputPart[] {
  if (lines.size === 0) return [part];
  const left = (JSON.parse(part.texts) as [line: number, text: string][]).filter(([line]) => !lines.has(line));
  return left.length === 0 ? [] : [{ ...part, texts: JSON.stringify(left) }];
}

// ---- what a claim and a recovery read

export function claimedBlock(data: Data, job: number): { block?: ClaimedBlock } {
  const marks = data.blockOf(job)?.marks ?? null;
  return marks === null ? {} : { block: { marks } };
}

export function beginRow(data: Data, { row: job, fence }: JobRecord, row: number): void {
  const block = data.blockOf(job);
  if (block !== null) data.putBlock({ ...block, begun: { row, fence } });
}

/** The row that the latest attempt has begun, if nothing says that it has ended. From an input that is not what was stored nothing is read. */
export function begunRow(data: Data, { row: job, id, fence, input, inputSum }: JobRecord): { begun?: BegunRow } {
  const block = data.blockOf(job);
  const row = block?.begun?.fence === fence ? block.begun.row : null;
  if (block === null || row === null || marksOf(block)[row] !== "0" || sumOf(input, id) !== inputSum) return {};
  return { begun: { row, input } };
}

/** Every batch whose sums are not those of its rows. */
export function wrongSums(data: Data): string[] {
  return data.batches().flatMap(({ id, seq, round, rows, sums }) => {
    const blocks = data.blocks(seq, round);
    const counted = blocks.map((block) => sumsOf(data, block));
    const wanted = (as: keyof RowSums): number => counted.reduce((sum, one) => sum + one[as], 0);
    const wrong = (Object.keys(sums) as (keyof RowSums)[]).flatMap((as) =>
      sums[as] === wanted(as) ? [] : [`batch ${id} says ${sums[as]} ${as} rows, and its blocks ${wanted(as)}`],
    );
    const there = blocks.reduce((sum, block) => sum + block.rows + rejectedOf(block).length, 0);
    return there === rows ? wrong : [...wrong, `batch ${id} says ${rows} rows, and its blocks ${there}`];
  });
}

/** Rows that failed before they began have no mark. */
function rejectedOf({ failed }: BlockRecord): readonly FailedRow[] {
  return failed.filter(({ row }) => row === -1);
}

function sumsOf(data: Data, block: BlockRecord): RowSums {
  const state = block.job === null ? null : (data.job(block.job)?.state ?? null);
  const quarantined = block.failed.filter(({ as }) => as === "quarantined").length;
  const left = countLeft(block);
  const succeeded = block.rows - left - (block.failed.length - rejectedOf(block).length);
  const sums = { ...NO_ROWS, succeeded, failed: block.failed.length - quarantined, quarantined };
  const as = state === null ? null : unmarkedRowsAre(state);
  return as === null ? sums : { ...sums, [as]: sums[as] + left };
}
