// The rows of a block as they end, whatever ends them: a write of the attempt, its settlement, a recovery, a cancel, an operator. A row counts once: by
// its mark, or with its block if that ends before it. Inside a transaction.
import {
  type BegunRow,
  type ClaimedBlock,
  decodeBlock,
  NO_ROWS,
  type OutputPart,
  type RowEnds,
  type RowSums,
  unmarkedRowsAre,
} from "../../job/batches.ts";
import type { JobState } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import { checksumOf, isIntact, partOwner, rowOwner } from "./checksums.ts";
import type { Database } from "./database.ts";
import { STATE } from "../rows.ts";

interface BlockColumns {
  readonly batch: number;
  readonly round: number;
  readonly number: number;
  readonly rows: number;
  readonly marks: string | null;
}

const BLOCK = "SELECT batch, round, number, rows, marks FROM outlive_blocks WHERE job = ?";
const ADD = `UPDATE outlive_batches SET succeeded = succeeded + ?, failed = failed + ?, quarantined = quarantined + ?, aborted = aborted + ?, touched = 1
  WHERE seq = ? AND round = ?`;
const LEFT = "0".charCodeAt(0);
const ENDED = "1".charCodeAt(0);

/** In the order of the sums. A batch that was deleted, or is in another round, has no rows left that could end. */
export function addToSums(db: Database, batch: number, round: number, sums: RowSums): void {
  db.sql(ADD).run(sums.succeeded, sums.failed, sums.quarantined, sums.aborted, batch, round);
}

function readBlock(db: Database, job: number): BlockColumns | undefined {
  return db.sql(BLOCK).get(job) as unknown as BlockColumns | undefined;
}

/**
 * Marks these rows as ended and keeps what they leave behind. Rows that were marked before change nothing, and leave nothing. A job that is not a
 * block has no rows.
 */
export function endRows(db: Database, job: number, ends: RowEnds): void {
  const block = readBlock(db, job);
  if (block !== undefined) markRows(db, job, block, ends, false);
}

/** As `endRows`, by a success: every row that is left succeeds with it (`endBlock`), so that only failed ones need a mark. */
export function endRowsBySuccess(db: Database, job: number, { failed, outputs }: RowEnds): void {
  const block = failed.length + outputs.length === 0 ? undefined : readBlock(db, job);
  if (block !== undefined) markRows(db, job, block, { succeeded: [], failed, outputs }, true);
}

/** `withRest`: every other row ends with this, too, so that its outputs are kept. */
function markRows(db: Database, job: number, block: BlockColumns, ends: RowEnds, withRest: boolean): void {
  const before = marksOf(block);
  const marks = Buffer.from(before, "latin1");
  const end = (row: number): boolean => {
    if (marks[row] !== LEFT) return false;
    marks[row] = ENDED;
    return true;
  };
  const succeeded = ends.succeeded.filter(end).length;
  const failed = ends.failed.filter(({ row }) => end(row));
  const isRepeated = succeeded < ends.succeeded.length || failed.length < ends.failed.length;
  if (ends.outputs.length > 0 && (withRest || succeeded + failed.length > 0)) {
    const endedBefore = isRepeated || (withRest && block.marks !== null) ? linesEnded(db, job, before) : null;
    for (const part of ends.outputs) keepOutput(db, block, part, endedBefore);
  }
  if (succeeded + failed.length === 0) return;
  for (const row of failed) keepFailure(db, block, row, row.row);
  const quarantined = failed.filter(({ as }) => as === "quarantined").length;
  db.sql("UPDATE outlive_blocks SET marks = ?, bad = max(bad, ?) WHERE job = ?").run(
    marks.toString("latin1"),
    failed.length > 0 ? 1 : 0,
    job,
  );
  addToSums(db, block.batch, block.round, {
    ...NO_ROWS,
    succeeded,
    failed: failed.length - quarantined,
    quarantined,
  });
}

function marksOf({ marks, rows }: Pick<BlockColumns, "marks" | "rows">): string {
  return marks ?? "0".repeat(rows);
}

