// What a server that dies, restarts or goes back has lost, and what is promised about it: real servers, killed, started from older files, with real
// replicas.
import assert from "node:assert/strict";
import { cpSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { ErrorCode, type OutliveError } from "../../src/job/errors.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { redisAddress, type RedisPromise } from "../../src/stores/redis/address.ts";
import { Connection, type Loss } from "../../src/stores/redis/connection.ts";
import { connect, type Reply, type Wire } from "../../src/stores/redis/driver.ts";
import { assertWaitsForFlush } from "../../src/stores/redis/durability.ts";
import { Journal, KEPT_CHARS, KEPT_MS } from "../../src/stores/redis/journal.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { draft, idsOf, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { kinds } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { ownRedis, type RedisServer } from "../support/redis.ts";
import { type RedisProxy, redisProxy } from "../support/redis-proxy.ts";
import { RedisPlace } from "./place.ts";

interface Opened {
  readonly store: Store;
  readonly losses: readonly Loss[];
}

function storeOn(t: TestContext, url: string, promise: Partial<RedisPromise> = {}): Opened {
  const losses: Loss[] = [];
  const found = redisAddress(url);
  const address = { ...found, promise: { ...found.promise, ...promise } };
  const onLoss = (loss: Loss): void => void losses.push(loss);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock, onLoss });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return { store, losses };
}

/** The first calls after an outage may find the connection broken. */
async function again<T>(call: () => Promise<T>): Promise<T> {
  const made = () =>
    call().then(
      (value) => ({ value }),
      () => null,
    );
  return (await untilTrue(made, (answer) => answer !== null, "the server replies"))!.value;
}

/** A copy of what the server has on its disk now, and the way to start it from there. */
function keptFiles(server: RedisServer): () => Promise<void> {
  const [files, copy] = [join(server.folder, "appendonlydir"), join(server.folder, "copy")];
  cpSync(files, copy, { recursive: true });
  return async () => {
    await server.kill();
    rmSync(files, { recursive: true });
    cpSync(copy, files, { recursive: true });
    await server.start();
  };
}

test("R21: what a server has lost is sent again by the process to which it was acknowledged, and nothing is done twice", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const { store, losses } = storeOn(t, server.url());
  await store.declare([kind("mail"), kind("sms")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft("kept"), draft("ends")]);
  const { claimed } = await store.turn("w", [], roomFor(2, ["mail"]));
  const goBack = keptFiles(server);
  const after = draft({ id: "after", kind: "sms" });
  const { lease, change } = SETTLE.succeed(claimed[1]!, '"result"');
  await store.turn("w", [{ lease, change: { ...change, follow: [after] } }], roomFor(0));
  await store.enqueue([draft("lost-1"), draft("lost-2")]);
  await store.enqueue([draft("lost-2"), draft("lost-3")]);
  await store.operate.signal({ job: "lost-1", name: "go", payload: "1", id: "s1" });
  await goBack();
  await again(() => store.inspect.counts());
  assert.deepEqual(losses, [{ operations: 4, jobs: 3, ends: 1, failed: 0, dropped: 0 }]);
  const states = await Promise.all(
    ["kept", "ends", "after", "lost-1", "lost-2", "lost-3"].map(async (id) => (await store.inspect.get(id))?.state),
  );
  assert.deepEqual(states, ["running", "succeeded", "queued", "queued", "queued", "queued"]);
  assert.equal((await store.inspect.get("ends"))!.result, "result");
  const repeated = await store.operate.signal({ job: "lost-1", name: "go", payload: "1", id: "s1" });
  assert.equal(repeated.is, "repeated");
  const { detail } = await store.inspect.health();
  assert.deepEqual([detail["operationsLost"], detail["jobsSentAgain"], detail["endsSentAgain"]], [4, 3, 1]);
});

