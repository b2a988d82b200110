// `engine.ingest`: a job that reads a file into a batch, killed on the way.
import assert from "node:assert/strict";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
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
  "before:sealed_at = \\?, touched",
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

for (const killAt of [
  "before:INSERT INTO outlive_jobs",
  "after:INSERT INTO outlive_jobs",
  "after:INSERT INTO outlive_blocks",
  "after:ended_at = \\?",
])
  test(`a process that watches a folder and is killed (${killAt}) takes each file once`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine({ jobs: batches });
    await place.ledger(engine);
    const folder = join(place.folder, "in");
    mkdirSync(folder);
    writeFileSync(join(folder, "rows.ndjson"), [0, 1, 2].map((n) => `${JSON.stringify({ n })}\n`).join(""));
    const child = place.batchProcess({ watch: folder }, killAt);
    assert.equal((await child.exited).signal, "SIGKILL", "it died at the point");
    place.batchProcess({ watch: folder });
    await untilTrue(
      () => readdirSync(join(folder, "done")).join(),
      (names) => names === "rows.ndjson",
      "the file is done",
    );
    await untilTrue(
      () => engine.batches(),
      (all) => all.length === 1 && all[0]!.endedAt !== null,
      "its batch has ended",
    );
    assert.deepEqual(
      (await place.ledgerRows(engine)).map(({ n }) => n).toSorted((a, b) => a - b),
      [0, 1, 2],
    );
    assert.deepEqual(readdirSync(folder).toSorted(), ["done", "failed"]);
  });

test("a watched folder: each file becomes a batch once, and moves to done or failed, also if the watch ended in between", async (t) => {
  const place = new Place(t);
  const ran: unknown[] = [];
  const lines = batch("lines", { block: 2 });
  lines.handle(({ input }) => void ran.push((input as { a: string }).a));
  const folder = join(place.folder, "in");
  mkdirSync(folder);
  const engine = await place.engine({ jobs: [lines] });
  await engine.start();
  const watch = (): ReturnType<typeof engine.watchFolder> => engine.watchFolder(lines, folder, { every: "20ms" });
  const names = (of = "."): string[] => readdirSync(join(folder, of)).toSorted();
  const until = (of: string, wanted: string[]): Promise<unknown> =>
    untilTrue(
      () => names(of).join(),
      (found) => found === wanted.join(),
      `${of} has ${wanted.join()}`,
    );
  writeFileSync(join(folder, "one.csv"), "a,b\n1,x\n2,x\n3,x\n");
  writeFileSync(join(folder, "broken.csv"), 'a,b\n8,x\n9,x\n10,x\n11,"x\n');
  writeFileSync(join(folder, ".hidden.csv"), "a,b\n99,x\n");
  const first = await watch();
  const second = await watch();
  await until("done", ["one.csv"]);
  await until("failed", ["broken.csv"]);
  await second.stop();
  // The watch ends after a file was taken, and before it was moved: the next one finds the job that has read it.
  await engine.pause("lines:ingest");
  writeFileSync(join(folder, "two.csv"), "a,b\n4,x\n");
  await untilTrue(
    () => engine.list({ kind: "lines:ingest", state: "queued" }),
    ({ jobs }) => jobs.length === 1,
    "the file was taken",
  );
  await first.stop();
  await engine.resume("lines:ingest");
  const [job] = (await engine.list({ kind: "lines:ingest", limit: 1 })).jobs;
  await untilState(engine, job!.id, "succeeded");
  assert.deepEqual(names(), [".hidden.csv", "done", "failed", "two.csv"]);
  const third = await watch();
  // Another file of a name that is there: neither replaces the other.
  writeFileSync(join(folder, "one.csv"), "a,b\n5,x\n6,x\n");
  await untilTrue(
    () => names("done").length,
    (count) => count === 3,
    "three files are done",
  );
  await untilTrue(
    () => engine.batches({ kind: lines }),
    (all) => all.length === 4 && all.every(({ endedAt }) => endedAt !== null),
    "all batches have ended",
  );
  await third.stop();
  assert.deepEqual(
    ran.toSorted((a, b) => Number(a) - Number(b)),
    ["1", "2", "3", "4", "5", "6"],
    "each row once, and none of the broken file",
  );
  assert.deepEqual(
    (await engine.batches({ state: "aborted" })).map(({ rows }) => rows.succeeded),
    [0],
  );
  assert.equal((await engine.list({ kind: "lines:ingest" })).jobs.length, 4);
  assert.deepEqual(names("failed"), ["broken.csv"]);
  await assert.rejects(engine.watchFolder(lines, join(folder, "done", "two.csv")), { code: "OPTION_INVALID" });
});
