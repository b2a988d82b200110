// What users of other queues on Redis have reported, as tests of this store. The numbers are those of our collection (docs/requirements.md lists where each is held);
// those that need a server of another kind, or a kill, are in the other files of this folder.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { ErrorCode, type OutliveError } from "../../src/job/errors.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { wait } from "../../src/job/transitions.ts";
import { decideCrash } from "../../src/recovery/recover.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import type { WaitCondition } from "../../src/job/waits.ts";
import type { PassRecord, Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { LISTED_PAGES } from "../../src/stores/redis/lua/reads.ts";
import { connect, connectTo, type Reply } from "../../src/stores/redis/driver.ts";
import { channelOf } from "../../src/stores/redis/liveness.ts";
import { SERVER_CLOCK } from "../../src/stores/redis/scripts.ts";
import { integrity, repair } from "../../src/stores/redis/integrity.ts";
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
import { kinds } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { scheduleRow } from "../../src/testing/conformance/schedules.ts";
import type { Firing } from "../../src/stores/schedules.ts";
import { freshName, ownRedis, type RedisServer } from "../support/redis.ts";
import { RedisPlace } from "./place.ts";

interface Opened {
  readonly store: Store;
  readonly connection: Connection;
}

function storeOn(t: TestContext, url: string, luaClock?: string): Opened {
  const given = luaClock === undefined ? {} : { luaClock };
  const address = redisAddress(url);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock, ...given });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return { store, connection };
}

async function freshStore(t: TestContext): Promise<Opened & { readonly url: string }> {
  const { url: server, name } = await freshName(t);
  const url = `${server}?store=${name}`;
  return { ...storeOn(t, url), url };
}

async function callsOn(t: TestContext, server: RedisServer): Promise<(...args: string[]) => Promise<Reply>> {
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  return (...args) => wire.call(args, 20_000);
}

test("R2: a server that became a replica is named as such, nothing is written, and it is used again when it is the primary", async (t) => {
  const server = await ownRedis(t);
  const { store } = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const call = await callsOn(t, server);
  await call("REPLICAOF", "127.0.0.1", "1");
  await assert.rejects(store.enqueue([draft("a")]), { code: ErrorCode.storeReadOnly });
  await call("REPLICAOF", "NO", "ONE");
  assert.deepEqual(await store.enqueue([draft("a")]), [{ id: "a", created: true }]);
});

test("R5: a removal, a cancel of a family and a list take a bounded piece in one script, however much there is", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft("parent")]);
  const [parent] = (await store.turn("w", [], roomFor(1))).claimed;
  const drafts = names("c", 600).map((id) => draft({ id, delayMs: 9e8 }));
  await store.write([{ lease: parent!.lease, write: { type: "enqueue", drafts } }]);
  await store.operate.cancel("parent", "test", { children: true });
  const cancelled = async (): Promise<number> => (await store.inspect.counts())[0]!.cancelled;
  await store.turn("w", [], roomFor(0));
  assert.equal(await cancelled(), 80, "a turn cancels a piece");
  await store.turn("w", [SETTLE.endCancelled(parent!)], roomFor(0));
  for (let pieces = 3; pieces <= 8; pieces++) await store.turn("w", [], roomFor(0));
  assert.equal(await cancelled(), 601);
  const purge = { finishedOlderThanMs: 0, incidentsOlderThanMs: 0, limit: 100 };
  const purged = await untilTrue(
    () => store.purge(purge),
    ({ jobs }) => jobs > 0,
    "something is old enough",
  );
  assert.deepEqual(purged, { jobs: 100, incidents: 0, more: true });
  // A page of the list reads so many pages of 64 rows in one call.
  await connection.command("HSET", `${connection.tag}meta`, "row", String(64 * 1_000));
  const [, stopped] = (await connection.eval("list", ["9007199254740991", "10", "2", "", "", "", "", ""])) as string[];
  assert.equal(stopped, String((1_000 - LISTED_PAGES + 1) * 64));
});

