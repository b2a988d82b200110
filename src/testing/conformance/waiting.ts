// What the port promises about jobs that wait: they hold nothing meanwhile, are woken however what they wait for happened, read each signal
// once, and go on where they were.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import { wait } from "../../job/transitions.ts";
import { MAX_SIGNALS, type Wait } from "../../job/waits.ts";
import type { ReadSignal, Settlement, WriteAnswer } from "../../stores/port.ts";
import {
  answers,
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

const HOUR_MS = 3_600_000;

export function specifyWaiting(specify: Specify): void {
  specifySleep(specify);
  specifySignals(specify);
  specifyJobs(specify);
  specifyReading(specify);
}

function specifySleep(specify: Specify): void {
  specify("a job that sleeps costs nothing, is not claimed before its time, and then goes on", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.record(job, { type: "step", name: "first", result: "1" });
    assert.deepEqual(answers(await worker.settle(waiting(job, sleep(HOUR_MS)))), ["applied"]);
    const asleep = await fixture.job("a");
    assert.deepEqual(
      [asleep.state, asleep.lastOutcome, asleep.waitsAt, asleep.runAt],
      ["queued", "waiting", "run.sleep#1", fixture.clock.now() + HOUR_MS],
    );
    assert.deepEqual(asleep.counters, (await fixture.job("b")).counters);
    assert.equal((await worker.row()).heldCount, 0);
    assert.equal(asleep.history.at(-1)?.event, "wait");
    assert.deepEqual(idsOf(await worker.claim(5)), ["b"]);
    await fixture.clock.advance(HOUR_MS - 1);
    assert.deepEqual(await worker.claim(5), []);
    await fixture.clock.advance(1);
    const again = await worker.next();
    assert.deepEqual([again.lease.jobId, again.lastOutcome, again.lease.fence], ["a", "waiting", 2]);
    assert.deepEqual(again.wait, { step: "run.sleep#1", remainingMs: 0 });
    assert.deepEqual(again.steps, [{ name: "first", result: "1" }]);
  });

  specify("a wait whose outcome is kept as a step is not shown to later attempts", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(waiting(job, sleep(1_000)));
    await fixture.clock.advance(1_000);
    const again = await worker.next(roomFor(1, ["mail"]));
    await worker.record(again, { type: "step", name: "run.sleep#1", result: null });
    await worker.settle(SETTLE.release(again));
    assert.equal((await worker.next(roomFor(1, ["mail"]))).wait, undefined);
  });

  specify("a job that was woken and crashed goes on at the same wait, and the crash is counted", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(waiting(job, sleep(1_000)));
    await fixture.clock.advance(5_000);
    const second = await fixture.worker("w2");
    await second.claim(roomFor(1, ["mail"]));
    await fixture.recoverAll(second);
    const again = await worker.next(roomFor(1, ["mail"]));
    assert.deepEqual([again.counters.crashes, again.lastOutcome], [1, "crashed"]);
    assert.deepEqual(again.wait, { step: "run.sleep#1", remainingMs: -4_000 });
  });

  specify(
    "a wait that is settled again after a lost answer is repeated, also when the job runs again",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      const settlement = waiting(job, sleep(1_000));
      assert.deepEqual(answers(await worker.settle(settlement)), ["applied"]);
      assert.deepEqual(answers(await worker.settle(settlement)), ["repeated"]);
      await fixture.clock.advance(1_000);
      await worker.next(roomFor(1, ["mail"]));
      assert.deepEqual(answers(await worker.settle(settlement)), ["repeated"]);
    },
  );

  specify("the wait of a zombie is stale and changes nothing", async (fixture) => {
    const { worker: zombie, job } = await running(fixture);
    await fixture.recoverAll(zombie);
    assert.deepEqual(answers(await zombie.settle(waiting(job, sleep(HOUR_MS)))), ["stale"]);
    const worker = await fixture.worker("w2");
    assert.equal((await worker.next(roomFor(1, ["mail"]))).wait, undefined);
  });

  specify("a job whose cancel was requested does not begin to wait: it is cancelled", async (fixture) => {
    const { worker, job } = await running(fixture);
    await fixture.store.operate.cancel("a", "operator");
    assert.deepEqual(answers(await worker.settle(waiting(job, sleep(HOUR_MS)))), ["applied"]);
    assert.deepEqual(await fixture.states("a"), ["cancelled"]);
  });

  specify("a waiting job can be cancelled, and retried by hand it goes on with the same wait", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(waiting(job, forSignal("go")));
    assert.deepEqual(await fixture.store.operate.cancel("a", "operator"), { is: "applied", state: "cancelled" });
    await fixture.store.operate.retry("a", "operator");
    assert.equal((await worker.next(roomFor(1, ["mail"]))).wait?.step, "run.signal(go)#1");
  });

  specify("a job in backoff is not woken by what it waited for before", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(waiting(job, forSignal("go")));
    await send(fixture, "a", "go", "1");
    await quiet(worker);
    await worker.settle(SETTLE.fail(await worker.next(roomFor(1, ["mail"])), HOUR_MS));
    await send(fixture, "a", "go", "2");
    await quiet(worker);
    assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
  });
}

