// What maintenance and `outlive check` do about keys on SQLite: rows of idle keys go, those with settings stay, and contradictions are found.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { DatabaseSync } from "node:sqlite";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { jobKey } from "../../src/job/limits.ts";
import type { Store } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/index.ts";
import { draft, kind, names, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { openStore } from "../conformance/sqlite-stores.ts";

async function storeFor(
  t: TestContext,
): Promise<{ store: Store; clock: ReturnType<typeof virtualClock>; path: string }> {
  const folder = await mkdtemp(join(tmpdir(), "outlive-keys-"));
  const path = join(folder, "jobs.db");
  const clock = virtualClock();
  const store = await openStore(clock, path);
  t.after(async () => {
    await store.close();
    await rm(folder, { recursive: true });
  });
  await store.declare([
    kind("mail", { keyed: [limit("crm", { intervalMs: 1_000 }), limit("tenant", { running: 1 })] }),
  ]);
  await store.register(workerRecord("w"));
  return { store, clock, path };
}

function rowsOf(path: string, sql: string): unknown[] {
  const db = new DatabaseSync(path, { timeout: 10_000 });
  try {
    return db.prepare(sql).all();
  } finally {
    db.close();
  }
}

function change(path: string, sql: string): void {
  const db = new DatabaseSync(path, { timeout: 10_000 });
  try {
    db.exec(sql);
  } finally {
    db.close();
  }
}

const PURGE = { finishedOlderThanMs: 1e12, incidentsOlderThanMs: 1e12, limit: 10 };

test("rows of idle keys are purged in pieces, and never those with settings of their own", async (t) => {
  const { store, clock, path } = await storeFor(t);
  await store.enqueue(names("a", 25).map((id) => draft({ id, keys: [jobKey("crm", id)] })));
  for (let jobs = 0; jobs < 25;) {
    const { claimed } = await store.turn("w", [], roomFor(50));
    jobs += claimed.length;
    await store.turn(
      "w",
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  await store.operate.setLimit(jobKey("crm", "a0001"), { weight: 2 });
  await store.operate.pauseKey!(jobKey("crm", "a0002"), { reason: "unpaid", forMs: null });
  const count = (): number => rowsOf(path, "SELECT id FROM outlive_keys").length;
  assert.equal(count(), 25);
  await store.purge(PURGE);
  assert.equal(count(), 25, "a start was spent less than an interval ago");
  await clock.advance(1_000);
  // It looks at the keys that the last ends gave room, and finds nothing there.
  await store.turn("w", [], roomFor(0));
  await store.purge(PURGE);
  assert.ok(count() >= 15, "no more at a time than was asked for");
  for (let pieces = 0; pieces < 4; pieces++) await store.purge(PURGE);
  assert.equal(count(), 2);
  await store.operate.pauseKey!(jobKey("crm", "a0002"), { reason: "a backup", forMs: 500 });
  await clock.advance(500);
  for (let pieces = 0; pieces < 2; pieces++) await store.purge(PURGE);
  assert.deepEqual(
    (await store.inspect.keys!({ limit: null, most: 10 })).map(({ key }) => key),
    ["a0001"],
    "a pause that has ended is nothing of its own",
  );
});

test("a key has one wake however many jobs are added, and another one after a turn has taken it", async (t) => {
  const { store, path } = await storeFor(t);
  const wakes = (): number => rowsOf(path, "SELECT key FROM outlive_key_wakes").length;
  const add = (...ids: string[]): Promise<unknown> =>
    store.enqueue(ids.map((id) => draft({ id, keys: [jobKey("tenant", id.slice(0, 1))] })));
  await add("a1", "b1");
  for (const id of names("a", 20)) await add(id);
  await add("b2", "c1");
  assert.equal(wakes(), 3);
  const { claimed } = await store.turn("w", [], roomFor(10));
  assert.equal(wakes(), 0);
  await add("c2", "d1");
  assert.equal(wakes(), 2, "what comes after the turn is looked at again");
  const next = await store.turn(
    "w",
    claimed.map((job) => SETTLE.succeed(job)),
    roomFor(10),
  );
  assert.deepEqual(
    new Set([...claimed, ...next.claimed].map(({ lease }) => lease.jobId.slice(0, 1))),
    new Set(["a", "b", "c", "d"]),
  );
});

for (const { where, most, others } of [
  { where: "next to other connections", most: 9, others: true },
  { where: "of a connection that remembers where it is", most: 32, others: false },
])
  test(`entries of admitted jobs leave their door several at a time, ${where}, and none is left when nothing waits there`, async (t) => {
    const { store, path } = await storeFor(t);
    const ids = names("a", 40);
    await store.enqueue(ids.map((id) => draft({ id, keys: [jobKey("tenant", "acme")] })));
    const entries = (): number => rowsOf(path, "SELECT job FROM outlive_doors").length;
    const started: string[] = [];
    const counted: number[] = [];
    let { claimed } = await store.turn("w", [], roomFor(10));
    while (claimed.length > 0) {
      started.push(...claimed.map(({ lease }) => lease.jobId));
      const held = (await store.inspect.counts()).find(({ kind: name }) => name === "mail")!.held;
      assert.equal(held, ids.length - started.length, "entries that are left behind are not counted");
      counted.push(entries() - held);
      if (others) change(path, `INSERT INTO outlive_meta (key, value) VALUES ('other ${started.length}', 1)`);
      const settled = claimed.map((job) => SETTLE.succeed(job));
      ({ claimed } = await store.turn("w", settled, roomFor(10)));
    }
    assert.deepEqual(started, ids, "in their order, each once");
    assert.ok(Math.max(...counted) > 1 && Math.max(...counted) <= most, `left behind: ${counted.join()}`);
    assert.equal(entries(), 0);
  });

const CONTRADICTIONS: Readonly<Record<string, string>> = {
  "held-without-door": "UPDATE outlive_extras SET door = NULL WHERE door IS NOT NULL",
  "held-without-door, because its entry is lost": "DELETE FROM outlive_doors",
  "door-without-held": "UPDATE outlive_jobs SET lane = 1 WHERE lane = 3",
  "slot-disagrees": "UPDATE outlive_extras SET place = 0 WHERE place = 2",
  "key-stuck":
    "UPDATE outlive_jobs SET state = 2 WHERE state = 1; UPDATE outlive_extras SET place = 0, ended = 1 WHERE place = 2",
  "end-disagrees": "UPDATE outlive_extras SET ended = 1 WHERE place = 2",
  "orphan-extras": "INSERT INTO outlive_waits (job, step) VALUES (4711, 'run.sleep#1')",
  "corrupt-content": "UPDATE outlive_signals SET payload = '2'",
};

for (const [what, sql] of Object.entries(CONTRADICTIONS))
  test(`a check finds ${what}, and nothing before it happened`, async (t) => {
    const { store, path } = await storeFor(t);
    await store.enqueue(names("a", 3).map((id) => draft({ id, keys: [jobKey("tenant", "acme")] })));
    await store.operate.signal({ job: "a0002", name: "go", payload: "1", id: "s" });
    await store.turn("w", [], roomFor(10));
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
    change(path, sql);
    const found = await store.upkeep.inconsistencies!();
    assert.ok(
      found.some((one) => one.what === what.split(",")[0] && one.count > 0),
      JSON.stringify(found),
    );
  });
