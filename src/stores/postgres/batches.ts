// Batches as the port wants them: rows come in as blocks, a batch is sealed, aborted, ended once, opened again, deleted. Each verb is one small
// transaction. What changes the row of a batch locks it first, and takes its deltas only then; what runs blocks locks neither.
import {
  BATCH_STATES,
  type BatchDraft,
  type BatchState,
  type BlockDraft,
  type FailedRow,
  takesBlocks,
  takesRows,
  totalOf,
} from "../../job/batches.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { JobDraft } from "../../job/job.ts";
import { blocksOfRows, type SubmittableBatch, type Submitted } from "../../job/submit.ts";
import type { AppendAnswer, BatchEnd, Batches, OpenedBatch } from "../batches.ts";
import { LANE, NEVER_DUE, STATE } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import { AS, type BatchColumns, batchReads, batchRow, ROW_SUM, SELECT_BATCH } from "./batch-reads.ts";
import type { Connection } from "./connection.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import { cancelAll } from "./operate.ts";
import { deleteTogether, isRefusal } from "./purge.ts";
import { checksumSql, list, type Session, texts } from "./statements.ts";

const RELEASE = 1;
const CANCEL = 2;
/** The two moments of a pace are at most so far apart, as long as sums are added up at all. */
const PACE_MS = 10_000;
/** How many blocks go to the gate at once. */
const MOVED_AT_ONCE = 1_000;
/** How many deltas one fold takes. */
const DELTAS = 20_000;

/** A later round that is aborted while it is filled (`isFilling`) is sealed when it has all of its rows. */
const HAS_ALL = "(b.round = 1 OR b.sealed_at IS NOT NULL)";
const ENDED_ROWS = "b.succeeded + b.failed + b.quarantined + b.aborted";

export function batches(connection: Connection, kinds: Kinds): Batches {
  const folding = new Folding(connection);
  return {
    ...batchReads(connection),
    open: (draft, entry) =>
      connection.transaction(async (tx) => {
        const opened = await openBatch(tx, kinds, draft);
        await writeAudit(tx, entry, opened.created ? 1 : 0);
        return opened;
      }),
    append: (batch, round, blocks, asNext = false) => appendAlone(connection, kinds, batch, round, blocks, asNext),
    async seal(batch, round, entry) {
      const seal = (session: Session): Promise<{ state: number }[]> => session.rows(SEAL, [batch, round]);
      // Without an entry it is one statement, which needs no transaction around it.
      const [sealed] = entry
        ? await connection.transaction(async (tx) => {
            const found = await seal(tx);
            await writeAudit(tx, entry, found.length);
            return found;
          })
        : await seal(connection);
      return sealed ? BATCH_STATES[sealed.state]! : stateOf(connection, batch);
    },
    async abort(batch, entry) {
      const isAborting = await connection.transaction(async (tx) => {
        const found = await tx.rows(ABORT, [batch]);
        await writeAudit(tx, entry, found.length);
        return found.length > 0;
      });
      return isAborting ? "aborting" : stateOf(connection, batch);
    },
    async tend(limit) {
      // Asked now and then, and there is nearly always nothing: then no transaction is begun.
      const [next] = await connection.rows("SELECT 1 FROM outlive.batch_state WHERE tending > 0 LIMIT 1");
      return next ? connection.maintain((tx) => tend(tx, limit)) : false;
    },
    fold: (limit) => folding.fold(limit),
    finish: (end) => connection.transaction((tx) => finish(tx, kinds, end)),
    async setOutputs(batch, round, outputs) {
      const keep = "UPDATE outlive.batch_state SET outputs = $3 WHERE id = $1 AND round = $2";
      await connection.run(keep, [batch, round, outputs]);
    },
    reopen: (batch, round, draft, entry) =>
      connection.transaction(async (tx) => {
        const isOpen = await reopen(tx, kinds, batch, round, draft);
        await writeAudit(tx, entry, isOpen ? 1 : 0);
        return isOpen;
      }),
    async purge(endedOlderThanMs, limit) {
      if (!(await hasOld(connection, endedOlderThanMs))) return { batches: 0, more: false };
      const gone = await connection.maintain((tx) => purge(tx, endedOlderThanMs, limit));
      return { batches: gone, more: await hasOld(connection, endedOlderThanMs) };
    },
  };
}

