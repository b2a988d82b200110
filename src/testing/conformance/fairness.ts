// What the port promises about kinds whose keys take turns, and about keys that are paused: a key with one job waits for one round of the others,
// whatever they have queued; limits, priorities, retries and deaths change nothing about that; nothing of a paused key starts.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import { FAIR, type JobKey, jobKey } from "../../job/limits.ts";
import { wait } from "../../job/transitions.ts";
import {
  type Draft,
  type Fixture,
  type TestWorker,
  idsOf,
  kind,
  names,
  NO_ROOM,
  roomFor,
  SETTLE,
  type Specify,
} from "./fixture.ts";
import { limit, take } from "./keys.ts";

export function specifyFairness(specify: Specify): void {
  const fair: Specify = (title, body) =>
    specify(title, async (fixture) => {
      if (fixture.store.operate.pauseKey === undefined) return fixture.t.skip("this store has no fairness");
      return body(fixture);
    });
  specifyTurns(fair);
  specifyTurnsNextToPlainJobs(fair);
  specifyTurnsWithLimits(fair);
  specifyTurnsAfterAttempts(fair);
  specifyPauses(fair);
}

/** A job whose tenant takes turns with the others. */
function by(tenant: string, id: string, ...limits: readonly JobKey[]): Draft {
  const key = jobKey(FAIR, tenant);
  return { id, keys: [...limits, key], fair: key.id };
}

/** Claims one by one, ends each, and returns the ids in their order. */
async function runOneByOne(worker: TestWorker, count: number): Promise<string[]> {
  const ids: string[] = [];
  while (ids.length < count) {
    const [job] = await take(worker, 1);
    if (!job) break;
    ids.push(job.lease.jobId);
    await worker.settle(SETTLE.succeed(job));
  }
  return ids;
}

function countOf(ids: readonly string[], prefix: string): number {
  return ids.filter((id) => id.startsWith(prefix)).length;
}

