// What happens to the server itself: it is started again, goes back, is emptied, is full, or is not fit for jobs. Each test has one of its own.
import assert from "node:assert/strict";
import { cpSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { ErrorCode, type OutliveError } from "../../src/job/errors.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { connect } from "../../src/stores/redis/driver.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { draft, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { kinds } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { ownRedis, type RedisServer } from "../support/redis.ts";
import { hidesFromEverySecond, hidesSubscriptions, redisProxy } from "../support/redis-proxy.ts";
import { RedisPlace } from "./place.ts";

function storeOn(t: TestContext, url: string): Store {
  const connection = new Connection({ address: redisAddress(url), random: systemRandom, clock: systemClock });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return store;
}

async function claimed(store: Store, worker: string) {
  const { claimed: jobs, live } = await store.turn(worker, [], roomFor(9));
  return { jobs, live };
}

/** The first call after an outage may find the connection broken. */
async function again<T>(call: () => Promise<T>): Promise<T> {
  return untilTrue(
    () =>
      call()
        .then((value) => ({ value }))
        .catch(() => null),
    (answer) => answer !== null,
    "the server answers",
  ).then((answer) => answer!.value);
}

for (const how of ["stop", "kill"] as const)
  test(`after the server was started again (${how}) nothing is lost, and the epoch is higher before the first claim`, async (t) => {
    const server = await ownRedis(t, { fsync: "always" });
    const store = storeOn(t, server.url());
    await store.declare([kind("mail")]);
    await store.enqueue([draft("a"), draft("b")]);
    const { epoch } = await store.register(workerRecord("w"));
    const { jobs } = await claimed(store, "w");
    await server[how]();
    await server.start();
    const turn = await again(() => store.turn("w", [SETTLE.succeed(jobs[0]!)], roomFor(9)));
    assert.deepEqual([turn.live, turn.replaced, turn.settled[0]!.is], [false, undefined, "stale"]);
    // As the engine does: it registers again and names its predecessor, which costs the jobs nothing.
    const next = await store.register(workerRecord("w2", { predecessor: "w" }));
    assert.ok(next.epoch > epoch);
    const after = await claimed(store, "w2");
    assert.deepEqual(
      after.jobs.map(({ lease, counters }) => [lease.jobId, lease.fence, counters.crashes, counters.interruptions]),
      [
        ["a", 2, 0, 1],
        ["b", 2, 0, 1],
      ],
    );
    assert.ok(after.jobs.every(({ lease }) => lease.epoch === next.epoch));
    assert.match((await store.upkeep.noticeRestore!())!, /started again/);
  });

test("a server that went back is noticed by a process that knows more: counted, reported, and no fence is issued twice", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  await store.enqueue([draft("a")]);
  await store.register(workerRecord("w"));
  const copy = join(server.folder, "copy");
  cpSync(join(server.folder, "appendonlydir"), copy, { recursive: true });
  const { jobs: lost } = await claimed(store, "w");
  await store.enqueue([draft("b")]);
  await server.stop();
  rmSync(join(server.folder, "appendonlydir"), { recursive: true });
  cpSync(copy, join(server.folder, "appendonlydir"), { recursive: true });
  await server.start();
  const turn = await again(() => store.turn("w", [SETTLE.succeed(lost[0]!)], roomFor(9)));
  assert.deepEqual([turn.live, turn.settled[0]!.is], [false, "stale"]);
  assert.match(turn.replaced!, /2 operation\(s\)/);
  assert.match((await store.upkeep.noticeRestore!())!, /2 operation\(s\)/);
  assert.equal((await store.inspect.health()).detail["operationsLost"], 2);
  await store.register(workerRecord("new"));
  const { jobs } = await claimed(store, "new");
  assert.deepEqual(
    jobs.map(({ lease }) => [lease.jobId, lease.fence]),
    [
      ["a", 1],
      ["b", 1],
    ],
    "what this process had enqueued is there again",
  );
  assert.ok(jobs[0]!.lease.epoch > lost[0]!.lease.epoch);
});

test("a process that finds out later that the store went back says so, too", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const [knows, knowsNothing] = [storeOn(t, server.url()), storeOn(t, server.url())];
  await knows.declare([kind("mail")]);
  const copy = join(server.folder, "copy");
  cpSync(join(server.folder, "appendonlydir"), copy, { recursive: true });
  await knows.enqueue([draft("a")]);
  await server.stop();
  rmSync(join(server.folder, "appendonlydir"), { recursive: true });
  cpSync(copy, join(server.folder, "appendonlydir"), { recursive: true });
  await server.start();
  await again(() => knowsNothing.register(workerRecord("w")));
  assert.equal((await knowsNothing.inspect.health()).detail["operationsLost"], 0);
  await again(() => knows.enqueue([draft("a")]));
  assert.equal((await knows.inspect.health()).detail["operationsLost"], 1);
});

