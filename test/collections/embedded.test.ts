// Collections without a broker: SQLite and a folder. What every call answers, and how a collection comes from its request to its notification.
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { collection, type Engine, type EngineEvent, type EngineOptions, ErrorCode, open } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { PATIENT, untilTrue } from "../support/processes.ts";
import { SmallDisk } from "../support/small-disk.ts";

const bytes = (text: string): Buffer => Buffer.from(text);

async function place(t: TestContext, jobs: NonNullable<EngineOptions["jobs"]>, options: EngineOptions = {}) {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  const path = join(folder, "jobs.db");
  const blobs = join(folder, "blobs");
  const engine = await open(`sqlite:${path}`, { jobs, blobs, logger: false, heartbeat: PATIENT, ...options });
  t.after(async () => {
    await engine.close({ grace: "0ms" });
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  return { engine, path, blobs };
}

const untilIs = (engine: Engine, id: string, state: string): Promise<unknown> =>
  untilTrue(
    () => engine.collection(id),
    (found) => found?.state === state,
    `collection ${id} is ${state}`,
  );

const blobsIn = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.parentPath.includes(".incoming"))
    .map((entry) => entry.name);

test("CR-01 CR-06 a collection is requested, collects its parts in any order, is complete once, and is notified", async (t) => {
  const did: string[] = [];
  const scan = collection("scan", { series: ["files", "permissions"] });
  scan.request(
    (input, run) => void did.push(`request ${JSON.stringify(input)} ${run.collection} ${JSON.stringify(run.wire)}`),
  );
  scan.done(async (collected) => {
    for await (const part of collected.parts("files")) {
      const chunks: Uint8Array[] = [];
      for await (const chunk of part.stream()) chunks.push(chunk);
      did.push(`part ${part.ordinal} ${Buffer.concat(chunks).toString()}`);
    }
  });
  const { engine } = await place(t, [scan]);
  const events: EngineEvent[] = [];
  for (const name of ["collection.started", "collection.changed", "part.accepted"] as const)
    engine.on(name, (event) => void events.push(event as unknown as EngineEvent));
  assert.deepEqual(await engine.collect(scan, { share: "x" }, { id: "tx-42", expect: { files: 2 } }), {
    id: "tx-42",
    created: true,
  });
  assert.equal((await engine.collection("tx-42"))?.state, "requested", "the state is durable before anything goes out");
  assert.deepEqual(await engine.collect(scan, { share: "other" }, { id: "tx-42" }), { id: "tx-42", created: false });
  await engine.start();
  await untilIs(engine, "tx-42", "collecting");
  assert.equal(await engine.put(scan, "tx-42", "files", 2, bytes("two")), "accepted");
  assert.equal(await engine.put(scan, "tx-42", "permissions", 1, bytes("p")), "accepted");
  assert.equal(await engine.put(scan, "tx-42", "files", 1, bytes("one")), "accepted");
  const { series, why, state } = (await engine.collection("tx-42"))!;
  assert.deepEqual(
    [state, series["files"], series["permissions"]?.expected, why],
    ["collecting", { expected: 2, have: 2, missing: "", bytes: 6 }, null, "permissions is not announced"],
  );
  await engine.announce(scan, "tx-42", { permissions: 1 });
  await untilIs(engine, "tx-42", "notified");
  await untilTrue(
    () => engine.get("tx-42:done"),
    (job) => job?.state === "succeeded",
    "what follows has run",
  );
  assert.deepEqual(did, ['request {"share":"x"} tx-42 null', "part 1 one", "part 2 two"]);
  const { transitions, createdAt, updatedAt } = (await engine.collection("tx-42"))!;
  assert.deepEqual(
    transitions.map((one) => one.state),
    ["requested", "collecting", "complete", "notified"],
  );
  assert.ok(updatedAt >= createdAt);
});

test("CR-04 put says accepted, duplicate, conflict, closed and unknown, and stores only what is accepted", async (t) => {
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const { engine, blobs, path } = await place(t, [scan]);
  const skipped: string[] = [];
  engine.on("part.skipped", ({ answer, ordinal }) => void skipped.push(`${answer} ${ordinal}`));
  await engine.collect(scan, null, { id: "a", expect: { files: 2 } });
  const put = (id: string, ordinal: number, text: string, series = "files") =>
    engine.put(scan, id, series, ordinal, bytes(text));
  assert.equal(await put("a", 1, "one"), "accepted");
  assert.equal(await put("a", 1, "one"), "duplicate");
  assert.equal(await put("a", 1, "another"), "conflict");
  assert.equal(await put("a", 3, "beyond"), "conflict");
  assert.equal(await put("b", 1, "one"), "unknown");
  assert.equal(await put("a", 1, "one", "others"), "unknown");
  assert.equal(blobsIn(blobs).length, 1, "one blob for the one part");
  assert.equal(await put("a", 2, "two"), "accepted");
  assert.equal((await engine.collection("a"))?.state, "complete");
  assert.equal(await put("a", 2, "two"), "duplicate", "a repetition after the end is still the same part");
  await engine.collect(scan, null, { id: "c", expect: { files: 1 } });
  await engine.cancelCollection("c");
  assert.equal(await put("c", 1, "late"), "closed");
  assert.deepEqual(skipped, [
    "duplicate 1",
    "conflict 1",
    "conflict 3",
    "unknown 1",
    "unknown 1",
    "duplicate 2",
    "closed 1",
  ]);
  assert.equal(blobsIn(blobs).length, 2);
  const store = await openStore(systemClock, path);
  try {
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  } finally {
    await store.close();
  }
});

test("an announcement that contradicts another, or a part that is there, is refused as a whole", async (t) => {
  const scan = collection("scan", { series: ["files", "permissions"] }).done(() => {});
  const { engine } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a" });
  await engine.put(scan, "a", "files", 7, bytes("seven"));
  const refused = (expected: Record<string, number>, code: ErrorCode) =>
    assert.rejects(engine.announce(scan, "a", expected), { code });
  await refused({ permissions: 1, files: 6 }, ErrorCode.wrongState);
  assert.equal((await engine.collection("a"))?.series["permissions"]?.expected, null, "nothing of it was written");
  await engine.announce(scan, "a", { files: 7 });
  await engine.announce(scan, "a", { files: 7 });
  await refused({ files: 8 }, ErrorCode.wrongState);
  await refused({ nothing: 1 }, ErrorCode.optionInvalid);
  await refused({ files: -1 }, ErrorCode.optionInvalid);
  await assert.rejects(engine.announce(scan, "none", { files: 7 }), { code: ErrorCode.notFound });
});

test("bad input is refused with what to do next, and nothing is stored", async (t) => {
  const scan = collection("scan", { series: ["files"], message: { max: 10 } }).done(() => {});
  const { engine, blobs } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a" });
  for (const ordinal of [0, -1, 1.5, Number.NaN, 1e12, "1" as never])
    await assert.rejects(engine.put(scan, "a", "files", ordinal, bytes("x")), { code: ErrorCode.optionInvalid });
  await assert.rejects(engine.put(scan, "a", "files", 1, bytes("eleven bytes")), { code: ErrorCode.optionInvalid });
  await assert.rejects(engine.put(scan, "a", "files", 1, "text" as never), { code: ErrorCode.optionInvalid });
  assert.throws(() => collection("x", { series: [] }), { code: ErrorCode.optionInvalid });
  assert.throws(() => collection("x", { series: ["a", "a"] }), { code: ErrorCode.optionInvalid });
  assert.throws(() => collection("x", { series: ["a"], message: { max: "2MB" }, memory: "1MB" }), {
    code: ErrorCode.optionInvalid,
  });
  assert.deepEqual(readdirSync(join(blobs, "..")).includes("blobs") ? blobsIn(blobs) : [], []);
});

test("a collection of another kind is unknown: no part is put into it, nothing is announced for it, and no blob is left", async (t) => {
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const other = collection("other", { series: ["files"] }).done(() => {});
  const { engine, blobs } = await place(t, [scan, other]);
  await engine.collect(scan, null, { id: "a" });
  assert.equal(await engine.put(scan, "a", "files", 1, bytes("one")), "accepted");
  for (const ordinal of [1, 2]) assert.equal(await engine.put(other, "a", "files", ordinal, bytes("one")), "unknown");
  await assert.rejects(engine.announce(other, "a", { files: 1 }), { code: ErrorCode.notFound });
  const { series, state } = (await engine.collection("a"))!;
  assert.deepEqual([series["files"]?.have, series["files"]?.expected, state], [1, null, "collecting"]);
  assert.equal(blobsIn(blobs).length, 1);
});

test("without a blob store a put is refused, and the collection stays as it is", async (t) => {
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const engine = await open("sqlite::memory:", { jobs: [scan], logger: false });
  t.after(() => engine.close());
  await engine.collect(scan, null, { id: "a" });
  await assert.rejects(engine.put(scan, "a", "files", 1, bytes("x")), { code: ErrorCode.optionInvalid });
});

test("a collection of no parts is complete when that is announced", async (t) => {
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const { engine } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a", expect: { files: 0 } });
  assert.equal((await engine.collection("a"))?.state, "complete");
  await engine.collect(scan, null, { id: "b" });
  await engine.announce(scan, "b", { files: 0 });
  assert.equal((await engine.collection("b"))?.state, "complete");
});

test("CR-08 a collection to which nothing comes is abandoned with what is missing, cleaned up, and others are not touched", async (t) => {
  const ended: unknown[] = [];
  const slow = collection("slow", { series: ["files", "notes"], abandonAfter: { idle: "300ms" }, keep: "1ms" });
  slow.abandoned(({ id, state, missing, why }) => void ended.push({ id, state, missing, why }));
  const kept = collection("kept", { series: ["files"] }).done(() => {});
  const { engine, blobs } = await place(t, [slow, kept]);
  await engine.collect(kept, null, { id: "stays", expect: { files: 2 } });
  await engine.put(kept, "stays", "files", 1, bytes("here"));
  await engine.collect(slow, null, { id: "a", expect: { files: 42 } });
  await engine.put(slow, "a", "files", 2, bytes("two"));
  await engine.put(slow, "a", "files", 4, bytes("four"));
  await engine.start();
  await untilTrue(
    () => engine.collection("a"),
    (found) => found === null,
    "the abandoned collection is cleaned up",
  );
  assert.deepEqual(ended, [
    {
      id: "a",
      state: "abandoned",
      missing: { files: "1, 3, 5-42", notes: "..." },
      why: "no part of it came for 300 ms",
    },
  ]);
  assert.deepEqual(blobsIn(blobs).length, 1, "only the blob of the other collection is left");
  assert.equal((await engine.collection("stays"))?.state, "collecting");
});

test("CR-08 a collection that is not complete in its time is abandoned although its parts still come, and takes no more of them", async (t) => {
  const reasons: unknown[] = [];
  const scan = collection("scan", { series: ["files"], abandonAfter: { idle: "1h", total: "300ms" } });
  scan.abandoned(({ state, why }) => void reasons.push([state, why]));
  const { engine } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a" });
  await engine.start();
  let ordinal = 0;
  const answer = await untilTrue(
    () => engine.put(scan, "a", "files", ++ordinal, bytes("x")),
    (became) => became !== "accepted",
    "it takes no more parts",
  );
  assert.equal(answer, "closed");
  await untilTrue(
    () => reasons.length,
    (count) => count > 0,
    "its end is handled",
  );
  assert.deepEqual(reasons, [["abandoned", "it was not complete 300 ms after it was opened"]]);
});

test("parts are not cleaned up before done has run, however long that takes and however short they are to be kept", async (t) => {
  const scan = collection("scan", { series: ["files"], keep: "1ms" });
  const read: string[] = [];
  let mayRead = (): void => {};
  const released = new Promise<void>((resolve) => (mayRead = resolve));
  scan.done(async (collected) => {
    await released;
    for await (const part of collected.parts("files"))
      read.push(Buffer.concat(await Array.fromAsync(part.stream())).toString());
  });
  const { engine, blobs } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a", expect: { files: 2 } });
  await engine.put(scan, "a", "files", 1, bytes("one"));
  await engine.put(scan, "a", "files", 2, bytes("two"));
  await engine.start();
  await untilTrue(
    () => engine.get("a:clean-up"),
    (job) => job !== null && job.waitsAt !== null,
    "the clean-up waits",
  );
  assert.equal((await engine.collection("a"))?.state, "notified");
  assert.equal(blobsIn(blobs).length, 2);
  mayRead();
  await untilTrue(
    () => engine.collection("a"),
    (found) => found === null,
    "it is cleaned up",
  );
  assert.deepEqual(read, ["one", "two"]);
  assert.deepEqual(blobsIn(blobs), []);
});

test("the steps of collections are log lines: open, complete, notified, and abandoned with the reason as a warning", async (t) => {
  const lines: string[] = [];
  const add = (level: string) => (text: string) => {
    if (text.startsWith("collection ")) lines.push(`${level}: ${text}`);
  };
  const logger = { debug: add("debug"), info: add("info"), warn: add("warn"), error: add("error") };
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const { engine } = await place(t, [scan], { logger });
  await engine.start();
  await engine.collect(scan, null, { id: "a", expect: { files: 1 } });
  await engine.put(scan, "a", "files", 1, bytes("one"));
  await untilIs(engine, "a", "notified");
  await engine.collect(scan, null, { id: "b" });
  await engine.abandonCollection("b");
  const steps = [
    "info: collection a of scan is open",
    "info: collection a of scan is complete",
    "info: collection a of scan is notified",
    "info: collection b of scan is open",
  ];
  await untilTrue(
    () => lines.filter((line) => steps.includes(line)),
    (found) => found.length === steps.length,
    "each step has one line",
  );
  assert.match(lines.find((line) => line.includes("abandoned")) ?? "", /^warn: collection b of scan is abandoned: ./);
});

test("a logger with debug gets a line for each accepted part, and none for a part that was there", async (t) => {
  const lines: unknown[] = [];
  const add = (level: string) => (text: string, data?: object) => {
    if (text.startsWith("part ")) lines.push([level, text, (data as { bytes?: number }).bytes]);
  };
  const logger = { debug: add("debug"), info: add("info"), warn: add("warn"), error: add("error") };
  const scan = collection("scan", { series: ["files"] });
  const { engine } = await place(t, [scan], { logger });
  await engine.collect(scan, null, { id: "a" });
  for (let times = 0; times < 2; times++) await engine.put(scan, "a", "files", 1, bytes("one"));
  assert.deepEqual(lines, [
    ["debug", "part 1 of files of collection a was accepted: 3 bytes", 3],
    ["info", "part 1 of files of collection a was skipped: duplicate", undefined],
  ]);
});

test("CR-02 collections are listed by state, and an open says how many have not ended", async (t) => {
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const { engine, path, blobs } = await place(t, [scan]);
  for (const id of ["a", "b", "c"]) await engine.collect(scan, null, { id, expect: { files: 1 } });
  await engine.put(scan, "b", "files", 1, bytes("b"));
  await engine.cancelCollection("c");
  const ids = async (state: "requested" | "complete" | "cancelled") =>
    (await engine.collections({ state })).map(({ id }) => id);
  assert.deepEqual([await ids("requested"), await ids("complete"), await ids("cancelled")], [["a"], ["b"], ["c"]]);
  assert.deepEqual(
    (await engine.collections({ limit: 2 })).map(({ id }) => id),
    ["c", "b"],
  );
  const found: EngineEvent[] = [];
  const again = await open(`sqlite:${path}`, {
    jobs: [scan],
    blobs,
    logger: false,
    onEvent: (event) => void (event.name === "collections.found" && found.push(event)),
  });
  await again.close();
  assert.deepEqual(found, [{ name: "collections.found", counts: { requested: 1, complete: 1 } }]);
});

test("of a million ordinals the missing ones are found in one query", async (t) => {
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const { engine } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a", expect: { files: 1_000_000 } });
  await engine.put(scan, "a", "files", 500_000, bytes("x"));
  assert.equal((await engine.collection("a"))?.series["files"]?.missing, "1-499999, 500001-1000000");
});

test("a full blob store refuses a part with what to do next, and takes it when there is room", async (t) => {
  const disk = new SmallDisk(t, "1m");
  const scan = collection("scan", { series: ["files"] }).done(() => {});
  const { engine } = await place(t, [scan], { blobs: join(disk.folder, "blobs") });
  await engine.collect(scan, null, { id: "a", expect: { files: 1 } });
  disk.fill();
  await assert.rejects(engine.put(scan, "a", "files", 1, bytes("one")), { code: ErrorCode.blobsFull });
  assert.equal((await engine.collection("a"))?.series["files"]?.have, 0);
  disk.makeRoom();
  assert.equal(await engine.put(scan, "a", "files", 1, bytes("one")), "accepted");
});
