// What the port promises about the end of an attempt: it is accepted once, repeated without effect, refused when it is
// stale, and durable once the store has responded.
import assert from "node:assert/strict";
import type { JobDetails, JobState, Outcome } from "../../job/job.ts";
import {
  answers,
  expireOnce,
  GRACE_MS,
  TestWorker,
  idsOf,
  names,
  roomFor,
  type Fixture,
  SETTLE,
  SETTLE_NAMES,
  type SettleName,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";

const WRITTEN: Readonly<Record<SettleName, { to: JobState; outcome: Outcome; counted: object; event: string | null }>> =
  {
    succeed: { to: "succeeded", outcome: "succeeded", counted: {}, event: null },
    fail: { to: "queued", outcome: "failed", counted: { errors: 1 }, event: "fail" },
    failForGood: { to: "dead", outcome: "failed", counted: { errors: 1 }, event: "fail" },
    timeOut: { to: "queued", outcome: "timed-out", counted: { timeouts: 1 }, event: "timeOut" },
    release: { to: "queued", outcome: "released", counted: { interruptions: 1 }, event: "release" },
    releaseUnstarted: { to: "queued", outcome: "released", counted: { interruptions: 1 }, event: "release" },
    endCancelled: { to: "cancelled", outcome: "cancelled", counted: {}, event: "endCancelled" },
    refuse: { to: "dead", outcome: "rejected", counted: {}, event: "refuse" },
  };

export function specifySettle(specify: Specify): void {
  specify("an entry of the history says when its attempt started and who ran it", async (fixture) => {
    const { worker, job } = await running(fixture);
    const first = fixture.clock.now();
    await fixture.clock.advance(10);
    await worker.settle(SETTLE.fail(job));
    await fixture.clock.advance(60_000);
    const other = await fixture.worker("other");
    await other.next();
    const second = fixture.clock.now();
    await fixture.clock.advance(10);
    await fixture.recoverAll(other);
    await fixture.store.operate.cancel("a", "ann");
    const { history } = await fixture.job("a");
    assert.deepEqual(
      history.map(({ event, attempt, startedAt, owner }) => [event, attempt, startedAt, owner]),
      [
        ["fail", 1, first, "w"],
        ["crash", 2, second, "other"],
        ["cancel", 2, second, "other"],
      ],
    );
  });

  for (const name of SETTLE_NAMES) {
    const { to, outcome, counted, event } = WRITTEN[name];

    specify(
      `an attempt that is settled by ${name} is written whole, and the same settlement again is repeated`,
      async (fixture) => {
        const { worker, job } = await running(fixture);
        await fixture.clock.advance(10);
        const settlement = SETTLE[name](job);
        assert.deepEqual(answers(await worker.settle(settlement)), ["applied"]);
        const after = await fixture.job("a");
        assert.deepEqual([after.state, after.lastOutcome, after.attempt], [to, outcome, 1]);
        assert.deepEqual(after.counters, {
          errors: 0,
          crashes: 0,
          blamed: 0,
          timeouts: 0,
          interruptions: 0,
          losses: 0,
          ...counted,
        });
        assert.equal(after.finishedAt, to === "queued" ? null : fixture.clock.now());
        assert.deepEqual(after.error, settlement.change.error);
        assert.deepEqual(
          after.history.map((entry) => [entry.event, entry.from, entry.to, entry.actor, entry.attempt]),
          event === null ? [] : [[event, "running", to, "worker/w", 1]],
        );
        await fixture.clock.advance(10);
        assert.deepEqual(answers(await worker.settle(settlement, settlement)), ["repeated", "repeated"]);
        assert.deepEqual(await fixture.job("a"), after);
        assert.equal((await fixture.countsOf("mail")).succeeded, to === "succeeded" ? 1 : 0);
      },
    );

    specify(
      `known bug 3: a zombie that settles by ${name} after its job was taken changes nothing and is named`,
      async (fixture) => {
        const { worker: zombie, job } = await running(fixture);
        await fixture.recoverAll(zombie);
        const owner = await fixture.worker("owner");
        const taken = await owner.next();
        const before = await fixture.job("a");
        const [answer] = await zombie.settle(SETTLE[name](job));
        assert.equal(answer!.is, "stale");
        const { stale } = answer as Extract<typeof answer, { is: "stale" }>;
        const { change } = SETTLE[name](job);
        const now = { state: "running", worker: "owner", epoch: taken.lease.epoch, fence: 2 };
        assert.deepEqual(stale, { lease: job.lease, tried: change.name, ...now });
        const after = await fixture.job("a");
        assert.deepEqual(withoutHistory(after), withoutHistory(before));
        assert.deepEqual(after.history.slice(0, -1), before.history);
        const refusal = after.history.at(-1)!;
        assert.deepEqual([refusal.event, refusal.actor, refusal.attempt], ["write.rejected", "worker/w", 1]);
        assert.deepEqual(answers(await owner.settle(SETTLE.succeed(taken))), ["applied"]);
        assert.equal((await fixture.countsOf("mail")).succeeded, 1);
      },
    );
  }

  for (const name of SETTLE_NAMES.filter((each) => WRITTEN[each].to === "queued")) {
    specify(
      `a settlement by ${name} that is repeated after a newer attempt has begun says repeated and leaves that alone`,
      async (fixture) => {
        const { worker, job } = await running(fixture);
        await worker.settle(SETTLE[name](job));
        const newer = await worker.next();
        const before = await fixture.job("a");
        assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["repeated"]);
        assert.deepEqual(await fixture.job("a"), before);
        assert.deepEqual(answers(await worker.settle(SETTLE.succeed(newer))), ["applied"]);
      },
    );

    specify(
      `a settlement by ${name} that is repeated after an operator ended the job says repeated`,
      async (fixture) => {
        const { worker, job } = await running(fixture);
        await worker.settle(SETTLE[name](job));
        await fixture.store.operate.cancel("a", "operator");
        const before = await fixture.job("a");
        assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["repeated"]);
        assert.deepEqual(await fixture.job("a"), before);
      },
    );
  }

  specify("a settlement that is repeated after an operator redrove the job says repeated", async (fixture) => {
    for (const name of ["succeed", "failForGood", "endCancelled", "refuse"] as const) {
      await fixture.enqueue(name);
      const worker = await fixture.worker(`worker-${name}`);
      const job = await worker.next();
      await worker.settle(SETTLE[name](job));
      await fixture.store.operate.retry(name, "operator");
      assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["repeated"], name);
      assert.deepEqual(await fixture.states(name), ["queued"]);
      await fixture.store.operate.cancel(name, "operator");
    }
  });

  specify("a success that is repeated after it was redriven and begun again says repeated", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(SETTLE.succeed(job));
    await fixture.store.operate.retry("a", "operator");
    const newer = await worker.next();
    const before = await fixture.job("a");
    assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["repeated"]);
    assert.deepEqual(await fixture.job("a"), before);
    assert.deepEqual(answers(await worker.settle(SETTLE.fail(job))), ["stale"], "it had not failed");
    assert.deepEqual(answers(await worker.settle(SETTLE.succeed(newer))), ["applied"]);
  });

  specify(
    "known bug 3: a zombie whose job was ended for it in the same way is stale, and repeats nothing",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      const [a, b] = await worker.claim(2);
      await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
      await fixture.store.operate.cancel("b", "operator");
      await expireOnce(fixture.store, 0, 10);
      assert.deepEqual(await fixture.states("a", "b"), ["queued", "cancelled"]);
      assert.deepEqual(answers(await worker.settle(SETTLE.timeOut(a!), SETTLE.endCancelled(b!))), ["stale", "stale"]);
      assert.equal((await fixture.job("a")).counters.timeouts, 1);
    },
  );

  specify("an attempt that ended one way can't end another way", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(SETTLE.succeed(job, "1"));
    assert.deepEqual(answers(await worker.settle(SETTLE.fail(job), SETTLE.release(job), SETTLE.refuse(job))), [
      "stale",
      "stale",
      "stale",
    ]);
    const after = await fixture.job("a");
    assert.deepEqual([after.state, after.result, after.counters.errors], ["succeeded", 1, 0]);
  });

  specify(
    "a settlement with another epoch, another worker or another fence is stale, and one of no job says missing",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      await fixture.worker("other");
      const forged = [
        { ...job.lease, epoch: job.lease.epoch + 1 },
        { ...job.lease, worker: "other" },
        { ...job.lease, worker: "nobody" },
        { ...job.lease, fence: job.lease.fence + 1 },
        { ...job.lease, fence: 0 },
      ];
      for (const lease of forged) {
        assert.deepEqual(answers(await worker.settle({ ...SETTLE.succeed(job), lease })), ["stale"]);
      }
      const [missing] = await worker.settle({
        ...SETTLE.succeed(job),
        lease: { ...job.lease, row: 999, jobId: "none" },
      });
      assert.ok(missing?.is === "stale" && missing.stale.state === "missing");
      assert.deepEqual(await fixture.states("a"), ["running"]);
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["applied"]);
    },
  );

  specify(
    "one turn settles all that holds, refuses the rest, and claims into the room in the same step",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c", "d");
      const worker = await fixture.worker("w");
      const [a, b, c] = await worker.claim(3);
      await worker.settle(SETTLE.release(b!));
      const turn = await worker.turn([SETTLE.succeed(a!), SETTLE.fail(b!), SETTLE.release(c!)], roomFor(9));
      assert.deepEqual(answers(turn.settled), ["applied", "stale", "applied"]);
      assert.deepEqual(idsOf(turn.claimed), ["b", "c", "d"]);
      assert.deepEqual(
        turn.claimed.map((job) => job.lease.fence),
        [2, 2, 1],
      );
    },
  );

  specify(
    "of many jobs that end in one turn each has its own answer: one that was released is stale, and the next time all others are repeated",
    async (fixture) => {
      const ids = names("j", 30);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(30);
      assert.deepEqual(idsOf(jobs), ids);
      await worker.settle(SETTLE.release(jobs[12]!, 60_000));
      const all = jobs.map((job) => SETTLE.succeed(job));
      const except = (others: string): string[] => ids.map((_, i) => (i === 12 ? "stale" : others));
      assert.deepEqual(answers(await worker.settle(...all)), except("applied"));
      assert.deepEqual(answers(await worker.settle(...all)), except("repeated"));
      assert.deepEqual(
        await fixture.states(...ids),
        ids.map((_, i) => (i === 12 ? "queued" : "succeeded")),
      );
      assert.equal((await fixture.countsOf("mail")).succeeded, 29);
    },
  );

  specify(
    "many jobs that end in one turn, in whatever order and with whatever belongs to them, are all written",
    async (fixture) => {
      const ids = names("j", 60);
      // Every third of the first half may expire, and all of the second.
      await fixture.enqueue(...ids.map((id, i) => ({ id, ...((i >= 30 || i % 3 === 0) && { expiresMs: 60_000 }) })));
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(60);
      const mixed = jobs.slice(0, 30).map((job) => SETTLE.succeed(job));
      const alike = jobs.slice(30).map((job) => SETTLE.succeed(job));
      // The first of each is settled with a result, so that it is not one of the neighbours.
      const first = SETTLE.succeed(jobs[0]!, '"first"');
      const settled = await worker.settle(first, ...mixed.slice(1), ...alike.toReversed());
      assert.deepEqual(
        answers(settled),
        ids.map(() => "applied"),
      );
      assert.deepEqual(
        await fixture.states(...ids),
        ids.map(() => "succeeded"),
      );
      // What expires is looked for by the next turns: an end is an end.
      await fixture.clock.advance(61_000);
      await worker.turn([], roomFor(1));
      const { succeeded, cancelled } = await fixture.countsOf("mail");
      assert.deepEqual([succeeded, cancelled], [60, 0]);
    },
  );

  specify("a failed job waits as long as its settlement says and is then claimed again", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.settle(SETTLE.fail(job, 7_000));
    assert.equal((await fixture.job("a")).runAt, fixture.clock.now() + 7_000);
    assert.deepEqual(await worker.claim(9), []);
    await fixture.clock.advance(7_000);
    assert.equal((await worker.next()).lastOutcome, "failed");
  });

  specify(
    "a released job waits as long as its settlement says and is then claimed again, at no cost",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      await worker.settle(SETTLE.release(job, 7_000));
      assert.equal((await fixture.job("a")).runAt, fixture.clock.now() + 7_000);
      assert.deepEqual(await worker.claim(9), []);
      await fixture.clock.advance(7_000);
      const again = await worker.next();
      assert.deepEqual([again.lastOutcome, again.counters.errors, again.counters.interruptions], ["released", 0, 1]);
    },
  );

  specify(
    "known bug 21: a settlement that was answered is known to every connection, and the job never runs again",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      await worker.settle(SETTLE.succeed(job, '{"sent":true}'));
      const other = await fixture.connect();
      const seen = await other.inspect.get("a");
      assert.deepEqual([seen?.state, seen?.result], ["succeeded", { sent: true }]);
      await fixture.recoverAll(worker);
      const next = await fixture.worker("next", { store: other });
      assert.deepEqual(await next.claim(9), []);
      assert.deepEqual(await fixture.states("a"), ["succeeded"]);
    },
  );

  specify("a settlement that arrives twice at once on two connections is applied once", async (fixture) => {
    const { worker, job } = await running(fixture);
    const twin = new TestWorker(await fixture.connect(), worker.id, worker.epoch);
    const settled = await Promise.all([worker.settle(SETTLE.fail(job)), twin.settle(SETTLE.fail(job))]);
    assert.deepEqual(answers(settled.flat()).toSorted(), ["applied", "repeated"]);
    assert.equal((await fixture.job("a")).counters.errors, 1);
  });
}

async function running(
  fixture: Fixture,
): Promise<{ worker: TestWorker; job: Awaited<ReturnType<TestWorker["next"]>> }> {
  await fixture.enqueue("a");
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next() };
}

function withoutHistory(job: JobDetails): Omit<JobDetails, "history"> {
  const { history: _, ...rest } = job;
  return rest;
}