function specifySignals(specify: Specify): void {
  for (const when of ["before", "after"] as const)
    specify(
      `known bug 39: a signal that is sent ${when} the wait begins wakes the job and is read once`,
      async (fixture) => {
        const { worker, job } = await running(fixture);
        if (when === "before") await send(fixture, "a", "go", '{"n":1}');
        await worker.settle(waiting(job, forSignal("go")));
        if (when === "after") {
          await quiet(worker);
          assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
          await send(fixture, "a", "go", '{"n":1}');
        }
        await quiet(worker);
        const again = await worker.next(roomFor(1, ["mail"]));
        assert.deepEqual(again.wait, { step: "run.signal(go)#1", remainingMs: null });
        assert.deepEqual(await read(worker, again, 1), { kept: true, payload: '{"n":1}' });
        // The reply was lost.
        assert.deepEqual(await read(worker, again, 1), { kept: true, payload: '{"n":1}' });
        assert.deepEqual(await read(worker, again, 2), { kept: false });
        const { steps } = await fixture.job("a");
        assert.deepEqual(
          steps.map(({ name, result }) => [name, result]),
          [["run.signal(go)#1", { n: 1 }]],
        );
      },
    );

  specify("known bug 39: a signal that is sent while the wait is being written is not lost", async (fixture) => {
    const other = await fixture.connect();
    for (let round = 0; round < 15; round++) {
      const id = `job-${round}`;
      await fixture.enqueue(id);
      const worker = await fixture.worker(`w-${round}`);
      const job = await worker.next(roomFor(1, ["mail"]));
      await Promise.all([
        worker.settle(waiting(job, forSignal("go"))),
        other.operate.signal({ job: id, name: "go", payload: "1", id: "once" }),
      ]);
      await quiet(worker);
      const woken = await worker.next(roomFor(1, ["mail"]));
      assert.equal(woken.lease.jobId, id);
      assert.deepEqual(await read(worker, woken, 1), { kept: true, payload: "1" });
      await worker.settle(SETTLE.succeed(woken));
    }
  });

  specify(
    "known bug 30: a job is woken and run by any worker, also if the one that parked it is gone",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      await worker.settle(waiting(job, forSignal("go")));
      await fixture.recoverAll(worker);
      const other = await fixture.worker("other", { store: await fixture.connect() });
      await quiet(other);
      assert.deepEqual(await other.claim(roomFor(5, ["mail"])), []);
      await send(fixture, "a", "go", "1");
      await quiet(other);
      const woken = await other.next(roomFor(1, ["mail"]));
      assert.deepEqual([woken.lease.jobId, woken.counters.crashes], ["a", 0]);
    },
  );

  specify(
    "known bug 36: a damaged job among those that are woken together strands none of the others",
    async (fixture) => {
      const damage = fixture.damage();
      if (damage === null) return;
      const ids = names("job-", 5);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(roomFor(5, ["mail"]));
      await worker.settle(...jobs.map((one) => waiting(one, forSignal("go"))));
      await damage(ids[2]!, "input");
      for (const id of ids) await send(fixture, id, "go", "1");
      const found: string[] = [];
      for (let turns = 0; turns < 5; turns++) found.push(...idsOf(await worker.claim(roomFor(5, ["mail"]))));
      assert.deepEqual(
        found.toSorted(),
        ids.filter((_, i) => i !== 2),
      );
      assert.deepEqual(await fixture.states(ids[2]!), ["quarantined"]);
    },
  );

  specify("signals of one name are read in the order in which they came; others stay", async (fixture) => {
    const { worker, job } = await running(fixture);
    for (const payload of ["1", "2"]) await send(fixture, "a", "go", payload);
    await send(fixture, "a", "other", "3");
    assert.deepEqual(await read(worker, job, 1), { kept: true, payload: "1" });
    assert.deepEqual(await read(worker, job, 2), { kept: true, payload: "2" });
    assert.deepEqual(await read(worker, job, 3), { kept: false });
    await worker.settle(waiting(job, forSignal("go", 3)));
    await quiet(worker);
    assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
  });

  specify("a signal that is sent twice with one id counts once, also after it was read", async (fixture) => {
    const { worker, job } = await running(fixture);
    assert.deepEqual(await send(fixture, "a", "go", "1", "id-1"), { is: "kept" });
    assert.deepEqual(await send(fixture, "a", "go", "1", "id-1"), { is: "repeated" });
    await read(worker, job, 1);
    assert.deepEqual(await send(fixture, "a", "go", "1", "id-1"), { is: "repeated" });
    assert.deepEqual(await read(worker, job, 2), { kept: false });
  });

  specify("a wait for a signal ends by time, and what is kept then stays, whatever comes later", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(waiting(job, forSignal("go", 1, 1_000)));
    await quiet(worker);
    await fixture.clock.advance(1_000);
    const again = await worker.next(roomFor(1, ["mail"]));
    assert.deepEqual(again.wait, { step: "run.signal(go)#1", remainingMs: 0 });
    assert.deepEqual(await read(worker, again, 1, true), { kept: true, payload: null });
    await send(fixture, "a", "go", "1");
    assert.deepEqual(await read(worker, again, 1, true), { kept: true, payload: null });
    assert.deepEqual(await read(worker, again, 2, true), { kept: true, payload: "1" });
  });

  specify("a signal that is read is progress: the job is not a suspect any more", async (fixture) => {
    const { worker: dead } = await running(fixture);
    await fixture.recoverAll(dead);
    const worker = await fixture.worker("w2");
    const job = await worker.next(roomFor(1, ["mail"]));
    assert.deepEqual(await read(worker, job, 1), { kept: false });
    assert.equal((await fixture.job("a")).counters.crashes, 1);
    await send(fixture, "a", "go", "1");
    await read(worker, job, 1);
    assert.equal((await fixture.job("a")).counters.crashes, 0);
  });

  specify("a zombie reads no signal", async (fixture) => {
    const { worker: zombie, job } = await running(fixture);
    await send(fixture, "a", "go", "1");
    await fixture.recoverAll(zombie);
    assert.deepEqual(answers(await zombie.record(job, reading(1))), ["stale"]);
    const worker = await fixture.worker("w2");
    assert.deepEqual(await read(worker, await worker.next(roomFor(1, ["mail"])), 1), { kept: true, payload: "1" });
  });

  specify("a signal to a job that is not there, has ended or has too many unread ones is refused", async (fixture) => {
    const { worker, job } = await running(fixture);
    assert.deepEqual(await send(fixture, "nobody", "go", "1"), { is: "missing" });
    for (let n = 0; n < MAX_SIGNALS; n++) await send(fixture, "a", "go", "1", `id-${n}`);
    assert.deepEqual(await send(fixture, "a", "go", "1", "one more"), { is: "full" });
    assert.deepEqual(await send(fixture, "a", "go", "1", "id-1"), { is: "repeated" });
    await read(worker, job, 1);
    assert.deepEqual(await send(fixture, "a", "go", "1", "one more"), { is: "kept" });
    await worker.settle(SETTLE.succeed(job));
    assert.deepEqual(await send(fixture, "a", "go", "1", "too late"), { is: "ended", state: "succeeded" });
  });
}

