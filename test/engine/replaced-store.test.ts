// A SQLite store that is not the one that was opened: its file was moved or replaced, or its rows are older than they were. A worker stops
// at once with STORE_REPLACED, and nothing is acknowledged that would be lost with the old file.
import assert from "node:assert/strict";
import { copyFileSync, renameSync, rmSync } from "node:fs";
import type { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { ErrorCode, job, open } from "../../src/index.ts";
import { whyRestored } from "../../src/stores/sqlite/workers.ts";
import { Place, untilTrue } from "../support/processes.ts";
import { PATIENT, raw, says } from "./engines.ts";

const note = job("note").handle(() => {});
const endless = job("endless").handle(
  (_input, run) => new Promise((resolve) => run.signal.addEventListener("abort", resolve)),
);
const OPTIONS = { jobs: [note, endless], logger: false, heartbeat: PATIENT, poll: "100ms" } as const;

test("when the file is replaced, the worker stops, and enqueue and get are refused instead of using a file that has no name", async (t) => {
  const place = new Place(t);
  const told: string[] = [];
  const engine = await open(place.url, { ...OPTIONS, onEvent: ({ name }) => void told.push(name) });
  t.after(() => engine.close({ grace: "0ms" }));
  const worker = await engine.start();
  const { id } = await engine.enqueue(endless, {});
  await untilTrue(
    () => worker.held,
    (held) => held === 1,
    "it runs",
  );
  const moved = `${place.folder}/moved.db`;
  for (const suffix of ["-wal", "-shm", ""]) renameSync(`${place.path}${suffix}`, `${moved}${suffix}`);
  await assert.rejects(
    worker.stopped,
    says(
      ErrorCode.storeReplaced,
      "is not the one that this worker registered with",
      "its file was moved or removed",
      "start this program again",
    ),
  );
  assert.deepEqual(
    [told.filter((name) => name === "store.replaced").length, told.includes("worker.disowned")],
    [1, false],
  );
  for (const ask of [() => engine.enqueue(note, {}), () => engine.get(id), () => engine.start()])
    await assert.rejects(ask(), says(ErrorCode.storeReplaced, place.path, "Nothing was written"));
});

test("a worker that is asked to stop after its file was replaced stops at once, without waiting for its grace", async (t) => {
  const place = new Place(t);
  const engine = await open(place.url, { ...OPTIONS, poll: "60s", heartbeat: { ...PATIENT, interval: "20s" } });
  const worker = await engine.start();
  await engine.enqueue(endless, {});
  await untilTrue(
    () => worker.held,
    (held) => held === 1,
    "it runs",
  );
  renameSync(place.path, `${place.folder}/moved.db`);
  copyFileSync(`${place.folder}/moved.db`, place.path);
  const began = performance.now();
  await worker.stop({ grace: "2m" }).catch(() => {});
  assert.ok(performance.now() - began < 60_000);
  await engine.close({ grace: "0ms" });
});

/** Each is what an older copy shows that was written over the file. */
const OLDER: Readonly<Record<string, readonly [change: (db: DatabaseSync, path: string) => void, why: RegExp]>> = {
  "an older epoch": [
    (db) => db.exec("UPDATE outlive_meta SET value = value - 1 WHERE key = 'epoch'"),
    /its epoch fell from \d+ to \d+/,
  ],
  "older heartbeats": [
    (db) => db.exec("UPDATE outlive_workers SET beats = 0"),
    /the heartbeats of worker .* fell from \d+ to 0/,
  ],
  "no row of the worker": [(db) => db.exec("DELETE FROM outlive_workers"), /worker .* has no row in it/],
  "another worker with its number": [
    (db) => db.exec("UPDATE outlive_workers SET id = 'other'"),
    /worker .* has no row in it/,
  ],
  "no log": [(_, path) => rmSync(`${path}-wal`), /its write-ahead log was removed or replaced/],
};

for (const [what, [change, why]] of Object.entries(OLDER))
  test(`a worker whose file suddenly has ${what} stops at once`, async (t) => {
    const place = new Place(t);
    const engine = await open(place.url, OPTIONS);
    t.after(() => engine.close({ grace: "0ms" }));
    const worker = await engine.start();
    const db = raw(t, place.path);
    const beats = () => (db.prepare("SELECT beats FROM outlive_workers").get() as { beats: number }).beats;
    await untilTrue(beats, (count) => count >= 3, "it has beaten");
    change(db, place.path);
    await assert.rejects(worker.stopped, says(ErrorCode.storeReplaced, why));
  });

test("an inode says something during one boot only, and an epoch always", () => {
  const mark = { boot: "b1", inode: "7", epoch: 100 };
  assert.equal(whyRestored(null, { boot: "b1", inode: "7" }, 0), null);
  assert.equal(whyRestored(mark, { boot: "b1", inode: "7" }, 100), null);
  assert.equal(whyRestored(mark, { boot: "b2", inode: "8" }, 100), null);
  assert.match(whyRestored(mark, { boot: "b1", inode: "8" }, 101)!, /another one/);
  assert.match(whyRestored(mark, { boot: "b2", inode: "7" }, 99)!, /its epoch is 99, and 100 was issued before/);
});
