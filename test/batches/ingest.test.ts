// `engine.ingest`: a job that reads a file into a batch, killed on the way.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileSystem } from "../../src/blobs.ts";
import { batch, open, type OutliveError } from "../../src/index.ts";
import { batches, payments } from "../support/batch-jobs.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";

// 90 blocks: three transactions of 40 at most.
const ROWS = 450;
const NUMBERS = Array.from({ length: ROWS }, (_, n) => n);

for (const killAt of [
  "before:INSERT INTO outlive_batches ",
  "after:INSERT INTO outlive_blocks#2",
  "before:SET state = 1, sealed_at",
])
  test(`a worker that is killed while it reads a file (${killAt}) loses and doubles no row`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine({ jobs: batches });
    await place.ledger(engine);
    const file = join(place.folder, "rows.ndjson");
    writeFileSync(file, NUMBERS.map((n) => `${JSON.stringify({ n })}\n`).join(""));
    const { job } = await engine.ingest(payments, file, { format: "ndjson" });
    const child = place.batchProcess({}, killAt);
    assert.equal((await child.exited).signal, "SIGKILL", "it died at the point");
    place.batchProcess();
    const { batch: id, rows } = await engine.result(job);
    assert.equal(rows, ROWS);
    const ended = await untilTrue(
      () => engine.batch(id),
      (found) => found?.endedAt !== null,
      "the batch has ended",
    );
    assert.deepEqual([ended?.rows.total, ended?.rows.succeeded, ended?.key], [ROWS, ROWS, job]);
    const ledger = (await place.ledgerRows(engine)).map(({ n }) => n).toSorted((a, b) => a - b);
    assert.deepEqual(ledger, NUMBERS, "each row was committed once");
    assert.equal((await engine.batches()).length, 1);
  });

test("a file is taken from the blob store, once for each key; a broken one ends the job and keeps the batch open", async (t) => {
  const place = new Place(t);
  const lines = batch("lines", { block: 2 }).handle(() => {});
  const blobs = fileSystem({ folder: join(place.folder, "blobs") });
  await using engine = await open("sqlite::memory:", { jobs: [lines], blobs, logger: false });
  await blobs.put("in/november.csv", Buffer.from("a,b\n1,2\n3,4\n5,6\n"));
  await blobs.put("in/broken.csv", Buffer.from('a,b\n1,2\n3,"4\n'));
  const first = await engine.ingest(lines, { blob: "in/november.csv" }, { key: "november", context: { bank: "acme" } });
  const second = await engine.ingest(lines, { blob: "in/november.csv" }, { key: "november" });
  const broken = await engine.ingest(lines, { blob: "in/broken.csv" }, { key: "broken" });
  await engine.runUntilIdle();
  const ingested = await engine.result(first.job);
  assert.equal(ingested.rows, 3);
  assert.deepEqual(await engine.result(second.job), ingested, "the same batch");
  assert.deepEqual((await engine.batch(ingested.batch))?.context, { bank: "acme" });
  await untilState(engine, broken.job, "dead");
  assert.match((await engine.get(broken.job))!.error!.message, /line 3, column "b".*with the key "broken"/);
  assert.deepEqual(
    (await engine.batches({ state: "open" })).map(({ key }) => key),
    ["broken"],
  );
  await assert.rejects(engine.ingest(lines, "", {}), ({ code }: OutliveError) => code === "OPTION_INVALID");
});
