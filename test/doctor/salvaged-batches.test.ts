// What a salvaged file owes batches: those whose rows survive end, with sums that are those of their blocks; what is lost is not run and not counted.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { type BlockDraft, doneKind } from "../../src/job/batches.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { repairFile } from "../../src/stores/sqlite/doctor/repair.ts";
import type { Store } from "../../src/stores/port.ts";
import { batchDraft, BatchFixture, blocksOf, failedRow } from "../../src/testing/conformance/batch-fixture.ts";
import { kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { pageOf, zero } from "../support/damaged-file.ts";
import { Place } from "../support/processes.ts";

/** Loses one page of the table after a batch of ten blocks of 5 rows has come half-way, salvages, and opens again. */
async function salvaged(t: TestContext, table: string): Promise<Store> {
  const place = new Place(t);
  const store = await openStore(systemClock, place.path);
  await store.declare([kind("mail"), kind(doneKind("mail"))]);
  await store.register(workerRecord("w"));
  const batches = store.batches!;
  await batches.open(batchDraft("b"));
  const blocks = blocksOf("b", Array<number>(10).fill(5));
  await batches.append("b", 1, [
    { ...blocks[0]!, rejected: [failedRow(-1, 99)] } satisfies BlockDraft,
    ...blocks.slice(1),
  ]);
  await batches.seal("b", 1);
  const { claimed } = await store.turn("w", [], roomFor(5));
  const ends = { succeeded: [0, 1], failed: [failedRow(2, 3)], outputs: [{ file: "f", texts: '[[1,"a"]]' }] };
  await store.write([{ lease: claimed[0]!.lease, write: { type: "rows", ends } }]);
  await store.turn(
    "w",
    claimed.map((job) => SETTLE.succeed(job)),
    roomFor(0),
  );
  assert.equal((await batches.get(["b"]))[0]!.sums.succeeded, 24);
  await store.close();
  zero(place.path, pageOf(place.path, table, "leaf"));
  const { sound } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.ok(sound);
  const again = await openStore(systemClock, place.path);
  t.after(() => again.close());
  const wrong = (await again.upkeep.inconsistencies!()).filter(({ what }) => /batch|block/.test(what));
  assert.deepEqual(wrong, []);
  return again;
}

/** Everything that is left is run, and the batch ends. */
async function ended(store: Store): Promise<void> {
  await store.register(workerRecord("again"));
  for (;;) {
    const { claimed } = await store.turn("again", [], roomFor(10));
    if (claimed.length === 0) break;
    await store.turn(
      "again",
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  const on = new BatchFixture({ store } as never, store.batches!);
  assert.deepEqual(await on.settle(), ["b"]);
  const { sums, rows } = await on.get("b");
  assert.equal(sums.succeeded + sums.failed + sums.quarantined, rows);
}

test("an index that is lost costs a batch nothing", async (t) => {
  const store = await salvaged(t, "outlive_blocks_number");
  const [batch] = await store.batches!.get(["b"]);
  assert.deepEqual([batch!.rows, batch!.blocks, batch!.sums.succeeded, batch!.sums.failed], [51, 10, 24, 2]);
  await ended(store);
});

test("a batch whose jobs are lost has what is left, and ends", async (t) => {
  const store = await salvaged(t, "outlive_jobs");
  const [batch] = await store.batches!.get(["b"]);
  assert.ok(batch!.rows < 51 && batch!.blocks < 10, `${batch!.rows} rows are left`);
  await ended(store);
});

test("a batch whose context is lost is shown, says so, and ends", async (t) => {
  const store = await salvaged(t, "outlive_batch_texts");
  const [batch] = await store.batches!.get(["b"]);
  assert.deepEqual([batch!.corrupt, batch!.rows], [true, 51]);
  await ended(store);
});

test("blocks whose batch is lost belong to no later one", async (t) => {
  const store = await salvaged(t, "outlive_batches");
  assert.deepEqual(await store.batches!.get(["b"]), []);
  await store.batches!.open(batchDraft("c"));
  await store.batches!.append("c", 1, blocksOf("c", [1]));
  const [batch] = await store.batches!.get(["c"]);
  assert.deepEqual([batch!.rows, batch!.sums.failed], [1, 0]);
  assert.deepEqual(await store.batches!.failures("c", 1, null, 10), []);
});
