// What the port promises when the store itself has changed. Damaged data: no handler receives data that no process
// wrote, the damage is named, and everything next to it continues. A restore: a worker is identified by its whole id,
// and nothing that a worker from before the restore writes is accepted. Skipped where a test can't do that to the
// store.
import assert from "node:assert/strict";
import { ErrorCode } from "../../job/errors.ts";
import type { ClaimedJob } from "../../job/job.ts";
import { type AttemptWrite, triedBy } from "../../stores/port.ts";
import {
  answers,
  type Fixture,
  type TestWorker,
  idsOf,
  kind,
  roomFor,
  SETTLE,
  SETTLE_NAMES,
  type Specify,
} from "./fixture.ts";
import type { Damage, Restore } from "./suite.ts";

export function specifyCorrupt(specify: Specify): void {
  const damaged = (title: string, body: (fixture: Fixture, damage: Damage) => Promise<void>): void =>
    specify(title, async (fixture) => {
      const damage = fixture.damage();
      if (damage) await body(fixture, damage);
    });

  damaged(
    "FR-069 a job whose input was damaged is quarantined at its claim, and the others go on",
    async (fixture, damage) => {
      await fixture.enqueue("a", { id: "b", input: '{"to":"ann"}' }, "c");
      await damage("b", "input");
      const worker = await fixture.worker("w");
      const { claimed, corrupt = [] } = await worker.turn([], roomFor(9));
      assert.deepEqual(idsOf(claimed), ["a", "c"]);
      assert.deepEqual(
        corrupt.map(({ lease, kind: of, change }) => [lease.jobId, of, change.to, change.outcome]),
        [["b", "mail", "quarantined", "corrupt"]],
      );
      assert.deepEqual(await fixture.states("a", "b", "c"), ["running", "quarantined", "running"]);
      assert.deepEqual(answers(await worker.settle(...claimed.map((job) => SETTLE.succeed(job)))), [
        "applied",
        "applied",
      ]);
    },
  );

  damaged("a corrupt job says what did not match, by whom it was found, and what to do", async (fixture, damage) => {
    await fixture.enqueue("a");
    await damage("a", "input");
    const worker = await fixture.worker("w");
    await worker.claim(9);
    const job = await fixture.job("a");
    assert.deepEqual([job.state, job.lastOutcome, job.finishedAt], ["quarantined", "corrupt", fixture.clock.now()]);
    assert.deepEqual(job.corrupt, ["input"]);
    assert.deepEqual([job.error?.code, job.error?.name], [ErrorCode.corrupt, "Corrupt"]);
    const entry = job.history.at(-1)!;
    assert.deepEqual(
      [entry.event, entry.from, entry.to, entry.actor, entry.attempt, entry.incident],
      ["quarantine", "running", "quarantined", "worker/w", 1, null],
    );
    assert.match(entry.reason, /^corrupt: the stored input of job a does not match its checksum$/);
    assert.equal((await fixture.countsOf("mail")).quarantined, 1);
  });

  damaged(
    "a job of which a kept step was damaged is quarantined before it goes on from it",
    async (fixture, damage) => {
      const worker = await fixture.worker("w");
      await stepped(fixture, worker, "a", "b");
      await damage("a", "step");
      const { claimed, corrupt = [] } = await worker.turn([], roomFor(9));
      assert.deepEqual([idsOf(claimed), corrupt.length], [["b"], 1]);
      assert.deepEqual(claimed[0]?.steps, [{ name: "render", result: '"page"' }]);
      const job = await fixture.job("a");
      assert.deepEqual([job.state, job.corrupt, job.counters.interruptions], ["quarantined", ["step render"], 1]);
      assert.match(job.history.at(-1)!.reason, /^corrupt: the stored step render of job a/);
    },
  );

  damaged("a corrupt job that must run alone does not hold its worker up", async (fixture, damage) => {
    await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 9 } }));
    await fixture.enqueue("a");
    for (const id of ["w1", "w2"]) {
      const worker = await fixture.worker(id);
      await worker.next();
      await fixture.recoverAll(worker);
    }
    await damage("a", "input");
    await fixture.enqueue("b");
    const { claimed, corrupt = [] } = await (await fixture.worker("w3")).turn([], roomFor(9));
    assert.deepEqual([idsOf(claimed), corrupt.length], [["b"], 1]);
  });

  damaged("a corrupt job among several kinds costs none of them its turn", async (fixture, damage) => {
    await fixture.enqueue("a", { id: "b", kind: "sms", priority: 5 }, { id: "c", kind: "sms" });
    await damage("b", "input");
    assert.deepEqual(idsOf(await (await fixture.worker("w")).claim(roomFor(2))), ["a", "c"]);
  });

  damaged(
    "a turn among many corrupt jobs ends, and the next turns reach what is behind them",
    async (fixture, damage) => {
      const broken = Array.from({ length: 12 }, (_, n) => `broken-${n}`);
      await fixture.enqueue(...broken, "sound");
      for (const id of broken) await damage(id, "input");
      const worker = await fixture.worker("w");
      const found: string[] = [];
      for (let turns = 0; turns < broken.length + 1; turns++) {
        const { claimed, corrupt = [] } = await worker.turn([], roomFor(2));
        // It replaces what it quarantined once at most.
        assert.ok(corrupt.length <= 4, `${corrupt.length} in one turn`);
        found.push(...corrupt.map(({ lease }) => lease.jobId));
        if (claimed.length === 0) continue;
        assert.deepEqual([idsOf(claimed), found.toSorted()], [["sound"], broken.toSorted()]);
        return;
      }
      assert.fail(`the sound job was not claimed; quarantined: ${found.join(" ")}`);
    },
  );

  damaged(
    "what ran already when its input was damaged ends as it ends, and the damage is shown",
    async (fixture, damage) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      await damage("a", "input");
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job, "1"))), ["applied"]);
      const { state, result, corrupt } = await fixture.job("a");
      assert.deepEqual([state, result, corrupt], ["succeeded", 1, ["input"]]);
    },
  );

  damaged("a result that was damaged is shown as corrupt, and its job stays succeeded", async (fixture, damage) => {
    await fixture.enqueue("a", "b");
    const worker = await fixture.worker("w");
    const claimed = await worker.claim(9);
    await worker.settle(...claimed.map((job) => SETTLE.succeed(job, '{"sent":1}')));
    await damage("a", "result");
    const job = await fixture.job("a");
    assert.deepEqual([job.state, job.lastOutcome, job.corrupt], ["succeeded", "succeeded", ["result"]]);
    assert.deepEqual((await fixture.job("b")).corrupt, []);
    const { jobs } = await fixture.store.inspect.list({}, 10, null);
    assert.equal(jobs.length, 2);
  });

  damaged("a succeeded job whose result was damaged can be run again", async (fixture, damage) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.settle(SETTLE.succeed(await worker.next(), '"first"'));
    await damage("a", "result");
    await fixture.store.operate.retry("a", "operator");
    assert.deepEqual((await fixture.job("a")).corrupt, []);
    await worker.settle(SETTLE.succeed(await worker.next(), '"second"'));
    const { result, corrupt } = await fixture.job("a");
    assert.deepEqual([result, corrupt], ["second", []]);
  });

  damaged("a corrupt job that is retried by hand is quarantined again at its claim", async (fixture, damage) => {
    await fixture.enqueue("a");
    await damage("a", "input");
    const worker = await fixture.worker("w");
    await worker.claim(9);
    assert.deepEqual(await fixture.store.operate.retry("a", "operator"), { is: "applied", state: "queued" });
    assert.deepEqual(idsOf(await worker.claim(9)), []);
    const job = await fixture.job("a");
    assert.deepEqual([job.state, job.attempt], ["quarantined", 2]);
    assert.deepEqual(
      job.history.map(({ event }) => event),
      ["quarantine", "retry", "quarantine"],
    );
  });

  specify("every text that can be stored is what was stored: nothing sound is taken for corrupt", async (fixture) => {
    const texts = ['""', '"\\u0000"', '"\\ud800"', '"žluťoučký 🐎"', "null", `"${"x".repeat(100_000)}"`];
    await fixture.enqueue(...texts.map((input, n) => ({ id: `ž-${n}`, input })));
    const worker = await fixture.worker("w");
    const first = await worker.claim(roomFor(texts.length));
    assert.deepEqual(
      first.map(({ input }) => input),
      texts,
    );
    for (const job of first) await worker.record(job, { type: "step", name: "é", result: job.input });
    for (const job of first) await worker.record(job, { type: "step", name: "nothing", result: null });
    await worker.settle(...first.map((job) => SETTLE.release(job)));
    const second = await worker.claim(roomFor(texts.length));
    await worker.settle(...second.map((job: ClaimedJob) => SETTLE.succeed(job, job.steps[0]!.result)));
    for (const { lease } of second) {
      const { state, corrupt } = await fixture.job(lease.jobId);
      assert.deepEqual([state, corrupt], ["succeeded", []]);
    }
    assert.equal(second.length, texts.length);
  });
}