// ---- rows come in

const OPEN = `INSERT INTO outlive.batch_state (id, kind, key, held, priority, block_rows, tolerance, created_at, context, context_sum)
  SELECT $1, k.id, $3, $4, $5, $6, $7, outlive.now_ms(), $8, ${checksumSql("$8", "$1")} FROM outlive.kinds k WHERE k.name = $2
  ON CONFLICT DO NOTHING RETURNING seq`;

async function openBatch(session: Session, kinds: Kinds, draft: BatchDraft): Promise<OpenedBatch> {
  const { id, kind, key, context, priority, blockRows, tolerance, held } = draft;
  await kinds.demand(session, [kind]);
  const added = await session.rows(OPEN, [
    id,
    kind,
    key,
    held,
    priority,
    blockRows,
    tolerance === null ? null : JSON.stringify(tolerance),
    context,
  ]);
  // The same id: its answer was lost, and it is asked again.
  const [row] = await session.rows<BatchColumns>(
    `${SELECT_BATCH} WHERE b.id = $1 OR (k.name = $2 AND b.key = $3) ORDER BY b.id = $1 DESC LIMIT 1`,
    [id, kind, key],
  );
  return { created: added.length === 1, batch: batchRow(row!) };
}

interface PlainBatch {
  readonly seq: number;
  readonly state: number;
  readonly round: number;
  readonly held: boolean;
  readonly blocks: number;
  readonly rows: number;
  readonly kind: number;
  readonly sealed_at: number | null;
}

const LOCK =
  "SELECT seq, state, round, held, blocks, rows, kind, sealed_at FROM outlive.batch_state WHERE id = $1 FOR NO KEY UPDATE";

interface Appending {
  readonly asNext?: boolean;
  /** In an open transaction of the user's, which may last: nothing may wait for it. */
  readonly ofUser?: boolean;
  /** Called if the first blocks of this batch go to the gate of its kind. */
  readonly joins?: (batch: PlainBatch) => void;
}

const CLEAR = `SELECT outlive.to_gate(l.kind, ${MOVED_AT_ONCE}) AS moved FROM outlive.lone_batches l WHERE l.kind = $1 AND l.batch <> $2`;

/** The first blocks of a second batch move those of the one that was alone to the gate. If it is killed here, turns do (claim.ts). */
async function appendAlone(
  connection: Connection,
  kinds: Kinds,
  batch: string,
  round: number,
  blocks: readonly BlockDraft[],
  asNext: boolean,
): Promise<AppendAnswer> {
  let joined: PlainBatch | undefined;
  const joins = (found: PlainBatch): void => void (joined = found);
  const answer = await connection.transaction((tx) => {
    joined = undefined;
    return append(tx, kinds, batch, round, blocks, { asNext, joins });
  });
  while (joined) {
    const [row] = await connection.rows<{ moved: number }>(CLEAR, [joined.kind, joined.seq]);
    if (!row || row.moved < MOVED_AT_ONCE) break;
  }
  return answer;
}

