// What the port promises about isolation: which jobs are blamed for a death, and with how many others a suspect is
// claimed.
import assert from "node:assert/strict";
import { BACKGROUND_MS, type HeldSuspects } from "../../job/isolation.ts";
import type { JobState } from "../../job/job.ts";
import {
  type Draft,
  type TestWorker,
  idsOf,
  kind,
  names,
  roomFor,
  type Fixture,
  SETTLE,
  type Specify,
} from "./fixture.ts";

export function specifyIsolation(specify: Specify): void {
  specify(
    "a job that was alone in its worker when that died is blamed if it had crashed before; fresh ones are not",
    async (fixture) => {
      await fixture.enqueue("a");
      const first = await fixture.worker("w1");
      await first.next();
      await fixture.recoverAll(first);
      assert.deepEqual(await blamed(fixture, "a"), [[1, 0]]);
      await fixture.enqueue("b", "c");
      const second = await fixture.worker("w2");
      await second.claim(9);
      await fixture.recoverAll(second);
      assert.deepEqual(await blamed(fixture, "a", "b", "c"), [
        [2, 1],
        [1, 0],
        [1, 0],
      ]);
    },
  );

  specify(
    "which job was alone is decided by what the worker held at its death, not by what a later transaction finds",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      await worker.claim(9);
      const first = await fixture.recover(worker, { limit: 1 });
      const second = await fixture.recover(worker, { limit: 1 });
      const third = await fixture.recover(worker, { limit: 1, by: await fixture.connect() });
      assert.equal([first, second, third].flatMap(({ jobs }) => jobs).length, 3);
      assert.deepEqual(await blamed(fixture, "a", "b", "c"), Array(3).fill([1, 0]));
    },
  );

  specify(
    "known bug 9: every death counts, so a job that kills each of its workers ends in quarantine",
    async (fixture) => {
      await fixture.enqueue("killer", "bystander");
      const first = await fixture.worker("w0");
      await first.claim(2);
      await fixture.recoverAll(first);
      const second = await fixture.worker("w1");
      assert.deepEqual(idsOf(await second.claim(1)), ["killer"]);
      await fixture.recoverAll(second);
      const other = await fixture.worker("other");
      const [bystander, ...more] = await other.claim(9);
      assert.deepEqual([bystander?.lease.jobId, more], ["bystander", []], "it crashed once, and goes first");
      await other.settle(SETTLE.succeed(bystander!));
      for (const id of ["w2", "w3"]) {
        const worker = await fixture.worker(id);
        const claimed = await worker.claim(9);
        assert.deepEqual([idsOf(claimed), claimed[0]?.together], [["killer"], 1]);
        await fixture.recoverAll(worker);
      }
      assert.deepEqual(await fixture.states("killer", "bystander"), ["quarantined", "succeeded"]);
      assert.deepEqual(await blamed(fixture, "killer", "bystander"), [
        [4, 3],
        [1, 0],
      ]);
    },
  );

  specify(
    "known bug 10: the last crash of a job is recorded: in its state, its error, its history and the incident",
    async (fixture) => {
      await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
      await fixture.enqueue("a");
      assert.deepEqual(await dyingAlone(fixture, "a", 1), ["queued"]);
      const worker = await fixture.worker("w");
      await worker.next();
      const { incident, jobs } = await fixture.recoverAll(worker);
      assert.deepEqual([jobs[0]?.decision, jobs[0]?.limit], ["quarantine", 1]);
      const job = await fixture.job("a");
      assert.deepEqual([job.state, job.lastOutcome, job.error?.name], ["quarantined", "crashed", "WorkerDied"]);
      assert.equal(job.finishedAt, fixture.clock.now());
      const entry = job.history.at(-1);
      assert.deepEqual([entry?.event, entry?.to, entry?.incident], ["crash", "quarantined", incident]);
      assert.equal((await fixture.countsOf("mail")).quarantined, 1);
    },
  );

  specify(
    "a job is not blamed while as many workers die that did not hold it, and is when it stands out again",
    async (fixture) => {
      await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 2 } }));
      await fixture.enqueue("a");
      for (const id of ["idle1", "idle2"]) await fixture.recoverAll(await fixture.worker(id));
      assert.deepEqual(await dyingAlone(fixture, "a", 4), ["queued", "queued", "queued", "quarantined"]);
      assert.deepEqual(await blamed(fixture, "a"), [[4, 3]]);
    },
  );

  specify("however many others die, three times its limit of deaths alone is the end of a job", async (fixture) => {
    await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await fixture.enqueue("a");
    for (const id of names("idle", 9)) await fixture.recoverAll(await fixture.worker(id));
    assert.deepEqual(await dyingAlone(fixture, "a", 4), ["queued", "queued", "queued", "quarantined"]);
  });

  specify("deaths of long ago, before the first crash of a job, say nothing about its own", async (fixture) => {
    await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await fixture.enqueue("a");
    for (const id of names("idle", 9)) await fixture.recoverAll(await fixture.worker(id));
    await fixture.clock.advance(BACKGROUND_MS + 1);
    assert.deepEqual(await dyingAlone(fixture, "a", 2), ["queued", "quarantined"]);
  });

  specify("suspects run next to fresh jobs, and each says with how many others it may run", async (fixture) => {
    await suspect(fixture, 4, "a", "b");
    await fixture.enqueue("fresh", { id: "sms", kind: "sms" });
    const claimed = await (await fixture.worker("w")).claim(9);
    assert.deepEqual(
      claimed.map(({ lease, together }) => [lease.jobId, together]),
      [
        ["a", 2],
        ["b", 2],
        ["fresh", null],
        ["sms", null],
      ],
    );
  });

  specify(
    "`together` is half of the suspects that died with a job, and any number after its first crash",
    async (fixture) => {
      const together = async (...ids: readonly string[]): Promise<readonly number[]> =>
        (await Promise.all(ids.map((id) => fixture.job(id)))).map((job) => job.together);
      await fixture.enqueue(...names("j", 9));
      for (const [id, after] of [
        ["first", 0],
        ["second", 4],
      ] as const) {
        const worker = await fixture.worker(id);
        assert.equal((await worker.claim(9)).length, 9);
        await fixture.recoverAll(worker);
        assert.deepEqual(await together("j0001", "j0009"), [after, after], id);
      }
      await fixture.enqueue(...names("fresh", 5));
      const third = await fixture.worker("third");
      assert.equal((await third.claim(9)).length, 9, "four of the suspects, and the fresh ones");
      await fixture.recoverAll(third);
      assert.deepEqual(await together("j0001", "j0005", "fresh0001"), [2, 4, 0]);
    },
  );

  specify(
    "a worker takes suspects while their number stays within the smallest `together` that it holds",
    async (fixture) => {
      await suspect(fixture, 6, ...names("three", 5));
      await suspect(fixture, 4, ...names("two", 3));
      const claim = async (held: Partial<HeldSuspects>): Promise<readonly string[]> => {
        const worker = await fixture.worker(`w${++deaths}`);
        const claimed = await worker.claim(roomFor(9, undefined, held));
        await worker.settle(...claimed.map((job) => SETTLE.release(job)));
        return idsOf(claimed);
      };
      assert.deepEqual(await claim({}), ["three0001", "three0002", "three0003"]);
      assert.deepEqual(await claim({ count: 1, together: 9 }), ["three0001", "three0002"]);
      assert.deepEqual(await claim({ count: 2, together: 2 }), [], "it is full");
      assert.deepEqual(await claim({ count: 1, together: 2 }), ["three0001"]);
      assert.deepEqual(await claim({ count: 3, together: 9 }), []);
    },
  );

  specify(
    "a suspect that does not fit leaves the slot to other jobs, and hides no suspect behind it",
    async (fixture) => {
      await suspect(fixture, 6, "three");
      await suspect(fixture, 2, { id: "alone", priority: 5 });
      await fixture.enqueue("fresh", { id: "low", priority: -1 });
      const claimed = await (await fixture.worker("w")).claim(roomFor(3, undefined, { count: 2, together: 3 }));
      assert.deepEqual(idsOf(claimed), ["three", "fresh", "low"]);
    },
  );

  specify("fresh jobs and suspects are claimed by priority, each kind within its room", async (fixture) => {
    await suspect(fixture, 8, { id: "a", priority: 5 }, "low-suspect");
    await fixture.enqueue(
      "low",
      { id: "same", priority: 5 },
      { id: "high", priority: 6 },
      { id: "sms", kind: "sms", priority: 7 },
    );
    const worker = await fixture.worker("w");
    const first = await worker.claim(3);
    assert.deepEqual(idsOf(first), ["sms", "high", "a"]);
    const kinds = [
      { kind: "mail", room: 1 },
      { kind: "sms", room: 9 },
    ];
    assert.deepEqual(idsOf(await worker.claim({ total: 9, kinds })), ["same"]);
    const shared = ["mail", "sms"].map((kind) => ({ kind, room: 1, shares: true }));
    assert.deepEqual(idsOf(await worker.claim({ total: 9, kinds: shared })), ["low-suspect"]);
    assert.deepEqual(idsOf(await worker.claim(9)), ["low"]);
  });

  specify("within a priority those that may run with the most others go first, or the oldest", async (fixture) => {
    await suspect(fixture, 2, "oldest");
    await suspect(fixture, 8, "four", { id: "high", priority: 1 });
    const worker = await fixture.worker("w");
    const largest = await worker.claim(1);
    assert.deepEqual(idsOf(largest), ["high"]);
    const held = { count: 0, together: null };
    assert.deepEqual(idsOf(await worker.claim(roomFor(1, undefined, { ...held, oldestFirst: true }))), ["oldest"]);
    assert.deepEqual(idsOf(await worker.claim(1)), ["four"]);
  });

  specify("the only suspect among fresh jobs is blamed for a death, and they are not", async (fixture) => {
    await suspect(fixture, 2, "a");
    await fixture.enqueue("x", "y");
    const worker = await fixture.worker("w");
    assert.equal((await worker.claim(9)).length, 3);
    const { incident } = await fixture.recoverAll(worker);
    assert.deepEqual(await blamed(fixture, "a", "x", "y"), [
      [3, 1],
      [1, 0],
      [1, 0],
    ]);
    const { jobs } = (await fixture.store.inspect.incident(incident!))!;
    assert.deepEqual(
      jobs.map(({ jobId, alone }) => [jobId, alone]),
      [
        ["a", true],
        ["x", false],
        ["y", false],
      ],
    );
  });

  specify(
    "the job that kills its workers among fifty is alone after six deaths, and ends in quarantine",
    async (fixture) => {
      const innocent = names("innocent", 49);
      await fixture.enqueue("killer", ...innocent);
      let worked = 0;
      for (let death = 1; ; death++) {
        const worker = await fixture.worker(`w${death}`);
        for (;;) {
          const claimed = await worker.claim(50);
          if (idsOf(claimed).includes("killer")) break;
          await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
          worked += claimed.length;
        }
        await fixture.recoverAll(worker);
        if ((await fixture.job("killer")).state === "quarantined") {
          // 50, 50, 25, 12, 6, 3, and then three times alone.
          assert.equal(death, 9);
          break;
        }
      }
      const rest = await fixture.worker("rest");
      for (let claimed = await rest.claim(50); claimed.length > 0; claimed = await rest.claim(50)) {
        await rest.settle(...claimed.map((job) => SETTLE.succeed(job)));
        worked += claimed.length;
      }
      assert.equal(worked, 49);
    },
  );

  specify("which workers hold suspects is known, and how many", async (fixture) => {
    await suspect(fixture, 6, "a", "b");
    assert.deepEqual(await fixture.store.inspect.suspects(), []);
    const worker = await fixture.worker("w");
    await fixture.enqueue("fresh");
    const claimed = await worker.claim(9);
    assert.deepEqual(await fixture.store.inspect.suspects(), [{ worker: "w", count: 2, together: 3 }]);
    await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
    assert.deepEqual(await fixture.store.inspect.suspects(), []);
  });

  specify("a worker that can't run the kind, or has no room for it, does not take it", async (fixture) => {
    await suspect(fixture, 2, "a");
    await fixture.enqueue({ id: "x", kind: "sms" }, { id: "y", kind: "sms" });
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await worker.claim(roomFor(1, ["sms"]))), ["x"]);
    const kinds = [
      { kind: "mail", room: 0 },
      { kind: "sms", room: 9 },
    ];
    assert.deepEqual(idsOf(await worker.claim({ total: 9, kinds })), ["y"]);
    assert.deepEqual(await fixture.states("a"), ["queued"]);
  });

  specify("a suspect of a paused kind keeps no worker from other jobs", async (fixture) => {
    await suspect(fixture, 2, "a");
    await fixture.enqueue({ id: "x", kind: "sms" });
    await fixture.store.operate.setPaused("mail", true);
    assert.deepEqual(idsOf(await (await fixture.worker("w")).claim(9)), ["x"]);
  });

  specify(
    "known bug 6: many suspects of a kind that a worker can't run do not hide the one that it can",
    async (fixture) => {
      await suspect(fixture, 151, ...names("hidden", 150));
      await fixture.declare(kind("fax"));
      await suspect(fixture, 2, { id: "seen", kind: "fax" });
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await worker.claim(roomFor(9, ["fax"]))), ["seen"]);
    },
  );

  specify("a suspect stays one after a retry that waited, and is fresh again after a new step", async (fixture) => {
    await suspect(fixture, 2, "a");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await worker.settle(SETTLE.fail(job, 5_000));
    await fixture.clock.advance(5_000);
    const again = await worker.next();
    assert.equal(again.together, 1);
    await worker.record(again, { type: "step", name: "render", result: null });
    await worker.settle(SETTLE.release(again));
    assert.equal((await worker.next()).together, null);
  });

  specify("a job that was redriven by hand is fresh again", async (fixture) => {
    await suspect(fixture, 2, "a");
    await fixture.store.operate.cancel("a", "operator");
    await fixture.store.operate.retry("a", "operator");
    await fixture.enqueue("b");
    const claimed = await (await fixture.worker("w")).claim(roomFor(9, undefined, { count: 1, together: 1 }));
    assert.deepEqual(
      claimed.map(({ lease, together }) => [lease.jobId, together]),
      [
        ["a", null],
        ["b", null],
      ],
    );
  });

  specify("a suspect that waits is counted as ready, and can be cancelled", async (fixture) => {
    await suspect(fixture, 2, "a");
    assert.equal((await fixture.countsOf("mail")).ready, 1);
    assert.deepEqual(await fixture.store.operate.cancel("a", "operator"), { is: "applied", state: "cancelled" });
    await fixture.enqueue("b");
    assert.deepEqual(idsOf(await (await fixture.worker("w")).claim(9)), ["b"]);
  });
}

