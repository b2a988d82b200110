// What the port promises about retention: it deletes only what is finished and old, with everything that belongs to it,
// and no number is reused.
import assert from "node:assert/strict";
import { answers, names, type Fixture, SETTLE, type Specify } from "./fixture.ts";

const DAY_MS = 86_400_000;
const KEEP = { finishedOlderThanMs: DAY_MS, incidentsOlderThanMs: DAY_MS, limit: 100 };

export function specifyPurge(specify: Specify): void {
  specify(
    "HR-14 only jobs that finished longer ago than the retention go, whatever their state, with all that belongs to them",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c", "running", "queued", { id: "later", delayMs: 10 * DAY_MS }, "young");
      const worker = await fixture.worker("w");
      const [a, b, c, running] = await worker.claim(4);
      await worker.record(a!, { type: "step", name: "s", result: null }, { type: "log", message: "l" });
      await worker.settle(SETTLE.succeed(a!), SETTLE.failForGood(b!), SETTLE.endCancelled(c!));
      await fixture.clock.advance(DAY_MS);
      await fixture.store.operate.cancel("young", "operator");
      await fixture.enqueue("last");
      assert.deepEqual(await fixture.store.purge(KEEP), { jobs: 0, incidents: 0, more: false });
      await fixture.clock.advance(1);
      assert.deepEqual(await fixture.store.purge(KEEP), { jobs: 3, incidents: 0, more: false });
      assert.deepEqual(await fixture.states("a", "b", "c"), ["missing", "missing", "missing"]);
      assert.deepEqual(await fixture.states("running", "queued", "later", "young", "last"), [
        "running",
        "queued",
        "queued",
        "cancelled",
        "queued",
      ]);
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(running!))), ["applied"]);
      assert.equal((await fixture.store.inspect.list({}, 100, null)).jobs.length, 5);
    },
  );

  specify("a purged id is new again, and finds nothing of the old job's", async (fixture) => {
    await fixture.enqueue("a", "last");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await worker.record(job, { type: "step", name: "s", result: "1" }, { type: "log", message: "l" });
    await worker.settle(SETTLE.fail(job), SETTLE.fail(job));
    await worker.settle(SETTLE.failForGood(await worker.next()));
    await fixture.clock.advance(2 * DAY_MS);
    assert.equal((await fixture.store.purge(KEEP)).jobs, 1);
    assert.deepEqual(await fixture.enqueue("a"), [{ id: "a", created: true }]);
    const { steps, log, history, attempt } = await fixture.job("a");
    assert.deepEqual([steps, log, history, attempt], [[], [], [], 0]);
  });

  specify(
    "an old lease never names a new job: also when everything was purged, its writes are stale",
    async (fixture) => {
      await fixture.enqueue("old");
      const worker = await fixture.worker("w");
      const { lease, ...old } = await worker.next();
      await worker.settle(SETTLE.succeed({ lease, ...old }));
      await fixture.clock.advance(2 * DAY_MS);
      await fixture.store.purge(KEEP);
      await fixture.enqueue("new");
      const fresh = await worker.next();
      assert.equal(fresh.lease.jobId, "new");
      assert.notEqual(fresh.lease.row, lease.row);
      const [answer] = await fixture.store.write([{ lease, write: { type: "progress", value: "1" } }]);
      assert.equal(answer?.is, "stale");
      assert.equal((await fixture.job("new")).progress, null);
      assert.equal((await fixture.job("new")).history.length, 0);
    },
  );

  specify(
    "jobs that come after a purge that left none are listed, checked, and purged in their turn",
    async (fixture) => {
      const { store } = fixture;
      const listed = async (): Promise<readonly string[]> =>
        (await store.inspect.list({}, 100, null)).jobs.map(({ id }) => id).toSorted();
      const worker = await fixture.worker("w");
      const purgeAll = async (): Promise<void> => {
        for (let more = true; more;) ({ more } = await store.purge(KEEP));
      };
      await purgeAll();
      for (const round of ["c", "b", "a"]) {
        const ids = names(round, 5);
        await fixture.enqueue(...ids);
        assert.deepEqual((await listed()).slice(0, 5), ids);
        await worker.settle(...(await worker.claim(5)).map((job) => SETTLE.succeed(job)));
        await fixture.clock.advance(2 * DAY_MS);
        await purgeAll();
        // A store may keep the newest one, so that no number is given again.
        const left = await listed();
        assert.ok(left.length <= 1, left.join(", "));
        assert.deepEqual(await store.upkeep.integrity(), []);
      }
    },
  );

  specify("a settlement of a purged job is stale and says that the job is missing", async (fixture) => {
    await fixture.enqueue("a", "last");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await worker.settle(SETTLE.succeed(job));
    await fixture.clock.advance(2 * DAY_MS);
    await fixture.store.purge(KEEP);
    const [answer] = await worker.settle(SETTLE.succeed(job));
    assert.ok(answer?.is === "stale" && answer.stale.state === "missing");
    assert.equal((await fixture.countsOf("mail")).succeeded, 0);
  });

  specify("a purge looks at no more than its limit, says that there is more, and the next goes on", async (fixture) => {
    await fixture.enqueue(...names("waits", 5), ...names("j", 10), "last");
    const worker = await fixture.worker("w");
    const jobs = await worker.claim(15);
    await worker.settle(...jobs.slice(5).map((job) => SETTLE.succeed(job)));
    await fixture.clock.advance(2 * DAY_MS);
    let gone = 0;
    for (let calls = 1; ; calls++) {
      assert.ok(calls <= 20, "it ends");
      const purged = await fixture.store.purge({ ...KEEP, limit: 3 });
      assert.ok(purged.jobs <= 3);
      gone += purged.jobs;
      if (!purged.more) break;
    }
    assert.equal(gone, 10);
    assert.equal((await fixture.countsOf("mail")).succeeded, 0);
    assert.equal((await fixture.countsOf("mail")).running, 5);
  });

  specify(
    "old incidents go with their jobs' entries, and one whose recovery is not finished stays",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const dead = await fixture.worker("dead");
      await dead.next();
      const { incident } = await fixture.recoverAll(dead);
      const dying = await fixture.worker("dying");
      await dying.claim(2);
      const open = await fixture.recover(dying, { limit: 1 });
      assert.equal(open.done, false);
      await fixture.clock.advance(2 * DAY_MS);
      assert.equal((await fixture.store.purge(KEEP)).incidents, 1);
      assert.equal(await fixture.store.inspect.incident(incident!), null);
      assert.equal((await fixture.store.inspect.incident(open.incident!))?.jobCount, 1);
      assert.deepEqual(await fixture.incidentsOf(dying), [open.incident]);
    },
  );

  specify(
    "old rows of workers that have ended go, also when there is nothing else to purge; the living and the young stay",
    async (fixture) => {
      await fixture.worker("living");
      await fixture.worker("stopped");
      await fixture.store.leave("stopped");
      await fixture.clock.advance(2 * DAY_MS);
      await fixture.worker("young");
      await fixture.store.leave("young");
      await fixture.store.purge(KEEP);
      assert.deepEqual(await workersOf(fixture), ["living", "young"]);
    },
  );

  specify(
    "of many jobs that finished together all go but those that did not end, with what belongs to them",
    async (fixture) => {
      const ids = names("j", 40);
      await fixture.enqueue(...ids, "last");
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(40);
      for (const at of [3, 20, 21]) await worker.record(jobs[at]!, { type: "step", name: "s", result: "1" });
      await worker.settle(...jobs.map((job, i) => (i === 20 ? SETTLE.fail(job, 10 * DAY_MS) : SETTLE.succeed(job))));
      await fixture.clock.advance(2 * DAY_MS);
      assert.equal((await fixture.store.purge(KEEP)).jobs, 39);
      assert.deepEqual(
        await fixture.states(...ids),
        ids.map((_, i) => (i === 20 ? "queued" : "missing")),
      );
      assert.deepEqual(
        (await fixture.job(ids[20]!)).steps.map(({ name }) => name),
        ["s"],
      );
      const { succeeded, delayed } = await fixture.countsOf("mail");
      assert.deepEqual([succeeded, delayed], [0, 1]);
      await fixture.enqueue(ids[3]!);
      assert.deepEqual((await fixture.job(ids[3]!)).steps, []);
    },
  );

  specify("a redriven job is not purged for having finished once", async (fixture) => {
    await fixture.enqueue("a", "last");
    const worker = await fixture.worker("w");
    await worker.settle(SETTLE.succeed(await worker.next()));
    await fixture.clock.advance(2 * DAY_MS);
    await fixture.store.operate.retry("a", "operator");
    assert.equal((await fixture.store.purge(KEEP)).jobs, 0);
    assert.deepEqual(await fixture.states("a"), ["queued"]);
  });
}

async function workersOf(fixture: Fixture): Promise<readonly string[]> {
  return (await fixture.store.workers({ which: "all" })).map(({ id }) => id);
}