/** A replica gets the data as soon as it asks for them. */
const AT_ONCE = { "repl-diskless-sync-delay": "0" };

/** Makes this primary a replica of one that has its data as they are now, and promotes it again after `meanwhile`: it never stopped running. */
async function demotedAndPromoted(
  t: TestContext,
  server: RedisServer,
  meanwhile: () => Promise<unknown>,
): Promise<void> {
  const other = await ownRedis(t, { settings: AT_ONCE });
  const [one, two] = await Promise.all([server, other].map((each) => connect({ url: each.url() })));
  t.after(() => [one, two].forEach((wire) => wire!.close()));
  const isSynced = async (wire: typeof one): Promise<boolean> =>
    /master_link_status:up/.test(String(await wire!.call(["INFO", "replication"], 5_000)));
  await two!.call(["REPLICAOF", "127.0.0.1", String(server.port)], 5_000);
  await untilTrue(() => isSynced(two), Boolean, "the other one has the data");
  await two!.call(["REPLICAOF", "NO", "ONE"], 5_000);
  await meanwhile();
  await one!.call(["REPLICAOF", "127.0.0.1", String(other.port)], 5_000);
  await untilTrue(() => isSynced(one), Boolean, "it has the other one's data");
  await one!.call(["REPLICAOF", "NO", "ONE"], 5_000);
}

test("a primary that was a replica for a moment, and lost writes by it, is noticed although it never stopped: no fence is issued twice", async (t) => {
  const server = await ownRedis(t, { settings: AT_ONCE });
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  await store.enqueue([draft("a")]);
  await store.register(workerRecord("w"));
  let lost: Awaited<ReturnType<typeof claimed>>["jobs"] = [];
  await demotedAndPromoted(t, server, async () => {
    ({ jobs: lost } = await claimed(store, "w"));
    await store.enqueue([draft("b")]);
  });
  // This very call would claim the job again under the fence that was lost.
  await assert.rejects(store.turn("w", [], roomFor(9)), { code: ErrorCode.storeUnreachable });
  const turn = await again(() => store.turn("w", [], roomFor(9)));
  assert.deepEqual([turn.live, turn.claimed], [false, []]);
  assert.match(turn.replaced!, /operation\(s\)/);
  assert.ok(Number((await store.inspect.health()).detail["operationsLost"]) > 0);
  await store.register(workerRecord("v", { predecessor: "w" }));
  const { jobs } = await claimed(store, "v");
  assert.deepEqual(jobs.map(({ lease }) => lease.jobId).toSorted(), ["a", "b"], "what it had enqueued is there again");
  for (const { lease } of jobs) assert.ok(lease.epoch > lost[0]!.lease.epoch);
});

test("a process that was refused by a replica begins a run when that is promoted, although it knows of nothing that is lost", async (t) => {
  const server = await ownRedis(t);
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const { epoch } = await store.register(workerRecord("w"));
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  await wire.call(["REPLICAOF", "127.0.0.1", "1"], 5_000);
  for (let tries = 0; tries < 3; tries++)
    await assert.rejects(store.enqueue([draft("a")]), { code: ErrorCode.storeReadOnly });
  await wire.call(["REPLICAOF", "NO", "ONE"], 5_000);
  assert.ok((await again(() => store.register(workerRecord("v")))).epoch > epoch);
});