/** One submitter of a batch at a time. Who ends rows of it does not wait for that. */
async function append(
  session: Session,
  kinds: Kinds,
  id: string,
  round: number,
  blocks: readonly BlockDraft[],
  { asNext = false, ofUser = false, joins }: Appending,
): Promise<AppendAnswer> {
  const [batch] = await session.rows<PlainBatch>(LOCK, [id]);
  if (!batch) return { is: "missing" };
  const state = BATCH_STATES[batch.state]!;
  if (!takesBlocks({ state, round: batch.round, sealedAt: batch.sealed_at }, round, blocks, asNext))
    return { is: "closed", state };
  if (asNext && batch.blocks !== blocks[0]?.number)
    return { is: "moved", blocks: batch.blocks, rows: batch.rows, added: 0 };
  // After the lock: what another submitter added before is there.
  const there = await session.rows<{ number: number }>(
    "SELECT number FROM outlive.blocks WHERE batch = $1 AND round = $2 AND number = ANY ($3::bigint[])",
    [batch.seq, round, list(blocks.map(({ number }) => number))],
  );
  const known = new Set(there.map(({ number }) => number));
  const added = blocks.filter(({ number }) => !known.has(number) && known.add(number));
  if (added.length === 0) return { is: "appended", blocks: 0, rows: 0 };
  const isReady = await insertBlockJobs(session, kinds, batch, added, ofUser);
  if (!isReady && batch.blocks === 0) joins?.(batch);
  const rejected = added.flatMap(({ number, rejected: rows }) => rows.map((row) => ({ number, row })));
  await session.run(ADD_BLOCKS, [
    batch.seq,
    round,
    list(added.map(({ number }) => number)),
    texts(added.map(({ job }) => job?.id ?? null)),
    list(added.map(({ rows }) => rows)),
    list(added.map((block) => block.rejected.length > 0)),
    rejected.length,
  ]);
  if (rejected.length > 0) await keepRejected(session, batch.seq, round, rejected);
  return { is: "appended", blocks: added.length, rows: added.reduce((sum, { rows }) => sum + rows, rejected.length) };
}

const ADD_BLOCKS = `WITH added AS (
    INSERT INTO outlive.blocks (job, batch, round, number, rows, bad)
    SELECT coalesce(i.seq, -nextval('outlive.jobs_seq_seq')), $1, $2, u.number, u.rows, u.bad
    FROM unnest($3::bigint[], $4::text[], $5::int[], $6::boolean[]) AS u (number, id, rows, bad) LEFT JOIN outlive.job_ids i ON i.id = u.id
    RETURNING rows),
  delta AS (INSERT INTO outlive.batch_deltas (batch, round, failed) SELECT $1, $2, $7::int WHERE $7::int > 0)
  UPDATE outlive.batch_state b SET rows = b.rows + a.rows + $7::int, blocks = b.blocks + a.blocks
  FROM (SELECT count(*) AS blocks, coalesce(sum(rows), 0) AS rows FROM added) a WHERE b.seq = $1`;

/** So many blocks of a batch wait among the ready jobs, at most: when another batch comes, they are moved, at 40 µs each. */
const MOST_READY = 20_000;

/** The key by which the blocks take turns, if they have no other; null: they have, and wait for its limit. */
function loneKey(jobs: readonly JobDraft[]): number | null {
  const { fair, keys } = jobs[0]!;
  return fair !== undefined && keys?.length === 1 ? fair : null;
}

async function isAlone(
  session: Session,
  { seq, kind, blocks }: PlainBatch,
  jobs: readonly JobDraft[],
): Promise<boolean> {
  const key = blocks + jobs.length > MOST_READY ? null : loneKey(jobs);
  if (key === null) return false;
  const [row] = await session.rows<{ alone: boolean }>("SELECT outlive.is_alone($1, $2, $3) AS alone", [
    seq,
    kind,
    key,
  ]);
  return row!.alone;
}

