// What the port promises about batches of one kind next to each other, as `batch()` makes them: a batch waits for one round of those that came before it,
// whatever they have left, and a batch that is alone waits for nothing.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import { FAIR, jobKey } from "../../job/limits.ts";
import { type BatchFixture, batchDraft, batchSpecifier, fairBlocks, ZERO } from "./batch-fixture.ts";
import { type TestWorker, idsOf, kind, SETTLE, type Specify } from "./fixture.ts";
import { take } from "./keys.ts";

export function specifyBatchTurns(specify: Specify): void {
  const specifyFair = batchSpecifier(specify);
  const fair = (title: string, body: (on: BatchFixture) => Promise<void>): void =>
    specifyFair(title, async (on) => {
      if (on.fixture.store.operate.pauseKey === undefined) return on.fixture.t.skip("this store has no fairness");
      await on.fixture.declare(kind("mail", { fair: true }));
      await body(on);
    });

  fair("the blocks of a batch that is alone are claimed in their order, and all of its rows count", async (on) => {
    await submit(on, "a", 25);
    const worker = await on.fixture.worker("w");
    const ids = await runAll(worker);
    assert.deepEqual(
      ids,
      Array.from({ length: 25 }, (_, n) => `a:1:${n}`),
    );
    assert.deepEqual(await on.sums("a"), { ...ZERO, succeeded: 50 });
  });

  fair("a batch that comes while another runs is served in the next round, whatever that has left", async (on) => {
    await submit(on, "a", 200);
    const worker = await on.fixture.worker("w");
    const running = await take(worker, 10);
    assert.equal(countOf(running, "a"), 10);
    await submit(on, "b", 10);
    const next = await take(worker, 10);
    assert.deepEqual([countOf(next, "a"), countOf(next, "b")], [5, 5]);
    await worker.settle(...[...running, ...next].map((job) => SETTLE.succeed(job)));
    await runAll(worker);
    for (const [id, blocks] of [
      ["a", 200],
      ["b", 10],
    ] as const)
      assert.deepEqual(await on.sums(id), { ...ZERO, succeeded: blocks * 2 });
  });

  fair("blocks that are added to a batch after another has come take turns with it", async (on) => {
    await on.open("a");
    await on.batches.append("a", 1, fairBlocks("a", [2, 2]));
    await submit(on, "b", 50);
    await on.batches.append("a", 1, fairBlocks("a", [2, 2], { from: 2 }));
    const worker = await on.fixture.worker("w");
    assert.equal(countOf(await take(worker, 8), "a"), 4);
  });

  fair("a batch is alone again when the one before it has ended, and after a new round of its own", async (on) => {
    const worker = await on.fixture.worker("w");
    for (const id of ["a", "b"]) {
      await submit(on, id, 12);
      assert.equal((await runAll(worker)).length, 12);
      assert.deepEqual(await on.settle(), [id]);
    }
    const draft = { ...fairBlocks("x", [1])[0]!.job!, id: "x", kind: "mail:done" };
    assert.equal(await on.batches.reopen("b", 1, draft), true);
    await on.batches.append("b", 2, fairBlocks("b", [2, 2], { round: 2 }));
    await submit(on, "c", 10);
    const claimed = await take(worker, 4);
    assert.deepEqual([countOf(claimed, "b"), countOf(claimed, "c")], [2, 2]);
  });

  for (const comes of ["alone", "with another"] as const)
    fair(`blocks that a dead worker held run again, their batch ${comes}`, async (on) => {
      await submit(on, "a", 30);
      const dead = await on.fixture.worker("v");
      const held = idsOf(await take(dead, 5));
      if (comes === "with another") await submit(on, "b", 5);
      await on.fixture.recoverAll(dead);
      const worker = await on.fixture.worker("w");
      const ids = await runAll(worker);
      for (const id of held) assert.ok(ids.includes(id), `${id} in ${ids.join(" ")}`);
      assert.equal(ids.length, comes === "alone" ? 30 : 35);
      assert.deepEqual(await on.sums("a"), { ...ZERO, succeeded: 60 });
    });

  fair("nothing of a batch starts while its key is paused, whether it is alone or not", async (on) => {
    await submit(on, "a", 20);
    const worker = await on.fixture.worker("w");
    await take(worker, 5);
    const key = jobKey(FAIR, "a");
    await on.fixture.store.operate.pauseKey!(key, { reason: "unpaid", forMs: null });
    assert.deepEqual(idsOf(await take(worker, 5)), []);
    await submit(on, "b", 5);
    assert.equal(countOf(await take(worker, 10), "b"), 5);
    await on.fixture.store.operate.pauseKey!(key, null);
    assert.equal(countOf(await take(worker, 5), "a"), 5);
  });

  fair("an abort ends what waits of a batch that is alone, and another goes on", async (on) => {
    await submit(on, "a", 20);
    const worker = await on.fixture.worker("w");
    const running = await take(worker, 2);
    assert.equal(await on.batches.abort("a"), "aborting");
    await on.tendAll();
    await submit(on, "b", 3);
    assert.equal(countOf(await take(worker, 10), "b"), 3);
    await worker.settle(...running.map((job) => SETTLE.release(job)));
    assert.deepEqual(await on.sums("a"), { ...ZERO, aborted: 40 });
  });
}

/** A sealed batch of so many blocks of two rows. */
async function submit(on: BatchFixture, id: string, blocks: number): Promise<void> {
  await on.batches.open(batchDraft(id));
  const sizes = Array.from({ length: blocks }, () => 2);
  await on.batches.append(id, 1, fairBlocks(id, sizes));
  assert.equal(await on.batches.seal(id, 1), "sealed");
}

/** Claims everything and lets it succeed. */
async function runAll(worker: TestWorker): Promise<string[]> {
  const ids: string[] = [];
  for (;;) {
    const claimed = await take(worker, 10);
    if (claimed.length === 0) return ids;
    ids.push(...idsOf(claimed));
    await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
  }
}

function countOf(claimed: readonly ClaimedJob[], batch: string): number {
  return idsOf(claimed).filter((id) => id.startsWith(`${batch}:`)).length;
}
