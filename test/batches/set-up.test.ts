// What the rows of a process share: made once, disposed of when the engine closes, and made again if it failed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch, open } from "../../src/index.ts";
import { AT_ONCE, memory } from "../engine/engines.ts";

test("setUp runs once in a process, however many blocks, batches and starts it has, and is disposed of at close", async () => {
  const made: number[] = [];
  const disposed: number[] = [];
  const seen = new Set<number>();
  const rows = batch("rows", { block: 1 })
    .setUp(async () => {
      made.push(made.length + 1);
      const number = made.length;
      await new Promise((resolve) => setImmediate(resolve));
      return { number, [Symbol.asyncDispose]: async () => void disposed.push(number) };
    })
    .handle((_row, run) => void seen.add(run.shared.number));
  const unused = batch("unused")
    .setUp(() => assert.fail("it has no block"))
    .handle(() => {});
  const engine = await open("sqlite::memory:", { jobs: [rows, unused], logger: false });
  assert.deepEqual(made, [], "not before the first block");
  await engine.submit(rows, [1, 2, 3, 4, 5, 6, 7, 8]);
  await engine.runUntilIdle();
  await engine.submit(rows, [1, 2, 3, 4]);
  await engine.runUntilIdle();
  assert.deepEqual([made, [...seen], disposed], [[1], [1], []]);
  await engine.close();
  assert.deepEqual([made, disposed], [[1], [1]]);
});

test("a setUp that throws fails the attempt of its block, and the next one tries it again", async (t) => {
  let tries = 0;
  const rows = batch("rows", { block: 2, retry: { attempts: 5, backoff: AT_ONCE } })
    .setUp(() => {
      if (++tries < 3) throw new Error("the other side is away");
      return tries;
    })
    .handle((_row, run) => assert.equal(run.shared, 3));
  const engine = await memory(t, [rows]);
  const { id } = await engine.submit(rows, [1, 2]);
  await engine.runUntilIdle();
  const { state, rows: counts } = (await engine.batch(id))!;
  assert.deepEqual([tries, state, counts.succeeded, counts.failed], [3, "completed", 2, 0]);
});

test("rows whose setUp never succeeds fail with its error, and a retry runs them", async (t) => {
  let works = false;
  const rows = batch("rows", { block: 2, retry: { attempts: 2, backoff: AT_ONCE } })
    .setUp(() => {
      if (!works) throw new Error("no licence");
    })
    .handle(() => {});
  const engine = await memory(t, [rows]);
  const { id } = await engine.submit(rows, [1, 2, 3]);
  await engine.runUntilIdle();
  const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
  assert.deepEqual(
    failed.map(({ line, error }) => [line, error?.message]),
    [1, 2, 3].map((line) => [line, "no licence"]),
  );
  works = true;
  assert.deepEqual(await engine.retryBatch(id), { round: 2, rows: 3 });
  await engine.runUntilIdle();
  assert.deepEqual((await engine.batch(id))!.rows.succeeded, 3);
});

test("a disposal that throws does not keep the engine from closing", async () => {
  const rows = batch("rows")
    .setUp(() => ({
      [Symbol.asyncDispose]() {
        throw new Error("already gone");
      },
    }))
    .handle(() => {});
  const engine = await open("sqlite::memory:", { jobs: [rows], logger: false });
  await engine.submit(rows, [1]);
  await engine.runUntilIdle();
  await engine.close();
});
