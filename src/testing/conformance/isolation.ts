// What the port promises about isolation: who is blamed for a death, and with how many others a suspect is claimed.
import assert from "node:assert/strict";
import { BACKGROUND_MS, type HeldSuspects } from "../../core/isolation.ts";
import type { JobState } from "../../core/job.ts";
import { type Draft, kind, names } from "./drafts.ts";
import { type Hand, idsOf, roomFor, SETTLE } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";

export function specifyIsolation(specify: Specify): void {
  specify(
    "a job that was alone in its worker when that died is blamed; of several fresh ones none is",
    async (scene) => {
      await scene.enqueue("a");
      const first = await scene.worker("w1");
      await first.next();
      await scene.bury(first);
      assert.deepEqual(await blamed(scene, "a"), [[1, 1]]);
      await scene.enqueue("b", "c");
      const second = await scene.worker("w2");
      await second.claim(9);
      await scene.bury(second);
      assert.deepEqual(await blamed(scene, "a", "b", "c"), [
        [2, 2],
        [1, 0],
        [1, 0],
      ]);
    },
  );

  specify(
    "who was alone is told by what the worker held at its death, not by what a later transaction finds",
    async (scene) => {
      await scene.enqueue("a", "b", "c");
      const worker = await scene.worker("w");
      await worker.claim(9);
      const first = await scene.recover(worker, { limit: 1 });
      const second = await scene.recover(worker, { limit: 1 });
      const third = await scene.recover(worker, { limit: 1, by: await scene.connect() });
      assert.equal([first, second, third].flatMap(({ jobs }) => jobs).length, 3);
      assert.deepEqual(await blamed(scene, "a", "b", "c"), Array(3).fill([1, 0]));
    },
  );

  specify("museum 9: every death counts, so a job that kills each of its workers ends in quarantine", async (scene) => {
    await scene.enqueue("killer", "bystander");
    const first = await scene.worker("w0");
    await first.claim(2);
    await scene.bury(first);
    const second = await scene.worker("w1");
    assert.deepEqual(idsOf(await second.claim(1)), ["killer"]);
    await scene.bury(second);
    const other = await scene.worker("other");
    const [bystander, ...more] = await other.claim(9);
    assert.deepEqual([bystander?.lease.jobId, more], ["bystander", []], "it crashed once, and goes first");
    await other.settle(SETTLE.succeed(bystander!));
    for (const id of ["w2", "w3"]) {
      const worker = await scene.worker(id);
      const claimed = await worker.claim(9);
      assert.deepEqual([idsOf(claimed), claimed[0]?.together], [["killer"], 1]);
      await scene.bury(worker);
    }
    assert.deepEqual(await scene.states("killer", "bystander"), ["quarantined", "succeeded"]);
    assert.deepEqual(await blamed(scene, "killer", "bystander"), [
      [4, 3],
      [1, 0],
    ]);
  });

  specify(
    "museum 10: the last crash of a job is told: by its state, its error, its history and the incident",
    async (scene) => {
      await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      await worker.next();
      const { incident, jobs } = await scene.bury(worker);
      assert.deepEqual([jobs[0]?.decision, jobs[0]?.limit], ["quarantine", 1]);
      const job = await scene.job("a");
      assert.deepEqual([job.state, job.lastOutcome, job.error?.name], ["quarantined", "crashed", "WorkerDied"]);
      assert.equal(job.finishedAt, scene.clock.now());
      const entry = job.history.at(-1);
      assert.deepEqual([entry?.event, entry?.to, entry?.incident], ["crash", "quarantined", incident]);
      assert.equal((await scene.countsOf("mail")).quarantined, 1);
    },
  );

  specify(
    "a job is not blamed while as many workers die that did not hold it, and is when it stands out again",
    async (scene) => {
      await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 2 } }));
      await scene.enqueue("a");
      for (const id of ["idle1", "idle2"]) await scene.bury(await scene.worker(id));
      assert.deepEqual(await dyingAlone(scene, "a", 3), ["queued", "queued", "quarantined"]);
      assert.deepEqual(await blamed(scene, "a"), [[3, 3]]);
    },
  );

  specify("however many others die, three times its limit of deaths alone is the end of a job", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await scene.enqueue("a");
    for (const id of names("idle", 9)) await scene.bury(await scene.worker(id));
    assert.deepEqual(await dyingAlone(scene, "a", 3), ["queued", "queued", "quarantined"]);
  });

  specify("deaths of long ago, before the first crash of a job, say nothing about its own", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await scene.enqueue("a");
    for (const id of names("idle", 9)) await scene.bury(await scene.worker(id));
    await scene.clock.advance(BACKGROUND_MS + 1);
    assert.deepEqual(await dyingAlone(scene, "a", 1), ["quarantined"]);
  });

  specify("suspects run next to fresh jobs, and each says with how many others it may run", async (scene) => {
    await suspect(scene, 4, "a", "b");
    await scene.enqueue("fresh", { id: "sms", kind: "sms" });
    const claimed = await (await scene.worker("w")).claim(9);
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
    async (scene) => {
      const together = async (...ids: readonly string[]): Promise<readonly number[]> =>
        (await Promise.all(ids.map((id) => scene.job(id)))).map((job) => job.together);
      await scene.enqueue(...names("j", 9));
      for (const [id, after] of [
        ["first", 0],
        ["second", 4],
      ] as const) {
        const worker = await scene.worker(id);
        assert.equal((await worker.claim(9)).length, 9);
        await scene.bury(worker);
        assert.deepEqual(await together("j0001", "j0009"), [after, after], id);
      }
      await scene.enqueue(...names("fresh", 5));
      const third = await scene.worker("third");
      assert.equal((await third.claim(9)).length, 9, "four of the suspects, and the fresh ones");
      await scene.bury(third);
      assert.deepEqual(await together("j0001", "j0005", "fresh0001"), [2, 4, 0]);
    },
  );

  specify(
    "a worker takes suspects while their number stays within the smallest `together` that it holds",
    async (scene) => {
      await suspect(scene, 6, ...names("three", 5));
      await suspect(scene, 4, ...names("two", 3));
      const claim = async (held: Partial<HeldSuspects>): Promise<readonly string[]> => {
        const worker = await scene.worker(`w${++deaths}`);
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
    async (scene) => {
      await suspect(scene, 6, "three");
      await suspect(scene, 2, { id: "alone", priority: 5 });
      await scene.enqueue("fresh", { id: "low", priority: -1 });
      const claimed = await (await scene.worker("w")).claim(roomFor(3, undefined, { count: 2, together: 3 }));
      assert.deepEqual(idsOf(claimed), ["three", "fresh", "low"]);
    },
  );

  specify("fresh jobs and suspects are claimed by priority, each kind within its room", async (scene) => {
    await suspect(scene, 8, { id: "a", priority: 5 }, "low-suspect");
    await scene.enqueue(
      "low",
      { id: "same", priority: 5 },
      { id: "high", priority: 6 },
      { id: "sms", kind: "sms", priority: 7 },
    );
    const worker = await scene.worker("w");
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

  specify("within a priority those that may run with the most others go first, or the oldest", async (scene) => {
    await suspect(scene, 2, "oldest");
    await suspect(scene, 8, "four", { id: "high", priority: 1 });
    const worker = await scene.worker("w");
    const largest = await worker.claim(1);
    assert.deepEqual(idsOf(largest), ["high"]);
    const held = { count: 0, together: null };
    assert.deepEqual(idsOf(await worker.claim(roomFor(1, undefined, { ...held, oldestFirst: true }))), ["oldest"]);
    assert.deepEqual(idsOf(await worker.claim(1)), ["four"]);
  });

  specify("the only suspect among fresh jobs is blamed for a death, and they are not", async (scene) => {
    await suspect(scene, 2, "a");
    await scene.enqueue("x", "y");
    const worker = await scene.worker("w");
    assert.equal((await worker.claim(9)).length, 3);
    const { incident } = await scene.bury(worker);
    assert.deepEqual(await blamed(scene, "a", "x", "y"), [
      [3, 1],
      [1, 0],
      [1, 0],
    ]);
    const { jobs } = (await scene.store.incident(incident!))!;
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
    async (scene) => {
      const innocent = names("innocent", 49);
      await scene.enqueue("killer", ...innocent);
      let worked = 0;
      for (let death = 1; ; death++) {
        const worker = await scene.worker(`w${death}`);
        for (;;) {
          const claimed = await worker.claim(50);
          if (idsOf(claimed).includes("killer")) break;
          await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
          worked += claimed.length;
        }
        await scene.bury(worker);
        if ((await scene.job("killer")).state === "quarantined") {
          // 50, 50, 25, 12, 6, 3, and then three times alone.
          assert.equal(death, 9);
          break;
        }
      }
      const rest = await scene.worker("rest");
      for (let claimed = await rest.claim(50); claimed.length > 0; claimed = await rest.claim(50)) {
        await rest.settle(...claimed.map((job) => SETTLE.succeed(job)));
        worked += claimed.length;
      }
      assert.equal(worked, 49);
    },
  );

  specify("which workers hold suspects is known, and how many", async (scene) => {
    await suspect(scene, 6, "a", "b");
    assert.deepEqual(await scene.store.suspects(), []);
    const worker = await scene.worker("w");
    await scene.enqueue("fresh");
    const claimed = await worker.claim(9);
    assert.deepEqual(await scene.store.suspects(), [{ worker: "w", count: 2, together: 3 }]);
    await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
    assert.deepEqual(await scene.store.suspects(), []);
  });

  specify("a worker that can't run the kind, or has no room for it, does not take it", async (scene) => {
    await suspect(scene, 2, "a");
    await scene.enqueue({ id: "x", kind: "sms" }, { id: "y", kind: "sms" });
    const worker = await scene.worker("w");
    assert.deepEqual(idsOf(await worker.claim(roomFor(1, ["sms"]))), ["x"]);
    const kinds = [
      { kind: "mail", room: 0 },
      { kind: "sms", room: 9 },
    ];
    assert.deepEqual(idsOf(await worker.claim({ total: 9, kinds })), ["y"]);
    assert.deepEqual(await scene.states("a"), ["queued"]);
  });

  specify("a suspect of a paused kind keeps no worker from other jobs", async (scene) => {
    await suspect(scene, 2, "a");
    await scene.enqueue({ id: "x", kind: "sms" });
    await scene.store.setPaused("mail", true);
    assert.deepEqual(idsOf(await (await scene.worker("w")).claim(9)), ["x"]);
  });

  specify(
    "museum 6: many suspects of a kind that a worker can't run do not hide the one that it can",
    async (scene) => {
      await suspect(scene, 151, ...names("hidden", 150));
      await scene.declare(kind("fax"));
      await suspect(scene, 2, { id: "seen", kind: "fax" });
      const worker = await scene.worker("w");
      assert.deepEqual(idsOf(await worker.claim(roomFor(9, ["fax"]))), ["seen"]);
    },
  );

  specify("a suspect stays one after a retry that waited, and is fresh again after a new step", async (scene) => {
    await suspect(scene, 2, "a");
    const worker = await scene.worker("w");
    const job = await worker.next();
    await worker.settle(SETTLE.fail(job, 5_000));
    await scene.clock.advance(5_000);
    const again = await worker.next();
    assert.equal(again.together, 1);
    await worker.record(again, { type: "step", name: "render", result: null });
    await worker.settle(SETTLE.release(again));
    assert.equal((await worker.next()).together, null);
  });

  specify("a job that was redriven by hand is fresh again", async (scene) => {
    await suspect(scene, 2, "a");
    await scene.store.cancel("a", "operator");
    await scene.store.retry("a", "operator");
    await scene.enqueue("b");
    const claimed = await (await scene.worker("w")).claim(roomFor(9, undefined, { count: 1, together: 1 }));
    assert.deepEqual(
      claimed.map(({ lease, together }) => [lease.jobId, together]),
      [
        ["a", null],
        ["b", null],
      ],
    );
  });

  specify("a suspect that waits is counted as ready, and can be cancelled", async (scene) => {
    await suspect(scene, 2, "a");
    assert.equal((await scene.countsOf("mail")).ready, 1);
    assert.deepEqual(await scene.store.cancel("a", "operator"), { is: "applied", state: "cancelled" });
    await scene.enqueue("b");
    assert.deepEqual(idsOf(await (await scene.worker("w")).claim(9)), ["b"]);
  });
}

let deaths = 0;

/**
 * Enqueues these and lets two workers die over them, the second of which held `died` jobs with them, so that each may run with half as many.
 * Nothing else of those is left. Suspects of a higher priority that wait already would be claimed instead.
 */
async function suspect(scene: Scene, died: number, ...said: readonly (string | Draft)[]): Promise<void> {
  const kinds = [...new Set(said.map((one) => (typeof one === "string" ? "mail" : (one.kind ?? "mail"))))];
  const group = `group${++deaths}-`;
  const companions = names(group, died - said.length).map((id): Draft => ({ id, kind: kinds[0]!, priority: 100 }));
  await scene.enqueue(...said, ...companions);
  for (const suspects of [{ count: 1, together: 1 }, {}]) {
    const worker: Hand = await scene.worker(`${group}${suspects.count ?? 0}`);
    assert.equal((await worker.claim(roomFor(died, kinds, suspects))).length, died);
    await scene.bury(worker);
  }
  for (const { id } of companions) await scene.store.cancel(id, "operator");
}

/** The states of a job after each of so many deaths of workers that held only it. */
async function dyingAlone(scene: Scene, id: string, times: number): Promise<readonly (JobState | "missing")[]> {
  const states: (JobState | "missing")[] = [];
  for (const worker of names("alone", times)) {
    const hand = await scene.worker(worker);
    assert.deepEqual(idsOf(await hand.claim(1)), [id]);
    await scene.bury(hand);
    states.push(...(await scene.states(id)));
  }
  return states;
}

/** Crashes and blame of each. */
async function blamed(scene: Scene, ...ids: readonly string[]): Promise<readonly (readonly number[])[]> {
  const jobs = await Promise.all(ids.map((id) => scene.job(id)));
  return jobs.map(({ counters }) => [counters.crashes, counters.blamed]);
}
