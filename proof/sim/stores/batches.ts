// The scripts about batches: rows come in as blocks, a batch is sealed, aborted, ended once, opened again, deleted. What is to be done to many
// blocks is done in pieces, each a script of its own.
import type { AuditEntry } from "../../../src/job/audit.ts";
import {
  type BatchDraft,
  type BatchRow,
  type BatchState,
  type BlockDraft,
  endedRows,
  hasEnded,
  isFilling,
  NO_ROWS,
  takesBlocks,
} from "../../../src/job/batches.ts";
import { ErrorCode, OutliveError } from "../../../src/job/errors.ts";
import { isTerminal, type JobDraft } from "../../../src/job/job.ts";
import { BY_HAND } from "../../../src/job/transitions.ts";
import type {
  AppendAnswer,
  BatchEnd,
  BatchFilter,
  FailedBlock,
  KeptBlock,
  OpenedBatch,
  OutputPage,
} from "../../../src/stores/batches.ts";
import { NEVER_DUE } from "../../../src/stores/rows.ts";
import { addToSums, countLeft, marksOf } from "./blocks.ts";
import { assertDeclared, insertJobs } from "./enqueue.ts";
import { applyByHand } from "./looking.ts";
import { audit } from "./audit.ts";
import { type BatchRecord, type BlockRecord, type Data, NOT_ADMITTED } from "./records.ts";
import { forgetWaits } from "./waits.ts";

const PACE_MS = 10_000;

function batchRow(batch: BatchRecord): BatchRow {
  const { seq: _, touched: __, tending: ___, tended: ____, ...row } = batch;
  return row;
}

function isComplete(batch: BatchRecord): boolean {
  const { state, sums, rows } = batch;
  return (state === "sealed" || state === "aborting") && endedRows(sums) === rows && !isFilling(batch);
}

// ---- rows come in

export function openBatch(data: Data, draft: BatchDraft, entry?: AuditEntry | null): OpenedBatch {
  assertDeclared(data, [draft]);
  // The same id: its answer was lost, and it is asked again.
  const there = data.batch(draft.id) ?? (draft.key === null ? null : data.batchByKey(draft.kind, draft.key));
  if (there !== null) return { created: false, batch: batchRow(there) };
  const seq = data.meta().lastBatch + 1;
  data.putMeta({ lastBatch: seq });
  const batch: BatchRecord = {
    ...draft,
    seq,
    state: "open",
    round: 1,
    rows: 0,
    blocks: 0,
    sums: NO_ROWS,
    earlier: NO_ROWS,
    createdAt: data.now,
    sealedAt: null,
    endedAt: null,
    pace: null,
    outputs: null,
    touched: false,
    tending: null,
    tended: -1,
  };
  data.putBatch(batch);
  audit(data, entry, 1);
  return { created: true, batch: batchRow(batch) };
}

export function append(
  data: Data,
  id: string,
  round: number,
  blocks: readonly BlockDraft[],
  asNext = false,
): AppendAnswer {
  const batch = data.batch(id);
  if (batch === null) return { is: "missing" };
  if (!takesBlocks(batch, round, blocks, asNext)) return { is: "closed", state: batch.state };
  if (asNext && batch.blocks !== blocks[0]?.number)
    return { is: "moved", blocks: batch.blocks, rows: batch.rows, added: 0 };
  const known = new Set<number>();
  const added = blocks.filter(({ number }) => {
    if (known.has(number) || data.block(batch.seq, round, number) !== null) return false;
    known.add(number);
    return true;
  });
  const jobs = added.flatMap(({ job }) => job ?? []);
  assertDeclared(data, jobs);
  for (const { id: job } of jobs) if (data.jobById(job) !== null) throw taken(job);
  insertJobs(data, batch.held ? jobs.map((job) => ({ ...job, runAt: NEVER_DUE, delayMs: 0 })) : jobs);
  let rows = 0;
  let rejected = 0;
  for (const { number, job, rows: count, rejected: failed } of added) {
    data.putBlock({
      batch: id,
      seq: batch.seq,
      round,
      number,
      job: job === null ? null : data.jobById(job.id)!.row,
      rows: count,
      marks: null,
      begun: null,
      bad: failed.length > 0,
      failed: failed.map((row) => ({ ...row, row: -1 })),
      outputs: [],
    });
    rows += count + failed.length;
    rejected += failed.length;
  }
  if (added.length > 0) data.putBatch({ ...batch, rows: batch.rows + rows, blocks: batch.blocks + added.length });
  if (rejected > 0) addToSums(data, id, batch.seq, round, { ...NO_ROWS, failed: rejected });
  return { is: "appended", blocks: added.length, rows };
}

