// What the port promises after a restore: a worker is known by its whole id, not by a short number that comes again, and nothing that a
// worker from before the restore writes is accepted. Skipped where a test can't do that to the store.
import assert from "node:assert/strict";
import { answers, type Hand, roomFor, SETTLE, SETTLE_NAMES } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";
import type { Restore } from "./stores.ts";
import type { ClaimedJob } from "../../core/job.ts";
import { type AttemptWrite, triedBy } from "../../core/store.ts";

const BEAT = { loopLagMs: 0 };

const WRITES: readonly AttemptWrite[] = [
  { type: "step", name: "charge", result: "1" },
  { type: "progress", value: "50" },
  { type: "log", message: "half-way" },
  { type: "heartbeat" },
];

export function specifyRestore(specify: Specify): void {
  const restored = (title: string, body: (scene: Scene, restore: Restore) => Promise<void>): void =>
    specify(title, async (scene) => {
      const restore = scene.restore();
      if (restore) await body(scene, restore);
    });

  restored(
    "a worker whose row belongs to another worker under the same number claims nothing, and learns why",
    async (scene, restore) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      await restore.renameWorker("w", "other");
      const turn = await worker.turn([], roomFor(1));
      assert.deepEqual([turn.live, turn.claimed], [false, []]);
      assert.match(turn.replaced ?? "", /w/);
      assert.deepEqual(await scene.states("a"), ["queued"]);
    },
  );

  restored("it neither beats in that row nor leaves it", async (scene, restore) => {
    await scene.worker("w");
    await restore.renameWorker("w", "other");
    const beat = await scene.store.beat("w", BEAT);
    assert.deepEqual([beat.live, typeof beat.replaced], [false, "string"]);
    assert.equal(await scene.store.deregister("w"), false);
    await scene.store.note("w", "killed itself");
    const rows = await scene.store.workers({});
    assert.deepEqual(
      rows.map(({ id, state, beats, lastWord }) => [id, state, beats, lastWord]),
      [["other", "live", 0, null]],
    );
  });

  for (const name of SETTLE_NAMES)
    restored(`its "${name}" of a job of that number is refused, and the refusal is kept`, async (scene, restore) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      const job = await worker.next();
      await restore.renameWorker("w", "other");
      assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["stale"]);
      await assertUntouched(scene, "other");
    });

  restored("its small writes are refused, too, and its commit is not run", async (scene, restore) => {
    await scene.enqueue("a");
    const worker = await scene.worker("w");
    const job = await worker.next();
    await restore.renameWorker("w", "other");
    await assertNothingIsWritten(scene, worker, job);
    await assertUntouched(scene, "other");
  });

  restored(
    "a restore is noticed once: the epoch rises above all that were issued, and every worker is marked as restored",
    async (scene, restore) => {
      const { store } = scene;
      await store.raiseEpoch();
      assert.equal(await store.noticeRestore?.(), null);
      await scene.enqueue("a", "b");
      const old = await scene.worker("old");
      const before = await old.next();
      await restore.comeBack();
      const other = await scene.connect();
      assert.equal(typeof (await other.noticeRestore?.()), "string");
      assert.equal(await other.noticeRestore?.(), null, "once");
      assert.equal(await store.noticeRestore?.(), null, "by one process");
      const [row] = await other.workers({});
      assert.deepEqual([row?.id, row?.restored], ["old", true]);
      const young = await scene.worker("young", { store: other });
      const after = await young.next();
      assert.ok(after.lease.epoch > before.lease.epoch, `${after.lease.epoch} > ${before.lease.epoch}`);
      assert.equal((await young.row()).restored, undefined);
      assert.deepEqual(answers(await young.settle(SETTLE.succeed(after))), ["applied"]);
    },
  );

  restored(
    "a worker from before a restore claims, settles, writes, beats and leaves no more, although its row and its job came back",
    async (scene, restore) => {
      await scene.enqueue("a", "b");
      const old = await scene.worker("old");
      const job = await old.next();
      await restore.comeBack();
      await scene.store.noticeRestore?.();
      const turn = await old.turn([SETTLE.succeed(job)], roomFor(1));
      assert.deepEqual([turn.live, turn.claimed, answers(turn.settled)], [false, [], ["stale"]]);
      assert.equal(typeof turn.replaced, "string");
      await assertNothingIsWritten(scene, old, job);
      const beat = await scene.store.beat("old", BEAT);
      assert.deepEqual([beat.live, typeof beat.replaced], [false, "string"]);
      assert.equal(await scene.store.deregister("old"), false);
      await assertUntouched(scene, "old");
      assert.equal((await old.row()).beats, 0);
      // What it held is taken as that of a dead worker is, whatever its process does.
      const { jobs } = await scene.bury(old);
      assert.deepEqual(
        jobs.map(({ jobId, success }) => [jobId, success]),
        [["a", true]],
      );
    },
  );
}

async function assertNothingIsWritten(scene: Scene, worker: Hand, job: ClaimedJob): Promise<void> {
  for (const write of WRITES) assert.deepEqual(answers(await worker.record(job, write)), ["stale"], triedBy(write));
  const user = scene.user();
  if (!user) return;
  const body = user.writing("paid", () => null);
  const { answer } = await scene.store.commit(SETTLE.succeed(job), body as never, () => null);
  assert.equal(answer.is, "stale");
  assert.deepEqual(await user.written(scene.store), []);
}

/** Job a is as it was when it was claimed, by a worker that has this id now, and at least one refusal is kept. */
async function assertUntouched(scene: Scene, holder: string): Promise<void> {
  const { state, worker, fence, steps, history } = await scene.job("a");
  assert.deepEqual([state, worker, fence, steps.length], ["running", holder, 1, 0]);
  assert.ok(history.some(({ event }) => event === "write.rejected"));
}
