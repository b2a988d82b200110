// `outlive/client`: enqueue and inspect from a process that never works. It starts nothing, and creates a SQLite store that is not there.
import assert from "node:assert/strict";
import { existsSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { type Client, type ClientOptions, connect } from "../../src/client.ts";
import { ErrorCode, job } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { transfer } from "../support/jobs.ts";
import { Place, untilState } from "../support/processes.ts";
import { forever, raw, says, script, untilAborted } from "./engines.ts";

async function client(t: TestContext, place: Place, options: ClientOptions): Promise<Client> {
  const connected = await connect(place.url, options);
  t.after(() => connected.close());
  return connected;
}

for (const [what, prepare] of [
  ["a file that is not there", () => {}],
  ["an empty file", (path: string) => writeFileSync(path, "")],
  [
    "a file with tables of the program's own",
    (path: string) => {
      using db = new DatabaseSync(path);
      db.exec("CREATE TABLE orders (id INTEGER PRIMARY KEY)");
    },
  ],
] as const) {
  test(`a client may be the first to start: on ${what} it creates the store, and the worker that comes later runs what was enqueued`, async (t) => {
    const place = new Place(t);
    prepare(place.path);
    const ran = Promise.withResolvers<number>();
    const note = job<number>("note").handle((n) => ran.resolve(n));
    const web = await client(t, place, { jobs: [note] });
    const { id } = await web.enqueue(note, 7);
    if (what === "a file that is not there") assert.equal(statSync(place.path).mode & 0o777, 0o600);
    const engine = await place.engine({ jobs: [note] });
    await engine.start();
    assert.equal(await ran.promise, 7);
    await untilState(engine, id, "succeeded");
    assert.deepEqual(await engine.incidents(), []);
  });
}

test("clients and workers that all start first at the same moment share one store", async (t) => {
  const place = new Place(t);
  const enqueue = `const { connect } = await import(SRC + "client.ts");
    const { job } = await import(SRC + "index.ts");
    const transfer = job("transfer");
    await using client = await connect(ARGS[0], { jobs: [transfer] });
    await client.enqueue(transfer, { n: 1 });`;
  const workers = [1, 2].map(() => place.child({ only: ["slow"] }));
  const ends = await Promise.all(Array.from({ length: 6 }, () => script(enqueue, { args: [place.url] })));
  for (const { code, stderr } of ends) assert.equal(code, 0, stderr);
  await Promise.all(workers.map((worker) => worker.untilFact("working")));
  const web = await client(t, place, {});
  assert.equal((await web.counts()).find(({ kind }) => kind === "transfer")?.ready, 6);
});

test("a client can start after another process was killed while it created the store", async (t) => {
  for (const when of ["before", "after"]) {
    const place = new Place(t);
    const victim = place.child({ killAt: `${when}:'schema', 1\\)` });
    assert.equal((await victim.exited).signal, "SIGKILL");
    const web = await client(t, place, { jobs: [transfer] });
    assert.equal((await web.enqueue(transfer, { n: 1 })).created, true);
  }
});

test("a client does not upgrade a store: one with an older schema is refused and left as it is", async (t) => {
  const place = new Place(t);
  await (await place.engine()).close();
  const schema = (): unknown => raw(t, place.path).prepare("SELECT value FROM outlive_meta WHERE key = 'schema'").get();
  raw(t, place.path).exec("UPDATE outlive_meta SET value = value - 1 WHERE key = 'schema'");
  const before = schema();
  await assert.rejects(connect(place.url), says(ErrorCode.schemaMissing, place.path, "outlive migrate up"));
  assert.deepEqual(schema(), before);
});

test("a client creates no folder: a mistyped one is an error that names the file", async (t) => {
  const place = new Place(t);
  const path = join(place.folder, "no-such-folder", "jobs.db");
  await assert.rejects(connect(`sqlite:${path}`), says(ErrorCode.storeUnusable, path));
  assert.deepEqual(readdirSync(place.folder), []);
});

test("a client does not put a new store in the place of one whose write-ahead log is still there", async (t) => {
  const place = new Place(t);
  writeFileSync(`${place.path}-wal`, "what was written last");
  await assert.rejects(connect(place.url), says(ErrorCode.storeDamaged, "its write-ahead log is not"));
  assert.deepEqual(readdirSync(place.folder), [`${basename(place.path)}-wal`]);
});

test("a client starts no thread and keeps no process: its process can end without closing it", async (t) => {
  const place = new Place(t);
  const note = job<number>("note");
  const engine = await place.engine({ jobs: [note] });
  const { code, stdout, stderr } = await script(
    `const { connect } = await import(SRC + "client.ts");
     const { job } = await import(SRC + "index.ts");
     const { readdirSync } = await import("node:fs");
     const threads = () => readdirSync("/proc/self/task").length;
     const before = threads();
     const note = job("note");
     const client = await connect(ARGS[0], { jobs: [note] });
     const { id } = await client.enqueue(note, 1);
     await client.counts();
     const signals = ["SIGTERM", "SIGINT", "SIGHUP"].flatMap((name) => process.listeners(name));
     console.log(JSON.stringify({
       id, threads: threads() - before, signals: signals.length,
       resources: process.getActiveResourcesInfo().filter((name) => !/Pipe|TTY|File/.test(name)),
     }));`,
    { args: [place.url] },
  );
  assert.equal(code, 0, stderr);
  const { id, ...made } = JSON.parse(stdout) as { id: string };
  assert.deepEqual(made, { threads: 0, signals: 0, resources: [] });
  assert.equal((await engine.get(id))?.state, "queued");
  assert.deepEqual(await engine.workers({ which: "all" }), [], "and it is nobody's worker");
});

test("a client recovers nothing: what a dead worker held stays its own until another process works or recovers", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  const { id } = await engine.enqueue(transfer, { n: 1 });
  const victim = place.child({ heartbeat: {}, killAt: "after:UPDATE outlive_jobs NOT INDEXED SET state = 1" });
  await victim.exited;
  const looking = await client(t, place, { jobs: [transfer] });
  assert.equal((await looking.get(id))?.state, "running");
  assert.deepEqual(await looking.incidents(), []);
});

