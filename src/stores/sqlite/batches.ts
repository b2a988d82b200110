// Batches as the port wants them: rows come in as blocks, a batch is sealed, aborted, ended once, opened again, deleted. Each verb is one small
// transaction or one read. What rows come to is written with the rows (blocks.ts).
import type { AuditEntry } from "../../job/audit.ts";
import {
  BATCH_STATES,
  type BatchDraft,
  type BatchState,
  type BlockDraft,
  NO_ROWS,
  takesBlocks,
  takesRows,
  totalOf,
} from "../../job/batches.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { JobDraft } from "../../job/job.ts";
import { blocksOfRows, nowOf, type SubmittableBatch, type Submitted } from "../../job/submit.ts";
import { BY_HAND } from "../../job/transitions.ts";
import type { AppendAnswer, BatchEnd, Batches, OpenedBatch } from "../batches.ts";
import { LANE, NEVER_DUE, STATE } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import { AS, type BatchColumns, batchReads, batchRow, findBatch, type PlainBatch, SELECT } from "./batch-reads.ts";
import { addToSums, keepFailure } from "./blocks.ts";
import { checksumOf } from "./checksums.ts";
import type { Database } from "./database.ts";
import { demandKinds, insertJobs, type Kinds } from "./enqueue.ts";
import { relocate } from "./keys.ts";
import { applyByHand } from "./operate.ts";
import type { Purging } from "./purge.ts";
import type { FileAccess } from "./writer.ts";

const RELEASE = 1;
const CANCEL = 2;
/** The two moments of a pace are at most so far apart, as long as sums are added up at all. */
const PACE_MS = 10_000;

const ENDED_ROWS = "(succeeded + failed + quarantined + aborted)";
/** A later round that is aborted while it is filled (`isFilling`) is sealed when it has all of its rows. */
const HAS_ALL = "(round = 1 OR sealed_at IS NOT NULL)";
/** Can end, and will by the next that looks. */
const IS_COMPLETE = `state IN (${AS.sealed}, ${AS.aborting}) AND ${ENDED_ROWS} = rows AND ${HAS_ALL}`;

/** Begins a piece of work that holds the write lock, and the thread: whether it has taken long enough is asked after each block. */
export type Piece = () => () => boolean;