test("R5: a turn admits a bounded piece of all that keys have room for, goes on at once until all of it is claimed, and does no more where more waits", async (t) => {
  const server = await ownRedis(t);
  const call = await callsOn(t, server);
  /** How many commands scripts have called: a measure that no other process on this machine changes. */
  const commands = async (): Promise<number> => {
    const stats = String(await call("INFO", "commandstats"));
    const counts = [...stats.matchAll(/^cmdstat_(?!info|evalsha|script)\S+:calls=(\d+)/gm)].map(([, n]) => Number(n));
    return counts.reduce((sum, n) => sum + n, 0);
  };
  const limit = { name: "user", running: 100, intervalMs: null, burst: 1, strict: false };
  const keys = (at: number) => [{ id: 1 + (at % 5), limit: limit.name, key: `user-${at % 5}` }];
  const worstOf = async (waiting: number): Promise<readonly [claims: number, ends: number]> => {
    const { store } = storeOn(t, `${server.url()}?store=of-${waiting}`);
    await store.declare([kind("mail", { keyed: [limit] })]);
    await store.register(workerRecord("w"));
    await store.enqueue(names("k", waiting).map((id, at) => draft({ id, keys: keys(at) })));
    const claimed: ClaimedJob[] = [];
    let claims = 0;
    for (let turns = 0; claimed.length < 200; turns++) {
      const before = await commands();
      const turn = await store.turn("w", [], roomFor(1_000));
      claims = Math.max(claims, (await commands()) - before);
      assert.ok(turn.claimed.length > 0 && turn.claimed.length <= 60, `${turn.claimed.length} in turn ${turns}`);
      claimed.push(...turn.claimed);
      if (claimed.length < 200) assert.equal(turn.nextDueInMs, 0);
    }
    assert.equal(new Set(idsOf(claimed)).size, claimed.length);
    const before = await commands();
    const ending = claimed.slice(0, 150).map((job) => SETTLE.succeed(job));
    assert.ok((await store.turn("w", ending, roomFor(0))).settled.every(({ is }) => is === "applied"));
    return [claims, (await commands()) - before];
  };
  const [few, many] = [await worstOf(200), await worstOf(5_000)];
  assert.ok(
    many.every((count, at) => count <= 1.5 * few[at]!),
    `${few.join()} and ${many.join()}`,
  );
  assert.ok(Math.max(...many) <= 600, many.join());
});

test("R5: children of an attempt, and jobs that it waits for, are written in pieces that no script exceeds, and still as a whole", async (t) => {
  const { store, connection } = await freshStore(t);
  const sent = new Map<string, number>();
  const evaluate = connection.eval.bind(connection);
  connection.eval = (script, args, again) => {
    sent.set(script, Math.max(sent.get(script) ?? 0, args?.length ?? 0));
    return evaluate(script, args, again);
  };
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft("parent")]);
  const [parent] = (await store.turn("w", [], roomFor(1))).claimed;
  const children = names("c", 1_100);
  const enqueue = { type: "enqueue", drafts: children.map((id) => draft(id)) } as const;
  const stale = { ...parent!.lease, fence: 9 };
  assert.equal((await store.write([{ lease: stale, write: enqueue }]))[0]!.is, "stale");
  assert.equal((await store.inspect.counts())[0]!.ready, 0, "nothing of a refused write is there");
  const [written] = await store.write([{ lease: parent!.lease, write: enqueue }]);
  assert.ok(written?.is === "applied");
  assert.equal(written.enqueued!.filter(({ created }) => created).length, 1_100);
  assert.equal((await store.inspect.get("c0007"))!.parent, "parent");
  const view = { id: "parent", state: "running", counters: parent!.counters } as const;
  const waits = wait(view, { step: "run.wait#1", forMs: null, until: { jobs: children } });
  // A first try that is interrupted after its first piece leaves nothing that the next one would count.
  const lease = [parent!.lease.row, "parent", parent!.lease.epoch, parent!.lease.fence, "w"].map(String);
  await connection.eval("prepareWait", [...lease, "1", "1", "parent"]);
  await store.turn("w", [{ lease: parent!.lease, change: waits }], roomFor(0));
  assert.equal((await store.inspect.get("parent"))!.waitsAt, "run.wait#1");
  const { claimed } = await store.turn("w", [], roomFor(1_100));
  assert.equal(claimed.length, 1_100);
  await store.turn(
    "w",
    claimed.slice(1).map((job) => SETTLE.succeed(job)),
    roomFor(0),
  );
  assert.equal((await store.inspect.get("parent"))!.waitsAt, "run.wait#1", "one child is left");
  await store.turn("w", [SETTLE.succeed(claimed[0]!)], roomFor(0));
  assert.deepEqual(idsOf((await store.turn("w", [], roomFor(9))).claimed), ["parent"]);
  assert.deepEqual(await store.upkeep.integrity(), []);
  const writing = ["stage", "insertChildren", "prepareWait", "turn"].map(
    (script) => [script, sent.get(script)!] as const,
  );
  assert.ok(
    writing.every(([, args]) => args > 0 && args <= 1_100),
    `no script has the arguments of all: ${writing.join(" ")}`,
  );
});