/** Every way in which a job ends, as its parent must hear of it. Each begins with the child as it was enqueued. */
const ENDS: Readonly<Record<string, (fixture: Fixture, child: Child) => Promise<unknown>>> = {
  success: async (_, { worker, claim }) => worker.settle(SETTLE.succeed(await claim())),
  "success with a result": async (_, { worker, claim }) => worker.settle(SETTLE.succeed(await claim(), '"done"')),
  "a terminal error": async (_, { worker, claim }) => worker.settle(SETTLE.failForGood(await claim())),
  "a refused input": async (_, { worker, claim }) => worker.settle(SETTLE.refuse(await claim())),
  "a cancel while it ran": async (fixture, { worker, claim }) => {
    const job = await claim();
    await fixture.store.operate.cancel(job.lease.jobId, "operator");
    await worker.settle(SETTLE.endCancelled(job));
  },
  "a cancel before it ran": (fixture) => fixture.store.operate.cancel("child", "operator"),
  "the death of its worker": async (fixture, { claim, worker }) => {
    await fixture.declare(kind("sms", { onCrash: "fail" }));
    await claim();
    await fixture.recoverAll(worker);
  },
  "a loss of contact": async (fixture, { claim, worker }) => {
    await fixture.declare(kind("sms", { onCrash: "fail" }));
    await claim();
    const death = { how: "lost", lastSeenAliveAt: null, detectedAt: fixture.clock.now(), evidence: null } as const;
    await fixture.recoverAll(worker, { death });
  },
  "its deadline": async (fixture, { claim }) => {
    await fixture.declare(kind("sms", { limits: { errors: 3, timeouts: 1, crashes: 3 } }));
    await claim();
    await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
    await expireOnce(fixture.store, 0, 10);
  },
};

