// Jobs that wait, where only PostgreSQL can go wrong: all processes are dead and plain SQL wakes them, and transactions of other sessions hold
// the rows that a wake needs. Locks are real, between real sessions.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import type { ClaimedJob } from "../../src/job/job.ts";
import { wait } from "../../src/job/transitions.ts";
import type { Wait } from "../../src/job/waits.ts";
import { MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import { migrate, migrateDown } from "../../src/stores/postgres/migrate.ts";
import {
  draft,
  TestWorker,
  kind,
  NO_ROOM,
  roomFor,
  SETTLE,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { withClient } from "../support/postgres.ts";
import { type Fixture, fixture, MINUTE } from "./fixture.ts";

interface Workers extends Fixture {
  readonly worker: never;
  readonly register: (id: string) => Promise<TestWorker>;
  readonly enqueue: (id: string, kind?: string) => Promise<unknown>;
  /** The processes are gone, and their rows stay. */
  readonly killAll: () => Promise<void>;
}

/** Workers of the engine on a store whose clock the test sets. Parents are of the kind mail, and all others of the kind sms. */
async function workers(t: TestContext): Promise<Workers> {
  const store = await fixture(t);
  const engine = await openStore(store);
  let open = true;
  const killAll = async (): Promise<void> => {
    if (open) await engine.close();
    open = false;
  };
  t.after(killAll);
  await engine.declare([kind("mail"), kind("sms", { onCrash: "fail" })]);
  return {
    ...store,
    worker: undefined as never,
    async register(id) {
      const { epoch } = await engine.register(workerRecord(id));
      return new TestWorker(engine, id, epoch);
    },
    enqueue: (id, of = "sms") => engine.enqueue([draft({ id, kind: of })]),
    killAll,
  };
}

function waiting(job: ClaimedJob, until: Wait["until"]) {
  const change = wait(
    { id: job.lease.jobId, state: "running", counters: job.counters },
    { step: "run.wait#1", forMs: null, until },
  );
  return { lease: job.lease, change };
}

const LANE = { delayed: 0, open: 1 } as const;

test("with every process dead, one tick() ends the child of a dead worker and wakes its parent", async (t) => {
  const { register, enqueue, killAll, psql, job, pass } = await workers(t);
  await enqueue("parent", "mail");
  const first = await register("w1");
  const parent = await first.next(roomFor(1, ["mail"]));
  await first.record(parent, { type: "enqueue", drafts: [draft({ id: "child", kind: "sms" })] });
  await first.settle(waiting(parent, { jobs: ["child"] }));
  await (await register("w2")).next(roomFor(1, ["sms"]));
  await killAll();
  assert.equal(await psql("SELECT outlive.tick()"), "0");
  await pass(MINUTE / 2 + 1_000);
  assert.equal(await psql("SELECT outlive.tick()"), "1");
  assert.deepEqual([(await job("child")).state, (await job("parent")).lane], ["dead", LANE.open]);
  assert.equal(await psql("SELECT outlive.tick()"), "0");
  assert.equal(await psql("SELECT count(*) FROM outlive.wakes"), "0");
});

test("a job that another session ends by SQL wakes its parent, and one that is queued again by SQL does not count as ended", async (t) => {
  const { register, enqueue, sql, job } = await workers(t);
  await enqueue("parent", "mail");
  const worker = await register("w");
  const parent = await worker.next(roomFor(1, ["mail"]));
  const drafts = ["a", "b"].map((id) => draft({ id, kind: "sms" }));
  await worker.record(parent, { type: "enqueue", drafts });
  await worker.settle(waiting(parent, { jobs: ["a", "b"] }));
  const set = (id: string, state: number) => sql("UPDATE outlive.jobs SET state = $2 WHERE id = $1", [id, state]);
  const lane = async (): Promise<number> => {
    await sql("SELECT outlive.act_on_wakes()");
    return (await job("parent")).lane;
  };
  await set("a", 4);
  await set("a", 0);
  await set("b", 4);
  assert.equal(await lane(), LANE.delayed);
  await set("a", 4);
  assert.equal(await lane(), LANE.open);
});

for (const [how, statement] of [
  ["ends the job", "UPDATE outlive.jobs SET state = 4 WHERE id = 'stranger'"],
  ["deletes the job", "DELETE FROM outlive.jobs WHERE id = 'stranger'"],
] as const)
  test(`a wait for a job that a transaction holds makes no worker wait, and ends when that transaction ${how}`, async (t) => {
    const { register, enqueue, session, job, sql } = await workers(t);
    for (const id of ["first", "second"]) await enqueue(id, "mail");
    await enqueue("stranger");
    const worker = await register("w");
    const [first, second] = await worker.claim(roomFor(2, ["mail"]));
    // The end of the job is watched for this one already.
    await worker.settle(waiting(first!, { jobs: ["stranger"] }));
    const other = await session();
    await other.sql("BEGIN");
    await other.sql(statement);
    await worker.settle(waiting(second!, { jobs: ["stranger"] }));
    const { nextDueInMs } = await worker.turn([], NO_ROOM);
    assert.notEqual(nextDueInMs, 0, "the wake is kept for later, and there is nothing to do until then");
    assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.wakes"), [{ n: 1 }]);
    await other.sql("COMMIT");
    await worker.turn([], NO_ROOM);
    assert.equal((await job("second")).lane, LANE.open);
  });

test("a wake for a waiting job that a transaction holds is kept until that transaction has ended", async (t) => {
  const { register, enqueue, session, job, sql } = await workers(t);
  await enqueue("waiter", "mail");
  const worker = await register("w");
  await worker.settle(waiting(await worker.next(roomFor(1, ["mail"])), { signal: "go" }));
  const other = await session();
  await other.sql("BEGIN");
  await other.sql("UPDATE outlive.jobs SET losses = 1 WHERE id = 'waiter'");
  await worker.store.operate.signal({ job: "waiter", name: "go", payload: "1", id: "1" });
  assert.equal((await worker.turn([], NO_ROOM)).woken, undefined);
  assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.wakes"), [{ n: 1 }]);
  await other.sql("COMMIT");
  assert.equal((await worker.turn([], NO_ROOM)).woken, 1);
  assert.equal((await job("waiter")).lane, 2, "a suspect, because of its loss");
});

test("a user's transaction that sent a signal and stays open makes no sender, worker or cancel wait", async (t) => {
  const { register, enqueue, ...store } = await workers(t);
  await enqueue("waiter", "mail");
  const worker = await register("w");
  await worker.settle(waiting(await worker.next(roomFor(1, ["mail"])), { signal: "go" }));
  const engine = await openStore(store);
  t.after(() => engine.close());
  const sent = Promise.withResolvers<void>();
  const gate = Promise.withResolvers<void>();
  const transacted = engine.transactions!.transact(async (tx) => {
    await tx.signal("waiter", "go", 1, { id: "first" });
    sent.resolve();
    await gate.promise;
  });
  await sent.promise;
  assert.deepEqual(await worker.claim(roomFor(1, ["mail"])), [], "it is not committed");
  const signal = { job: "waiter", name: "go", payload: "2" };
  assert.deepEqual(await worker.store.operate.signal({ ...signal, id: "second" }), { is: "kept" });
  await worker.turn([], NO_ROOM);
  const woken = await worker.next(roomFor(1, ["mail"]));
  const read = { type: "signal", step: "run.signal(go)#1", name: "go", hasEnded: false } as const;
  assert.deepEqual(await worker.record(woken, read), [{ is: "applied", signal: { kept: true, payload: "2" } }]);
  await worker.settle(waiting(woken, { signal: "go" }));
  gate.resolve();
  await transacted;
  await worker.turn([], NO_ROOM);
  assert.equal((await worker.next(roomFor(1, ["mail"]))).lease.jobId, "waiter");
});

test("a child whose row a transaction holds is skipped by a cancel of its family, and cancelled when that has ended", async (t) => {
  const { register, enqueue, session, job, sql } = await workers(t);
  await enqueue("parent", "mail");
  const worker = await register("w");
  const parent = await worker.next(roomFor(1, ["mail"]));
  const drafts = ["held", "free"].map((id) => draft({ id, kind: "sms" }));
  await worker.record(parent, { type: "enqueue", drafts });
  const other = await session();
  await other.sql("BEGIN");
  await other.sql("SELECT 1 FROM outlive.jobs WHERE id = 'held' FOR UPDATE");
  await worker.settle(waiting(parent, { jobs: ["held", "free"] }));
  await worker.store.operate.cancel("parent", "operator", { children: true });
  let turns = 0;
  while ((await worker.turn([], NO_ROOM)).nextDueInMs === 0) assert.ok(turns++ < 20, "the lock may last: no busy loop");
  assert.deepEqual([(await job("held")).state, (await job("free")).state], ["queued", "cancelled"]);
  await other.sql("COMMIT");
  for (let more = 0; more < 5; more++) await worker.turn([], NO_ROOM);
  assert.equal((await job("held")).state, "cancelled");
  assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.family_cancels"), [{ n: 0 }]);
  assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.wakes"), [{ n: 0 }]);
});

test("a worker of a version that knows no cancels of families takes their wakes, and they are kept", async (t) => {
  const { register, enqueue, job, sql } = await workers(t);
  await enqueue("parent", "mail");
  const worker = await register("w");
  const parent = await worker.next(roomFor(1, ["mail"]));
  await worker.record(parent, { type: "enqueue", drafts: [draft({ id: "child", kind: "sms" })] });
  await worker.settle(waiting(parent, { jobs: ["child"] }));
  await worker.store.operate.cancel("parent", "operator", { children: true });
  for (let turns = 0; turns < 3; turns++) await sql("SELECT outlive.act_on_wakes(500)");
  assert.equal((await job("child")).state, "queued");
  for (let turns = 0; turns < 3; turns++) await worker.turn([], NO_ROOM);
  assert.equal((await job("child")).state, "cancelled");
});

test("a parent whose commit holds its row for long stops no worker from acting on the wakes of its children", async (t) => {
  const { register, enqueue, session, sql } = await workers(t);
  await enqueue("parent", "mail");
  const worker = await register("w");
  const parent = await worker.next(roomFor(1, ["mail"]));
  await worker.record(parent, { type: "enqueue", drafts: [draft({ id: "child", kind: "sms" })] });
  const commit = await session();
  await commit.sql("BEGIN");
  await commit.sql("SELECT 1 FROM outlive.jobs WHERE id = 'parent' FOR UPDATE");
  await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
  assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.wakes"), [{ n: 0 }]);
  await commit.sql("COMMIT");
  await worker.settle(waiting(parent, { jobs: ["child"] }));
  assert.equal((await worker.next(roomFor(1, ["mail"]))).lease.jobId, "parent");
});

test("of many waits and ends at the same moment on several connections no wake is lost", async (t) => {
  const { register, enqueue, sql, ...store } = await workers(t);
  const worker = await register("w");
  const other = new TestWorker(await openStore(store), "v", worker.epoch);
  t.after(() => other.store.close());
  await other.store.register(workerRecord("v"));
  for (let round = 0; round < 15; round++) {
    const id = `parent-${round}`;
    await enqueue(id, "mail");
    const strangers = [`x-${round}`, `y-${round}`];
    for (const stranger of strangers) await enqueue(stranger);
    const parent = await worker.next(roomFor(1, ["mail"]));
    await worker.record(parent, { type: "enqueue", drafts: [draft({ id: `child-${round}`, kind: "sms" })] });
    const mine = await worker.claim(roomFor(1, ["sms"]));
    const theirs = await other.claim(roomFor(2, ["sms"]));
    assert.deepEqual([mine.length, theirs.length], [1, 2]);
    await Promise.all([
      worker.settle(waiting(parent, { jobs: [...strangers, `child-${round}`] })),
      other.settle(SETTLE.succeed(theirs[0]!)),
      worker.settle(SETTLE.succeed(mine[0]!)),
      other.settle(SETTLE.failForGood(theirs[1]!)),
      sql("SELECT outlive.act_on_wakes()"),
    ]);
    await worker.turn([], NO_ROOM);
    const woken = await worker.next(roomFor(1, ["mail"]));
    assert.equal(woken.lease.jobId, id);
    await worker.settle(SETTLE.succeed(woken));
  }
  assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.awaits"), [{ n: 0 }]);
});

test("a wait for 20,000 jobs that are not its children begins and ends in time", async (t) => {
  const { register, enqueue, sql, job } = await workers(t);
  await enqueue("waiter", "mail");
  const worker = await register("w");
  const waiter = await worker.next(roomFor(1, ["mail"]));
  const ids = Array.from({ length: 20_000 }, (_, i) => `stranger-${i}`);
  await worker.store.enqueue(ids.map((id) => draft({ id, kind: "sms" })));
  await worker.settle(waiting(waiter, { jobs: ids }));
  await sql("UPDATE outlive.jobs SET state = 4, finished_at = 1 WHERE id LIKE 'stranger-%' AND id <> 'stranger-7'");
  while ((await worker.turn([], NO_ROOM)).nextDueInMs === 0);
  assert.equal((await job("waiter")).lane, LANE.delayed);
  await worker.store.operate.cancel("stranger-7", "operator");
  await worker.turn([], NO_ROOM);
  assert.equal((await job("waiter")).lane, LANE.open);
});

/** A parent that waits for this number of children. Those with a higher number end first. */
async function family({ register, enqueue }: Workers, count: number) {
  await enqueue("parent", "mail");
  const worker = await register("w");
  const parent = await worker.next(roomFor(1, ["mail"]));
  const ids = Array.from({ length: count }, (_, i) => `child-${i}`);
  await worker.record(parent, {
    type: "enqueue",
    drafts: ids.map((id, priority) => draft({ id, kind: "sms", priority })),
  });
  await worker.settle(waiting(parent, { jobs: ids }));
  await worker.turn([], NO_ROOM);
  const end = async (some: number): Promise<void> => {
    const claimed = await worker.claim(roomFor(some, ["sms"]));
    assert.equal(claimed.length, some);
    await worker.settle(...claimed.map((one) => SETTLE.succeed(one)));
    while ((await worker.turn([], NO_ROOM)).nextDueInMs === 0);
  };
  return { worker, ids, end };
}

test("the end of a child writes nothing in its row of extras, and its input has the hash that claims compare", async (t) => {
  const store = await workers(t);
  const { worker, end } = await family(store, 3);
  const rows = () => store.sql("SELECT job::int, ctid::text, xmin::text, ended FROM outlive.extras ORDER BY job");
  const before = await rows();
  await end(2);
  await worker.settle(SETTLE.failForGood(await worker.next(roomFor(1, ["sms"]))));
  assert.deepEqual(await rows(), before);
  const hash = `hashtextextended(input COLLATE "C", hashtextextended(id COLLATE "C", 0))`;
  const hashed = await store.sql(
    `SELECT bool_and(input_hash IS NOT DISTINCT FROM ${hash}) AS same FROM outlive.jobs WHERE id LIKE 'child-%'`,
  );
  assert.deepEqual(hashed, [{ same: true }]);
  assert.equal((await worker.next(roomFor(1, ["mail"]))).lease.jobId, "parent");
});

test("a check of a large family begins where the one before stopped, and does not wait for the row of the wait", async (t) => {
  const store = await workers(t);
  const { end, worker } = await family(store, 400);
  const begin = async (): Promise<string | null> => {
    const [row] = await store.sql<{ id: string | null }>(
      "SELECT (SELECT j.id FROM outlive.jobs j WHERE j.seq = w.child) AS id FROM outlive.waits w",
    );
    return row!.id;
  };
  assert.equal(await begin(), null);
  await end(50);
  assert.equal(await begin(), null, "a few children are read again");
  await end(50);
  assert.equal(await begin(), "child-299");
  const other = await store.session();
  await other.sql("BEGIN");
  await other.sql("SELECT 1 FROM outlive.waits FOR UPDATE");
  await end(100);
  await other.sql("COMMIT");
  assert.equal(await begin(), "child-299");
  // One that was retried is found behind where the next check begins, and then it begins there.
  await worker.store.operate.retry("child-350", "operator");
  const retried = await worker.next(roomFor(1, ["sms"]));
  await end(199);
  await end(1);
  assert.equal(await begin(), "child-350");
  assert.equal((await store.job("parent")).lane, LANE.delayed);
  await worker.settle(SETTLE.succeed(retried));
  assert.equal((await worker.next(roomFor(1, ["mail"]))).lease.jobId, "parent");
});

test("a parent that nothing wakes although its children have ended is a finding", async (t) => {
  const store = await workers(t);
  const { worker, end } = await family(store, 2);
  await end(1);
  assert.deepEqual(await worker.store.upkeep.integrity(), []);
  await store.sql("UPDATE outlive.jobs SET state = 4, finished_at = 1 WHERE id = 'child-0'");
  assert.equal((await store.job("parent")).lane, LANE.delayed);
  assert.deepEqual(await worker.store.upkeep.integrity(), [], "its wake is there");
  await store.sql("DELETE FROM outlive.wakes");
  assert.deepEqual(await worker.store.upkeep.integrity(), [
    "job parent waits for its children, but all of them have ended and nothing wakes it",
  ]);
});

const STEP_OF_MARKS = MIGRATIONS.findIndex(({ name }) => name === "children by state");

test("a parent that waits while its store goes a step back, or on, wakes with its last child", async (t) => {
  for (const way of ["back", "on"] as const) {
    const store = await workers(t);
    const { end } = await family(store, 5);
    const { schema, url, sql, job } = store;
    const back = () => withClient(url, (client) => migrateDown(client, schema, { target: STEP_OF_MARKS, force: true }));
    const marks = () =>
      sql(
        "SELECT e.ended, count(*)::int AS n FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job AND (j.state > 1) = e.ended GROUP BY 1 ORDER BY 1",
      );
    await end(2);
    await store.killAll();
    if (way === "on") await back();
    // What ends by SQL comes through the trigger of that version.
    await sql("UPDATE outlive.jobs SET state = 4, finished_at = 1 WHERE id = 'child-0'");
    if (way === "on") await withClient(url, (client) => migrate(client, schema));
    else await back();
    if (way === "back")
      assert.deepEqual(await marks(), [
        { ended: false, n: 2 },
        { ended: true, n: 3 },
      ]);
    await sql("UPDATE outlive.jobs SET state = 4, finished_at = 1 WHERE id = 'child-1'");
    await sql("SELECT outlive.act_on_wakes()");
    assert.equal((await job("parent")).lane, LANE.delayed);
    await sql("UPDATE outlive.jobs SET state = 4, finished_at = 1 WHERE id = 'child-2'");
    await sql("SELECT outlive.act_on_wakes()");
    assert.equal((await job("parent")).lane, LANE.open, way);
  }
});

test("the step by which ends are not marked any more waits for a transaction that has taken a wake", async (t) => {
  const store = await workers(t);
  await family(store, 2);
  const { schema, url, sql } = store;
  await store.killAll();
  await withClient(url, (client) => migrateDown(client, schema, { target: STEP_OF_MARKS + 1, force: true }));
  await sql("UPDATE outlive.jobs SET state = 4, finished_at = 1 WHERE id = 'child-0'");
  const other = await store.session();
  await other.sql("BEGIN");
  await other.sql("SELECT outlive.act_on_wakes()");
  const stepped = withClient(url, (client) => migrate(client, schema));
  const waiters = () =>
    sql(
      "SELECT 1 FROM pg_locks WHERE relation = 'outlive.wakes'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted",
    );
  while ((await waiters()).length === 0) await new Promise(setImmediate);
  await other.sql("COMMIT");
  assert.deepEqual(await stepped, [STEP_OF_MARKS + 2]);
});

test("a step back makes jobs ready that wait without a time limit, and a role from before the step may use its tables", async (t) => {
  const { register, enqueue, killAll, url, schema, sql, job } = await workers(t);
  const role = `${schema}_app`;
  await enqueue("waiter", "mail");
  const worker = await register("w");
  await worker.settle(waiting(await worker.next(roomFor(1, ["mail"])), { signal: "go" }));
  await killAll();
  t.after(() => withClient(url, (client) => client.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)));
  await sql(`CREATE ROLE ${role}; GRANT USAGE ON SCHEMA ${schema} TO ${role}; GRANT SELECT, INSERT ON outlive.steps TO ${role};
    GRANT EXECUTE ON FUNCTION outlive.tick(integer) TO ${role}`);
  const step = MIGRATIONS.findIndex(({ name }) => name === "waiting");
  await withClient(url, (client) => migrateDown(client, schema, { target: step, force: true }));
  assert.equal((await job("waiter")).waitsMs, 0);
  await withClient(url, (client) => migrate(client, schema));
  const may = await sql(
    `SELECT has_table_privilege($1, 'outlive.signals', 'INSERT') AS signals, has_table_privilege($1, 'outlive.wakes', 'DELETE') AS wakes,
       has_function_privilege($1, 'outlive.act_on_wakes(integer)', 'EXECUTE') AS acts`,
    [role],
  );
  assert.deepEqual(may, [{ signals: true, wakes: false, acts: true }]);
});
