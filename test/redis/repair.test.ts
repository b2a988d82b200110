// Every index follows from the records of the jobs and collections: whichever is damaged, by hand, is found, and a repair makes it as it was.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { ErrorCode } from "../../src/job/errors.ts";
import { jobKey } from "../../src/job/limits.ts";
import { wait } from "../../src/job/transitions.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { decideCrash } from "../../src/recovery/recover.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import type { Settlement, Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { redisDoctor } from "../../src/stores/redis/integrity.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import {
  draft,
  idsOf,
  kind,
  names,
  recoverOnce,
  roomFor,
  SETTLE,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { cli } from "../support/cli.ts";
import { Child } from "../support/processes.ts";
import { contents, freshName } from "../support/redis.ts";

interface Fresh {
  readonly url: string;
  readonly connection: Connection;
  readonly store: Store;
}

async function freshStore(t: TestContext): Promise<Fresh> {
  const { url: server, name } = await freshName(t);
  const url = `${server}?store=${name}`;
  const connection = new Connection({ address: redisAddress(url), random: systemRandom, clock: systemClock });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return { url, connection, store };
}

const TENANT = { name: "tenant", running: 1, intervalMs: null, burst: 1, strict: false };

/** Jobs in every place that there is: whatever an index can have, one of them has. */
async function furnish(store: Store): Promise<void> {
  const mail = ["mail"];
  await store.declare([kind("mail"), kind("keyed", { keyed: [TENANT] }), kind("paused")]);
  await store.operate.setPaused("paused", true, { actor: "test", reason: null, untilAt: null, forMs: null });
  for (const worker of ["living", "dying", "lost"]) await store.register(workerRecord(worker));
  const claim = async (worker: string, ids: readonly string[], kinds = mail): Promise<readonly ClaimedJob[]> => {
    await store.enqueue(ids.map((id) => draft({ id, kind: kinds[0]! })));
    const { claimed } = await store.turn(worker, [], roomFor(ids.length, kinds));
    assert.deepEqual(idsOf(claimed), ids);
    return claimed;
  };
  const settle = (worker: string, ...settlements: Settlement[]) => store.turn(worker, settlements, roomFor(0));
  const by = (key: string) => ({ kind: "keyed", keys: [jobKey("tenant", key)] });
  // Taken and running, held at its door, and admitted.
  await store.enqueue([draft({ id: "k1", ...by("acme") }), draft({ id: "k2", ...by("acme") })]);
  assert.deepEqual(idsOf((await store.turn("living", [], roomFor(1, ["keyed"]))).claimed), ["k1"]);
  await store.enqueue([draft({ id: "k3", ...by("bolt") })]);
  await store.turn("living", [], roomFor(0));
  const [parent] = await claim("living", ["parent"]);
  await store.write([
    { lease: parent!.lease, write: { type: "enqueue", drafts: [draft({ id: "child", delayMs: 9e8 })] } },
  ]);
  await store.operate.cancel("parent", "test");
  const [done, failed, waiter] = await claim("living", ["done", "failed", "waiter"]);
  const view = { id: "waiter", state: "running", counters: waiter!.counters } as const;
  const waits = wait(view, { step: "run.wait#1", forMs: null, until: { jobs: ["parent", "done"] } });
  await settle("living", SETTLE.succeed(done!), SETTLE.failForGood(failed!), { lease: waiter!.lease, change: waits });
  await store.enqueue([draft("cancelled")]);
  await store.operate.cancel("cancelled", "test");
  for (const worker of ["lost", "dying"]) await claim(worker, [`of-${worker}`]);
  for (const [worker, how] of [
    ["lost", "silent"],
    ["dying", "gone"],
  ] as const) {
    const row = (await store.workers({})).find(({ id }) => id === worker)!;
    const recovery = { id: "r", startedAt: 1, by: "test", integrity: "NOT_CHECKED", summary: null };
    const death = { how, lastSeenAliveAt: null, detectedAt: 1, evidence: null } as const;
    const request = { worker: row, death, recovery, incident: `i-${worker}`, limit: 9, decide: decideCrash };
    assert.equal((await recoverOnce(store, request)).done, true);
  }
  await store.enqueue([draft({ id: "ready", dedupeKey: "once" }), draft({ id: "later", delayMs: 9e8 })]);
  await collect(store);
}

/** One collection that may be complete, and one that lacks parts and has a parked message. */
async function collect(store: Store): Promise<void> {
  const collections = store.collections!;
  for (const [id, expected] of [
    ["whole", 2],
    ["lacking", 9_000],
  ] as const) {
    const series = [{ name: "files", expected }];
    const times = { idleMs: 9e8, totalMs: 9e8, keepMs: 9e8 };
    await collections.open({ id, kind: "mail", input: "null", series, ...times, follow: [] });
  }
  const part = (collection: string, ordinal: number) => {
    const of = { collection, series: "files", ordinal };
    return { ...of, blob: `${collection}/${ordinal}`, bytes: 7, sha256: "s" };
  };
  await collections.put([part("whole", 1), part("whole", 2), part("lacking", 3), part("lacking", 8_999)]);
  const message = { id: "p", kind: "mail", collection: "lacking", series: "files", ordinal: 4, reason: "torn" };
  await collections.park([{ ...message, blob: null, bytes: 1 }]);
}

/** By the end of its name, what an index of the furnished store is. */
const INDEXES =
  /:(x:.+|rs?:\d+|z:\d+|u:\d+|v:\d+|h:.+|hk:\d+|t[345]:\d+|dk:\d+|held:\d+|cc:\d+|ch:\d+|k[tub]:.+|kc|rk|uk|kp|wa:\d+|aw:\d+|doors|zk|dl|ws|wi|fleet|over|kinds|inc|losses|lost|n[ildtc]|n[bg]:.+|pz|pc:.+)$/;

test("each index that is lost is found, and built again as it was", async (t) => {
  const { store, connection } = await freshStore(t);
  await furnish(store);
  assert.deepEqual(await store.upkeep.integrity(), []);
  const before = await contents(connection);
  const keys = ((await connection.command("KEYS", `${connection.tag.replace(/[{}]/g, "?")}*`)) as string[]).filter(
    (key) => INDEXES.test(key.slice(connection.tag.length - 1)),
  );
  const found = new Set(keys.map((key) => key.slice(connection.tag.length).replace(/:.*/s, "")));
  const expected =
    "aw cc ch dk dl doors fleet h held hk inc kc kinds kp kt ku losses lost nb nc nd ng ni nl nt over pc pz r rk rs t3 t4 u uk v wa wi ws x z zk";
  assert.equal([...found].toSorted().join(" "), expected);
  for (const key of keys) {
    await connection.command("DEL", key);
    assert.notDeepEqual(await store.upkeep.integrity(), [], `${key} is missed`);
    assert.deepEqual(await store.upkeep.repair(), [], `after the loss of ${key}`);
    const after = await contents(connection);
    // When a worker ended is not in its row; its latest heartbeat is.
    for (const all of [before, after]) delete all[`${connection.tag}over`];
    assert.deepEqual(after, before, `after the loss of ${key}`);
  }
});

test("entries that no record knows are found by the sizes of indexes, and removed", async (t) => {
  const { store, connection } = await freshStore(t);
  await furnish(store);
  const { tag } = connection;
  const before = await contents(connection);
  const key = jobKey("tenant", "acme").id;
  const strays: readonly (readonly string[])[] = [
    ["ZADD", `${tag}r:1`, "1", "9999"],
    ["HSET", `${tag}rs:1`, "9999", "abc"],
    ["HINCRBY", `${tag}kc`, "rd:1", "1"],
    ["HINCRBY", `${tag}kc`, "rn:2", "-1"],
    ["ZADD", `${tag}z:1`, "1", "9999"],
    ["ZADD", `${tag}h:${key}`, "1", "9999"],
    ["SADD", `${tag}held:1`, "9999"],
    ["SADD", `${tag}kt:${key}`, "9999"],
    ["SADD", `${tag}t3:1`, "9999"],
    ["HSET", `${tag}dk:1`, "never", "9999"],
    ["HSET", `${tag}x:ready`, "ready-never", "9999"],
    ["HSET", `${tag}ws`, "nobody", "99"],
    ["HINCRBY", `${tag}kc`, "jobs:1", "3"],
    ["HINCRBY", `${tag}kc`, "jobs:3", "1"],
    ["ZADD", `${tag}rk`, "1", "1"],
    ["ZADD", `${tag}rk`, "1", "3"],
    ["ZADD", `${tag}rk`, "1", "99"],
    ["SADD", `${tag}uk`, "3"],
    ["ZADD", `${tag}kp`, "1", "3"],
    ["ZADD", `${tag}kp`, "1", "1"],
    ["ZINCRBY", `${tag}doors`, "1", String(key)],
    ["HSET", `${tag}ni`, "nobody", "99"],
    ["ZADD", `${tag}nl`, "99", "99"],
    ["ZADD", `${tag}nd`, "1", "99"],
    ["HINCRBY", `${tag}nc`, "1:1", "3"],
    ["SETBIT", `${tag}nb:2:0:0`, "10", "1"],
    ["HINCRBY", `${tag}ng:2:0`, "0", "1"],
    ["ZADD", `${tag}pz`, "0", "never"],
  ];
  for (const stray of strays) {
    await connection.command(...stray);
    assert.notDeepEqual(await store.upkeep.integrity(), [], stray.join(" "));
    assert.deepEqual(await store.upkeep.repair(), [], stray.join(" "));
    assert.deepEqual(await contents(connection), before, stray.join(" "));
  }
});

test("what a job that waits for very many others lacks is found, although they are compared in pieces", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  const others = names("other", 450);
  await store.enqueue(["waiter", ...others].map((id) => draft(id)));
  const { claimed } = await store.turn("w", [], roomFor(2));
  const [waiter, other] = claimed;
  const view = { id: "waiter", state: "running", counters: waiter!.counters } as const;
  const change = wait(view, { step: "run.wait#1", forMs: null, until: { jobs: others } });
  await store.turn("w", [{ lease: waiter!.lease, change }, SETTLE.succeed(other!)], roomFor(0));
  assert.deepEqual(await store.upkeep.integrity(), []);
  const row = async (id: string) =>
    String(await connection.command("HGET", `${connection.tag}x:${id.slice(0, 7)}`, id));
  const [first, last, own] = [await row(others[1]!), await row(others.at(-1)!), await row("waiter")];
  const lost: readonly (readonly string[])[] = [
    ["SREM", `aw:${own}`, first],
    ["SREM", `aw:${own}`, last],
    ["SREM", `wa:${first}`, own],
    ["DEL", `wa:${last}`],
    ["SADD", `aw:${own}`, await row(others[0]!)],
    ["SADD", `wa:${last}`, "9999"],
  ];
  const before = await contents(connection);
  for (const [command, key, ...members] of lost) {
    await connection.command(command!, `${connection.tag}${key}`, ...members);
    assert.notDeepEqual(await store.upkeep.integrity(), [], `${command} ${key}`);
    assert.deepEqual(await store.upkeep.repair(), [], `${command} ${key}`);
    assert.deepEqual(await contents(connection), before, `${command} ${key}`);
  }
});

