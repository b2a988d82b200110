// Holds a commit that is under way to its limits: how long it may wait, what ends it, and what that costs the job.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { RunnableKind } from "../../src/job/contract.ts";
import { ErrorCode, Interruption, OutliveError } from "../../src/job/errors.ts";
import { APPLIED, type Settlement, type Transactions } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import type { Attempt } from "../../src/worker/attempt.ts";
import { troubleOfStore } from "../../src/worker/attempt-end.ts";
import { Executor } from "../../src/worker/executor.ts";
import { CommitControl, type CommitForm, unlessInterrupted } from "../../src/worker/run.ts";
import { aClaim, aContext, aKind, fakeStore, held, Recorder } from "../support/samples.ts";

const form: CommitForm<unknown, "async"> = { store: "fake", mode: "async" };

/** One job whose handler commits and throws what the commit throws. The store does with the commit what the test says. */
function committing(
  commit: Transactions["commit"],
  handler?: (run: Attempt) => unknown,
  deadlineInMs: number | null = 60_000,
) {
  const clock = virtualClock();
  const events = new Recorder();
  const settled: Settlement[] = [];
  const settings = aKind({ timeoutMs: deadlineInMs, graceMs: 5_000 });
  const handle = handler ?? ((run: Attempt) => run.commit(form, async () => "done"));
  const kind: RunnableKind = { settings, parse: null, delayMs: null, handler: (_, run) => handle(run as Attempt) };
  const committed: string[] = [];
  const kinds = new Map([["mail", kind]]);
  const executor = new Executor(aContext({ store: fakeStore({ transactions: { commit } }), clock, events, kinds }), {
    finished: (settlement) => void settled.push(settlement),
    freed: ({ id }) => void committed.push(id),
    stepped: () => assert.fail("not asked"),
    ticked: () => {},
  });
  executor.hold(aClaim({ deadlineInMs })).start();
  const ends = (): string[] => settled.map(({ change: { name, to, reason } }) => `${name} ${to}: ${reason}`);
  return { clock, events, executor, ends, committed, settled };
}

/** A store that has no session to give. */
const neverBegins: Transactions["commit"] = (_settlement, _body, _encode, control) =>
  unlessInterrupted(control!, new Promise(() => {}));

/** A store whose transaction has begun; it is rolled back when `rolledBack` resolves. */
function neverEnds(rolledBack: Promise<void> = Promise.resolve()): Transactions["commit"] {
  return (_settlement, _body, _encode, control) => {
    control!.runs();
    return new Promise((_, reject) => control!.onInterrupt((reason) => void rolledBack.then(() => reject(reason))));
  };
}

test("a commit that gets no session until the attempt's deadline costs the job neither an error nor a timeout", async () => {
  const { clock, ends, events } = committing(neverBegins);
  await clock.advance(59_900);
  assert.deepEqual(ends(), []);
  await clock.advance(200);
  assert.deepEqual(ends(), ["release queued: the store was busy"]);
  assert.deepEqual(
    events.of("store.failed").map(({ doing }) => doing),
    ["running job job-1"],
  );
});

test("what the handler does with that error is its own, and wrapped in another one it costs nothing either", async () => {
  let seen: unknown;
  const { clock, ends } = committing(neverBegins, async (run) => {
    try {
      await run.commit(form, async () => 1);
    } catch (thrown) {
      seen = thrown;
      throw new Error("the order was not written", { cause: thrown });
    }
  });
  await clock.advance(60_200);
  assert.equal((seen as OutliveError).code, ErrorCode.storeBusy);
  assert.match((seen as OutliveError).message, /The commit of job job-1 waited 60\d00 ms .* queued again at no cost/);
  assert.deepEqual(ends(), ["release queued: the store was busy"]);
});

test("a commit of a job without a deadline waits for five minutes", async () => {
  const { clock, ends } = committing(neverBegins, undefined, null);
  await clock.advance(299_900);
  assert.deepEqual(ends(), []);
  await clock.advance(200);
  assert.deepEqual(ends(), ["release queued: the store was busy"]);
});

