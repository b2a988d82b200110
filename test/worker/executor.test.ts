// Holds the way from a claimed job to its settlement: input, handler, result, deadlines, cancels, lost leases.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { RunnableKind } from "../../src/job/contract.ts";
import { ErrorCode, OutliveError, TerminalError } from "../../src/job/errors.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import { APPLIED, type Settlement } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import type { Attempt } from "../../src/worker/attempt.ts";
import { Executor } from "../../src/worker/executor.ts";
import { aClaim, aContext, aKind, aLease, counted, fakeStore, held, Recorder } from "../support/samples.ts";

type Given = Partial<Omit<RunnableKind, "handler">> & { readonly handler?: (input: never, run: Attempt) => unknown };

/** An executor of one kind; what it settles is written down and becomes durable only when the test says so. */
function executor(given: Given = {}) {
  const clock = virtualClock();
  const events = new Recorder();
  const settled: Settlement[] = [];
  const state = { trustedUntil: Number.POSITIVE_INFINITY, ticks: 0 };
  const kind = { settings: aKind(), parse: null, delayMs: null, handler: () => undefined, ...given } as RunnableKind;
  const trust = {
    inContact: true,
    get untilMono() {
      return state.trustedUntil;
    },
  };
  const store = fakeStore({ write: (writes) => Promise.resolve(writes.map(() => APPLIED)) });
  const running = new Executor(aContext({ store, clock, events, kinds: new Map([["mail", kind]]), trust }), {
    finished: (settlement) => void settled.push(settlement),
    ticked: () => void state.ticks++,
    freed: () => assert.fail("not asked"),
    stepped: () => assert.fail("not asked"),
  });
  return {
    clock,
    events,
    settled,
    state,
    executor: running,
    begin: (job: Partial<ClaimedJob> & { readonly id?: string } = {}) => running.hold(aClaim(job)).start(),
    /** "change to: reason" of everything settled so far. */
    ends: () =>
      settled.map(({ change: { name, to, reason } }) => `${name} ${to}${reason === null ? "" : `: ${reason}`}`),
  };
}

const waiting = (): {
  handler: (input: never, run: Attempt) => Promise<unknown>;
  runs: Attempt[];
  end: PromiseWithResolvers<unknown>;
} => {
  const end = held<unknown>();
  const runs: Attempt[] = [];
  return { runs, end, handler: (_input, run) => (runs.push(run), end.promise) };
};

test("a handler gets the stored input, and what it returns is the result as JSON", async () => {
  for (const handler of [(n: number) => ({ twice: n * 2 }), async (n: number) => ({ twice: n * 2 })]) {
    const { clock, settled, begin } = executor({ handler });
    begin({ input: "21" });
    await clock.settle();
    assert.deepEqual(
      settled.map(({ lease, change }) => [lease.jobId, change.to, change.result]),
      [["job-1", "succeeded", '{"twice":42}']],
    );
  }
});

test("a handler that returns nothing has no result, one that returns null has null", async () => {
  const nothing = executor({ handler: () => {} });
  nothing.begin();
  const empty = executor({ handler: () => null });
  empty.begin();
  assert.equal(nothing.settled[0]!.change.result, null);
  assert.equal(empty.settled[0]!.change.result, "null");
});

test("the handler gets what the schema makes of the input, also of an asynchronous one", async () => {
  for (const parse of [(input: unknown) => [input], (input: unknown) => Promise.resolve([input])]) {
    const seen: unknown[] = [];
    const { clock, begin } = executor({ parse, handler: (input) => void seen.push(input) });
    begin({ input: '"x"' });
    await clock.settle();
    assert.deepEqual(seen, [["x"]]);
  }
});

test("an input that is not JSON or does not fit the schema kills the job without running the handler", async () => {
  const handler = (): never => assert.fail("it ran");
  const notJson = executor({ handler });
  notJson.begin({ input: "{" });
  assert.match(notJson.ends()[0]!, /^refuse dead: its stored input was refused: The input of job job-1 is stored as/);
  const misfit = new OutliveError(ErrorCode.inputInvalid, "n: expected number", "");
  for (const parse of [
    () => {
      throw misfit;
    },
    () => Promise.reject(misfit),
  ]) {
    const { clock, ends, begin } = executor({ parse, handler });
    begin();
    await clock.settle();
    assert.deepEqual(ends(), ["refuse dead: its stored input was refused: n: expected number"]);
  }
});