/** The block's job has come to this state: if that is its end, the rows without a mark end with it. */
export function endBlock(db: Database, job: number, state: JobState): void {
  const as = unmarkedRowsAre(state);
  const block = as === null ? undefined : readBlock(db, job);
  if (as === null || block === undefined) return;
  const left = block.marks === null ? block.rows : countLeft(block.marks);
  if (left === 0) return;
  if (as === "failed" || as === "quarantined") db.sql("UPDATE outlive_blocks SET bad = 1 WHERE job = ?").run(job);
  addToSums(db, block.batch, block.round, { ...NO_ROWS, [as]: left });
}

const SUCCEEDED = `SELECT b.batch, b.round, b.rows, b.marks FROM json_each(?) AS i CROSS JOIN outlive_blocks b ON b.job = i.value`;

/** These jobs have succeeded: the rows without a mark of those that are blocks succeed with them, in one write per batch. `jobs`: JSON text. */
export function endBlocks(db: Database, jobs: string): void {
  const blocks = db.sql(SUCCEEDED).all(jobs) as unknown as Omit<BlockColumns, "number">[];
  const sums = new Map<string, { readonly batch: number; readonly round: number; left: number }>();
  for (const { batch, round, rows, marks } of blocks) {
    const key = `${batch} ${round}`;
    const sum = sums.get(key) ?? { batch, round, left: 0 };
    sum.left += marks === null ? rows : countLeft(marks);
    sums.set(key, sum);
  }
  for (const { batch, round, left } of sums.values())
    if (left > 0) addToSums(db, batch, round, { ...NO_ROWS, succeeded: left });
}

export function countLeft(marks: string): number {
  let left = 0;
  for (let i = 0; i < marks.length; i++) if (marks.charCodeAt(i) === LEFT) left++;
  return left;
}

/** `row`: its index within the block; null: it was rejected. */
export function keepFailure(
  db: Database,
  { batch, round, number }: Pick<BlockColumns, "batch" | "round" | "number">,
  { line, input, error, as }: Omit<RowEnds["failed"][number], "row">,
  row: number | null,
): void {
  db.sql(
    "INSERT INTO outlive_row_failures (batch, round, number, row, line, quarantined, input, input_sum, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
  ).run(
    batch,
    round,
    number,
    row,
    line,
    as === "quarantined" ? 1 : 0,
    input,
    checksumOf(input, rowOwner(batch, line)),
    JSON.stringify(error),
  );
}

/** `endedBefore`: lines whose outputs were kept when they ended; null: none. */
function keepOutput(
  db: Database,
  { batch, round, number }: BlockColumns,
  part: OutputPart,
  endedBefore: ReadonlySet<number> | null,
): void {
  const texts = endedBefore === null ? part.texts : withoutLines(part.texts, endedBefore);
  if (texts === null) return;
  db.sql(
    "INSERT INTO outlive_row_outputs (batch, round, number, file, texts, texts_sum) VALUES (?, ?, ?, ?, ?, ?)",
  ).run(batch, round, number, part.file, texts, checksumOf(texts, partOwner(batch, round, number, part.file)));
}

/** Null: nothing is left. */
function withoutLines(texts: string, lines: ReadonlySet<number>): string | null {
  const left = (JSON.parse(texts) as [line: number, text: string][]).filter(([line]) => !lines.has(line));
  return left.length === 0 ? null : JSON.stringify(left);
}

function linesEnded(db: Database, job: number, marks: string): ReadonlySet<number> {
  const { input } = db.sql("SELECT input FROM outlive_jobs WHERE seq = ?").get(job) as { input: string };
  const { rows } = decodeBlock(input);
  return new Set(rows.flatMap(({ line }, row) => (marks.charCodeAt(row) === ENDED ? [line] : [])));
}

/** Whether every row that ends by this has ended before. False also for a job that is not a block. */
export function haveEnded(db: Database, job: number, ends: RowEnds): boolean {
  const marks = readBlock(db, job)?.marks;
  if (marks === null || marks === undefined) return false;
  const rows = [...ends.succeeded, ...ends.failed.map(({ row }) => row)];
  return rows.length > 0 && rows.every((row) => marks[row] === "1");
}

