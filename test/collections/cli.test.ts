// The command line on collections, and workers of `outlive work` that collect from the broker of the setting `broker`.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import amqplib from "amqplib";
import { fileSystem } from "../../src/blobs.ts";
import { parkedBlobOf } from "../../src/collections/blob-names.ts";
import { collection, open } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { cli, startCli } from "../support/cli.ts";
import { PATIENT, Place, untilTrue } from "../support/processes.ts";
import { freshKind, sharedRabbitmq } from "../support/rabbitmq.ts";

const INDEX = fileURLToPath(new URL("../../src/index.ts", import.meta.url));

interface Prepared {
  readonly kind: string;
  readonly store: string;
  readonly cwd: string;
  readonly scan: ReturnType<typeof collection>;
  /** One command; its JSON, and its text for people. */
  readonly run: (...args: string[]) => Promise<{ code: number | null; json: Record<string, unknown>; text: string }>;
}

function prepared(t: TestContext): Prepared {
  const place = new Place(t);
  const kind = freshKind();
  const store = `sqlite:${place.path}`;
  mkdirSync(join(place.folder, "jobs"));
  const module = `import { collection } from ${JSON.stringify(INDEX)};
export const scan = collection(${JSON.stringify(kind)}, { series: ["files"], message: { max: 100 } }).done(() => {});\n`;
  writeFileSync(join(place.folder, "jobs", "scan.ts"), module);
  const scan = collection(kind, { series: ["files"], message: { max: 100 } });
  const env = { OUTLIVE_BLOBS: "./blobs" };
  return {
    kind,
    store,
    cwd: place.folder,
    scan,
    run: async (...args) => {
      const at = { store, cwd: place.folder, env };
      const { code, stdout, stderr } = await cli(t, [...args, "--json"], at);
      const text = (
        await cli(
          t,
          args.filter((one) => !/--(retry|drop|cancel)/.test(one)),
          at,
        )
      ).stdout;
      assert.equal(stderr.includes("    at "), false, stderr);
      return { code, json: (stdout.trim() === "" ? {} : JSON.parse(stdout)) as Record<string, unknown>, text };
    },
  };
}

test("collections, collection, put, abandon and parked show and do what the engine does", async (t) => {
  const { kind, store, cwd, scan, run } = prepared(t);
  const engine = await open(store, { jobs: [scan], blobs: join(cwd, "blobs"), logger: false, heartbeat: PATIENT });
  await engine.collect(scan, null, { id: "a", expect: { files: 3 } });
  await engine.collect(scan, null, { id: "b", expect: { files: 1 } });
  writeFileSync(join(cwd, "part"), "one");
  const put = await run("put", kind, "a", "files", "1", "part");
  assert.deepEqual([put.code, put.json["answer"]], [0, "accepted"]);
  assert.match(put.text, /duplicate/, "the second time");
  const unknown = await run("put", kind, "nobody", "files", "1", "part");
  assert.notEqual(unknown.code, 0);
  const listed = await run("collections", "--kind", kind);
  assert.deepEqual(
    (listed.json["collections"] as { id: string }[]).map(({ id }) => id),
    ["b", "a"],
  );
  assert.match(listed.text, /a .*requested|a .*collecting/);
  const one = await run("collection", "a");
  assert.equal((one.json["series"] as { files: { missing: string } }).files.missing, "2-3");
  assert.match(one.text, /lacks 2 of 3 \(2-3\)/);
  const abandoned = await run("abandon", "b");
  assert.equal(abandoned.code, 0, JSON.stringify(abandoned));
  assert.equal((await engine.collection("b"))?.state, "abandoned");
  const backing = await openStore(systemClock, store.slice("sqlite:".length));
  const message = { id: "p1", kind, collection: "a", series: "files", ordinal: 2, reason: "torn", bytes: 1 };
  await backing.collections!.park([{ ...message, blob: null }]);
  await backing.close();
  const parked = await run("parked");
  assert.match(parked.text, /torn/);
  assert.equal((await run("parked", "p1", "--drop")).code, 0);
  assert.deepEqual(await engine.parked(), []);
  await engine.close({ grace: "0ms" });
});

test("parked finds a message by its id on any page, and retries and drops all of them, or as many as --limit says", async (t) => {
  const { kind, store, cwd, scan, run } = prepared(t);
  const blobs = join(cwd, "blobs");
  const engine = await open(store, { jobs: [scan], blobs, logger: false, heartbeat: PATIENT });
  t.after(() => engine.close({ grace: "0ms" }));
  await engine.collect(scan, null, { id: "a" });
  const backing = await openStore(systemClock, store.slice("sqlite:".length));
  const ids = Array.from({ length: 1_005 }, (_, n) => `p${String(n).padStart(4, "0")}`);
  const message = { kind, collection: "a", series: "files", ordinal: 1, reason: "torn", bytes: 1, blob: null };
  await backing.collections!.park(ids.map((id) => ({ id, ...message })));
  await backing.close();
  const listed = async (...args: string[]): Promise<string[]> =>
    ((await run("parked", ...args)).json["parked"] as { id: string }[]).map(({ id }) => id);
  assert.deepEqual(await listed(), ids.slice(0, 50));
  assert.deepEqual(await listed(ids.at(-1)!), ids.slice(-1));
  const retried = (await run("parked", "--retry")).json["results"] as { became: string }[];
  assert.deepEqual([retried.length, new Set(retried.map(({ became }) => became))], [ids.length, new Set(["kept"])]);
  assert.equal(((await run("parked", "--drop", "--limit", "2")).json["results"] as unknown[]).length, 2);
  assert.equal(((await run("parked", "--drop")).json["results"] as unknown[]).length, ids.length - 2);
  assert.deepEqual(await engine.parked(), []);
});