/** Jobs with one stored step each, back in the queue. */
async function stepped(fixture: Fixture, worker: TestWorker, ...ids: readonly string[]): Promise<void> {
  await fixture.enqueue(...ids);
  for (const job of await worker.claim(9)) {
    await worker.record(job, { type: "step", name: "render", result: '"page"' });
    await worker.settle(SETTLE.release(job));
  }
}

// After a restore a worker is identified by its whole id, not by a short number that may be reused.

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
      // What it held is recovered like that of a dead worker, whatever its process does.
      const { jobs } = await fixture.recoverAll(old);
      assert.deepEqual(
        jobs.map(({ jobId, success }) => [jobId, success]),
        [["a", true]],
      );
    },
  );
}

async function assertNothingIsWritten(fixture: Fixture, worker: TestWorker, job: ClaimedJob): Promise<void> {
  for (const write of WRITES) assert.deepEqual(answers(await worker.record(job, write)), ["stale"], triedBy(write));
  // From here on only stores with `commit` have more to refuse.
  const user = fixture.store.transactions && fixture.user();
  if (!user) return;
  const body = user.writing("paid", () => null);
  const { answer } = await fixture.store.transactions.commit(SETTLE.succeed(job), body as never, () => null);
  assert.equal(answer.is, "stale");
  assert.deepEqual(await user.written(fixture.store), []);
}

/** Job a is unchanged since it was claimed by a worker that has this id now, and at least one refusal is recorded. */
async function assertUntouched(fixture: Fixture, holder: string): Promise<void> {
  const { state, worker, attempt, steps, history } = await fixture.job("a");
  assert.deepEqual([state, worker, attempt, steps.length], ["running", holder, 1, 0]);
  assert.ok(history.some(({ event }) => event === "write.rejected"));
}
