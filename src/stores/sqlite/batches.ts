// Batches as the port wants them: rows come in as blocks, a batch is sealed, aborted, ended once, opened again, deleted. Each verb is one small
// transaction or one read. What rows come to is written with the rows (blocks.ts).
import { BY_HAND } from "../../job/transitions.ts";
import {
  BATCH_STATES,
  type BatchDraft,
  type BatchRow,
  type BatchState,
  type BlockDraft,
  NO_ROWS,
  type Tolerance,
} from "../../job/batches.ts";
import { ErrorCode, OutliveError, type StoredError } from "../../job/errors.ts";
import type { JobDraft } from "../../job/job.ts";
import type { AppendAnswer, BatchEnd, Batches, BatchFilter, FailedBlock, OpenedBatch, OutputPage } from "../batches.ts";
import { LANE, NEVER_DUE, STATE, storedError } from "../rows.ts";
import { addToSums, countLeft, keepFailure, partOwner, rowOwner } from "./blocks.ts";
import { checksumOf, isIntact } from "./checksums.ts";
import type { Database } from "./database.ts";
import { demandKinds, insertJobs, type Kinds } from "./enqueue.ts";
import { relocate } from "./keys.ts";
import { applyByHand } from "./operate.ts";
import type { Purging } from "./purge.ts";
import type { FileAccess } from "./writer.ts";

/** The state of a batch as it is stored. */
const AS = Object.fromEntries(BATCH_STATES.map((state, code) => [state, code])) as Readonly<Record<BatchState, number>>;
const RELEASE = 1;
const CANCEL = 2;
/** The two moments of a pace are at most so far apart, as long as sums are added up at all. */
const PACE_MS = 10_000;

const ENDED_ROWS = "(succeeded + failed + quarantined + aborted)";
/** Can end, and will by the next that looks. */
const IS_COMPLETE = `state IN (${AS.sealed}, ${AS.aborting}) AND ${ENDED_ROWS} = rows`;

export function batches({ db, now, write, read }: FileAccess, kinds: Kinds, purging: Purging): Batches {
  const folding = new Folding(db);
  return {
    open: (draft) => write(() => openBatch(db, kinds, draft, now())),
    append: (batch, round, blocks) => write(() => append(db, kinds, batch, round, blocks, now())),
    seal: (batch, round) => write(() => seal(db, batch, round, now())),
    abort: (batch) => write(() => abort(db, batch)),
    async tend(limit) {
      // Asked now and then, and nearly always in vain: then nothing is written.
      if ((await read(() => db.sql(NEXT_TO_TEND).get())) === undefined) return false;
      return write(() => tend(db, limit, now()));
    },
    get: (ids) => read(() => getBatches(db, ids)),
    list: (filter, limit, after) => read(() => listBatches(db, filter, limit, after)),
    async fold(limit) {
      if ((await read(() => db.sql(ANY_TOUCHED).get())) === undefined) return [];
      return write(() => folding.fold(limit, now()));
    },
    finish: (end) => write(() => finish(db, kinds, end, now())),
    failures: (batch, round, after, limit) => read(() => failedBlocks(db, batch, round, after, limit)),
    outputs: (batch, round, file, after, limit) => read(() => outputPage(db, batch, round, file, after, limit)),
    outputFiles: (batch) => read(() => outputFiles(db, batch)),
    setOutputs: (batch, outputs) =>
      write(() => {
        db.sql(
          "UPDATE outlive_batch_texts SET outputs = ? WHERE batch = (SELECT seq FROM outlive_batches WHERE id = ?)",
        ).run(outputs, batch);
      }),
    reopen: (batch, round, draft) => write(() => reopen(db, kinds, batch, round, draft, now())),
    async purge(endedOlderThanMs, limit) {
      const before = now() - endedOlderThanMs;
      if (!(await read(() => hasOld(db, before)))) return { batches: 0, more: false };
      return write(() => purge(db, purging, before, limit));
    },
  };
}

// ---- reading