/** Blocks of a batch that is alone wait as plain jobs do, all others at the gate of their kind (migrations/lone-batches.ts). Returns whether they wait so. */
async function insertBlockJobs(
  session: Session,
  kinds: Kinds,
  batch: PlainBatch,
  blocks: readonly BlockDraft[],
  ofUser: boolean,
): Promise<boolean> {
  const jobs = blocks.flatMap(({ job }) => job ?? []);
  if (jobs.length === 0) return true;
  const { held } = batch;
  const isReady = !held && !ofUser && (await isAlone(session, batch, jobs));
  const drafts = held
    ? jobs.map((job) => ({ ...job, runAt: NEVER_DUE, delayMs: 0 }))
    : isReady
      ? jobs.map(({ keys: _keys, fair: _fair, ...job }): JobDraft => job)
      : jobs;
  const enqueued = await insertJobs(session, kinds, drafts, { areBlocks: true });
  const refused = enqueued.find(({ created }) => !created);
  if (refused !== undefined)
    throw new OutliveError(
      ErrorCode.wrongState,
      `There is a job ${refused.id} already, and it is not a block of this batch.`,
      "Give jobs ids of another form than those of blocks, BATCH:ROUND:NUMBER. Nothing was written.",
      { jobId: refused.id },
    );
  return isReady;
}

const REJECT = `INSERT INTO outlive.row_failures (batch, round, number, line, quarantined, input, input_sum, error)
  SELECT f.batch, $2, f.number, f.line, false, f.input, ${ROW_SUM}, f.error
  FROM (SELECT $1::bigint AS batch, u.* FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::text[]) AS u (number, line, input, error)) f`;

async function keepRejected(
  session: Session,
  batch: number,
  round: number,
  rejected: readonly { readonly number: number; readonly row: FailedRow }[],
): Promise<void> {
  await session.run(REJECT, [
    batch,
    round,
    list(rejected.map(({ number }) => number)),
    list(rejected.map(({ row }) => row.line)),
    texts(rejected.map(({ row }) => row.input)),
    texts(rejected.map(({ row }) => JSON.stringify(row.error))),
  ]);
}

/** What one statement of a user's transaction appends. */
const BLOCKS_PER_APPEND = 40;

/** A whole batch in the user's transaction: opened, filled and sealed. Until that ends only submitters of the same key wait for it. */
export async function submitWithin(
  session: Session,
  kinds: Kinds,
  kind: SubmittableBatch,
  { draft, rows }: { readonly draft: BatchDraft; readonly rows: readonly unknown[] },
): Promise<Submitted> {
  const blocks = await blocksOfRows(kind, draft, rows);
  const { created, batch } = await openBatch(session, kinds, draft);
  const { id, round } = batch;
  if (!takesRows(batch)) return { id, rows: totalOf(batch), alreadyThere: totalOf(batch), created };
  const missing = created ? blocks : await blocksOfRows(kind, batch, rows, batch.blocks);
  let added = 0;
  for (let from = 0; from < missing.length; from += BLOCKS_PER_APPEND) {
    const answer = await append(session, kinds, id, round, missing.slice(from, from + BLOCKS_PER_APPEND), {
      ofUser: true,
    });
    if (answer.is === "appended") added += answer.rows;
  }
  await session.run(SEAL, [id, round]);
  const total = await session.rows<{ rows: number }>("SELECT rows FROM outlive.batch_state WHERE id = $1", [id]);
  return { id, rows: total[0]!.rows, alreadyThere: total[0]!.rows - added, created };
}

const SEAL = `UPDATE outlive.batch_state b SET state = CASE b.state WHEN ${AS.open} THEN ${AS.sealed} ELSE b.state END,
    sealed_at = outlive.now_ms(), touched = true, held = false, tending = CASE WHEN b.held THEN ${RELEASE} ELSE b.tending END, tended = -1, skipped = false
  WHERE b.id = $1 AND b.round = $2 AND (b.state = ${AS.open} OR b.state = ${AS.aborting} AND NOT ${HAS_ALL}) RETURNING b.state`;
const ABORT = `UPDATE outlive.batch_state SET state = ${AS.aborting}, touched = true, held = false, tending = ${CANCEL}, tended = -1, skipped = false
  WHERE id = $1 AND state IN (${AS.open}, ${AS.sealed}) RETURNING seq`;

