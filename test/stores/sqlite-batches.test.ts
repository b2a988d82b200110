// What only SQLite's form of batches has: checksums of their texts, contradictions that a check finds, reads that look at nothing but what they
// return, and pieces of work that a kill may come between.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { type BlockDraft, doneKind } from "../../src/job/batches.ts";
import type { Store } from "../../src/stores/port.ts";
import { batchDraft, blocksOf, failedRow } from "../../src/testing/conformance/batch-fixture.ts";
import { kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { virtualClock } from "../../src/testing/index.ts";
import { openStore } from "../conformance/sqlite-stores.ts";

interface Place {
  readonly store: Store;
  /** A connection that knows nothing of us. */
  readonly raw: DatabaseSync;
}

/** A store with one sealed batch `b` of two blocks, one of whose rows was rejected, and one batch `other`. */
async function place(t: TestContext): Promise<Place> {
  const folder = await mkdtemp(join(tmpdir(), "outlive-batches-"));
  const path = join(folder, "jobs.db");
  const store = await openStore(virtualClock(), path);
  const raw = new DatabaseSync(path, { timeout: 10_000 });
  t.after(async () => {
    raw.close();
    await store.close();
    await rm(folder, { recursive: true });
  });
  await store.declare([kind("mail"), kind(doneKind("mail"))]);
  await store.register(workerRecord("w"));
  const batches = store.batches!;
  for (const id of ["b", "other"]) {
    await batches.open(batchDraft(id));
    const [first, second] = blocksOf(id, [3, 2]) as [BlockDraft, BlockDraft];
    await batches.append(id, 1, [{ ...first, rejected: [failedRow(-1, 9)] }, second]);
    await batches.seal(id, 1);
  }
  return { store, raw };
}

/** Everything succeeds, and each block writes a text. */
async function runAll(store: Store): Promise<void> {
  const { claimed } = await store.turn("w", [], roomFor(10));
  const settlements = claimed.map((job) => {
    const { lease, change } = SETTLE.succeed(job);
    const outputs = [{ file: "f.csv", texts: '[[1,"a\\n"]]' }];
    return { lease, change: { ...change, rows: { succeeded: [0, 1], failed: [], outputs } } };
  });
  await store.turn("w", settlements, roomFor(0));
}

test("texts of batches that are not what was stored are found, named, and not trusted", async (t) => {
  const { store, raw } = await place(t);
  await runAll(store);
  assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  const of = "WHERE batch = (SELECT seq FROM outlive_batches WHERE id = 'b')";
  raw.exec(`UPDATE outlive_batch_texts SET context = replace(context, 'acme', 'acne') ${of}`);
  raw.exec(`UPDATE outlive_row_failures SET input = replace(input, '9', '8') ${of}`);
  raw.exec(`UPDATE outlive_row_outputs SET texts = replace(texts, 'a', 'b') ${of} AND number = 1`);
  const batches = store.batches!;
  const [batch, other] = await batches.get(["b", "other"]);
  assert.deepEqual([batch!.corrupt, batch!.context, other!.corrupt], [true, '{"tenant":"acne"}', undefined]);
  const [failed] = await batches.failures("b", 1, null, 10);
  assert.deepEqual([failed!.rows[0]!.line, failed!.rows[0]!.error.code], [9, "CORRUPT"]);
  assert.equal((await batches.failures("other", 1, null, 10))[0]!.rows[0]!.error.name, "Error");
  await assert.rejects(batches.outputs("b", 1, "f.csv", null, 10), {
    code: "CORRUPT",
    data: { batch: "b", round: 1, block: 1, file: "f.csv" },
  });
  assert.equal((await batches.outputs("other", 1, "f.csv", null, 10)).blocks.length, 2);
  const found = await store.upkeep.inconsistencies!();
  assert.deepEqual(
    found.map(({ what, names }) => [what, names]),
    [["corrupt-content", ["b: context", "b: input of line 9", "b: f.csv of block 1"]]],
  );
});

for (const [what, sql] of [
  ["a row that counts twice", "UPDATE outlive_batches SET succeeded = succeeded + 1 WHERE id = 'b'"],
  ["a row that is not counted", "UPDATE outlive_batches SET failed = failed - 1 WHERE id = 'b'"],
  ["a total that is not that of the blocks", "UPDATE outlive_batches SET rows = rows + 1 WHERE id = 'b'"],
  ["a mark that was lost", "UPDATE outlive_blocks SET marks = '000' WHERE number = 0 AND batch = 1"],
  ["a failure that was lost", "DELETE FROM outlive_row_failures WHERE batch = 1 AND row IS NOT NULL"],
  ["an end that was not counted", "UPDATE outlive_jobs SET state = 3 WHERE id = 'b:1:1'"],
] as const)
  test(`a check finds ${what}, and names the batch`, async (t) => {
    const { store, raw } = await place(t);
    const { claimed } = await store.turn("w", [], roomFor(1));
    const ends = { succeeded: [0], failed: [failedRow(1, 2)], outputs: [] };
    await store.write([{ lease: claimed[0]!.lease, write: { type: "rows", ends } }]);
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
    assert.equal(raw.prepare(sql).run().changes, 1);
    const found = await store.upkeep.inconsistencies!();
    assert.deepEqual(
      found.map((one) => [one.what, one.names]),
      [["batch-disagrees", ["b"]]],
    );
  });

test("a check finds a block whose job is gone", async (t) => {
  const { store, raw } = await place(t);
  raw.exec("DELETE FROM outlive_jobs WHERE id = 'b:1:1'; UPDATE outlive_kinds SET jobs = jobs - 1 WHERE name = 'mail'");
  const found = await store.upkeep.inconsistencies!();
  assert.deepEqual(
    found.map(({ what, names }) => [what, names]),
    [["block-without-job", ["b:1:1"]]],
  );
});

test("nothing that is asked about batches goes through all blocks, rows or jobs", async (t) => {
  const { value } = Object.getOwnPropertyDescriptor(DatabaseSync.prototype, "prepare")!;
  const prepare = value as (this: DatabaseSync, sql: string) => StatementSync;
  const { store, raw } = await place(t);
  const asked = new Set<string>();
  t.mock.method(DatabaseSync.prototype, "prepare", function (this: DatabaseSync, sql: string) {
    asked.add(sql);
    return prepare.call(this, sql);
  });
  await runAll(store);
  const batches = store.batches!;
  await batches.get(["b"]);
  const ids = await batches.fold(10);
  assert.deepEqual(ids, ["b", "other"]);
  await batches.failures("b", 1, null, 10);
  await batches.outputs("b", 1, "f.csv", null, 10);
  await batches.outputFiles("b");
  await batches.finish({ batch: "b", round: 1, from: "sealed", to: "completed", follow: [] });
  await batches.reopen("b", 1, { ...blocksOf("x", [1])[0]!.job!, id: "round" });
  await batches.append("b", 2, blocksOf("b", [1], { round: 2 }));
  await batches.abort("b");
  await batches.seal("b", 2);
  await batches.tend(10);
  await batches.finish({ batch: "b", round: 2, from: "aborting", to: "aborted", follow: [] });
  assert.deepEqual(await batches.purge(-1, 10), { batches: 1, more: false });
  const scans = [...asked]
    .filter((sql) => /outlive_(batch|block|row)/.test(sql))
    .flatMap((sql) => {
      const plan = prepare.call(raw, `EXPLAIN QUERY PLAN ${sql}`).all();
      return plan
        .filter(({ detail }) => String(detail).startsWith("SCAN"))
        .map(({ detail }) => `${String(detail)}: ${sql}`);
    });
  assert.ok(asked.size > 30);
  // By indexes of what is to be done only, or as far as the first row.
  const bounded =
    /USING (COVERING )?INDEX outlive_batches_(touched|tending)|^SCAN (outlive_deleted_batches|\w+ VIRTUAL TABLE)|: SELECT EXISTS \(SELECT 1 FROM \w+\) AS \w+, EXISTS \(SELECT 1 FROM \w+\) AS \w+$/;
  assert.deepEqual(
    scans.filter((scan) => !bounded.test(scan)),
    [],
  );
});

test("nothing that blocks ask again and again is planned again", async (t) => {
  let planned = 0;
  type Ask = NonNullable<Parameters<DatabaseSync["setAuthorizer"]>[0]>;
  const { value } = Object.getOwnPropertyDescriptor(DatabaseSync.prototype, "setAuthorizer")!;
  const setAuthorizer = value as (this: DatabaseSync, ask: Ask) => void;
  t.mock.method(DatabaseSync.prototype, "setAuthorizer", function (this: DatabaseSync, ask: Ask) {
    setAuthorizer.call(this, (...of) => (planned++, ask(...of)));
  });
  const { store } = await place(t);
  const batches = store.batches!;
  const round = async (n: number): Promise<void> => {
    const id = `batch-${n}`;
    await batches.open(batchDraft(id));
    const [block] = blocksOf(id, [3]) as [BlockDraft];
    await batches.append(id, 1, [{ ...block, rejected: [failedRow(-1, 9)] }]);
    await batches.seal(id, 1);
    const { claimed } = await store.turn("w", [], roomFor(1, ["mail"]));
    const ends = { succeeded: [0], failed: [failedRow(1, 2)], outputs: [{ file: "f", texts: '[[1,"a"]]' }] };
    await store.write([{ lease: claimed[0]!.lease, write: { type: "rows", ends } }]);
    await store.turn("w", [SETTLE.succeed(claimed[0]!)], roomFor(0));
    await batches.fold(n);
    await batches.get([id]);
    await batches.tend(n);
    await batches.failures(id, 1, null, n);
    await batches.outputs(id, 1, "f", null, n);
    await batches.purge(1_000_000, n);
  };
  await round(1);
  const once = planned;
  assert.ok(once > 0);
  for (const n of [2, 3, 4]) await round(n);
  assert.equal(planned - once, 0);
});
