// What the port promises to people: cancel, redrive and pause, what they answer, and that a key has one holder also then.
import assert from "node:assert/strict";
import { kind } from "./drafts.ts";
import { answers, type Hand, idsOf, NO_ROOM, roomFor, SETTLE, type SettleName } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";
import type { ClaimedJob, JobState } from "../../core/job.ts";

const ENDED_BY: readonly (readonly [JobState, SettleName])[] = [
  ["succeeded", "succeed"],
  ["dead", "failForGood"],
  ["cancelled", "endCancelled"],
];

export function specifyOperate(specify: Specify): void {
  specify("a queued job that is cancelled never runs, and its history says who did it", async (scene) => {
    await scene.enqueue("a", { id: "later", delayMs: 1_000 });
    for (const id of ["a", "later"]) {
      assert.deepEqual(await scene.store.cancel(id, "ann"), { is: "applied", state: "cancelled" });
      const job = await scene.job(id);
      assert.deepEqual([job.state, job.lastOutcome, job.finishedAt], ["cancelled", "cancelled", scene.clock.now()]);
      const [entry, ...more] = job.history;
      assert.deepEqual(
        [entry?.event, entry?.from, entry?.to, entry?.actor, more],
        ["cancel", "queued", "cancelled", "ann", []],
      );
    }
    await scene.clock.advance(1_000);
    const turn = await (await scene.worker("w")).turn([], roomFor(9));
    assert.deepEqual([turn.claimed, turn.nextDueInMs], [[], null]);
  });

  specify("a running job that is cancelled runs on, and its worker alone is told, by its next turn", async (scene) => {
    const { worker, job } = await running(scene);
    const other = await scene.worker("other");
    assert.deepEqual(await (await scene.connect()).cancel("a", "operator"), { is: "requested" });
    assert.deepEqual(await scene.store.cancel("a", "operator"), { is: "requested" }, "also when it is asked twice");
    const { state, cancelRequested } = await scene.job("a");
    assert.deepEqual([state, cancelRequested], ["running", true]);
    assert.deepEqual((await other.turn([], NO_ROOM)).cancels, []);
    assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, ["a"]);
    assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, ["a"], "again, because an answer may be lost");
    assert.deepEqual(answers(await worker.settle(SETTLE.endCancelled(job))), ["applied"]);
    assert.deepEqual(await scene.states("a"), ["cancelled"]);
    assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, []);
  });

  specify(
    "a worker is told only of cancels of what still runs: not of a job that it settles in the same turn",
    async (scene) => {
      const { worker, job } = await running(scene);
      await scene.store.cancel("a", "operator");
      const turn = await worker.turn([SETTLE.succeed(job)], NO_ROOM);
      assert.deepEqual([answers(turn.settled), turn.cancels], [["applied"], []]);
      assert.deepEqual((await worker.turn([], NO_ROOM)).cancels, []);
      assert.deepEqual(await scene.states("a"), ["succeeded"]);
    },
  );

  for (const name of ["fail", "release", "timeOut"] as const) {
    specify(
      `museum 22: a job whose cancel was asked for is not queued again when its attempt ends by ${name}`,
      async (scene) => {
        const { worker, job } = await running(scene);
        await scene.store.cancel("a", "operator");
        assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["applied"]);
        assert.deepEqual(await scene.states("a"), ["cancelled"]);
        assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["repeated"]);
      },
    );
  }

  specify("a cancel of a job that has ended, or of none, changes nothing and says why", async (scene) => {
    for (const [state, name] of ENDED_BY) {
      await ended(scene, state, name);
      assert.deepEqual(await scene.store.cancel(state, "operator"), { is: "wrong-state", state });
      assert.deepEqual(await scene.states(state), [state]);
    }
    assert.deepEqual(await scene.store.cancel("none", "operator"), { is: "missing" });
  });

  for (const [state, name] of ENDED_BY) {
    specify(
      `a ${state} job that is redriven is queued with fresh counters, its steps and a growing fence`,
      async (scene) => {
        const worker = await ended(scene, state, name);
        assert.deepEqual(await scene.store.retry(state, "ann"), { is: "applied", state: "queued" });
        const job = await scene.job(state);
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

  specify("a quarantined job that is redriven starts without blame", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    const { worker } = await running(scene);
    await scene.bury(worker);
    assert.deepEqual(await scene.states("a"), ["quarantined"]);
    assert.deepEqual(await scene.store.retry("a", "operator"), { is: "applied", state: "queued" });
    assert.deepEqual((await scene.job("a")).counters.blamed, 0);
  });

  specify("a redrive of a job that has not ended, or of none, changes nothing and says why", async (scene) => {
    await scene.enqueue("b");
    const worker = await scene.worker("w");
    assert.deepEqual(await scene.store.retry("b", "operator"), { is: "wrong-state", state: "queued" });
    await worker.next();
    assert.deepEqual(await scene.store.retry("b", "operator"), { is: "wrong-state", state: "running" });
    assert.deepEqual(await scene.store.retry("none", "operator"), { is: "missing" });
  });

  specify(
    "a redrive against a key that another unfinished job holds is refused and names the holder",
    async (scene) => {
      await scene.enqueue({ id: "a", dedupeKey: "k" });
      await scene.store.cancel("a", "operator");
      await scene.enqueue({ id: "b", dedupeKey: "k" });
      const held = { is: "key-held", holder: "b", dedupeKey: "k" };
      assert.deepEqual(await scene.store.retry("a", "operator"), held);
      const worker = await scene.worker("w");
      const job = await worker.next();
      assert.deepEqual(await scene.store.retry("a", "operator"), held, "also while it runs");
      await worker.settle(SETTLE.succeed(job));
      assert.deepEqual(await scene.store.retry("a", "operator"), { is: "applied", state: "queued" });
      assert.deepEqual(
        await scene.enqueue({ id: "c", dedupeKey: "k" }),
        [{ id: "a", created: false }],
        "it holds it again",
      );
    },
  );

  specify("of two redrives at once on two connections one applies", async (scene) => {
    await ended(scene, "dead", "failForGood");
    const other = await scene.connect();
    const retried = await Promise.all([scene.store.retry("dead", "here"), other.retry("dead", "there")]);
    assert.deepEqual(retried.map(({ is }) => is).toSorted(), ["applied", "wrong-state"]);
  });

  specify("a pause is shown, and a kind that was never seen can't be paused", async (scene) => {
    assert.equal(await scene.store.setPaused("never-seen", true), false);
    assert.equal(await scene.store.setPaused("mail", true), true);
    assert.equal((await scene.countsOf("mail")).paused, true);
    assert.equal((await scene.countsOf("sms")).paused, false);
    assert.equal(await scene.store.setPaused("mail", true), true, "twice is once");
  });

  specify("a pause takes nothing from those who run: they settle and write as before", async (scene) => {
    const { worker, job } = await running(scene);
    await scene.store.setPaused("mail", true);
    assert.deepEqual(answers(await worker.record(job, { type: "progress", value: "1" })), ["applied"]);
    const turn = await worker.turn([SETTLE.release(job)], roomFor(9));
    assert.deepEqual([answers(turn.settled), idsOf(turn.claimed)], [["applied"], []]);
  });
}

async function running(scene: Scene): Promise<{ worker: Hand; job: ClaimedJob }> {
  await scene.enqueue("a");
  const worker = await scene.worker("w");
  return { worker, job: await worker.next() };
}

/** A job named after the state in which it ended, after an error, a step and its second attempt. */
async function ended(scene: Scene, state: JobState, name: SettleName): Promise<Hand> {
  await scene.enqueue(state);
  const worker = await scene.worker(`worker-of-${state}`);
  await worker.settle(SETTLE.fail(await worker.next()));
  const job = await worker.next();
  await worker.record(job, { type: "step", name: "render", result: null });
  await worker.settle(SETTLE[name](job));
  return worker;
}
