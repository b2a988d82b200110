// What the port promises about jobs with keys: no key ever has more than its limit, none waits while it has room, a full key hides no other,
// whatever ends, kills or delays its jobs.
import assert from "node:assert/strict";
import { type ClaimedJob, NO_COUNTERS } from "../../job/job.ts";
import { jobKey, type LimitSettings } from "../../job/limits.ts";
import { wait } from "../../job/transitions.ts";
import {
  type Draft,
  draft,
  expireOnce,
  type Fixture,
  GRACE_MS,
  type TestWorker,
  idsOf,
  kind,
  names,
  NO_ROOM,
  roomFor,
  SETTLE,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";

export function specifyKeys(specify: Specify): void {
  specifyRunning(specify);
  specifyRates(specify);
  specifyOrder(specify);
  specifyOrderBesideOthers(specify);
  specifyOverrides(specify);
}

/** Every way in which a job leaves the room of its key. */
const LEAVES: Readonly<
  Record<string, (fixture: Fixture, held: { worker: TestWorker; job: ClaimedJob }) => Promise<unknown>>
> = {
  success: (_, { worker, job }) => worker.settle(SETTLE.succeed(job)),
  "a terminal error": (_, { worker, job }) => worker.settle(SETTLE.failForGood(job)),
  "a backoff": (_, { worker, job }) => worker.settle(SETTLE.fail(job, 60_000)),
  "a delayed release": (_, { worker, job }) => worker.settle(SETTLE.release(job, 60_000)),
  "a sleep": (_, { worker, job }) => {
    const view = { id: job.lease.jobId, state: "running", counters: job.counters } as const;
    const change = wait(view, { step: "run.sleep#1", forMs: 60_000, until: null });
    return worker.settle({ lease: job.lease, change });
  },
  "a cancel": async (fixture, { worker, job }) => {
    await fixture.store.operate.cancel(job.lease.jobId, "operator");
    await worker.settle(SETTLE.endCancelled(job));
  },
  "its deadline": async (fixture) => {
    await fixture.declare(
      kind("mail", { keyed: [limit("tenant", { running: 1 })], limits: { errors: 3, timeouts: 1, crashes: 3 } }),
    );
    await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
    await expireOnce(fixture.store, 0, 10);
  },
  "a death that ends it": async (fixture, { worker }) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })], onCrash: "fail" }));
    await fixture.recoverAll(worker);
  },
};

