// Jobs with keys on Redis have a turn of their own, which claims them straight from their doors (lua/keyed.ts), next to the one that knows everything. Whichever a
// worker takes, no key has more than its limit, no job is left, and the indexes are what the records say (the fixture checks that at the end of each test).
import assert from "node:assert/strict";
import { mock, test, type TestContext } from "node:test";
import type { ClaimedJob } from "../../src/job/job.ts";
import { type JobKey, jobKey } from "../../src/job/limits.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { Fixture, idsOf, kind, names, roomFor, SETTLE } from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { redisStores } from "../conformance/redis-stores.ts";

const TENANT = limit("tenant", { running: 2 });
const ALL = limit("all", { running: 7 });
const HOST = limit("host", { intervalMs: 500, burst: 2 });
const KINDS = ["mail", "sms", "call"];

/** The scripts that ran, with what they were given. */
function scriptsRun(t: TestContext): readonly Parameters<Connection["eval"]>[] {
  const ran: Parameters<Connection["eval"]>[] = [];
  const evaluate = Reflect.get(Connection.prototype, "eval");
  const spy = mock.method(
    Connection.prototype,
    "eval",
    function (this: Connection, ...args: Parameters<Connection["eval"]>) {
      ran.push(args);
      return evaluate.apply(this, args);
    },
  );
  t.after(() => spy.mock.restore());
  return ran;
}

/** A connection of the store that called last. */
function lastConnection(t: TestContext): () => Connection {
  const used: Connection[] = [];
  const evaluate = Reflect.get(Connection.prototype, "eval");
  const spy = mock.method(
    Connection.prototype,
    "eval",
    function (this: Connection, ...args: Parameters<Connection["eval"]>) {
      used.push(this);
      return evaluate.apply(this, args);
    },
  );
  t.after(() => spy.mock.restore());
  return () => used.at(-1)!;
}

/** A program of the version before that turn asks for what it knows instead. */
function forgetKeyedTurns(t: TestContext, older: Connection): void {
  const evaluate = Reflect.get(Connection.prototype, "eval");
  const spy = mock.method(
    Connection.prototype,
    "eval",
    function (this: Connection, ...args: Parameters<Connection["eval"]>) {
      return this === older && args[0] === "turnKeyed" ? Promise.resolve(["!full"]) : evaluate.apply(this, args);
    },
  );
  t.after(() => spy.mock.restore());
}

/** How often one of them ran. */
const countOf = (ran: readonly Parameters<Connection["eval"]>[], name: string): number =>
  ran.filter(([script]) => script === name).length;

function randomOf(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
}

/** What runs and what has started, by key. */
class Ledger {
  readonly #running = new Map<string, number>();
  readonly #starts = new Map<string, number[]>();