function specifyTurns(specify: Specify): void {
  specify(
    "a tenant with one job is served in the next round, whatever another has queued before it",
    async (fixture) => {
      await fixture.declare(kind("mail", { fair: true }));
      await fixture.enqueue(...names("a", 1_000).map((id) => by("acme", id)));
      const worker = await fixture.worker("w");
      assert.equal((await take(worker, 10)).length, 10);
      await fixture.enqueue(by("bolt", "b"));
      const { held, ready } = await fixture.countsOf("mail");
      assert.deepEqual([held, ready], [991, 0]);
      assert.ok(idsOf(await take(worker, 2)).includes("b"), "the next round has it");
    },
  );

  specify("a fair kind counts as limited: only a program can compute the keys of its jobs", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }), kind("sms"));
    const limited = await Promise.all(["mail", "sms", "none"].map((name) => fixture.store.inspect.isLimited(name)));
    assert.deepEqual(limited, [true, false, false]);
  });

  specify("no more jobs are admitted than a worker takes at once", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    await fixture.enqueue(...names("a", 50).map((id) => by("acme", id)), ...names("b", 50).map((id) => by("bolt", id)));
    const worker = await fixture.worker("w");
    await worker.turn([], NO_ROOM);
    assert.equal((await fixture.countsOf("mail")).held, 100);
    const claimed = idsOf(await take(worker, 8));
    assert.deepEqual([countOf(claimed, "a"), countOf(claimed, "b")], [4, 4]);
    const { held, ready } = await fixture.countsOf("mail");
    assert.deepEqual([held, ready], [92, 0]);
  });

  specify("keys take turns job by job, over several workers and connections", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    const tenants = ["t1", "t2", "t3", "t4", "t5"];
    for (const tenant of tenants) await fixture.enqueue(...names(tenant, 20).map((id) => by(tenant, id)));
    const one = await fixture.worker("v");
    const other = await fixture.worker("w", { store: await fixture.connect() });
    const served: string[] = [];
    for (let round = 0; round < 10; round++) served.push(...(await runOneByOne(round % 2 === 0 ? one : other, 1)));
    for (const tenant of tenants) assert.equal(countOf(served, tenant), 2, `${tenant} in ${served.join(" ")}`);
  });

  specify("many keys: each is served once before any is served twice", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    const tenants = names("t", 450);
    await fixture.enqueue(...tenants.flatMap((tenant) => [by(tenant, `${tenant}-1`), by(tenant, `${tenant}-2`)]));
    const worker = await fixture.worker("w");
    const first: string[] = [];
    while (first.length < 450) {
      const claimed = await take(worker, 90);
      first.push(...idsOf(claimed));
      await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
    }
    assert.equal(new Set(first.map((id) => id.slice(0, 5))).size, 450);
  });

  specify("a key with a weight gets as many jobs in each round, also one by one", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    await fixture.store.operate.setLimit(jobKey(FAIR, "acme"), { weight: 3 });
    await fixture.enqueue(...names("a", 30).map((id) => by("acme", id)), ...names("b", 30).map((id) => by("bolt", id)));
    const worker = await fixture.worker("w");
    const ids = await runOneByOne(worker, 16);
    assert.deepEqual([countOf(ids, "a"), countOf(ids, "b")], [12, 4]);
    const claimed = idsOf(await take(worker, 8));
    assert.deepEqual([countOf(claimed, "a"), countOf(claimed, "b")], [6, 2]);
  });

  specify(
    "inside a key the order is by priority, then by age; priorities do not take another key's turn",
    async (fixture) => {
      await fixture.declare(kind("mail", { fair: true }));
      await fixture.enqueue(
        by("acme", "a1"),
        { ...by("acme", "a2"), priority: 5 },
        { ...by("acme", "a3"), priority: 5 },
      );
      await fixture.enqueue({ ...by("bolt", "b1"), priority: -5 });
      const worker = await fixture.worker("w");
      const ids = await runOneByOne(worker, 4);
      assert.deepEqual(
        ids.filter((id) => id !== "b1"),
        ["a2", "a3", "a1"],
      );
      assert.ok(ids.indexOf("b1") < 2, ids.join(" "));
    },
  );

  specify(
    "a job that waits for its key's turn says so, and can be cancelled, delayed and paused with its kind",
    async (fixture) => {
      await fixture.declare(kind("mail", { fair: true }));
      await fixture.enqueue(by("acme", "a1"), by("acme", "a2"), { ...by("acme", "later"), delayMs: 1_000 });
      const waiting = await fixture.job("a2");
      assert.deepEqual(
        [waiting.state, waiting.heldBy, waiting.keys],
        ["queued", { limit: FAIR, key: "acme", turn: true }, [{ limit: FAIR, key: "acme" }]],
      );
      assert.equal((await fixture.job("later")).heldBy, null);
      assert.deepEqual(await fixture.store.operate.cancel("a1", "operator"), { is: "applied", state: "cancelled" });
      await fixture.store.operate.setPaused("mail", true);
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await fixture.store.operate.setPaused("mail", false);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a2"]);
      await fixture.clock.advance(1_000);
      assert.deepEqual(idsOf(await take(worker, 10)), ["later"]);
    },
  );

  specify("what waits at the gate runs also when the kind is declared without fairness", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    await fixture.enqueue(by("acme", "a"));
    await fixture.declare(kind("mail"));
    await fixture.enqueue("plain");
    const worker = await fixture.worker("w");
    assert.deepEqual([...idsOf(await take(worker, 10))].sort(), ["a", "plain"]);
  });

  specify("two fair kinds and a plain one: each worker takes what it has room for of each", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }), kind("sms", { fair: true }), kind("fax"));
    await fixture.enqueue(...names("m", 5).map((id) => by("acme", id)));
    await fixture.enqueue(...names("s", 5).map((id) => ({ ...by("acme", id), kind: "sms" })));
    await fixture.enqueue({ id: "f", kind: "fax" });
    const worker = await fixture.worker("w", { kinds: ["mail", "sms", "fax"] });
    const room = { total: 4, kinds: ["mail", "sms", "fax"].map((name) => ({ kind: name, room: 2 })) };
    const claimed = idsOf(await worker.claim(room));
    assert.ok(countOf(claimed, "m") <= 2 && countOf(claimed, "s") <= 2 && claimed.length === 4, claimed.join(" "));
    const rest = idsOf(await worker.claim(roomFor(100, ["mail", "sms", "fax"])));
    assert.equal(claimed.length + rest.length, 11);
  });

  specify("a fair kind among many plain ones comes in the order of all of them", async (fixture) => {
    const many = names("k", 20);
    await fixture.declare(kind("mail", { fair: true }), ...many.map((name) => kind(name)));
    await fixture.enqueue(...many.map((name) => ({ id: `${name}-1`, kind: name })));
    await fixture.enqueue(...names("m", 5).map((id) => ({ ...by("acme", id), priority: 5 })));
    const worker = await fixture.worker("w");
    const room = {
      total: 3,
      kinds: ["mail", ...many].map((name) => ({ kind: name, room: 3, ahead: name !== "mail" })),
    };
    assert.deepEqual(
      idsOf(await worker.claim({ ...room, total: 0, ahead: 4 })),
      [],
      "the gate has jobs for the next slot",
    );
    assert.deepEqual(idsOf(await worker.claim({ ...room, ahead: 4 })), ["m0001", "m0002", "m0003"]);
    assert.deepEqual(idsOf(await worker.claim(room)), ["m0004", "m0005", "k0001-1"]);
    for (let from = 1; from < 19; from += 3) {
      const next = many.slice(from, from + 3).map((name) => `${name}-1`);
      assert.deepEqual(idsOf(await worker.claim(room)), next);
    }
  });
}

