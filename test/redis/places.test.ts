// Where the server is, and by whose library it is reached: clients of the user's own, a primary that sentinels name, a node of a cluster. All of them are real.
import assert from "node:assert/strict";
import { type AddressInfo, createServer } from "node:net";
import { test, type TestContext } from "node:test";
import { createClient } from "@redis/client";
import { Redis } from "ioredis";
import { Redis as Valkey } from "iovalkey";
import { open } from "../../src/index.ts";
import { ErrorCode } from "../../src/job/errors.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { redisAddress, type RedisOptions } from "../../src/stores/redis/address.ts";
import { Connection, type Loss } from "../../src/stores/redis/connection.ts";
import { connect, Disconnected, type Reply } from "../../src/stores/redis/driver.ts";
import { ioredis, iovalkey, nodeRedis } from "../../src/redis.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { draft, idsOf, kind, roomFor, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { kinds } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { freshName, ownRedis, type RedisServer, sharedRedis } from "../support/redis.ts";
import { RedisPlace } from "./place.ts";

type Call = (...args: readonly string[]) => Promise<Reply>;

async function calls(t: TestContext, server: RedisServer): Promise<Call> {
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  return (...args) => wire.call(args, 5_000);
}

function storeOn(t: TestContext, url: string, options: RedisOptions = {}): { store: Store; losses: Loss[] } {
  const losses: Loss[] = [];
  const address = redisAddress(url, options);
  const onLoss = (loss: Loss): void => void losses.push(loss);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock, onLoss });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return { store, losses };
}

/** The first calls after an outage may find no primary. */
async function again<T>(call: () => Promise<T>): Promise<T> {
  const made = () =>
    call().then(
      (value) => ({ value }),
      () => null,
    );
  return (await untilTrue(made, (answer) => answer !== null, "the store replies"))!.value;
}

const CLIENTS = {
  "@redis/client": (url: string) => nodeRedis(createClient({ url })),
  // Without its adapter it is seen from the client whose it is.
  ioredis: (url: string) => new Redis(url, { lazyConnect: true }),
  iovalkey: (url: string) => iovalkey(new Valkey(url, { lazyConnect: true })),
} as const;

for (const [name, make] of Object.entries(CLIENTS))
  test(`with the options of a client of ${name} a worker works, and goes on after its connections were cut`, async (t) => {
    const server = await ownRedis(t, {
      acl: ["user default on nopass +@all ~* &*", "user app on >secret +@all -@dangerous -@admin ~o:* &o:*"],
    });
    // User and password are only in the client.
    const client = make(server.url("app", "secret"));
    const place = new RedisPlace(t, `redis://127.0.0.1:${server.port}`);
    const engine = await place.engine({ redis: { client } });
    await engine.start({ concurrency: 2 });
    const runs = async (): Promise<void> => {
      const { id } = await engine.enqueue(kinds.slow, { ms: 1 });
      assert.equal(await engine.result(id, { timeout: "30s" }), null);
    };
    await runs();
    const call = await calls(t, server);
    const users = String(await call("CLIENT", "LIST")).match(/user=app/g) ?? [];
    assert.ok(users.length >= 2, "the worker and its maintenance are connected as that user");
    await call("CLIENT", "KILL", "USER", "app");
    await again(runs);
    const [worker] = await engine.workers();
    assert.notEqual(worker!.lock.name, null, "its subscription is its proof of life");
  });

test("R1: a call that is in flight when the connection breaks is rejected, and never sent again, by every library", async (t) => {
  const server = await ownRedis(t);
  for (const [name, make] of Object.entries(CLIENTS)) {
    const { wire: address } = redisAddress(server.url(), { client: make(server.url()) });
    const wire = await connect(address);
    t.after(() => wire.close());
    const lost = new Promise<void>((resolve) => wire.onLost(resolve));
    server.freeze();
    const rejected = assert.rejects(wire.call(["INCR", "count"], 5_000), Disconnected, name);
    await server.kill();
    await Promise.all([rejected, lost]);
    // It keeps nothing, so a second sending would be seen.
    await server.start();
    await assert.rejects(wire.call(["PING"], 1_000), Disconnected, `${name}: a lost wire stays lost`);
    const call = await calls(t, server);
    assert.equal(await call("GET", "count"), null, name);
  }
});

