// What the port promises about the small writes of a running attempt: each under its own fence, each whole, none by a zombie.
import assert from "node:assert/strict";
import { draft, GRACE_MS, kind, names, TIMEOUT_MS } from "./drafts.ts";
import { answers, type Hand, NO_ROOM, roomFor, SETTLE } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";
import type { ClaimedJob } from "../../core/job.ts";
import type { AttemptWrite } from "../../core/store.ts";

const WRITES: readonly AttemptWrite[] = [
  { type: "step", name: "render", result: "1" },
  { type: "progress", value: "50" },
  { type: "log", message: "half-way" },
  { type: "heartbeat" },
  { type: "enqueue", drafts: [draft("child")] },
];

export function specifyAttemptWrites(specify: Specify): void {
  specify(
    "steps, progress and log of a running attempt are kept, with their fence and in their order",
    async (scene) => {
      const { worker, job } = await running(scene);
      await scene.clock.advance(5);
      const written = await worker.record(
        job,
        { type: "step", name: "fetch", result: '{"n":1}' },
        { type: "step", name: "render", result: null },
        { type: "progress", value: "10" },
        { type: "progress", value: '{"done":20}' },
        { type: "log", message: "one" },
        { type: "log", message: "two" },
      );
      assert.deepEqual(answers(written), Array(6).fill("applied"));
      const { steps, progress, log } = await scene.job("a");
      const at = scene.clock.now();
      assert.deepEqual(steps, [
        { name: "fetch", result: { n: 1 }, at, fence: 1 },
        { name: "render", result: null, at, fence: 1 },
      ]);
      assert.deepEqual(progress, { done: 20 });
      assert.deepEqual(log, [
        { at, fence: 1, message: "one" },
        { at, fence: 1, message: "two" },
      ]);
    },
  );

  for (const write of WRITES) {
    specify(`museum 3: a ${write.type} by a zombie changes nothing, and says who owns the job`, async (scene) => {
      const { worker: zombie, job } = await running(scene);
      await scene.bury(zombie);
      const owner = await scene.worker("owner");
      await owner.next();
      await scene.clock.advance(1_000);
      const before = await scene.job("a");
      const [answer] = await zombie.record(job, write);
      assert.ok(answer?.is === "stale");
      const { tried, state, worker, fence, lease } = answer.stale;
      assert.deepEqual([state, worker, fence, lease], ["running", "owner", 2, job.lease]);
      assert.ok(tried.startsWith(write.type), tried);
      const after = await scene.job("a");
      assert.deepEqual({ ...after, history: before.history }, before);
      assert.equal(after.history.at(-1)?.event, "write.rejected");
      assert.deepEqual(await scene.states("child"), ["missing"]);
    });

    specify(`a ${write.type} after the attempt's own end is stale`, async (scene) => {
      const { worker, job } = await running(scene);
      await worker.settle(SETTLE.succeed(job));
      const before = await scene.job("a");
      assert.deepEqual(answers(await worker.record(job, write)), ["stale"]);
      assert.deepEqual({ ...(await scene.job("a")), history: [] }, { ...before, history: [] });
      assert.deepEqual(await scene.states("child"), ["missing"]);
    });
  }

  specify("of several writes in one call each stands under its own fence", async (scene) => {
    await scene.enqueue("a", "b");
    const worker = await scene.worker("w");
    const [a, b] = await worker.claim(2);
    await worker.settle(SETTLE.release(a!));
    const written = await scene.store.record([
      { lease: a!.lease, write: { type: "progress", value: "1" } },
      { lease: b!.lease, write: { type: "progress", value: "2" } },
    ]);
    assert.deepEqual(answers(written), ["stale", "applied"]);
    assert.deepEqual([(await scene.job("a")).progress, (await scene.job("b")).progress], [null, 2]);
  });

  specify("a call of which one part can't be written writes nothing at all", async (scene) => {
    const { worker, job } = await running(scene);
    const wrong: AttemptWrite = { type: "enqueue", drafts: [draft("b"), draft({ id: "c", kind: "never-declared" })] };
    await assert.rejects(worker.record(job, { type: "progress", value: "1" }, wrong));
    assert.equal((await scene.job("a")).progress, null);
    assert.deepEqual(await scene.states("b", "c"), ["missing", "missing"]);
  });

  specify("a step that was written before keeps its first result", async (scene) => {
    const { worker, job } = await running(scene);
    await worker.record(job, { type: "step", name: "render", result: "1" });
    assert.deepEqual(answers(await worker.record(job, { type: "step", name: "render", result: "2" })), ["applied"]);
    assert.deepEqual(
      (await scene.job("a")).steps.map((step) => step.result),
      [1],
    );
  });

  specify(
    "a new step sets the job's crashes back, and a later settlement of the attempt does not bring them up again",
    async (scene) => {
      await scene.enqueue("a");
      const job = await claimedAfterCrash(scene);
      assert.deepEqual([job.counters.crashes, job.counters.blamed], [1, 1]);
      const worker = await scene.worker("w");
      await scene.store.record([{ lease: job.lease, write: { type: "step", name: "render", result: null } }]);
      assert.deepEqual(crashesOf(await scene.job("a")), [0, 0]);
      await scene.store.settleAndClaim("after-crash", [SETTLE.release(job)], NO_ROOM);
      assert.deepEqual(crashesOf(await scene.job("a")), [0, 0]);
      assert.equal((await worker.next()).counters.crashes, 0);
    },
  );

  specify("a step that an earlier attempt wrote is no progress: the crashes stay", async (scene) => {
    const { worker, job } = await running(scene);
    const step: AttemptWrite = { type: "step", name: "render", result: "1" };
    await worker.record(job, step);
    await scene.bury(worker);
    const next = await scene.worker("next");
    await next.record(await next.next(), step);
    assert.deepEqual(crashesOf(await scene.job("a")), [1, 1]);
  });

  specify("museum 5: a job that beats keeps its deadline one timeout ahead, however long it runs", async (scene) => {
    const { worker, job } = await running(scene);
    for (let beat = 0; beat < 5; beat++) {
      await scene.clock.advance(TIMEOUT_MS - 1);
      assert.deepEqual(answers(await worker.record(job, { type: "heartbeat" })), ["applied"]);
      assert.equal((await scene.job("a")).deadlineAt, scene.clock.now() + TIMEOUT_MS);
      assert.deepEqual(await scene.store.overdue({ marginMs: 0, limit: 10 }), []);
    }
    await scene.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
    assert.ok((await scene.store.beat("w", { loopLagMs: 0 })).overdueMs !== null);
  });

  specify("a job that beats does not get beyond the longest run that its kind allows", async (scene) => {
    await scene.declare(kind("mail", { maxRuntimeMs: TIMEOUT_MS + 10_000 }));
    const { worker, job } = await running(scene);
    const startedAt = scene.clock.now();
    for (const sinceStart of [5_000, 50_000]) {
      await scene.clock.advance(startedAt + sinceStart - scene.clock.now());
      await worker.record(job, { type: "heartbeat" });
      const expected = startedAt + Math.min(sinceStart, 10_000) + TIMEOUT_MS;
      assert.equal((await scene.job("a")).deadlineAt, expected);
    }
  });

  specify("a job without a timeout that beats still has no deadline", async (scene) => {
    await scene.declare(kind("endless", { timeoutMs: null }));
    await scene.enqueue({ id: "a", kind: "endless" });
    const worker = await scene.worker("w");
    const job = await worker.next(roomFor(1, ["endless"]));
    assert.deepEqual(answers(await worker.record(job, { type: "heartbeat" })), ["applied"]);
    assert.equal((await scene.job("a")).deadlineAt, null);
  });

  specify(
    "children of an attempt are there at once, and a replay of them by a later attempt adds nothing",
    async (scene) => {
      const { worker, job } = await running(scene);
      const children: AttemptWrite = { type: "enqueue", drafts: [draft("a/1"), draft({ id: "a/2", kind: "sms" })] };
      const [first] = await worker.record(job, children);
      assert.ok(first?.is === "applied");
      assert.deepEqual(first.enqueued, [
        { id: "a/1", created: true },
        { id: "a/2", created: true },
      ]);
      await scene.bury(worker);
      const next = await scene.worker("next");
      const claimed = await next.claim(9);
      const again = claimed.find(({ lease }) => lease.jobId === "a");
      const [second] = await next.record(again!, children);
      assert.ok(second?.is === "applied");
      assert.deepEqual(
        second.enqueued?.map(({ created }) => created),
        [false, false],
      );
    },
  );

  specify("a log keeps its latest lines, and at least a hundred of them", async (scene) => {
    const { worker, job } = await running(scene);
    const lines = names("line ", 1_500);
    await worker.record(job, ...lines.map((message): AttemptWrite => ({ type: "log", message })));
    const kept = (await scene.job("a")).log.map(({ message }) => message);
    assert.ok(kept.length >= 100);
    assert.deepEqual(kept, lines.slice(-kept.length));
  });
}

async function running(scene: Scene): Promise<{ worker: Hand; job: ClaimedJob }> {
  await scene.enqueue("a");
  const worker = await scene.worker("w");
  return { worker, job: await worker.next() };
}

/** The next job after one death while it ran alone, claimed again by the worker `after-crash`. */
async function claimedAfterCrash(scene: Scene): Promise<ClaimedJob> {
  const victim = await scene.worker("victim");
  await victim.next();
  await scene.bury(victim);
  return (await scene.worker("after-crash")).next();
}

function crashesOf(job: { counters: { crashes: number; blamed: number } }): readonly number[] {
  return [job.counters.crashes, job.counters.blamed];
}