function specifyRunning(specify: Specify): void {
  specify("a key has as many jobs running as its limit, others are held, and other keys go on", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
    await fixture.enqueue(...names("a", 5).map((id) => of("acme", id)), of("bolt", "b"));
    const worker = await fixture.worker("w");
    const claimed = await take(worker, 10);
    assert.deepEqual(idsOf(claimed), ["a0001", "a0002", "b"]);
    assert.deepEqual([(await fixture.countsOf("mail")).held, (await fixture.countsOf("mail")).ready], [3, 0]);
    const held = await fixture.job("a0003");
    assert.deepEqual(
      [held.state, held.heldBy, held.keys],
      ["queued", { limit: "tenant", key: "acme" }, [{ limit: "tenant", key: "acme" }]],
    );
    await worker.settle(SETTLE.succeed(claimed[0]!));
    assert.deepEqual(idsOf(await take(worker, 10)), ["a0003"]);
  });

  specify(
    "jobs of a key that end together in one turn leave all of their room to the next ones, turn after turn",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 10 })] }));
      const ids = names("a", 30);
      await fixture.enqueue(...ids.map((id) => of("acme", id)));
      const worker = await fixture.worker("w");
      const ran: string[] = [];
      let jobs = await take(worker, 30);
      for (let turns = 0; turns < 3; turns++) {
        assert.equal(jobs.length, 10);
        ran.push(...idsOf(jobs));
        await worker.settle(...jobs.map((job) => SETTLE.succeed(job)));
        jobs = await take(worker, 30);
      }
      assert.deepEqual(ran, ids);
      assert.deepEqual(jobs, []);
    },
  );

  specify(
    "jobs that were claimed ahead and are released come before the later ones of their key, and it costs them no error, timeout or crash",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 3 })] }));
      await fixture.enqueue(...names("a", 6).map((id) => of("acme", id)));
      const worker = await fixture.worker("w");
      const claimed: ClaimedJob[] = [];
      for (let turns = 0; claimed.length < 3 && turns < 100; turns++) {
        const free = claimed.length === 0 ? 1 : 0;
        const kinds = [{ kind: "mail", room: 1, ahead: true }];
        claimed.push(...(await worker.claim({ total: free, kinds, ahead: 3 - free - claimed.length })));
      }
      assert.deepEqual(idsOf(claimed), ["a0001", "a0002", "a0003"]);
      await worker.settle(SETTLE.release(claimed[1]!), SETTLE.release(claimed[2]!));
      const other = await fixture.worker("other", { store: await fixture.connect() });
      assert.deepEqual(idsOf(await take(other, 10)), ["a0002", "a0003"]);
      for (const id of ["a0002", "a0003"])
        assert.deepEqual((await fixture.job(id)).counters, { ...NO_COUNTERS, interruptions: 1 });
    },
  );

  specify(
    "keys that a full worker leaves are taken by others at once, the highest priority first, and what no worker takes is ready for all soon",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
      await fixture.enqueue(...names("k", 6).flatMap((key) => [of(key, `${key}/1`), of(key, `${key}/2`)]));
      const worker = await fixture.worker("w");
      const other = await fixture.worker("other", { store: await fixture.connect() });
      const first = [...(await take(worker, 3)), ...(await take(other, 3))];
      assert.equal(new Set(idsOf(first)).size, 6);
      await fixture.enqueue({ ...of("late", "urgent"), priority: 5 });
      // A store that claims before it admits has it next.
      const next = idsOf([...(await take(other, 1)), ...(await take(other, 1))]);
      assert.ok(next.includes("urgent"), `the next were ${next.join(" and ")}`);
      await worker.settle(...first.filter(({ lease }) => lease.worker === worker.id).map((job) => SETTLE.succeed(job)));
      await fixture.clock.advance(1_000);
      while ((await worker.turn([], NO_ROOM)).nextDueInMs === 0);
      const { ready, held } = await fixture.countsOf("mail");
      assert.deepEqual({ ready, held }, { ready: 5, held: 0 });
      assert.equal((await take(worker, 10)).length, 5);
    },
  );

  specify("the job with the highest priority of a key is admitted first", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
    await fixture.enqueue({ ...of("acme", "low"), priority: -1 }, { ...of("acme", "high"), priority: 5 });
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), ["high"]);
  });

  specify(
    "what comes back to a key is next again, and so is what comes with a higher priority, however many were admitted meanwhile and whichever process brought it",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
      await fixture.enqueue(...names("a", 60).map((id) => of("acme", id)));
      const worker = await fixture.worker("w");
      const elsewhere = await fixture.connect();
      const other = await fixture.worker("other", { store: elsewhere });
      const run = async (count: number): Promise<string[]> => {
        const ran: string[] = [];
        for (let n = 0; n < count; n++) {
          const [job] = await take(worker, 1);
          await worker.settle(SETTLE.succeed(job!));
          ran.push(job!.lease.jobId);
        }
        return ran;
      };
      const [first, second] = await take(worker, 2);
      await worker.settle(SETTLE.succeed(second!), SETTLE.fail(first!, 60_000));
      await run(12);
      await fixture.clock.advance(60_000);
      // It gets the next room. A store that admits ahead of the claim has given both to others by now: then it is that of the first of them that ends.
      const isNext = async (id: string): Promise<void> => {
        const { ready } = await fixture.countsOf("mail");
        const ran = await run(2);
        assert.equal(ran.indexOf(id), ready === 0 ? 0 : 1, `${ready} were admitted, and then ran ${ran.join(", ")}`);
      };
      await isNext("a0001");
      await run(3);
      const [theirs] = await take(other, 1);
      await run(12);
      await other.settle(SETTLE.release(theirs!));
      assert.deepEqual(await run(1), [theirs!.lease.jobId]);
      await run(3);
      await elsewhere.enqueue([draft({ ...of("acme", "urgent"), priority: 5 })]);
      await isNext("urgent");
    },
  );

  specify(
    "what is claimed ahead of a kind with limits was admitted: no key has more than its limit",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
      await fixture.enqueue(...names("a", 5).map((id) => of("acme", id)), ...names("b", 5).map((id) => of("bolt", id)));
      const worker = await fixture.worker("w");
      const room = { total: 1, kinds: [{ kind: "mail", room: 1, ahead: true }], ahead: 8 };
      const claimed = [...(await worker.claim(room)), ...(await worker.claim({ ...room, total: 0 }))];
      assert.deepEqual(idsOf(claimed).toSorted(), ["a0001", "a0002", "b0001", "b0002"]);
      await worker.settle(SETTLE.release(claimed.find(({ lease }) => lease.jobId === "a0001")!));
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"]);
    },
  );

  for (const [how, leave] of Object.entries(LEAVES))
    specify(`a slot is free after ${how} of the job that had it (known bugs 28, 32)`, async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
      await fixture.enqueue(of("acme", "first"), of("acme", "second"));
      const worker = await fixture.worker("w");
      const [job] = await take(worker, 10);
      const other = await fixture.worker("other");
      assert.deepEqual(idsOf(await take(other, 10)), []);
      await leave(fixture, { worker, job: job! });
      assert.deepEqual(idsOf(await take(other, 10)), ["second"]);
    });

  specify("a zombie frees no slot: the limit holds after it wakes (known bug 27)", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
    await fixture.enqueue(...names("a", 4).map((id) => of("acme", id)));
    const zombie = await fixture.worker("zombie");
    const [job] = await take(zombie, 10);
    await fixture.recoverAll(zombie);
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"], "it runs again");
    await zombie.settle(SETTLE.succeed(job!));
    assert.deepEqual(idsOf(await take(worker, 10)), []);
  });

  specify("a job that crashed has no slot while it waits, and gets one again", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
    await fixture.enqueue(of("acme", "first"), of("acme", "second"));
    const dead = await fixture.worker("dead");
    await take(dead, 10);
    await fixture.recoverAll(dead);
    const worker = await fixture.worker("w");
    const [again] = await take(worker, 10);
    assert.deepEqual([again?.lease.jobId, again?.counters.crashes], ["first", 1]);
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await worker.settle(SETTLE.succeed(again!));
    assert.deepEqual(idsOf(await take(worker, 10)), ["second"]);
  });

  specify(
    "a saturated key in front hides no other key, however many of its jobs wait (known bug 33)",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
      await fixture.enqueue(...names("a", 500).map((id) => of("acme", id)));
      await fixture.enqueue(of("bolt", "b"));
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001", "b"]);
    },
  );

  specify("a job with two limits needs room of both, and waits for the one that is full", async (fixture) => {
    const limits = [limit("tenant", { running: 2 }), limit("all", { running: 3 })];
    await fixture.declare(kind("mail", { keyed: limits }));
    const both = (tenant: string, id: string): Draft => ({ id, keys: [jobKey("tenant", tenant), jobKey("all", "")] });
    await fixture.enqueue(both("a", "a1"), both("a", "a2"), both("a", "a3"), both("b", "b1"), both("b", "b2"));
    const worker = await fixture.worker("w");
    const claimed = await take(worker, 10);
    assert.deepEqual(idsOf(claimed), ["a1", "a2", "b1"]);
    assert.equal((await fixture.job("b2")).heldBy?.limit, "all");
    await worker.settle(SETTLE.succeed(claimed.find(({ lease }) => lease.jobId === "b1")!));
    assert.deepEqual(idsOf(await take(worker, 10)), ["b2"]);
    await worker.settle(SETTLE.succeed(claimed[0]!));
    assert.deepEqual(idsOf(await take(worker, 10)), ["a3"]);
  });

  specify("a delayed job with a key is held when it is due", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
    await fixture.enqueue(of("acme", "first"), { ...of("acme", "later"), delayMs: 1_000 });
    const worker = await fixture.worker("w");
    const [first] = await take(worker, 10);
    await fixture.clock.advance(1_000);
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    assert.equal((await fixture.job("later")).heldBy?.key, "acme");
    await worker.settle(SETTLE.succeed(first!));
    assert.deepEqual(idsOf(await take(worker, 10)), ["later"]);
  });

  specify(
    "a held job can be cancelled, is listed as queued, and a limit that is raised lets it go",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
      await fixture.enqueue(...names("a", 4).map((id) => of("acme", id)));
      const worker = await fixture.worker("w");
      await take(worker, 10);
      assert.deepEqual(await fixture.store.operate.cancel("a0002", "operator"), { is: "applied", state: "cancelled" });
      const { jobs } = await fixture.store.inspect.list({ state: "queued" }, 10, null);
      assert.deepEqual(
        jobs.map(({ id }) => id),
        ["a0004", "a0003"],
      );
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 2 })] }));
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0003"]);
    },
  );

  specify("two workers that admit at the same time never take more than the limit (known bug 31)", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 3 })] }));
    await fixture.enqueue(...names("a", 40).map((id) => of("acme", id)));
    const workers = await Promise.all(
      ["v", "w", "x"].map(async (id) => fixture.worker(id, { store: await fixture.connect() })),
    );
    let done = 0;
    for (let round = 0; round < 200 && done < 40; round++) {
      const claimed = await Promise.all(workers.map((one) => one.claim(5)));
      const running = claimed.flat();
      assert.ok(running.length <= 3, `${running.length} run at once`);
      done += running.length;
      await Promise.all(claimed.map((jobs, at) => workers[at]!.settle(...jobs.map((job) => SETTLE.succeed(job)))));
    }
    assert.equal(done, 40);
  });
}

