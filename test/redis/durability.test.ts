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
import { connect, type Wire } from "../../src/stores/redis/driver.ts";
import { assertWaitsForFlush } from "../../src/stores/redis/durability.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { draft, idsOf, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { kinds } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { ownRedis, type RedisServer } from "../support/redis.ts";
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
  assert.deepEqual(losses, [{ operations: 4, jobs: 3, ends: 1, failed: 0 }]);
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
  assert.deepEqual(losses, [{ operations: 2, jobs: 0, ends: 0, failed: 0 }]);
  await store.register(workerRecord("v"));
  const second = await store.turn("v", [], roomFor(1));
  assert.deepEqual(idsOf(second.claimed), ["a"]);
  assert.ok(second.claimed[0]!.lease.epoch > claimed[0]!.lease.epoch, "no fence is issued twice");
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
  return [waiting, plain, "key", { mono: () => nowMs, after }];
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