test("a schema that fails in another way is an error of this attempt, not the end of the job", async () => {
  const { clock, ends, begin } = executor({ parse: () => Promise.reject(new Error("no connection")) });
  begin();
  await clock.settle();
  assert.match(ends()[0]!, /^fail queued: error 1 of \d+: no connection/);
});

test("a handler that throws fails the attempt with the kind's backoff, whatever it threw", async () => {
  const throwers = [
    () => {
      throw new Error("boom");
    },
    () => Promise.reject("boom"),
    async () => {
      throw { message: "boom" };
    },
  ];
  for (const handler of throwers) {
    const { clock, settled, begin } = executor({ handler });
    begin({ counters: counted({ errors: 1 }) });
    await clock.settle();
    assert.equal(settled.length, 1);
    const { change } = settled[0]!;
    assert.equal(change.to, "queued");
    assert.deepEqual(change.add, { errors: 1 });
    assert.equal(change.delayMs, 2_000);
    assert.match(change.reason!, /^error 2 of 3: .*boom/);
  }
});

test("a result that JSON can't carry is a failure of the attempt", async () => {
  const { settled, begin } = executor({ handler: () => ({ at: new Date(0) }) });
  begin();
  assert.equal(settled[0]!.change.name, "fail");
  assert.match(settled[0]!.change.error!.message, /^The result of job job-1 contains a Date at \$\.at/);
});

test("the kind's own backoff is asked with the number of failures and the error", async () => {
  const asked: unknown[] = [];
  const { settled, begin } = executor({
    handler: () => {
      throw new Error("boom");
    },
    delayMs: (failures, error) => (asked.push([failures, error.message]), 123),
  });
  begin({ counters: counted({ errors: 1, timeouts: 5 }) });
  assert.deepEqual(asked, [[2, "boom"]]);
  assert.equal(settled[0]!.change.delayMs, 123);
});

test("a backoff that throws is replaced by the default one, and the error says so", () => {
  const { settled, begin } = executor({
    handler: () => {
      throw new Error("boom");
    },
    delayMs: () => {
      throw new Error("no idea");
    },
  });
  begin();
  assert.equal(settled[0]!.change.delayMs, 1_000);
  assert.equal(settled[0]!.change.error!.message, "boom (and its backoff function threw: no idea)");
});

test("a terminal error kills the job at once, also when the kind's backoff throws", () => {
  for (const delayMs of [
    null,
    () => {
      throw new Error("no idea");
    },
  ]) {
    const { settled, begin } = executor({
      handler: () => {
        throw new TerminalError("never");
      },
      delayMs,
    });
    begin();
    assert.equal(settled[0]!.change.to, "dead");
    assert.match(settled[0]!.change.reason!, /^terminal error: never/);
  }
});

test("an attempt that ends because the store is full is released after its backoff, at no cost, and the failure is reported", () => {
  const full = new OutliveError(ErrorCode.storeFull, "No room.", "Make some.");
  for (const thrown of [full, new Error("commit failed", { cause: new Error("wrapped", { cause: full }) })]) {
    const { settled, begin, ends, events } = executor({
      handler: () => {
        throw thrown;
      },
    });
    begin({ counters: counted({ errors: 2 }) });
    begin({ id: "long", counters: counted({ interruptions: 1_000 }) });
    assert.deepEqual(ends(), Array(2).fill("release queued: the store was full"));
    assert.deepEqual(settled[0]!.change.add, { interruptions: 1 });
    const [soon, later] = settled.map(({ change }) => change.delayMs);
    assert.ok(soon! > 0 && soon! < later!, "it grows with the interruptions");
    assert.equal(later, 10_000, "but no further, for room may be made at any moment");
    assert.deepEqual(
      events.of("store.failed").map(({ doing, retryInMs }) => [doing, retryInMs]),
      [
        [`running job ${settled[0]!.lease.jobId}`, soon],
        ["running job long", later],
      ],
    );
  }
});

test("a terminal error is terminal, also if the store was full, and other errors of the store are counted", () => {
  const full = new OutliveError(ErrorCode.storeFull, "No room.", "Make some.");
  for (const [thrown, to] of [
    [new TerminalError("no", { cause: full }), "dead"],
    [new OutliveError(ErrorCode.storeFailed, "Odd.", ""), "queued"],
  ] as const) {
    const { settled, begin } = executor({
      handler: () => {
        throw thrown;
      },
    });
    begin();
    assert.deepEqual([settled[0]!.change.name, settled[0]!.change.to], ["fail", to]);
  }
});

