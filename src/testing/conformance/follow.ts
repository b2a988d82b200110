// What the port promises about jobs that follow from the end of another (`Change.follow`): they are there if the change was applied, and
// only then, however it was applied: by a turn, a recovery, a commit, or the judgement of a loss.
import assert from "node:assert/strict";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { ClaimedJob } from "../../job/job.ts";
import { type Change, countLoss, timeOut } from "../../job/transitions.ts";
import { decideCrash } from "../../recovery/recover.ts";
import type { ListPage, Settlement, Verdict } from "../../stores/port.ts";
import {
  answers,
  type Draft,
  draft,
  type Fixture,
  GRACE_MS,
  TestWorker,
  idsOf,
  kind,
  names,
  roomFor,
  SETTLE,
  SETTLE_NAMES,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";
import type { UserWrites } from "./suite.ts";

export function specifyFollow(specify: Specify): void {
  for (const name of SETTLE_NAMES) {
    specify(
      `what follows from a settlement by ${name} is enqueued with it, as it was drafted, and not again when it is repeated`,
      async (fixture) => {
        const { worker, job } = await running(fixture);
        const later = { id: "a/later", kind: "sms", input: '{"n":1}', delayMs: 7_000, priority: 3, dedupeKey: "key" };
        const settlement = following(SETTLE[name](job), "a/next", later);
        assert.deepEqual(answers(await worker.settle(settlement)), ["applied"]);
        const [next, second] = [await fixture.job("a/next"), await fixture.job("a/later")];
        assert.deepEqual([next.kind, next.state, next.input, next.attempt], ["mail", "queued", {}, 0]);
        assert.deepEqual(
          [second.kind, second.state, second.input, second.priority, second.dedupeKey, second.runAt],
          ["sms", "queued", { n: 1 }, 3, "key", fixture.clock.now() + 7_000],
        );
        assert.deepEqual(answers(await worker.settle(settlement, settlement)), ["repeated", "repeated"]);
        assert.deepEqual(await countOfAll(fixture), { mail: 2, sms: 1 });
        assert.deepEqual([await fixture.job("a/next"), await fixture.job("a/later")], [next, second]);
      },
    );

    specify(`nothing follows from a settlement by ${name} that is stale`, async (fixture) => {
      const { worker: zombie, job } = await running(fixture);
      await fixture.recoverAll(zombie);
      assert.deepEqual(answers(await zombie.settle(following(SETTLE[name](job), "a/next"))), ["stale"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 1, sms: 0 });
    });
  }

  specify(
    "a repetition adds nothing when what followed has ended, and when the job was retried by hand",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      const settlement = following(SETTLE.succeed(job), "a/next");
      await worker.settle(settlement);
      await worker.settle(SETTLE.succeed(await worker.next()));
      assert.deepEqual(await fixture.states("a", "a/next"), ["succeeded", "succeeded"]);
      assert.deepEqual(answers(await worker.settle(settlement)), ["repeated"]);
      await fixture.store.operate.retry("a", "operator");
      assert.deepEqual(answers(await worker.settle(settlement)), ["repeated"]);
      const again = await worker.next();
      assert.deepEqual(answers(await worker.settle(following(SETTLE.succeed(again), "a/next"))), ["applied"]);
      assert.deepEqual(await fixture.states("a", "a/next"), ["succeeded", "succeeded"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 2, sms: 0 });
    },
  );

  specify("a settlement with a follow that arrives twice at once on two connections adds it once", async (fixture) => {
    const { worker, job } = await running(fixture);
    const twin = new TestWorker(await fixture.connect(), worker.id, worker.epoch);
    const settlement = following(SETTLE.fail(job), "a/next");
    const settled = await Promise.all([worker.settle(settlement), twin.settle(settlement)]);
    assert.deepEqual(answers(settled.flat()).toSorted(), ["applied", "repeated"]);
    assert.deepEqual(await countOfAll(fixture), { mail: 2, sms: 0 });
  });

  specify(
    "of a change and its alternative for a requested cancel, only what follows from the applied one is enqueued",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(3);
      await fixture.store.operate.cancel("b", "operator");
      await fixture.store.operate.cancel("c", "operator");
      const settlements = jobs.map((job) => {
        const settlement = following(SETTLE.fail(job, 7_000), `${job.lease.jobId}/failed`);
        const { lease, change } = settlement;
        const ifCancelled = { ...change.ifCancelled!, follow: [draft(`${lease.jobId}/cancelled`)] };
        return lease.jobId === "c" ? settlement : { ...settlement, change: { ...change, ifCancelled } };
      });
      assert.deepEqual(answers(await worker.settle(...settlements)), ["applied", "applied", "applied"]);
      assert.deepEqual(await fixture.states("a", "a/failed", "a/cancelled"), ["queued", "queued", "missing"]);
      assert.deepEqual(await fixture.states("b", "b/failed", "b/cancelled"), ["cancelled", "missing", "queued"]);
      assert.deepEqual(await fixture.states("c", "c/failed", "c/cancelled"), ["cancelled", "missing", "missing"]);
      assert.deepEqual(answers(await worker.settle(...settlements)), ["repeated", "repeated", "repeated"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 5, sms: 0 });
    },
  );

  specify(
    "one turn with many settlements enqueues what follows from each that is applied, and may claim it at once",
    async (fixture) => {
      const ids = names("j", 40);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(40);
      await worker.settle(SETTLE.succeed(jobs[0]!));
      const settlements = jobs.map((job, i) => {
        const next = { id: `${job.lease.jobId}/next`, kind: "sms" };
        const settlement = i % 4 === 3 ? SETTLE.failForGood(job) : SETTLE.succeed(job, `${i}`);
        return i === 0 ? following(SETTLE.fail(job), next) : i % 2 === 1 ? following(settlement, next) : settlement;
      });
      const turn = await worker.turn(settlements, roomFor(15, ["sms"]));
      assert.deepEqual(answers(turn.settled), ["stale", ...ids.slice(1).map(() => "applied")]);
      const followed = ids.filter((_, i) => i % 2 === 1).map((id) => `${id}/next`);
      assert.deepEqual(idsOf(turn.claimed), followed.slice(0, 15));
      assert.deepEqual(await countOfAll(fixture), { mail: 40, sms: 20 });
      const ended = ids.map((_, i) => (i % 4 === 3 ? "dead" : "succeeded"));
      assert.deepEqual(await fixture.states(...ids), ended);
      assert.equal((await fixture.job("j0003")).result, 2);
    },
  );

  specify(
    "a dedupe key that another job holds, or an id that is known, adds nothing, and the settlement is applied",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const [a, b, c] = await worker.claim(3);
      await fixture.enqueue({ id: "holder", dedupeKey: "held" }, "known");
      const settled = await worker.settle(
        following(SETTLE.succeed(a!), { id: "a/next", dedupeKey: "held" }, "known"),
        following(SETTLE.failForGood(b!), { id: "b/next", dedupeKey: "new" }, "shared"),
        following(SETTLE.succeed(c!), { id: "c/next", dedupeKey: "new" }, "shared"),
      );
      assert.deepEqual(answers(settled), ["applied", "applied", "applied"]);
      assert.deepEqual(await fixture.states("a", "b", "c"), ["succeeded", "dead", "succeeded"]);
      assert.deepEqual(await fixture.states("a/next", "b/next", "c/next"), ["missing", "queued", "missing"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 7, sms: 0 });
    },
  );

  specify("a dedupe key is free for what follows when the job that had it ends in the same turn", async (fixture) => {
    await fixture.enqueue({ id: "a", dedupeKey: "key-a" }, { id: "b", dedupeKey: "key-b" });
    const worker = await fixture.worker("w");
    const [a, b] = await worker.claim(2);
    const again = [
      { id: "a/2", dedupeKey: "key-a" },
      { id: "b/2", dedupeKey: "key-b" },
    ];
    const settled = await worker.settle(following(SETTLE.failForGood(a!), ...again), SETTLE.succeed(b!));
    assert.deepEqual(answers(settled), ["applied", "applied"]);
    assert.deepEqual(await fixture.states("a", "b", "a/2", "b/2"), ["dead", "succeeded", "queued", "queued"]);
  });

  specify(
    "a follow of a kind that was never declared fails its turn with the name of the kind, nothing of it is written, and it is applied once the kind is declared",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const [a, b, c] = await worker.claim(3);
      const settlements = [
        SETTLE.succeed(a!),
        following(SETTLE.fail(b!, 7_000), "b/next"),
        following(SETTLE.succeed(c!), "c/next", { id: "c/fax", kind: "fax" }),
      ];
      await assert.rejects(worker.settle(...settlements), isUnknown("fax"));
      assert.deepEqual(await fixture.states("a", "b", "c"), ["running", "running", "running"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 3, sms: 0 });
      assert.deepEqual((await fixture.job("b")).history, []);
      await (await fixture.connect()).declare([kind("fax")]);
      assert.deepEqual(answers(await worker.settle(...settlements)), ["applied", "applied", "applied"]);
      assert.deepEqual(await fixture.states("b/next", "c/next", "c/fax"), ["queued", "queued", "queued"]);
    },
  );

  specify("a stale settlement is refused as such, whatever kind would have followed", async (fixture) => {
    const { worker: zombie, job } = await running(fixture);
    await fixture.recoverAll(zombie);
    const settlement = following(SETTLE.succeed(job), { id: "a/fax", kind: "fax" });
    assert.deepEqual(answers(await zombie.settle(settlement)), ["stale"]);
  });

  specify("a settlement from which jobs follow wakes the listeners, and a plain success does not", async (fixture) => {
    await fixture.enqueue("a", "b");
    const worker = await fixture.worker("w");
    const [a, b] = await worker.claim(2);
    let wakeups = 0;
    const stop = fixture.store.onWakeup(() => wakeups++);
    await worker.settle(SETTLE.succeed(a!));
    assert.equal(wakeups, 0);
    await worker.settle(following(SETTLE.succeed(b!), "b/next"));
    assert.equal(wakeups, 1);
    stop();
  });

  specifyRecovered(specify);
  specifyCommitted(specify);
}

