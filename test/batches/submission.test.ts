// Submissions that break in the middle and begin again with the same key.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch, open, type OutliveError, TerminalError } from "../../src/index.ts";

const numbers = batch("numbers", { block: 5 });

function* upTo(last: number, breaksAfter = last): Generator<number> {
  for (let n = 1; n <= last; n++) {
    if (n > breaksAfter) throw new Error("an open quote");
    yield n;
  }
}

test("a source that broke in the middle of a block, corrected and submitted again, loses and doubles no row", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [numbers], logger: false });
  const ran: unknown[] = [];
  let ends = 0;
  numbers.handle(({ input }) => void ran.push(input)).done(() => void ends++);
  await assert.rejects(engine.submit(numbers, upTo(13, 7), { key: "k" }), (error: OutliveError) => {
    assert.equal(error.code, "SOURCE_BROKEN");
    return true;
  });
  const { id, rows, alreadyThere, created } = await engine.submit(numbers, upTo(13), { key: "k" });
  assert.deepEqual([rows, alreadyThere, created], [13, 5, false]);
  await engine.runUntilIdle();
  assert.deepEqual(
    ran.toSorted((a, b) => Number(a) - Number(b)),
    [...upTo(13)],
  );
  assert.equal((await engine.batch(id))?.rows.succeeded, 13);
  assert.equal(ends, 1, "idle is also what follows the end");
});

test("rows that were appended before their source broke stay in an open batch", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [numbers], logger: false });
  const batchOfRows = await engine.openBatch(numbers);
  await assert.rejects(batchOfRows.append(upTo(13, 7)), /an open quote/);
  assert.equal((await engine.batch(batchOfRows.id))?.rows.total, 7);
});

test("a batch whose failed rows are retried takes no rows of programs: the round has its own", async () => {
  const flaky = batch("flaky", { block: 2 });
  flaky.handle(({ input }) => {
    if (input === 2) throw new TerminalError("never");
  });
  await using engine = await open("sqlite::memory:", { jobs: [flaky], logger: false });
  const { id } = await engine.submit(flaky, [1, 2, 3], { key: "k" });
  await engine.runUntilIdle();
  assert.deepEqual(await engine.retryBatch(id), { round: 2, rows: 1 });
  const again = await engine.submit(flaky, [1, 2, 3], { key: "k" });
  assert.deepEqual([again.id, again.created], [id, false]);
  await engine.runUntilIdle();
  const info = await engine.batch(id);
  assert.deepEqual([info?.state, info?.round], ["completed", 2]);
  assert.deepEqual(info?.rows, { total: 3, succeeded: 2, failed: 1, quarantined: 0, aborted: 0, left: 0 });
});

test("programs that append to one batch at the same time lose no row, and each line is one row's", async () => {
  const seen: [number, unknown][] = [];
  const kept = batch("kept", { block: 3 }).handle(({ line, input }) => void seen.push([line, input]));
  await using engine = await open("sqlite::memory:", { jobs: [kept], logger: false });
  const rows = await engine.openBatch(kept);
  const parts = ["a", "b", "c"].map((name) => Array.from({ length: 200 }, (_, n) => `${name}${n}`));
  const added = await Promise.all(parts.map((part) => rows.append(part)));
  assert.deepEqual(
    added.map((one) => one.rows),
    [200, 200, 200],
  );
  await rows.seal();
  await engine.runUntilIdle();
  assert.deepEqual(new Set(seen.map(([, input]) => input)), new Set(parts.flat()));
  assert.deepEqual(
    seen.map(([line]) => line).toSorted((a, b) => a - b),
    Array.from({ length: 600 }, (_, n) => n + 1),
  );
});

test("two submissions with one key at the same time both return the whole batch, whichever seals it", async () => {
  const ran: unknown[] = [];
  const shared = batch("shared", { block: 2 }).handle(({ input }) => void ran.push(input));
  await using engine = await open("sqlite::memory:", { jobs: [shared], logger: false });
  let firstIsSealed = (): void => {};
  const sealed = new Promise<void>((resolve) => (firstIsSealed = resolve));
  // Opened while the batch is open, and read to its end after the other one has sealed it.
  async function* late(): AsyncGenerator<number> {
    yield* upTo(3);
    await sealed;
    yield* [4, 5];
  }
  const second = engine.submit(shared, late(), { key: "k" });
  const first = await engine.submit(shared, upTo(5), { key: "k" });
  firstIsSealed();
  const both = [first, await second];
  assert.deepEqual(
    both.map(({ id, rows }) => [id, rows]),
    [
      [first.id, 5],
      [first.id, 5],
    ],
  );
  assert.equal(both.filter(({ created }) => created).length, 1);
  await engine.runUntilIdle();
  assert.deepEqual(
    ran.toSorted((a, b) => Number(a) - Number(b)),
    [...upTo(5)],
  );
});

test("a batch is not retried before the job that follows its end has ended: its counts would be another round's", async () => {
  const ends: unknown[] = [];
  const broken = batch("broken", { block: 2 })
    .handle(() => {
      throw new TerminalError("never");
    })
    .done(({ rows }) => void ends.push(rows.failed));
  await using engine = await open("sqlite::memory:", { jobs: [broken], logger: false });
  await engine.pause("broken:done");
  const { id } = await engine.submit(broken, [1, 2]);
  await engine.runUntilIdle();
  await assert.rejects(engine.retryBatch(id), (error: OutliveError) => {
    assert.equal(error.code, "WRONG_STATE");
    assert.match(error.message, /:done:1\) has not: it is queued.*outlive why/);
    return true;
  });
  await engine.resume("broken:done");
  await engine.runUntilIdle();
  assert.deepEqual(await engine.retryBatch(id), { round: 2, rows: 2 });
  await engine.runUntilIdle();
  assert.deepEqual(ends, [2, 2]);
});