test("an end whose claim is lost, too, is not written again: that job runs again", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const { store, losses } = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft("a")]);
  const goBack = keptFiles(server);
  const { claimed } = await store.turn("w", [], roomFor(1));
  await store.turn("w", [SETTLE.succeed(claimed[0]!)], roomFor(0));
  await goBack();
  await again(() => store.inspect.counts());
  assert.deepEqual(losses, [{ operations: 2, jobs: 0, ends: 0, failed: 0, dropped: 0 }]);
  await store.register(workerRecord("v"));
  const second = await store.turn("v", [], roomFor(1));
  assert.deepEqual(idsOf(second.claimed), ["a"]);
  assert.ok(second.claimed[0]!.lease.epoch > claimed[0]!.lease.epoch, "no fence is issued twice");
});

test("what could not be sent again is sent with the next connection, and both are reported", async (t) => {
  const settings: Record<string, string> = {};
  const server = await ownRedis(t, { fsync: "always", settings });
  const { store, losses } = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const goBack = keptFiles(server);
  await store.enqueue([draft("a")]);
  // A server that has no memory left takes nothing new.
  settings["maxmemory"] = "1mb";
  await goBack();
  await again(() => store.inspect.counts());
  assert.deepEqual(losses, [{ operations: 1, jobs: 0, ends: 0, failed: 1, dropped: 0 }]);
  assert.equal(await store.inspect.get("a"), null);
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  await wire.call(["CONFIG", "SET", "maxmemory", "0"], 5_000);
  await wire.call(["CLIENT", "KILL", "TYPE", "normal"], 5_000);
  await again(() => store.inspect.counts());
  assert.equal((await store.inspect.get("a"))?.state, "queued");
  assert.deepEqual(losses.slice(1), [{ operations: 0, jobs: 1, ends: 0, failed: 0, dropped: 0 }]);
  const { detail } = await store.inspect.health();
  assert.deepEqual([detail["operationsLost"], detail["jobsSentAgain"]], [1, 1]);
});

test("what is cut off while it is sent again is sent with the next connection, before anything else", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  let cuts = 0;
  const proxy = await redisProxy(t, server, {
    passes: (text) => cuts === 0 || !text.includes("sent-again") || cuts-- === 0,
  });
  const { store, losses } = storeOn(t, proxy.url);
  await store.declare([kind("mail")]);
  const goBack = keptFiles(server);
  await store.enqueue([draft("sent-again")]);
  cuts = 1;
  await goBack();
  await again(() => store.inspect.counts());
  assert.equal(cuts, 0);
  assert.equal((await store.inspect.get("sent-again"))?.state, "queued");
  assert.deepEqual(losses, [
    { operations: 1, jobs: 0, ends: 0, failed: 1, dropped: 0 },
    { operations: 0, jobs: 1, ends: 0, failed: 0, dropped: 0 },
  ]);
  const { detail } = await store.inspect.health();
  assert.deepEqual([detail["operationsLost"], detail["jobsSentAgain"]], [1, 1]);
});

test("what waits to be sent again neither grows without bound nor keeps what was acknowledged after it", () => {
  const journal = new Journal();
  const call = (chars: number) => ({ script: "enqueue", args: ["x".repeat(chars)] }) as const;
  const half = call(KEPT_CHARS / 2);
  journal.note(half, 1, 0);
  assert.equal(journal.lose(0), 0);
  // Behind it, what is older than the store may lose is forgotten.
  journal.note(call(10), 2, 0);
  journal.note(call(20), 3, KEPT_MS + 1);
  assert.equal(journal.lose(1), 0);
  const unsent = (): readonly number[] => journal.unsent.map(({ args }) => args[0]!.length);
  assert.deepEqual(unsent(), [KEPT_CHARS / 2, 20]);
  journal.note(half, 4, KEPT_MS + 2);
  assert.equal(journal.lose(3), 1, "the oldest is dropped, and counted");
  assert.deepEqual(unsent(), [20, KEPT_CHARS / 2]);
  journal.sent(journal.unsent[0]!, 5, KEPT_MS + 3);
  journal.sent(journal.unsent[0]!, null, KEPT_MS + 3);
  assert.deepEqual(unsent(), []);
  assert.equal(journal.lose(4), 0);
  assert.deepEqual(unsent(), [20], "what was sent again may be lost again");
});

