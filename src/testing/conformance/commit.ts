// What the port promises about the user's own writes: with the job's success or not at all, under its fence, and once.
import assert from "node:assert/strict";
import { ErrorCode } from "../../job/errors.ts";
import type { ClaimedJob } from "../../job/job.ts";
import { wait } from "../../job/transitions.ts";
import type { RecoveredBatch } from "../../recovery/recover.ts";
import type { Store, WriteAnswer } from "../../stores/port.ts";
import { CommitControl } from "../../worker/run.ts";
import { answers, type Fixture, type TestWorker, roomFor, SETTLE, type Specify } from "./fixture.ts";
import type { UserWrites } from "./suite.ts";

export function specifyCommit(specify: Specify): void {
  const onUserWrites = (title: string, body: (fixture: Fixture, user: UserWrites) => Promise<void>): void =>
    specify(title, async (fixture) => {
      const user = fixture.user();
      if (user) await body(fixture, user);
    });

  /** Only where a user's transaction can be left open. */
  const onOpenTransactions = (
    title: string,
    body: (fixture: Fixture, waiting: NonNullable<UserWrites["waiting"]>, user: UserWrites) => Promise<void>,
  ): void =>
    onUserWrites(title, async (fixture, user) => {
      if (user.waiting) await body(fixture, (text, gate) => user.waiting!(text, gate), user);
      else fixture.t.skip("a transaction of this store can't be left open");
    });

  onUserWrites("a commit writes the user's rows, the success and the result in one step", async (fixture, user) => {
    const { job } = await running(fixture);
    const done = await commit(fixture.store, job, user, "note", () => ({ total: 3 }));
    assert.deepEqual([done.answer.is, done.value], ["applied", { total: 3 }]);
    assert.deepEqual(await user.written(fixture.store), ["note"]);
    const after = await fixture.job("a");
    assert.deepEqual([after.state, after.result, after.finishedAt], ["succeeded", { total: 3 }, fixture.clock.now()]);
    assert.equal((await fixture.countsOf("mail")).succeeded, 1);
  });

  onUserWrites("a commit whose body returns nothing has no result", async (fixture, user) => {
    const { job } = await running(fixture);
    assert.equal((await commit(fixture.store, job, user, "note", () => undefined)).answer.is, "applied");
    assert.equal((await fixture.job("a")).result, null);
  });

  onUserWrites(
    "a commit whose body throws writes nothing, lets the error out, and leaves the attempt running",
    async (fixture, user) => {
      const { worker, job } = await running(fixture);
      const thrown = new Error("not enough money");
      await assert.rejects(
        commit(fixture.store, job, user, "note", () => {
          throw thrown;
        }),
        thrown,
      );
      assert.deepEqual(await user.written(fixture.store), []);
      assert.deepEqual(await fixture.states("a"), ["running"]);
      assert.deepEqual(answers(await worker.settle(SETTLE.fail(job))), ["applied"]);
    },
  );

  onUserWrites("a commit whose result can't be encoded writes nothing", async (fixture, user) => {
    const { job } = await running(fixture);
    const refusing = (): never => {
      throw new Error("no JSON");
    };
    const body = user.writing("note", () => 1);
    await assert.rejects(fixture.store.transactions!.commit(SETTLE.succeed(job), body as never, refusing), /no JSON/);
    assert.deepEqual(await user.written(fixture.store), []);
    assert.deepEqual(await fixture.states("a"), ["running"]);
  });

  onUserWrites(
    "a signal of a user's transaction is kept with its commit, wakes the job, and rings once",
    async (fixture, user) => {
      const worker = await waitingForGo(fixture);
      let rings = 0;
      const stop = fixture.store.onWakeup(() => rings++);
      const send = () => fixture.store.transactions!.transact(user.signalling("a", "click", () => {}) as never);
      const { signalled } = await send();
      stop();
      assert.deepEqual([signalled, rings], [1, 1]);
      assert.equal((await send()).signalled ?? 0, 0, "the same id again adds nothing");
      const again = await untilClaimed(worker);
      const read = { type: "signal", step: "run.signal(go)#1", name: "go", hasEnded: false } as const;
      const [answer] = await worker.record(again, read);
      assert.deepEqual(answer, { is: "applied", signal: { kept: true, payload: '{"n":1}' } });
      const [second] = await worker.record(again, { ...read, step: "run.signal(go)#2" });
      assert.deepEqual(second, { is: "applied", signal: { kept: false } });
    },
  );

  onUserWrites("a signal of a user's transaction that is rolled back was never sent", async (fixture, user) => {
    const worker = await waitingForGo(fixture);
    const failing = user.signalling("a", "click", () => {
      throw new Error("not enough money");
    });
    await assert.rejects(fixture.store.transactions!.transact(failing as never), /not enough money/);
    for (let turns = 0; turns < 5; turns++) assert.deepEqual(await worker.claim(1), []);
    assert.deepEqual(await fixture.store.operate.signal({ job: "a", name: "go", payload: "1", id: "click" }), {
      is: "kept",
    });
  });

  onUserWrites(
    "a commit sends its signals with the success of its job, and a stale one sends none",
    async (fixture, user) => {
      const waits = await waitingForGo(fixture);
      await fixture.enqueue({ id: "sender", kind: "sms" });
      const zombie = await fixture.worker("zombie");
      const stale = await zombie.next();
      await fixture.recoverAll(zombie);
      const body = (id: string) => user.signalling("a", id, () => 1) as never;
      const encode = (): null => null;
      const refused = await fixture.store.transactions!.commit(SETTLE.succeed(stale), body("zombie"), encode);
      assert.equal(refused.answer.is, "stale");
      assert.deepEqual(await waits.claim(roomFor(1, ["mail"])), []);
      const owner = await fixture.worker("owner");
      const job = await owner.next();
      let rings = 0;
      const stop = fixture.store.onWakeup(() => rings++);
      const done = await fixture.store.transactions!.commit(SETTLE.succeed(job), body("owner"), encode);
      stop();
      assert.deepEqual([done.answer.is, rings], ["applied", 1]);
      assert.deepEqual(await fixture.states("sender"), ["succeeded"]);
      assert.equal((await untilClaimed(waits)).lease.jobId, "a");
    },
  );

  onUserWrites(
    "a signal of a user's transaction to a job that has ended, or to none, is refused",
    async (fixture, user) => {
      await fixture.enqueue("a");
      await fixture.store.operate.cancel("a", "operator");
      for (const [id, code] of [
        ["a", ErrorCode.signalRefused],
        ["nobody", ErrorCode.notFound],
      ] as const)
        await assert.rejects(fixture.store.transactions!.transact(user.signalling(id, "click", () => {}) as never), {
          code,
        });
    },
  );

  onUserWrites("known bug 3: a commit by a zombie writes nothing and is stale", async (fixture, user) => {
    const { worker: zombie, job } = await running(fixture);
    await fixture.recoverAll(zombie);
    const owner = await fixture.worker("owner");
    const taken = await owner.next();
    const done = await commit(fixture.store, job, user, "zombie", () => 1);
    assert.ok(done.answer.is === "stale");
    assert.deepEqual([done.answer.stale.worker, done.answer.stale.fence, done.value], ["owner", 2, undefined]);
    assert.deepEqual(await user.written(fixture.store), []);
    assert.equal((await fixture.job("a")).history.at(-1)?.event, "write.rejected");
    assert.equal((await commit(fixture.store, taken, user, "owner", () => 2)).answer.is, "applied");
    assert.deepEqual(await user.written(fixture.store), ["owner"]);
    assert.equal((await fixture.job("a")).result, 2);
  });

  onUserWrites("a commit that is repeated because its answer was lost writes nothing twice", async (fixture, user) => {
    const { job } = await running(fixture);
    await commit(fixture.store, job, user, "note", () => 1);
    const again = await commit(await fixture.connect(), job, user, "note", () => 2);
    assert.deepEqual([again.answer.is, again.value], ["repeated", undefined]);
    assert.deepEqual(await user.written(fixture.store), ["note"]);
    assert.equal((await fixture.job("a")).result, 1);
    assert.equal((await fixture.countsOf("mail")).succeeded, 1);
  });

  onUserWrites(
    "of a commit and a recovery that meet, one decides, and the user's rows follow",
    async (fixture, user) => {
      const { worker, job } = await running(fixture);
      const other = await fixture.connect();
      const [done, recovered] = await Promise.all([
        commit(fixture.store, job, user, "note", () => 1),
        fixture.recoverAll(worker, { by: other }),
      ]);
      const committed = done.answer.is === "applied";
      assert.equal(Number(committed) + recovered.jobs.length, 1);
      assert.deepEqual(await user.written(fixture.store), committed ? ["note"] : []);
      assert.deepEqual(await fixture.states("a"), [committed ? "succeeded" : "queued"]);
    },
  );

  onOpenTransactions(
    "a job whose commit is under way is left out of a recovery, the others are taken at once, and it keeps its end",
    async (fixture, waiting) => {
      const { worker, gate, committing } = await committingWhileOthersRun(fixture, waiting);
      const first = await fixture.recover(worker, { by: await fixture.connect() });
      assert.deepEqual(jobIds(first), ["b", "c"]);
      assert.deepEqual([first.done, first.locked, (await worker.row()).state], [true, 1, "recovering"]);
      assert.equal((await fixture.store.inspect.incident(first.incident!))?.completedAt, null);
      gate.resolve();
      assert.equal((await committing).answer.is, "applied");
      const second = await fixture.recover(worker);
      assert.deepEqual(
        [second.incident, second.jobs, second.done, second.locked],
        [first.incident, [], true, undefined],
      );
      assert.equal((await worker.row()).state, "gone");
      assert.deepEqual(await fixture.states("a", "b", "c"), ["succeeded", "queued", "queued"]);
      const incident = await fixture.store.inspect.incident(first.incident!);
      assert.deepEqual([incident?.jobCount, incident?.heldAtDeath, incident?.completedAt !== null], [2, 3, true]);
    },
  );

  onOpenTransactions(
    "a job that was left out because its commit was under way is taken when that is rolled back, once and in the same incident",
    async (fixture, waiting) => {
      const { worker, gate, committing } = await committingWhileOthersRun(fixture, waiting);
      const other = await fixture.connect();
      const first = await fixture.recover(worker, { by: other });
      assert.equal(first.locked, 1);
      assert.equal((await fixture.recover(worker, { by: other })).locked, 1, "it can be asked as often as one likes");
      gate.reject(new Error("no"));
      await assert.rejects(committing, /no/);
      const last = await fixture.recover(worker, { by: other });
      assert.deepEqual([last.incident, jobIds(last), last.locked], [first.incident, ["a"], undefined]);
      const incident = await fixture.store.inspect.incident(first.incident!);
      assert.deepEqual([incident?.jobCount, incident?.heldAtDeath], [3, 3]);
      const jobs = await Promise.all(["a", "b", "c"].map((id) => fixture.job(id)));
      assert.deepEqual(
        jobs.map(({ state, counters }) => [state, counters.crashes]),
        [
          ["queued", 1],
          ["queued", 1],
          ["queued", 1],
        ],
      );
    },
  );

  onUserWrites(
    "a commit that is interrupted before it begins never begins, and leaves the attempt running",
    async (fixture, user) => {
      const { worker, job } = await running(fixture);
      const control = new CommitControl(0);
      const reason = new Error("it waited for too long");
      control.interrupt(reason);
      const body = user.writing("note", () => 1);
      await assert.rejects(
        fixture.store.transactions!.commit(SETTLE.succeed(job), body as never, () => null, control),
        reason,
      );
      assert.equal(control.waits, true);
      assert.deepEqual(await user.written(fixture.store), []);
      assert.deepEqual(answers(await worker.settle(SETTLE.release(job))), ["applied"]);
    },
  );

  onUserWrites("a commit that was not interrupted can't be after it is done", async (fixture, user) => {
    const { job } = await running(fixture);
    const control = new CommitControl(0);
    const body = user.writing("note", () => 1);
    const { answer } = await fixture.store.transactions!.commit(
      SETTLE.succeed(job),
      body as never,
      () => null,
      control,
    );
    assert.deepEqual([answer.is, control.waits, control.interrupt(new Error("late"))], ["applied", false, false]);
    assert.deepEqual(await user.written(fixture.store), ["note"]);
  });

  onOpenTransactions(
    "a commit that is interrupted while it runs is rolled back although its callback never ends, and holds nothing up",
    async (fixture, waiting, user) => {
      const { worker, job } = await running(fixture);
      const control = new CommitControl(0);
      const body = waiting("note", new Promise(() => {}));
      const committing = fixture.store.transactions!.commit(SETTLE.succeed(job), body as never, () => null, control);
      committing.catch(() => {});
      while (control.waits) await turn();
      const reason = new Error("the worker shuts down");
      assert.equal(control.interrupt(reason), true);
      await assert.rejects(committing, reason);
      assert.deepEqual(answers(await worker.settle(SETTLE.release(job))), ["applied"]);
      assert.deepEqual(await user.written(fixture.store), []);
      assert.equal((await fixture.job("a")).counters.interruptions, 1);
    },
  );

  onUserWrites("one that fails among commits at once takes no other with it", async (fixture, user) => {
    await fixture.enqueue("a", "b", "c");
    const worker = await fixture.worker("w");
    const jobs = await worker.claim(3);
    const commits = jobs.map((job) =>
      commit(fixture.store, job, user, job.lease.jobId, () => {
        if (job.lease.jobId === "b") throw new Error("b fails");
        return null;
      }),
    );
    const settled = await Promise.allSettled(commits);
    assert.deepEqual(
      settled.map(({ status }) => status),
      ["fulfilled", "rejected", "fulfilled"],
    );
    assert.deepEqual((await user.written(fixture.store)).toSorted(), ["a", "c"]);
    assert.deepEqual(await fixture.states("a", "b", "c"), ["succeeded", "running", "succeeded"]);
  });

  onUserWrites("jobs that a commit enqueues are there if it applies, and not if it throws", async (fixture, user) => {
    const { job } = await running(fixture);
    const failing = user.enqueueing("mail", "child", () => {
      throw new Error("no");
    });
    await assert.rejects(
      fixture.store.transactions!.commit(SETTLE.succeed(job), failing as never, () => null),
      /no/,
    );
    assert.deepEqual(await fixture.states("child"), ["missing"]);
    const working = user.enqueueing("mail", "child", () => null);
    const { answer } = await fixture.store.transactions!.commit(SETTLE.succeed(job), working as never, () => null);
    assert.equal(answer.is, "applied");
    assert.deepEqual(await fixture.states("a", "child"), ["succeeded", "queued"]);
  });

  onUserWrites("a transaction of the user's writes and enqueues whole and answers its value", async (fixture, user) => {
    const written = await fixture.store.transactions!.transact(user.writing("note", () => 7) as never);
    assert.deepEqual([written.value, written.enqueued], [7, 0]);
    const enqueued = await fixture.store.transactions!.transact(user.enqueueing("mail", "a", () => "done") as never);
    assert.deepEqual([enqueued.value, enqueued.enqueued], ["done", 1]);
    const other = await fixture.connect();
    assert.deepEqual(await user.written(other), ["note"]);
    assert.equal((await other.inspect.get("a"))?.state, "queued");
  });

  onUserWrites(
    "a transaction of the user's that throws writes nothing and lets the error out",
    async (fixture, user) => {
      const thrown = new Error("changed my mind");
      const fail = (): never => {
        throw thrown;
      };
      await assert.rejects(fixture.store.transactions!.transact(user.writing("note", fail) as never), thrown);
      await assert.rejects(fixture.store.transactions!.transact(user.enqueueing("mail", "a", fail) as never), thrown);
      assert.deepEqual(await user.written(fixture.store), []);
      assert.deepEqual(await fixture.states("a"), ["missing"]);
    },
  );
}

