// Parked messages without a broker: what becomes of each when it is handled again, and that they go with their collection.
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileSystem } from "../../src/blobs.ts";
import { type ParkedAs, parkedAs, parkedBlobOf, sha256 } from "../../src/collections/blob-names.ts";
import { collection, type EngineOptions, job, open } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { PATIENT, untilTrue } from "../support/processes.ts";

type Message = { collection?: string; series?: string; ordinal?: number; kind?: string };

async function place(t: TestContext, jobs: NonNullable<EngineOptions["jobs"]>) {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  const path = join(folder, "jobs.db");
  const blobs = fileSystem({ folder: join(folder, "blobs") });
  const opened = async (kinds: NonNullable<EngineOptions["jobs"]>) => {
    const engine = await open(`sqlite:${path}`, { jobs: kinds, blobs, logger: false, heartbeat: PATIENT });
    t.after(() => engine.close({ grace: "0ms" }));
    return engine;
  };
  const engine = await opened(jobs);
  const store = await openStore(systemClock, path);
  t.after(async () => {
    await store.close();
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  let count = 0;
  /** Parks it as a worker would, and returns its row. `as`: a name of an earlier version. */
  const park = async (body: string, as: ParkedAs | string, message: Message) => {
    const { kind = "scan", collection: id = null, series = null, ordinal = null } = message;
    const name = `0${++count}`;
    const blob = typeof as === "string" ? as : parkedBlobOf(kind, name, as);
    await blobs.put(blob, Buffer.from(body));
    const place = { collection: id, series, ordinal };
    await store.collections!.park([{ id: name, kind, ...place, reason: "torn", blob, bytes: body.length }]);
    return (await engine.parked()).find((one) => one.id === name)!;
  };
  const bodies = (): string[] =>
    readdirSync(join(folder, "blobs", "parked"), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map(({ name }) => name.split(".")[0]!);
  return { engine, opened, blobs, park, bodies };
}

const of = (ordinal: number): Message => ({ collection: "a", series: "files", ordinal });

test("the name of a parked body says what the message is, and one of an earlier version what it said then", () => {
  const hash = sha256(Buffer.from("one"));
  const all: readonly ParkedAs[] = [
    { is: "part", total: null },
    { is: "part", total: 160 },
    { is: "part", total: 160, sha256: hash },
    { is: "part", total: null, sha256: "0" },
    { is: "header" },
    { is: "job", job: "m0a" },
  ];
  for (const as of all) assert.deepEqual(parkedAs(parkedBlobOf("scan", "0a", as)), as);
  assert.equal(parkedAs("parked/scan/0a"), null);
  assert.deepEqual(parkedAs("parked/scan/0a.total-160"), { is: "part", total: 160 });
});

test("a parked part is stored only with the bytes that were announced, in its place, and if it is not too large for its kind by then", async (t) => {
  const scan = collection("scan", { series: ["files"], message: { max: 10 } });
  const { engine, opened, park } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a", expect: { files: 3 } });
  const part = { is: "part", total: null } as const;
  const torn = await park("torn", { ...part, sha256: sha256(Buffer.from("whole")) }, of(1));
  const unreadable = await park("torn", { ...part, sha256: "0" }, of(1));
  const nowhere = await park("zero", part, of(0));
  const large = await park("eleven bytes", part, of(2));
  for (const message of [torn, unreadable, nowhere, large])
    assert.equal(await engine.retryParked(message), "kept", `${message.blob}`);
  assert.equal((await engine.collection("a"))?.series["files"]?.missing, "1-3");
  const whole = await park("whole", { ...part, sha256: sha256(Buffer.from("whole")) }, of(1));
  assert.equal(await engine.retryParked(whole), "accepted");
  const larger = await opened([collection("scan", { series: ["files"], message: { max: 20 } })]);
  assert.equal(await larger.retryParked(large), "accepted", "with another limit");
  assert.equal((await engine.collection("a"))?.series["files"]?.missing, "3");
  const left = (await engine.parked()).map(({ id }) => id);
  assert.deepEqual(left, [torn.id, unreadable.id, nowhere.id]);
});

test("a part without a series is not taken for a header, whatever its body is; with a name of an earlier version it is", async (t) => {
  const scan = collection("scan", { series: ["files"] });
  const { engine, park } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a" });
  const body = '{"series":{"files":1}}';
  assert.equal(await engine.retryParked(await park(body, { is: "part", total: null }, { collection: "a" })), "kept");
  assert.equal((await engine.collection("a"))?.series["files"]?.expected, null);
  assert.equal(await engine.retryParked(await park(body, "parked/scan/0a", { collection: "a" })), "accepted");
  assert.equal((await engine.collection("a"))?.series["files"]?.expected, 1);
});

test("a parked header that contradicts what is announced stays parked, and one of a collection that has ended does not", async (t) => {
  const scan = collection("scan", { series: ["files", "notes"] });
  const { engine, park } = await place(t, [scan]);
  await engine.collect(scan, null, { id: "a", expect: { files: 2 } });
  const header = (series: object) => park(JSON.stringify({ series }), { is: "header" }, { collection: "a" });
  const [contradicts, late] = [await header({ files: 3 }), await header({ notes: 1 })];
  assert.equal(await engine.retryParked(contradicts), "conflict");
  await engine.cancelCollection("a");
  assert.equal(await engine.retryParked(late), "closed");
  assert.deepEqual(
    (await engine.parked()).map(({ id }) => id),
    [contradicts.id],
  );
});

test("a parked message stays parked if its body is gone, and one for a job if no job can have its input", async (t) => {
  const report = job("report").handle(() => {});
  const scan = collection("scan", { series: ["files"] });
  const { engine, blobs, park } = await place(t, [scan, report]);
  await engine.collect(scan, null, { id: "a", expect: { files: 2 } });
  // Two of an earlier version that share a body.
  const shared = [
    await park("the same bytes", "parked/scan/0a", of(1)),
    await park("the same bytes", "parked/scan/0a", of(2)),
  ];
  const became: string[] = [];
  for (const message of shared) became.push(await engine.retryParked(message));
  assert.deepEqual(became, ["accepted", "kept"]);
  for (const input of [JSON.stringify("x".repeat(1_048_577)), '{"__proto__":1}'])
    assert.equal(await engine.retryParked(await park(input, { is: "job", job: "m1" }, { kind: "report" })), "kept");
  const good = await park("1", { is: "job", job: "m1" }, { kind: "report" });
  assert.equal(await engine.retryParked(good), "accepted");
  assert.equal(await blobs.head(good.blob!), null, "its body is gone");
});

test("what is parked of a collection goes with it, rows and bodies, and nothing of another one", async (t) => {
  const brief = collection("scan", { series: ["files"], keep: "1ms" }).abandoned(() => {});
  const { engine, park, bodies } = await place(t, [brief]);
  for (const id of ["a", "b"]) await engine.collect(brief, null, { id });
  for (let ordinal = 1; ordinal <= 3; ordinal++) await park("torn", { is: "part", total: null }, of(ordinal));
  const other = await park("torn", { is: "part", total: null }, { ...of(1), collection: "b" });
  await engine.start();
  await engine.cancelCollection("a");
  await untilTrue(
    () => engine.collection("a"),
    (found) => found === null,
    "it is cleaned up",
  );
  assert.deepEqual(
    (await engine.parked()).map(({ id }) => id),
    [other.id],
  );
  assert.deepEqual(bodies(), [other.id]);
});