test("R5: results of thousands of jobs are read, and schedules that catch up together are fired, in pieces that no script exceeds", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  const calls: { readonly name: string; readonly args: number }[] = [];
  const evaluate = connection.eval.bind(connection);
  connection.eval = (name, ...rest) => {
    calls.push({ name, args: rest[0]?.length ?? 0 });
    return evaluate(name, ...rest);
  };
  const of = (name: string): number[] => calls.flatMap((one) => (one.name === name ? [one.args] : []));
  await store.enqueue([draft("last")]);
  const ids = [...names("missing", 999), "last"];
  assert.deepEqual(
    (await store.inspect.outcomes(ids)).map(({ id, state }) => [id, state]),
    ids.map((id) => [id, id === "last" ? "queued" : "missing"]),
  );
  assert.deepEqual(of("outcomes"), [251, 251, 251, 251]);

  const at = Date.now();
  const firing = async (name: string, count: number): Promise<Firing> => {
    const row = scheduleRow(name, at, { overlap: "allow" });
    await store.schedules!.write(row);
    const jobs = names(`${name}/`, count).map((id) => ({ draft: draft({ id, kind: "mail" }), at, caughtUp: true }));
    return { row: { ...row, version: 1 }, jobs };
  };
  const late = [];
  for (let n = 0; n < 5; n++) late.push(await firing(`late-${n}`, 100));
  for (let n = 0; n < 60; n++) late.push(await firing(`once-${n}`, 1));
  const answers = await store.schedules!.fire(late);
  assert.ok(answers.every(({ is }) => is === "fired"));
  assert.equal(of("fireSchedules").length, 5 + 2);
  assert.equal((await store.inspect.counts())[0]!.ready, 1 + 500 + 60);
});

test("R5: ends of many attempts that wait for many jobs each, and that many jobs follow, are written in pieces that no script exceeds", async (t) => {
  const { store, connection } = await freshStore(t);
  const settling: string[] = [];
  const evaluate = connection.eval.bind(connection);
  connection.eval = (script, ...rest) => {
    settling.push(...(rest[1] ?? []).map((one) => one.script).filter((one) => one === "settleAgain"));
    return evaluate(script, ...rest);
  };
  await store.declare([kind("mail"), kind("sms")]);
  await store.register(workerRecord("w"));
  const children = names("c", 100);
  await store.enqueue(children.map((id) => draft({ id, kind: "sms" })));
  await store.enqueue(names("p", 20).map((id) => draft(id)));
  const { claimed } = await store.turn("w", [], roomFor(20, ["mail"]));
  const ends = claimed.map((job, at) => {
    const view = { id: job.lease.jobId, state: "running", counters: job.counters } as const;
    const until = { jobs: children };
    if (at < 10) return { lease: job.lease, change: wait(view, { step: "run.wait#1", forMs: null, until }) };
    const follow = names(`${job.lease.jobId}-follows`, 50).map((id) => draft({ id, kind: "sms", delayMs: 60_000 }));
    return { lease: job.lease, change: { ...SETTLE.failForGood(job).change, follow } };
  });
  const { settled } = await store.turn("w", ends, roomFor(0));
  assert.ok(settled.length === 20 && settled.every(({ is }) => is === "applied"));
  assert.equal(settling.length, 20, "a script for each of them");
  assert.equal((await store.inspect.counts())[1]!.delayed, 500, "what follows is there");
  assert.equal((await store.inspect.get(claimed[0]!.lease.jobId))!.waitsAt, "run.wait#1");
  assert.deepEqual(await store.upkeep.integrity(), []);
});

