// A schedule of a job, a request, a batch and a collection, on each store that has it: declared and set, fired by hand and by the clock. And what `why`
// says of a job that a schedule enqueued.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import * as z from "zod";
import { batch, collection, type Engine, type EngineOptions, ErrorCode, job, open, schedule } from "../../src/index.ts";
import { request } from "../../src/requests.ts";
import { answers, assertEnqueued, virtualClock } from "../../src/testing/index.ts";
import { memory, PATIENT, says } from "../engine/engines.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";
import { freshName } from "../support/redis.ts";

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  return folder;
}

/** Stores by their names, each a fresh one. */
const STORES: Readonly<
  Record<string, (t: TestContext) => Promise<{ url: string; options: Pick<EngineOptions, "postgres"> }>>
> = {
  sqlite: async (t) => ({ url: `sqlite:${join(folderOf(t), "jobs.db")}`, options: {} }),
  postgres: async (t) => {
    const { url, schema } = await freshSchema(t);
    return { url, options: { postgres: { schema } } };
  },
  redis: async (t) => {
    const { url, name } = await freshName(t);
    return { url: `${url}?store=${name}`, options: {} };
  },
};

async function engineOn(t: TestContext, store: string, options: EngineOptions): Promise<Engine> {
  const place = await STORES[store]!(t);
  const engine = await open(place.url, { logger: false, heartbeat: PATIENT, ...place.options, ...options });
  t.after(() => engine.close({ grace: "0ms" }));
  return engine;
}

for (const store of Object.keys(STORES)) {
  test(`a schedule of a request and of a batch fires what it is of, on ${store}`, async (t) => {
    const file = join(folderOf(t), "prices.csv");
    writeFileSync(file, "sku,price\na,1\nb,2\n");
    const seen: string[] = [];
    const ping = request("ping", {
      method: "GET",
      input: z.object({ host: z.string() }),
      send: ({ host }) => ({ url: `https://${host}/` }),
    });
    const prices = batch("prices");
    prices.handle((row, run) => void seen.push(`${(row.input as { sku: string }).sku} ${JSON.stringify(run.context)}`));
    const canned = answers({ "GET https://example.com/": { json: { ok: true } } });
    const engine = await engineOn(t, store, {
      jobs: [
        ping,
        prices,
        schedule("hourly ping", ping, { every: "1h", input: { host: "example.com" } }),
        schedule("daily prices", prices, { cron: "0 3 * * *", input: ({ at }) => ({ file, context: { at } }) }),
      ],
      network: canned.network,
    });
    await engine.start();
    const { id } = await engine.schedules.run("hourly ping");
    await engine.result(id);
    assert.deepEqual(
      canned.sent.map(({ method, url }) => `${method} ${url}`),
      ["GET https://example.com/"],
    );
    const first = await engine.schedules.run("daily prices");
    const read = (await engine.result(first.id)) as { batch: string; rows: number };
    assert.equal(read.rows, 2);
    await engine.schedules.set("set prices", prices, { every: "1h", input: { file, hold: true } });
    const second = await engine.schedules.run("set prices");
    const again = (await engine.result(second.id)) as { batch: string; rows: number };
    assert.notEqual(again.batch, read.batch, "each occurrence is a batch of its own");
    await untilTrue(
      () => Promise.all([read.batch, again.batch].map(async (one) => (await engine.batch(one))?.state)),
      (states) => states.every((state) => state === "completed"),
      "both batches have ended",
    );
    assert.deepEqual(
      seen.map((one) => one.split(" ")[0]),
      ["a", "b", "a", "b"],
    );
    assert.match(seen[0]!, /^a \{"at":"\d{4}-/);
  });
}

for (const store of ["sqlite", "postgres"]) {
  test(`a schedule of a collection opens one at each occurrence and asks for its parts, on ${store}`, async (t) => {
    const asked: unknown[] = [];
    const done: string[] = [];
    const exported = collection("export", { series: ["rows"], input: z.object({ day: z.string() }) });
    exported.request((input, run) => void asked.push([input, run.collection]));
    exported.done(({ id }) => void done.push(id));
    const engine = await engineOn(t, store, {
      jobs: [exported, schedule("daily export", exported, { every: "1d", input: { day: "any" } })],
      blobs: join(folderOf(t), "blobs"),
    });
    await engine.start();
    const { id } = await engine.schedules.run("daily export");
    await engine.result(id);
    assert.deepEqual(asked, [[{ day: "any" }, id]]);
    await engine.announce(exported, id, { rows: 1 });
    await engine.put(exported, id, "rows", 1, Buffer.from("one"));
    await untilTrue(
      () => done.length,
      (count) => count === 1,
      "it is complete",
    );
    assert.deepEqual(done, [id]);
    const other = await engine.schedules.run("daily export");
    await engine.result(other.id);
    assert.equal(asked.length, 2);
  });
}

test("what a schedule of a batch or a collection can't use is refused when it is set", async (t) => {
  const rows = batch("rows");
  rows.handle(() => {});
  const parts = collection("parts", { series: ["rows"] });
  const stranger = batch("stranger");
  const engine = await memory(t, [rows, parts]);
  const set = (input: never): Promise<unknown> => engine.schedules.set("s", rows, { every: "1h", input });
  await assert.rejects(set({} as never), says(ErrorCode.optionInvalid, "rows", "not a file"));
  await assert.rejects(set({ file: "a", blob: "b" } as never), says(ErrorCode.optionInvalid, "not a file"));
  await assert.rejects(set({ file: "a", format: "xml" } as never), says(ErrorCode.optionInvalid, "xml"));
  await assert.rejects(
    engine.schedules.set("s", stranger, { every: "1h", input: { file: "a" } }),
    says(ErrorCode.kindUnknown, "stranger"),
  );
  assert.deepEqual(await engine.schedules.list(), []);
});

test("why names the schedule of a job and its occurrence, and what is skipped because it has not ended", async (t) => {
  const clock = virtualClock();
  const stuck = job("stuck").handle(async (_, run) => {
    await run.waitForSignal("go");
  });
  const engine = await memory(t, [stuck, schedule("hourly", stuck, { every: "1h" })], {
    clock,
    poll: "10m",
    heartbeat: { interval: "1d", lease: "3d", probe: "1d", sweep: "1d" },
  });
  await engine.start();
  await clock.advance(3 * 3_600_000 + 60_000);
  const [first] = await assertEnqueued(engine, stuck, undefined, { times: 1 });
  const why = (await engine.why(first!.id))!;
  assert.equal(why.because, "waits-for-signal");
  assert.match(why.text, /The schedule hourly enqueued it for 2026-01-01T01:00:00/);
  assert.match(why.text, /Until it ends the schedule skips its occurrences, the next at 2026-01-01T04:00/);
  assert.deepEqual(
    [why.details["schedule"], why.details["skippedForOverlap"], why.details["overlap"]],
    ["hourly", 2, "skip"],
  );
  await engine.signal(first!.id, "go");
  await clock.advance(60_000);
  const after = await engine.why(first!.id);
  assert.match(after!.text, /The schedule hourly enqueued it/);
  assert.doesNotMatch(after!.text, /skips/);
  const closing = engine.close({ grace: "0ms" });
  await clock.advance(1_000);
  await closing;
});