test("a process that knows of a later run than the store has begins one after both", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const [knows, other] = [storeOn(t, server.url()), storeOn(t, server.url())];
  await knows.declare([kind("mail")]);
  const copy = join(server.folder, "copy");
  cpSync(join(server.folder, "appendonlydir"), copy, { recursive: true });
  await server.restart();
  const { epoch } = await again(() => knows.register(workerRecord("w")));
  await server.stop();
  rmSync(join(server.folder, "appendonlydir"), { recursive: true });
  cpSync(copy, join(server.folder, "appendonlydir"), { recursive: true });
  await server.start();
  // It was not there in the run that is gone, and begins one of the same number.
  await again(() => other.register(workerRecord("v")));
  assert.ok((await again(() => knows.register(workerRecord("x")))).epoch > epoch);
  assert.ok(Number((await knows.inspect.health()).detail["operationsLost"]) > 0);
  assert.equal((await other.turn("v", [], roomFor(9))).live, false);
});

test("scripts that the server forgot are loaded again, and neither that nor another process begins a run", async (t) => {
  const server = await ownRedis(t);
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const { epoch } = await store.register(workerRecord("w"));
  const other = storeOn(t, server.url());
  assert.equal((await other.register(workerRecord("v"))).epoch, epoch);
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  await wire.call(["SCRIPT", "FLUSH"], 5_000);
  for (const worker of ["w", "v"]) assert.equal((await claimed(store, worker)).live, true);
  assert.equal((await other.register(workerRecord("x"))).epoch, epoch);
  assert.equal(await store.upkeep.noticeRestore!(), null);
});

test("a store that was emptied under a living process is not taken for a new one", async (t) => {
  const server = await ownRedis(t);
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  await wire.call(["FLUSHALL"], 5_000);
  await assert.rejects(store.enqueue([draft("a")]), { code: ErrorCode.storeReplaced });
  assert.deepEqual(await wire.call(["KEYS", "*"], 5_000), []);
});

test("R9: enqueues that come together are one script, and an unknown kind in one of them fails only that one", async (t) => {
  const server = await ownRedis(t);
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  const scripts = async (): Promise<number> => {
    const stats = String(await wire.call(["INFO", "commandstats"], 5_000));
    return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)![1]);
  };
  const before = await scripts();
  const all = await Promise.all(Array.from({ length: 200 }, (_, n) => store.enqueue([draft(`j${n}`)])));
  assert.ok(all.every(([one]) => one!.created));
  assert.ok((await scripts()) - before <= 5, "few scripts");
  const [good, bad] = await Promise.allSettled([
    store.enqueue([draft("good")]),
    store.enqueue([draft("first"), draft({ id: "bad", kind: "never-declared" })]),
  ]);
  assert.equal(good.status, "fulfilled");
  assert.equal(bad.status === "rejected" && (bad.reason as OutliveError).code, ErrorCode.kindUnknown);
  assert.equal(await store.inspect.get("first"), null, "nothing of that call was written");
});

test("R4 R10: memory is full: nothing new is taken, and what runs ends and can be purged", async (t) => {
  const server = await ownRedis(t, { maxmemory: "8mb" });
  const store = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  const input = JSON.stringify("x".repeat(10_000));
  let added = 0;
  const refused = await (async () => {
    for (; ; added++) {
      try {
        await store.enqueue([draft({ id: `j${added}`, input })]);
      } catch (thrown) {
        return thrown as OutliveError;
      }
    }
  })();
  assert.equal(refused.code, ErrorCode.storeFull);
  const { claimed: jobs } = await store.turn("w", [], roomFor(100));
  assert.equal(jobs.length, 100);
  const { settled } = await store.turn(
    "w",
    jobs.map((job) => SETTLE.succeed(job)),
    roomFor(0),
  );
  assert.ok(settled.every(({ is }) => is === "applied"));
  await untilTrue(
    () => store.purge({ finishedOlderThanMs: 0, incidentsOlderThanMs: 0, limit: 1_000 }),
    ({ jobs: purged }) => purged > 0,
    "something is purged",
  );
  assert.deepEqual(await store.enqueue([draft("again")]), [{ id: "again", created: true }]);
});

test("R11: a server that may drop keys is refused, by name of its policy", async (t) => {
  const server = await ownRedis(t, { settings: { maxmemory: "64mb", "maxmemory-policy": "allkeys-lru" } });
  const place = new RedisPlace(t, server.url());
  await assert.rejects(place.engine(), (thrown: OutliveError) => {
    assert.equal(thrown.code, ErrorCode.storeUnusable);
    assert.match(thrown.message, /allkeys-lru/);
    return true;
  });
});