function specifyJobs(specify: Specify): void {
  for (const [how, end] of Object.entries(ENDS))
    specify(`known bug 42: a parent wakes when its last child ends by ${how}`, async (fixture) => {
      const { worker, job } = await running(fixture);
      const children = [draft({ id: "child", kind: "sms" }), draft({ id: "early", kind: "sms", priority: 9 })];
      await worker.record(job, { type: "enqueue", drafts: children });
      assert.deepEqual([(await fixture.job("child")).parent, (await fixture.job("a")).parent], ["a", null]);
      await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
      await worker.settle(waiting(job, forJobs("child", "early")));
      await quiet(worker);
      assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
      const other = await fixture.worker("w2");
      await end(fixture, { worker: other, claim: () => other.next(roomFor(1, ["sms"])) });
      await quiet(worker);
      assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
    });

  specify("a job can wait for one that is not its child, and for some of its children", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.record(job, { type: "enqueue", drafts: [draft({ id: "child", kind: "sms" })] });
    await fixture.enqueue({ id: "stranger", kind: "sms" });
    await worker.settle(waiting(job, forJobs("stranger")));
    await quiet(worker);
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    await quiet(worker);
    assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
    await worker.settle(SETTLE.failForGood(await worker.next(roomFor(1, ["sms"]))));
    await quiet(worker);
    assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
  });

  specify("a job that ends, is retried by hand and ends again wakes those that wait for it", async (fixture) => {
    const { worker, job } = await running(fixture);
    await fixture.enqueue({ id: "stranger", kind: "sms" }, { id: "other", kind: "sms", priority: 9 });
    await worker.settle(waiting(job, forJobs("stranger", "other")));
    await quiet(worker);
    await fixture.store.operate.cancel("stranger", "operator");
    await quiet(worker);
    await fixture.store.operate.retry("stranger", "operator");
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    await quiet(worker);
    assert.deepEqual([await fixture.states("other"), await worker.claim(roomFor(5, ["mail"]))], [["succeeded"], []]);
    // Retried before any worker has acted on its end.
    await fixture.store.operate.cancel("stranger", "operator");
    await fixture.store.operate.retry("stranger", "operator");
    await quiet(worker);
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    await quiet(worker);
    assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
  });

  specify("a child that is retried by hand does not hold up a wait for the others", async (fixture) => {
    const { worker, job } = await running(fixture);
    const drafts = [draft({ id: "child", kind: "sms" }), draft({ id: "retried", kind: "sms", priority: 9 })];
    await worker.record(job, { type: "enqueue", drafts });
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    await worker.settle(waiting(job, forJobs("child")));
    await fixture.store.operate.retry("retried", "operator");
    await fixture.store.operate.cancel("child", "operator");
    await quiet(worker);
    assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
  });

  specify("a wait for jobs that have ended already, or are not there, ends at once", async (fixture) => {
    const { worker, job } = await running(fixture);
    await fixture.enqueue({ id: "done", kind: "sms" });
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    await worker.settle(waiting(job, forJobs("done", "nobody")));
    await quiet(worker);
    assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
  });

  specify("two last children that end at the same moment on two connections wake their parent", async (fixture) => {
    for (let round = 0; round < 10; round++) {
      const id = `parent-${round}`;
      await fixture.enqueue({ id, priority: 9 });
      const worker = await fixture.worker(`w-${round}`);
      const other = await fixture.worker(`v-${round}`, { store: await fixture.connect() });
      const parent = await worker.next(roomFor(1, ["mail"]));
      assert.equal(parent.lease.jobId, id);
      const drafts = names(`${id}/`, 2).map((child) => draft({ id: child, kind: "sms" }));
      await worker.record(parent, { type: "enqueue", drafts });
      const [first, second] = [await worker.next(roomFor(1, ["sms"])), await other.next(roomFor(1, ["sms"]))];
      await Promise.all([
        worker.settle(waiting(parent, forJobs(...drafts.map((one) => one.id)))),
        other.settle(SETTLE.succeed(second)),
      ]);
      await worker.settle(SETTLE.succeed(first));
      await quiet(worker);
      await quiet(other);
      const woken = await worker.next(roomFor(1, ["mail"]));
      assert.equal(woken.lease.jobId, id);
      await worker.settle(SETTLE.succeed(woken));
    }
  });

  specify("a wait for other jobs ends by time while they go on", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.record(job, { type: "enqueue", drafts: [draft({ id: "child", kind: "sms" })] });
    await worker.settle(waiting(job, { ...forJobs("child"), forMs: 1_000 }));
    await quiet(worker);
    await fixture.clock.advance(1_000);
    assert.deepEqual((await worker.next(roomFor(1, ["mail"]))).wait, { step: "run.wait#1", remainingMs: 0 });
  });

  specify("a parent of many children wakes once, when the last of them has ended", async (fixture) => {
    const { worker, job } = await running(fixture);
    const ids = names("child-", 1_200);
    await worker.record(job, { type: "enqueue", drafts: ids.map((id) => draft({ id, kind: "sms" })) });
    await worker.settle(waiting(job, forJobs(...ids)));
    for (let left = ids.length; left > 0;) {
      const claimed = await worker.claim(roomFor(400, ["sms"]));
      left -= claimed.length;
      await worker.settle(...claimed.map((one) => SETTLE.succeed(one)));
      await quiet(worker);
      assert.equal((await fixture.job("a")).waitsAt === null, left === 0);
    }
    assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
  });

  // A store may remember how far it has checked the children of a wait.
  for (const order of ["first to last", "last to first", "the last one first", "the first one last"] as const)
    specify(`a parent whose children end in the order "${order}" waits for all of them`, async (fixture) => {
      const { worker, job } = await running(fixture);
      const ids = names("child-", 300);
      const drafts = ids.map((id, at) => draft({ id, kind: "sms", priority: PRIORITY[order](at, ids.length) }));
      await worker.record(job, { type: "enqueue", drafts });
      await worker.settle(waiting(job, forJobs(...ids)));
      await endAll(fixture, worker, ids.length, 70);
      assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
    });

  specify(
    "a child that is retried by hand is waited for again, whichever of its siblings have ended since",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      const ids = names("child-", 300);
      // Each piece: the last ones, then the first ones, then the others.
      const priority = (at: number): number => (at >= 200 ? 2 : at < 100 ? 1 : 0);
      const drafts = ids.map((id, at) => draft({ id, kind: "sms", priority: priority(at) }));
      await worker.record(job, { type: "enqueue", drafts });
      await worker.settle(waiting(job, forJobs(...ids)));
      const end = async (count: number): Promise<void> => {
        const claimed = await worker.claim(roomFor(count, ["sms"]));
        assert.equal(claimed.length, count);
        await worker.settle(...claimed.map((one) => SETTLE.succeed(one)));
        await quiet(worker);
        assert.notEqual((await fixture.job("a")).waitsAt, null);
      };
      await end(100);
      await end(100);
      const [low, high] = [ids[49]!, ids[249]!];
      await fixture.store.operate.retry(high, "operator");
      await fixture.store.operate.retry(low, "operator");
      // The retried ones have the higher priorities, and stay until the others have ended.
      const retried = await worker.claim(roomFor(2, ["sms"]));
      assert.deepEqual(idsOf(retried).toSorted(), [low, high].toSorted());
      await end(100);
      await worker.settle(SETTLE.succeed(retried[0]!));
      await quiet(worker);
      assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
      // It is retried again after it has ended, in the same wait.
      await fixture.store.operate.retry(retried[0]!.lease.jobId, "operator");
      await worker.settle(SETTLE.failForGood(retried[1]!));
      await quiet(worker);
      assert.deepEqual(await worker.claim(roomFor(5, ["mail"])), []);
      await fixture.store.operate.cancel(retried[0]!.lease.jobId, "operator");
      await quiet(worker);
      assert.deepEqual(idsOf(await worker.claim(roomFor(5, ["mail"]))), ["a"]);
    },
  );

  specify("a parent that waits again waits for the children that it has enqueued since", async (fixture) => {
    const { worker, job } = await running(fixture);
    let parent = job;
    const all: string[] = [];
    for (let round = 1; round <= 3; round++) {
      const ids = names(`round-${round}-`, 100);
      all.push(...ids);
      // In turns the first and the last of them end last.
      const drafts = ids.map((id, at) => draft({ id, kind: "sms", priority: round % 2 === 0 ? at : 100 - at }));
      await worker.record(parent, { type: "enqueue", drafts });
      await worker.settle(waiting(parent, { step: `run.wait#${round}`, forMs: null, until: { jobs: all } }));
      await endAll(fixture, worker, ids.length, 33);
      parent = await worker.next(roomFor(1, ["mail"]));
      await worker.record(parent, { type: "step", name: `run.wait#${round}`, result: null });
    }
  });

  specify("children stay as long as their parent is unfinished, and go after it", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.record(job, { type: "enqueue", drafts: [draft({ id: "child", kind: "sms" })] });
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    await worker.settle(waiting(job, forSignal("go")));
    const purge = { finishedOlderThanMs: 1_000, incidentsOlderThanMs: 1_000, limit: 100 };
    await fixture.clock.advance(2_000);
    await fixture.enqueue("newest");
    await fixture.store.purge(purge);
    assert.deepEqual(await fixture.states("child"), ["succeeded"]);
    await fixture.store.operate.cancel("a", "operator");
    await fixture.clock.advance(2_000);
    await fixture.store.purge(purge);
    assert.deepEqual(await fixture.states("a", "child"), ["missing", "missing"]);
  });
}

