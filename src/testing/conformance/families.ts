// What the port promises about a cancel that includes the children of a job: it is recorded with the cancel itself, the turns of any workers go on
// with it, each for a bounded piece, and it cancels what has not begun and nothing else.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import { wait } from "../../job/transitions.ts";
import type { OperatorAnswer, Settlement } from "../../stores/port.ts";
import {
  draft,
  type Fixture,
  type TestWorker,
  idsOf,
  names,
  NO_ROOM,
  roomFor,
  SETTLE,
  type Specify,
} from "./fixture.ts";

const MAIL = roomFor(9, ["mail"]);
const SMS = roomFor(1, ["sms"]);

export function specifyFamilies(specify: Specify): void {
  specify(
    "a cancel with children cancels those that have not begun, and those that have begun go on",
    async (fixture) => {
      const { worker, job } = await parent(fixture, ["begun", "backoff", "ready", "delayed"]);
      const [begun, backoff] = [await worker.next(SMS), await worker.next(SMS)];
      await worker.settle(waiting(job, "begun", "backoff", "ready", "delayed"), SETTLE.fail(backoff, 60_000));
      assert.deepEqual(await cancelAll(fixture), { is: "applied", state: "cancelled" });
      assert.deepEqual(await fixture.states("ready"), ["queued"], "by turns of workers");
      await settled(worker);
      assert.deepEqual(await fixture.states("a", "begun", "backoff", "ready", "delayed"), [
        "cancelled",
        "running",
        "queued",
        "cancelled",
        "cancelled",
      ]);
      const entry = (await fixture.job("ready")).history.at(-1);
      assert.deepEqual([entry?.event, entry?.actor], ["cancel", "ann"]);
      assert.match(entry?.reason ?? "", /with its parent a$/);
      await worker.settle(SETTLE.succeed(begun));
      assert.deepEqual(idsOf(await worker.claim(roomFor(9, ["sms"]))), ["b"], "which is not a child");
    },
  );

  specify("a cancel without children leaves them alone", async (fixture) => {
    const { worker, job } = await parent(fixture, ["child"]);
    await worker.settle(waiting(job, "child"));
    await fixture.store.operate.cancel("a", "ann");
    await settled(worker);
    assert.deepEqual(await fixture.states("a", "child"), ["cancelled", "queued"]);
  });

  specify(
    "of a running parent also the children that it enqueues after the cancel are cancelled, on any connection",
    async (fixture) => {
      const { worker, job } = await parent(fixture, ["before"]);
      const other = await fixture.worker("other", { store: await fixture.connect() });
      assert.deepEqual(await cancelAll(fixture), { is: "requested" });
      await settled(other);
      assert.deepEqual(await fixture.states("a", "before"), ["running", "cancelled"]);
      await worker.record(job, { type: "enqueue", drafts: [draft({ id: "after", kind: "sms" })] });
      await settled(other);
      assert.deepEqual(await fixture.states("after"), ["cancelled"]);
      await worker.settle(SETTLE.endCancelled(job));
      assert.deepEqual(await fixture.states("a"), ["cancelled"]);
    },
  );

  specify("the children of a job that is cancelled already can be cancelled later", async (fixture) => {
    const { worker, job } = await parent(fixture, ["child"]);
    await worker.settle(waiting(job, "child"));
    await fixture.store.operate.cancel("a", "ann");
    assert.deepEqual(await cancelAll(fixture), { is: "applied", state: "cancelled" });
    await settled(worker);
    assert.deepEqual(await fixture.states("child"), ["cancelled"]);
    assert.equal((await fixture.job("a")).history.filter(({ event }) => event === "cancel").length, 1);
  });

  specify("a cancel with children of a job that ended otherwise, or of none, is refused", async (fixture) => {
    const { worker, job } = await parent(fixture, ["child"]);
    await worker.settle(SETTLE.succeed(job));
    assert.deepEqual(await cancelAll(fixture), { is: "wrong-state", state: "succeeded" });
    assert.deepEqual(await fixture.store.operate.cancel("none", "ann", { children: true }), { is: "missing" });
    await settled(worker);
    assert.deepEqual(await fixture.states("child"), ["queued"]);
  });

  specify("a parent that is retried has children again: its former cancel does not reach them", async (fixture) => {
    const { worker, job } = await parent(fixture, ["first"]);
    await worker.settle(waiting(job, "first"));
    await cancelAll(fixture);
    await settled(worker);
    await fixture.store.operate.retry("a", "ann");
    const again = await worker.next(MAIL);
    await worker.record(again, { type: "enqueue", drafts: [draft({ id: "second", kind: "sms" })] });
    await settled(worker);
    assert.deepEqual(await fixture.states("first", "second"), ["cancelled", "queued"]);
  });

  specify("the same for a parent that ran when its cancel was requested", async (fixture) => {
    const { worker, job } = await parent(fixture, ["first"]);
    await cancelAll(fixture);
    await settled(worker);
    await worker.settle(SETTLE.endCancelled(job));
    await fixture.store.operate.retry("a", "ann");
    const again = await worker.next(MAIL);
    await worker.record(again, { type: "enqueue", drafts: [draft({ id: "second", kind: "sms" })] });
    await settled(worker);
    assert.deepEqual(await fixture.states("first", "second"), ["cancelled", "queued"]);
  });

  specify("a job that waits for a child which is cancelled with its parent wakes", async (fixture) => {
    const { worker, job } = await parent(fixture, ["child"]);
    await fixture.enqueue("waiter");
    const waiter = await worker.next(MAIL);
    await worker.settle(waiting(waiter, "child"), waiting(job, "child"));
    await settled(worker);
    await cancelAll(fixture);
    await settled(worker);
    assert.deepEqual(idsOf(await worker.claim(MAIL)), ["waiter"]);
  });

  specify(
    "many children are cancelled in pieces: no turn does all, the worker that began may die, and each is cancelled once",
    async (fixture) => {
      const ids = names("child-", 1_100);
      const { worker, job } = await parent(fixture, ids);
      await worker.settle(waiting(job, ...ids));
      await settled(worker);
      await cancelAll(fixture);
      await worker.turn([], NO_ROOM);
      const left = async (): Promise<number> => (await fixture.countsOf("sms")).ready - 1;
      const after = await left();
      assert.ok(after > 0 && after < ids.length, `after one turn ${after} are left`);
      await fixture.recoverAll(worker);
      const next = await fixture.worker("next", { store: await fixture.connect() });
      await settled(next);
      assert.equal(await left(), 0);
      for (const id of [ids[0]!, ids[600]!, ids.at(-1)!]) {
        const { state, history } = await fixture.job(id);
        assert.deepEqual([state, history.length], ["cancelled", 1]);
      }
    },
  );

  specify("the children of two parents that are cancelled at once are all cancelled", async (fixture) => {
    const { worker, job } = await parent(fixture, ["a1", "a2"]);
    await fixture.enqueue("c");
    const second = await worker.next(MAIL);
    await worker.record(second, { type: "enqueue", drafts: [draft({ id: "c1", kind: "sms" })] });
    await worker.settle(waiting(job, "a1"), waiting(second, "c1"));
    await settled(worker);
    await Promise.all([cancelAll(fixture), fixture.store.operate.cancel("c", "ann", { children: true })]);
    await settled(worker);
    assert.deepEqual(await fixture.states("a1", "a2", "c1"), ["cancelled", "cancelled", "cancelled"]);
  });

  specify("children are cancelled also if their parent was purged meanwhile", async (fixture) => {
    const { worker, job } = await parent(fixture, ["child"]);
    await worker.settle(waiting(job, "child"));
    await cancelAll(fixture);
    await fixture.clock.advance(2_000);
    await fixture.enqueue("newest");
    await fixture.store.purge({ finishedOlderThanMs: 1_000, incidentsOlderThanMs: 1_000, limit: 100 });
    assert.deepEqual(await fixture.states("a", "child"), ["missing", "queued"]);
    await settled(worker);
    assert.deepEqual(await fixture.states("child"), ["cancelled"]);
  });
}