function specifyTurnsNextToPlainJobs(specify: Specify): void {
  specify(
    "plain jobs are claimed ahead next to a fair kind, in order, and none while jobs wait at its gate",
    async (fixture) => {
      await fixture.declare(kind("mail", { fair: true }), kind("sms"));
      const plain = names("s", 12);
      await fixture.enqueue(...plain.map((id) => ({ id, kind: "sms" })));
      const worker = await fixture.worker("w");
      const kinds = [
        { kind: "mail", room: 9 },
        { kind: "sms", room: 9, ahead: true },
      ];
      const first = idsOf(await worker.claim({ total: 2, kinds, ahead: 3 }));
      const second = idsOf(await worker.claim({ total: 0, kinds, ahead: 3 }));
      const before = [...first, ...second];
      assert.ok(first.length >= 2 && first.length <= 5 && second.length <= 3, `${first.join()} and ${second.join()}`);
      assert.deepEqual(before, plain.slice(0, before.length));
      // Two of them: what a key alone waits for may be claimed at the gate itself.
      await fixture.enqueue(by("acme", "a"), by("bolt", "b"));
      assert.deepEqual(
        idsOf(await worker.claim({ total: 0, kinds, ahead: 3 })),
        [],
        "the gate has jobs for the next slot",
      );
      assert.deepEqual(idsOf(await worker.claim({ total: 1, kinds, ahead: 3 })).length, 1);
      const rest = idsOf(
        await worker.claim({ total: 20, kinds: kinds.map((one) => ({ ...one, room: 20 })), ahead: 3 }),
      );
      assert.ok(rest.includes("a") && rest.includes("b"), rest.join(" "));
    },
  );

  specify("of a fair kind nothing is claimed ahead while jobs wait at its gate", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    await fixture.enqueue(...names("a", 6).map((id) => by("acme", id)), ...names("b", 2).map((id) => by("bolt", id)));
    const worker = await fixture.worker("w");
    const room = { kinds: [{ kind: "mail", room: 2, ahead: true, fair: true }], ahead: 3 };
    for (let turn = 0; turn < 2; turn++) {
      assert.deepEqual(idsOf(await worker.claim({ ...room, total: 0 })), []);
      const claimed = idsOf(await worker.claim({ ...room, total: 2 }));
      assert.deepEqual([countOf(claimed, "a"), countOf(claimed, "b")], [1, 1], claimed.join(" "));
    }
  });

  specify("plain jobs that came later do not pass what waits at a gate", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }), kind("sms"));
    await fixture.enqueue(...names("a", 5).map((id) => by("acme", id)), ...names("b", 5).map((id) => by("bolt", id)));
    await fixture.enqueue(...names("s", 60).map((id) => ({ id, kind: "sms" })));
    const worker = await fixture.worker("w");
    let held: readonly ClaimedJob[] = [];
    const ids: string[] = [];
    for (let turn = 0; turn < 6; turn++) {
      held = (
        await worker.turn(
          held.map((job) => SETTLE.succeed(job)),
          roomFor(5),
        )
      ).claimed;
      ids.push(...idsOf(held));
    }
    assert.equal(countOf(ids, "a") + countOf(ids, "b"), 10, ids.join(" "));
  });
}

