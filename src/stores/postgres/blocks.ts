// The rows of a block as they end by a write of the attempt or by what ends it. A row counts once: by its mark (the function end_rows), or with its
// block if that ends before it (the trigger note_end). Every caller that ends rows holds the row of the block's job.
import type { BegunRow, RowEnds } from "../../job/batches.ts";
import type { Change } from "../../job/transitions.ts";
import { INTACT_INPUT, list, type Session } from "./statements.ts";

/** Rows of one block that end. */
export interface BlockEnds {
  /** The number of the block's job. */
  readonly job: number;
  readonly ends: RowEnds;
  /** Every other row ends with this, too, so that its outputs are kept. */
  readonly withRest: boolean;
}

/** SQL: ends the rows that a parameter describes (`endsValue`). */
export const END_ROWS = (parameter: string): string => `outlive.end_rows(${parameter}::json)`;

export function endsValue(blocks: readonly BlockEnds[]): string {
  return JSON.stringify(
    blocks.map(({ job, ends: { succeeded, failed, outputs }, withRest }) => ({
      job,
      ok: succeeded,
      bad: failed.map(({ row, line, input, error, as }) => [
        row,
        line,
        as === "quarantined",
        input,
        JSON.stringify(error),
      ]),
      out: outputs.map(({ file, texts }) => [file, texts]),
      rest: withRest,
    })),
  );
}

/** In a transaction that holds the rows of the jobs, before it ends them: the end of a job counts what has no mark. */
export async function endRows(session: Session, blocks: readonly BlockEnds[]): Promise<void> {
  if (blocks.length > 0) await session.run(`SELECT ${END_ROWS("$1")}`, [endsValue(blocks)]);
}

/** What is to be written before a success: rows that are left succeed with their block, so only failed ones need a mark. Null: nothing. */
export function rowsBeforeSuccess({ rows }: Change): RowEnds | null {
  if (rows === undefined || rows.failed.length + rows.outputs.length === 0) return null;
  return { succeeded: [], failed: rows.failed, outputs: rows.outputs };
}

/** How many characters of users' texts these are. */
export function rowsCharacters(rows: RowEnds): number {
  const failed = rows.failed.reduce((sum, { input, error }) => sum + input.length + (error.stack?.length ?? 0), 0);
  return failed + rows.outputs.reduce((sum, { texts }) => sum + texts.length, 0);
}

/** Whether every row that ends by this has ended before. False also for a job that is not a block. The caller holds the row of the job. */
export async function haveEnded(session: Session, job: number, ends: RowEnds): Promise<boolean> {
  const [block] = await session.rows<{ marks: string | null }>("SELECT marks FROM outlive.blocks WHERE job = $1", [
    job,
  ]);
  const marks = block?.marks;
  if (marks === null || marks === undefined) return false;
  const rows = [...ends.succeeded, ...ends.failed.map(({ row }) => row)];
  return rows.length > 0 && rows.every((row) => marks[row] === "1");
}

// ---- what a recovery reads

/** SQL: the row that the latest attempt of the job j has begun; null: nothing says which, or that row has ended. */
export const BEGUN = `CASE WHEN j.extras THEN (SELECT b.begun FROM outlive.blocks b
  WHERE b.job = j.seq AND b.begun_fence = j.fence AND coalesce(substr(b.marks, b.begun + 1, 1), '0') = '0') END`;

interface BegunColumns {
  readonly seq: number;
  readonly begun: number | null;
}

/** By the number of the job. Nothing is read from an input that is not what was stored: then the block is judged as a whole. */
export async function begunRows(
  session: Session,
  jobs: readonly BegunColumns[],
): Promise<ReadonlyMap<number, { readonly begun: BegunRow }>> {
  const begun = jobs.filter((job): job is BegunColumns & { readonly begun: number } => job.begun !== null);
  if (begun.length === 0) return NONE;
  const inputs = await session.rows<{ seq: number; input: string | null }>(
    `SELECT j.seq, ${INTACT_INPUT} AS input FROM outlive.jobs j WHERE j.seq = ANY ($1::bigint[])`,
    [list(begun.map(({ seq }) => seq))],
  );
  const inputOf = new Map(inputs.map(({ seq, input }) => [seq, input]));
  return new Map(
    begun.flatMap(({ seq, begun: row }) => {
      const input = inputOf.get(seq);
      return input === null || input === undefined ? [] : [[seq, { begun: { row, input } }] as const];
    }),
  );
}

const NONE: ReadonlyMap<number, { readonly begun: BegunRow }> = new Map();