test("a plain restart of a server that flushes always sends nothing again, and an open reports the run", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const { store, losses } = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const all = Array.from({ length: 50 }, (_, n) => `j${n}`);
  await Promise.all(all.map((id) => store.enqueue([draft(id)])));
  await server.kill();
  await server.start();
  await again(() => store.inspect.counts());
  assert.deepEqual(losses, []);
  assert.equal((await store.inspect.counts())[0]!.ready, 50);
  const place = new RedisPlace(t, server.url());
  const engine = await place.engine();
  const report = await engine.report();
  assert.match(JSON.stringify(report), /started again, or another one took over.*No process that has come back knew/s);
});

test("an engine that lives through a rollback says what was missing and what was sent again", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  const place = new RedisPlace(t, server.url());
  const notices: string[] = [];
  const engine = await place.engine({
    onEvent: (event) => void (event.name === "store.notice" && notices.push(event.text)),
  });
  const goBack = keptFiles(server);
  const { id } = await engine.enqueue(kinds.slow, { ms: 1 });
  await goBack();
  await again(() => engine.counts());
  assert.equal((await engine.get(id))?.state, "queued");
  assert.match(notices.join(), /1 operation behind.* 1 job was enqueued and 0 ends written again/);
});

test('redis.durability "fsync" is refused by name of the setting if the server does not flush what it acknowledges', async (t) => {
  const [none, always] = [await ownRedis(t), await ownRedis(t, { fsync: "always" })];
  const rewriting = await ownRedis(t, { fsync: "always", settings: { "no-appendfsync-on-rewrite": "yes" } });
  const redis = { durability: "fsync" } as const;
  const refused = (what: RegExp) => (thrown: OutliveError) => {
    assert.equal(thrown.code, ErrorCode.storeUnusable);
    assert.match(thrown.message, what);
    return true;
  };
  await assert.rejects(new RedisPlace(t, rewriting.url()).engine({ redis }), refused(/appendfsync-on-rewrite is yes/));
  await assert.rejects(new RedisPlace(t, none.url()).engine({ redis }), refused(/appendonly is no/));
  await new RedisPlace(t, always.url()).engine({ redis });
  const app = "user app on >secret +@all -@dangerous -@admin ~o:* &o:*";
  const guarded = await ownRedis(t, { fsync: "always", acl: ["user default on nopass +@all ~* &*", app] });
  const place = new RedisPlace(t, guarded.url("app", "secret"));
  await assert.rejects(place.engine({ redis }), refused(/may not call CONFIG/));
});

test('redis.durability "fsync" under everysec: WAITAOF is tested, and refused or used', async (t) => {
  const server = await ownRedis(t, { fsync: "everysec" });
  const opening = new RedisPlace(t, server.url()).engine({ redis: { durability: "fsync" } });
  const engine = await opening.catch((thrown: OutliveError) => {
    assert.equal(thrown.code, ErrorCode.storeUnusable);
    assert.match(
      thrown.message,
      /appendfsync is everysec, and (it has no WAITAOF|its WAITAOF confirmed a write after)/,
    );
    return null;
  });
  // Redis 7.0 has no WAITAOF, and that of Valkey 8 does not wait.
  if (engine === null) return t.diagnostic("this server is refused");
  const begunAt = performance.now();
  for (let n = 0; n < 3; n++) await engine.enqueue(kinds.slow, { ms: 1 });
  assert.ok(performance.now() - begunAt > 1_400, "each of them has waited for a flush");
  await Promise.all(Array.from({ length: 100 }, () => engine.enqueue(kinds.slow, { ms: 1 })));
  assert.ok(performance.now() - begunAt < 10_000, "many wait together");
});