test("a user without dangerous commands can do everything that a worker needs", async (t) => {
  const server = await ownRedis(t, {
    acl: ["user default on nopass +@all ~* &*", "user app on >secret +@all -@dangerous -@admin ~o:* &o:*"],
  });
  const place = new RedisPlace(t, server.url("app", "secret"));
  const engine = await place.engine();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(kinds.slow, { ms: 1 });
  assert.equal(await engine.result(id, { timeout: "30s" }), null);
  const [worker] = await engine.workers();
  assert.notEqual(worker!.lock.name, null);
});

test("jobs that ended badly are listed by pages, newest first, from their sets or, if there are too many, from the records", async (t) => {
  const server = await ownRedis(t);
  const engine = await new RedisPlace(t, server.url()).engine();
  const ids = Array.from({ length: 1_100 }, (_, n) => `job-${String(n).padStart(4, "0")}`);
  await engine.enqueueMany(kinds.slow, Array(1_100).fill({ ms: 1 }), { each: (_, n) => ({ id: ids[n]! }) });
  const listed = async (): Promise<string[]> => {
    const found: string[] = [];
    for (let after: string | undefined; ;) {
      const page = await engine.list({ state: "cancelled", limit: 70, ...(after !== undefined && { after }) });
      found.push(...page.jobs.map(({ id }) => id));
      if (page.next === null) return found;
      after = page.next;
    }
  };
  assert.deepEqual(await listed(), []);
  const some = ids.filter((_, n) => n % 3 === 0);
  await Promise.all(some.map((id) => engine.cancel(id)));
  assert.deepEqual(await listed(), some.toReversed());
  assert.deepEqual(
    (await engine.list({ state: "cancelled", text: "-0003", limit: 9 })).jobs.map(({ id }) => id),
    ["job-0003"],
  );
  assert.equal((await engine.list({ state: "cancelled", kind: "no-such-kind", limit: 9 })).jobs.length, 0);
  await Promise.all(ids.filter((id) => !some.includes(id)).map((id) => engine.cancel(id)));
  assert.deepEqual(await listed(), ids.toReversed());
});

test("a thousand damaged jobs in front of a sound one are quarantined, and the worker comes to that one although it hardly ever polls", async (t) => {
  const server = await ownRedis(t);
  const engine = await new RedisPlace(t, server.url()).engine({ poll: "1h" });
  const damaged = 1_000;
  const inputs = Array(damaged + 1).fill({ ms: 1 });
  await engine.enqueueMany(kinds.slow, inputs, { each: (_, n) => ({ id: n === damaged ? "sound" : `bad-${n}` }) });
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  for (let row = 1; row <= damaged; row++)
    await wire.call(["LSET", `o:{outlive}:i:${Math.floor(row / 64)}`, String(row % 64), '00000000+{"ms":1}'], 5_000);
  await engine.start({ concurrency: 2 });
  assert.equal(await engine.result("sound", { timeout: "30s" }), null);
  const [counts] = (await engine.counts()).filter(({ kind: name }) => name === "slow");
  assert.deepEqual([counts!.quarantined, counts!.succeeded], [damaged, 1]);
});

test("R2: a worker whose maintenance does not reach the server when it starts works all the same, and its maintenance follows", async (t) => {
  const server = await ownRedis(t);
  let [connections, isOpen] = [0, false];
  const { url } = await redisProxy(t, server, { admits: () => ++connections === 1 || isOpen });
  const failures: string[] = [];
  const engine = await new RedisPlace(t, url).engine({
    onEvent: (event) => event.name === "heartbeat.failed" && failures.push(event.error.name),
  });
  await engine.start({ concurrency: 2 });
  const { id } = await engine.enqueue(kinds.slow, { ms: 1 });
  assert.equal(await engine.result(id, { timeout: "30s" }), null);
  const [worker] = await engine.workers();
  assert.deepEqual(new Set(failures), new Set(["OutliveError"]));
  isOpen = true;
  const channel = `o:{outlive}:w:${worker!.id}`;
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  await untilTrue(
    () => wire.call(["PUBSUB", "NUMSUB", channel], 5_000),
    (counts) => JSON.stringify(counts).includes("2"),
    "both connections of the worker are subscribed",
  );
});