/** Hangs up on whatever it is asked first, as an address does behind which a server fails over. */
async function hangsUp(t: TestContext): Promise<string> {
  const server = createServer((socket) => {
    socket.on("error", () => {}).once("data", () => socket.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return `redis://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

for (const [name, make] of Object.entries(CLIENTS))
  test(`R2: a program that starts while a server fails over ends with STORE_UNREACHABLE, not with an error of ${name}`, async (t) => {
    const url = await hangsUp(t);
    await assert.rejects(open(url, { redis: { client: make(url) }, logger: false }), {
      name: "OutliveError",
      code: ErrorCode.storeUnreachable,
    });
  });

test("a client with a key prefix, and one of a whole cluster, are refused by name", async (t) => {
  const { url } = await freshName(t);
  const prefixed = new Redis(url, { lazyConnect: true, keyPrefix: "app:" });
  assert.throws(() => redisAddress(url, { client: prefixed }), { code: ErrorCode.optionInvalid, message: /keyPrefix/ });
  assert.throws(() => ioredis(prefixed), { code: ErrorCode.optionInvalid, message: /keyPrefix/ });
  const cluster = { options: {}, nodes: () => [], duplicate: () => ({}) };
  assert.throws(() => redisAddress(url, { client: cluster }), {
    code: ErrorCode.optionInvalid,
    message: /not a client of one server/,
  });
});

test("addresses of sentinels and clusters are read, and passwords in them are not shown", async () => {
  const { wire, name, shown } = redisAddress(
    "redis+sentinel://app:se%40cret@one:1,two/main?store=shop&sentinelPassword=x",
  );
  assert.deepEqual(
    [wire.sentinel, name, wire.url],
    [
      {
        name: "main",
        nodes: [
          { host: "one", port: 1 },
          { host: "two", port: 26_379 },
        ],
        password: "x",
      },
      "shop",
      "redis://app:se%40cret@one:1",
    ],
  );
  assert.doesNotMatch(shown, /se%40cret|=x/);
  assert.deepEqual(redisAddress("rediss+cluster://one,two:7").wire, {
    url: "rediss://one:6379",
    nodes: [
      { host: "one", port: 6_379 },
      { host: "two", port: 7 },
    ],
  });
  assert.throws(() => redisAddress("redis+sentinel://one"), {
    code: ErrorCode.optionInvalid,
    message: /which primary/,
  });
  assert.match(await sharedRedis(), /^redis:/);
});

test("R2: sentinels promote a replica that was behind: workers follow, the epoch rises first, and the loss is counted and sent again", async (t) => {
  const settings = { "repl-diskless-sync-delay": "0" };
  const primary = await ownRedis(t, { settings });
  const replica = await ownRedis(t, { settings: { ...settings, replicaof: `127.0.0.1 ${primary.port}` } });
  const [onPrimary, onReplica] = [await calls(t, primary), await calls(t, replica)];
  const isOnline = () =>
    untilTrue(
      () => onPrimary("INFO", "replication"),
      (info) => /state=online/.test(String(info)),
      "the replica is online",
    );
  await isOnline();
  const sentinel = await ownRedis(t, { sentinelOf: { name: "main", port: primary.port } });
  const onSentinel = await calls(t, sentinel);
  await untilTrue(
    () => onSentinel("SENTINEL", "replicas", "main"),
    (list) => (list as unknown[]).length === 1,
    "the sentinel knows the replica",
  );
  const { store, losses } = storeOn(t, `redis+sentinel://127.0.0.1:${sentinel.port}/main`);
  await store.declare([kind("mail")]);
  await store.enqueue([draft("before")]);
  const { epoch } = await store.register(workerRecord("w"));
  // Not by WAIT, which knows only what its own connection has written.
  const offset = (info: unknown, of: "master" | "slave"): number =>
    Number(new RegExp(`${of}_repl_offset:(\\d+)`).exec(String(info))?.[1]);
  const written = offset(await onPrimary("INFO", "replication"), "master");
  await untilTrue(
    () => onReplica("INFO", "replication"),
    (info) => offset(info, "slave") >= written,
    "the replica has all of it",
  );
  // Cut off: what is written from now on is in the primary alone.
  await onReplica("REPLICAOF", "127.0.0.1", "1");
  await store.enqueue([draft("lost-1")]);
  await store.enqueue([draft("lost-2")]);
  await primary.kill();
  await onReplica("REPLICAOF", "127.0.0.1", String(primary.port));
  const next = await again(() => store.register(workerRecord("v", { predecessor: "w" })));
  assert.ok(next.epoch > epoch, "the epoch is higher before the first claim");
  assert.deepEqual(losses, [{ operations: 2, jobs: 2, ends: 0, failed: 0, dropped: 0 }]);
  assert.deepEqual(idsOf((await store.turn("v", [], roomFor(9))).claimed), ["before", "lost-1", "lost-2"]);
  assert.equal((await store.inspect.health()).detail["operationsLost"], 2);
});

test("R18: a cluster's node names another one: the store is found, and after its slot moved it is found again", async (t) => {
  const settings = {
    "cluster-enabled": "yes",
    "cluster-require-full-coverage": "no",
    "cluster-node-timeout": "60000",
    "cluster-allow-replica-migration": "no",
  };
  const replicating = { ...settings, "repl-diskless-sync-delay": "0" };
  const [one, two] = [await ownRedis(t, { settings }), await ownRedis(t, { settings: replicating })];
  const [onOne, onTwo] = [await calls(t, one), await calls(t, two)];
  await onOne("CLUSTER", "MEET", "127.0.0.1", String(two.port));
  const slot = String(await onOne("CLUSTER", "KEYSLOT", "o:{outlive}:meta"));
  // A node that loses its last slot becomes a replica of the one that got it; this one keeps another.
  await onTwo("CLUSTER", "ADDSLOTS", slot, String(Number(slot) + 1));
  await untilTrue(
    () => onOne("CLUSTER", "SLOTS"),
    (slots) => (slots as unknown[]).length === 1,
    "the nodes know each other",
  );
  const { store } = storeOn(t, `redis+cluster://127.0.0.1:${one.port}`);
  await again(() => store.declare([kind("mail")]));
  await store.enqueue([draft("a")]);
  const { epoch } = await store.register(workerRecord("w"));
  assert.deepEqual([await onOne("DBSIZE"), Number(await onTwo("DBSIZE")) > 0], [0, true]);

  // What is promised is confirmed by the node that has the store, too.
  const replica = await ownRedis(t, { settings });
  const onReplica = await calls(t, replica);
  await onReplica("CLUSTER", "MEET", "127.0.0.1", String(two.port));
  const nodeOfStore = String(await onTwo("CLUSTER", "MYID"));
  await again(() => onReplica("CLUSTER", "REPLICATE", nodeOfStore));
  await untilTrue(
    () => onTwo("INFO", "replication"),
    (info) => /state=online/.test(String(info)),
    "the node has a replica",
  );
  const { store: promised } = storeOn(t, `redis+cluster://127.0.0.1:${one.port}`, { replicas: 1 });
  assert.deepEqual(await promised.enqueue([draft("b")]), [{ id: "b", created: true }]);
  await promised.close();
  await replica.destroy();

  const [idOne, idTwo] = [String(await onOne("CLUSTER", "MYID")), String(await onTwo("CLUSTER", "MYID"))];
  await onOne("CLUSTER", "SETSLOT", slot, "IMPORTING", idTwo);
  await onTwo("CLUSTER", "SETSLOT", slot, "MIGRATING", idOne);
  const keys = (await onTwo("CLUSTER", "GETKEYSINSLOT", slot, "10000")) as string[];
  await onTwo("MIGRATE", "127.0.0.1", String(one.port), "", "0", "5000", "KEYS", ...keys);
  await onOne("CLUSTER", "SETSLOT", slot, "NODE", idOne);
  await onTwo("CLUSTER", "SETSLOT", slot, "NODE", idOne);
  const next = await again(() => store.register(workerRecord("v", { predecessor: "w" })));
  assert.ok(next.epoch > epoch, "another server: a new run");
  assert.deepEqual(idsOf((await store.turn("v", [], roomFor(9))).claimed), ["a", "b"]);
  assert.deepEqual([Number(await onOne("DBSIZE")) > 0, await onTwo("DBSIZE")], [true, 0]);
});