/** A server whose WAITAOF returns after this many ms of a clock of its own. `lateMs`: how long a plain command takes. */
function serverThatWaits(waitsMs: number, lateMs = 0): Parameters<typeof assertWaitsForFlush> {
  let nowMs = 0;
  const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  const wire = (call: Wire["call"]): Wire => ({ call, subscribe: assert.fail, onLost: () => {}, close: () => {} });
  const waiting = wire(async ([command]) => {
    const until = nowMs + (command === "WAITAOF" ? waitsMs : 0);
    while (nowMs < until) await turn();
    return command === "WAITAOF" ? [1, 0] : 1;
  });
  const plain = wire(async () => {
    await turn();
    nowMs += lateMs;
    return "PONG";
  });
  const after = (ms: number, call: () => void) => {
    setImmediate(() => {
      nowMs += ms;
      call();
    });
    return () => {};
  };
  return [waiting, plain, async () => {}, { mono: () => nowMs, after }];
}

test("a WAITAOF that returns before the next flush is found out, also on a server that is slow", async () => {
  await assertWaitsForFlush(...serverThatWaits(1_000));
  await assert.rejects(assertWaitsForFlush(...serverThatWaits(3)), /confirmed a write after \d+ ms without a flush/);
  await assert.rejects(assertWaitsForFlush(...serverThatWaits(3, 900)), /too busy to find out/);
});

test("redis.replicas: a write is acknowledged when that many replicas have it, and refused at the open without them", async (t) => {
  const primary = await ownRedis(t, { settings: { "repl-diskless-sync-delay": "0" } });
  await assert.rejects(new RedisPlace(t, primary.url()).engine({ redis: { replicas: 1 } }), {
    code: ErrorCode.storeUnusable,
    message: /redis.replicas is 1, and 0 replicas are connected to the server/,
  });
  const replica = await ownRedis(t, { settings: { replicaof: `127.0.0.1 ${primary.port}` } });
  const [onPrimary, onReplica] = await Promise.all([connect({ url: primary.url() }), connect({ url: replica.url() })]);
  t.after(() => [onPrimary, onReplica].forEach((wire) => wire.close()));
  await untilTrue(
    () => Promise.all([onPrimary.call(["INFO", "replication"], 5_000), onReplica.call(["INFO", "replication"], 5_000)]),
    ([atPrimary, atReplica]) =>
      /state=online/.test(String(atPrimary)) && /master_link_status:up/.test(String(atReplica)),
    "the replica is online",
  );
  const { store } = storeOn(t, primary.url(), { replicas: 1, confirmMs: 30_000 });
  await store.declare([kind("mail")]);
  await Promise.all(Array.from({ length: 20 }, (_, n) => store.enqueue([draft(`j${n}`)])));
  const rows = await onReplica.call(["HLEN", "o:{outlive}:j:0"], 5_000);
  assert.equal(rows, 20, "all of it is in the replica when the calls return");
  const { store: impatient } = storeOn(t, primary.url(), { replicas: 1, confirmMs: 300 });
  replica.freeze();
  await assert.rejects(impatient.enqueue([draft("alone")]), {
    code: ErrorCode.storeUnreachable,
    message: /only 0 of 1 replica/,
  });
  replica.thaw();
  const repeated = await again(() => store.enqueue([draft("alone")]));
  assert.deepEqual(repeated, [{ id: "alone", created: false }], "the write stood");
});

type Call = (...args: readonly string[]) => Promise<Reply>;