test("a job is held until its settlement is durable", async () => {
  const { clock, executor: running, settled, events, begin } = executor();
  begin();
  await clock.settle();
  assert.equal(running.heldCount, 1);
  assert.equal(running.holds(settled[0]!), true);
  assert.deepEqual(events.names(), []);
  const freed = running.settled(settled[0]!, APPLIED);
  assert.equal(freed?.job.lease.jobId, "job-1");
  assert.equal(running.heldCount, 0);
  assert.deepEqual(events.names(), ["job.succeeded"]);
  assert.equal(running.settled(settled[0]!, APPLIED), undefined);
});

test("a failure is reported with its next state, and a death with its reason, once they are durable", () => {
  const failing = {
    handler: () => {
      throw new Error("boom");
    },
  };
  const again = executor(failing);
  again.begin();
  again.executor.settled(again.settled[0]!, APPLIED);
  assert.deepEqual(
    again.events.of("job.failed").map(({ jobId, to, delayMs, attempt }) => [jobId, to, delayMs, attempt]),
    [["job-1", "queued", 1_000, 1]],
  );
  assert.deepEqual(again.events.of("job.dead"), []);
  const last = executor(failing);
  last.begin({ counters: counted({ errors: 2 }) });
  last.executor.settled(last.settled[0]!, APPLIED);
  assert.deepEqual(last.events.names(), ["job.failed", "job.dead"]);
});

test("a refused settlement is reported with both fences, and the job is no longer held", () => {
  const { executor: running, settled, events, begin } = executor();
  begin();
  const stale = { lease: aLease(), tried: "succeed", state: "queued" as const, worker: null, epoch: 7, fence: 2 };
  running.settled(settled[0]!, { is: "stale", stale });
  assert.deepEqual(events.names(), ["write.rejected"]);
  assert.match(events.of("write.rejected")[0]!.text, /it is \(epoch 7, fence 2\) and queued/);
  assert.equal(running.heldCount, 0);
});

test("an attempt that is past its deadline is aborted, and may end on its own within the grace", async () => {
  const { runs, end, handler } = waiting();
  const { clock, events, ends, begin } = executor({ handler });
  begin({ deadlineInMs: 1_000 });
  await clock.advance(999);
  assert.equal(runs[0]!.abortedBy, undefined);
  await clock.advance(100);
  assert.equal(runs[0]!.abortedBy, "timeout");
  assert.deepEqual(
    events.of("job.overdue").map(({ jobId, fencedOut }) => [jobId, fencedOut]),
    [["job-1", false]],
  );
  await clock.advance(4_000);
  end.resolve("made it");
  await clock.settle();
  assert.deepEqual(ends(), ["succeed succeeded"]);
});

test("an attempt that ends by throwing after its deadline has timed out and not failed", async () => {
  const { end, handler } = waiting();
  const { clock, settled, ends, begin } = executor({ handler });
  begin({ deadlineInMs: 1_000 });
  await clock.advance(1_200);
  end.reject(new Error("aborted"));
  await clock.settle();
  assert.deepEqual(ends(), ["timeOut queued: timeout 1 of 2"]);
  assert.deepEqual(settled[0]!.change.add, { timeouts: 1 });
});

test("an attempt that does not end within the grace is given up, and its late end changes nothing", async () => {
  const { runs, end, handler } = waiting();
  const { clock, ends, begin } = executor({ handler });
  begin({ deadlineInMs: 1_000 });
  await clock.advance(5_900);
  assert.deepEqual(ends(), []);
  await clock.advance(300);
  assert.deepEqual(ends(), ["timeOut queued: timeout 1 of 2"]);
  assert.equal(runs[0]!.ended, true);
  end.resolve("too late");
  await clock.settle();
  assert.equal(ends().length, 1);
});

test("a job without a deadline is never overdue", async () => {
  const { runs, handler } = waiting();
  const { clock, begin } = executor({ handler });
  begin({ deadlineInMs: null });
  await clock.advance(100_000);
  assert.equal(runs[0]!.abortedBy, undefined);
});

test("a heartbeat of the job moves its deadline to one timeout from now", async () => {
  const { runs, handler } = waiting();
  const { clock, begin } = executor({ handler, settings: aKind({ timeoutMs: 1_000 }) });
  begin({ deadlineInMs: 1_000 });
  for (let beat = 0; beat < 5; beat++) {
    await clock.advance(900);
    await runs[0]!.heartbeat();
  }
  assert.equal(runs[0]!.abortedBy, undefined);
  await clock.advance(1_100);
  assert.equal(runs[0]!.abortedBy, "timeout");
});