test("R5: a wait for thousands is forgotten in pieces, by a purge, a check or the next wait for many, and what is not forgotten yet wakes nothing", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail"), kind("sms")]);
  await store.register(workerRecord("w"));
  const children = names("c", 3_000);
  await store.enqueue([draft("p")]);
  await store.enqueue(children.map((id) => draft({ id, kind: "sms" })));
  const claimParent = async (): Promise<ClaimedJob> => {
    for (;;) {
      const { claimed } = await store.turn("w", [], roomFor(1, ["mail"]));
      if (claimed.length > 0) return claimed[0]!;
    }
  };
  const waits = async (until: WaitCondition, forMs: number | null = 1): Promise<void> => {
    const job = await claimParent();
    const view = { id: "p", state: "running", counters: job.counters } as const;
    const change = wait(view, { step: "run.wait#1", forMs, until });
    const { settled } = await store.turn("w", [{ lease: job.lease, change }], roomFor(0));
    assert.deepEqual(settled, [{ is: "applied" }]);
  };
  // The first job has the first row.
  const sizes = (): Promise<Reply[]> =>
    Promise.all(["al", "ag"].map((name) => connection.command("SCARD", `${connection.tag}${name}:1`)));
  // It ends by time, and the next wait is for something else.
  await waits({ jobs: children });
  assert.deepEqual(await sizes(), [3_000, 0]);
  await waits({ signal: "go" });
  assert.deepEqual(await sizes(), [0, 2_800]);
  // The rest of the first wait is forgotten before another one for many begins.
  await waits({ jobs: children });
  assert.deepEqual(await sizes(), [3_000, 0]);
  await waits({ signal: "go" }, null);
  assert.deepEqual(await sizes(), [0, 2_800]);
  // A child that was waited for ends, and is retried by hand: the job waits for its signal and for nothing else.
  const { claimed } = await store.turn("w", [], roomFor(1, ["sms"]));
  await store.turn("w", claimed.map(SETTLE.failForGood), roomFor(0));
  assert.equal((await store.operate.retry(claimed[0]!.lease.jobId, "test")).is, "applied");
  assert.equal((await store.inspect.get("p"))!.waitsAt, "run.wait#1");
  assert.equal(await connection.command("EXISTS", `${connection.tag}aw:1`), 0);
  assert.equal((await store.operate.signal({ job: "p", name: "go", payload: "1", id: "1" })).is, "kept");
  await store.turn("w", [SETTLE.succeed(await claimParent())], roomFor(0));
  assert.deepEqual(await store.upkeep.integrity(), []);
  assert.deepEqual(await sizes(), [0, 0]);
  assert.equal(await connection.command("EXISTS", `${connection.tag}agl`), 0);

  // One that is removed leaves the rest to the purge.
  assert.equal((await store.operate.retry("p", "test")).is, "applied");
  await waits({ jobs: children });
  await store.turn("w", [SETTLE.succeed(await claimParent())], roomFor(0));
  await store.operate.change(
    ["p"],
    { do: "remove" },
    {
      id: "1",
      actor: "test",
      action: "remove",
      target: "p",
      reason: null,
    },
  );
  assert.deepEqual(await sizes(), [0, 2_800]);
  const purge = { finishedOlderThanMs: 1e9, incidentsOlderThanMs: 1e9, limit: 500 };
  for (let more = true; more;) ({ more } = await store.purge(purge));
  assert.deepEqual(await sizes(), [0, 0]);
  for (const at of [2, 1_500, 3_001])
    assert.equal(await connection.command("EXISTS", `${connection.tag}wa:${at}`), 0, `nothing waits for job ${at}`);
  assert.deepEqual(await store.upkeep.integrity(), []);
});