async function running(fixture: Fixture): Promise<{ worker: TestWorker; job: ClaimedJob }> {
  await fixture.enqueue("a");
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next() };
}

/** Commits the job with one row of the user's, and with what `then` returns as its result. */
function commit<T>(
  store: Store,
  job: ClaimedJob,
  user: UserWrites,
  text: string,
  then: () => T,
): Promise<{ answer: WriteAnswer; value: T | undefined }> {
  const encode = (value: T): string | null => (value === undefined ? null : JSON.stringify(value));
  return store.transactions!.commit<T>(SETTLE.succeed(job), user.writing(text, then) as never, encode);
}

/** A worker with three jobs, the first of which is in the middle of its commit until `gate` opens. */
async function committingWhileOthersRun(
  fixture: Fixture,
  waiting: NonNullable<UserWrites["waiting"]>,
): Promise<{
  worker: TestWorker;
  gate: PromiseWithResolvers<void>;
  committing: Promise<{ answer: WriteAnswer }>;
}> {
  await fixture.enqueue("a", "b", "c");
  const worker = await fixture.worker("w");
  const [job] = await worker.claim(3);
  const gate = Promise.withResolvers<void>();
  const control = new CommitControl(0);
  const committing = fixture.store.transactions!.commit(
    SETTLE.succeed(job!),
    waiting("note", gate.promise) as never,
    () => null,
    control,
  );
  committing.catch(() => {});
  while (control.waits) await turn();
  return { worker, gate, committing };
}

function jobIds({ jobs }: RecoveredBatch): readonly string[] {
  return jobs.map(({ jobId }) => jobId);
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** A job `a` that waits for the signal "go". */
async function waitingForGo(fixture: Fixture): Promise<TestWorker> {
  const { worker, job } = await running(fixture);
  const view = { id: "a", state: "running", counters: job.counters } as const;
  const change = wait(view, { step: "run.signal(go)#1", forMs: null, until: { signal: "go" } });
  assert.deepEqual(answers(await worker.settle({ lease: job.lease, change })), ["applied"]);
  for (let turns = 0; turns < 3; turns++) assert.deepEqual(await worker.claim(roomFor(1, ["mail"])), []);
  return worker;
}

async function untilClaimed(worker: TestWorker): Promise<ClaimedJob> {
  for (let turns = 0; turns < 10; turns++) {
    const [job] = await worker.claim(roomFor(1, ["mail"]));
    if (job) return job;
  }
  assert.fail(`worker ${worker.id} found nothing to run`);
}
