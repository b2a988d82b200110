// Batches as they are read: one, a page, what failed, what rows wrote. Reads only, without locks, and never over all blocks of a batch. Sums are
// those of the batch's row and of the deltas that have not been added to it: one statement sees each of them once.
import { BATCH_STATES, type BatchRow, type BatchState, type Tolerance } from "../../job/batches.ts";
import { ErrorCode, OutliveError, type StoredError } from "../../job/errors.ts";
import type { Batches, BatchFilter, FailedBlock, KeptBlock, OutputPage } from "../batches.ts";
import { keptJob, STATE, storedError } from "../rows.ts";
import { checksumSql, isIntactSql, list, type Session, texts } from "./statements.ts";

/** The state of a batch as it is stored. */
export const AS = Object.fromEntries(BATCH_STATES.map((state, code) => [state, code])) as Readonly<
  Record<BatchState, number>
>;

export function batchReads(
  session: Session,
): Pick<Batches, "get" | "list" | "failures" | "blocks" | "outputs" | "outputFiles"> {
  return {
    get: (ids) => getBatches(session, ids),
    list: (filter, limit, after) => listBatches(session, filter, limit, after),
    failures: (batch, round, after, limit) => failedBlocks(session, batch, round, after, limit),
    blocks: (batch, round, after, limit) => keptBlocks(session, batch, round, after, limit),
    outputs: (batch, round, file, after, limit) => outputPage(session, { id: batch, round }, file, after, limit),
    outputFiles: (batch) => outputFiles(session, batch),
  };
}

export interface BatchColumns {
  readonly id: string;
  readonly kind: string;
  readonly key: string | null;
  readonly state: number;
  readonly held: boolean;
  readonly context: string;
  readonly intact: boolean;
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
  readonly outputs: string | null;
}

const SUM = (column: string): string => `b.${column} + coalesce(d.${column}, 0) AS ${column}`;

export const SELECT_BATCH = `SELECT b.id, k.name AS kind, b.key, b.state, b.held, b.context, ${isIntactSql("b.context", "b.id", "b.context_sum")} AS intact, b.priority,
    b.block_rows, b.tolerance, b.round, b.rows, b.blocks, ${["succeeded", "failed", "quarantined", "aborted"].map(SUM).join(", ")},
    b.earlier_succeeded, b.earlier_failed, b.earlier_quarantined, b.earlier_aborted, b.created_at, b.sealed_at, b.ended_at,
    b.pace_from_at, b.pace_from_rows, b.pace_to_at, b.pace_to_rows, b.outputs
  FROM outlive.batch_state b JOIN outlive.kinds k ON k.id = b.kind LEFT JOIN LATERAL (
    SELECT sum(succeeded) AS succeeded, sum(failed) AS failed, sum(quarantined) AS quarantined, sum(aborted) AS aborted
    FROM outlive.batch_deltas WHERE batch = b.seq AND round = b.round) d ON true`;

const GET = `${SELECT_BATCH} JOIN unnest($1::text[]) WITH ORDINALITY AS u (id, ord) ON u.id = b.id ORDER BY u.ord`;
const LIST = `${SELECT_BATCH} WHERE ($1::text IS NULL OR k.name = $1) AND ($2::smallint IS NULL OR b.state = $2) AND ($3::bigint IS NULL OR b.created_at > $3)
  AND ($4::text IS NULL OR b.seq < (SELECT seq FROM outlive.batch_state WHERE id = $4)) ORDER BY b.seq DESC LIMIT $5`;

export function batchRow(row: BatchColumns): BatchRow {
  const { succeeded, failed, quarantined, aborted } = row;
  return {
    id: row.id,
    kind: row.kind,
    key: row.key,
    state: BATCH_STATES[row.state]!,
    held: row.held,
    context: row.context,
    priority: row.priority,
    blockRows: row.block_rows,
    tolerance: row.tolerance === null ? null : (JSON.parse(row.tolerance) as Tolerance),
    round: row.round,
    rows: row.rows,
    blocks: row.blocks,
    sums: { succeeded, failed, quarantined, aborted },
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
    ...(!row.intact && { corrupt: true }),
  };
}

async function getBatches(session: Session, ids: readonly string[]): Promise<BatchRow[]> {
  if (ids.length === 0) return [];
  return (await session.rows<BatchColumns>(GET, [texts(ids)])).map(batchRow);
}

async function listBatches(
  session: Session,
  { kind, state, createdAfter }: BatchFilter,
  limit: number,
  after: string | null,
): Promise<BatchRow[]> {
  const rows = await session.rows<BatchColumns>(LIST, [
    kind ?? null,
    state === undefined ? null : AS[state],
    createdAfter ?? null,
    after,
    limit,
  ]);
  return rows.map(batchRow);
}

// ---- what rows leave behind

interface BadColumns {
  readonly batch: number;
  readonly number: number;
  readonly marks: string;
  readonly state: number | null;
  /** Null: rows did not share the end of their block. */
  readonly input: string | null;
  readonly error: string | null;
}

const SHARES_END = `j.state IN (${STATE.dead}, ${STATE.quarantined}) AND (b.marks IS NULL OR strpos(b.marks, '0') > 0)`;
const blocksSql = (input: string, which: string): string =>
  `SELECT b.batch, b.number, coalesce(b.marks, repeat('0', b.rows)) AS marks, j.state, ${input} AS input, j.error
  FROM outlive.batch_state p JOIN outlive.blocks b ON b.batch = p.seq LEFT JOIN outlive.jobs j ON j.seq = b.job
  WHERE p.id = $1 AND b.round = $2 AND b.number > $3${which} ORDER BY b.number LIMIT $4`;
