// Workers that are asked to stop with blocks in their hands, and batches that are aborted with many rows queued.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch } from "../../src/index.ts";
import { batches, slow } from "../support/batch-jobs.ts";
import { Place, SHORT, untilTrue } from "../support/processes.ts";

test("BR-009 BR-010 a block that runs longer than the lease under SIGTERM is taken by no other worker", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches, heartbeat: SHORT });
  const { id } = await engine.submit(slow, [{ n: 0, ms: 3_500 }]);
  const first = place.batchProcess({ heartbeat: SHORT });
  await first.untilFact("began", { n: 0 });
  const other = place.batchProcess({ heartbeat: SHORT });
  await other.untilFact("working");
  first.kill("SIGTERM");
  assert.deepEqual(await first.exited, { code: 0, signal: null });
  const { rows } = (await engine.batch(id))!;
  assert.deepEqual([rows.succeeded, rows.left], [1, 0], "it was settled before the process left");
  assert.deepEqual(
    [...place.effects()],
    [
      ["slow 0 attempt 1", 1],
      ["slow 0 ended", 1],
    ],
  );
  assert.deepEqual(await engine.incidents(), []);
});

test("BR-025 BR-026 BR-027 BR-028 SIGTERM finishes the row in hand and releases the rest of the block at no cost", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches });
  const rows = Array.from({ length: 10 }, (_, n) => ({ n, ms: 600 }));
  const { id } = await engine.submit(slow, rows);
  const first = place.batchProcess({ grace: "2s" });
  await first.untilFact("began", { n: 1 });
  await first.untilFact("working");
  const other = await engine.submit(slow, [{ n: 99, ms: 0 }]);
  first.kill("SIGTERM");
  assert.deepEqual(await first.exited, { code: 0, signal: null });
  const block = (await engine.get(`${id}:1:0`))!;
  const { errors, crashes, timeouts } = block.counters;
  assert.deepEqual([block.state, errors, crashes, timeouts], ["queued", 0, 0, 0]);
  const left = (await engine.batch(id))!.rows;
  assert.ok(left.succeeded >= 2 && left.succeeded < 10, `${left.succeeded} rows have ended, and are counted`);
  assert.equal(left.left, 10 - left.succeeded);
  assert.equal((await engine.get(`${other.id}:1:0`))!.attempt, 0, "it claimed no other block on its way out");
  place.batchProcess();
  const ended = await untilTrue(
    () => engine.batch(id),
    (info) => info?.endedAt !== null,
    "the batch has ended",
  );
  assert.equal(ended!.rows.succeeded, 10);
  const begun = [...place.effects()].filter(([line]) => line.includes("attempt"));
  assert.deepEqual(
    begun.map(([line, times]) => [Number(line.split(" ")[1]), times]).toSorted(([a], [b]) => a! - b!),
    [...rows.map(({ n }) => [n, 1]), [99, 1]],
    "every row began once: none was cut off, none ran again",
  );
  assert.deepEqual(await engine.incidents(), []);
});

test("BR-029 a worker that is killed after SIGTERM, before its rows have ended, has crashed like any other", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches });
  const { id } = await engine.submit(slow, [{ n: 0, ms: 1_000 }]);
  const first = place.batchProcess({ grace: "30s" });
  await first.untilFact("began", { n: 0 });
  await first.untilFact("working");
  first.kill("SIGTERM");
  first.kill("SIGKILL");
  assert.equal((await first.exited).signal, "SIGKILL");
  place.batchProcess();
  const ended = await untilTrue(
    () => engine.batch(id),
    (info) => info?.endedAt !== null,
    "the batch has ended",
  );
  assert.deepEqual([ended!.state, ended!.rows.succeeded], ["completed", 1]);
  assert.deepEqual([...place.effects().keys()], ["slow 0 attempt 1", "slow 0 attempt 2", "slow 0 ended"]);
  assert.equal((await engine.get(`${id}:1:0`))!.counters.crashes, 1);
});

test("an abort of many queued rows: when it resolves only blocks that ran go on, and all rows have an end", async (t) => {
  const place = new Place(t);
  let begun = 0;
  const many = batch("many", { block: 10 });
  many.handle(async () => {
    begun++;
    await new Promise((resolve) => setTimeout(resolve, 2));
  });
  const engine = await place.engine({ jobs: [many] });
  await engine.start({ concurrency: 4 });
  const { id } = await engine.submit(
    many,
    Array.from({ length: 50_000 }, (_, n) => ({ n })),
  );
  await untilTrue(
    () => begun,
    (count) => count > 20,
    "rows run",
  );
  const asked = performance.now();
  await engine.abortBatch(id);
  const atAbort = begun;
  const { rows, state } = (await untilTrue(
    () => engine.batch(id),
    (info) => info?.endedAt !== null,
    "the batch has ended",
  ))!;
  assert.equal(state, "aborted");
  // The demand is ten seconds for a million rows; these are a twentieth of them.
  assert.ok(performance.now() - asked < 10_000, "all rows have an end within ten seconds");
  assert.equal(rows.succeeded + rows.aborted, 50_000);
  assert.ok(begun - atAbort <= 4 * 10, `${begun - atAbort} rows began after the abort`);
});
