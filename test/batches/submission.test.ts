// Submissions that break in the middle and begin again with the same key.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch, open, type OutliveError } from "../../src/index.ts";

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