interface BatchColumns {
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

const SELECT = `SELECT b.*, k.name AS kind, t.context, t.context_sum, t.outputs FROM outlive_batches b
  JOIN outlive_kinds k ON k.id = b.kind JOIN outlive_batch_texts t ON t.batch = b.seq`;
const BY_ID = `${SELECT} WHERE b.id = ?`;

function batchRow(row: BatchColumns): BatchRow {
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

interface PlainBatch {
  readonly seq: number;
  readonly state: number;
  readonly round: number;
  readonly held: number;
}

function find(db: Database, id: string): PlainBatch | undefined {
  return db.sql("SELECT seq, state, round, held FROM outlive_batches WHERE id = ?").get(id) as unknown as
    | PlainBatch
    | undefined;
}

// ---- rows come in

function openBatch(db: Database, kinds: Kinds, draft: BatchDraft, now: number): OpenedBatch {
  demandKinds(kinds, [draft]);
  const kind = kinds.idOf(draft.kind)!;
  const { id, key, context, priority, blockRows, tolerance, held } = draft;
  const { changes, lastInsertRowid } = db
    .sql(
      "INSERT INTO outlive_batches (id, kind, key, state, held, priority, block_rows, tolerance, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    )
    .run(
      id,
      kind,
      key,
      AS.open,
      held ? 1 : 0,
      priority,
      blockRows,
      tolerance === null ? null : JSON.stringify(tolerance),
      now,
    );
  if (changes === 1)
    db.sql("INSERT INTO outlive_batch_texts (batch, context, context_sum) VALUES (?, ?, ?)").run(
      lastInsertRowid,
      context,
      checksumOf(context, id),
    );
  // The same id: its answer was lost, and it is asked again.
  const row = db
    .sql(`${SELECT} WHERE b.id = ?1 OR (b.kind = ?2 AND b.key = ?3) ORDER BY b.id = ?1 DESC LIMIT 1`)
    .get(id, kind, key) as unknown as BatchColumns;
  return { created: changes === 1, batch: batchRow(row) };
}

function append(
  db: Database,
  kinds: Kinds,
  id: string,
  round: number,
  blocks: readonly BlockDraft[],
  now: number,
): AppendAnswer {
  const batch = find(db, id);
  if (batch === undefined) return { is: "missing" };
  if (batch.state !== AS.open || batch.round !== round) return { is: "closed", state: BATCH_STATES[batch.state]! };
  const known = new Set<number>();
  const added = blocks.filter(({ number }) => {
    if (known.has(number) || db.sql(BLOCK_THERE).get(batch.seq, round, number) !== undefined) return false;
    known.add(number);
    return true;
  });
  insertBlockJobs(db, kinds, batch, added, now);
  let rows = 0;
  let rejected = 0;
  for (const block of added) {
    const place = { batch: batch.seq, round, number: block.number };
    db.sql("INSERT INTO outlive_blocks (job, batch, round, number, rows, bad) VALUES (?, ?, ?, ?, ?, ?)").run(
      block.job === null ? withoutJob(db) : rowOf(db, block.job),
      place.batch,
      place.round,
      place.number,
      block.rows,
      block.rejected.length > 0 ? 1 : 0,
    );
    for (const row of block.rejected) keepFailure(db, place, row, null);
    rows += block.rows + block.rejected.length;
    rejected += block.rejected.length;
  }
  if (added.length > 0) {
    db.sql("UPDATE outlive_batches SET rows = rows + ?, blocks = blocks + ? WHERE seq = ?").run(
      rows,
      added.length,
      batch.seq,
    );
    if (rejected > 0) addToSums(db, batch.seq, round, { ...NO_ROWS, failed: rejected });
  }
  return { is: "appended", blocks: added.length, rows };
}

const BLOCK_THERE = "SELECT 1 FROM outlive_blocks WHERE batch = ? AND round = ? AND number = ?";

function insertBlockJobs(
  db: Database,
  kinds: Kinds,
  { held }: PlainBatch,
  blocks: readonly BlockDraft[],
  now: number,
): void {
  const jobs = blocks.flatMap(({ job }) => job ?? []);
  const drafts = held === 1 ? jobs.map((job) => ({ ...job, runAt: NEVER_DUE, delayMs: 0 })) : jobs;
  const refused = insertJobs(db, kinds, drafts, now, null, true).find(({ created }) => !created);
  if (refused !== undefined)
    throw new OutliveError(
      ErrorCode.wrongState,
      `There is a job ${refused.id} already, and it is not a block of this batch.`,
      "Give jobs ids of another form than those of blocks, BATCH:ROUND:NUMBER. Nothing was written.",
      { jobId: refused.id },
    );
}

function rowOf(db: Database, { id }: JobDraft): number {
  return (db.sql("SELECT seq FROM outlive_jobs WHERE id = ?").get(id) as { seq: number }).seq;
}

/** What stands for the job of a block that has none. */
function withoutJob(db: Database): number {
  const { lowest } = db.sql("SELECT min(job) AS lowest FROM outlive_blocks").get() as { lowest: number | null };
  return Math.min(0, lowest ?? 0) - 1;
}

function seal(db: Database, id: string, round: number, now: number): BatchState | "missing" {
  db.sql(
    `UPDATE outlive_batches SET state = ${AS.sealed}, sealed_at = ?, touched = 1, tending = CASE WHEN held = 1 THEN ${RELEASE} ELSE 0 END, tended = -1, held = 0
     WHERE id = ? AND state = ${AS.open} AND round = ?`,
  ).run(now, id, round);
  return stateOf(db, id);
}

function abort(db: Database, id: string): BatchState | "missing" {
  db.sql(
    `UPDATE outlive_batches SET state = ${AS.aborting}, touched = 1, tending = ${CANCEL}, tended = -1, held = 0
     WHERE id = ? AND state IN (${AS.open}, ${AS.sealed})`,
  ).run(id);
  return stateOf(db, id);
}

function stateOf(db: Database, id: string): BatchState | "missing" {
  const batch = find(db, id);
  return batch === undefined ? "missing" : BATCH_STATES[batch.state]!;
}

// ---- what is to be done to many blocks

const NEXT_TO_TEND = "SELECT seq, round, tending, tended FROM outlive_batches WHERE tending > 0 ORDER BY seq LIMIT 1";
const BLOCKS_AFTER = `SELECT b.number, j.seq, j.id, j.state, j.lane, j.run_at, j.fence FROM outlive_blocks b LEFT JOIN outlive_jobs j ON j.seq = b.job
  WHERE b.batch = ? AND b.round = ? AND b.number > ? ORDER BY b.number LIMIT ? + 0`;

interface TendedColumns {
  readonly number: number;
  readonly seq: number | null;
  readonly id: string;
  readonly state: number;
  readonly lane: number;
  readonly run_at: number | null;
  readonly fence: number;
}

/**
 * Goes through the blocks of one batch once. A block that is asked to end can't be queued again, and none is added to a batch that is not open: so none
 * is missed.
 */
function tend(db: Database, limit: number, now: number): boolean {
  const batch = db.sql(NEXT_TO_TEND).get() as
    | { seq: number; round: number; tending: number; tended: number }
    | undefined;
  if (batch === undefined) return false;
  const blocks = db
    .sql(BLOCKS_AFTER)
    .all(batch.seq, batch.round, batch.tended, limit) as unknown as readonly TendedColumns[];
  for (const block of blocks) {
    if (block.seq === null || block.state >= STATE.succeeded) continue;
    if (batch.tending === CANCEL) applyByHand(db, block.id, BY_HAND.cancel, "system/batches", now);
    else release(db, block, now);
  }
  const isDone = blocks.length < limit;
  db.sql("UPDATE outlive_batches SET tending = ?, tended = ? WHERE seq = ?").run(
    isDone ? 0 : batch.tending,
    blocks.at(-1)?.number ?? batch.tended,
    batch.seq,
  );
  return db.sql(NEXT_TO_TEND).get() !== undefined;
}

/** A block that waits for something else, or has begun, has not been held. */
function release(db: Database, { seq, state, lane, run_at, fence }: TendedColumns, now: number): void {
  if (state !== STATE.queued || lane !== LANE.delayed || run_at !== NEVER_DUE || fence > 0) return;
  db.sql("UPDATE outlive_jobs SET lane = ?, run_at = NULL WHERE seq = ?").run(LANE.open, seq);
  relocate(db, seq!, now);
}

// ---- the end

const ANY_TOUCHED = "SELECT 1 FROM outlive_batches WHERE touched = 1 LIMIT 1";

/** Sums are written with the rows: what is left to do is to say which batches have changed, and how fast. */
class Folding {
  readonly #db: Database;
  /** Where the next call goes on: batches that nobody manages to end must not hide the others. */
  #after = 0;

  constructor(db: Database) {
    this.#db = db;
  }

  fold(limit: number, now: number): string[] {
    const rows = this.#touched(this.#after, limit);
    if (rows.length < limit && this.#after > 0) {
      const known = new Set(rows.map(({ seq }) => seq));
      rows.push(...this.#touched(0, limit - rows.length).filter(({ seq }) => !known.has(seq)));
    }
    this.#after = rows.length < limit ? 0 : rows.at(-1)!.seq;
    for (const { seq } of rows)
      this.#db
        .sql(
          `UPDATE outlive_batches SET touched = CASE WHEN ${IS_COMPLETE} THEN 1 ELSE 0 END,
             pace_from_at = CASE WHEN pace_to_at IS NULL THEN created_at WHEN ?1 - pace_from_at > ${PACE_MS} THEN pace_to_at ELSE pace_from_at END,
             pace_from_rows = CASE WHEN pace_to_at IS NULL THEN 0 WHEN ?1 - pace_from_at > ${PACE_MS} THEN pace_to_rows ELSE pace_from_rows END,
             pace_to_at = ?1, pace_to_rows = ${ENDED_ROWS}
           WHERE seq = ?2`,
        )
        .run(now, seq);
    return rows.map(({ id }) => id);
  }

  #touched(after: number, limit: number): { readonly seq: number; readonly id: string }[] {
    return this.#db
      .sql("SELECT seq, id FROM outlive_batches WHERE touched = 1 AND seq > ? ORDER BY seq LIMIT ? + 0")
      .all(after, limit) as unknown as { seq: number; id: string }[];
  }
}

/** Rows that have ended stay ended, so the decision holds; that they are all is checked once more, for whatever has decided. */
function finish(db: Database, kinds: Kinds, { batch, round, from, to, follow }: BatchEnd, now: number): boolean {
  const { changes } = db
    .sql(
      `UPDATE outlive_batches SET state = ?, ended_at = ?, touched = 0, tending = 0 WHERE id = ? AND round = ? AND state = ? AND ${IS_COMPLETE}`,
    )
    .run(AS[to], now, batch, round, AS[from]);
  if (changes === 0) return false;
  insertJobs(db, kinds, follow, now);
  return true;
}

const OVER = `state IN (${AS.completed}, ${AS.failed}, ${AS.aborted})`;

function reopen(db: Database, kinds: Kinds, id: string, round: number, draft: JobDraft, now: number): boolean {
  const { changes } = db
    .sql(
      `UPDATE outlive_batches SET state = ${AS.open}, round = round + 1, rows = 0, blocks = 0, sealed_at = NULL, ended_at = NULL, tended = -1,
         earlier_succeeded = earlier_succeeded + succeeded, earlier_failed = earlier_failed + failed,
         earlier_quarantined = earlier_quarantined + quarantined, earlier_aborted = earlier_aborted + aborted,
         succeeded = 0, failed = 0, quarantined = 0, aborted = 0,
         pace_from_at = NULL, pace_from_rows = NULL, pace_to_at = NULL, pace_to_rows = NULL
       WHERE id = ? AND round = ? AND ${OVER}`,
    )
    .run(id, round);
  if (changes === 0) return false;
  insertJobs(db, kinds, [draft], now);
  return true;
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
  const batch = find(db, id);
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
  const batch = find(db, id);
  if (batch === undefined) return { blocks: [], next: null };
  const parts = db
    .sql(
      `SELECT number, texts, texts_sum FROM outlive_row_outputs
       WHERE batch = ? AND file = ? AND round = ? AND number > ? ORDER BY number, ord`,
    )
    .iterate(batch.seq, file, round, after ?? -1) as Iterable<unknown> as Iterable<{
    number: number;
    texts: string;
    texts_sum: number;
  }>;
  const blocks: string[][] = [];
  let at: number | null = null;
  for (const { number, texts, texts_sum } of parts) {
    if (number !== at) {
      if (blocks.length === limit) return { blocks, next: at };
      blocks.push([]);
      at = number;
    }
    if (!isIntact(texts, partOwner(batch.seq, round, number, file), texts_sum))
      throw damagedPart(id, file, { round, number });
    blocks.at(-1)!.push(texts);
  }
  return { blocks, next: null };
}

function damagedPart(batch: string, file: string, { round, number }: { round: number; number: number }): OutliveError {
  return new OutliveError(
    ErrorCode.corrupt,
    `What block ${number} of round ${round} of batch ${batch} wrote to ${file} does not match its checksum: the store was damaged.`,
    "Put a backup back, or submit the rows of that block as another batch. Look for more: outlive check --integrity.",
    { batch, round, block: number, file },
  );
}

/** One step in the index for each file, however much was written to it. */
function outputFiles(db: Database, id: string): string[] {
  const batch = find(db, id);
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

// ---- retention

// The job that follows the end (`doneDraft`) has ended as long ago, or is gone.
const OLD = `SELECT b.seq FROM outlive_batches b WHERE b.ended_at IS NOT NULL AND b.ended_at < ?1 AND NOT EXISTS
  (SELECT 1 FROM outlive_jobs d WHERE d.id = b.id || ':done:' || b.round AND (d.state < ${STATE.succeeded} OR d.finished_at >= ?1))
  ORDER BY b.ended_at LIMIT ?2 + 0`;
const DELETED = "SELECT batch FROM outlive_deleted_batches ORDER BY batch LIMIT 1";

function hasOld(db: Database, before: number): boolean {
  return db.sql(OLD).get(before, 1) !== undefined || db.sql(DELETED).get() !== undefined;
}

/**
 * The row of a batch goes first: from then on there is no such batch, and what is left of it is known by its number. A kill anywhere leaves the rest
 * to the next call.
 */
function purge(
  db: Database,
  purging: Purging,
  before: number,
  limit: number,
): { readonly batches: number; readonly more: boolean } {
  const old = db.sql(OLD).all(before, limit) as { seq: number }[];
  for (const { seq } of old) {
    db.sql("DELETE FROM outlive_batches WHERE seq = ?").run(seq);
    db.sql("DELETE FROM outlive_batch_texts WHERE batch = ?").run(seq);
    db.sql("INSERT INTO outlive_deleted_batches (batch) VALUES (?)").run(seq);
  }
  let room = limit;
  while (room > 0) {
    const next = db.sql(DELETED).get() as { batch: number } | undefined;
    if (next === undefined) break;
    const deleted = deleteBlocks(db, purging, next.batch, room);
    if (deleted < room) db.sql("DELETE FROM outlive_deleted_batches WHERE batch = ?").run(next.batch);
    room -= deleted;
  }
  return { batches: old.length, more: hasOld(db, before) };
}

/** Returns how many: fewer than the limit, and nothing is left of it. */
function deleteBlocks(db: Database, purging: Purging, batch: number, limit: number): number {
  const blocks = db
    .sql(
      `SELECT b.job, b.round, b.number, j.seq, j.state, j.kind, j.finished_at, j.seq = (SELECT max(seq) FROM outlive_jobs) AS newest
       FROM outlive_blocks b LEFT JOIN outlive_jobs j ON j.seq = b.job WHERE b.batch = ? LIMIT ? + 0`,
    )
    .all(batch, limit) as {
    job: number;
    round: number;
    number: number;
    seq: number | null;
    state: number;
    kind: number;
    finished_at: number;
    newest: number;
  }[];
  for (const { job, round, number, seq, state, kind, finished_at, newest } of blocks) {
    db.sql("DELETE FROM outlive_blocks WHERE job = ?").run(job);
    for (const table of ["outlive_row_failures", "outlive_row_outputs"])
      db.sql(`DELETE FROM ${table} WHERE batch = ? AND round = ? AND number = ?`).run(batch, round, number);
    // One that the store keeps for a reason of its own is an ordinary job now, and goes with those.
    if (seq !== null && state >= STATE.succeeded && newest === 0) purging.deleteJob({ seq, state, kind, finished_at });
  }
  return blocks.length;
}
