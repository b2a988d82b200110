// When a worker process checks whether a batch has ended: not while it holds blocks of it, and soon after the last one is settled. And when it reads what its
// blocks have in common: each such read also finds that the batch is aborted, or that more of its rows have failed than it tolerates.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { BatchWorker } from "../../src/batches/batch-worker.ts";
import type { AnyBatch } from "../../src/batches/contract.ts";
import { batch } from "../../src/index.ts";
import { type BatchDraft, type BatchRow, doneKind } from "../../src/job/batches.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import { release, runningView } from "../../src/job/transitions.ts";
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
  /** Returns the block to the queue. */
  readonly release: (job: ClaimedJob) => Promise<void>;
  /** The row of line 1 ends. */
  readonly endFirst: () => void;
  /** Lines of rows that were run. */
  readonly lines: readonly number[];
  /** Blocks that have waited before their handler began. */
  readonly waited: readonly ClaimedJob[];
  /** From now on a read of the batch returns when this is called, or fails. */
  readonly holdReads: () => (failure?: Error) => void;
  readonly abort: () => Promise<unknown>;
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
  let mayRead = Promise.resolve();
  const held = new Set(claimed);
  const lines: number[] = [];
  const waited: ClaimedJob[] = [];
  const counting: Batches = {
    ...store.batches!,
    async get(ids) {
      reads++;
      await mayRead;
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
    heldJobs: () => [...held],
  });
  const slow = Promise.withResolvers<void>();
  const contract = batch("mail").handle(({ line }) => {
    lines.push(line);
    return line === 1 ? slow.promise : undefined;
  });
  const runnable = worker.kinds(contract as unknown as AnyBatch).get("mail")!;
  return {
    clock,
    claimed,
    reads: () => reads,
    batch: async () => (await store.batches!.get(["b"]))[0]!,
    run: (job) => runnable.handler(JSON.parse(job.input) as never, { job, startsNow: () => waited.push(job) } as never),
    async settle(job, failed = false) {
      const { lease, change } = SETTLE.succeed(job);
      const rows = { succeeded: [], failed: failed ? [failedRow(0, 2)] : [], outputs: [] };
      await hand.settle({ lease, change: { ...change, rows } });
      held.delete(job);
      runnable.settled!(job, change);
    },
    async release(job) {
      const settlement = { lease: job.lease, change: release(runningView(job), "no slot was free") };
      await hand.settle(settlement);
      held.delete(job);
      runnable.settled!(job, settlement.change);
    },
    endFirst: slow.resolve,
    lines,
    waited,
    holdReads() {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      mayRead = promise;
      return (failure) => {
        mayRead = Promise.resolve();
        if (failure) reject(failure);
        else resolve();
      };
    },
    abort: () => store.batches!.abort("b"),
  };
}

test("a batch is not checked after each block while another of it is held here, and soon after the last", async (t) => {
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

test("a batch of which the last block here is released is checked", async (t) => {
  const { clock, claimed, reads, run, settle, release: released } = await withBatch(t);
  await run(claimed[1]!);
  for (const job of claimed.slice(1)) await settle(job);
  await clock.advance(100);
  assert.equal(reads(), 1, "once for its context");
  await released(claimed[0]!);
  await clock.advance(100);
  assert.equal(reads(), 2);
});

test("blocks begin with what is known while their batch is read again, and none with what is older than 500 ms", async (t) => {
  const { clock, claimed, reads, run, lines, waited, holdReads } = await withBatch(t);
  await run(claimed[1]!);
  await clock.advance(390);
  assert.equal(run(claimed[1]!), undefined);
  assert.equal(reads(), 1);
  const answer = holdReads();
  await clock.advance(60);
  assert.equal(run(claimed[2]!), undefined, "it has run");
  assert.equal(run(claimed[2]!), undefined);
  assert.equal(reads(), 2, "one read for both");
  await clock.advance(60);
  const late = run(claimed[3]!);
  await clock.settle();
  assert.deepEqual([lines, reads()], [[2, 2, 3, 3], 2], "the next block waits for the same read");
  answer();
  await late;
  assert.deepEqual(lines, [2, 2, 3, 3, 4]);
  assert.equal(run(claimed[3]!), undefined, "what was read is known now");
  assert.equal(reads(), 2);
  assert.deepEqual(waited, [claimed[1], claimed[3]], "their time begins when they do");
});

test("no row of a block begins once a read has shown that its batch is aborted, and each later block waits for a read", async (t) => {
  const { clock, claimed, reads, run, lines, abort } = await withBatch(t);
  await run(claimed[1]!);
  await abort();
  await clock.advance(450);
  assert.equal(run(claimed[2]!), undefined, "with what is known");
  await clock.settle();
  assert.equal(reads(), 2);
  assert.throws(() => run(claimed[3]!), /its batch is being aborted/);
  await clock.advance(450);
  await assert.rejects(async () => run(claimed[3]!), /its batch is being aborted/);
  assert.deepEqual([lines, reads()], [[2, 3], 3]);
});

test("after a read that failed, the next block waits for one of its own", async (t) => {
  const { clock, claimed, reads, run, lines, holdReads } = await withBatch(t);
  await run(claimed[1]!);
  await clock.advance(450);
  const answer = holdReads();
  assert.equal(run(claimed[2]!), undefined);
  answer(new Error("the store is away"));
  await clock.settle();
  const waits = run(claimed[3]!);
  assert.deepEqual([lines, reads()], [[2, 3], 3]);
  await waits;
  assert.deepEqual(lines, [2, 3, 4]);
});

test("a read that takes longer than 500 ms is not waited for by blocks that begin then", async (t) => {
  const { clock, claimed, reads, run, lines, holdReads } = await withBatch(t);
  const answer = holdReads();
  const first = run(claimed[1]!);
  await clock.advance(600);
  const second = run(claimed[2]!);
  assert.equal(reads(), 2);
  answer();
  await Promise.all([first, second]);
  assert.deepEqual(lines, [2, 3]);
});
