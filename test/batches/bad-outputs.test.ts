// Output files that can't be stored, and rows that write what they may not: clear errors, and nothing that has ended is lost.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { z } from "zod";
import type { BlobStore } from "../../src/blobs/blob-store.ts";
import { fileSystem } from "../../src/blobs.ts";
import {
  batch,
  type BatchEnded,
  type Engine,
  ErrorCode,
  type JobDetails,
  open,
  OutliveError,
  TerminalError,
} from "../../src/index.ts";
import { memory, says } from "../engine/engines.ts";
import { Place } from "../support/processes.ts";

const NUMBER = z.number();

/** Rows that each write a line. What `done` gets is kept. */
function writing() {
  const ends: BatchEnded[] = [];
  const lines = batch("lines", { block: 2, row: NUMBER })
    .handle(({ input, line }, run) => {
      if (input < 0) throw new TerminalError("negative");
      run.write("out.txt", `${line}\n`);
    })
    .done((end) => void ends.push(end));
  return { lines, ends };
}

/** Runs the job that follows the end of a batch until it has ended, without its backoff. */
async function ended(engine: Engine, batchId: string): Promise<JobDetails> {
  const id = `${batchId}:done:1`;
  for (;;) {
    await engine.runUntilIdle();
    const done = (await engine.get(id))!;
    if (done.state !== "queued") return done;
    await engine.promote(id);
  }
}

/** A blob store that refuses this many puts. */
function refusing(blobs: BlobStore, times: number, error: () => Error): BlobStore & { left: number } {
  const store = {
    ...blobs,
    left: times,
    place: blobs.place,
    get: blobs.get.bind(blobs),
    head: blobs.head.bind(blobs),
    delete: blobs.delete.bind(blobs),
    list: blobs.list.bind(blobs),
    check: blobs.check.bind(blobs),
    async put(...given: Parameters<BlobStore["put"]>) {
      if (store.left-- > 0) throw error();
      return blobs.put(...given);
    },
  };
  return store;
}

const full = (): OutliveError => new OutliveError(ErrorCode.blobsFull, "The disk is full.", "Free some space.");

const readOnly = (): OutliveError =>
  new OutliveError(ErrorCode.blobsReadOnly, "The disk is read-only.", "Mount it as writable.");

async function textOf(blobs: BlobStore, key: string): Promise<string> {
  return Buffer.concat(await Array.fromAsync(blobs.get(key))).toString();
}

test("a blob store that is full for a while delays the end of a batch and loses nothing", async (t) => {
  const blobs = fileSystem({ folder: join(new Place(t).folder, "blobs") });
  const { lines, ends } = writing();
  const engine = await memory(t, [lines], { blobs: refusing(blobs, 3, full) });
  const { id } = await engine.submit(lines, [1, 2, 3]);
  assert.equal((await ended(engine, id)).state, "succeeded");
  assert.deepEqual(
    ends.map(({ rows, outputs }) => [rows.succeeded, outputs["out.txt"]!.bytes]),
    [[3, 6]],
    "done ran once, with the file",
  );
  assert.equal(await textOf(blobs, (await engine.batch(id))!.outputs["out.txt"]!.blob), "1\n2\n3\n");
});

for (const [what, error] of [
  ["full", full],
  ["read-only", readOnly],
] as const)
  test(`a blob store that stays ${what} ends the job of done with an error that says so; retried, it makes the file, and no row runs again`, async (t) => {
    const blobs = fileSystem({ folder: join(new Place(t).folder, "blobs") });
    const { lines, ends } = writing();
    const store = refusing(blobs, 100, error);
    const engine = await memory(t, [lines], { blobs: store });
    const { id } = await engine.submit(lines, [1, -2, 3]);
    const done = await ended(engine, id);
    const { state, rows, outputs } = (await engine.batch(id))!;
    assert.deepEqual([state, rows.succeeded, rows.failed, outputs], ["completed", 2, 1, {}]);
    assert.equal(done.state, "dead");
    assert.match(done.error!.message, new RegExp(`The disk is ${what}`));
    assert.equal(ends.length, 0);
    store.left = 0;
    await engine.retry(done.id);
    await engine.runUntilIdle();
    assert.deepEqual(
      ends.map(({ rows }) => rows.succeeded),
      [2],
    );
    assert.equal(await textOf(blobs, ends[0]!.outputs["out.txt"]!.blob), "1\n3\n");
    // A round of the failed rows makes the file again, with what the earlier rounds wrote.
    await engine.retryBatch(id);
    await engine.runUntilIdle();
    assert.equal(await textOf(blobs, ends[1]!.outputs["out.txt"]!.blob), "1\n3\n");
    assert.deepEqual(
      (await Array.fromAsync(blobs.list())).map(({ key }) => key).toSorted(),
      ends.map(({ outputs }) => outputs["out.txt"]!.blob).toSorted(),
      "what an earlier end was given stays",
    );
  });