test("what a client enqueues wakes a worker in another process that would not poll for an hour", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  const worker = place.child({ heartbeat: {}, poll: "1h" });
  await worker.untilFact("working");
  const web = await client(t, place, { jobs: [transfer] });
  // The first may be found by a turn that was on its way; the others find a worker that is idle.
  for (let n = 1; n <= 3; n++) {
    const { id } = await web.enqueue(transfer, { n });
    await worker.untilFact("started", { id });
    await untilState(engine, id, "succeeded");
  }
});

test("a client has the same enqueue, with the same checks, keys and transactions", async (t) => {
  const place = new Place(t);
  const note = job<number>("note");
  const stranger = job<number>("stranger");
  const engine = await place.engine({ jobs: [note] });
  const web = await client(t, place, { jobs: [note] });
  const { id } = await web.enqueue(note, 1, { dedupeKey: "k" });
  assert.deepEqual(await engine.enqueue(note, 2, { dedupeKey: "k" }), { id, created: false });
  assert.deepEqual(await web.enqueueMany(note, [1, 2, 3]), { count: 3, created: 3 });
  const inTx = await web.transaction(sqlite, (tx) => tx.enqueue(note, 9));
  assert.equal((await engine.get(inTx.id))?.input, 9);
  await assert.rejects(
    web.enqueue(stranger, 1),
    says(ErrorCode.kindUnknown, '"stranger"', "known: note", "Nothing was enqueued"),
  );
  await assert.rejects(web.enqueue(note, Number.NaN), says(ErrorCode.notJson));
  assert.equal((await web.list()).jobs.length, 5);
  assert.equal((await web.counts())[0]?.ready, 5);
  assert.equal(await web.report(), null);
});

test("a client may declare a kind that no worker has seen yet", async (t) => {
  const place = new Place(t);
  await (await place.engine({ jobs: [] })).close();
  const fresh = job<number>("fresh");
  const web = await client(t, place, { jobs: [fresh] });
  assert.equal((await web.enqueue(fresh, 1)).created, true);
});

test("a client of a store with a newer schema is refused", async (t) => {
  const place = new Place(t);
  await (await place.engine()).close();
  raw(t, place.path).exec("UPDATE outlive_meta SET value = 99 WHERE key = 'schema'");
  await assert.rejects(connect(place.url), says(ErrorCode.schemaNewer, place.path, "99", "Upgrade"));
});

test("a module that is loaded again and again shares one connection, and the last close closes it", async (t) => {
  const place = new Place(t);
  const note = job<number>("note");
  await place.engine({ jobs: [note] });
  const clients = await Promise.all([1, 2, 3].map(() => connect(place.url, { jobs: [note] })));
  const [first, second, third] = clients as [Client, Client, Client];
  await first.close();
  await first.close();
  await second.close();
  await assert.rejects(first.enqueue(note, 1), says(ErrorCode.closed));
  assert.equal((await third.enqueue(note, 1)).created, true);
  await third.close();
  const again = await client(t, place, { jobs: [note] });
  assert.equal((await again.enqueue(note, 1)).created, true);
});

test("closing a client leaves the worker of the same process alone", async (t) => {
  const place = new Place(t);
  const long = job<null>("long").handle(async (_, run) => {
    throw await Promise.race([untilAborted(run.signal), forever()]);
  });
  const engine = await place.engine({ jobs: [long], heartbeat: {} });
  const worker = await engine.start();
  const { id } = await engine.enqueue(long, null);
  await untilState(engine, id, "running");
  const web = await connect(place.url, { jobs: [long] });
  await web.enqueue(long, null);
  await web.close();
  // A second look at the lock from this process would have dropped it: the others would take the worker for dead.
  const other = place.child({ heartbeat: {}, only: ["transfer"] });
  await other.untilFact("working");
  assert.deepEqual(await engine.incidents(), []);
  assert.equal((await engine.get(id))?.worker, worker.id);
  assert.ok(existsSync(place.path));
});

test("a client pauses and resumes a kind, with the actor in the audit", async (t) => {
  const place = new Place(t);
  const note = job<number>("note").handle((n) => n);
  const web = await client(t, place, { jobs: [note] });
  await web.pause(note, { actor: "ann", reason: "too many", until: "1h" });
  const { id } = await web.enqueue(note, 7);
  assert.deepEqual((await web.counts())[0]?.pause?.by, "ann");
  await web.resume("note", { actor: "bob" });
  const engine = await place.engine({ jobs: [note] });
  await engine.start();
  assert.equal(await web.result(id), 7);
  assert.deepEqual(
    (await web.audit({ target: "kind note" })).map(({ actor, action, reason }) => [actor, action, reason]),
    [
      ["bob", "resume", null],
      ["ann", "pause", "too many"],
    ],
  );
});
