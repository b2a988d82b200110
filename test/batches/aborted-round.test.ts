// A later round is filled by a job of its own, block by block. Aborted before that has ended, no row that failed is lost: those that had not come into
// the round stay failed, with their errors, and can be retried.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { batch, type BatchInfo, type Engine, ErrorCode, type ListedBatchRow } from "../../src/index.ts";
import { type BatchRow, decideBatch, NO_ROWS, type RowSums } from "../../src/job/batches.ts";
import type { Batches } from "../../src/stores/batches.ts";
import { memory } from "../engine/engines.ts";

interface Failing {
  readonly engine: Engine;
  readonly id: string;
  /** Rows work from now on. */
  readonly works: () => void;
}

/** A batch of this many rows in blocks of one, which has ended; the first `failed` of them failed. */
async function ended(t: TestContext, count: number, failed: number): Promise<Failing> {
  let works = false;
  const rows = batch("rows", { block: 1, retry: { attempts: 1 } }).handle(({ line }) => {
    if (line <= failed && !works) throw new Error(`line ${line} is wrong`);
  });
  const engine = await memory(t, [rows]);
  const { id } = await engine.submit(
    rows,
    Array.from({ length: count }, (_, n) => n),
  );
  await engine.runUntilIdle();
  return { engine, id, works: () => (works = true) };
}

const listed = (engine: Engine, id: string): Promise<ListedBatchRow[]> => Array.fromAsync(engine.batchRows(id));

/** The counts of the batch are those of its rows, and each line is there once. */
async function assertAddsUp(engine: Engine, id: string): Promise<BatchInfo> {
  const info = (await engine.batch(id))!;
  const rows = await listed(engine, id);
  assert.equal(new Set(rows.map(({ line }) => line)).size, rows.length, "a line is there twice");
  const { left, total, ...counts } = info.rows;
  const counted: Record<string, number> = { ...NO_ROWS };
  for (const { state } of rows) counted[state]!++;
  assert.deepEqual([counts, total, left], [counted, rows.length, 0]);
  return info;
}

/** Does this when so many blocks have come into the second round. */
function onceFilled(engine: Engine, blocks: number, then: () => Promise<void>): void {
  const batches = (engine as unknown as { readonly store: { readonly batches: Batches } }).store.batches;
  const append = batches.append.bind(batches);
  let came = 0;
  batches.append = async (id, round, drafts, asNext) => {
    const answer = await append(id, round, drafts, asNext);
    came += drafts.length;
    if (came < blocks) return answer;
    batches.append = append;
    await then();
    return answer;
  };
}

test("aborted before a row has come into it, a second round has all rows that failed, with their errors, and a third runs them", async (t) => {
  const { engine, id, works } = await ended(t, 10, 4);
  await engine.retryBatch(id);
  assert.match((await engine.batch(id))!.why!, new RegExp(`still to be added to round 2, by the job ${id}:round:2`));
  assert.equal(await engine.abortBatch(id), "aborted");
  const { state, rows } = await assertAddsUp(engine, id);
  assert.deepEqual([state, rows.total, rows.failed, rows.aborted], ["aborted", 10, 4, 0]);
  const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
  assert.deepEqual(
    failed.map(({ line, input, error }) => [line, input, error?.message]),
    [1, 2, 3, 4].map((line) => [line, line - 1, `line ${line} is wrong`]),
  );
  await engine.runUntilIdle();
  await assertAddsUp(engine, id);
  works();
  assert.deepEqual(await engine.retryBatch(id), { round: 3, rows: 4 });
  await engine.runUntilIdle();
  assert.equal((await assertAddsUp(engine, id)).rows.succeeded, 10);
});

test("an abort that is killed after its first write is finished by the job that fills the round, or by another abort", async (t) => {
  for (const finish of [
    (engine: Engine) => engine.runUntilIdle(),
    (engine: Engine, id: string) => engine.abortBatch(id),
  ]) {
    const { engine, id } = await ended(t, 5, 3);
    await engine.retryBatch(id);
    await (engine as unknown as { readonly store: { readonly batches: Batches } }).store.batches.abort(id);
    assert.match(
      (await engine.batch(id))!.why!,
      /it is being aborted, and the rest of its failed rows is still to be added/,
    );
    await finish(engine, id);
    const { state, rows } = await assertAddsUp(engine, id);
    assert.deepEqual([state, rows.failed], ["aborted", 3]);
  }
});