function specifyReading(specify: Specify): void {
  specify("outcomes say how each job stands, in the order of the ids", async (fixture) => {
    await fixture.enqueue("won", "lost", "open");
    const worker = await fixture.worker("w");
    const [won, lost] = await worker.claim(2);
    await worker.settle(SETTLE.succeed(won!, '{"rows":3}'), SETTLE.failForGood(lost!));
    const outcomes = await fixture.store.inspect.outcomes(["open", "nobody", "won", "lost", "won"]);
    assert.deepEqual(
      outcomes.map(({ id, state, result, error }) => [id, state, result, error?.message]),
      [
        ["open", "queued", null, undefined],
        ["nobody", "missing", null, undefined],
        ["won", "succeeded", '{"rows":3}', undefined],
        ["lost", "dead", null, "the printer is on fire"],
        ["won", "succeeded", '{"rows":3}', undefined],
      ],
    );
    assert.deepEqual(await fixture.store.inspect.outcomes([]), []);
  });

  specify("jobs are listed by their parent", async (fixture) => {
    const { worker, job } = await running(fixture);
    const ids = names("child-", 3);
    await worker.record(job, { type: "enqueue", drafts: ids.map((id) => draft({ id, kind: "sms" })) });
    await worker.settle(SETTLE.succeed(await worker.next(roomFor(1, ["sms"]))));
    const list = async (state?: "queued" | "succeeded"): Promise<string[]> => {
      const { jobs } = await fixture.store.inspect.list({ parent: "a", ...(state && { state }) }, 10, null);
      return jobs.map(({ id }) => id);
    };
    assert.deepEqual(await list(), ids.toReversed());
    assert.deepEqual(await list("succeeded"), [ids[0]]);
    assert.deepEqual((await fixture.store.inspect.list({ parent: "nobody" }, 10, null)).jobs, []);
  });
}