  claimed(keys: readonly JobKey[], now: number): void {
    for (const { limit: name, key } of keys) {
      const id = `${name}/${key}`;
      const running = (this.#running.get(id) ?? 0) + 1;
      this.#running.set(id, running);
      assert.ok(running <= ({ tenant: 2, all: 7 }[name] ?? Number.POSITIVE_INFINITY), `${id} runs ${running}`);
      if (name !== "host") continue;
      const starts = [...(this.#starts.get(id) ?? []), now];
      this.#starts.set(id, starts);
      for (const [at, from] of starts.entries())
        assert.ok(
          starts.length - at <= HOST.burst + (now - from) / HOST.intervalMs!,
          `${id} starts at ${starts.join(" ")}`,
        );
    }
  }

  ended(keys: readonly JobKey[]): void {
    for (const { limit: name, key } of keys)
      this.#running.set(`${name}/${key}`, this.#running.get(`${name}/${key}`)! - 1);
  }
}

for (const [seed, what] of [
  [1, "two workers"],
  [2, "two workers"],
  [3, "a worker and one of a version without that turn"],
] as const)
  test(`${seed === 3 ? "R17: " : ""}jobs with one and two keys, of limits and rates, by ${what} with retries among them (seed ${seed})`, async (t) => {
    const last = lastConnection(t);
    const ran = scriptsRun(t);
    const fixture = await Fixture.set(t, redisStores);
    await fixture.declare(
      kind("mail", { keyed: [TENANT] }),
      kind("sms", { keyed: [TENANT, ALL] }),
      kind("call", { keyed: [HOST] }),
    );
    const random = randomOf(seed);
    const keysOf = new Map<string, readonly JobKey[]>();
    const drafts = names("j", 240).map((id) => {
      const name = KINDS[random(3)]!;
      const key = `k${random(9)}`;
      const keys = name === "call" ? [jobKey("host", key)] : [jobKey("tenant", key)];
      if (name === "sms") keys.push(jobKey("all", "*"));
      keysOf.set(id, keys);
      return { id, kind: name, keys, priority: random(8) === 0 ? random(3) - 1 : 0 };
    });
    for (let from = 0; from < drafts.length; from += 60) await fixture.enqueue(...drafts.slice(from, from + 60));
    const workers = [
      { worker: await fixture.worker("a"), held: [] as ClaimedJob[] },
      { worker: await fixture.worker("b", { store: await fixture.connect() }), held: [] as ClaimedJob[] },
    ];
    if (seed === 3) forgetKeyedTurns(t, last());
    const ledger = new Ledger();
    let left = drafts.length;
    let fails = 20;
    for (let turns = 0; left > 0; turns++) {
      assert.ok(turns < 3_000, `${left} jobs are left`);
      const of = workers[random(2)]!;
      const ending = of.held.filter(() => random(3) > 0);
      of.held = of.held.filter((job) => !ending.includes(job));
      const settlements = ending.map((job) => {
        if (random(12) > 0 || fails-- <= 0) return SETTLE.succeed(job, random(2) > 0 ? '"done"' : null);
        return random(2) > 0 ? SETTLE.fail(job, random(2) * 300) : SETTLE.release(job);
      });
      for (const { lease } of ending) ledger.ended(keysOf.get(lease.jobId)!);
      const kinds = KINDS.filter(() => random(4) > 0);
      const { settled, claimed } = await of.worker.turn(settlements, roomFor(random(14), kinds));
      assert.ok(settled.every(({ is }) => is === "applied"));
      left -= settlements.filter(({ change }) => change.name === "succeed").length;
      for (const { lease } of claimed) ledger.claimed(keysOf.get(lease.jobId)!, fixture.clock.now());
      of.held.push(...claimed);
      if (random(4) === 0) await fixture.clock.advance(random(400));
      if (turns % 40 === 0) assert.deepEqual(await fixture.store.upkeep.integrity(), []);
    }
    assert.ok(countOf(ran, "turnKeyed") > 20);
    assert.ok(countOf(ran, "turn") > 20);
  });

test("jobs that have a key and nothing else are drained by their own turn", async (t) => {
  const ran = scriptsRun(t);
  const fixture = await Fixture.set(t, redisStores);
  await fixture.declare(kind("mail", { keyed: [TENANT] }));
  await fixture.enqueue(...names("j", 300).map((id, at) => ({ id, keys: [jobKey("tenant", `k${at % 40}`)] })));
  const worker = await fixture.worker("w");
  let held: readonly ClaimedJob[] = [];
  let [done, turns] = [0, 0];
  for (; done < 300; turns++) {
    const { claimed } = await worker.turn(
      held.map((job) => SETTLE.succeed(job)),
      roomFor(20),
    );
    done += held.length;
    held = claimed;
  }
  assert.ok(turns < 20, `${turns} turns for 300 jobs, 20 at a time`);
  assert.equal(countOf(ran, "turn"), 0);
});

test("a key with a rate is read to what its rate admits, however many jobs wait behind it", async (t) => {
  const fixture = await Fixture.set(t, redisStores);
  await fixture.declare(kind("call", { keyed: [HOST] }), kind("other"));
  const hosts = names("h", 100);
  await fixture.enqueue(
    ...hosts.flatMap((host) => names(host, 9).map((id) => ({ id, kind: "call", keys: [jobKey("host", host)] }))),
  );
  const worker = await fixture.worker("w");
  const held: ClaimedJob[] = [];
  const turns = async (): Promise<number> => {
    const before = held.length;
    for (let n = 0; n < 6; n++) held.push(...(await worker.claim(roomFor(400, ["call"]))));
    return held.length - before;
  };
  assert.equal(await turns(), 200);
  await fixture.clock.advance(500);
  assert.equal(await turns(), 100);
  // The turn that knows everything does the same: a failed attempt is among what ends.
  await worker.turn([SETTLE.fail(held.pop()!, 60_000)], roomFor(0));
  await fixture.clock.advance(500);
  assert.equal(await turns(), 100);
});

test("a turn that reads a part of a door, or of the doors that its ends gave room, leaves none behind", async (t) => {
  const fixture = await Fixture.set(t, redisStores);
  await fixture.declare(
    kind("mail", { keyed: [limit("wide", { running: 250 })] }),
    kind("sms", { keyed: [limit("narrow", { running: 1 })] }),
  );
  await fixture.enqueue(...names("w", 250).map((id) => ({ id, keys: [jobKey("wide", "*")] })));
  const worker = await fixture.worker("w");
  const claim = async (name: string): Promise<ClaimedJob[]> => {
    const all: ClaimedJob[] = [];
    for (let next: number | null = 0; next === 0;) {
      const { claimed, nextDueInMs } = await worker.turn([], roomFor(250, [name]));
      all.push(...claimed);
      next = nextDueInMs;
    }
    return all;
  };
  assert.equal((await claim("mail")).length, 250);
  const narrow = names("n", 120);
  for (const round of ["a", "b"])
    await fixture.enqueue(
      ...narrow.map((key) => ({ id: `${key}${round}`, kind: "sms", keys: [jobKey("narrow", key)] })),
    );
  const held = await claim("sms");
  assert.equal(held.length, 120);
  await worker.settle(...held.map((job) => SETTLE.succeed(job)));
  assert.equal((await claim("sms")).length, 120);
});

test("jobs that another limit holds back hide none behind them at their door", async (t) => {
  const fixture = await Fixture.set(t, redisStores);
  const [acme, bolt, all] = [jobKey("tenant", "acme"), jobKey("tenant", "bolt"), jobKey("all", "*")];
  await fixture.declare(
    kind("mail", { keyed: [TENANT] }),
    kind("sms", { keyed: [TENANT, limit("all", { running: 1 })] }),
  );
  const worker = await fixture.worker("w");
  await fixture.enqueue({ id: "first", kind: "sms", keys: [bolt, all] });
  const [first] = await worker.claim(1);
  await fixture.enqueue(...names("s", 3).map((id) => ({ id, kind: "sms", keys: [acme, all] })), {
    id: "behind",
    keys: [acme],
  });
  const taken: string[] = [];
  for (let next: number | null = 0; next === 0;) {
    const { claimed, nextDueInMs } = await worker.turn([], roomFor(5));
    taken.push(...idsOf(claimed));
    next = nextDueInMs;
  }
  assert.deepEqual(taken, ["behind"]);
  const { claimed } = await worker.turn([SETTLE.succeed(first!)], roomFor(5));
  assert.deepEqual(idsOf(claimed), ["s0001"]);
});

test("a burst of ends settles no more jobs in one script than that takes, neither at once nor after a loss, if those before had no keys", async (t) => {
  const ran = scriptsRun(t);
  const fixture = await Fixture.set(t, redisStores);
  await fixture.declare(kind("mail", { keyed: [limit("wide", { running: 250 })] }), kind("sms"));
  const worker = await fixture.worker("w");
  const claim = async (name: string): Promise<readonly ClaimedJob[]> => {
    const jobs: ClaimedJob[] = [];
    while (jobs.length < 250) jobs.push(...(await worker.claim(roomFor(250 - jobs.length, [name]))));
    return jobs;
  };
  const settle = async (jobs: readonly ClaimedJob[]): Promise<typeof ran> => {
    const before = ran.length;
    const settled = await worker.settle(...jobs.map((job) => SETTLE.succeed(job)));
    assert.deepEqual([settled.length, settled.every(({ is }) => is === "applied")], [250, true]);
    return ran.slice(before);
  };
  await fixture.enqueue(...names("k", 250).map((id) => ({ id, keys: [jobKey("wide", "*")] })));
  const keyed = await claim("mail");
  const endsIn = ([name, args = []]: (typeof ran)[number]): number =>
    Number(args[{ turnPlain: 6, turnKeyed: 6, settleAgain: 2 }[name as string] ?? -1] ?? 0);
  // Until the turn in which everything is plain is asked first again.
  while (ran.at(-1)![0] !== "turnPlain") await worker.claim(0);
  const ofKeyed = (await settle(keyed)).filter(([name]) => name === "turnKeyed").map(endsIn);
  assert.deepEqual(ofKeyed, [150, 100]);

  await fixture.enqueue(...names("p", 250).map((id) => ({ id, kind: "sms" })));
  const plain = await claim("sms");
  while (ran.at(-1)![0] !== "turnPlain") await worker.claim(0);
  const whole = (await settle(plain)).find((one) => endsIn(one) === 250)!;
  assert.equal(whole[0], "turnPlain");
  assert.deepEqual(
    whole[2]!.map(({ script, args }) => endsIn([script, args])),
    [50, 50, 50, 50, 50],
  );
});

test("a worker that drains wakes another one for the keys that its ends gave room and that its turn did not visit", async (t) => {
  const last = lastConnection(t);
  const fixture = await Fixture.set(t, redisStores);
  await fixture.declare(kind("mail", { keyed: [limit("narrow", { running: 1 })] }));
  const draining = await fixture.worker("draining");
  const asleep = await fixture.worker("asleep", { store: await fixture.connect() });
  const keys = names("n", 127);
  const jobOf = (key: string, round: string) => ({ id: `${key}${round}`, keys: [jobKey("narrow", key)] });
  await fixture.enqueue(...keys.map((key) => jobOf(key, "a")));
  const held: ClaimedJob[] = [];
  while (held.length < keys.length) held.push(...(await draining.claim(keys.length)));
  held.sort((one, other) => one.lease.row - other.lease.row);
  // A turn visits 60 doors. Whichever page of 64 jobs comes first, its last end is not among the first 60, and no other gives room to a job.
  const waiting = [keys[62]!, keys[126]!];
  await fixture.enqueue(...waiting.map((key) => jobOf(key, "b")));
  await fixture.clock.advance(1_000);
  const { nextDueInMs } = await asleep.turn([], roomFor(5));
  assert.equal(nextDueInMs, null);
  const connection = last();
  const sleeps = (): Promise<unknown> => connection.command("HGET", `${connection.tag}meta`, "asleep");
  assert.equal(await sleeps(), "1", "it sleeps until it is woken");
  await draining.settle(...held.map((job) => SETTLE.succeed(job)));
  assert.equal(await sleeps(), null);
  const taken: string[] = [];
  for (let turns = 0; taken.length < 2 && turns < 20; turns++) taken.push(...idsOf(await asleep.claim(5)));
  assert.deepEqual(taken.toSorted(), ["n0063b", "n0127b"]);
});

test("however many keys are due by their rates, the first job of a new one is claimed within two turns", async (t) => {
  const fixture = await Fixture.set(t, redisStores);
  await fixture.declare(kind("call", { keyed: [HOST] }));
  const worker = await fixture.worker("w");
  const hosts = names("h", 200);
  const jobs = (round: string) =>
    hosts.map((host) => ({ id: `${host}${round}`, kind: "call", keys: [jobKey("host", host)] }));
  for (const round of ["a", "b", "c", "d", "e"]) await fixture.enqueue(...jobs(round));
  const room = roomFor(20, ["call"]);
  // Each host has used up its burst, and all are due at once.
  const claimed: string[] = [];
  while (claimed.length < 400) claimed.push(...idsOf(await worker.claim(roomFor(400, ["call"]))));
  await fixture.clock.advance(500);
  await fixture.enqueue({ id: "new", kind: "call", keys: [jobKey("host", "new")] });
  const first = [...idsOf(await worker.claim(room)), ...idsOf(await worker.claim(room))];
  assert.ok(first.includes("new"), first.join(" "));
});