async function stateOf(session: Session, id: string): Promise<BatchState | "missing"> {
  const [row] = await session.rows<{ state: number }>("SELECT state FROM outlive.batch_state WHERE id = $1", [id]);
  return row ? BATCH_STATES[row.state]! : "missing";
}

// ---- what is to be done to many blocks

const NEXT_TO_TEND =
  "SELECT seq, round, tending, tended, skipped FROM outlive.batch_state WHERE tending > 0 ORDER BY seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED";
const BLOCKS_AFTER = `SELECT b.number, b.job FROM outlive.blocks b WHERE b.batch = $1 AND b.round = $2 AND b.number > $3 ORDER BY b.number LIMIT $4`;
const UNFINISHED = `SELECT j.seq, j.state, j.epoch, j.fence FROM outlive.jobs j
  WHERE j.seq = ANY ($1::bigint[]) AND j.state + 0 < ${STATE.succeeded} AND NOT j.cancel_requested`;
// A block that waits for something else, or has begun, has not been held.
const MAKE_READY = `UPDATE outlive.jobs j SET lane = ${LANE.open}, run_at = NULL WHERE j.seq = ANY ($1::bigint[])
  AND j.state + 0 = ${STATE.queued} AND j.lane = ${LANE.delayed} AND j.run_at = ${NEVER_DUE} AND j.fence = 0`;

interface UnfinishedBlock {
  readonly seq: number;
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
}

/**
 * Goes through the blocks of one batch. A block whose job another transaction holds is skipped, and the blocks are gone through again: a user's
 * transaction may hold it for minutes. None is added to a batch that is not open, so none is missed.
 */
async function tend(session: Session, limit: number): Promise<boolean> {
  const [batch] = await session.rows<{
    seq: number;
    round: number;
    tending: number;
    tended: number;
    skipped: boolean;
  }>(NEXT_TO_TEND);
  if (!batch) return false;
  const blocks = await session.rows<{ number: number; job: number }>(BLOCKS_AFTER, [
    batch.seq,
    batch.round,
    batch.tended,
    limit,
  ]);
  const jobs = list(blocks.map(({ job }) => job));
  const unfinished = await session.rows<UnfinishedBlock>(UNFINISHED, [jobs]);
  const locked = await session.rows<UnfinishedBlock>(`${UNFINISHED} ORDER BY j.seq FOR UPDATE SKIP LOCKED`, [jobs]);
  const own = new Set(locked.map(({ seq }) => seq));
  const skipped = batch.skipped || unfinished.some(({ seq }) => !own.has(seq));
  if (batch.tending === CANCEL) {
    await cancelAll(session, locked, "system/batches");
    // One delta for each block: left for the next fold, 20,000 of them made a read of the batch take 9 ms.
    await session.run(FOLD_ONE, [batch.seq]);
  } else if (locked.length > 0) await session.run(MAKE_READY, [list([...own])]);
  const isAtEnd = blocks.length < limit;
  await session.run("UPDATE outlive.batch_state SET tending = $2, tended = $3, skipped = $4 WHERE seq = $1", [
    batch.seq,
    isAtEnd && !skipped ? 0 : batch.tending,
    isAtEnd ? -1 : blocks.at(-1)!.number,
    skipped && !isAtEnd,
  ]);
  // What is only locked is left for the next time, not tried again at once.
  if (!isAtEnd) return true;
  const [next] = await session.rows("SELECT 1 FROM outlive.batch_state WHERE tending > 0 AND seq <> $1 LIMIT 1", [
    batch.seq,
  ]);
  return next !== undefined;
}

// ---- the end

const ANY = `SELECT EXISTS (SELECT 1 FROM outlive.batch_deltas) OR EXISTS (SELECT 1 FROM outlive.batch_state WHERE touched) AS any`;

