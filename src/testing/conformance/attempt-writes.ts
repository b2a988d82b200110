// What the port promises about the small writes of a running attempt: each under its own fence, each whole, none by a zombie.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import type { AttemptWrite } from "../../stores/port.ts";
import {
  answers,
  draft,
  GRACE_MS,
  type TestWorker,
  kind,
  names,
  NO_ROOM,
  roomFor,
  type Fixture,
  SETTLE,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";

const WRITES: readonly AttemptWrite[] = [
  { type: "step", name: "render", result: "1" },
  { type: "progress", value: "50" },
  { type: "log", message: "half-way" },
  { type: "heartbeat" },
  { type: "enqueue", drafts: [draft("child")] },
];

export function specifyAttemptWrites(specify: Specify): void {
  specify(
    "steps, progress and log of a running attempt are kept, with their attempt and in their order",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      await fixture.clock.advance(5);
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
      const { steps, progress, log } = await fixture.job("a");
      const at = fixture.clock.now();
      assert.deepEqual(steps, [
        { name: "fetch", result: { n: 1 }, at, attempt: 1 },
        { name: "render", result: null, at, attempt: 1 },
      ]);
      assert.deepEqual(progress, { done: 20 });
      assert.deepEqual(log, [
        { at, attempt: 1, message: "one" },
        { at, attempt: 1, message: "two" },
      ]);
    },
  );

  for (const write of WRITES) {
    specify(`known bug 3: a ${write.type} by a zombie changes nothing, and says who owns the job`, async (fixture) => {
      const { worker: zombie, job } = await running(fixture);
      await fixture.recoverAll(zombie);
      const owner = await fixture.worker("owner");
      await owner.next();
      await fixture.clock.advance(1_000);
      const before = await fixture.job("a");
      const [answer] = await zombie.record(job, write);
      assert.ok(answer?.is === "stale");
      const { tried, state, worker, fence, lease } = answer.stale;
      assert.deepEqual([state, worker, fence, lease], ["running", "owner", 2, job.lease]);
      assert.ok(tried.startsWith(write.type), tried);
      const after = await fixture.job("a");
      assert.deepEqual({ ...after, history: before.history }, before);
      assert.equal(after.history.at(-1)?.event, "write.rejected");
      assert.deepEqual(await fixture.states("child"), ["missing"]);
    });

    specify(`a ${write.type} after the attempt's own end is stale`, async (fixture) => {
      const { worker, job } = await running(fixture);
      await worker.settle(SETTLE.succeed(job));
      const before = await fixture.job("a");
      assert.deepEqual(answers(await worker.record(job, write)), ["stale"]);
      assert.deepEqual({ ...(await fixture.job("a")), history: [] }, { ...before, history: [] });
      assert.deepEqual(await fixture.states("child"), ["missing"]);
    });
  }

  specify("of several writes in one call each stands under its own fence", async (fixture) => {
    await fixture.enqueue("a", "b");
    const worker = await fixture.worker("w");
    const [a, b] = await worker.claim(2);
    await worker.settle(SETTLE.release(a!));
    const written = await fixture.store.write([
      { lease: a!.lease, write: { type: "progress", value: "1" } },
      { lease: b!.lease, write: { type: "progress", value: "2" } },
    ]);
    assert.deepEqual(answers(written), ["stale", "applied"]);
    assert.deepEqual([(await fixture.job("a")).progress, (await fixture.job("b")).progress], [null, 2]);
  });

  specify("a call of which one part can't be written writes nothing at all", async (fixture) => {
    const { worker, job } = await running(fixture);
    const wrong: AttemptWrite = { type: "enqueue", drafts: [draft("b"), draft({ id: "c", kind: "never-declared" })] };
    await assert.rejects(worker.record(job, { type: "progress", value: "1" }, wrong));
    assert.equal((await fixture.job("a")).progress, null);
    assert.deepEqual(await fixture.states("b", "c"), ["missing", "missing"]);
  });

  specify("steps that are written at the same time each stand under their own fence", async (fixture) => {
    const ids = ["a", "b", "c", "d"];
    await fixture.enqueue(...ids);
    const worker = await fixture.worker("w");
    const jobs = await worker.claim(4);
    await worker.settle(SETTLE.succeed(jobs[1]!));
    const write = (result: string | null) => ({ type: "step", name: 'the "name"', result }) as const;
    const results = ['"1 {}"', "2", null, "4"];
    const calls = [...jobs, jobs[0]!].map(({ lease }, i) =>
      fixture.store.write([{ lease, write: write(i === 4 ? "5" : results[i]!) }]),
    );
    assert.deepEqual(
      (await Promise.all(calls)).flatMap((one) => answers(one)),
      ["applied", "stale", "applied", "applied", "applied"],
    );
    const kept = await Promise.all(ids.map(async (id) => (await fixture.job(id)).steps.map(({ result }) => result)));
    assert.deepEqual(kept, [["1 {}"], [], [null], [4]]);
  });

  specify("a step that was written before keeps its first result", async (fixture) => {
    const { worker, job } = await running(fixture);
    await worker.record(job, { type: "step", name: "render", result: "1" });
    assert.deepEqual(answers(await worker.record(job, { type: "step", name: "render", result: "2" })), ["applied"]);
    assert.deepEqual(
      (await fixture.job("a")).steps.map((step) => step.result),
      [1],
    );
  });

  specify(
    "a new step sets the job's crashes back, and a later settlement of the attempt does not bring them up again",
    async (fixture) => {
      await fixture.enqueue("a");
      const job = await claimedAfterCrashes(fixture);
      assert.deepEqual([job.counters.crashes, job.counters.blamed], [2, 1]);
      const worker = await fixture.worker("w");
      await fixture.store.write([{ lease: job.lease, write: { type: "step", name: "render", result: null } }]);
      assert.deepEqual(crashesOf(await fixture.job("a")), [0, 0]);
      await fixture.store.turn("after-crash", [SETTLE.release(job)], NO_ROOM);
      assert.deepEqual(crashesOf(await fixture.job("a")), [0, 0]);
      assert.equal((await worker.next()).counters.crashes, 0);
    },
  );

  specify("a step that an earlier attempt wrote does not count as progress: the crashes stay", async (fixture) => {
    const { worker, job } = await running(fixture);
    const step: AttemptWrite = { type: "step", name: "render", result: "1" };
    await worker.record(job, step);
    await fixture.recoverAll(worker);
    const next = await claimedAfterCrashes(fixture);
    await fixture.store.write([{ lease: next.lease, write: step }]);
    assert.deepEqual(crashesOf(await fixture.job("a")), [3, 2]);
  });

  specify(
    "known bug 5: a job that beats keeps its deadline one timeout ahead, however long it runs",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      for (let beat = 0; beat < 5; beat++) {
        await fixture.clock.advance(TIMEOUT_MS - 1);
        assert.deepEqual(answers(await worker.record(job, { type: "heartbeat" })), ["applied"]);
        assert.equal((await fixture.job("a")).deadlineAt, fixture.clock.now() + TIMEOUT_MS);
        assert.deepEqual((await fixture.store.heldBy({ overdue: { marginMs: 0 }, limit: 10 })).jobs, []);
      }
      await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
      assert.ok((await fixture.store.beat("w", { loopLagMs: 0 })).overdueMs !== null);
    },
  );

  specify("a job that beats does not get beyond the longest run that its kind allows", async (fixture) => {
    await fixture.declare(kind("mail", { maxRuntimeMs: TIMEOUT_MS + 10_000 }));
    const { worker, job } = await running(fixture);
    const startedAt = fixture.clock.now();
    for (const sinceStart of [5_000, 50_000]) {
      await fixture.clock.advance(startedAt + sinceStart - fixture.clock.now());
      await worker.record(job, { type: "heartbeat" });
      const expected = startedAt + Math.min(sinceStart, 10_000) + TIMEOUT_MS;
      assert.equal((await fixture.job("a")).deadlineAt, expected);
    }
  });

  specify("a job without a timeout that beats still has no deadline", async (fixture) => {
    await fixture.declare(kind("endless", { timeoutMs: null }));
    await fixture.enqueue({ id: "a", kind: "endless" });
    const worker = await fixture.worker("w");
    const job = await worker.next(roomFor(1, ["endless"]));
    assert.deepEqual(answers(await worker.record(job, { type: "heartbeat" })), ["applied"]);
    assert.equal((await fixture.job("a")).deadlineAt, null);
  });

  specify(
    "children of an attempt are there at once, and a replay of them by a later attempt adds nothing",
    async (fixture) => {
      const { worker, job } = await running(fixture);
      const children: AttemptWrite = { type: "enqueue", drafts: [draft("a/1"), draft({ id: "a/2", kind: "sms" })] };
      const [first] = await worker.record(job, children);
      assert.ok(first?.is === "applied");
      assert.deepEqual(first.enqueued, [
        { id: "a/1", created: true },
        { id: "a/2", created: true },
      ]);
      await fixture.recoverAll(worker);
      const next = await fixture.worker("next");
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

  specify("a log keeps its latest lines, and at least a hundred of them", async (fixture) => {
    const { worker, job } = await running(fixture);
    const lines = names("line ", 1_500);
    await worker.record(job, ...lines.map((message): AttemptWrite => ({ type: "log", message })));
    const kept = (await fixture.job("a")).log.map(({ message }) => message);
    assert.ok(kept.length >= 100);
    assert.deepEqual(kept, lines.slice(-kept.length));
  });
}

async function running(fixture: Fixture): Promise<{ worker: TestWorker; job: ClaimedJob }> {
  await fixture.enqueue("a");
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next() };
}

/** The next job after two deaths, at the second of which it was a suspect and alone, claimed again by the worker `after-crash`. */
async function claimedAfterCrashes(fixture: Fixture): Promise<ClaimedJob> {
  for (const id of ["first", "second"]) {
    const victim = await fixture.worker(id);
    await victim.next();
    await fixture.recoverAll(victim);
  }
  return (await fixture.worker("after-crash")).next();
}

function crashesOf(job: { counters: { crashes: number; blamed: number } }): readonly number[] {
  return [job.counters.crashes, job.counters.blamed];
}
