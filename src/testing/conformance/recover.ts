// What the port promises about recovery's transactions: one incident per death, every job once, from any point on and by anybody.
import assert from "node:assert/strict";
import { kind, names } from "./drafts.ts";
import { answers, SETTLE } from "./hand.ts";
import { recoverOnce, type Specify } from "./scene.ts";
import { decideCrash, type RecoveredBatch } from "../../core/recovery.ts";

export function specifyRecover(specify: Specify): void {
  specify(
    "museum 1: a worker that dies between its claim and its first heartbeat is found, and its job runs again",
    async (scene) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      await worker.next();
      const [row] = await scene.store.workers({});
      assert.deepEqual([row?.id, row?.state, row?.beats, row?.heldCount], ["w", "live", 0, 1]);
      const { jobs } = await scene.bury(worker);
      assert.deepEqual(
        jobs.map((job) => [job.jobId, job.decision, job.success]),
        [["a", "retry", true]],
      );
      const next = await scene.worker("next");
      assert.deepEqual((await next.next()).lastOutcome, "crashed");
    },
  );

  specify("nothing is taken back in the name of an incident that the worker does not have", async (scene) => {
    await scene.enqueue("a");
    const worker = await scene.worker("w");
    await worker.next();
    const condemned = await scene.store.condemn(await scene.recovery(worker));
    assert.ok(condemned !== null && condemned !== "locked");
    const { jobs } = await scene.store.heldBy(condemned, 10);
    const verdicts = jobs.map((job) => ({ job, alone: true, ...decideCrash(job, condemned), error: null }));
    const other = { ...condemned, incident: "of-another-store" };
    const refused = await scene.store.takeBack({ verdicts, of: other, last: true });
    assert.deepEqual(refused.taken, ["moved"]);
    assert.deepEqual([(await worker.row()).state, await scene.states("a")], ["recovering", ["running"]]);
    const taken = await scene.store.takeBack({ verdicts, of: condemned, last: true });
    assert.deepEqual(taken, { taken: ["taken"] });
    assert.deepEqual([(await worker.row()).state, await scene.states("a")], ["gone", ["queued"]]);
  });

  specify("a job that could not be recovered is tried again, in the same incident", async (scene) => {
    await scene.enqueue("a", "b");
    const worker = await scene.worker("w");
    await worker.claim(2);
    const request = await scene.recovery(worker);
    const failing: typeof request.decide = (job, condemned) => {
      if (job.id === "a") throw new Error("no decision");
      return request.decide(job, condemned);
    };
    const first = await recoverOnce(scene.store, { ...request, decide: failing });
    assert.equal(first.done, true);
    assert.deepEqual(
      first.jobs.map(({ jobId, success, error }) => [jobId, success, error]),
      [
        ["a", false, "no decision"],
        ["b", true, null],
      ],
    );
    await scene.worker("empty-handed");
    await scene.store.deregister("empty-handed");
    await (await scene.worker("at-work")).claim(2);
    const leftBehind = async (): Promise<unknown> =>
      (await scene.store.workers({ which: "leftBehind" })).map(({ id, state, heldCount }) => [id, state, heldCount]);
    assert.deepEqual(await leftBehind(), [["w", "gone", 1]]);
    const again = await recoverOnce(scene.store, { ...request, incident: "another" });
    assert.equal(again.incident, first.incident);
    assert.deepEqual(
      again.jobs.map(({ jobId, success }) => [jobId, success]),
      [["a", true]],
    );
    assert.deepEqual(await leftBehind(), []);
    const incident = await scene.store.incident(first.incident!);
    assert.deepEqual(
      incident?.jobs.map(({ jobId, success }) => [jobId, success]),
      [
        ["a", true],
        ["b", true],
      ],
    );
    assert.equal((await scene.store.incidents(10, null)).length, 1);
  });

  specify(
    "a recovery that tries again and is killed before it takes anything leaves work for the next",
    async (scene) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      await worker.next();
      const failing = (): never => {
        throw new Error("no decision");
      };
      const { incident } = await scene.recover(worker, { decide: failing });
      assert.deepEqual([(await worker.row()).state, (await scene.job("a")).state], ["gone", "running"]);
      const condemned = await scene.store.condemn(await scene.recovery(worker));
      assert.ok(condemned !== null && condemned !== "locked");
      assert.equal(condemned.incident, incident);
      assert.equal((await worker.row()).state, "recovering", "the next pass finds it");
      await scene.bury(worker);
      assert.deepEqual([(await worker.row()).state, (await scene.job("a")).state], ["gone", "queued"]);
      assert.notEqual((await scene.store.incident(incident!))?.completedAt, null);
    },
  );

  specify("museum 4: a job that finished before recovery's transaction keeps its end", async (scene) => {
    await scene.enqueue("a", "b", "c");
    const worker = await scene.worker("w");
    const [a, b] = await worker.claim(3);
    const request = await scene.recovery(worker);
    await worker.settle(SETTLE.succeed(a!, "1"), SETTLE.failForGood(b!));
    const answer = await recoverOnce(scene.store, request);
    assert.deepEqual(
      answer.jobs.map(({ jobId }) => jobId),
      ["c"],
    );
    assert.deepEqual(await scene.states("a", "b", "c"), ["succeeded", "dead", "queued"]);
    assert.deepEqual((await scene.job("a")).history, []);
  });

  specify("museum 4: when a settlement and a recovery meet, exactly one of them decides each job", async (scene) => {
    const ids = names("j", 20);
    await scene.enqueue(...ids);
    const worker = await scene.worker("w");
    const jobs = await worker.claim(20);
    const other = await scene.connect();
    const request = await scene.recovery(worker, { limit: 3 });
    const recovered: RecoveredBatch[] = [];
    const recovering = async (): Promise<void> => {
      for (;;) {
        const answer = await recoverOnce(other, request);
        recovered.push(answer);
        if (answer.done) return;
      }
    };
    const settling = jobs.toReversed().map(async (job) => (await worker.settle(SETTLE.succeed(job)))[0]!);
    const [settled] = await Promise.all([Promise.all(settling), recovering()]);
    const applied = settled.filter(({ is }) => is === "applied").length;
    const taken = recovered.flatMap((answer) => answer.jobs);
    assert.equal(applied + taken.length, 20);
    const states = await scene.states(...ids);
    assert.equal(states.filter((state) => state === "succeeded").length, applied);
    assert.equal(states.filter((state) => state === "queued").length, taken.length);
  });

  specify(
    "a recovery in small transactions takes every job once, and the worker is recovering until the last",
    async (scene) => {
      const ids = names("j", 5);
      await scene.enqueue(...ids);
      const worker = await scene.worker("w");
      await worker.claim(9);
      const request = await scene.recovery(worker, { limit: 2 });
      const first = await recoverOnce(scene.store, request);
      assert.deepEqual([first.jobs.length, first.done, (await worker.row()).state], [2, false, "recovering"]);
      const second = await recoverOnce(scene.store, request);
      assert.deepEqual([second.jobs.length, second.done, (await worker.row()).state], [2, false, "recovering"]);
      const third = await recoverOnce(scene.store, request);
      assert.deepEqual([third.jobs.length, third.done, (await worker.row()).state], [1, true, "gone"]);
      assert.deepEqual(takenBy(first, second, third).toSorted(), ids);
      assert.deepEqual(await scene.incidentsOf(worker), [first.incident]);
      const incident = await scene.store.incident(first.incident!);
      assert.deepEqual([incident?.jobCount, incident?.heldAtDeath, incident?.completedAt], [5, 5, scene.clock.now()]);
      assert.ok((await Promise.all(ids.map((id) => scene.job(id)))).every((job) => job.counters.crashes === 1));
    },
  );

  specify(
    "a recovery that was interrupted half-way is finished by another process, in the same incident",
    async (scene) => {
      const ids = names("j", 7);
      await scene.enqueue(...ids);
      const worker = await scene.worker("w");
      await worker.claim(9);
      const first = await scene.recover(worker, { limit: 2 });
      assert.equal((await scene.store.incident(first.incident!))?.completedAt, null);
      const other = await scene.connect();
      assert.deepEqual(
        (await other.workers({})).map(({ state }) => state),
        ["recovering"],
        "the next pass finds it",
      );
      const rest = await scene.bury(worker, { by: other, limit: 2 });
      assert.equal(rest.incident, first.incident);
      assert.deepEqual(await scene.incidentsOf(worker), [first.incident]);
      assert.deepEqual([...takenBy(first), ...rest.jobs.map(({ jobId }) => jobId)].toSorted(), ids);
      const incident = await scene.store.incident(first.incident!);
      assert.deepEqual([incident?.recovery, incident?.jobCount, incident?.heldAtDeath], ["recovery-000001", 7, 7]);
    },
  );

  specify(
    "two recoverers that take turns, also beyond the end, share one incident and count every crash once",
    async (scene) => {
      const ids = names("j", 7);
      await scene.enqueue(...ids);
      const worker = await scene.worker("w");
      await worker.claim(9);
      const here = await scene.recovery(worker, { limit: 2 });
      const there = await scene.recovery(worker, { limit: 2 });
      const other = await scene.connect();
      const taken: RecoveredBatch[] = [];
      for (let turn = 0; turn < 5; turn++)
        taken.push(await recoverOnce(scene.store, here), await recoverOnce(other, there));
      assert.deepEqual(takenBy(...taken).toSorted(), ids);
      assert.deepEqual(await scene.incidentsOf(worker), [here.incident]);
      assert.ok((await Promise.all(ids.map((id) => scene.job(id)))).every((job) => job.counters.crashes === 1));
      assert.equal((await worker.row()).state, "gone");
    },
  );

  specify(
    "FR-029 NFR-006 AC-011 UT-005 recoverers on several connections at once share one incident and take every job once",
    async (scene) => {
      const ids = names("j", 25);
      await scene.enqueue(...ids);
      const worker = await scene.worker("w");
      await worker.claim(25);
      const stores = await Promise.all([scene.connect(), scene.connect(), scene.connect()]);
      const buried = await Promise.all(stores.map((by) => scene.bury(worker, { by, limit: 2 })));
      assert.deepEqual(buried.flatMap(({ jobs }) => jobs.map(({ jobId }) => jobId)).toSorted(), ids);
      assert.equal((await scene.incidentsOf(worker)).length, 1);
      const [incident] = await scene.incidentsOf(worker);
      const { completedAt } = (await scene.store.incident(incident!))!;
      assert.deepEqual([(await worker.row()).state, completedAt], ["gone", scene.clock.now()]);
    },
  );

  specify(
    "a recovery of a worker that is over, by whatever way, opens no incident and writes nothing",
    async (scene) => {
      const dead = await scene.worker("dead");
      const left = await scene.worker("left");
      const requests = [await scene.recovery(dead), await scene.recovery(left)];
      await scene.bury(dead);
      assert.equal(await scene.store.deregister("left"), true);
      for (const request of requests) {
        assert.deepEqual(await recoverOnce(scene.store, request), {
          incident: null,
          opened: false,
          jobs: [],
          done: true,
        });
      }
      assert.deepEqual([(await dead.row()).state, (await left.row()).state], ["gone", "stopped"]);
      assert.equal((await scene.incidentsOf(dead)).length, 1);
      assert.equal((await scene.incidentsOf(left)).length, 0);
    },
  );

  specify("museum 18: a worker that was taken for silent and has beaten since is left alone", async (scene) => {
    await scene.enqueue("a");
    const worker = await scene.worker("w");
    const job = await worker.next();
    const death = { how: "silent", lastSeenAliveAt: null, detectedAt: scene.clock.now(), evidence: null } as const;
    const request = await scene.recovery(worker, { death });
    await scene.store.beat("w", { loopLagMs: 0 });
    assert.deepEqual(await recoverOnce(scene.store, request), { incident: null, opened: false, jobs: [], done: true });
    assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["applied"]);
  });

  specify("a recovery touches nothing of other workers, and nothing that waits", async (scene) => {
    await scene.enqueue("a", "b", "c");
    const worker = await scene.worker("w");
    await worker.next();
    const other = await scene.worker("other");
    const job = await other.next();
    const { jobs } = await scene.bury(worker);
    assert.equal(jobs.length, 1);
    assert.deepEqual(await scene.states("a", "b", "c"), ["queued", "running", "queued"]);
    assert.deepEqual(answers(await other.settle(SETTLE.succeed(job))), ["applied"]);
    assert.deepEqual((await scene.job("c")).history, []);
  });

  specify(
    "museum 12: connecting, declaring, registering and raising the epoch leave the evidence of a death alone",
    async (scene) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      const job = await worker.next();
      const other = await scene.connect();
      await other.declare([kind("mail")]);
      await other.raiseEpoch();
      const next = await scene.worker("next", { store: other });
      assert.deepEqual(await next.claim(9), []);
      const { state, worker: owner, epoch, fence } = await scene.job("a");
      const { epoch: then, fence: number } = job.lease;
      assert.deepEqual([state, owner, epoch, fence], ["running", "w", then, number]);
      assert.equal((await worker.row()).heldCount, 1);
      assert.equal((await scene.bury(worker, { by: other })).jobs.length, 1);
    },
  );

  specify("museum 13: a dead worker with the host name and pid of a living one is another worker", async (scene) => {
    await scene.enqueue("a", "b");
    const dead = await scene.worker("host-1-x", { host: "host", pid: 1 });
    await dead.next();
    const reborn = await scene.worker("host-1-y", { host: "host", pid: 1 });
    const job = await reborn.next();
    const { jobs } = await scene.bury(dead);
    assert.deepEqual(
      jobs.map(({ jobId }) => jobId),
      ["a"],
    );
    assert.deepEqual([(await dead.row()).state, (await reborn.row()).state], ["gone", "live"]);
    assert.deepEqual(answers(await reborn.settle(SETTLE.succeed(job))), ["applied"]);
  });
}

function takenBy(...recovered: readonly RecoveredBatch[]): readonly string[] {
  return recovered.flatMap(({ jobs }) => jobs.map(({ jobId }) => jobId));
}