/** A primary, its replica, and a replica of that, all online; the store is on the primary, through a proxy, and promises one replica. */
async function chained(t: TestContext): Promise<{
  readonly proxy: RedisProxy;
  readonly store: Store;
  readonly servers: readonly [RedisServer, RedisServer];
  readonly calls: readonly [Call, Call];
}> {
  const servers: RedisServer[] = [];
  const calls: Call[] = [];
  for (let n = 0; n < 3; n++) {
    const replicaof = n === 0 ? {} : { replicaof: `127.0.0.1 ${servers[n - 1]!.port}` };
    const server = await ownRedis(t, { settings: { "repl-diskless-sync-delay": "0", ...replicaof } });
    const wire = await connect({ url: server.url() });
    t.after(() => wire.close());
    servers.push(server);
    calls.push((...args) => wire.call(args, 5_000));
  }
  await untilTrue(
    () => Promise.all(calls.map((call) => call("INFO", "replication"))),
    (all) =>
      all.slice(0, 2).every((info) => /state=online/.test(String(info))) &&
      all.slice(1).every((info) => /master_link_status:up/.test(String(info))),
    "both replicas are online",
  );
  const proxy = await redisProxy(t, servers[0]!);
  const { store } = storeOn(t, proxy.url, { replicas: 1, confirmMs: 60_000 });
  await store.declare([kind("mail")]);
  await store.enqueue([draft("kept")]);
  return { proxy, store, servers: [servers[0]!, servers[1]!], calls: [calls[0]!, calls[1]!] };
}

/** Of a call: what it rejects with, or null. */
const failure = (call: Promise<unknown>): Promise<OutliveError | null> =>
  call.then(
    () => null,
    (thrown: OutliveError) => thrown,
  );

test("a write is not confirmed by another server than the one that did it, although that one has replicas", async (t) => {
  const { proxy, store, servers, calls } = await chained(t);
  await calls[1]("REPLICAOF", "NO", "ONE");
  proxy.leadTo(servers[1]);
  // The first is the store's own, and stands; the second confirms, and is made again.
  proxy.cut(2);
  for (const id of ["a", "b"])
    assert.equal((await failure(store.enqueue([draft(id)])))?.code, ErrorCode.storeUnreachable, id);
  assert.deepEqual([await calls[0]("HLEN", "o:{outlive}:j:0"), await calls[1]("HLEN", "o:{outlive}:j:0")], [3, 1]);
});

test("writes that wait for a confirmation when their server is lost are not confirmed by the one that takes its place", async (t) => {
  const { proxy, store, servers, calls } = await chained(t);
  await calls[1]("REPLICAOF", "NO", "ONE");
  const first = failure(store.enqueue([draft("a")]));
  await untilTrue(
    () => calls[0]("INFO", "clients"),
    (info) => /blocked_clients:1/.test(String(info)),
    "the first waits for a replica",
  );
  const second = failure(store.register(workerRecord("w")));
  await untilTrue(
    () => calls[0]("HLEN", "o:{outlive}:ws"),
    (workers) => workers === 1,
    "the second is written",
  );
  proxy.leadTo(servers[1]);
  proxy.cut();
  assert.deepEqual(
    (await Promise.all([first, second])).map((thrown) => thrown?.code),
    [ErrorCode.storeUnreachable, ErrorCode.storeUnreachable],
  );
  // What can be sent again is on the new server nevertheless.
  assert.deepEqual(await again(() => store.enqueue([draft("a")])), [{ id: "a", created: false }]);
});

test("outlive check prints when the server flushes, and what a user may not ask for is shown as unknown", async (t) => {
  const app = "user app on >secret +@all -@dangerous -@admin ~o:* &o:*";
  const server = await ownRedis(t, {
    fsync: "everysec",
    acl: ["user default on nopass +@all ~* &*", app],
    settings: { "no-appendfsync-on-rewrite": "yes" },
  });
  const texts = async (url: string): Promise<readonly string[]> => {
    const { store } = storeOn(t, url);
    return (await store.upkeep.advice!()).map(({ level, text }) => `${level}: ${text}`);
  };
  const all = (await texts(server.url())).join("\n");
  assert.match(all, /^ok: (Redis|Valkey) \d+\.\d+\.\d+, as master\.$/m);
  assert.match(all, /^ok: .*a power loss takes the last one to two seconds/m);
  assert.match(all, /^warning: no-appendfsync-on-rewrite is yes/m);
  assert.match((await texts(server.url("app", "secret"))).join("\n"), /^warning: This user may not ask for INFO/);
});