test("R3: a job whose worker's row is lost is queued again by a repair, and one whose record is damaged is named", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft("a"), draft("b"), draft({ id: "c", delayMs: 9e8 })]);
  await store.turn("w", [], roomFor(1));
  await connection.command("DEL", `${connection.tag}w:1`);
  await connection.command("LSET", `${connection.tag}i:0`, "2", "");
  await connection.command("DEL", `${connection.tag}d:3`);
  const found = await store.upkeep.integrity();
  assert.ok(found.some((text) => /job a is held by a worker that has no row/.test(text)));
  const left = await store.upkeep.repair();
  assert.deepEqual(left.length, 2, left.join("\n"));
  assert.match(left.join("\n"), /job c has lost the part of its record.*|the input of job b does not match/);
  await store.register(workerRecord("v"));
  const { claimed, corrupt } = await store.turn("v", [], roomFor(9));
  assert.deepEqual(idsOf(claimed).toSorted(), ["a", "c"]);
  assert.deepEqual(
    corrupt!.map(({ lease }) => lease.jobId),
    ["b"],
  );
  assert.match((await store.inspect.get("a"))!.history.at(-1)!.reason, /no row/);
});

for (const at of ["repairClearPages", "repairFill", "repairEnd"])
  test(`a repair that is killed before its ${at} leaves a store that refuses everything, and the next one finishes it`, async (t) => {
    const { store, connection, url } = await freshStore(t);
    await furnish(store);
    const before = await contents(connection);
    const file = fileURLToPath(new URL("./repair-process.ts", import.meta.url));
    const child = new Child(fork(file, [url, at], { stdio: ["ignore", "inherit", "pipe", "ipc"] }));
    t.after(() => child.kill());
    await child.untilFact("stopped", { at });
    child.kill();
    await child.exited;
    await assert.rejects(store.enqueue([draft("new")]), { code: ErrorCode.storeBusy });
    await assert.rejects(store.register(workerRecord("w")), { code: ErrorCode.storeBusy });
    const doctor = redisDoctor(redisAddress(url));
    assert.match((await doctor.check({ readOnly: true })).findings[0]!, /interrupted/);
    assert.equal((await doctor.repair({ salvage: false })).sound, true);
    assert.deepEqual(await contents(connection), before);
    assert.deepEqual(await store.enqueue([draft("new")]), [{ id: "new", created: true }]);
  });

test("outlive check --repair builds lost indexes again, says so, and workers find their jobs", async (t) => {
  const { store, connection, url } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.enqueue([draft("a"), draft("b")]);
  await connection.command("DEL", `${connection.tag}r:1`);
  const said = await cli(t, ["check", "--repair", "--json", "--store", url]);
  assert.equal(said.code, 0, said.stdout + said.stderr);
  assert.match(said.stdout, /FAILED with 4 findings; all were repaired \(reindex\) and nothing is lost\./);
  await store.register(workerRecord("w"));
  assert.deepEqual(idsOf((await store.turn("w", [], roomFor(9))).claimed), ["a", "b"]);
});

test("a repair is refused while a worker's connection is there, and not because of the row of a dead one", async (t) => {
  const { store, connection, url } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("dead"));
  await store.register(workerRecord("alive"));
  await connection.subscribe(`${connection.tag}w:alive`, () => {});
  const doctor = redisDoctor(redisAddress(url));
  await assert.rejects(doctor.repair({ salvage: false }), {
    code: ErrorCode.storeBusy,
    message: /Worker alive is alive/,
  });
  await connection.unsubscribe(`${connection.tag}w:alive`);
  assert.equal((await doctor.repair({ salvage: false })).sound, true);
});
