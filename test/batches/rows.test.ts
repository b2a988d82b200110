// The rows of a batch as programs list them: every row once, in the state in which it is.
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { z } from "zod";
import { batch, ErrorCode, open, TerminalError } from "../../src/index.ts";
import { memory, raw, says } from "../engine/engines.ts";
import { Place } from "../support/processes.ts";

test("every row is listed once, with its line, input and state, before, while and after it runs and in later rounds", async (t) => {
  let fails = true;
  const running = Promise.withResolvers<void>();
  const goOn = Promise.withResolvers<void>();
  const rows = batch("rows", { row: z.number(), block: 2, retry: { attempts: 1 } }).handle(async ({ input }) => {
    if (input === 2 && fails) throw new TerminalError("even");
    if (input !== 4) return;
    running.resolve();
    await goOn.promise;
  });
  const engine = await memory(t, [rows]);
  const list = async (id: string): Promise<string> =>
    (await Array.fromAsync(engine.batchRows(id))).map(({ line, state }) => `${line} ${state}`).join(", ");
  const { id } = await engine.submit(rows, [1, 2, 3, 4, 5, "x" as never]);
  assert.equal(await list(id), "1 waiting, 2 waiting, 3 waiting, 4 waiting, 5 waiting, 6 failed");
  const worker = await engine.start({ concurrency: 1 });
  await running.promise;
  const during = await list(id);
  assert.match(during, /^1 succeeded, 2 failed, 3 (running|succeeded), 4 running, 5 waiting, 6 failed$/);
  goOn.resolve();
  await worker.stop();
  await engine.runUntilIdle();
  assert.equal(await list(id), "1 succeeded, 2 failed, 3 succeeded, 4 succeeded, 5 succeeded, 6 failed");
  const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
  const all = await Array.fromAsync(engine.batchRows(id));
  assert.deepEqual(
    all.filter(({ state }) => state === "failed"),
    failed,
  );
  assert.deepEqual(
    all.map(({ input }) => input),
    [1, 2, 3, 4, 5, "x"],
  );
  fails = false;
  await engine.retryBatch(id);
  await engine.runUntilIdle();
  assert.equal(await list(id), "1 succeeded, 3 succeeded, 4 succeeded, 5 succeeded, 2 succeeded, 6 failed");
  await assert.rejects(list("missing"), says(ErrorCode.notFound, "missing"));
});

test("rows of an aborted batch, and those of a block that died as a whole", async (t) => {
  const rows = batch("rows", { row: z.number(), block: 1, retry: { attempts: 1 } }).handle(() => {
    throw new Error("never");
  });
  const engine = await memory(t, [rows]);
  const open = await engine.openBatch(rows, { hold: true });
  await open.append([1, 2]);
  await engine.abortBatch(open.id);
  const list = await Array.fromAsync(engine.batchRows(open.id));
  assert.deepEqual(
    list.map(({ line, state, error }) => [line, state, error]),
    [
      [1, "aborted", null],
      [2, "aborted", null],
    ],
  );
  const { id } = await engine.submit(rows, [1]);
  await engine.runUntilIdle();
  const [dead] = await Array.fromAsync(engine.batchRows(id));
  assert.deepEqual([dead!.state, dead!.error?.message], ["failed", "never"]);
});

test("the rows of a damaged block are one entry that says so, among all rows as among the failed ones", async (t) => {
  const place = new Place(t);
  const path = join(place.folder, "jobs.db");
  const rows = batch("rows", { row: z.number(), block: 2 }).handle(() => {});
  const engine = await open(`sqlite:${path}`, { jobs: [rows], logger: false });
  t.after(() => engine.close());
  const { id } = await engine.submit(rows, [1, 2, 3, 4]);
  // Other rows, and still JSON that a block may have: only its checksum says that it is damaged.
  raw(t, path)
    .prepare("UPDATE outlive_jobs SET input = replace(input, '[1,2]', '[7,8]') WHERE id = ?")
    .run(`${id}:1:0`);
  const ended = new Promise((resolve) => engine.on("batch.ended", resolve));
  await engine.start();
  await ended;
  const [damaged, ...others] = await Array.fromAsync(engine.batchRows(id));
  assert.deepEqual([damaged!.line, damaged!.state, damaged!.corrupt], [0, "quarantined", true]);
  assert.deepEqual(
    others.map(({ line, state }) => [line, state]),
    [
      [3, "succeeded"],
      [4, "succeeded"],
    ],
  );
  assert.deepEqual(await Array.fromAsync(engine.batchRows(id, { failed: true })), [damaged]);
});