// ---- what a claim and a recovery read

/** Null: it is not a block, or all of its rows are left. */
export function claimedBlock(db: Database, job: number): ClaimedBlock | null {
  const row = db.sql("SELECT marks FROM outlive_blocks WHERE job = ? AND marks IS NOT NULL").get(job);
  return row === undefined ? null : { marks: row["marks"] as string };
}

export function beginRow(db: Database, { row: job, fence }: Lease, row: number): void {
  db.sql("UPDATE outlive_blocks SET begun = ?, begun_fence = ? WHERE job = ?").run(row, fence, job);
}

/** The row that the latest attempt of the job j has begun; null: nothing says which, or that row has ended. */
export const BEGUN = `CASE WHEN j.extras = 1 THEN (SELECT b.begun FROM outlive_blocks b
  WHERE b.job = j.seq AND b.begun_fence = j.fence AND ifnull(substr(b.marks, b.begun + 1, 1), '0') = '0') END`;

/** Nothing is read from an input that is not what was stored: then the block is judged as a whole. */
export function begunRow(db: Database, job: number, row: number): BegunRow | null {
  const { id, input, input_sum } = db.sql("SELECT id, input, input_sum FROM outlive_jobs WHERE seq = ?").get(job) as {
    id: string;
    input: string;
    input_sum: number;
  };
  return isIntact(input, id, input_sum) ? { row, input } : null;
}

/** The batch that the job is a block of; null: it is not a block. */
export function batchOf(db: Database, job: number): string | null {
  const row = db
    .sql("SELECT p.id FROM outlive_blocks b JOIN outlive_batches p ON p.seq = b.batch WHERE b.job = ?")
    .get(job) as { id: string } | undefined;
  return row?.id ?? null;
}

// ---- all of it, for checks and repairs

const MARKED = "length(replace(ifnull(b.marks, ''), '0', ''))";
const leftIn = (state: number): string => `ifnull(sum(CASE WHEN j.state = ${state} THEN b.rows - ${MARKED} END), 0)`;

/**
 * What is kept of each batch, next to what its blocks came to in this round (own_). Marks say that a row has ended, its failure says how, and rows without a mark share the end of their block.
 */
export const COUNTED = `SELECT p.id, p.rows, p.blocks, p.succeeded, p.failed, p.quarantined, p.aborted,
    ifnull(c.blocks, 0) AS own_blocks, ifnull(c.rows, 0) + ifnull(f.rejected, 0) AS own_rows,
    ifnull(c.succeeded, 0) - ifnull(f.marked, 0) AS own_succeeded, ifnull(c.dead, 0) + ifnull(f.failed, 0) AS own_failed,
    ifnull(c.quarantined, 0) + ifnull(f.quarantined, 0) AS own_quarantined, ifnull(c.cancelled, 0) AS own_aborted
  FROM outlive_batches p
  LEFT JOIN (SELECT b.batch, b.round, count(*) AS blocks, sum(b.rows) AS rows, sum(${MARKED}) + ${leftIn(STATE.succeeded)} AS succeeded,
      ${leftIn(STATE.dead)} AS dead, ${leftIn(STATE.quarantined)} AS quarantined, ${leftIn(STATE.cancelled)} AS cancelled
    FROM outlive_blocks b LEFT JOIN outlive_jobs j ON j.seq = b.job GROUP BY b.batch, b.round) c ON c.batch = p.seq AND c.round = p.round
  LEFT JOIN (SELECT batch, round, count(row) AS marked, sum(row IS NULL) AS rejected, sum(quarantined = 0) AS failed, sum(quarantined) AS quarantined
    FROM outlive_row_failures GROUP BY batch, round) f ON f.batch = p.seq AND f.round = p.round`;
export const SUMMED = ["rows", "blocks", "succeeded", "failed", "quarantined", "aborted"] as const;