/** Batches with a mark or with deltas, in their order: one step in an index for each of those. */
const CANDIDATES = `WITH RECURSIVE own AS (
    (SELECT d.batch FROM outlive.batch_deltas d WHERE d.batch > $1 ORDER BY d.batch LIMIT 1)
    UNION ALL SELECT (SELECT d.batch FROM outlive.batch_deltas d WHERE d.batch > o.batch ORDER BY d.batch LIMIT 1) FROM own o WHERE o.batch IS NOT NULL)
  SELECT c.seq FROM (
    SELECT seq FROM (SELECT b.seq FROM outlive.batch_state b WHERE b.touched AND b.seq > $1 ORDER BY b.seq LIMIT $2) t
    UNION SELECT batch FROM (SELECT o.batch FROM own o WHERE o.batch IS NOT NULL LIMIT $2) d) c
  ORDER BY c.seq LIMIT $2`;

const LOCK_ALL =
  "SELECT seq FROM outlive.batch_state WHERE seq = ANY ($1::bigint[]) ORDER BY seq FOR NO KEY UPDATE SKIP LOCKED";

const SUMS =
  "sum(succeeded) AS succeeded, sum(failed) AS failed, sum(quarantined) AS quarantined, sum(aborted) AS aborted";
const ADDED = (column: string): string => `${column} = o.${column} + coalesce(s.${column}, 0)`;
const ENDED_THEN =
  "(o.succeeded + o.failed + o.quarantined + o.aborted + coalesce(s.succeeded + s.failed + s.quarantined + s.aborted, 0))";
const PACED = `o.pace_to_at IS NULL THEN o.created_at WHEN clock.now - o.pace_from_at > ${PACE_MS} THEN o.pace_to_at ELSE o.pace_from_at`;
const PACED_ROWS = `o.pace_to_at IS NULL THEN 0 WHEN clock.now - o.pace_from_at > ${PACE_MS} THEN o.pace_to_rows ELSE o.pace_from_rows`;

// The rows of the batches are locked, so no other transaction takes these deltas.
const FOLD = `WITH clock AS MATERIALIZED (SELECT outlive.now_ms() AS now), gone AS (
    DELETE FROM outlive.batch_deltas WHERE id = ANY (ARRAY(SELECT d.id FROM outlive.batch_deltas d WHERE d.batch = ANY ($1::bigint[]) LIMIT ${DELTAS}))
    RETURNING batch, round, succeeded, failed, quarantined, aborted),
  sums AS (SELECT batch, round, ${SUMS} FROM gone GROUP BY batch, round)
  UPDATE outlive.batch_state b SET ${["succeeded", "failed", "quarantined", "aborted"].map(ADDED).join(", ")},
    touched = o.state IN (${AS.sealed}, ${AS.aborting}) AND ${ENDED_THEN} = o.rows AND ${HAS_ALL},
    pace_from_at = CASE WHEN ${PACED} END, pace_from_rows = CASE WHEN ${PACED_ROWS} END, pace_to_at = clock.now, pace_to_rows = ${ENDED_THEN}
  FROM clock, outlive.batch_state o LEFT JOIN sums s ON s.batch = o.seq AND s.round = o.round
  WHERE o.seq = ANY ($1::bigint[]) AND b.seq = o.seq AND b.state <= ${AS.aborting} RETURNING b.seq, b.id`;

class Folding {
  readonly #connection: Connection;
  /** Where the next call goes on: batches that can't be ended must not hide the others. */
  #after = 0;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  async fold(limit: number): Promise<readonly string[]> {
    const connection = this.#connection;
    const [found] = await connection.rows<{ any: boolean }>(ANY);
    if (!found!.any) return [];
    const seqs = await this.#candidates(this.#after, limit);
    if (seqs.length < limit && this.#after > 0) {
      const known = new Set(seqs);
      const before = await this.#candidates(0, limit - seqs.length);
      seqs.push(...before.filter((seq) => !known.has(seq)));
    }
    this.#after = seqs.length < limit ? 0 : seqs.at(-1)!;
    if (seqs.length === 0) return [];
    return connection.maintain(async (tx) => {
      const locked = await tx.rows<{ seq: number }>(LOCK_ALL, [list(seqs)]);
      const rows = await tx.rows<{ seq: number; id: string }>(FOLD, [list(locked.map(({ seq }) => seq))]);
      return rows.toSorted((a, b) => a.seq - b.seq).map(({ id }) => id);
    });
  }

  async #candidates(after: number, limit: number): Promise<number[]> {
    const rows = await this.#connection.rows<{ seq: number }>(CANDIDATES, [after, limit]);
    return rows.map(({ seq }) => seq);
  }
}