test("aborted in the middle, rows that had come into the round are aborted, and the others stay failed", async (t) => {
  const { engine, id, works } = await ended(t, 100, 90);
  await engine.retryBatch(id);
  onceFilled(engine, 40, async () => {
    const before = await listed(engine, id);
    assert.deepEqual(
      before.map(({ line }) => line).toSorted((a, b) => a - b),
      Array.from({ length: 100 }, (_, n) => n + 1),
    );
    assert.equal(before.filter(({ state }) => state === "waiting").length, 90);
    assert.equal(await engine.abortBatch(id), "aborted");
  });
  await engine.runUntilIdle();
  const { rows } = await assertAddsUp(engine, id);
  // Some of the 40 rows may have run, and failed again.
  assert.deepEqual([rows.total, rows.succeeded, rows.aborted + rows.failed], [100, 10, 90]);
  assert.ok(rows.aborted > 0 && rows.failed >= 50, JSON.stringify(rows));
  const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
  assert.deepEqual(
    failed.slice(-50).map(({ line, input, error }) => [line, input, error?.message]),
    Array.from({ length: 50 }, (_, n) => [n + 41, n + 40, `line ${n + 41} is wrong`]),
  );
  works();
  assert.deepEqual(await engine.retryBatch(id), { round: 3, rows: rows.failed });
  await engine.runUntilIdle();
  assert.equal((await assertAddsUp(engine, id)).rows.succeeded, 10 + rows.failed);
});

test("a round whose job is aborted between two of its blocks ends as it would have without that job", async (t) => {
  const { engine, id } = await ended(t, 100, 90);
  await engine.retryBatch(id);
  // The abort's own process is killed at once: only the job is left to go on.
  onceFilled(engine, 40, async () => {
    await (engine as unknown as { readonly store: { readonly batches: Batches } }).store.batches.abort(id);
  });
  await engine.runUntilIdle();
  const { state, rows } = await assertAddsUp(engine, id);
  assert.deepEqual([state, rows.total, rows.aborted + rows.failed], ["aborted", 100, 90]);
  assert.ok(rows.failed >= 50);
});

test("whether more rows fail than a batch tolerates is judged when a later round has all of its rows", () => {
  const of = (more: Partial<BatchRow>, sums: Partial<RowSums>): ReturnType<typeof decideBatch> =>
    decideBatch({
      state: "open",
      round: 2,
      rows: 5,
      sealedAt: null,
      tolerance: { rows: 1 },
      sums: { ...NO_ROWS, ...sums },
      ...more,
    } as BatchRow);
  assert.equal(of({}, { failed: 2 }), null);
  assert.equal(of({ state: "aborting" }, { failed: 5 }), null, "rows are missing");
  assert.equal(of({ state: "sealed", sealedAt: 1 }, { failed: 2 }), "abort");
  assert.equal(of({ state: "aborting", sealedAt: 1 }, { failed: 2, aborted: 3 }), "failed");
  assert.equal(of({ round: 1 }, { failed: 2 }), "abort");
});

test("done of a round after which the next has begun is not called, and its job says so", async (t) => {
  const ends: number[] = [];
  let breaks = true;
  const rows = batch("rows", { retry: { attempts: 1 } })
    .handle(() => {
      throw new Error("never");
    })
    .done(({ round }) => {
      if (breaks) throw new Error("not yet");
      ends.push(round);
    });
  const engine = await memory(t, [rows]);
  const { id } = await engine.submit(rows, [1]);
  const done = `${id}:done:1`;
  while ((await engine.get(done))?.state !== "dead") {
    await engine.runUntilIdle();
    if ((await engine.get(done))?.state === "queued") await engine.promote(done);
  }
  breaks = false;
  await engine.retryBatch(id);
  await engine.runUntilIdle();
  await engine.retry(done);
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(done))!;
  assert.deepEqual([ends, state], [[2], "dead"]);
  assert.match(error!.message, new RegExp(`is in round 2.*done was not called for it.*${id}:done:2`));
});

test("a damaged row stays known as damaged through the rounds, and is never run again", async (t) => {
  const { engine, id, works } = await ended(t, 3, 2);
  const batches = (engine as unknown as { readonly store: { readonly batches: Batches } }).store.batches;
  const failures = batches.failures.bind(batches);
  const error = { name: "Corrupt", code: ErrorCode.corrupt, message: "it does not match its checksum" } as const;
  const block = (await failures(id, 1, null, 1))[0]!;
  batches.failures = async (of, round, after, limit) => {
    const found = await failures(of, round, after, limit);
    // As a store shows the first block after a damage.
    return round > 1
      ? found
      : found.map((one) => (one.number === block.number ? { ...one, whole: { ...one.whole!, error } } : one));
  };
  works();
  for (const round of [2, 3]) {
    assert.equal((await engine.retryBatch(id)).round, round);
    await engine.runUntilIdle();
    const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
    assert.deepEqual(
      failed.map(({ line, corrupt, error: kept }) => [line, corrupt, kept]),
      [[0, true, error]],
    );
  }
});
