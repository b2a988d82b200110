// Batches as they are read: whole, in lists, and what their rows leave behind. Short reads only; none takes a lock or goes through blocks that
// it does not return.
import { BATCH_STATES, type BatchRow, type BatchState, type Tolerance } from "../../job/batches.ts";
import { ErrorCode, OutliveError, type StoredError } from "../../job/errors.ts";
import type { Batches, BatchFilter, FailedBlock, KeptBlock, OutputPage } from "../batches.ts";
import { keptJob, STATE, storedError } from "../rows.ts";
import { countLeft } from "./blocks.ts";
import { isIntact, partOwner, rowOwner } from "./checksums.ts";
import type { Database } from "./database.ts";
import type { FileAccess } from "./writer.ts";

/** The state of a batch as it is stored. */
export const AS = Object.fromEntries(BATCH_STATES.map((state, code) => [state, code])) as Readonly<
  Record<BatchState, number>
>;

type Reads = Pick<Batches, "get" | "list" | "failures" | "blocks" | "outputs" | "outputFiles">;

export function batchReads({ db, read }: FileAccess): Reads {
  return {
    get: (ids) => read(() => getBatches(db, ids)),
    list: (filter, limit, after) => read(() => listBatches(db, filter, limit, after)),
    failures: (batch, round, after, limit) => read(() => failedBlocks(db, batch, round, after, limit)),
    blocks: (batch, round, after, limit) => read(() => keptBlocks(db, batch, round, after, limit)),
    outputs: (batch, round, file, after, limit) => read(() => outputPage(db, batch, round, file, after, limit)),
    outputFiles: (batch) => read(() => outputFiles(db, batch)),
  };
}

export interface BatchColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: string;
  readonly key: string | null;
  readonly state: number;
  readonly held: number;
  readonly priority: number;
  readonly block_rows: number;
  readonly tolerance: string | null;
  readonly round: number;
  readonly rows: number;
  readonly blocks: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly quarantined: number;
  readonly aborted: number;
  readonly earlier_succeeded: number;
  readonly earlier_failed: number;
  readonly earlier_quarantined: number;
  readonly earlier_aborted: number;
  readonly created_at: number;
  readonly sealed_at: number | null;
  readonly ended_at: number | null;
  readonly pace_from_at: number | null;
  readonly pace_from_rows: number;
  readonly pace_to_at: number;
  readonly pace_to_rows: number;
  readonly context: string;
  readonly context_sum: number;
  readonly outputs: string | null;
}

export const SELECT = `SELECT b.*, k.name AS kind, t.context, t.context_sum, t.outputs FROM outlive_batches b
  JOIN outlive_kinds k ON k.id = b.kind JOIN outlive_batch_texts t ON t.batch = b.seq`;
const BY_ID = `${SELECT} WHERE b.id = ?`;

export function batchRow(row: BatchColumns): BatchRow {
  return {
    id: row.id,
    kind: row.kind,
    key: row.key,
    state: BATCH_STATES[row.state]!,
    held: row.held === 1,
    context: row.context,
    priority: row.priority,
    blockRows: row.block_rows,
    tolerance: row.tolerance === null ? null : (JSON.parse(row.tolerance) as Tolerance),
    round: row.round,
    rows: row.rows,
    blocks: row.blocks,
    sums: {
      succeeded: row.succeeded,
      failed: row.failed,
      quarantined: row.quarantined,
      aborted: row.aborted,
    },
    earlier: {
      succeeded: row.earlier_succeeded,
      failed: row.earlier_failed,
      quarantined: row.earlier_quarantined,
      aborted: row.earlier_aborted,
    },
    createdAt: row.created_at,
    sealedAt: row.sealed_at,
    endedAt: row.ended_at,
    pace:
      row.pace_from_at === null
        ? null
        : {
            fromAt: row.pace_from_at,
            fromRows: row.pace_from_rows,
            toAt: row.pace_to_at,
            toRows: row.pace_to_rows,
          },
    outputs: row.outputs,
    ...(!isIntact(row.context, row.id, row.context_sum) && { corrupt: true }),
  };
}

function getBatches(db: Database, ids: readonly string[]): BatchRow[] {
  return ids.flatMap((id) => {
    const row = db.sql(BY_ID).get(id) as unknown as BatchColumns | undefined;
    return row === undefined ? [] : [batchRow(row)];
  });
}

function listBatches(
  db: Database,
  { kind, state, createdAfter }: BatchFilter,
  limit: number,
  after: string | null,
): BatchRow[] {
  const rows = db
    .sql(
      `${SELECT} WHERE (?1 IS NULL OR k.name = ?1) AND (?2 IS NULL OR b.state = ?2) AND (?3 IS NULL OR b.created_at > ?3)
         AND (?4 IS NULL OR b.seq < (SELECT seq FROM outlive_batches WHERE id = ?4)) ORDER BY b.seq DESC LIMIT ?5 + 0`,
    )
    .all(kind ?? null, state === undefined ? null : AS[state], createdAfter ?? null, after, limit);
  return (rows as unknown as BatchColumns[]).map(batchRow);
}

export interface PlainBatch {
  readonly seq: number;
  readonly state: number;
  readonly round: number;
  readonly held: number;
  readonly blocks: number;
  readonly rows: number;
  readonly sealed_at: number | null;
}

export function findBatch(db: Database, id: string): PlainBatch | undefined {
  return db
    .sql("SELECT seq, state, round, held, blocks, rows, sealed_at FROM outlive_batches WHERE id = ?")
    .get(id) as unknown as PlainBatch | undefined;
}

