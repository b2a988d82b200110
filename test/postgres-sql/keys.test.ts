// Jobs with keys and events of dedupe keys, where only PostgreSQL can go wrong: transactions that stay open, and plain SQL.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { jobKey } from "../../src/job/limits.ts";
import { JobContract } from "../../src/job/contract.ts";
import type { Enqueued } from "../../src/job/job.ts";
import { draft, TestWorker, kind, NO_ROOM, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { fixture, MINUTE } from "./fixture.ts";

const MAIL = new JobContract<{ n: number }>(kind("mail"), null, null);
const TENANT = { name: "tenant", running: 1, intervalMs: null, burst: 1, strict: false };

async function workers(t: TestContext) {
  const store = await fixture(t);
  const engine = await openStore(store);
  t.after(() => engine.close());
  await engine.declare([kind("mail"), kind("sms", { keyed: [TENANT], onCrash: "fail" })]);
  const hand = async (id: string): Promise<TestWorker> => {
    const { epoch } = await engine.register(workerRecord(id));
    return new TestWorker(engine, id, epoch);
  };
  const sms = (id: string) => engine.enqueue([draft({ id, kind: "sms", keys: [jobKey("tenant", "acme")] })]);
  const event = (n: number) =>
    engine.enqueue([draft({ id: `e${n}`, input: `{"n":${n}}`, dedupeKey: "key", dedupe: { then: "rerun" } })]);
  /** Takes turns until there is nothing to act on. */
  const quiet = async (worker: TestWorker): Promise<void> => {
    for (let turns = 0; turns < 20; turns++) if ((await worker.turn([], NO_ROOM)).nextDueInMs !== 0) return;
    assert.fail("there is always more to do");
  };
  return { ...store, engine, hand, sms, event, quiet };
}

/** An event in a transaction of the user's that stays open until the returned function is called. */
async function openEvent({ engine }: Awaited<ReturnType<typeof workers>>, n: number) {
  const { promise: open, resolve: end } = Promise.withResolvers<void>();
  const { promise: sent, resolve: send } = Promise.withResolvers<Enqueued>();
  const done = engine.transactions!.transact(async (tx) => {
    send(await tx.enqueue(MAIL, { n }, { id: `t${n}`, dedupe: { key: "key", then: "rerun" } }));
    await open;
  });
  return { enqueued: await sent, commit: async () => (end(), await done) };
}

test("an event in an open transaction stops no worker, and replaces the input of a job that has not begun", async (t) => {
  const on = await workers(t);
  await on.event(1);
  const { enqueued, commit } = await openEvent(on, 2);
  assert.deepEqual(enqueued, { id: "e1", created: false, became: "replaced" });
  assert.deepEqual(await on.event(3), [{ id: "e1", created: false, became: "replaced" }]);
  await commit();
  const worker = await on.hand("w");
  await on.quiet(worker);
  assert.equal((await worker.next()).input, '{"n":2}');
});

for (const when of ["while it runs", "after its end"] as const)
  test(`an event whose transaction is committed ${when} of the job that it found is seen by a later attempt`, async (t) => {
    const on = await workers(t);
    await on.event(1);
    const worker = await on.hand("w");
    const first = await worker.next();
    const { enqueued, commit } = await openEvent(on, 2);
    assert.deepEqual(enqueued, { id: "e1", created: false, became: "rerun" });
    if (when === "while it runs") await commit();
    await on.quiet(worker);
    await worker.settle(SETTLE.succeed(first));
    if (when === "after its end") {
      // A younger job has begun before the event is committed.
      assert.deepEqual(await on.event(3), [{ id: "e3", created: true }]);
      const younger = await worker.next();
      await commit();
      await on.quiet(worker);
      await worker.settle(SETTLE.succeed(younger));
    }
    await on.quiet(worker);
    const again = await worker.next();
    assert.deepEqual([again.lease.jobId, again.input], ["t2", '{"n":2}']);
    await worker.settle(SETTLE.succeed(again));
    await on.quiet(worker);
    assert.deepEqual(await worker.claim(5), []);
    assert.equal(await on.psql("SELECT count(*) FROM outlive.reruns"), "0");
  });

test("a reclaim in SQL gives the room of a job to the next one of its key", async (t) => {
  const on = await workers(t);
  await on.sms("first");
  await on.sms("second");
  const dead = await on.hand("dead");
  await on.quiet(dead);
  assert.equal((await dead.claim(5)).length, 1);
  await on.quiet(dead);
  assert.deepEqual([(await on.job("first")).state, (await on.job("second")).lane], ["running", 3]);
  await on.pass(MINUTE);
  assert.equal(await on.psql("SELECT decision FROM outlive.reclaim_stale_jobs()"), "fail");
  const worker = await on.hand("w");
  await on.quiet(worker);
  assert.equal((await on.job("second")).lane, 1);
  assert.deepEqual(await on.engine.upkeep.integrity(), []);
});

test("outlive.enqueue refuses a kind with limits and says why", async (t) => {
  const on = await workers(t);
  await assert.rejects(on.sql("SELECT outlive.enqueue('sms')"), /a program computes their keys/);
  await on.sql("SELECT outlive.enqueue('mail')");
});

const WAKES = "SELECT count(*)::int AS n FROM outlive.key_wakes";

test("a tick folds the wakes of keys that no worker takes to one for each key, and the oldest stays", async (t) => {
  const on = await workers(t);
  await on.sms("a");
  await on.pass(1_000);
  await on.sms("b");
  assert.deepEqual(await on.sql(WAKES), [{ n: 2 }]);
  await on.sql("SELECT outlive.tick()");
  assert.deepEqual(await on.sql(WAKES), [{ n: 2 }], "few are left as they are");
  await on.sql(
    "INSERT INTO outlive.key_wakes (key, at) SELECT w.key, w.at FROM outlive.key_wakes w, generate_series(1, 5000)",
  );
  const [oldest] = await on.sql<{ id: number }>("SELECT min(id)::int AS id FROM outlive.key_wakes");
  await on.sql("SELECT outlive.tick()");
  assert.deepEqual(await on.sql("SELECT id::int AS id FROM outlive.key_wakes"), [oldest]);
  const worker = await on.hand("w");
  await on.quiet(worker);
  assert.equal((await worker.next()).lease.jobId, "a");
});

test("a wake that an open admission has taken stands for no other", async (t) => {
  const on = await workers(t);
  for (const id of ["a", "b", "c"]) await on.sms(id);
  const admission = await on.session();
  await admission.sql("BEGIN");
  await admission.sql("DELETE FROM outlive.key_wakes WHERE id = (SELECT min(id) FROM outlive.key_wakes)");
  assert.deepEqual(await on.sql("SELECT outlive.fold_wakes(0) AS removed"), [{ removed: 1 }]);
  await admission.sql("COMMIT");
  assert.deepEqual(await on.sql(WAKES), [{ n: 1 }]);
});

test("of the events that no worker applies a fold leaves the last, with the earliest bound, and none that a locked job has", async (t) => {
  const on = await workers(t);
  await on.event(1);
  for (const n of [2, 3, 4, 5]) await (await openEvent(on, n)).commit();
  await on.sql("UPDATE outlive.reruns SET latest_at = 1000000 + ord");
  const EVENTS = "SELECT latest_at::int AS latest, due, seen, draft::json ->> 'input' AS input FROM outlive.reruns";
  const [first] = await on.sql<{ latest: number }>("SELECT min(latest_at)::int AS latest FROM outlive.reruns");
  const holder = await on.session();
  await holder.sql("BEGIN");
  await holder.sql("SELECT 1 FROM outlive.jobs FOR UPDATE");
  assert.deepEqual(await on.sql("SELECT outlive.fold_wakes(0) AS removed"), [{ removed: 0 }]);
  await holder.sql("COMMIT");
  assert.deepEqual(await on.sql("SELECT outlive.fold_wakes(0) AS removed"), [{ removed: 3 }]);
  assert.deepEqual(await on.sql(EVENTS), [{ latest: first!.latest, due: true, seen: false, input: '{"n":5}' }]);
  await on.sql("UPDATE outlive.reruns SET latest_at = NULL");
  const worker = await on.hand("w");
  await on.quiet(worker);
  assert.equal((await worker.next()).input, '{"n":5}');
});