function specifyRates(specify: Specify): void {
  specify("a rate lets a burst start at once and then one in each interval, also across deaths", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("crm", { intervalMs: 1_000, burst: 2 })] }));
    await fixture.enqueue(...names("a", 4).map((id) => of("acme", id, "crm")));
    const dead = await fixture.worker("dead");
    assert.deepEqual(idsOf(await take(dead, 10)), ["a0001", "a0002"]);
    await fixture.recoverAll(dead);
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await take(worker, 10)), [], "a crash mints no token");
    for (const id of ["a0001", "a0002", "a0003"]) {
      await fixture.clock.advance(999);
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      const { nextDueInMs } = await worker.turn([], NO_ROOM);
      assert.equal(nextDueInMs, 1);
      await fixture.clock.advance(1);
      assert.deepEqual(idsOf(await take(worker, 10)), [id]);
    }
  });

  specify(
    "a start counts from its claim: what was admitted and waited for a worker starts no bunch",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("crm", { intervalMs: 1_000 })] }));
      await fixture.enqueue(...names("a", 4).map((id) => of("acme", id, "crm")));
      const worker = await fixture.worker("w");
      for (let turns = 0; turns < 5; turns++) {
        await worker.turn([], NO_ROOM);
        await fixture.clock.advance(1_000);
      }
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"]);
      await fixture.clock.advance(999);
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await fixture.clock.advance(1);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0002"]);
    },
  );

  specify(
    "a job that was claimed and never began starts again at once when it is released, and the next one comes an interval after that",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("crm", { intervalMs: 1_000 })] }));
      await fixture.enqueue(...names("a", 2).map((id) => of("acme", id, "crm")));
      const worker = await fixture.worker("w");
      const [first] = await take(worker, 10);
      await fixture.clock.advance(400);
      await worker.settle(SETTLE.releaseUnstarted(first!));
      const other = await fixture.worker("other", { store: await fixture.connect() });
      const [again] = await take(other, 10);
      assert.equal(again?.lease.jobId, "a0001");
      await fixture.clock.advance(400);
      await other.settle(SETTLE.release(again));
      assert.deepEqual(
        idsOf(await take(worker, 10)),
        [],
        "it had begun: it starts again, and that costs another start",
      );
      await fixture.clock.advance(599);
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await fixture.clock.advance(1);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"]);
      await fixture.clock.advance(999);
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await fixture.clock.advance(1);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0002"]);
    },
  );

  specify("a burst that was claimed and never began is whole again when it is released", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("crm", { intervalMs: 1_000, burst: 3 })] }));
    await fixture.enqueue(...names("a", 4).map((id) => of("acme", id, "crm")));
    const worker = await fixture.worker("w");
    const claimed = await take(worker, 10);
    assert.equal(claimed.length, 3);
    await fixture.clock.advance(500);
    await worker.settle(...claimed.map((job) => SETTLE.releaseUnstarted(job)));
    const other = await fixture.worker("other", { store: await fixture.connect() });
    assert.deepEqual(idsOf(await take(other, 10)), ["a0001", "a0002", "a0003"]);
    await fixture.clock.advance(999);
    assert.deepEqual(idsOf(await take(other, 10)), []);
    await fixture.clock.advance(1);
    assert.deepEqual(idsOf(await take(other, 10)), ["a0004"]);
  });

  specify("a start that is returned is worth what time has left of it, so that none is gained", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("crm", { intervalMs: 1_000, burst: 2 })] }));
    await fixture.enqueue(...names("a", 4).map((id) => of("acme", id, "crm")));
    const worker = await fixture.worker("w");
    const other = await fixture.worker("other", { store: await fixture.connect() });
    const [first] = await take(worker, 1);
    await fixture.clock.advance(900);
    assert.deepEqual(idsOf(await take(other, 1)), ["a0002"]);
    await worker.settle(SETTLE.releaseUnstarted(first!));
    assert.deepEqual(idsOf(await take(other, 10)), ["a0001"]);
    await fixture.clock.advance(999);
    assert.deepEqual(idsOf(await take(other, 10)), []);
    await fixture.clock.advance(1);
    const [third] = await take(worker, 10);
    assert.equal(third?.lease.jobId, "a0003");
    await fixture.clock.advance(2_000);
    assert.deepEqual(idsOf(await take(other, 1)), ["a0004"]);
    await fixture.enqueue(...names("b", 2).map((id) => of("acme", id, "crm")));
    // Its start was two intervals ago.
    await worker.settle(SETTLE.releaseUnstarted(third));
    assert.deepEqual(idsOf(await take(other, 10)), ["a0003"]);
    assert.deepEqual(idsOf(await take(other, 10)), []);
  });

  specify(
    "a key with a rate of its own, under a limit without one: what was claimed ahead and never began pays no second start when it is released, and no later job overtakes it",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 5 })] }));
      await fixture.store.operate.setLimit(jobKey("tenant", "acme"), { intervalMs: 1_000, burst: 2 });
      await fixture.enqueue(...names("a", 4).map((id) => of("acme", id)));
      const worker = await fixture.worker("w");
      const kinds = [{ kind: "mail", room: 1, ahead: true }];
      const claimed: ClaimedJob[] = [];
      for (let turns = 0; claimed.length < 2 && turns < 100; turns++)
        claimed.push(...(await worker.claim({ total: claimed.length === 0 ? 1 : 0, kinds, ahead: 5 })));
      assert.deepEqual(idsOf(claimed), ["a0001", "a0002"]);
      await fixture.clock.advance(300);
      await worker.settle(SETTLE.releaseUnstarted(claimed[1]!));
      const other = await fixture.worker("other", { store: await fixture.connect() });
      assert.deepEqual(idsOf(await take(other, 10)), ["a0002"]);
      // The start of a0001 is 300 ms old, and that of a0002 begins now.
      await fixture.clock.advance(699);
      assert.deepEqual(idsOf(await take(other, 10)), []);
      await fixture.clock.advance(1);
      assert.deepEqual(idsOf(await take(other, 10)), ["a0003"]);
    },
  );

  specify("the release of a job that was claimed before its key got a rate returns no start", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 5 })] }));
    await fixture.enqueue(of("acme", "early"));
    const worker = await fixture.worker("w");
    const [early] = await take(worker, 10);
    await fixture.store.operate.setLimit(jobKey("tenant", "acme"), { intervalMs: 1_000, burst: 1 });
    await fixture.enqueue(...names("a", 2).map((id) => of("acme", id)));
    assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"]);
    await fixture.clock.advance(500);
    await worker.settle(SETTLE.releaseUnstarted(early!));
    assert.deepEqual(idsOf(await take(worker, 10)), [], "the start of a0001 is spent");
    await fixture.clock.advance(500);
    assert.deepEqual(idsOf(await take(worker, 10)), ["early"]);
    assert.deepEqual(idsOf(await take(worker, 10)), []);
  });

  specify("a key with a rate that was quiet has its burst again, and no more", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("crm", { intervalMs: 1_000, burst: 3 })] }));
    await fixture.enqueue(...names("a", 9).map((id) => of("acme", id, "crm")));
    const worker = await fixture.worker("w");
    assert.equal((await take(worker, 10)).length, 3);
    await fixture.clock.advance(60_000);
    assert.equal((await take(worker, 10)).length, 3);
  });
}