test("parked --retry handles every message, also behind one that fails: jobs by the modules that export them, the reason of a failure, and exit code 1 if anything stays", async (t) => {
  const { kind, store, cwd, scan, run } = prepared(t);
  const module = `import { job } from ${JSON.stringify(INDEX)};
const validate = (value) => { if (value === 1) throw new TypeError("its check has a fault"); return { value }; };
export const report = job("report", { input: { "~standard": { version: 1, vendor: "test", validate } } });\n`;
  writeFileSync(join(cwd, "jobs", "report.ts"), module);
  const blobs = fileSystem({ folder: join(cwd, "blobs") });
  const engine = await open(store, { jobs: [scan], blobs, logger: false, heartbeat: PATIENT });
  t.after(() => engine.close({ grace: "0ms" }));
  await engine.collect(scan, null, { id: "a" });
  const backing = await openStore(systemClock, store.slice("sqlite:".length));
  const none = { kind: "report", collection: null, series: null, ordinal: null, reason: "torn" };
  for (const [id, body] of [
    ["01", "1"],
    ["02", '{"__proto__":1}'],
    ["03", "3"],
  ] as const) {
    const blob = parkedBlobOf("report", id, { is: "job", job: `m${id}` });
    await blobs.put(blob, Buffer.from(body));
    await backing.collections!.park([{ ...none, id, blob, bytes: body.length }]);
  }
  const large = parkedBlobOf(kind, "04", { is: "part", total: null });
  await blobs.put(large, Buffer.alloc(101));
  const part = { id: "04", kind, collection: "a", series: "files", ordinal: 1, reason: "too large" };
  await backing.collections!.park([{ ...part, blob: large, bytes: 101 }]);
  await backing.close();
  const retried = await run("parked", "--retry");
  assert.deepEqual(retried.json["results"], [
    { id: "01", became: "failed", why: "its check has a fault" },
    { id: "02", became: "kept" },
    { id: "03", became: "accepted" },
    { id: "04", became: "kept" },
  ]);
  assert.equal(retried.code, 1);
  const { jobs } = await engine.list({ kind: "report" });
  assert.deepEqual(
    jobs.map(({ id }) => id),
    ["m03"],
  );
  const text = await cli(t, ["parked", "01", "--retry"], { store, cwd, env: { OUTLIVE_BLOBS: "./blobs" } });
  assert.deepEqual([text.code, text.stdout.trim()], [1, "01 failed its check has a fault"]);
  const unknown = await cli(t, ["parked", "05", "--retry"], { store, cwd, env: { OUTLIVE_BLOBS: "./blobs" } });
  assert.deepEqual([unknown.code, /There is no parked message 05/.test(unknown.stderr)], [3, true]);
  assert.equal((await run("parked", "--drop")).code, 0);
  assert.deepEqual(await engine.parked(), []);
});

test("workers of `outlive work` collect from the broker that the environment names, and check shows it without its password", async (t) => {
  const { kind, store, cwd, scan } = prepared(t);
  const broker = await sharedRabbitmq();
  const env = { OUTLIVE_BROKER: broker, OUTLIVE_BLOBS: "./blobs", OUTLIVE_HEARTBEAT_INTERVAL: "1s" };
  const checked = await cli(t, ["check", "--json"], { store, cwd, env });
  const { values } = JSON.parse(checked.stdout) as { values: { key: string; value: string; source: string }[] };
  const { value, source } = values.find(({ key }) => key === "broker")!;
  assert.deepEqual([value.includes("guest@"), value.includes("guest:guest"), source], [false, false, "OUTLIVE_BROKER"]);
  const refused = await cli(t, ["check"], { store, cwd, env: { ...env, OUTLIVE_BROKER: "http://x" } });
  assert.match(refused.stderr, /OUTLIVE_BROKER: broker is .*Use an address such as/s);
  const work = startCli(t, ["work", "--json"], { store, cwd, env });
  let log = "";
  work.stderr.setEncoding("utf8").on("data", (text: string) => (log += text));
  const engine = await open(store, { jobs: [scan], blobs: join(cwd, "blobs"), logger: false, heartbeat: PATIENT });
  t.after(() => engine.close({ grace: "0ms" }));
  await engine.collect(scan, null, { id: "a", expect: { files: 1 } });
  const model = await amqplib.connect(broker);
  t.after(() => model.close());
  const channel = await model.createConfirmChannel();
  await untilTrue(
    () => log,
    (text) => text.includes("consumes from"),
    "a worker consumes",
  );
  const headers = { "outlive-collection": "a", "outlive-series": "files", "outlive-ordinal": 1 };
  channel.publish("outlive.collections", `${kind}.part`, Buffer.from("x"), {
    persistent: true,
    mandatory: true,
    headers,
  });
  await channel.waitForConfirms();
  await untilTrue(
    () => engine.collection("a"),
    (found) => found?.state === "notified",
    "a worker of the command line collected it",
  );
  for (const queue of ["header", "part", "parked"]) await channel.deleteQueue(`outlive.${kind}.${queue}`);
  work.kill("SIGTERM");
  await new Promise((resolve) => work.once("exit", resolve));
});