// ---- what rows leave behind

interface BadColumns {
  readonly number: number;
  readonly rows: number;
  readonly marks: string | null;
  readonly state: number | null;
  readonly input: string;
  readonly error: string | null;
}

function failedBlocks(db: Database, id: string, round: number, after: number | null, limit: number): FailedBlock[] {
  const batch = findBatch(db, id);
  if (batch === undefined) return [];
  const rows = db
    .sql(
      `SELECT b.number, b.rows, b.marks, j.state, j.error, CASE WHEN j.state IN (${STATE.dead}, ${STATE.quarantined}) THEN j.input END AS input
       FROM outlive_blocks b LEFT JOIN outlive_jobs j ON j.seq = b.job
       WHERE b.batch = ? AND b.round = ? AND b.number > ? AND b.bad = 1 ORDER BY b.number LIMIT ? + 0`,
    )
    .all(batch.seq, round, after ?? -1, limit) as unknown as BadColumns[];
  return rows.map((row) => ({
    number: row.number,
    rows: failedRows(db, batch.seq, round, row.number),
    whole: wholeEnd(row),
  }));
}

function keptBlocks(db: Database, id: string, round: number, after: number | null, limit: number): KeptBlock[] {
  const batch = findBatch(db, id);
  if (batch === undefined) return [];
  const blocks = db
    .sql(
      `SELECT b.number, b.rows, b.marks, b.bad, j.state, j.error, j.input
       FROM outlive_blocks b LEFT JOIN outlive_jobs j ON j.seq = b.job
       WHERE b.batch = ? AND b.round = ? AND b.number > ? ORDER BY b.number LIMIT ? + 0`,
    )
    .all(batch.seq, round, after ?? -1, limit) as unknown as (BadColumns & { readonly bad: number })[];
  return blocks.map(({ number, rows, marks, bad, state, error, input }) => ({
    number,
    rows: bad === 1 ? failedRows(db, batch.seq, round, number) : [],
    job: state === null ? null : keptJob(state, input, marks ?? "0".repeat(rows), error),
  }));
}

function wholeEnd({ rows, marks, state, input, error }: BadColumns): FailedBlock["whole"] {
  if (state !== STATE.dead && state !== STATE.quarantined) return null;
  if (marks !== null && countLeft(marks) === 0) return null;
  return {
    input,
    marks: marks ?? "0".repeat(rows),
    error: error === null ? null : storedError(error),
    as: state === STATE.dead ? "failed" : "quarantined",
  };
}

function failedRows(db: Database, batch: number, round: number, number: number): FailedBlock["rows"] {
  const rows = db
    .sql(
      "SELECT line, quarantined, input, input_sum, error FROM outlive_row_failures WHERE batch = ? AND round = ? AND number = ? ORDER BY line, ord",
    )
    .all(batch, round, number) as {
    line: number;
    quarantined: number;
    input: string;
    input_sum: number;
    error: string;
  }[];
  return rows.map(({ line, quarantined, input, input_sum, error }) => ({
    line,
    input,
    error: isIntact(input, rowOwner(batch, line), input_sum) ? storedError(error) : damagedRow(line),
    as: quarantined === 1 ? "quarantined" : "failed",
  }));
}

function damagedRow(line: number): StoredError {
  return {
    name: "Corrupt",
    code: ErrorCode.corrupt,
    message: `the stored input of line ${line} does not match its checksum: the store was damaged. Do not run it again; submit the row itself.`,
  };
}

function outputPage(
  db: Database,
  id: string,
  round: number,
  file: string,
  after: number | null,
  limit: number,
): OutputPage {
  const batch = findBatch(db, id);
  if (batch === undefined) return { blocks: [], next: null };
  const parts = db
    .sql(
      "SELECT number, texts, texts_sum FROM outlive_row_outputs WHERE batch = ? AND file = ? AND round = ? AND number > ? ORDER BY number, ord",
    )
    .iterate(batch.seq, file, round, after ?? -1) as Iterable<unknown> as Iterable<{
    number: number;
    texts: string;
    texts_sum: number;
  }>;
  const blocks: string[][] = [];
  let last: number | null = null;
  for (const { number, texts, texts_sum } of parts) {
    if (number !== last) {
      if (blocks.length === limit) return { blocks, next: last };
      blocks.push([]);
      last = number;
    }
    if (!isIntact(texts, partOwner(batch.seq, round, number, file), texts_sum))
      throw damagedPart(id, file, round, number);
    blocks.at(-1)!.push(texts);
  }
  return { blocks, next: null };
}

function damagedPart(batch: string, file: string, round: number, number: number): OutliveError {
  return new OutliveError(
    ErrorCode.corrupt,
    `What block ${number} of round ${round} of batch ${batch} wrote to ${file} does not match its checksum: the store was damaged.`,
    "Restore a backup, or submit the rows of that block as another batch. To find more: outlive check --integrity.",
    { batch, round, block: number, file },
  );
}

/** One step in the index for each file, however much was written to it. */
function outputFiles(db: Database, id: string): string[] {
  const batch = findBatch(db, id);
  const files: string[] = [];
  if (batch === undefined) return files;
  for (;;) {
    const next = db
      .sql("SELECT file FROM outlive_row_outputs WHERE batch = ? AND file > ? ORDER BY file LIMIT 1")
      .get(batch.seq, files.at(-1) ?? "") as { file: string } | undefined;
    if (next === undefined) return files;
    files.push(next.file);
  }
}