/** A job `a` that `w` runs, its children of the kind sms, which wait in this order, and a job `b` of that kind that is not a child. */
async function parent(
  fixture: Fixture,
  children: readonly string[],
): Promise<{ readonly worker: TestWorker; readonly job: ClaimedJob }> {
  await fixture.enqueue("a", { id: "b", kind: "sms", priority: -9 });
  const worker = await fixture.worker("w");
  const job = await worker.next(MAIL);
  const drafts = children.map((id) => draft({ id, kind: "sms", delayMs: id === "delayed" ? 60_000 : 0 }));
  await worker.record(job, { type: "enqueue", drafts });
  return { worker, job };
}

function cancelAll(fixture: Fixture): Promise<OperatorAnswer> {
  return fixture.store.operate.cancel("a", "ann", { children: true });
}

function waiting({ lease, counters }: ClaimedJob, ...jobs: readonly string[]): Settlement {
  const view = { id: lease.jobId, state: "running", counters } as const;
  return { lease, change: wait(view, { step: "run.wait#1", forMs: null, until: { jobs } }) };
}

/** Turns without room until there is nothing to act on now. */
async function settled(worker: TestWorker): Promise<void> {
  for (let turns = 0; turns < 2_000; turns++) if ((await worker.turn([], NO_ROOM)).nextDueInMs !== 0) return;
  assert.fail(`worker ${worker.id} always has more to do`);
}