// In the transaction that holds the row of the batch.
const FOLD_ONE = `WITH gone AS (DELETE FROM outlive.batch_deltas WHERE batch = $1 RETURNING round, succeeded, failed, quarantined, aborted),
  sums AS (SELECT round, ${SUMS} FROM gone GROUP BY round)
  UPDATE outlive.batch_state b SET ${["succeeded", "failed", "quarantined", "aborted"].map((column) => `${column} = b.${column} + s.${column}`).join(", ")},
    touched = true
  FROM sums s WHERE b.seq = $1 AND b.round = s.round`;
const FINISH = `UPDATE outlive.batch_state b SET state = $2, ended_at = outlive.now_ms(), touched = false, tending = 0
  WHERE b.seq = $1 AND ${ENDED_ROWS} = b.rows AND ${HAS_ALL} RETURNING b.seq`;

/** Rows that have ended stay ended, so the decision holds; that they are all is checked again, for whatever has decided. */
async function finish(
  session: Session,
  kinds: Kinds,
  { batch: id, round, from, to, follow }: BatchEnd,
): Promise<boolean> {
  const [batch] = await session.rows<PlainBatch>(LOCK, [id]);
  if (!batch || batch.round !== round || batch.state !== AS[from]) return false;
  if (batch.state !== AS.sealed && batch.state !== AS.aborting) return false;
  await session.run(FOLD_ONE, [batch.seq]);
  const [ended] = await session.rows(FINISH, [batch.seq, AS[to]]);
  if (!ended) return false;
  if (follow.length > 0) await insertJobs(session, kinds, follow);
  return true;
}

const REOPEN = `UPDATE outlive.batch_state SET state = ${AS.open}, round = round + 1, rows = 0, blocks = 0, sealed_at = NULL, ended_at = NULL, tended = -1,
    earlier_succeeded = earlier_succeeded + succeeded, earlier_failed = earlier_failed + failed,
    earlier_quarantined = earlier_quarantined + quarantined, earlier_aborted = earlier_aborted + aborted,
    succeeded = 0, failed = 0, quarantined = 0, aborted = 0,
    pace_from_at = NULL, pace_from_rows = NULL, pace_to_at = NULL, pace_to_rows = NULL
  WHERE id = $1 AND round = $2 AND state >= ${AS.completed} RETURNING seq`;

async function reopen(session: Session, kinds: Kinds, id: string, round: number, draft: JobDraft): Promise<boolean> {
  const [opened] = await session.rows(REOPEN, [id, round]);
  if (!opened) return false;
  await insertJobs(session, kinds, [draft]);
  return true;
}

// ---- retention

// The job that follows the end (`doneDraft`) has ended as long ago, or is gone.
const OLD = `outlive.batch_state b, (SELECT outlive.now_ms() - $1::bigint AS before) c
  WHERE b.ended_at IS NOT NULL AND b.ended_at < c.before AND NOT EXISTS (SELECT 1 FROM outlive.job_ids i JOIN outlive.jobs d ON d.seq = i.seq
    WHERE i.id = b.id || ':done:' || b.round AND (d.state < ${STATE.succeeded} OR d.finished_at >= c.before))`;