function taken(id: string): OutliveError {
  return new OutliveError(
    ErrorCode.wrongState,
    `There is a job ${id} already, and it is not a block of this batch.`,
    "Give jobs ids of another form than those of blocks, BATCH:ROUND:NUMBER. Nothing was written.",
    { jobId: id },
  );
}

export function seal(data: Data, id: string, round: number, entry?: AuditEntry | null): BatchState | "missing" {
  const batch = data.batch(id);
  if (batch === null) return "missing";
  if (batch.round !== round || (batch.state !== "open" && !isFilling(batch))) return batch.state;
  const tending = batch.held ? "release" : batch.tending;
  const state = batch.state === "open" ? "sealed" : batch.state;
  data.putBatch({ ...batch, state, sealedAt: data.now, touched: true, held: false, tending, tended: -1 });
  audit(data, entry, 1);
  return state;
}

export function abort(data: Data, id: string, entry?: AuditEntry | null): BatchState | "missing" {
  const batch = data.batch(id);
  if (batch === null) return "missing";
  if (batch.state !== "open" && batch.state !== "sealed") return batch.state;
  data.putBatch({ ...batch, state: "aborting", touched: true, held: false, tending: "cancel", tended: -1 });
  audit(data, entry, 1);
  return "aborting";
}

/** Goes through the blocks of one batch once: none is added to a batch that is not open. */
export function tend(data: Data, limit: number): boolean {
  const batch = data.batches().find(({ tending }) => tending !== null);
  if (batch === undefined) return false;
  const { seq, round, tended, tending } = batch;
  const blocks = data.blocks(seq, round).filter(({ number }) => number > tended);
  const piece = blocks.slice(0, limit);
  for (const { job: row } of piece) {
    const job = row === null ? null : data.job(row);
    if (job === null || isTerminal(job.state)) continue;
    if (tending === "cancel") applyByHand(data, job.id, BY_HAND.cancel, "system/batches");
    // One that has begun, or waits for something else, has not been held.
    else if (job.state === "queued" && job.runAt === NEVER_DUE && job.fence === 0)
      data.putJob({ ...job, runAt: null, ...NOT_ADMITTED });
  }
  // The cancels have changed its sums.
  data.putBatch({
    ...data.batch(batch.id)!,
    tended: piece.at(-1)?.number ?? tended,
    tending: piece.length < limit ? null : tending,
  });
  return data.batches().some((one) => one.tending !== null);
}

// ---- the end

export function fold(data: Data, limit: number): readonly string[] {
  const { foldedUpTo } = data.meta();
  const touched = data.batches().filter((batch) => batch.touched);
  // Batches that can't be ended must not hide the others.
  const turn = [...touched.filter(({ seq }) => seq > foldedUpTo), ...touched.filter(({ seq }) => seq <= foldedUpTo)];
  const some = turn.slice(0, limit);
  for (const batch of some) {
    const { pace, sums, createdAt } = batch;
    const from = { fromAt: pace?.fromAt ?? createdAt, fromRows: pace?.fromRows ?? 0 };
    const isOld = pace !== null && data.now - pace.fromAt > PACE_MS;
    data.putBatch({
      ...batch,
      touched: isComplete(batch),
      pace: {
        ...(isOld ? { fromAt: pace.toAt, fromRows: pace.toRows } : from),
        toAt: data.now,
        toRows: endedRows(sums),
      },
    });
  }
  const next = some.length < limit ? 0 : some.at(-1)!.seq;
  if (next !== foldedUpTo) data.putMeta({ foldedUpTo: next });
  return some.map(({ id }) => id);
}

export function finish(data: Data, { batch: id, round, from, to, follow }: BatchEnd): boolean {
  const batch = data.batch(id);
  if (batch === null || batch.round !== round || batch.state !== from || !isComplete(batch)) return false;
  assertDeclared(data, follow);
  data.putBatch({ ...batch, state: to, endedAt: data.now, touched: false, tending: null });
  insertJobs(data, follow);
  return true;
}

export function reopen(data: Data, id: string, round: number, draft: JobDraft, entry?: AuditEntry | null): boolean {
  const batch = data.batch(id);
  if (batch === null || batch.round !== round || !hasEnded(batch.state)) return false;
  assertDeclared(data, [draft]);
  const { earlier, sums } = batch;
  data.putBatch({
    ...batch,
    state: "open",
    round: round + 1,
    rows: 0,
    blocks: 0,
    sums: NO_ROWS,
    earlier: {
      succeeded: earlier.succeeded + sums.succeeded,
      failed: earlier.failed + sums.failed,
      quarantined: earlier.quarantined + sums.quarantined,
      aborted: earlier.aborted + sums.aborted,
    },
    sealedAt: null,
    endedAt: null,
    pace: null,
    tended: -1,
  });
  insertJobs(data, [draft]);
  audit(data, entry, 1);
  return true;
}