let deaths = 0;

/**
 * Enqueues these jobs and lets two workers die while running them. The second worker held `died` jobs in total, so each
 * may run with half as many. The other jobs are cancelled at the end. Waiting suspects of a higher priority would be
 * claimed instead.
 */
async function suspect(fixture: Fixture, died: number, ...jobs: readonly (string | Draft)[]): Promise<void> {
  const kinds = [...new Set(jobs.map((one) => (typeof one === "string" ? "mail" : (one.kind ?? "mail"))))];
  const group = `group${++deaths}-`;
  const companions = names(group, died - jobs.length).map((id): Draft => ({ id, kind: kinds[0]!, priority: 100 }));
  await fixture.enqueue(...jobs, ...companions);
  for (const suspects of [{ count: 1, together: 1 }, {}]) {
    const worker: TestWorker = await fixture.worker(`${group}${suspects.count ?? 0}`);
    assert.equal((await worker.claim(roomFor(died, kinds, suspects))).length, died);
    await fixture.recoverAll(worker);
  }
  for (const { id } of companions) await fixture.store.operate.cancel(id, "operator");
}

/** The states of a job after each of `times` deaths of workers that held only it. */
async function dyingAlone(fixture: Fixture, id: string, times: number): Promise<readonly (JobState | "missing")[]> {
  const states: (JobState | "missing")[] = [];
  for (const worker of names("alone", times)) {
    const hand = await fixture.worker(worker);
    assert.deepEqual(idsOf(await hand.claim(1)), [id]);
    await fixture.recoverAll(hand);
    states.push(...(await fixture.states(id)));
  }
  return states;
}

/** Crashes and blame of each. */
async function blamed(fixture: Fixture, ...ids: readonly string[]): Promise<readonly (readonly number[])[]> {
  const jobs = await Promise.all(ids.map((id) => fixture.job(id)));
  return jobs.map(({ counters }) => [counters.crashes, counters.blamed]);
}