function specifyTurnsWithLimits(specify: Specify): void {
  specify("a tenant at its limit is skipped, and the others go on (known bug 33)", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true, keyed: [limit("tenant", { running: 1 })] }));
    const of = (tenant: string, id: string): Draft => {
      const key = jobKey("tenant", tenant);
      return { id, keys: [key], fair: key.id };
    };
    await fixture.enqueue(...names("a", 300).map((id) => of("acme", id)));
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"]);
    await fixture.enqueue(of("bolt", "b1"), of("bolt", "b2"), of("coil", "c"));
    const claimed = await take(worker, 10);
    assert.deepEqual([...idsOf(claimed)].sort(), ["b1", "c"]);
    assert.deepEqual((await fixture.job("b2")).heldBy, { limit: "tenant", key: "bolt" });
    await worker.settle(SETTLE.succeed(claimed.find(({ lease }) => lease.jobId === "b1")!));
    assert.deepEqual(idsOf(await take(worker, 10)), ["b2"]);
  });

  specify("the room of a limit that all share is handed out in turns", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true, keyed: [limit("crm", { running: 1 })] }));
    const of = (tenant: string, id: string): Draft => by(tenant, id, jobKey("crm", "*"));
    await fixture.enqueue(...names("a", 100).map((id) => of("acme", id)));
    const worker = await fixture.worker("w");
    const [first] = await take(worker, 10);
    await take(worker, 10);
    await fixture.enqueue(of("bolt", "b"));
    await worker.settle(SETTLE.succeed(first!));
    const ids = await runOneByOne(worker, 2);
    assert.ok(ids.includes("b"), ids.join(" "));
  });

  specify("a tenant whose limit always has room again does not take the turns of one that waits", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true, keyed: [limit("tenant", { running: 2 })] }));
    const of = (tenant: string, id: string): Draft => by(tenant, id, jobKey("tenant", tenant));
    await fixture.enqueue(...names("a", 100).map((id) => of("acme", id)));
    const worker = await fixture.worker("w");
    let running = await take(worker, 2);
    await take(worker, 5);
    await fixture.enqueue(of("bolt", "b"));
    const ids: string[] = [];
    for (let turn = 0; turn < 2 && !ids.includes("b"); turn++) {
      // One ends, and the same turn has room for one.
      const [ended, ...rest] = running as [ClaimedJob, ...ClaimedJob[]];
      const { claimed } = await worker.turn([SETTLE.succeed(ended)], roomFor(1));
      ids.push(...idsOf(claimed));
      running = [...rest, ...claimed];
    }
    assert.ok(ids.includes("b"), ids.join(" "));
  });

  specify("jobs of two kinds at the door of one key: none is left there while the key has room", async (fixture) => {
    const tenant = jobKey("tenant", "acme");
    await fixture.declare(
      kind("mail", { fair: true, keyed: [limit("tenant", { running: 3 })] }),
      kind("sms", { keyed: [limit("tenant", { running: 3 })] }),
    );
    await fixture.store.operate.setLimit(tenant, { weight: 3 });
    await fixture.store.operate.pauseKey!(tenant, { reason: "unpaid", forMs: 1_000 });
    await fixture.enqueue({ id: "m", keys: [tenant], fair: tenant.id });
    await fixture.enqueue(...names("s", 3).map((id) => ({ id, kind: "sms", keys: [tenant] })));
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await fixture.clock.advance(1_000);
    // The share of the fair kind's job is three, and it is alone: the others have the rest.
    assert.deepEqual([...idsOf(await take(worker, 3))].sort(), ["m", "s0001", "s0002"]);
  });

  specify(
    "a rate next to a fair kind: a job that is admitted and waits for a worker delays no other",
    async (fixture) => {
      const all = ["mail", "sms", "fax"];
      await fixture.declare(
        kind("mail", { keyed: [limit("crm", { intervalMs: 1_000, burst: 2 })] }),
        kind("sms", { fair: true }),
        kind("fax"),
      );
      await fixture.enqueue({ id: "f", kind: "fax" });
      await fixture.enqueue(...names("a", 4).map((id) => ({ id, keys: [jobKey("crm", "*")] })));
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001", "a0002"]);
      await fixture.clock.advance(1_000);
      // This turn admits the third and takes an older job. The fourth may start a second later, whether the third has begun or not.
      assert.deepEqual(idsOf((await worker.turn([], roomFor(1, all))).claimed), ["f"]);
      await fixture.clock.advance(1_000);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0003", "a0004"]);
    },
  );

  specify("fairness and a rate: the starts are shared out in turns, and none is lost", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true, keyed: [limit("crm", { intervalMs: 1_000 })] }));
    const of = (tenant: string, id: string): Draft => by(tenant, id, jobKey("crm", "*"));
    await fixture.enqueue(...names("a", 10).map((id) => of("acme", id)), ...names("b", 10).map((id) => of("bolt", id)));
    const worker = await fixture.worker("w");
    const ids: string[] = [];
    for (let second = 0; second < 6; second++) {
      const claimed = await take(worker, 10);
      assert.equal(claimed.length, 1, `second ${second}`);
      ids.push(...idsOf(claimed));
      await fixture.clock.advance(1_000);
    }
    const tenants = ids.map((id) => id[0]).join("");
    assert.ok(!/aaa|bbb/.test(tenants), `one round is two starts: ${tenants}`);
  });

  specify("strict order holds under fairness, through a backoff and while another tenant goes on", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true, keyed: [limit("account", { strict: true })] }));
    const of = (account: string, id: string): Draft => by(account, id, jobKey("account", account));
    await fixture.enqueue(of("acme", "a1"), { ...of("acme", "a2"), priority: 9 }, of("bolt", "b1"), of("bolt", "b2"));
    const worker = await fixture.worker("w");
    const claimed = await take(worker, 10);
    assert.deepEqual([...idsOf(claimed)].sort(), ["a1", "b1"]);
    const [a1, b1] = ["a1", "b1"].map((id) => claimed.find(({ lease }) => lease.jobId === id)!) as [
      ClaimedJob,
      ClaimedJob,
    ];
    await worker.settle(SETTLE.fail(a1, 1_000), SETTLE.succeed(b1));
    assert.deepEqual(idsOf(await take(worker, 10)), ["b2"]);
    await fixture.clock.advance(1_000);
    const [again] = await take(worker, 10);
    assert.equal(again?.lease.jobId, "a1");
    await worker.settle(SETTLE.succeed(again));
    assert.deepEqual(idsOf(await take(worker, 10)), ["a2"]);
  });

  specify("a plain kind that shares a limit with a fair one is not passed over", async (fixture) => {
    const keyed = [limit("crm", { running: 1 })];
    await fixture.declare(kind("mail", { fair: true, keyed }), kind("sms", { keyed }));
    const crm = jobKey("crm", "*");
    await fixture.enqueue(...names("a", 30).map((id) => by("acme", id, crm)));
    const worker = await fixture.worker("w");
    const [first] = await take(worker, 10);
    await fixture.enqueue({ id: "s", kind: "sms", keys: [crm] });
    await take(worker, 10);
    await worker.settle(SETTLE.succeed(first!));
    const ids = await runOneByOne(worker, 3);
    assert.ok(ids.includes("s"), ids.join(" "));
  });
}