function specifyRecovered(specify: Specify): void {
  specify(
    "what follows from a recovery is enqueued with it, of a cancelled job its own, and once however often it is recovered",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      await worker.claim(2);
      await fixture.store.operate.cancel("b", "operator");
      const request = await fixture.recovery(worker, { decide: crashedWithFollow });
      const condemned = await fixture.store.condemn(request);
      assert.ok(condemned !== null && condemned !== "locked");
      const { jobs } = await fixture.store.heldBy({ condemned, limit: 10 });
      const verdicts = jobs.map((job): Verdict => ({
        job,
        alone: false,
        ...crashedWithFollow(job, condemned),
        error: null,
      }));
      const taken = await fixture.store.takeBack({ verdicts, of: condemned, last: false });
      assert.deepEqual(taken.taken, ["taken", "cancelled"]);
      assert.deepEqual(await fixture.states("a", "a/crashed", "a/cancelled"), ["queued", "queued", "missing"]);
      assert.deepEqual(await fixture.states("b", "b/crashed", "b/cancelled"), ["cancelled", "missing", "queued"]);
      const again = await fixture.store.takeBack({ verdicts, of: condemned, last: true });
      assert.deepEqual(again.taken, ["moved", "moved"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 4, sms: 0 });
    },
  );

  specify("nothing follows from a recovery of a job that ended before it", async (fixture) => {
    const { worker, job } = await running(fixture);
    const condemned = await fixture.store.condemn(await fixture.recovery(worker));
    assert.ok(condemned !== null && condemned !== "locked");
    const { jobs } = await fixture.store.heldBy({ condemned, limit: 10 });
    await worker.settle(SETTLE.succeed(job));
    const verdicts = jobs.map((held): Verdict => ({
      job: held,
      alone: true,
      ...crashedWithFollow(held, condemned),
      error: null,
    }));
    const { taken } = await fixture.store.takeBack({ verdicts, of: condemned, last: true });
    assert.deepEqual(taken, ["moved"]);
    assert.deepEqual(await countOfAll(fixture), { mail: 1, sms: 0 });
  });

  specify(
    "what follows from an overdue job that is taken from a living worker is enqueued with it",
    async (fixture) => {
      await running(fixture);
      await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
      const { jobs } = await fixture.store.heldBy({ overdue: { marginMs: 0 }, limit: 10 });
      const verdicts = jobs.map((job): Verdict => {
        const change = withFollow(timeOut(job, job.kind, 7_000), "a/next");
        return { job, alone: true, decision: "retry", change, error: null };
      });
      const request = { verdicts, of: null, last: true };
      assert.deepEqual((await fixture.store.takeBack(request)).taken, ["taken"]);
      assert.deepEqual((await fixture.store.takeBack(request)).taken, ["moved"]);
      assert.deepEqual(await countOfAll(fixture), { mail: 2, sms: 0 });
    },
  );

  specify(
    "a follow of a kind that was never declared keeps only its own job from being recovered, until it is declared",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      await worker.claim(3);
      const decide: typeof decideCrash = (job, condemned) => {
        const { decision, change } = decideCrash(job, condemned);
        return { decision, change: withFollow(change, { id: `${job.id}/next`, kind: job.id === "b" ? "fax" : "sms" }) };
      };
      const { jobs, incident } = await fixture.recover(worker, { decide });
      assert.deepEqual(
        jobs.map(({ jobId, success, error }) => [jobId, success, /"fax"/.test(error ?? "")]),
        [
          ["a", true, false],
          ["b", false, true],
          ["c", true, false],
        ],
      );
      assert.deepEqual(await fixture.states("a", "b", "c"), ["queued", "running", "queued"]);
      assert.deepEqual(await fixture.states("a/next", "b/next", "c/next"), ["queued", "missing", "queued"]);
      await (await fixture.connect()).declare([kind("fax")]);
      const again = await fixture.recover(worker, { decide });
      assert.deepEqual([again.incident, again.jobs.map(({ success }) => success)], [incident, [true]]);
      assert.deepEqual(await fixture.states("b", "b/next"), ["queued", "queued"]);
      assert.equal((await fixture.job("b")).counters.crashes, 1);
    },
  );

  specify("what follows from a lost job that is judged is enqueued with the judgement, once", async (fixture) => {
    const { worker } = await running(fixture);
    const death = { how: "lost", lastSeenAliveAt: null, detectedAt: 0, evidence: null } as const;
    const { incident } = await fixture.recoverAll(worker, { death });
    assert.equal(await fixture.store.losses.resolve("w", "died"), "died");
    const [job] = await fixture.store.losses.jobs(incident!, 10);
    const { decision, change } = countLoss(job!, job!.kind, job!.alone, "died");
    const verdict = { job: job!, decision, change: withFollow(change, "a/next") };
    await fixture.store.losses.judge(incident!, [verdict]);
    await fixture.store.losses.judge(incident!, [verdict]);
    assert.deepEqual(await fixture.states("a", "a/next"), ["queued", "queued"]);
    assert.deepEqual([(await fixture.job("a")).counters.crashes, await countOfAll(fixture)], [1, { mail: 2, sms: 0 }]);
  });
}