const BAD = blocksSql(`CASE WHEN ${SHARES_END} THEN j.input END`, " AND b.bad");
const ALL = blocksSql("j.input", "");

/** SQL: the owner of what is kept of a row, for its checksum. */
export const ROW_OWNER = "f.batch || chr(10) || f.line";
/** SQL for the checksum of the input of a row of `f`. */
export const ROW_SUM = checksumSql("f.input", ROW_OWNER);
const FAILED = `SELECT f.number, f.line, f.quarantined, f.input, f.error, ${isIntactSql("f.input", ROW_OWNER, "f.input_sum")} AS intact
  FROM outlive.row_failures f WHERE f.batch = $1 AND f.round = $2 AND f.number = ANY ($3::bigint[]) ORDER BY f.number, f.line, f.ord`;

interface FailedColumns {
  readonly number: number;
  readonly line: number;
  readonly quarantined: boolean;
  readonly input: string;
  readonly error: string;
  readonly intact: boolean;
}

async function failedBlocks(
  session: Session,
  id: string,
  round: number,
  after: number | null,
  limit: number,
): Promise<FailedBlock[]> {
  const bad = await session.rows<BadColumns>(BAD, [id, round, after ?? -1, limit]);
  return (await withFailures(session, round, bad)).map(([block, rows]) => ({
    number: block.number,
    rows,
    whole: wholeEnd(block),
  }));
}

async function keptBlocks(
  session: Session,
  id: string,
  round: number,
  after: number | null,
  limit: number,
): Promise<KeptBlock[]> {
  const all = await session.rows<BadColumns>(ALL, [id, round, after ?? -1, limit]);
  return (await withFailures(session, round, all)).map(([{ number, state, input, marks, error }, rows]) => ({
    number,
    rows,
    job: state === null ? null : keptJob(state, input!, marks, error),
  }));
}

async function withFailures(
  session: Session,
  round: number,
  blocks: readonly BadColumns[],
): Promise<(readonly [BadColumns, FailedBlock["rows"]])[]> {
  if (blocks.length === 0) return [];
  const numbers = list(blocks.map(({ number }) => number));
  const rows = await session.rows<FailedColumns>(FAILED, [blocks[0]!.batch, round, numbers]);
  return blocks.map((block) => [block, rows.filter(({ number }) => number === block.number).map(failedRow)]);
}

function wholeEnd({ marks, state, input, error }: BadColumns): FailedBlock["whole"] {
  if (input === null) return null;
  return {
    input,
    marks,
    error: error === null ? null : storedError(error),
    as: state === STATE.dead ? "failed" : "quarantined",
  };
}

function failedRow({ line, quarantined, input, error, intact }: FailedColumns): FailedBlock["rows"][number] {
  return {
    line,
    input,
    error: intact ? storedError(error) : damagedRow(line),
    as: quarantined ? "quarantined" : "failed",
  };
}

function damagedRow(line: number): StoredError {
  return {
    name: "Corrupt",
    code: ErrorCode.corrupt,
    message: `the stored input of line ${line} does not match its checksum: the store was damaged. Do not run it again; submit the row itself.`,
  };
}

/** SQL: the owner of a part of an output. */
export const PART_OWNER = ["o.batch", "o.round", "o.number", "o.file"].join(" || chr(10) || ");
const PART_IS_INTACT = isIntactSql("o.texts", PART_OWNER, "o.texts_sum");
/** The numbers of one block more than are asked for: it says whether there are more. */
const PAGE = `WITH page AS MATERIALIZED (
    SELECT DISTINCT o.batch, o.number FROM outlive.row_outputs o
    WHERE o.batch = (SELECT seq FROM outlive.batch_state WHERE id = $1) AND o.file = $2 AND o.round = $3 AND o.number > $4 ORDER BY o.number LIMIT $5::int + 1)
  SELECT o.number, CASE WHEN ${PART_IS_INTACT} THEN o.texts END AS texts, (SELECT count(*) > $5 FROM page) AS more
  FROM (SELECT * FROM page ORDER BY number LIMIT $5) p JOIN outlive.row_outputs o ON o.batch = p.batch AND o.file = $2 AND o.round = $3 AND o.number = p.number
  ORDER BY o.number, o.ord`;

async function outputPage(
  session: Session,
  { id, round }: { readonly id: string; readonly round: number },
  file: string,
  after: number | null,
  limit: number,
): Promise<OutputPage> {
  const parts = await session.rows<{ number: number; texts: string | null; more: boolean }>(PAGE, [
    id,
    file,
    round,
    after ?? -1,
    limit,
  ]);
  const blocks: string[][] = [];
  let last: number | null = null;
  for (const { number, texts: part } of parts) {
    if (number !== last) blocks.push([]);
    last = number;
    if (part === null) throw damagedPart(id, file, round, number);
    blocks.at(-1)!.push(part);
  }
  return { blocks, next: parts[0]?.more ? last : null };
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
const FILES = `WITH RECURSIVE own AS (SELECT seq FROM outlive.batch_state WHERE id = $1), files AS (
    (SELECT o.file FROM outlive.row_outputs o JOIN own ON o.batch = own.seq ORDER BY o.file LIMIT 1)
    UNION ALL SELECT (SELECT o.file FROM outlive.row_outputs o WHERE o.batch = (SELECT seq FROM own) AND o.file > f.file ORDER BY o.file LIMIT 1)
      FROM files f WHERE f.file IS NOT NULL)
  SELECT file FROM files WHERE file IS NOT NULL ORDER BY file`;

async function outputFiles(session: Session, id: string): Promise<string[]> {
  return (await session.rows<{ file: string }>(FILES, [id])).map(({ file }) => file);
}
