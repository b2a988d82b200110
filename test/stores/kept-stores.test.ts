// Opens a kept store of every released schema (test/fixtures): everything that was in it is there, what a dead worker held is
// recovered, and all that can run runs.
import assert from "node:assert/strict";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { type TestContext, test } from "node:test";
import { gunzipSync } from "node:zlib";
import { type Engine, type EngineOptions, open } from "../../src/index.ts";
import { fileMigrations, migrationsOf, printedSql } from "../../src/migrations.ts";
import { assertMigrated } from "../../src/stores/postgres/migrate.ts";
import { MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import { kinds, ship, stepsRun } from "../fixtures/kinds.ts";
import { psql } from "../postgres-sql/scene.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { PATIENT, Place, untilState } from "../support/processes.ts";

const FOLDER = new URL("../fixtures/", import.meta.url);
const STORES = readdirSync(FOLDER).filter((name) => /^(sqlite|postgres)-\d+\./.test(name));

/** The kept jobs grow older than the default retention. */
const OPTIONS: EngineOptions = {
  jobs: kinds,
  logger: false,
  heartbeat: PATIENT,
  retention: { finished: "3650d", incidents: "3650d" },
};

test("a store of every kind is kept", () => {
  assert.ok(STORES.includes("sqlite-1.db.gz") && STORES.includes("postgres-3.sql"), STORES.join(", "));
});

for (const name of STORES) {
  test(`${name}: everything is there after the open, what was running is recovered, and all that can run runs`, async (t) => {
    const url = await restored(t, name);
    const engine = await open(url, OPTIONS);
    t.after(() => engine.close({ grace: "0ms" }));
    await assertKept(engine);
    await assertRuns(engine);
    assert.deepEqual(await unknownMigrations(url), [], "every migration is applied and keeps its checksum");
  });
}

test("a kept PostgreSQL schema that was upgraded by hand, with printed SQL, opens; `migrate up` then keeps its checksums", async (t) => {
  const url = await freshDatabase(t);
  await psql(url, readFileSync(new URL("postgres-3.sql", FOLDER), "utf8"));
  await psql(url, await printedSql("outlive", { migrations: { from: 4, to: MIGRATIONS.length, direction: "up" } }));
  await withClient(url, (client) => assertMigrated(client, "outlive"));
  assert.deepEqual(await unknownMigrations(url), [1, 2, 3]);
  assert.deepEqual(await (await migrationsOf(url))!.up(), []);
  assert.deepEqual(await unknownMigrations(url), []);
});

/** The address of a store with the content of the kept one, upgraded as its users do. */
async function restored(t: TestContext, name: string): Promise<string> {
  const file = new URL(name, FOLDER);
  if (name.startsWith("sqlite")) {
    const place = new Place(t);
    writeFileSync(place.path, gunzipSync(readFileSync(file)), { mode: 0o600 });
    return place.url;
  }
  const url = await freshDatabase(t);
  await psql(url, readFileSync(file, "utf8"));
  await (await migrationsOf(url))!.up();
  return url;
}

async function unknownMigrations(url: string): Promise<number[]> {
  const all = (await (await migrationsOf(url))?.list()) ?? (await fileMigrations(url));
  return all.filter(({ checksum, storedChecksum }) => storedChecksum !== checksum).map(({ number }) => number);
}

async function assertKept(engine: Engine): Promise<void> {
  const job = async (id: string) => (await engine.get(id))!;
  const all = await engine.list({ limit: 100 });
  assert.deepEqual(all.jobs.map(({ id }) => id).sort(), [
    "cancelled",
    "companion",
    "dead",
    "delayed",
    "quarantined",
    "queued",
    "retrying",
    "running",
    "succeeded",
    "suspect",
  ]);
  const succeeded = await job("succeeded");
  assert.equal(succeeded.state, "succeeded");
  assert.deepEqual(succeeded.result, { done: "a book" });
  assert.deepEqual(succeeded.progress, { percent: 50 });
  assert.deepEqual(
    succeeded.steps.map(({ name, result }) => [name, result]),
    [["box", { item: "a book", size: 3 }]],
  );
  assert.deepEqual(
    succeeded.log.map(({ message }) => message),
    ["a book is in its box"],
  );
  const dead = await job("dead");
  assert.deepEqual([dead.state, dead.error?.message], ["dead", "no address for a bike"]);
  assert.equal((await job("quarantined")).state, "quarantined");
  assert.equal((await job("cancelled")).state, "cancelled");
  const delayed = await job("delayed");
  assert.deepEqual([delayed.state, delayed.runAt], ["queued", Date.parse("2100-01-01")]);
  const retrying = await job("retrying");
  assert.deepEqual([retrying.state, retrying.counters.errors], ["queued", 1]);
  for (const id of ["suspect", "companion"]) {
    const suspect = await job(id);
    assert.deepEqual([suspect.state, suspect.counters.crashes, suspect.counters.blamed], ["queued", 2, 0], id);
    assert.deepEqual(
      suspect.history.map(({ event }) => event).filter((event) => event === "crash"),
      ["crash", "crash"],
    );
  }
  const queued = await job("queued");
  assert.deepEqual([queued.state, queued.priority, queued.dedupeKey], ["queued", 7, "kite"]);
  const again = await engine.enqueue(ship, { item: "another kite" }, { dedupeKey: "kite" });
  assert.deepEqual(again, { id: "queued", created: false });

  const incidents = await engine.incidents();
  assert.ok(incidents.length >= 3, "of the three deaths before the store was kept");
  const texts = await Promise.all(incidents.map(async ({ id }) => (await engine.report(id))!.text));
  for (const id of ["quarantined", "suspect", "companion"])
    assert.ok(
      texts.some((text) => text.includes(id)),
      id,
    );
}

async function assertRuns(engine: Engine): Promise<void> {
  stepsRun.length = 0;
  const worker = await engine.start();
  for (const id of ["queued", "suspect", "companion", "running"]) await untilState(engine, id, "succeeded");
  const running = (await engine.get("running"))!;
  assert.deepEqual(running.result, { done: "a drum" });
  assert.equal(running.fence, 2, "once by the worker that died, once by this one");
  assert.deepEqual(stepsRun, ["box of queued"], "a step that was kept is replayed, not run");
  for (const id of ["dead", "quarantined", "cancelled"]) {
    await engine.retry(id);
    await untilState(engine, id, "succeeded");
  }
  const { id } = await engine.enqueue(ship, { item: "a new one" });
  await untilState(engine, id, "succeeded");
  for (const waiting of ["delayed", "retrying"]) assert.equal((await engine.get(waiting))?.state, "queued");
  await worker.stop();
}
