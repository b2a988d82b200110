// When a worker process checks whether a batch has ended: not while blocks of it run here, and soon after the last one. Each read
// of a batch also finds that more of its rows have failed than it tolerates.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { BatchWorker } from "../../src/batches/batch-worker.ts";
import type { AnyBatch } from "../../src/batches/contract.ts";
import { batch } from "../../src/index.ts";
import { type BatchDraft, type BatchRow, doneKind } from "../../src/job/batches.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import type { Batches } from "../../src/stores/port.ts";
import { batchDraft, blocksOf, failedRow } from "../../src/testing/conformance/batch-fixture.ts";
import { TestWorker, kind, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { type VirtualClock, virtualClock } from "../../src/testing/index.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { Recorder } from "../support/samples.ts";

interface Here {
  readonly clock: VirtualClock;
  readonly claimed: readonly ClaimedJob[];
  /** How often the batch was read by the worker under test. */
  readonly reads: () => number;
  readonly batch: () => Promise<BatchRow>;
  readonly run: (job: ClaimedJob) => unknown;
  /** Ends the block, its row failed if the caller says so. */
  readonly settle: (job: ClaimedJob, failed?: boolean) => Promise<void>;
  /** The row of line 1 ends. */
  readonly endFirst: () => void;
}

/** A sealed batch of four blocks of one row, all claimed. The row of line 1 takes its time. */
async function withBatch(t: TestContext, more: Partial<BatchDraft> = {}): Promise<Here> {
  const clock = virtualClock();
  const store = await openStore(clock, ":memory:");
  t.after(() => store.close());
  await store.declare([kind("mail"), kind(doneKind("mail"))]);
  await store.batches!.open(batchDraft("b", more));
  await store.batches!.append("b", 1, blocksOf("b", [1, 1, 1, 1]));
  await store.batches!.seal("b", 1);
  const { epoch } = await store.register(workerRecord("w"));
  const hand = new TestWorker(store, "w", epoch);
  const claimed = await hand.claim(10);
  let reads = 0;
  const counting: Batches = {
    ...store.batches!,
    get(ids) {
      reads++;
      return store.batches!.get(ids);
    },
  };
  const worker = new BatchWorker({
    batches: counting,
    clock,
    events: new Recorder(),
    outputs: null,
    newId: () => "id",
    rowsOf: () => assert.fail("no file is read"),
    settingsOf: () => kind("mail"),
  });
  const slow = Promise.withResolvers<void>();
  const contract = batch("mail").handle(({ line }) => (line === 1 ? slow.promise : undefined));
  const runnable = worker.kinds(contract as unknown as AnyBatch).get("mail")!;
  return {
    clock,
    claimed,
    reads: () => reads,
    batch: async () => (await store.batches!.get(["b"]))[0]!,
    run: (job) => runnable.handler(JSON.parse(job.input) as never, { job } as never),
    async settle(job, failed = false) {
      const { lease, change } = SETTLE.succeed(job);
      const rows = { succeeded: [], failed: failed ? [failedRow(0, 2)] : [], outputs: [] };
      await hand.settle({ lease, change: { ...change, rows } });
      runnable.settled!(job, change);
    },
    endFirst: slow.resolve,
  };
}

test("a batch is not checked after each block while another of it runs here, and soon after the last", async (t) => {
  const { clock, claimed, reads, batch: stored, run, settle, endFirst } = await withBatch(t);
  const first = run(claimed[0]!);
  for (const job of claimed.slice(1, 3)) {
    await run(job);
    await settle(job);
    await clock.advance(40);
  }
  assert.equal(reads(), 1, "once for its context");
  await run(claimed[3]!);
  endFirst();
  await first;
  for (const job of [claimed[3]!, claimed[0]!]) await settle(job);
  await clock.advance(20);
  assert.equal(reads(), 2);
  assert.equal((await stored()).state, "completed");
});

test("a batch of which too many rows have failed is aborted while a block of it runs here", async (t) => {
  const { clock, claimed, batch: stored, run, settle } = await withBatch(t, { tolerance: { rows: 0 } });
  void run(claimed[0]!);
  await run(claimed[1]!);
  await settle(claimed[1]!, true);
  await clock.advance(600);
  assert.equal((await stored()).state, "sealed", "nothing has looked");
  await run(claimed[2]!);
  assert.equal((await stored()).state, "aborting");
});