function specifyCommitted(specify: Specify): void {
  const onUserWrites = (title: string, body: (fixture: Fixture, user: UserWrites) => Promise<void>): void =>
    specify(title, async (fixture) => {
      const user = fixture.user();
      if (user) await body(fixture, user);
    });

  onUserWrites("what follows from a commit is enqueued with it, and others are woken", async (fixture, user) => {
    const { job } = await running(fixture);
    let wakeups = 0;
    const stop = fixture.store.onWakeup(() => wakeups++);
    const settlement = following(SETTLE.succeed(job), "a/next");
    assert.equal((await commit(fixture, settlement, user, () => 7)).answer.is, "applied");
    stop();
    assert.equal(wakeups, 1);
    assert.deepEqual([(await fixture.job("a")).result, await user.written(fixture.store)], [7, ["note"]]);
    assert.deepEqual(await fixture.states("a", "a/next"), ["succeeded", "queued"]);
    assert.equal((await commit(fixture, settlement, user, () => 8)).answer.is, "repeated");
    assert.deepEqual(await countOfAll(fixture), { mail: 2, sms: 0 });
  });

  onUserWrites("nothing follows from a commit whose body throws, or that is stale", async (fixture, user) => {
    const { worker, job } = await running(fixture);
    const settlement = following(SETTLE.succeed(job), "a/next");
    const failing = (): never => {
      throw new Error("not enough money");
    };
    await assert.rejects(commit(fixture, settlement, user, failing), /not enough money/);
    assert.deepEqual(await countOfAll(fixture), { mail: 1, sms: 0 });
    await fixture.recoverAll(worker);
    assert.equal((await commit(fixture, settlement, user, () => 1)).answer.is, "stale");
    assert.deepEqual([await countOfAll(fixture), await user.written(fixture.store)], [{ mail: 1, sms: 0 }, []]);
  });

  onUserWrites(
    "a commit with a follow of a kind that was never declared names the kind, does not run its body and writes nothing",
    async (fixture, user) => {
      const { worker, job } = await running(fixture);
      const settlement = following(SETTLE.succeed(job), "a/next", { id: "a/fax", kind: "fax" });
      let runs = 0;
      await assert.rejects(
        commit(fixture, settlement, user, () => ++runs),
        isUnknown("fax"),
      );
      assert.deepEqual([runs, await user.written(fixture.store), await fixture.states("a")], [0, [], ["running"]]);
      assert.deepEqual(await countOfAll(fixture), { mail: 1, sms: 0 });
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["applied"]);
    },
  );
}

