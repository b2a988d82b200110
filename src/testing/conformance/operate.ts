// What the port promises to operators: cancel, redrive and pause, what they return, and that a key still has only one
// holder.
import assert from "node:assert/strict";
import type { ClaimedJob, JobState } from "../../job/job.ts";
import {
  answers,
  type TestWorker,
  idsOf,
  kind,
  NO_ROOM,
  roomFor,
  type Fixture,
  SETTLE,
  type SettleName,
  type Specify,
} from "./fixture.ts";

const ENDED_BY: readonly (readonly [JobState, SettleName])[] = [
  ["succeeded", "succeed"],
  ["dead", "failForGood"],
  ["cancelled", "endCancelled"],
];

export function specifyOperate(specify: Specify): void {
  specify("a queued job that is cancelled never runs, and its history says who did it", async (fixture) => {
    await fixture.enqueue("a", { id: "later", delayMs: 1_000 });
    for (const id of ["a", "later"]) {
      assert.deepEqual(await fixture.store.operate.cancel(id, "ann"), { is: "applied", state: "cancelled" });
      const job = await fixture.job(id);
      assert.deepEqual([job.state, job.lastOutcome, job.finishedAt], ["cancelled", "cancelled", fixture.clock.now()]);
      const [entry, ...more] = job.history;
      assert.deepEqual(
        [entry?.event, entry?.from, entry?.to, entry?.actor, more],
        ["cancel", "queued", "cancelled", "ann", []],
      );
    }
    await fixture.clock.advance(1_000);
    const turn = await (await fixture.worker("w")).turn([], roomFor(9));
    assert.deepEqual([turn.claimed, turn.nextDueInMs], [[], null]);
  });

  specify(
    "a running job that is cancelled runs on, and only its worker learns of it, with its next turn",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      const other = await fixture.worker("other");
      assert.deepEqual(await (await fixture.connect()).operate.cancel("a", "operator"), { is: "requested" });
      assert.deepEqual(
        await fixture.store.operate.cancel("a", "operator"),
        { is: "requested" },
        "also when it is asked twice",
      );
      const { state, cancelRequested } = await fixture.job("a");
      assert.deepEqual([state, cancelRequested], ["running", true]);
      assert.deepEqual((await other.turn([], NO_ROOM)).cancels, []);
      assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, ["a"]);
      assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, ["a"], "again, because an answer may be lost");
      assert.deepEqual(answers(await worker.settle(SETTLE.endCancelled(job))), ["applied"]);
      assert.deepEqual(await fixture.states("a"), ["cancelled"]);
      assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, []);
    },
  );

  specify(
    "a worker learns only of cancels of what still runs: not of a job that it settles in the same turn",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      await fixture.store.operate.cancel("a", "operator");
      const turn = await worker.turn([SETTLE.succeed(job)], NO_ROOM);
      assert.deepEqual([answers(turn.settled), turn.cancels], [["applied"], []]);
      assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, []);
      assert.deepEqual(await fixture.states("a"), ["succeeded"]);
    },
  );

  for (const name of ["fail", "release", "timeOut"] as const) {
    specify(
      `known bug 22: a job whose cancel was asked for is not queued again when its attempt ends by ${name}`,
      async (fixture) => {
        const { worker, job } = await running(fixture);
        await fixture.store.operate.cancel("a", "operator");
        assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["applied"]);
        assert.deepEqual(await fixture.states("a"), ["cancelled"]);
        assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["repeated"]);
      },
    );
  }

  specify("a cancel of a job that has ended, or of none, changes nothing and says why", async (fixture) => {
    for (const [state, name] of ENDED_BY) {
      await ended(fixture, state, name);
      assert.deepEqual(await fixture.store.operate.cancel(state, "operator"), { is: "wrong-state", state });
      assert.deepEqual(await fixture.states(state), [state]);
    }
    assert.deepEqual(await fixture.store.operate.cancel("none", "operator"), { is: "missing" });
  });

  for (const [state, name] of ENDED_BY) {
    specify(
      `a ${state} job that is redriven is queued with fresh counters, its steps and a growing fence`,
      async (fixture) => {
        const worker = await ended(fixture, state, name);
        assert.deepEqual(await fixture.store.operate.retry(state, "ann"), { is: "applied", state: "queued" });
        const job = await fixture.job(state);
        assert.deepEqual([job.state, job.finishedAt, job.result], ["queued", null, null]);
        assert.deepEqual(job.counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 });
        const entry = job.history.at(-1);
        assert.deepEqual([entry?.event, entry?.from, entry?.to, entry?.actor], ["retry", state, "queued", "ann"]);
        const again = await worker.next();
        assert.equal(again.lease.fence, 3);
        assert.deepEqual(
          again.steps.map((step) => step.name),
          ["render"],
        );
        assert.deepEqual(answers(await worker.settle(SETTLE.succeed(again))), ["applied"]);
      },
    );
  }

  specify("a quarantined job that is redriven starts without blame", async (fixture) => {
    await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    const { worker } = await running(fixture);
    await fixture.recoverAll(worker);
    const second = await fixture.worker("second");
    await second.next();
    await fixture.recoverAll(second);
    assert.deepEqual(await fixture.states("a"), ["quarantined"]);
    assert.deepEqual(await fixture.store.operate.retry("a", "operator"), { is: "applied", state: "queued" });
    assert.deepEqual((await fixture.job("a")).counters.blamed, 0);
  });

  specify("a redrive of a job that has not ended, or of none, changes nothing and says why", async (fixture) => {
    await fixture.enqueue("b");
    const worker = await fixture.worker("w");
    assert.deepEqual(await fixture.store.operate.retry("b", "operator"), { is: "wrong-state", state: "queued" });
    await worker.next();
    assert.deepEqual(await fixture.store.operate.retry("b", "operator"), { is: "wrong-state", state: "running" });
    assert.deepEqual(await fixture.store.operate.retry("none", "operator"), { is: "missing" });
  });

  specify(
    "a redrive against a key that another unfinished job holds is refused and names the holder",
    async (fixture) => {
      await fixture.enqueue({ id: "a", dedupeKey: "k" });
      await fixture.store.operate.cancel("a", "operator");
      await fixture.enqueue({ id: "b", dedupeKey: "k" });
      const held = { is: "key-held", holder: "b", dedupeKey: "k" };
      assert.deepEqual(await fixture.store.operate.retry("a", "operator"), held);
      const worker = await fixture.worker("w");
      const job = await worker.next();
      assert.deepEqual(await fixture.store.operate.retry("a", "operator"), held, "also while it runs");
      await worker.settle(SETTLE.succeed(job));
      assert.deepEqual(await fixture.store.operate.retry("a", "operator"), { is: "applied", state: "queued" });
      assert.deepEqual(
        await fixture.enqueue({ id: "c", dedupeKey: "k" }),
        [{ id: "a", created: false }],
        "it holds it again",
      );
    },
  );

  specify("of two redrives at once on two connections one applies", async (fixture) => {
    await ended(fixture, "dead", "failForGood");
    const other = await fixture.connect();
    const retried = await Promise.all([
      fixture.store.operate.retry("dead", "here"),
      other.operate.retry("dead", "there"),
    ]);
    assert.deepEqual(retried.map(({ is }) => is).toSorted(), ["applied", "wrong-state"]);
  });

  specify("a pause is shown, and a kind that was never seen can't be paused", async (fixture) => {
    assert.equal(await fixture.store.operate.setPaused("never-seen", true), false);
    assert.equal(await fixture.store.operate.setPaused("mail", true), true);
    assert.equal((await fixture.countsOf("mail")).paused, true);
    assert.equal((await fixture.countsOf("sms")).paused, false);
    assert.equal(await fixture.store.operate.setPaused("mail", true), true, "twice is once");
  });

  specify("a pause takes nothing from those who run: they settle and write as before", async (fixture) => {
    const { worker, job } = await running(fixture);
    await fixture.store.operate.setPaused("mail", true);
    assert.deepEqual(answers(await worker.record(job, { type: "progress", value: "1" })), ["applied"]);
    const turn = await worker.turn([SETTLE.release(job)], roomFor(9));
    assert.deepEqual([answers(turn.settled), idsOf(turn.claimed)], [["applied"], []]);
  });
}

async function running(fixture: Fixture): Promise<{ worker: TestWorker; job: ClaimedJob }> {
  await fixture.enqueue("a");
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next() };
}

/** A job named after the state in which it ended, after an error, a step and its second attempt. */
async function ended(fixture: Fixture, state: JobState, name: SettleName): Promise<TestWorker> {
  await fixture.enqueue(state);
  const worker = await fixture.worker(`worker-of-${state}`);
  await worker.settle(SETTLE.fail(await worker.next()));
  const job = await worker.next();
  await worker.record(job, { type: "step", name: "render", result: null });
  await worker.settle(SETTLE[name](job));
  return worker;
}
