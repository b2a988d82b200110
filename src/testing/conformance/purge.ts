// What the port promises about retention: only what is over and old goes, with all that belongs to it, and no number comes back.
import assert from "node:assert/strict";
import { names } from "./drafts.ts";
import { answers, SETTLE } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";

const DAY_MS = 86_400_000;
const KEEP = { finishedOlderThanMs: DAY_MS, incidentsOlderThanMs: DAY_MS, limit: 100 };

export function specifyPurge(specify: Specify): void {
  specify(
    "only jobs that finished longer ago than the retention go, whatever their state, with all that belongs to them",
    async (scene) => {
      await scene.enqueue("a", "b", "c", "running", "queued", { id: "later", delayMs: 10 * DAY_MS }, "young");
      const worker = await scene.worker("w");
      const [a, b, c, running] = await worker.claim(4);
      await worker.record(a!, { type: "step", name: "s", result: null }, { type: "log", message: "l" });
      await worker.settle(SETTLE.succeed(a!), SETTLE.failForGood(b!), SETTLE.endCancelled(c!));
      await scene.clock.advance(DAY_MS);
      await scene.store.cancel("young", "operator");
      await scene.enqueue("last");
      assert.deepEqual(await scene.store.purge(KEEP), { jobs: 0, incidents: 0, more: false });
      await scene.clock.advance(1);
      assert.deepEqual(await scene.store.purge(KEEP), { jobs: 3, incidents: 0, more: false });
      assert.deepEqual(await scene.states("a", "b", "c"), ["missing", "missing", "missing"]);
      assert.deepEqual(await scene.states("running", "queued", "later", "young", "last"), [
        "running",
        "queued",
        "queued",
        "cancelled",
        "queued",
      ]);
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(running!))), ["applied"]);
      assert.equal((await scene.store.list({}, 100, null)).jobs.length, 5);
    },
  );

  specify("a purged id is new again, and finds nothing of the old job's", async (scene) => {
    await scene.enqueue("a", "last");
    const worker = await scene.worker("w");
    const job = await worker.next();
    await worker.record(job, { type: "step", name: "s", result: "1" }, { type: "log", message: "l" });
    await worker.settle(SETTLE.fail(job), SETTLE.fail(job));
    await worker.settle(SETTLE.failForGood(await worker.next()));
    await scene.clock.advance(2 * DAY_MS);
    assert.equal((await scene.store.purge(KEEP)).jobs, 1);
    assert.deepEqual(await scene.enqueue("a"), [{ id: "a", created: true }]);
    const { steps, log, history, fence } = await scene.job("a");
    assert.deepEqual([steps, log, history, fence], [[], [], [], 0]);
  });

  specify(
    "an old lease never names a new job: also when everything was purged, its writes are stale",
    async (scene) => {
      await scene.enqueue("old");
      const worker = await scene.worker("w");
      const { lease, ...old } = await worker.next();
      await worker.settle(SETTLE.succeed({ lease, ...old }));
      await scene.clock.advance(2 * DAY_MS);
      await scene.store.purge(KEEP);
      await scene.enqueue("new");
      const fresh = await worker.next();
      assert.equal(fresh.lease.jobId, "new");
      assert.notEqual(fresh.lease.row, lease.row);
      const [answer] = await scene.store.record([{ lease, write: { type: "progress", value: "1" } }]);
      assert.equal(answer?.is, "stale");
      assert.equal((await scene.job("new")).progress, null);
      assert.equal((await scene.job("new")).history.length, 0);
    },
  );

  specify("a settlement of a purged job is stale and says that the job is missing", async (scene) => {
    await scene.enqueue("a", "last");
    const worker = await scene.worker("w");
    const job = await worker.next();
    await worker.settle(SETTLE.succeed(job));
    await scene.clock.advance(2 * DAY_MS);
    await scene.store.purge(KEEP);
    const [answer] = await worker.settle(SETTLE.succeed(job));
    assert.ok(answer?.is === "stale" && answer.stale.state === "missing");
    assert.equal((await scene.countsOf("mail")).succeeded, 0);
  });

  specify("a purge looks at no more than its limit, says that there is more, and the next goes on", async (scene) => {
    await scene.enqueue(...names("waits", 5), ...names("j", 10), "last");
    const worker = await scene.worker("w");
    const jobs = await worker.claim(15);
    await worker.settle(...jobs.slice(5).map((job) => SETTLE.succeed(job)));
    await scene.clock.advance(2 * DAY_MS);
    let gone = 0;
    for (let calls = 1; ; calls++) {
      assert.ok(calls <= 20, "it ends");
      const purged = await scene.store.purge({ ...KEEP, limit: 3 });
      assert.ok(purged.jobs <= 3);
      gone += purged.jobs;
      if (!purged.more) break;
    }
    assert.equal(gone, 10);
    assert.equal((await scene.countsOf("mail")).succeeded, 0);
    assert.equal((await scene.countsOf("mail")).running, 5);
  });

  specify("old incidents go with their jobs' entries, and one whose recovery is not finished stays", async (scene) => {
    await scene.enqueue("a", "b", "c");
    const dead = await scene.worker("dead");
    await dead.next();
    const { incident } = await scene.bury(dead);
    const dying = await scene.worker("dying");
    await dying.claim(2);
    const open = await scene.recover(dying, { limit: 1 });
    assert.equal(open.done, false);
    await scene.clock.advance(2 * DAY_MS);
    assert.equal((await scene.store.purge(KEEP)).incidents, 1);
    assert.equal(await scene.store.incident(incident!), null);
    assert.equal((await scene.store.incident(open.incident!))?.jobCount, 1);
    assert.deepEqual(await scene.incidentsOf(dying), [open.incident]);
  });

  specify(
    "old rows of workers that are over go, also when there is nothing else to purge; the living and the young stay",
    async (scene) => {
      await scene.worker("living");
      await scene.worker("stopped");
      await scene.store.deregister("stopped");
      await scene.clock.advance(2 * DAY_MS);
      await scene.worker("young");
      await scene.store.deregister("young");
      await scene.store.purge(KEEP);
      assert.deepEqual(await workersOf(scene), ["living", "young"]);
    },
  );

  specify("a redriven job is not purged for having finished once", async (scene) => {
    await scene.enqueue("a", "last");
    const worker = await scene.worker("w");
    await worker.settle(SETTLE.succeed(await worker.next()));
    await scene.clock.advance(2 * DAY_MS);
    await scene.store.retry("a", "operator");
    assert.equal((await scene.store.purge(KEEP)).jobs, 0);
    assert.deepEqual(await scene.states("a"), ["queued"]);
  });
}

async function workersOf(scene: Scene): Promise<readonly string[]> {
  return (await scene.store.workers({ which: "all" })).map(({ id }) => id);
}
