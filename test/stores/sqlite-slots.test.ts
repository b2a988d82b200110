// Jobs that a worker claims straight at the door of their only key on SQLite: their rows are their slots (door-visit.ts), whatever ends them and whichever other worker counts.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { DatabaseSync } from "node:sqlite";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import type { ClaimedJob } from "../../src/job/job.ts";
import { jobKey } from "../../src/job/limits.ts";
import type { Settlement, Store } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/index.ts";
import {
  draft,
  kind,
  names,
  roomFor,
  SETTLE,
  SETTLE_NAMES,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { openStore } from "../conformance/sqlite-stores.ts";

async function storeFor(t: TestContext): Promise<{ store: Store; path: string }> {
  const folder = await mkdtemp(join(tmpdir(), "outlive-slots-"));
  const path = join(folder, "jobs.db");
  const store = await openStore(virtualClock(), path);
  t.after(async () => {
    await store.close();
    await rm(folder, { recursive: true });
  });
  await declare(store);
  await store.register(workerRecord("w"));
  return { store, path };
}

const declare = (store: Store): Promise<void> =>
  store.declare([
    kind("mail", {
      keyed: [
        limit("tenant", { running: 1 }),
        limit("team", { running: 1 }),
        limit("region", { running: 2 }),
        limit("wide", { running: 50 }),
      ],
    }),
  ]);

function inFile<T>(path: string, work: (db: DatabaseSync) => T): T {
  const db = new DatabaseSync(path, { timeout: 10_000 });
  try {
    return work(db);
  } finally {
    db.close();
  }
}

/** The jobs whose rows are slots. */
function slots(path: string): unknown[] {
  return inFile(path, (db) => db.prepare("SELECT id FROM outlive_jobs WHERE state = 1 AND lane = 3").all()).map(
    (row) => row["id"],
  );
}

const turn = async (store: Store, settlements: readonly Settlement[] = []): Promise<readonly ClaimedJob[]> =>
  (await store.turn("w", settlements, roomFor(10))).claimed;
const idsOf = (jobs: readonly ClaimedJob[]): string[] => jobs.map(({ lease }) => lease.jobId);
const acme = (id: string): ReturnType<typeof draft> => draft({ id, keys: [jobKey("tenant", "acme")] });

for (const end of SETTLE_NAMES)
  test(`a job that was claimed at its door has its slot until ${end}, and then the key has one again`, async (t) => {
    const { store, path } = await storeFor(t);
    await store.enqueue(names("a", 6).map(acme));
    const [first] = await turn(store);
    const [second] = await turn(store, [SETTLE.succeed(first!)]);
    assert.deepEqual(slots(path), ["a0002"]);
    assert.deepEqual(await turn(store), [], "the key is full");
    assert.equal((await store.inspect.keys!({ key: jobKey("tenant", "acme") }))[0]!.taken, 1);
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
    const [ended] = await turn(store, [SETTLE[end](second!)]);
    // What is released or tried again at once is first at its door.
    const { state } = (await store.inspect.get("a0002"))!;
    assert.equal(idsOf([ended!])[0], state === "running" ? "a0002" : "a0003");
    assert.equal((await store.inspect.keys!({ key: jobKey("tenant", "acme") }))[0]!.taken, 1);
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
    const seen = new Set<string>();
    for (let running = [ended!]; running.length > 0;) {
      for (const id of idsOf(running)) seen.add(id);
      assert.equal(running.length, 1);
      running = [
        ...(await turn(
          store,
          running.map((job) => SETTLE.succeed(job)),
        )),
      ];
    }
    assert.ok(
      ["a0003", "a0004", "a0005", "a0006"].every((id) => seen.has(id)),
      [...seen].join(),
    );
    assert.deepEqual(slots(path), []);
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  });

test("what is found at one door counts for a job with that key at another one, in the same turn", async (t) => {
  const { store, path } = await storeFor(t);
  await store.enqueue(names("a", 3).map(acme));
  const [first] = await turn(store);
  await store.enqueue([draft({ id: "both", keys: [jobKey("team", "red"), jobKey("tenant", "acme")] })]);
  const second = await turn(store, [SETTLE.succeed(first!)]);
  assert.equal(second.length, 1, idsOf(second).join());
  assert.equal(slots(path).length, 1);
  const third = await turn(store, [SETTLE.succeed(second[0]!)]);
  assert.equal(third.length, 1, idsOf(third).join());
  assert.deepEqual(await store.upkeep.inconsistencies!(), []);
});

test("while a worker of an earlier version is there, which would not count them, no row is a slot", async (t) => {
  const { store, path } = await storeFor(t);
  await store.enqueue(names("a", 6).map(acme));
  await store.register(workerRecord("earlier"));
  inFile(path, (db) => db.exec("UPDATE outlive_workers SET counts_rows = 0 WHERE id = 'earlier'"));
  let running = await turn(store);
  for (let n = 0; n < 2; n++) {
    running = await turn(
      store,
      running.map((job) => SETTLE.succeed(job)),
    );
    assert.equal(running.length, 1);
    assert.deepEqual(slots(path), []);
  }
  assert.equal(await store.leave("earlier"), true);
  running = await turn(
    store,
    running.map((job) => SETTLE.succeed(job)),
  );
  assert.deepEqual(slots(path), ["a0004"]);
});

const north = (id: string): ReturnType<typeof draft> => draft({ id, keys: [jobKey("region", "north")] });
const wide = (id: string): ReturnType<typeof draft> => draft({ id, keys: [jobKey("wide", "all")] });

test("a key that has a wake and gets room in the same turn is visited once, and a job there is claimed once", async (t) => {
  const { store, path } = await storeFor(t);
  // The first two are admitted in bulk; the next two are claimed at their door, whose end is known then.
  await store.enqueue(names("a", 4).map(north));
  const first = await turn(store);
  const second = await turn(
    store,
    first.map((job) => SETTLE.succeed(job)),
  );
  assert.deepEqual(slots(path), ["a0003", "a0004"]);
  await store.enqueue([north("x")]);
  // A wake without a job: its door admits less than the turn expects, so that it goes on to other doors.
  await store.enqueue([acme("gone")]);
  await store.operate.cancel("gone", "test");
  const { claimed } = await store.turn(
    "w",
    second.map((job) => SETTLE.succeed(job)),
    roomFor(2),
  );
  assert.deepEqual(idsOf(claimed), ["x"]);
  assert.equal(claimed[0]!.lease.fence, 1);
  const [settled] = (await store.turn("w", [SETTLE.succeed(claimed[0]!)], roomFor(2))).settled;
  assert.equal(settled!.is, "applied");
});

test("a second wake of a key, which a worker of an earlier version may write, is not lost in the turn that visits its door", async (t) => {
  const { store, path } = await storeFor(t);
  // Doors have given several jobs each, so that a turn with few slots begins with one of them.
  await store.enqueue([acme("full"), ...names("a", 10).map(wide)]);
  await store.turn("w", [], roomFor(20));
  const keys = [jobKey("region", "north"), jobKey("tenant", "acme")];
  await store.enqueue([draft({ id: "both", keys }), north("first"), north("second")]);
  inFile(path, (db) => db.exec("INSERT INTO outlive_key_wakes (key, at) SELECT key, at FROM outlive_key_wakes"));
  assert.deepEqual(idsOf((await store.turn("w", [], roomFor(3))).claimed), ["first"]);
  assert.deepEqual(idsOf((await store.turn("w", [], roomFor(3))).claimed), ["second"]);
});

/** Runs all that is claimed until nothing is, at most `room` at once. */
async function drain(store: Store, room: number): Promise<string[]> {
  const seen: string[] = [];
  let running: readonly ClaimedJob[] = [];
  for (let idle = 0; idle < 3; idle = running.length === 0 ? idle + 1 : 0) {
    const ends = running.map((job) => SETTLE.succeed(job));
    running = (await store.turn("w", ends, roomFor(room))).claimed;
    seen.push(...idsOf(running));
  }
  return seen.sort();
}

test("a job with a second key that comes to be first as old entries are removed keeps its own", async (t) => {
  const { store } = await storeFor(t);
  const ids = names("a", 40);
  const both = [jobKey("tenant", "acme"), jobKey("team", "red")];
  // The 32nd is the one with which entries are due to be removed.
  await store.enqueue(ids.map((id, n) => (n === 31 ? draft({ id, keys: both }) : acme(id))));
  assert.deepEqual(await drain(store, 10), ids);
  assert.deepEqual(await store.upkeep.inconsistencies!(), []);
});

test("jobs that a program of an earlier version adds are claimed, and keep their entries until then", async (t) => {
  const { store, path } = await storeFor(t);
  const ids = names("a", 200);
  await store.enqueue(ids.map(wide));
  // It does not know this column.
  inFile(path, (db) => db.exec("UPDATE outlive_jobs SET only_key = NULL"));
  assert.deepEqual(await drain(store, 50), ids);
  assert.deepEqual(await store.upkeep.inconsistencies!(), []);
});

test("what was held in a file of the earlier version is claimed at its door, also if it had lost its entry", async (t) => {
  const { store, path } = await storeFor(t);
  const ids = names("a", 200);
  await store.enqueue(ids.map(wide));
  await store.leave("w");
  await store.close();
  inFile(path, (db) => {
    db.exec(`DROP TRIGGER IF EXISTS outlive_workers_count_rows; DROP INDEX outlive_jobs_slots;
      ALTER TABLE outlive_jobs DROP COLUMN only_key; ALTER TABLE outlive_workers DROP COLUMN counts_rows;
      DELETE FROM outlive_meta WHERE key = 'checksum 19'; UPDATE outlive_meta SET value = 18 WHERE key = 'schema';
      DELETE FROM outlive_doors WHERE job > 150; DELETE FROM outlive_key_wakes`);
  });
  const upgraded = await openStore(virtualClock(), path);
  try {
    assert.deepEqual(await upgraded.upkeep.inconsistencies!(), []);
    await declare(upgraded);
    await upgraded.register(workerRecord("w2"));
    let running: readonly ClaimedJob[] = [];
    const next = async (): Promise<string[]> => {
      const ends = running.map((job) => SETTLE.succeed(job));
      running = (await upgraded.turn("w2", ends, roomFor(50))).claimed;
      return idsOf(running);
    };
    assert.deepEqual(await next(), ids.slice(0, 50));
    assert.deepEqual(await next(), ids.slice(50, 100));
    assert.deepEqual(slots(path), ids.slice(50, 100));
    assert.deepEqual(await next(), ids.slice(100, 150));
    assert.deepEqual(await next(), ids.slice(150));
  } finally {
    await upgraded.close();
  }
});

test("a worker of an earlier version, which would not count rows that are slots, can't come later", async (t) => {
  const { path } = await storeFor(t);
  inFile(path, (db) => {
    const columns = "state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at";
    assert.throws(
      () => db.exec(`INSERT INTO outlive_workers (id, ${columns}) SELECT 'earlier', ${columns} FROM outlive_workers`),
      /too old for the store; upgrade its outlive package/,
    );
  });
});