test("maxRuntime caps what heartbeats can add", async () => {
  const { runs, handler } = waiting();
  const { clock, begin } = executor({ handler, settings: aKind({ timeoutMs: 1_000, maxRuntimeMs: 1_500 }) });
  begin({ deadlineInMs: 1_000 });
  await clock.advance(900);
  await runs[0]!.heartbeat();
  await clock.advance(500);
  assert.equal(runs[0]!.abortedBy, undefined);
  await clock.advance(200);
  assert.equal(runs[0]!.abortedBy, "timeout");
});

test("a cancelled job is aborted at once, and ends cancelled however its handler ends by throwing", async () => {
  const { runs, end, handler } = waiting();
  const { clock, executor: running, ends, begin } = executor({ handler });
  begin();
  running.cancel("job-1");
  running.cancel("nobody");
  assert.equal(runs[0]!.abortedBy, "cancelled");
  end.reject(new Error("aborted"));
  await clock.settle();
  assert.deepEqual(ends(), ["endCancelled cancelled: cancelled while it ran"]);
});

test("a cancelled job whose handler does not end is cancelled after the grace", async () => {
  const { handler } = waiting();
  const { clock, executor: running, ends, begin } = executor({ handler });
  begin();
  running.cancel("job-1");
  await clock.advance(5_200);
  assert.deepEqual(ends(), ["endCancelled cancelled: cancelled; its handler did not end within the grace"]);
});

test("a cancel ends an attempt that goes on although its worker had lost the lease", async () => {
  const { handler, runs } = waiting();
  const { executor: running, begin, clock, ends, state } = executor({ handler, settings: aKind({ graceMs: 100 }) });
  begin();
  state.trustedUntil = -1;
  running.checkTrust();
  assert.equal(runs[0]!.abortedBy, "lease-lost");
  state.trustedUntil = Number.POSITIVE_INFINITY;
  for (let told = 0; told < 10; told++) {
    running.cancel("job-1");
    await clock.advance(80);
  }
  assert.deepEqual(ends(), ["endCancelled cancelled: cancelled; its handler did not end within the grace"]);
});

test("a cancelled job whose handler still succeeds has succeeded", async () => {
  const { end, handler } = waiting();
  const { clock, executor: running, ends, begin } = executor({ handler });
  begin();
  running.cancel("job-1");
  end.resolve(1);
  await clock.settle();
  assert.deepEqual(ends(), ["succeed succeeded"]);
});

test("after a pause longer than the lease allows everything is aborted before anything is written", async () => {
  const { runs, end, handler } = waiting();
  const { clock, executor: running, state, events, ends, begin } = executor({ handler });
  begin({ id: "a" });
  begin({ id: "b" });
  state.trustedUntil = clock.mono() + 81_000;
  clock.freeze(100_000);
  await assert.rejects(runs[0]!.progress(1), /was silent for longer than its lease allows/);
  assert.deepEqual(
    runs.map((run) => run.abortedBy),
    ["lease-lost", "lease-lost"],
  );
  running.checkTrust();
  assert.deepEqual(
    events.of("lease.lost").map(({ worker, held: count, lateMs }) => [worker, count, lateMs]),
    [["w1", 2, 19_000]],
  );
  end.reject(new Error("aborted"));
  await clock.settle();
  assert.deepEqual(ends(), Array(2).fill("release queued: its worker lost the lease"));
});

test("the ticker notices a lost lease without anybody asking", async () => {
  const { runs, handler } = waiting();
  const { clock, state, begin } = executor({ handler });
  state.trustedUntil = clock.mono() + 500;
  begin();
  await clock.advance(500);
  assert.equal(runs[0]!.abortedBy, undefined);
  await clock.advance(100);
  assert.equal(runs[0]!.abortedBy, "lease-lost");
});

test("a handler that goes on after a lost lease is given up at its deadline and grace, like any other", async () => {
  const { end, handler } = waiting();
  const { clock, executor: running, state, events, settled, ends, begin } = executor({ handler });
  begin();
  state.trustedUntil = clock.mono() - 1;
  await clock.advance(59_900);
  state.trustedUntil = Number.POSITIVE_INFINITY;
  assert.deepEqual(ends(), []);
  await clock.advance(100);
  assert.deepEqual(
    events.of("job.overdue").map(({ jobId, fencedOut }) => [jobId, fencedOut]),
    [["job-1", false]],
  );
  await clock.advance(5_000);
  assert.deepEqual(ends(), ["timeOut queued: timeout 1 of 2"]);
  running.settled(settled[0]!, APPLIED);
  assert.equal(running.heldCount, 0);
  end.resolve("late");
  await clock.settle();
  assert.equal(settled.length, 1);
});