function specifyOverrides(specify: Specify): void {
  specify("a limit of one key is changed while it works, up and down and back", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
    await fixture.enqueue(...names("a", 6).map((id) => of("acme", id)), ...names("b", 3).map((id) => of("bolt", id)));
    const worker = await fixture.worker("w");
    await take(worker, 10);
    await fixture.store.operate.setLimit(jobKey("tenant", "acme"), { running: 3 });
    assert.deepEqual(idsOf(await take(worker, 10)), ["a0002", "a0003"]);
    await fixture.store.operate.setLimit(jobKey("tenant", "acme"), null);
    assert.deepEqual(idsOf(await take(worker, 10)), []);
  });

  specify("a key that is held off starts nothing before its time; running jobs continue", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("crm", { running: 5 })] }));
    await fixture.enqueue(of("acme", "first", "crm"));
    const worker = await fixture.worker("w");
    const [job] = await take(worker, 10);
    const [answer] = await worker.record(job!, { type: "holdOff", key: jobKey("crm", "acme"), forMs: 5_000 });
    assert.equal(answer?.is, "applied");
    await fixture.enqueue(of("acme", "second", "crm"), of("bolt", "other", "crm"));
    assert.deepEqual(idsOf(await take(worker, 10)), ["other"]);
    await fixture.clock.advance(4_999);
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await fixture.clock.advance(1);
    assert.deepEqual(idsOf(await take(worker, 10)), ["second"]);
  });
}