test("R5: a check and a repair of a store in which a job waits for thousands take these in pieces", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail"), kind("sms")]);
  await store.register(workerRecord("w"));
  const children = names("c", 1_000);
  await store.enqueue(["p", ...children].map((id) => draft({ id, kind: id === "p" ? "mail" : "sms" })));
  const { claimed } = await store.turn("w", [], roomFor(1, ["mail"]));
  const { lease, counters } = claimed[0]!;
  const change = wait(
    { id: "p", state: "running", counters },
    { step: "run.wait#1", forMs: null, until: { jobs: children } },
  );
  await store.turn("w", [{ lease, change }], roomFor(0));
  await store.leave("w");
  const calls = new Map<string, number>();
  const evaluate = connection.eval.bind(connection);
  connection.eval = (name, ...rest) => {
    calls.set(name, (calls.get(name) ?? 0) + 1);
    return evaluate(name, ...rest);
  };
  await connection.command("DEL", `${connection.tag}aw:1`, `${connection.tag}wa:2`);
  assert.ok((await integrity(connection)).length > 0);
  assert.deepEqual(await repair(connection), []);
  // 15 for the pages of jobs, and 5 for those that one of them waits for.
  for (const script of ["check", "repairClearPages", "repairFill"])
    assert.ok(calls.get(script)! >= 20, `${script}: ${calls.get(script)}`);
  assert.equal(await connection.command("SCARD", `${connection.tag}aw:1`), 1_000);
});

test("R6: a script of another program that blocks the server is reported as such, and everything goes on when it has ended", async (t) => {
  const server = await ownRedis(t, { settings: { "busy-reply-threshold": "50" } });
  const { store } = storeOn(t, server.url());
  await store.declare([kind("mail")]);
  const call = await callsOn(t, server);
  const other = await callsOn(t, server);
  const blocking = assert.rejects(call("EVAL", "while true do end", "0"), /killed|Script/i);
  await untilTrue(
    () => other("PING").catch((thrown: unknown) => String(thrown)),
    (reply) => /BUSY/.test(String(reply)),
    "the server is busy",
  );
  await assert.rejects(store.enqueue([draft("a")]), { code: ErrorCode.storeBusy });
  await other("SCRIPT", "KILL");
  await blocking;
  assert.deepEqual(await store.enqueue([draft("a")]), [{ id: "a", created: true }]);
});

test("R7: more jobs than Lua's stack has room for are enqueued, held, recovered and settled in one call each", async (t) => {
  const { store } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  const COUNT = 8_100;
  const enqueued = await store.enqueue(names("j", COUNT).map((id) => draft(id)));
  assert.equal(enqueued.filter(({ created }) => created).length, COUNT);
  const { claimed } = await store.turn("w", [], roomFor(COUNT));
  assert.equal(claimed.length, COUNT);
  const [row] = await store.workers({});
  assert.equal(row!.heldCount, COUNT);
  const recovery = { id: "r", startedAt: 1, by: "test", integrity: "NOT_CHECKED", summary: null };
  const death = { how: "gone", lastSeenAliveAt: null, detectedAt: 1, evidence: null } as const;
  const request = { worker: row!, death, recovery, incident: "i", limit: COUNT, decide: decideCrash };
  assert.equal((await recoverOnce(store, request)).jobs.length, COUNT);
  await store.register(workerRecord("v"));
  const again = await store.turn("v", [], roomFor(COUNT));
  assert.equal(again.claimed.length, COUNT);
  const { settled } = await store.turn(
    "v",
    again.claimed.map((job) => SETTLE.succeed(job)),
    roomFor(0),
  );
  assert.ok(settled.every(({ is }) => is === "applied"));
});