export function batches(access: FileAccess, kinds: Kinds, purging: Purging, piece: Piece): Batches {
  const { db, now, write, read } = access;
  const folding = new Folding(db);
  return {
    ...batchReads(access),
    open: (draft, entry) =>
      write(() => {
        const opened = openBatch(db, kinds, draft, now());
        writeAudit(db, entry, opened.created ? 1 : 0, now());
        return opened;
      }),
    append: (batch, round, blocks, asNext = false) =>
      write(() => append(db, kinds, batch, round, blocks, asNext, now())),
    seal: (batch, round, entry) => write(() => seal(db, batch, round, entry, now())),
    abort: (batch, entry) => write(() => abort(db, batch, entry, now())),
    async tend(limit) {
      // Asked now and then, and there is nearly always nothing: then nothing is written.
      if ((await read(() => db.sql(NEXT_TO_TEND).get())) === undefined) return false;
      return write(() => tend(db, limit, now(), piece()));
    },
    async fold(limit) {
      if ((await read(() => db.sql(ANY_TOUCHED).get())) === undefined) return [];
      return write(() => folding.fold(limit, now()));
    },
    finish: (end) => write(() => finish(db, kinds, end, now())),
    setOutputs: (batch, round, outputs) =>
      write(() => {
        db.sql(
          "UPDATE outlive_batch_texts SET outputs = ? WHERE batch = (SELECT seq FROM outlive_batches WHERE id = ? AND round = ?)",
        ).run(outputs, batch, round);
      }),
    reopen: (batch, round, draft, entry) =>
      write(() => {
        const isOpen = reopen(db, kinds, batch, round, draft, now());
        writeAudit(db, entry, isOpen ? 1 : 0, now());
        return isOpen;
      }),
    async purge(endedOlderThanMs, limit) {
      const before = now() - endedOlderThanMs;
      if (!(await read(() => hasOld(db, before)))) return { batches: 0, more: false };
      return write(() => purge(db, purging, { before, limit, now: now() }, piece()));
    },
  };
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
  asNext: boolean,
  now: number,
): AppendAnswer {
  const batch = findBatch(db, id);
  if (batch === undefined) return { is: "missing" };
  const state = BATCH_STATES[batch.state]!;
  if (!takesBlocks({ state, round: batch.round, sealedAt: batch.sealed_at }, round, blocks, asNext))
    return { is: "closed", state };
  if (asNext && batch.blocks !== blocks[0]?.number)
    return { is: "moved", blocks: batch.blocks, rows: batch.rows, added: 0 };
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

function seal(
  db: Database,
  id: string,
  round: number,
  entry: AuditEntry | undefined,
  now: number,
): BatchState | "missing" {
  const { changes } = db
    .sql(
      `UPDATE outlive_batches SET state = CASE state WHEN ${AS.open} THEN ${AS.sealed} ELSE state END, sealed_at = ?, touched = 1,
         tending = CASE WHEN held = 1 THEN ${RELEASE} ELSE tending END, tended = -1, held = 0
       WHERE id = ? AND round = ? AND (state = ${AS.open} OR state = ${AS.aborting} AND NOT ${HAS_ALL})`,
    )
    .run(now, id, round);
  writeAudit(db, entry, Number(changes), now);
  return stateOf(db, id);
}

function abort(db: Database, id: string, entry: AuditEntry | undefined, now: number): BatchState | "missing" {
  const { changes } = db
    .sql(
      `UPDATE outlive_batches SET state = ${AS.aborting}, touched = 1, tending = ${CANCEL}, tended = -1, held = 0
       WHERE id = ? AND state IN (${AS.open}, ${AS.sealed})`,
    )
    .run(id);
  writeAudit(db, entry, Number(changes), now);
  return stateOf(db, id);
}

function stateOf(db: Database, id: string): BatchState | "missing" {
  const batch = findBatch(db, id);
  return batch === undefined ? "missing" : BATCH_STATES[batch.state]!;
}

/** A whole batch in the user's transaction: opened, filled and sealed. All blocks are cut before anything is written. */
export function submitWithin(
  db: Database,
  kinds: Kinds,
  kind: SubmittableBatch,
  { draft, rows }: { readonly draft: BatchDraft; readonly rows: readonly unknown[] },
  now: number,
): Submitted {
  const blocks = nowOf(blocksOfRows(kind, draft, rows), kind.name);
  const { created, batch } = openBatch(db, kinds, draft, now);
  const { id, round } = batch;
  if (!takesRows(batch)) return { id, rows: totalOf(batch), alreadyThere: totalOf(batch), created };
  const missing = created ? blocks : nowOf(blocksOfRows(kind, batch, rows, batch.blocks), kind.name);
  const answer = append(db, kinds, id, round, missing, false, now);
  seal(db, id, round, undefined, now);
  const added = answer.is === "appended" ? answer.rows : 0;
  return { id, rows: batch.rows + added, alreadyThere: batch.rows, created };
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
function tend(db: Database, limit: number, now: number, late: () => boolean): boolean {
  const batch = db.sql(NEXT_TO_TEND).get() as
    | { seq: number; round: number; tending: number; tended: number }
    | undefined;
  if (batch === undefined) return false;
  const blocks = db
    .sql(BLOCKS_AFTER)
    .all(batch.seq, batch.round, batch.tended, limit) as unknown as readonly TendedColumns[];
  let done = 0;
  for (const block of blocks) {
    if (done > 0 && late()) break;
    done++;
    if (block.seq === null || block.state >= STATE.succeeded) continue;
    if (batch.tending === CANCEL) applyByHand(db, block.id, BY_HAND.cancel, "system/batches", now);
    else release(db, block, now);
  }
  db.sql("UPDATE outlive_batches SET tending = ?, tended = ? WHERE seq = ?").run(
    done < limit && done === blocks.length ? 0 : batch.tending,
    blocks[done - 1]?.number ?? batch.tended,
    batch.seq,
  );
  return db.sql(NEXT_TO_TEND).get() !== undefined;
}

/** A block that waits for something else, or has begun, has not been held. */
function release(db: Database, { seq, state, lane, run_at, fence }: TendedColumns, now: number): void {
  if (state !== STATE.queued || lane !== LANE.delayed || run_at !== NEVER_DUE || fence > 0) return;
  db.sql("UPDATE outlive_jobs SET lane = ?, run_at = NULL WHERE seq = ?").run(LANE.open, seq);
  relocate(db, [seq!], now);
}

// ---- the end

const ANY_TOUCHED = "SELECT 1 FROM outlive_batches WHERE touched = 1 LIMIT 1";

/** Sums are written with the rows: what is left to do is to say which batches have changed, and how fast. */
class Folding {
  readonly #db: Database;
  /** Where the next call goes on: batches that can't be ended must not hide the others. */
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

/** Rows that have ended stay ended, so the decision holds; that they are all is checked again, for whatever has decided. */
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

// ---- retention

// The job that follows the end (`doneDraft`) has ended as long ago, or is gone.
const OLD = `SELECT b.seq FROM outlive_batches b WHERE b.ended_at IS NOT NULL AND b.ended_at < ?1 AND NOT EXISTS
  (SELECT 1 FROM outlive_jobs d WHERE d.id = b.id || ':done:' || b.round AND (d.state < ${STATE.succeeded} OR d.finished_at >= ?1))
  ORDER BY b.ended_at LIMIT ?2 + 0`;
const DELETED = "SELECT batch FROM outlive_deleted_batches ORDER BY batch LIMIT 1";

/** Blocks that are deleted between two looks at the time. */
const BLOCKS_AT_ONCE = 50;

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
  { before, limit, now }: { readonly before: number; readonly limit: number; readonly now: number },
  late: () => boolean,
): { readonly batches: number; readonly more: boolean } {
  const old = db.sql(OLD).all(before, limit) as { seq: number }[];
  for (const { seq } of old) {
    db.sql("DELETE FROM outlive_batches WHERE seq = ?").run(seq);
    db.sql("DELETE FROM outlive_batch_texts WHERE batch = ?").run(seq);
    db.sql("INSERT INTO outlive_deleted_batches (batch) VALUES (?)").run(seq);
  }
  let room = limit;
  while (room > 0 && !(room < limit && late())) {
    const next = db.sql(DELETED).get() as { batch: number } | undefined;
    if (next === undefined) break;
    const few = Math.min(room, BLOCKS_AT_ONCE);
    const deleted = deleteBlocks(db, purging, next.batch, few, now);
    if (deleted < few) db.sql("DELETE FROM outlive_deleted_batches WHERE batch = ?").run(next.batch);
    room -= deleted;
  }
  return { batches: old.length, more: hasOld(db, before) };
}

/**
 * Returns how many: fewer than the limit, and nothing is left of it. A block may have marked all of its rows and not have ended itself, for instance
 * because its worker died in between: it is cancelled, because its next attempt would find no batch.
 */
function deleteBlocks(db: Database, purging: Purging, batch: number, limit: number, now: number): number {
  const blocks = db
    .sql(
      `SELECT b.job, b.round, b.number, j.id, j.seq, j.state, j.kind, j.finished_at, j.seq = (SELECT max(seq) FROM outlive_jobs) AS newest
       FROM outlive_blocks b LEFT JOIN outlive_jobs j ON j.seq = b.job WHERE b.batch = ? LIMIT ? + 0`,
    )
    .all(batch, limit) as {
    job: number;
    round: number;
    number: number;
    id: string;
    seq: number | null;
    state: number;
    kind: number;
    finished_at: number;
    newest: number;
  }[];
  for (const { job, round, number, id, seq, state, kind, finished_at, newest } of blocks) {
    db.sql("DELETE FROM outlive_blocks WHERE job = ?").run(job);
    for (const table of ["outlive_row_failures", "outlive_row_outputs"])
      db.sql(`DELETE FROM ${table} WHERE batch = ? AND round = ? AND number = ?`).run(batch, round, number);
    if (seq !== null && state < STATE.succeeded) applyByHand(db, id, BY_HAND.cancel, "system/batches", now);
    // One that the store keeps for a reason of its own is an ordinary job now, and goes with those.
    if (seq !== null && state >= STATE.succeeded && newest === 0) purging.deleteJob({ seq, state, kind, finished_at });
  }
  return blocks.length;
}