async function running(fixture: Fixture): Promise<{ worker: TestWorker; job: ClaimedJob }> {
  await fixture.enqueue("a");
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next() };
}

/** The settlement, from which these jobs follow. */
function following(settlement: Settlement, ...drafts: readonly (string | Draft)[]): Settlement {
  return { ...settlement, change: withFollow(settlement.change, ...drafts) };
}

function withFollow(change: Change, ...drafts: readonly (string | Draft)[]): Change {
  return { ...change, follow: drafts.map(draft) };
}

const crashedWithFollow: typeof decideCrash = (job, condemned) => {
  const { decision, change } = decideCrash(job, condemned);
  const ifCancelled = withFollow(change.ifCancelled!, `${job.id}/cancelled`);
  return { decision, change: { ...withFollow(change, `${job.id}/crashed`), ifCancelled } };
};

function commit<T>(fixture: Fixture, settlement: Settlement, user: UserWrites, then: () => T) {
  const body = user.writing("note", then) as never;
  return fixture.store.transactions!.commit<T>(settlement, body, (value) => JSON.stringify(value));
}

/** How many jobs of each kind there are, in whatever state. */
async function countOfAll(fixture: Fixture): Promise<Readonly<Record<string, number>>> {
  const count = { mail: 0, sms: 0 };
  let after: string | null = null;
  do {
    const page: ListPage = await fixture.store.inspect.list({}, 1_000, after);
    for (const job of page.jobs) count[job.kind as "mail" | "sms"]++;
    after = page.next;
  } while (after !== null);
  return count;
}

function isUnknown(name: string): (thrown: unknown) => boolean {
  return (thrown) =>
    thrown instanceof OutliveError && thrown.code === ErrorCode.kindUnknown && thrown.message.includes(`"${name}"`);
}