test("R8: rows beyond 300,000,000, and times in ms, are kept as whole numbers", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  await connection.command("HSET", `${connection.tag}meta`, "row", "299999998", "low", "4687499");
  await store.register(workerRecord("w"));
  await store.enqueue(["a", "b", "c"].map((id) => draft(id)));
  const { claimed } = await store.turn("w", [], roomFor(9));
  assert.deepEqual(
    claimed.map(({ lease }) => [lease.jobId, lease.row]),
    [
      ["a", 299_999_999],
      ["b", 300_000_000],
      ["c", 300_000_001],
    ],
  );
  assert.ok(claimed[0]!.lease.epoch > 1_700_000_000_000);
  await store.turn("w", [SETTLE.fail(claimed[1]!)], roomFor(0));
  const keys = (await connection.command("KEYS", `${connection.tag.replace(/[{}]/g, "?")}*`)) as string[];
  assert.deepEqual(
    keys.filter((key) => /e\+/.test(key)),
    [],
  );
  assert.ok(keys.includes(`${connection.tag}d:300000000`), "its own record");
  assert.deepEqual(await store.upkeep.integrity(), []);
});

test("R12 R14 R16: a user without channels is refused with the rights that are missing, and one without INFO, SCAN, blocking commands and functions works", async (t) => {
  const everything = "+@all -@dangerous -@admin";
  const server = await ownRedis(t, {
    acl: [
      "user default on nopass +@all ~* &*",
      `user deaf on >secret ${everything} ~o:* resetchannels`,
      `user app on >secret ${everything} -@blocking -scan -sscan -hscan -zscan -function -fcall -fcall_ro ~o:* &o:*`,
    ],
  });
  await assert.rejects(
    new RedisPlace(t, server.url("deaf", "secret")).engine().then((engine) => engine.start()),
    (thrown: OutliveError) => {
      assert.equal(thrown.code, ErrorCode.storeUnusable);
      assert.match(thrown.message, /&o:\*/);
      return true;
    },
  );
  const place = new RedisPlace(t, server.url("app", "secret"));
  const engine = await place.engine();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(kinds.slow, { ms: 600_000 });
  await child.untilFact("started", { id });
  const call = await callsOn(t, server);
  // R14: two connections for a worker's process, whatever the number of its kinds, and one for a program that enqueues.
  assert.equal(String(await call("CLIENT", "LIST")).match(/user=app/g)!.length, 3);
  child.kill();
  const second = place.child();
  await second.untilFact("started", { id, attempt: 2 });
  await engine.cancel(id);
  assert.deepEqual(await engine.operator.integrity().then(({ findings }) => findings), []);
  await call("ACL", "LOG", "RESET");
});

test("R13: what an idle worker sends is bounded, also when it is alone and polls for all", async (t) => {
  const server = await ownRedis(t);
  const place = new RedisPlace(t, server.url());
  await place.child({ heartbeat: {}, poll: "1s" }).untilFact("working");
  const call = await callsOn(t, server);
  const stats = async (): Promise<{ sent: number; proofs: number }> => {
    const text = String(await call("INFO", "commandstats"));
    const calls = [...text.matchAll(/^cmdstat_(\S+?):calls=(\d+)/gm)];
    const of = (names: RegExp): number =>
      calls.filter(([, name]) => names.test(name!)).reduce((sum, [, , count]) => sum + Number(count), 0);
    return { sent: of(/^(evalsha|eval|set|pexpire|ping|publish|pubsub\|\w+)$/), proofs: of(/^publish$/) };
  };
  // From one of its proofs to the next are four seconds of its own clock.
  const first = await untilTrue(stats, ({ proofs }) => proofs >= 1, "it shows that it polls");
  const second = await untilTrue(stats, ({ proofs }) => proofs > first.proofs, "it shows it again");
  const perSecond = (second.sent - first.sent) / 4 / (second.proofs - first.proofs);
  t.diagnostic(`${perSecond} commands in a second`);
  assert.ok(perSecond <= 12, `${perSecond} commands in a second`);
});

