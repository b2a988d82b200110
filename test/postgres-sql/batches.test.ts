// Blocks of batches without any Node process: a reclaim in SQL takes them back with their marks, and what it ends is counted.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { decodeBlock, doneKind } from "../../src/job/batches.ts";
import { batchDraft, blocksOf, failedRow } from "../../src/testing/conformance/batch-fixture.ts";
import { TestWorker, kind, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { type Fixture, fixture, MINUTE } from "./fixture.ts";

/** A worker that holds two blocks of five rows each, of a sealed batch. Of the first, one row has succeeded and one failed. */
async function held(t: TestContext, onCrash: "retry" | "fail"): Promise<Fixture> {
  const store = await fixture(t);
  const port = await openStore(store);
  t.after(() => port.close());
  await port.declare([kind("mail", { onCrash })]);
  await port.batches!.open(batchDraft("b", { key: "november" }));
  await port.batches!.append("b", 1, blocksOf("b", [5, 5]));
  await port.batches!.seal("b", 1);
  const { epoch } = await port.register(workerRecord("w"));
  const worker = new TestWorker(port, "w", epoch);
  const [first] = await worker.claim(2);
  const ends = { succeeded: [0], failed: [failedRow(3, 4)], outputs: [] };
  await worker.record(first!, { type: "rows", ends });
  return store;
}

const BATCH =
  "SELECT batch_id, kind, key, state, rows::int, waiting::int, succeeded::int, failed::int, quarantined::int, aborted::int FROM outlive.batches";
const COMMON = { batch_id: "b", kind: "mail", key: "november", state: "sealed", rows: 10 };

test("a reclaim queues blocks again, and their marks stay", async (t) => {
  const store = await held(t, "retry");
  await store.pass(10 * MINUTE);
  const rows = await store.sql<{ job_id: string }>("SELECT job_id FROM outlive.reclaim_stale_jobs() ORDER BY job_id");
  assert.deepEqual(rows, [{ job_id: "b:1:0" }, { job_id: "b:1:1" }]);
  assert.equal((await store.job("b:1:0")).state, "queued");
  assert.deepEqual(await store.sql("SELECT number::int, marks FROM outlive.blocks ORDER BY number"), [
    { number: 0, marks: "10010" },
    { number: 1, marks: null },
  ]);
  assert.deepEqual(await store.sql(BATCH), [
    { ...COMMON, waiting: 8, succeeded: 1, failed: 1, quarantined: 0, aborted: 0 },
  ]);
});

test("the rows of blocks that a reclaim ends are counted once, those that had a mark by their mark", async (t) => {
  const store = await held(t, "fail");
  await store.sql("UPDATE outlive.jobs SET cancel_requested = true WHERE id = 'b:1:1'");
  await store.pass(10 * MINUTE);
  await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  assert.deepEqual([(await store.job("b:1:0")).state, (await store.job("b:1:1")).state], ["dead", "cancelled"]);
  assert.deepEqual(await store.sql(BATCH), [
    { ...COMMON, waiting: 0, succeeded: 1, failed: 4, quarantined: 0, aborted: 5 },
  ]);
  const port = await openStore(store);
  t.after(() => port.close());
  const ids = await port.batches!.fold(10);
  assert.deepEqual(ids, ["b"], "the next process that looks finds the end");
  const [block] = await port.batches!.failures("b", 1, null, 10);
  assert.deepEqual([block!.whole!.marks, block!.rows.map(({ line }) => line)], ["10010", [4]]);
});

test("no statement, of whatever version, takes an ended block out of its end", async (t) => {
  const store = await held(t, "fail");
  await store.pass(10 * MINUTE);
  await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  await assert.rejects(
    store.sql("UPDATE outlive.jobs SET state = 0 WHERE id = 'b:1:0'"),
    /job b:1:0 is a block of a batch, and its rows have been counted/,
  );
});

test("submit makes a sealed batch of rows, in blocks that workers run; a key is taken once", async (t) => {
  const store = await fixture(t);
  const port = await openStore(store);
  t.after(() => port.close());
  await port.declare([kind("mail"), kind(doneKind("mail"))]);
  const printed = await store.psql(
    "SELECT created FROM outlive.submit('mail', (SELECT jsonb_agg(jsonb_build_object('n', n, 'text', 'a \"quoted\" ü')) FROM generate_series(1, 120) n), 'november')",
  );
  assert.equal(printed.trim(), "t");
  assert.deepEqual(await store.sql("SELECT created FROM outlive.submit('mail', '[1]', 'november')"), [
    { created: false },
  ]);
  const { epoch } = await port.register(workerRecord("w"));
  const worker = new TestWorker(port, "w", epoch);
  const jobs = await worker.claim(10);
  const blocks = jobs.map(({ input }) => decodeBlock(input));
  assert.deepEqual(
    blocks.map(({ number, rows }) => [number, rows.length, rows[0]!.line]),
    [
      [0, 50, 1],
      [1, 50, 51],
      [2, 20, 101],
    ],
  );
  assert.deepEqual(blocks[2]!.rows[19], { line: 120, input: { n: 120, text: 'a "quoted" ü' } });
  const [batch] = await store.sql<{ batch_id: string }>("SELECT batch_id FROM outlive.batches");
  assert.equal(blocks[0]!.batch, batch!.batch_id);
  await worker.settle(...jobs.map((job) => SETTLE.succeed(job)));
  const [row] = await port.batches!.get([batch!.batch_id]);
  assert.deepEqual(
    [row!.state, row!.rows, row!.blocks, row!.sums.succeeded, row!.corrupt],
    ["sealed", 120, 3, 120, undefined],
  );
  assert.deepEqual(await port.upkeep.integrity(), []);
});

test("submit refuses what is not a batch, and an empty batch is there to end", async (t) => {
  const store = await fixture(t);
  const port = await openStore(store);
  t.after(() => port.close());
  await port.declare([kind("mail"), kind(doneKind("mail")), kind("plain")]);
  await assert.rejects(
    store.sql("SELECT outlive.submit('plain', '[1]')"),
    /no program has declared 'plain' as a kind of batch/,
  );
  await assert.rejects(store.sql("SELECT outlive.submit('mail', '{}')"), /the rows are no array/);
  await assert.rejects(store.sql("SELECT outlive.submit('mail', NULL)"), /the rows are no array/);
  await assert.rejects(store.sql(`SELECT outlive.submit('mail', '[{"__proto__": 1}]')`), /__proto__/);
  await assert.rejects(store.sql("SELECT outlive.submit('mail', '[1]', '')"), /the key/);
  assert.deepEqual(await store.sql("SELECT * FROM outlive.batches"), []);
  const [made] = await store.sql<{ batch_id: string }>("SELECT batch_id FROM outlive.submit('mail', '[]')");
  assert.deepEqual(await port.batches!.fold(10), [made!.batch_id]);
});
