// What the port promises about recovery's transactions: one incident per death, every job once, resumable from any
// point by any process.
import assert from "node:assert/strict";
import { decideCrash, type RecoveredBatch } from "../../recovery/recover.ts";
import { answers, type Fixture, idsOf, kind, names, recoverOnce, roomFor, SETTLE, type Specify } from "./fixture.ts";

export function specifyRecover(specify: Specify): void {
  specify(
    "known bug 1: a worker that dies between its claim and its first heartbeat is found, and its job runs again",
    async (fixture) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      await worker.next();
      const [row] = await fixture.store.workers({});
      assert.deepEqual([row?.id, row?.state, row?.beats, row?.heldCount], ["w", "live", 0, 1]);
      const { jobs } = await fixture.recoverAll(worker);
      assert.deepEqual(
        jobs.map((job) => [job.jobId, job.decision, job.success]),
        [["a", "retry", true]],
      );
      const next = await fixture.worker("next");
      assert.deepEqual((await next.next()).lastOutcome, "crashed");
    },
  );

  specify("nothing is taken back in the name of an incident that the worker does not have", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.next();
    const condemned = await fixture.store.condemn(await fixture.recovery(worker));
    assert.ok(condemned !== null && condemned !== "locked");
    const { jobs } = await fixture.store.heldBy({ condemned, limit: 10 });
    const verdicts = jobs.map((job) => ({ job, alone: true, ...decideCrash(job, condemned), error: null }));
    const other = { ...condemned, incident: "of-another-store" };
    const refused = await fixture.store.takeBack({ verdicts, of: other, last: true });
    assert.deepEqual(refused.taken, ["moved"]);
    assert.deepEqual([(await worker.row()).state, await fixture.states("a")], ["recovering", ["running"]]);
    const taken = await fixture.store.takeBack({ verdicts, of: condemned, last: true });
    assert.deepEqual(taken, { taken: ["taken"] });
    assert.deepEqual([(await worker.row()).state, await fixture.states("a")], ["gone", ["queued"]]);
  });

  specify("a job that could not be recovered is tried again, in the same incident", async (fixture) => {
    await fixture.enqueue("a", "b");
    const worker = await fixture.worker("w");
    await worker.claim(2);
    const request = await fixture.recovery(worker);
    const failing: typeof request.decide = (job, condemned) => {
      if (job.id === "a") throw new Error("no decision");
      return request.decide(job, condemned);
    };
    const first = await recoverOnce(fixture.store, { ...request, decide: failing });
    assert.equal(first.done, true);
    assert.deepEqual(
      first.jobs.map(({ jobId, success, error }) => [jobId, success, error]),
      [
        ["a", false, "no decision"],
        ["b", true, null],
      ],
    );
    await fixture.worker("empty-handed");
    await fixture.store.leave("empty-handed");
    await (await fixture.worker("at-work")).claim(2);
    const leftBehind = async (): Promise<unknown> =>
      (await fixture.store.workers({ which: "leftBehind" })).map(({ id, state, heldCount }) => [id, state, heldCount]);
    assert.deepEqual(await leftBehind(), [["w", "gone", 1]]);
    const again = await recoverOnce(fixture.store, { ...request, incident: "another" });
    assert.equal(again.incident, first.incident);
    assert.deepEqual(
      again.jobs.map(({ jobId, success }) => [jobId, success]),
      [["a", true]],
    );
    assert.deepEqual(await leftBehind(), []);
    const incident = await fixture.store.inspect.incident(first.incident!);
    assert.deepEqual(
      incident?.jobs.map(({ jobId, success }) => [jobId, success]),
      [
        ["a", true],
        ["b", true],
      ],
    );
    assert.equal((await fixture.store.inspect.incidents(10, null)).length, 1);
  });

  specify(
    "a recovery that tries again and is killed before it takes anything leaves work for the next",
    async (fixture) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      await worker.next();
      const failing = (): never => {
        throw new Error("no decision");
      };
      const { incident } = await fixture.recover(worker, { decide: failing });
      assert.deepEqual([(await worker.row()).state, (await fixture.job("a")).state], ["gone", "running"]);
      const condemned = await fixture.store.condemn(await fixture.recovery(worker));
      assert.ok(condemned !== null && condemned !== "locked");
      assert.equal(condemned.incident, incident);
      assert.equal((await worker.row()).state, "recovering", "the next pass finds it");
      await fixture.recoverAll(worker);
      assert.deepEqual([(await worker.row()).state, (await fixture.job("a")).state], ["gone", "queued"]);
      assert.notEqual((await fixture.store.inspect.incident(incident!))?.completedAt, null);
    },
  );

  specify(
    "known bug 37: a worker that drains while it is recovered claims none of what was requeued, nor anything else",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const [a] = await worker.claim(2);
      // Condemned, and one of its two jobs is taken back: it has not heard of that yet.
      await fixture.recover(worker, { limit: 1 });
      const during = await worker.turn([SETTLE.release(a!)], roomFor(3));
      assert.deepEqual([during.live, during.claimed, answers(during.settled)], [false, [], ["stale"]]);
      await fixture.recoverAll(worker);
      const after = await worker.turn([], roomFor(3));
      assert.deepEqual([after.live, after.claimed], [false, []]);
      const other = await fixture.worker("other");
      assert.deepEqual(idsOf(await other.claim(3)).toSorted(), ["a", "b", "c"]);
    },
  );

  specify("known bug 4: a job that finished before recovery's transaction keeps its end", async (fixture) => {
    await fixture.enqueue("a", "b", "c");
    const worker = await fixture.worker("w");
    const [a, b] = await worker.claim(3);
    const request = await fixture.recovery(worker);
    await worker.settle(SETTLE.succeed(a!, "1"), SETTLE.failForGood(b!));
    const answer = await recoverOnce(fixture.store, request);
    assert.deepEqual(
      answer.jobs.map(({ jobId }) => jobId),
      ["c"],
    );
    assert.deepEqual(await fixture.states("a", "b", "c"), ["succeeded", "dead", "queued"]);
    assert.deepEqual((await fixture.job("a")).history, []);
  });

  specify(
    "known bug 4: when a settlement and a recovery meet, exactly one of them decides each job",
    async (fixture) => {
      const ids = names("j", 20);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      const jobs = await worker.claim(20);
      const other = await fixture.connect();
      const request = await fixture.recovery(worker, { limit: 3 });
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
      const states = await fixture.states(...ids);
      assert.equal(states.filter((state) => state === "succeeded").length, applied);
      assert.equal(states.filter((state) => state === "queued").length, taken.length);
    },
  );

  specify(
    "a recovery in small transactions takes every job once, and the worker is recovering until the last",
    async (fixture) => {
      const ids = names("j", 5);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      await worker.claim(9);
      const request = await fixture.recovery(worker, { limit: 2 });
      const first = await recoverOnce(fixture.store, request);
      assert.deepEqual([first.jobs.length, first.done, (await worker.row()).state], [2, false, "recovering"]);
      const second = await recoverOnce(fixture.store, request);
      assert.deepEqual([second.jobs.length, second.done, (await worker.row()).state], [2, false, "recovering"]);
      const third = await recoverOnce(fixture.store, request);
      assert.deepEqual([third.jobs.length, third.done, (await worker.row()).state], [1, true, "gone"]);
      assert.deepEqual(takenBy(first, second, third).toSorted(), ids);
      assert.deepEqual(await fixture.incidentsOf(worker), [first.incident]);
      const incident = await fixture.store.inspect.incident(first.incident!);
      assert.deepEqual([incident?.jobCount, incident?.heldAtDeath, incident?.completedAt], [5, 5, fixture.clock.now()]);
      assert.ok((await Promise.all(ids.map((id) => fixture.job(id)))).every((job) => job.counters.crashes === 1));
    },
  );

  specify(
    "a recovery that was interrupted half-way is finished by another process, in the same incident",
    async (fixture) => {
      const ids = names("j", 7);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      await worker.claim(9);
      const first = await fixture.recover(worker, { limit: 2 });
      assert.equal((await fixture.store.inspect.incident(first.incident!))?.completedAt, null);
      const other = await fixture.connect();
      assert.deepEqual(
        (await other.workers({})).map(({ state }) => state),
        ["recovering"],
        "the next pass finds it",
      );
      const rest = await fixture.recoverAll(worker, { by: other, limit: 2 });
      assert.equal(rest.incident, first.incident);
      assert.deepEqual(await fixture.incidentsOf(worker), [first.incident]);
      assert.deepEqual([...takenBy(first), ...rest.jobs.map(({ jobId }) => jobId)].toSorted(), ids);
      const incident = await fixture.store.inspect.incident(first.incident!);
      assert.deepEqual([incident?.recovery, incident?.jobCount, incident?.heldAtDeath], ["recovery-000001", 7, 7]);
    },
  );

  specify(
    "two recoverers that take turns, also beyond the end, share one incident and count every crash once",
    async (fixture) => {
      const ids = names("j", 7);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      await worker.claim(9);
      const here = await fixture.recovery(worker, { limit: 2 });
      const there = await fixture.recovery(worker, { limit: 2 });
      const other = await fixture.connect();
      const taken: RecoveredBatch[] = [];
      for (let turn = 0; turn < 5; turn++)
        taken.push(await recoverOnce(fixture.store, here), await recoverOnce(other, there));
      assert.deepEqual(takenBy(...taken).toSorted(), ids);
      assert.deepEqual(await fixture.incidentsOf(worker), [here.incident]);
      assert.ok((await Promise.all(ids.map((id) => fixture.job(id)))).every((job) => job.counters.crashes === 1));
      assert.equal((await worker.row()).state, "gone");
    },
  );

  specify(
    "FR-029 NFR-006 AC-011 UT-005 recoverers on several connections at once share one incident and take every job once",
    async (fixture) => {
      const ids = names("j", 25);
      await fixture.enqueue(...ids);
      const worker = await fixture.worker("w");
      await worker.claim(25);
      const stores = await Promise.all([fixture.connect(), fixture.connect(), fixture.connect()]);
      const recovered = await Promise.all(stores.map((by) => fixture.recoverAll(worker, { by, limit: 2 })));
      assert.deepEqual(recovered.flatMap(({ jobs }) => jobs.map(({ jobId }) => jobId)).toSorted(), ids);
      assert.equal((await fixture.incidentsOf(worker)).length, 1);
      const [incident] = await fixture.incidentsOf(worker);
      const { completedAt } = (await fixture.store.inspect.incident(incident!))!;
      assert.deepEqual([(await worker.row()).state, completedAt], ["gone", fixture.clock.now()]);
    },
  );

  specify(
    "a recovery of a worker that has ended, by whatever way, opens no incident and writes nothing",
    async (fixture) => {
      const dead = await fixture.worker("dead");
      const left = await fixture.worker("left");
      const requests = [await fixture.recovery(dead), await fixture.recovery(left)];
      await fixture.recoverAll(dead);
      assert.equal(await fixture.store.leave("left"), true);
      for (const request of requests) {
        assert.deepEqual(await recoverOnce(fixture.store, request), {
          incident: null,
          opened: false,
          jobs: [],
          done: true,
        });
      }
      assert.deepEqual([(await dead.row()).state, (await left.row()).state], ["gone", "stopped"]);
      assert.equal((await fixture.incidentsOf(dead)).length, 1);
      assert.equal((await fixture.incidentsOf(left)).length, 0);
    },
  );

  specify("known bug 18: a worker that was taken for silent and has beaten since is left alone", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    const death = { how: "silent", lastSeenAliveAt: null, detectedAt: fixture.clock.now(), evidence: null } as const;
    const request = await fixture.recovery(worker, { death });
    await fixture.store.beat("w", { loopLagMs: 0 });
    assert.deepEqual(await recoverOnce(fixture.store, request), {
      incident: null,
      opened: false,
      jobs: [],
      done: true,
    });
    assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["applied"]);
  });

  specify("HR-10 a heartbeat between the check and the takeover wins, and its requests stay", async (fixture) => {
    await fixture.declare(kind("mail", { onCrash: "resend" }));
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    const death = { how: "silent", lastSeenAliveAt: null, detectedAt: fixture.clock.now(), evidence: null } as const;
    const request = await fixture.recovery(worker, { death });
    await fixture.store.beat("w", { loopLagMs: 0 });
    const { incident, jobs } = await recoverOnce(fixture.store, request);
    assert.deepEqual([incident, jobs], [null, []]);
    // Without a heartbeat since the check the same request is taken, once, and is queued again.
    const again = await recoverOnce(fixture.store, await fixture.recovery(worker, { death }));
    assert.deepEqual(
      again.jobs.map(({ jobId }) => jobId),
      ["a"],
    );
    assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["stale"]);
  });

  specify("a recovery touches nothing of other workers, and nothing that waits", async (fixture) => {
    await fixture.enqueue("a", "b", "c");
    const worker = await fixture.worker("w");
    await worker.next();
    const other = await fixture.worker("other");
    const job = await other.next();
    const { jobs } = await fixture.recoverAll(worker);
    assert.equal(jobs.length, 1);
    assert.deepEqual(await fixture.states("a", "b", "c"), ["queued", "running", "queued"]);
    assert.deepEqual(answers(await other.settle(SETTLE.succeed(job))), ["applied"]);
    assert.deepEqual((await fixture.job("c")).history, []);
  });

  specify(
    "known bug 12: connecting, declaring, registering and raising the epoch leave the evidence of a death alone",
    async (fixture) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      const other = await fixture.connect();
      await other.declare([kind("mail")]);
      await other.upkeep.raiseEpoch();
      const next = await fixture.worker("next", { store: other });
      assert.deepEqual(await next.claim(9), []);
      const { state, worker: owner, epoch, attempt } = await fixture.job("a");
      const { epoch: then, fence: number } = job.lease;
      assert.deepEqual([state, owner, epoch, attempt], ["running", "w", then, number]);
      assert.equal((await worker.row()).heldCount, 1);
      assert.equal((await fixture.recoverAll(worker, { by: other })).jobs.length, 1);
    },
  );

  specify(
    "known bug 13: a dead worker with the host name and pid of a living one is another worker",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const dead = await fixture.worker("host-1-x", { host: "host", pid: 1 });
      await dead.next();
      const reborn = await fixture.worker("host-1-y", { host: "host", pid: 1 });
      const job = await reborn.next();
      const { jobs } = await fixture.recoverAll(dead);
      assert.deepEqual(
        jobs.map(({ jobId }) => jobId),
        ["a"],
      );
      assert.deepEqual([(await dead.row()).state, (await reborn.row()).state], ["gone", "live"]);
      assert.deepEqual(answers(await reborn.settle(SETTLE.succeed(job))), ["applied"]);
    },
  );
}