// ---- reads

export function getBatches(data: Data, ids: readonly string[]): BatchRow[] {
  return ids.flatMap((id) => {
    const batch = data.batch(id);
    return batch === null ? [] : [batchRow(batch)];
  });
}

export function listBatches(data: Data, filter: BatchFilter, limit: number, after: string | null): BatchRow[] {
  const { kind, state, createdAfter } = filter;
  const before = after === null ? Number.POSITIVE_INFINITY : (data.batch(after)?.seq ?? 0);
  const found = data.batches().filter((batch) => {
    if (batch.seq >= before || (kind !== undefined && batch.kind !== kind)) return false;
    return (state === undefined || batch.state === state) && batch.createdAt > (createdAfter ?? -Infinity);
  });
  return found.toReversed().slice(0, limit).map(batchRow);
}

function blocksAfter(data: Data, id: string, round: number, after: number | null): BlockRecord[] {
  const batch = data.batch(id);
  return batch === null ? [] : data.blocks(batch.seq, round).filter(({ number }) => number > (after ?? -1));
}

export function failures(data: Data, id: string, round: number, after: number | null, limit: number): FailedBlock[] {
  const bad = blocksAfter(data, id, round, after).filter((block) => block.bad);
  return bad.slice(0, limit).map((block) => ({
    number: block.number,
    rows: block.failed
      .map(({ line, input, error, as }) => ({ line, input, error, as }))
      .toSorted((a, b) => a.line - b.line),
    whole: wholeEnd(data, block),
  }));
}

export function keptBlocks(data: Data, id: string, round: number, after: number | null, limit: number): KeptBlock[] {
  return blocksAfter(data, id, round, after)
    .slice(0, limit)
    .map((block) => {
      const job = block.job === null ? null : data.job(block.job);
      return {
        number: block.number,
        rows: block.failed
          .map(({ line, input, error, as }) => ({ line, input, error, as }))
          .toSorted((a, b) => a.line - b.line),
        job: job && { state: job.state, input: job.input, marks: marksOf(block), error: job.error },
      };
    });
}

function wholeEnd(data: Data, block: BlockRecord): FailedBlock["whole"] {
  const job = block.job === null ? null : data.job(block.job);
  if (job === null || (job.state !== "dead" && job.state !== "quarantined") || countLeft(block) === 0) return null;
  const as = job.state === "dead" ? "failed" : "quarantined";
  return { input: job.input, marks: marksOf(block), error: job.error, as };
}

export function outputPage(
  data: Data,
  id: string,
  round: number,
  file: string,
  after: number | null,
  limit: number,
): OutputPage {
  const parts = blocksAfter(data, id, round, after).flatMap(({ number, outputs }) => {
    const texts = outputs.flatMap((part) => (part.file === file ? [part.texts] : []));
    return texts.length === 0 ? [] : [{ number, texts }];
  });
  const page = parts.slice(0, limit);
  return { blocks: page.map(({ texts }) => texts), next: parts.length > limit ? page.at(-1)!.number : null };
}

export function outputFiles(data: Data, id: string): string[] {
  const batch = data.batch(id);
  if (batch === null) return [];
  const rounds = Array.from({ length: batch.round }, (_, at) => data.blocks(batch.seq, at + 1));
  return [...new Set(rounds.flat().flatMap(({ outputs }) => outputs.map(({ file }) => file)))].toSorted();
}

export function setOutputs(data: Data, id: string, round: number, outputs: string): void {
  const batch = data.batch(id);
  if (batch?.round === round) data.putBatch({ ...batch, outputs });
}

// ---- retention

/** The record of a batch goes first: from then on there is no such batch, and what is left of it is known by its number. */
export function purgeBatches(data: Data, olderThanMs: number, limit: number): { batches: number; more: boolean } {
  const before = data.now - olderThanMs;
  const old = (): BatchRecord[] =>
    data.batches().filter(({ id, round, endedAt }) => {
      const done = data.jobById(`${id}:done:${round}`);
      const isFollowed = done === null || (isTerminal(done.state) && done.finishedAt < before);
      return endedAt !== null && endedAt < before && isFollowed;
    });
  const going = old().slice(0, limit);
  for (const batch of going) data.deleteBatch(batch);
  for (const block of data.orphanedBlocks(limit)) {
    const job = block.job === null ? null : data.job(block.job);
    data.deleteBlock(block);
    if (job === null) continue;
    if (!isTerminal(job.state)) {
      applyByHand(data, job.id, BY_HAND.cancel, "system/batches");
      continue;
    }
    forgetWaits(data, job.row);
    data.deleteJob(job);
  }
  return { batches: going.length, more: old().length + data.orphanedBlocks(1).length > 0 };
}
