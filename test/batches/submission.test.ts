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