/** Every way back to the queue. */
const RETURNS: Readonly<
  Record<string, (fixture: Fixture, held: { worker: TestWorker; job: ClaimedJob }) => Promise<unknown>>
> = {
  "a retry": async (fixture, { worker, job }) => {
    await worker.settle(SETTLE.fail(job, 1_000));
    await fixture.clock.advance(1_000);
  },
  "a release": (_, { worker, job }) => worker.settle(SETTLE.release(job)),
  "a sleep": async (fixture, { worker, job }) => {
    const view = { id: job.lease.jobId, state: "running", counters: job.counters } as const;
    const change = wait(view, { step: "run.sleep#1", forMs: 1_000, until: null });
    await worker.settle({ lease: job.lease, change });
    await fixture.clock.advance(1_000);
  },
  "a death": (fixture, { worker }) => fixture.recoverAll(worker),
};

function specifyTurnsAfterAttempts(specify: Specify): void {
  for (const [how, back] of Object.entries(RETURNS))
    specify(`a job takes its key's turn again after ${how}`, async (fixture) => {
      await fixture.declare(kind("mail", { fair: true }));
      await fixture.enqueue(by("acme", "first"));
      const worker = await fixture.worker("v");
      const [job] = await take(worker, 10);
      await fixture.enqueue(...names("b", 20).map((id) => by("bolt", id)));
      await back(fixture, { worker, job: job! });
      const other = await fixture.worker("w");
      const claimed = idsOf(await take(other, 3));
      assert.ok(claimed.includes("first"), claimed.join(" "));
      assert.equal(claimed.length, 3);
    });

  specify("the ring goes on after the death of a worker in the midst of a round", async (fixture) => {
    await fixture.declare(kind("mail", { fair: true }));
    for (const tenant of ["x", "y", "z"]) await fixture.enqueue(...names(tenant, 10).map((id) => by(tenant, id)));
    const dead = await fixture.worker("v");
    const before = idsOf(await take(dead, 2));
    const worker = await fixture.worker("w", { store: await fixture.connect() });
    const after = idsOf(await take(worker, 1));
    assert.equal(new Set([...before, ...after].map((id) => id[0])).size, 3, "each tenant once");
    await fixture.recoverAll(dead);
    const rest = await runOneByOne(worker, 29);
    assert.equal(rest.length, 29);
  });
}