function takenBy(...recovered: readonly RecoveredBatch[]): readonly string[] {
  return recovered.flatMap(({ jobs }) => jobs.map(({ jobId }) => jobId));
}

// What the port promises about each job of a dead worker: the decision is written atomically, a failing one stops no
// other, and what a kind or an operator decided before the death counts.

export function specifyVerdicts(specify: Specify): void {
  specify(
    "a job whose decision throws is listed with its error, stays as it is, and stops no other",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      await worker.claim(9);
      const { jobs, incident } = await fixture.recoverAll(worker, { decide: throwingFor("b") });
      assert.deepEqual(
        jobs.map((job) => [job.jobId, job.decision, job.success, job.error]),
        [
          ["a", "retry", true, null],
          ["b", "none", false, "no decision about b"],
          ["c", "retry", true, null],
        ],
      );
      assert.deepEqual(await fixture.states("a", "b", "c"), ["queued", "running", "queued"]);
      assert.equal((await fixture.job("b")).counters.crashes, 0);
      const stored = await fixture.store.inspect.incident(incident!);
      assert.deepEqual(
        stored?.jobs.map((job) => job.success),
        [true, false, true],
      );
    },
  );

  specify("known bug 6: a page full of jobs that can't be recovered does not hide the others", async (fixture) => {
    await fixture.enqueue(...names("bad", 4), ...names("good", 4));
    const worker = await fixture.worker("w");
    await worker.claim(9);
    const { jobs } = await fixture.recoverAll(worker, { limit: 2, decide: throwingFor("bad") });
    assert.equal(jobs.length, 8);
    assert.deepEqual(await fixture.states(...names("good", 4)), Array(4).fill("queued"));
  });

  specify(
    "known bug 20: a job whose own recovery failed can be recovered later: it is not left with the dead forever",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      await worker.claim(9);
      await fixture.recoverAll(worker, { decide: throwingFor("b") });
      const { jobs } = await fixture.recoverAll(worker);
      assert.deepEqual(
        jobs.map((job) => [job.jobId, job.success]),
        [["b", true]],
      );
      assert.deepEqual(await fixture.states("a", "b"), ["queued", "queued"]);
    },
  );

  specify("known bug 22: a cancel that was asked for before the death is honoured by recovery", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.next();
    assert.deepEqual(await fixture.store.operate.cancel("a", "operator"), { is: "requested" });
    const { jobs } = await fixture.recoverAll(worker);
    assert.deepEqual(
      jobs.map((job) => job.decision),
      ["cancel"],
    );
    const job = await fixture.job("a");
    assert.deepEqual([job.state, job.lastOutcome, job.counters.crashes], ["cancelled", "cancelled", 0]);
    assert.deepEqual(await (await fixture.worker("next")).claim(9), []);
  });

  specify("FR-013 FR-014 a kind's own answer to a crash is kept: uncounted, or the end", async (fixture) => {
    await fixture.declare(kind("mail", { onCrash: "requeue" }), kind("sms", { onCrash: "fail" }));
    await fixture.enqueue("a", { id: "b", kind: "sms" });
    const worker = await fixture.worker("w");
    await worker.claim(9);
    const { jobs } = await fixture.recoverAll(worker);
    assert.deepEqual(
      jobs.map((job) => job.decision),
      ["requeue", "fail"],
    );
    const [a, b] = [await fixture.job("a"), await fixture.job("b")];
    assert.deepEqual([a.state, a.counters.crashes, a.history.length], ["queued", 0, 1]);
    assert.deepEqual([b.state, b.counters.crashes, b.error?.name], ["dead", 1, "WorkerDied"]);
  });
}

/** Decides as recovery does, but throws for jobs whose id begins with `prefix`. */
function throwingFor(prefix: string): Awaited<ReturnType<Fixture["recovery"]>>["decide"] {
  return (job, condemned) => {
    if (job.id.startsWith(prefix)) throw new Error(`no decision about ${job.id}`);
    return decideCrash(job, condemned);
  };
}