test("a worker behind a proxy that hides subscriptions takes no lock, works, and advice names it", async (t) => {
  const server = await ownRedis(t);
  const { url } = await redisProxy(t, server, { sends: hidesSubscriptions });
  const place = new RedisPlace(t, url);
  const engine = await place.engine();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(kinds.slow, { ms: 1 });
  assert.equal(await engine.result(id, { timeout: "30s" }), null);
  const [worker] = await engine.workers();
  assert.equal(worker!.lock.name, null);
  const [found] = (await engine.operator.advice()).filter(({ text }) =>
    /did not see their own subscriptions/.test(text),
  );
  assert.equal(found?.level, "warning");
  assert.ok(found.text.includes(worker!.id));
});

test("a worker behind several proxies, each of which sees only its own subscriptions, takes no lock either, and a check finds them before the first worker", async (t) => {
  const server = await ownRedis(t);
  const { url } = await redisProxy(t, server, { sends: hidesFromEverySecond() });
  const place = new RedisPlace(t, url);
  const engine = await place.engine();
  const found = await engine.operator.advice();
  assert.ok(found.some(({ text }) => /is not seen by other connections/.test(text)));
  const child = place.child();
  await child.untilFact("working");
  assert.equal((await engine.workers())[0]!.lock.name, null);
});

test("R2: a server that refuses some connections for a moment hides nothing: the worker that registers takes its lock", async (t) => {
  const server = await ownRedis(t);
  let connections = 0;
  // After the program's own, the three by which it finds out whether others see its subscription.
  const { url } = await redisProxy(t, server, { admits: () => ++connections === 1 || connections > 4 });
  const engine = await new RedisPlace(t, url).engine();
  await engine.start();
  const [worker] = await engine.workers();
  assert.equal(worker!.lock.name, `o:{outlive}:w:${worker!.id}`);
});

test("R2: a server that refuses every further connection proves nothing: the worker takes no lock, and advice names that and no proxy", async (t) => {
  const server = await ownRedis(t);
  let connections = 0;
  const { url } = await redisProxy(t, server, { admits: () => ++connections === 1 });
  const engine = await new RedisPlace(t, url).engine();
  const warnings = async (): Promise<string> => (await engine.operator.advice()).map(({ text }) => text).join("\n");
  assert.match(
    await warnings(),
    /refused further connections, so whether it shows a subscription to others is not known/,
  );
  assert.doesNotMatch(await warnings(), /proxy/);
  await engine.start();
  assert.equal((await engine.workers())[0]!.lock.name, null);
});

test("a worker whose store was flushed stops with STORE_REPLACED, and says so once", async (t) => {
  const server = await ownRedis(t);
  const events: string[] = [];
  const engine = await new RedisPlace(t, server.url()).engine({ onEvent: ({ name }) => void events.push(name) });
  const worker = await engine.start();
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  await wire.call(["FLUSHALL"], 5_000);
  await assert.rejects(worker.stopped, { code: ErrorCode.storeReplaced });
  assert.equal(events.filter((name) => name === "store.replaced").length, 1);
  await assert.rejects(engine.enqueue(kinds.slow, { ms: 1 }), { code: ErrorCode.storeReplaced });
  assert.deepEqual(await wire.call(["KEYS", "*"], 5_000), [], "nothing was written");
});

async function restarts(server: RedisServer, how: "kill" | "stop"): Promise<void> {
  await server[how]();
  await server.start();
}

for (const how of ["kill", "stop"] as const)
  test(`living workers go on after the server was started again (${how}): all work ends, and no worker is called dead`, async (t) => {
    const server = await ownRedis(t, { fsync: "always" });
    const place = new RedisPlace(t, server.url());
    const engine = await place.engine();
    const children = [place.child(), place.child()];
    await Promise.all(children.map((child) => child.untilFact("working")));
    const JOBS = 300;
    await engine.enqueueMany(
      kinds.slow,
      Array.from({ length: JOBS }, () => ({ ms: 20 })),
    );
    const succeeded = async (): Promise<number> =>
      (await engine.counts().catch(() => [])).reduce((sum, one) => sum + one.succeeded, 0);
    await untilTrue(succeeded, (done) => done > 20, "some are done");
    await restarts(server, how);
    await untilTrue(succeeded, (done) => done === JOBS, "all is done");
    assert.deepEqual(await engine.incidents(), []);
    for (const child of children) child.kill("SIGTERM");
    await Promise.all(children.map((child) => child.untilFact("stopped")));
  });