function specifyPauses(specify: Specify): void {
  const tenant = (key: string): JobKey => jobKey("tenant", key);

  specify(
    "nothing of a paused key starts, running jobs continue, and it starts again when it is resumed",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
      const of = (key: string, id: string): Draft => ({ id, keys: [tenant(key)] });
      await fixture.enqueue(...names("a", 4).map((id) => of("acme", id)), of("bolt", "b1"));
      const worker = await fixture.worker("w");
      const [a1] = await worker.claim(1);
      await fixture.store.operate.pauseKey!(tenant("acme"), { reason: "unpaid", forMs: null });
      // a0002 was admitted, and goes back.
      assert.deepEqual(idsOf(await take(worker, 10)), ["b1"]);
      assert.equal((await fixture.job("a0002")).heldBy?.key, "acme");
      assert.deepEqual((await worker.settle(SETTLE.succeed(a1!)))[0]?.is, "applied");
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await fixture.store.operate.pauseKey!(tenant("acme"), null);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0002", "a0003"]);
    },
  );

  specify("a pause with an end ends automatically, and a turn says when", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
    await fixture.store.operate.pauseKey!(tenant("acme"), { reason: "a backup", forMs: 5_000 });
    await fixture.enqueue({ id: "a", keys: [tenant("acme")] });
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    assert.equal((await worker.turn([], NO_ROOM)).nextDueInMs, 5_000);
    await fixture.clock.advance(5_000);
    assert.deepEqual(idsOf(await take(worker, 10)), ["a"]);
  });

  specify("a pause survives a change of the limit, and a limit of its own survives a pause", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
    const { operate } = fixture.store;
    await operate.setLimit(tenant("acme"), { running: 3 });
    await operate.pauseKey!(tenant("acme"), { reason: "unpaid", forMs: null });
    await fixture.enqueue(...names("a", 4).map((id) => ({ id, keys: [tenant("acme")] })));
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await operate.setLimit(tenant("acme"), { running: 2 });
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await operate.pauseKey!(tenant("acme"), null);
    assert.equal((await take(worker, 10)).length, 2);
  });

  specify(
    "a paused tenant of a fair kind is passed over without an end, and takes its turns when it is resumed",
    async (fixture) => {
      await fixture.declare(kind("mail", { fair: true }));
      await fixture.enqueue(
        ...names("a", 300).map((id) => by("acme", id)),
        ...names("b", 3).map((id) => by("bolt", id)),
      );
      await fixture.store.operate.pauseKey!(jobKey(FAIR, "acme"), { reason: "unpaid", forMs: null });
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await take(worker, 10)), names("b", 3));
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      assert.equal((await fixture.countsOf("mail")).held, 300);
      await fixture.store.operate.pauseKey!(jobKey(FAIR, "acme"), null);
      assert.equal((await take(worker, 10)).length, 10);
    },
  );

  specify(
    "keys that have something of their own are listed with what applies to them and what they hold",
    async (fixture) => {
      await fixture.declare(
        kind("mail", { keyed: [limit("tenant", { running: 1 }), limit("crm", { intervalMs: 500 })] }),
      );
      const { inspect, operate } = fixture.store;
      await fixture.enqueue(...names("a", 3).map((id) => ({ id, keys: [tenant("acme")] })));
      const worker = await fixture.worker("w");
      await take(worker, 10);
      assert.deepEqual(await inspect.keys!({ limit: null, most: 10 }), []);
      const applies = { running: 1, intervalMs: null, burst: 1, strict: false };
      const nothing = { own: {}, paused: null, heldOffUntil: null };
      assert.deepEqual(await inspect.keys!({ key: tenant("acme") }), [
        { limit: "tenant", key: "acme", applies, taken: 1, held: 2, ...nothing },
      ]);
      await operate.setLimit(tenant("acme"), { running: 2, weight: 4 });
      await operate.pauseKey!(tenant("acme"), { reason: "unpaid", forMs: 9_000 });
      await operate.pauseKey!(jobKey("crm", "*"), { reason: "the CRM moves", forMs: null });
      const at = fixture.clock.now();
      const [crm, acme, ...more] = await inspect.keys!({ limit: null, most: 10 });
      assert.deepEqual(more, []);
      assert.deepEqual([crm?.limit, crm?.paused], ["crm", { reason: "the CRM moves", at, until: null }]);
      const until = at + 9_000;
      assert.deepEqual(acme, {
        limit: "tenant",
        key: "acme",
        applies: { ...applies, running: 2 },
        own: { running: 2, weight: 4 },
        taken: 1,
        held: 2,
        paused: { reason: "unpaid", at, until },
        heldOffUntil: null,
      });
      assert.equal((await inspect.keys!({ limit: "tenant", most: 10 })).length, 1);
      assert.equal((await inspect.keys!({ limit: null, most: 1 })).length, 1);
      await fixture.clock.advance(9_000);
      assert.equal((await inspect.keys!({ key: tenant("acme") }))[0]?.paused, null, "its time has passed");
    },
  );

  specify("the first of a strict key that is paused keeps its place", async (fixture) => {
    await fixture.declare(
      kind("mail", { keyed: [limit("tenant", { running: 5 }), limit("account", { strict: true })] }),
    );
    const of = (id: string, key: string): Draft => ({ id, keys: [tenant(key), jobKey("account", "*")] });
    await fixture.enqueue(of("first", "acme"), of("second", "bolt"));
    await fixture.store.operate.pauseKey!(tenant("acme"), { reason: "unpaid", forMs: null });
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await fixture.store.operate.pauseKey!(tenant("acme"), null);
    assert.deepEqual(idsOf(await take(worker, 10)), ["first"]);
  });
}