test("R17: two versions of the scripts work side by side on one store", async (t) => {
  const { store, url } = await freshStore(t);
  const { store: newer } = storeOn(t, url, `${SERVER_CLOCK} -- of another version`);
  await store.declare([kind("mail")]);
  for (const [one, id] of [
    [store, "old"],
    [newer, "new"],
  ] as const) {
    await one.register(workerRecord(id));
    await one.enqueue([draft(`${id}-1`), draft(`${id}-2`)]);
  }
  const epochs = new Set<number>();
  for (const [one, id] of [
    [store, "old"],
    [newer, "new"],
    [store, "old"],
    [newer, "new"],
  ] as const) {
    const { claimed, live } = await one.turn(id, [], roomFor(1));
    assert.equal(live, true);
    assert.equal(idsOf(claimed).length, 1);
    epochs.add(claimed[0]!.lease.epoch);
  }
  assert.equal(epochs.size, 1, "neither begins a run of its own");
});

test("R19: a server that neither replies nor closes its connections fails a call at its deadline, and the connection is not used again", async (t) => {
  const server = await ownRedis(t);
  const wire = await connect({ url: server.url() });
  const lost = new Promise<void>((resolve) => wire.onLost(resolve));
  server.freeze();
  await assert.rejects(wire.call(["PING"], 100), { code: "NO_REPLY" });
  await lost;
  server.thaw();
  await assert.rejects(wire.call(["PING"], 5_000));
});

test("R19: a server that accepts a connection and never greets fails it at its deadline", async (t) => {
  const server = await ownRedis(t);
  server.freeze();
  await assert.rejects(connectTo({ url: server.url() }, 100), { code: "NO_REPLY" });
});

test("R19: a server that stops replying before a subscription stands fails that at its deadline, too", async (t) => {
  const server = await ownRedis(t);
  const wire = await connect({ url: server.url() });
  const lost = new Promise<void>((resolve) => wire.onLost(resolve));
  server.freeze();
  await assert.rejects(
    wire.subscribe("channel", () => {}),
    { code: "NO_REPLY" },
  );
  await lost;
});

test("a worker whose subscription is back before the script that takes its work is not condemned, though its heartbeat is still on its way", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  const [worker] = await store.workers({});
  const death = { worker: worker!, how: "lost", detectedAt: 0, lastSeenAliveAt: null, evidence: null } as const;
  const recovery = { id: "r", by: "v", startedAt: 0, integrity: "not checked", summary: null } satisfies PassRecord;
  const condemn = (): Promise<unknown> => store.condemn({ worker: worker!, death, recovery, incident: "i" });
  await connection.subscribe(channelOf(connection.tag, "w"), () => {});
  assert.equal(await condemn(), null, "it is there");
  await connection.unsubscribe(channelOf(connection.tag, "w"));
  assert.notEqual(await condemn(), null, "it is away");
});

test("R20: every key and channel of a store is in one slot", async (t) => {
  const { store, connection } = await freshStore(t);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft({ id: "a", dedupeKey: "k" }), draft({ id: "b", delayMs: 9e8 })]);
  const { claimed } = await store.turn("w", [], roomFor(1));
  await store.turn("w", [SETTLE.fail(claimed[0]!, 1)], roomFor(0));
  const keys = (await connection.command("KEYS", "*")) as string[];
  const own = keys.filter((key) => key.includes(connection.tag.slice(2, -1)));
  assert.ok(own.length > 10);
  assert.ok(own.every((key) => key.startsWith(connection.tag) && !key.slice(connection.tag.length).includes("{")));
});
