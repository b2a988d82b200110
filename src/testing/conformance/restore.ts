// What the port promises after a restore: a worker is known by its whole id, not by a short number that comes again, and nothing that a
// worker from before the restore writes is accepted. Skipped where a test can't do that to the store.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import { type AttemptWrite, triedBy } from "../../stores/port.ts";
import { answers, type Hand, roomFor, type Fixture, SETTLE, SETTLE_NAMES, type Specify } from "./fixture.ts";
import type { Restore } from "./suite.ts";

const BEAT = { loopLagMs: 0 };

const WRITES: readonly AttemptWrite[] = [
  { type: "step", name: "charge", result: "1" },
  { type: "progress", value: "50" },
  { type: "log", message: "half-way" },
  { type: "heartbeat" },
];

export function specifyRestore(specify: Specify): void {
  const restored = (title: string, body: (fixture: Fixture, restore: Restore) => Promise<void>): void =>
    specify(title, async (fixture) => {
      const restore = fixture.restore();
      if (restore) await body(fixture, restore);
    });

  restored(
    "a worker whose row belongs to another worker under the same number claims nothing, and learns why",
    async (fixture, restore) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      await restore.renameWorker("w", "other");
      const turn = await worker.turn([], roomFor(1));
      assert.deepEqual([turn.live, turn.claimed], [false, []]);
      assert.match(turn.replaced ?? "", /w/);
      assert.deepEqual(await fixture.states("a"), ["queued"]);
    },
  );

  restored("it neither beats in that row nor leaves it", async (fixture, restore) => {
    await fixture.worker("w");
    await restore.renameWorker("w", "other");
    const beat = await fixture.store.beat("w", { ...BEAT, lastWord: "killed itself" });
    assert.deepEqual([beat.live, typeof beat.replaced], [false, "string"]);
    assert.equal(await fixture.store.leave("w"), false);
    await fixture.store.operate.noteDeath("w", "exited with SIGKILL");
    const rows = await fixture.store.workers({});
    assert.deepEqual(
      rows.map(({ id, state, beats, lastWord }) => [id, state, beats, lastWord]),
      [["other", "live", 0, null]],
    );
  });

  for (const name of SETTLE_NAMES)
    restored(`its "${name}" of a job of that number is refused, and the refusal is kept`, async (fixture, restore) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      await restore.renameWorker("w", "other");
      assert.deepEqual(answers(await worker.settle(SETTLE[name](job))), ["stale"]);
      await assertUntouched(fixture, "other");
    });

  restored("its small writes are refused, too, and its commit is not run", async (fixture, restore) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await restore.renameWorker("w", "other");
    await assertNothingIsWritten(fixture, worker, job);
    await assertUntouched(fixture, "other");
  });

  restored(
    "a restore is noticed once: the epoch rises above all that were issued, and every worker is marked as restored",
    async (fixture, restore) => {
      const { store } = fixture;
      await store.upkeep.raiseEpoch();
      assert.equal(await store.upkeep.noticeRestore?.(), null);
      await fixture.enqueue("a", "b");
      const old = await fixture.worker("old");
      const before = await old.next();
      await restore.comeBack();
      const other = await fixture.connect();
      assert.equal(typeof (await other.upkeep.noticeRestore?.()), "string");
      assert.equal(await other.upkeep.noticeRestore?.(), null, "once");
      assert.equal(await store.upkeep.noticeRestore?.(), null, "by one process");
      const [row] = await other.workers({});
      assert.deepEqual([row?.id, row?.restored], ["old", true]);
      const young = await fixture.worker("young", { store: other });
      const after = await young.next();
      assert.ok(after.lease.epoch > before.lease.epoch, `${after.lease.epoch} > ${before.lease.epoch}`);
      assert.equal((await young.row()).restored, undefined);
      assert.deepEqual(answers(await young.settle(SETTLE.succeed(after))), ["applied"]);
    },
  );

  restored(
    "a worker from before a restore claims, settles, writes, beats and leaves no more, although its row and its job came back",
    async (fixture, restore) => {
      await fixture.enqueue("a", "b");
      const old = await fixture.worker("old");
      const job = await old.next();
      await restore.comeBack();
      await fixture.store.upkeep.noticeRestore?.();
      const turn = await old.turn([SETTLE.succeed(job)], roomFor(1));
      assert.deepEqual([turn.live, turn.claimed, answers(turn.settled)], [false, [], ["stale"]]);
      assert.equal(typeof turn.replaced, "string");
      await assertNothingIsWritten(fixture, old, job);
      const beat = await fixture.store.beat("old", BEAT);
      assert.deepEqual([beat.live, typeof beat.replaced], [false, "string"]);
      assert.equal(await fixture.store.leave("old"), false);
      await assertUntouched(fixture, "old");
      assert.equal((await old.row()).beats, 0);
      // What it held is taken as that of a dead worker is, whatever its process does.
      const { jobs } = await fixture.bury(old);
      assert.deepEqual(
        jobs.map(({ jobId, success }) => [jobId, success]),
        [["a", true]],
      );
    },
  );
}

async function assertNothingIsWritten(fixture: Fixture, worker: Hand, job: ClaimedJob): Promise<void> {
  for (const write of WRITES) assert.deepEqual(answers(await worker.record(job, write)), ["stale"], triedBy(write));
  // What a store without `commit` has to refuse is refused by now.
  const user = fixture.store.transactions && fixture.user();
  if (!user) return;
  const body = user.writing("paid", () => null);
  const { answer } = await fixture.store.transactions.commit(SETTLE.succeed(job), body as never, () => null);
  assert.equal(answer.is, "stale");
  assert.deepEqual(await user.written(fixture.store), []);
}

/** Job a is as it was when it was claimed, by a worker that has this id now, and at least one refusal is kept. */
async function assertUntouched(fixture: Fixture, holder: string): Promise<void> {
  const { state, worker, attempt, steps, history } = await fixture.job("a");
  assert.deepEqual([state, worker, attempt, steps.length], ["running", holder, 1, 0]);
  assert.ok(history.some(({ event }) => event === "write.rejected"));
}