const PRIORITY = {
  "first to last": (): number => 0,
  "last to first": (at: number): number => at,
  "the last one first": (at: number, of: number): number => (at === of - 1 ? 1 : 0),
  "the first one last": (at: number): number => (at === 0 ? -1 : 0),
} as const;

/** Ends so many jobs of the kind sms, in pieces. The job `a` waits until the last of them has ended. */
async function endAll(fixture: Fixture, worker: TestWorker, count: number, piece: number): Promise<void> {
  for (let left = count; left > 0;) {
    const claimed = await worker.claim(roomFor(Math.min(piece, left), ["sms"]));
    assert.ok(claimed.length > 0);
    left -= claimed.length;
    await worker.settle(...claimed.map((one) => SETTLE.succeed(one)));
    await quiet(worker);
    assert.equal((await fixture.job("a")).waitsAt === null, left === 0);
  }
}

interface Child {
  readonly worker: TestWorker;
  readonly claim: () => Promise<ClaimedJob>;
}

/** A job `a` of the kind mail that worker `w` runs, and a job `b` of the kind sms that no worker has claimed. */
async function running(fixture: Fixture): Promise<{ worker: TestWorker; job: ClaimedJob }> {
  await fixture.enqueue("a", { id: "b", kind: "sms", priority: -9 });
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next(roomFor(1, ["mail"])) };
}