const DELETE_OLD = `WITH old AS MATERIALIZED (SELECT b.seq FROM ${OLD} ORDER BY b.ended_at LIMIT $2 FOR UPDATE OF b SKIP LOCKED),
  gone AS (DELETE FROM outlive.batch_state b USING old WHERE b.seq = old.seq RETURNING b.seq),
  deltas AS (DELETE FROM outlive.batch_deltas d USING old WHERE d.batch = old.seq)
  INSERT INTO outlive.deleted_batches (batch) SELECT seq FROM gone`;
const DELETED = "SELECT batch FROM outlive.deleted_batches ORDER BY batch LIMIT 1 FOR UPDATE SKIP LOCKED";

async function hasOld(session: Session, olderThanMs: number): Promise<boolean> {
  const [row] = await session.rows<{ any: boolean }>(
    `SELECT EXISTS (SELECT 1 FROM ${OLD}) OR EXISTS (SELECT 1 FROM outlive.deleted_batches) AS any`,
    [olderThanMs],
  );
  return row!.any;
}

/**
 * The row of a batch goes first: from then on there is no such batch, and what is left of it is known by its number. A kill anywhere leaves the rest
 * to the next call. Returns how many batches went.
 */
async function purge(session: Session, olderThanMs: number, limit: number): Promise<number> {
  const gone = await session.run(DELETE_OLD, [olderThanMs, limit]);
  let room = limit;
  while (room > 0) {
    const [next] = await session.rows<{ batch: number }>(DELETED);
    if (!next) break;
    const deleted = await deleteBlocks(session, next.batch, room);
    if (deleted < room) await session.run("DELETE FROM outlive.deleted_batches WHERE batch = $1", [next.batch]);
    room -= deleted;
  }
  return gone;
}

const DELETE_BLOCKS = `WITH gone AS (
    DELETE FROM outlive.blocks WHERE job = ANY (ARRAY(SELECT b.job FROM outlive.blocks b WHERE b.batch = $1 LIMIT $2)) RETURNING job, batch, round, number),
  failures AS (DELETE FROM outlive.row_failures f USING gone g WHERE f.batch = g.batch AND f.round = g.round AND f.number = g.number),
  files AS MATERIALIZED (SELECT DISTINCT file FROM outlive.row_outputs WHERE batch = $1),
  outputs AS (DELETE FROM outlive.row_outputs o USING gone g, files f WHERE o.batch = g.batch AND o.file = f.file AND o.round = g.round AND o.number = g.number)
  SELECT g.job, j.seq, j.state, j.finished_at FROM gone g LEFT JOIN outlive.jobs j ON j.seq = g.job`;

/**
 * Returns how many: fewer than the limit, and nothing is left of it. A block may have marked all of its rows and not have ended itself, for instance
 * because its worker died in between: it is cancelled, because its next attempt would find no batch.
 */
async function deleteBlocks(session: Session, batch: number, limit: number): Promise<number> {
  const blocks = await session.rows<{ seq: number | null; state: number; finished_at: number }>(DELETE_BLOCKS, [
    batch,
    limit,
  ]);
  const ended = blocks.flatMap(({ seq, state, finished_at }) =>
    seq !== null && state >= STATE.succeeded ? [{ seq, state, finished_at }] : [],
  );
  const others = blocks.flatMap(({ seq, state }) => (seq !== null && state < STATE.succeeded ? [seq] : []));
  if (others.length > 0) {
    const locked = await session.rows<UnfinishedBlock>(`${UNFINISHED} ORDER BY j.seq FOR UPDATE SKIP LOCKED`, [
      list(others),
    ]);
    await cancelAll(session, locked, "system/batches");
  }
  if (ended.length === 0) return blocks.length;
  await session.run("SAVEPOINT outlive_blocks");
  try {
    await deleteTogether(session, ended);
  } catch (thrown) {
    // Something of the user's refers to one of them: they are ordinary jobs now, and go with those.
    if (!isRefusal(thrown)) throw thrown;
    await session.run("ROLLBACK TO SAVEPOINT outlive_blocks");
  }
  await session.run("RELEASE SAVEPOINT outlive_blocks");
  return blocks.length;
}