test("a commit that has begun has the attempt's deadline and grace, and is rolled back before the timeout is settled", async () => {
  const rolledBack = held<void>();
  const { clock, ends, events } = committing(neverEnds(rolledBack.promise));
  await clock.advance(60_100);
  assert.equal(events.of("job.overdue").length, 1);
  await clock.advance(5_100);
  assert.deepEqual(ends(), [], "its session is still being ended");
  rolledBack.resolve();
  await clock.settle();
  assert.deepEqual(ends(), ["timeOut queued: timeout 1 of 2"]);
});

test("a commit under way at the end of a shutdown's grace is rolled back, and its job is released once", async () => {
  for (const commit of [neverEnds(), neverBegins]) {
    const { clock, ends, executor } = committing(commit);
    await clock.settle();
    executor.interruptAll("shutdown", "the worker shuts down");
    await clock.advance(1_000);
    assert.deepEqual(ends(), [], "it may end within the grace");
    assert.equal(executor.releaseAll("its worker shut down"), 1);
    await clock.settle();
    assert.deepEqual(ends(), ["release queued: its worker shut down"]);
  }
});

test("a commit that is being committed can't be interrupted: it ends by what the store says", async () => {
  const answer = held<{ answer: typeof APPLIED; value: never; enqueued: number }>();
  const { clock, ends, executor, committed } = committing((_settlement, _body, _encode, control) => {
    control!.runs();
    control!.commits();
    return answer.promise;
  });
  await clock.settle();
  executor.releaseAll("its worker shut down");
  await clock.settle();
  assert.deepEqual(ends(), []);
  answer.resolve({ answer: APPLIED, value: "done" as never, enqueued: 0 });
  await clock.settle();
  assert.deepEqual(committed, ["job-1"]);
  assert.deepEqual(ends(), []);
});

test("a cancelled job whose commit does not end within the grace is rolled back and cancelled", async () => {
  const { clock, ends, executor } = committing(neverEnds());
  await clock.settle();
  executor.cancel("job-1");
  await clock.advance(5_100);
  assert.deepEqual(ends(), ["endCancelled cancelled: cancelled; its handler did not end within the grace"]);
});

test("a commit that fails without an interruption is an error of the attempt, like any other", async () => {
  const { clock, ends } = committing(() => Promise.reject(new Error("a unique key")));
  await clock.settle();
  assert.deepEqual(ends(), ["fail queued: error 1 of 3: a unique key"]);
});

test("a control says what is under way, is interrupted once, and refuses to go on after that", async () => {
  const control = new CommitControl(7);
  assert.equal(control.waits, true);
  control.runs();
  assert.equal(control.waits, false);
  const first = new Interruption("shutdown", "first");
  assert.equal(control.interrupt(first), true);
  assert.equal(control.interrupt(new Error("second")), true);
  assert.equal(control.interrupted, first);
  assert.throws(() => control.runs(), first);
  assert.throws(() => control.commits(), first);
  const heard: Error[] = [];
  control.onInterrupt((reason) => void heard.push(reason));
  assert.deepEqual(heard, [first]);
  await assert.rejects(unlessInterrupted(control, new Promise(() => {})), first);
  const late = new CommitControl(0);
  late.commits();
  assert.equal(late.interrupt(first), false);
  assert.equal(late.interrupted, undefined);
});

test("only an error of the store that says so costs nothing", () => {
  const free = new OutliveError(ErrorCode.storeBusy, "busy", "", { costsAttempt: false });
  assert.equal(troubleOfStore(free), "busy");
  assert.equal(troubleOfStore(new Error("outer", { cause: new Error("inner", { cause: free }) })), "busy");
  assert.equal(troubleOfStore(new OutliveError(ErrorCode.storeBusy, "busy", "")), null);
  assert.equal(troubleOfStore({ data: { costsAttempt: false } }), null);
  const loop = new Error("a");
  loop.cause = loop;
  assert.equal(troubleOfStore(loop), null);
});