/** Takes turns without room until there is nothing to act on now. */
async function quiet(worker: TestWorker): Promise<void> {
  for (let turns = 0; turns < 100; turns++) if ((await worker.turn([], NO_ROOM)).nextDueInMs !== 0) return;
  assert.fail(`worker ${worker.id} always has more to do`);
}

function waiting(job: ClaimedJob, until: Wait): Settlement {
  const view = { id: job.lease.jobId, state: "running", counters: job.counters } as const;
  return { lease: job.lease, change: wait(view, until) };
}

function sleep(forMs: number): Wait {
  return { step: "run.sleep#1", forMs, until: null };
}

function forSignal(signal: string, position = 1, forMs: number | null = null): Wait {
  return { step: `run.signal(${signal})#${position}`, forMs, until: { signal } };
}

function forJobs(...jobs: readonly string[]): Wait {
  return { step: "run.wait#1", forMs: null, until: { jobs } };
}

let sent = 0;
function send(fixture: Fixture, job: string, name: string, payload: string, id = `sent-${++sent}`) {
  return fixture.store.operate.signal({ job, name, payload, id });
}

function reading(position: number, hasEnded = false) {
  return { type: "signal", step: `run.signal(go)#${position}`, name: "go", hasEnded } as const;
}

async function read(
  worker: TestWorker,
  job: ClaimedJob,
  position: number,
  hasEnded = false,
): Promise<ReadSignal | undefined> {
  const [answer] = (await worker.record(job, reading(position, hasEnded))) as [WriteAnswer];
  assert.equal(answer.is, "applied");
  return answer.is === "applied" ? answer.signal : undefined;
}
