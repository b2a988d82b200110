// What the port promises when the store's own data was damaged: no handler gets what nobody wrote, the damage is named, and
// everything beside it goes on. Skipped where a test can't damage the store.
import assert from "node:assert/strict";
import { ErrorCode } from "../../job/errors.ts";
import type { ClaimedJob } from "../../job/job.ts";
import { answers, type Hand, idsOf, kind, roomFor, type Fixture, SETTLE, type Specify } from "./fixture.ts";
import type { Damage } from "./suite.ts";

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
      await fixture.bury(worker);
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

/** Jobs with one kept step each, back in the queue. */
async function stepped(fixture: Fixture, worker: Hand, ...ids: readonly string[]): Promise<void> {
  await fixture.enqueue(...ids);
  for (const job of await worker.claim(9)) {
    await worker.record(job, { type: "step", name: "render", result: '"page"' });
    await worker.settle(SETTLE.release(job));
  }
}