test("a handler that still succeeds between a lost lease and its deadline has succeeded: the fence decides", async () => {
  const { end, handler } = waiting();
  const { clock, state, ends, begin } = executor({ handler });
  begin();
  state.trustedUntil = clock.mono() - 1;
  await clock.advance(20_000);
  end.resolve(1);
  await clock.settle();
  assert.deepEqual(ends(), ["succeed succeeded"]);
});

test("a handler without a deadline that goes on after a lost lease is given up after the grace, at no cost to its job", async () => {
  const { handler } = waiting();
  const { clock, state, ends, begin } = executor({ handler });
  begin({ deadlineInMs: null });
  state.trustedUntil = clock.mono() - 1;
  await clock.advance(4_900);
  assert.deepEqual(ends(), []);
  await clock.advance(300);
  assert.deepEqual(ends(), ["release queued: its worker lost the lease; its handler did not end within the grace"]);
});

test("a shutdown is not cut short by a deadline: what it aborted is released at no cost", async () => {
  const { handler } = waiting();
  const { clock, executor: running, ends, begin } = executor({ handler });
  begin();
  running.interruptAll("shutdown", "the worker shuts down");
  await clock.advance(120_000);
  assert.deepEqual(ends(), []);
  running.releaseAll("its worker shut down");
  assert.deepEqual(ends(), ["release queued: its worker shut down"]);
});

test("at a shutdown handlers that throw are released at no cost, and those that succeed have succeeded", async () => {
  const first = waiting();
  const throwing = executor({ handler: first.handler });
  throwing.begin();
  throwing.executor.interruptAll("shutdown", "the worker shuts down");
  first.end.reject(new Error("aborted"));
  await throwing.clock.settle();
  assert.deepEqual(throwing.ends(), ["release queued: its worker shut down"]);
  assert.deepEqual(throwing.settled[0]!.change.add, { interruptions: 1 });
});

test("what still runs can be released, and is not released twice", async () => {
  const { end, handler } = waiting();
  const { clock, executor: running, ends, begin } = executor({ handler });
  begin({ id: "a" });
  begin({ id: "b" });
  assert.equal(running.releaseAll("its worker shut down"), 2);
  assert.equal(running.releaseAll("its worker shut down"), 0);
  end.resolve(1);
  await clock.settle();
  assert.deepEqual(ends(), Array(2).fill("release queued: its worker shut down"));
});

test("a newer attempt of the same job ends the older one, which settles nothing any more", async () => {
  const { runs, end, handler } = waiting();
  const { clock, executor: running, ends, begin } = executor({ handler });
  begin({ lease: aLease({ fence: 1 }) });
  assert.equal(running.supersede("job-1"), runs[0]);
  assert.equal(running.supersede("job-1"), undefined);
  assert.equal(runs[0]!.abortedBy, "lease-lost");
  begin({ lease: aLease({ fence: 2 }) });
  end.resolve(1);
  await clock.settle();
  assert.deepEqual(ends(), ["succeed succeeded"]);
});

test("it ticks only while something is held, and no longer once it is closed", async () => {
  const { handler } = waiting();
  const { clock, executor: running, state, settled, begin } = executor({ handler });
  await clock.advance(1_000);
  assert.equal(state.ticks, 0);
  begin();
  await clock.advance(1_000);
  assert.equal(state.ticks, 10);
  running.releaseAll("enough");
  running.settled(settled[0]!, APPLIED);
  await clock.advance(1_000);
  assert.equal(state.ticks, 11);
  assert.equal(clock.nextTimerInMs(), null);
  begin();
  running.close();
  assert.equal(clock.nextTimerInMs(), null);
});

test("a thenable that throws when it is asked fails the attempt and nothing else", () => {
  const { settled, begin } = executor({
    handler: () => ({
      then() {
        throw new Error("no promise");
      },
    }),
  });
  begin();
  assert.deepEqual(
    settled.map(({ change }) => change.name),
    ["fail"],
  );
});

test("the run that a handler gets is the attempt that is held", async () => {
  const runs: Attempt[] = [];
  const { executor: running, begin } = executor({ handler: (_input, run) => (runs.push(run), new Promise(() => {})) });
  begin();
  assert.deepEqual(running.runningSince(Number.POSITIVE_INFINITY), runs);
  assert.equal(running.jobs().length, 1);
});