test("a folder of blobs that is missing is an error that says so, and the file is made once it is there again", async (t) => {
  const parent = join(new Place(t).folder, "mount");
  const blobs = fileSystem({ folder: join(parent, "blobs") });
  const { lines, ends } = writing();
  const engine = await memory(t, [lines], { blobs });
  const { id } = await engine.submit(lines, [1, 2]);
  const done = await ended(engine, id);
  assert.equal(done.state, "dead");
  assert.match(done.error!.message, /does not exist|is missing|not there/);
  mkdirSync(parent);
  await engine.retry(done.id);
  await engine.runUntilIdle();
  assert.equal(await textOf(blobs, ends[0]!.outputs["out.txt"]!.blob), "1\n2\n");
});

test("without a blob store, what rows wrote stays in the store until one is there", async (t) => {
  const place = new Place(t);
  const { lines, ends } = writing();
  const url = `sqlite:${join(place.folder, "jobs.db")}`;
  const without = await open(url, { jobs: [lines], logger: false });
  const { id } = await without.submit(lines, [1, 2, 3]);
  await without.start();
  const failed = await new Promise<{ readonly error: { readonly message: string } }>((resolve) =>
    without.on("job.failed", resolve),
  );
  assert.match(failed.error.message, /there is no blob store for output files.*The rows are done/);
  await without.close();
  const blobs = fileSystem({ folder: join(place.folder, "blobs") });
  await using engine = await open(url, { jobs: [lines], blobs, logger: false });
  await engine.promote(`${id}:done:1`);
  await engine.start();
  await engine.result(`${id}:done:1`);
  assert.equal(await textOf(blobs, ends[0]!.outputs["out.txt"]!.blob), "1\n2\n3\n");
});

test("a row that writes beyond the limit, no text, or to a name that is not one fails alone and says so", async (t) => {
  const blobs = fileSystem({ folder: join(new Place(t).folder, "blobs") });
  const rows = batch("rows", { block: 10, row: NUMBER, retry: { attempts: 1 } }).handle(({ input }, run) => {
    if (input === 1) run.write("out.txt", "x".repeat((1 << 20) + 1));
    if (input === 2) run.write("out.txt", 7 as never);
    if (input === 3) run.write("../out.txt", "x");
    run.write("out.txt", "x".repeat(1 << 20));
  });
  const engine = await memory(t, [rows], { blobs });
  const { id } = await engine.submit(rows, [1, 2, 3, 4]);
  await engine.runUntilIdle();
  const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
  assert.deepEqual(
    failed.map(({ line }) => line),
    [1, 2, 3],
  );
  assert.match(failed[0]!.error!.message, /Line 1 writes 1048577 characters to out\.txt at once/);
  assert.match(failed[1]!.error!.message, /line 2 writes to out\.txt is not a text/);
  assert.match(failed[2]!.error!.message, /"..\/out\.txt" is not a name/);
  const { rows: counts, outputs } = (await engine.batch(id))!;
  assert.deepEqual([counts.succeeded, counts.failed, outputs["out.txt"]!.bytes], [1, 3, 1 << 20]);
});

test("nothing can be appended to a batch that is sealed, aborted or gone", async (t) => {
  const rows = batch("rows", { row: NUMBER }).handle(() => {});
  const engine = await memory(t, [rows]);
  const sealed = await engine.openBatch(rows);
  assert.deepEqual(await sealed.append([1, 2]), { rows: 2 });
  await sealed.seal();
  await assert.rejects(sealed.append([3]), says(ErrorCode.wrongState, sealed.id, "sealed"));
  await sealed.seal();
  await engine.runUntilIdle();
  await assert.rejects(sealed.append([3]), says(ErrorCode.wrongState, sealed.id, "completed"));
  assert.equal((await engine.batch(sealed.id))!.rows.total, 2);
  const aborted = await engine.openBatch(rows);
  await engine.abortBatch(aborted.id);
  await assert.rejects(aborted.append([1]), says(ErrorCode.wrongState, aborted.id, "aborted"));
});