function specifyOrder(specify: Specify): void {
  specify(
    "strict order: the next of a key starts only when the one before has ended, through backoff and death",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("account", { strict: true })] }));
      await fixture.enqueue(of("acme", "first", "account"), { ...of("acme", "second", "account"), priority: 9 });
      const dead = await fixture.worker("dead");
      const [first] = await take(dead, 10);
      assert.equal(first?.lease.jobId, "first");
      await dead.settle(SETTLE.fail(first, 1_000));
      assert.deepEqual(idsOf(await take(dead, 10)), []);
      await fixture.clock.advance(1_000);
      assert.deepEqual(idsOf(await take(dead, 10)), ["first"]);
      await fixture.recoverAll(dead);
      const worker = await fixture.worker("w");
      const [again] = await take(worker, 10);
      assert.equal(again?.lease.jobId, "first");
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await worker.settle(SETTLE.succeed(again));
      assert.deepEqual(idsOf(await take(worker, 10)), ["second"]);
    },
  );
}

function specifyOrderBesideOthers(specify: Specify): void {
  specify("strict order: a job that another limit holds is not overtaken by the next of its key", async (fixture) => {
    await fixture.declare(kind("mail", { keyed: [limit("all", { running: 1 }), limit("account", { strict: true })] }));
    const both = { id: "first", keys: [jobKey("all", "*"), jobKey("account", "acme")] };
    await fixture.enqueue({ id: "other", keys: [jobKey("all", "*")] });
    const worker = await fixture.worker("w");
    const [other] = await take(worker, 10);
    await fixture.enqueue(both, of("acme", "second", "account"));
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    assert.equal((await fixture.job("first")).heldBy?.limit, "all");
    await worker.settle(SETTLE.succeed(other!));
    const [first] = await take(worker, 10);
    assert.equal(first?.lease.jobId, "first");
    assert.deepEqual(idsOf(await take(worker, 10)), []);
    await worker.settle(SETTLE.succeed(first));
    assert.deepEqual(idsOf(await take(worker, 10)), ["second"]);
  });
}

export function limit(name: string, more: Partial<LimitSettings>): LimitSettings {
  return { name, running: null, intervalMs: null, burst: 1, strict: false, ...more };
}

function of(key: string, id: string, name = "tenant"): Draft {
  return { id, keys: [jobKey(name, key)] };
}

/** What a worker has claimed when there is nothing more to act on. */
export async function take(worker: TestWorker, room: number): Promise<readonly ClaimedJob[]> {
  const claimed: ClaimedJob[] = [];
  for (let turns = 0; turns < 100; turns++) {
    const answer = await worker.turn([], roomFor(room - claimed.length));
    claimed.push(...answer.claimed);
    if (answer.nextDueInMs !== 0 && answer.claimed.length === 0) return claimed;
    if (claimed.length === room) return claimed;
  }
  assert.fail(`worker ${worker.id} always has more to do`);
}
