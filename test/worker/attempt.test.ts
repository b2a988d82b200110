// Holds what a handler gets: the signal, the steps, the fenced writes, and what is refused after the end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, Interruption, OutliveError } from "../../src/job/errors.ts";
import type { ClaimedJob, JobDraft } from "../../src/job/job.ts";
import { APPLIED, type AttemptWrite, type ReadSignal, type Stale, type WriteAnswer } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { Attempt, type AttemptOwner } from "../../src/worker/attempt.ts";
import { staleError, staleText } from "../../src/worker/calls.ts";
import type { CommitForm } from "../../src/worker/run.ts";
import { aClaim, aContext, aKind, aLease, fakeStore, Recorder } from "../support/samples.ts";

const form: CommitForm<unknown, "sync"> = { store: "fake", mode: "sync" };

function aStale(given: Partial<Stale> = {}): Stale {
  return {
    lease: aLease({ fence: 8 }),
    tried: "succeed",
    state: "running",
    worker: "w2",
    epoch: 7,
    fence: 9,
    ...given,
  };
}

/** An attempt whose writes are written down; `stale` refuses them. */
function attempt(job: Partial<ClaimedJob> = {}, owner: Partial<AttemptOwner> = {}) {
  const writes: AttemptWrite[] = [];
  const told: string[] = [];
  const state: { stale: Stale | null; signal?: ReadSignal } = { stale: null };
  const clock = virtualClock();
  const events = new Recorder();
  const store = fakeStore({
    write: ([given]) => {
      const { write } = given!;
      writes.push(write);
      if (state.stale) return Promise.resolve([{ is: "stale", stale: state.stale }] satisfies WriteAnswer[]);
      const enqueued = write.type === "enqueue" ? write.drafts.map(({ id }) => ({ id, created: true })) : [];
      const { signal } = state;
      return Promise.resolve([{ ...APPLIED, enqueued, ...(signal && { signal }) }] as WriteAnswer[]);
    },
    transactions: {
      commit: async (_settlement, body) => ({ answer: APPLIED, value: (await body({})) as never, enqueued: 0 }),
    },
  });
  const context = aContext({
    store,
    clock,
    events,
    kinds: new Map([["mail", { settings: aKind(), parse: null, delayMs: null, handler: () => undefined }]]),
    draft: (_kind, input, _options, idSeed) => ({ id: idSeed(String(input)).replaceAll("\0", "/") }) as JobDraft,
  });
  const run = new Attempt(
    context,
    {
      checkTrust: () => void told.push("checkTrust"),
      ended: (_attempt, { name }) => void told.push(name),
      committed: () => void told.push("committed"),
      stepped: () => void told.push("stepped"),
      ...owner,
    },
    aClaim(job),
  );
  run.slot = 0;
  return { run, writes, told, state, clock, events };
}

const refused = (code: ErrorCode, words: RegExp) => (thrown: unknown) => {
  assert.ok(thrown instanceof OutliveError, String(thrown));
  assert.equal(thrown.code, code);
  assert.match(thrown.message, words);
  return true;
};

test("a run knows its job, its attempt and its fence", () => {
  const { run } = attempt({ lease: aLease({ jobId: "job-9", epoch: 7, fence: 4 }) });
  assert.equal(run.id, "job-9");
  assert.equal(run.attempt, 4);
  assert.deepEqual(run.fence, { epoch: 7, number: 4 });
});

test("the signal is made when it is first asked for and is the same from then on", () => {
  const { run } = attempt();
  const { signal } = run;
  assert.equal(signal.aborted, false);
  run.abort("timeout", "too late");
  assert.equal(run.signal, signal);
  assert.equal(signal.aborted, true);
  assert.ok(signal.reason instanceof Interruption);
  assert.equal(signal.reason.why, "timeout");
});

test("a signal that is first asked for after the abort is aborted already, for the same reason", () => {
  const { run } = attempt();
  assert.equal(run.abortedBy, undefined);
  run.abort("cancelled", "job job-1 was cancelled");
  assert.equal(run.abortedBy, "cancelled");
  assert.equal(run.signal.aborted, true);
  assert.equal((run.signal.reason as Interruption).message, "job job-1 was cancelled");
});

test("the first reason to stop stays the reason", () => {
  const { run } = attempt();
  run.abort("timeout", "first");
  run.abort("shutdown", "second");
  assert.equal(run.abortedBy, "timeout");
  assert.equal((run.signal.reason as Interruption).message, "first");
});

test("interrupted says how the attempt before ended and after which step", () => {
  assert.equal(attempt().run.interrupted, undefined);
  assert.equal(attempt({ lastOutcome: "succeeded" }).run.interrupted, undefined);
  assert.deepEqual(attempt({ lastOutcome: "crashed" }).run.interrupted, { how: "crashed", lastStep: undefined });
  const steps = [
    { name: "fetch", result: "1" },
    { name: "render", result: null },
  ];
  assert.deepEqual(attempt({ lastOutcome: "timed-out", steps }).run.interrupted, {
    how: "timed-out",
    lastStep: "render",
  });
});

test("a step runs its work, keeps the result as JSON and hands back what a replay would", async () => {
  const { run, writes } = attempt();
  const result = { n: 1, gone: undefined };
  const value = await run.step("fetch", () => result);
  assert.deepEqual(value, { n: 1 });
  assert.notEqual(value, result);
  assert.deepEqual(writes, [{ type: "step", name: "fetch", result: '{"n":1}' }]);
});

test("a step that earlier attempts finished is not run again and not written again", async () => {
  const steps = [
    { name: "fetch", result: '{"n":1}' },
    { name: "nothing", result: null },
  ];
  const { run, writes } = attempt({ steps });
  const work = (): never => assert.fail("it ran");
  assert.deepEqual(await run.step("fetch", work), { n: 1 });
  assert.equal(await run.step("nothing", work), undefined);
  assert.deepEqual(writes, []);
});

test("a step that returns nothing is kept as nothing", async () => {
  const { run, writes } = attempt();
  assert.equal(await run.step("notify", async () => {}), undefined);
  assert.equal(await run.step("zero", () => null), null);
  assert.deepEqual(writes, [
    { type: "step", name: "notify", result: null },
    { type: "step", name: "zero", result: "null" },
  ]);
});

test("a step's name may be used once in an attempt, kept or not", async () => {
  const { run } = attempt({ steps: [{ name: "kept", result: "1" }] });
  await run.step("a", () => 1);
  await assert.rejects(
    run.step("a", () => 2),
    refused(ErrorCode.stepReused, /ran the step "a" twice in one attempt/),
  );
  await run.step("kept", () => 1);
  await assert.rejects(
    run.step("kept", () => 1),
    refused(ErrorCode.stepReused, /"kept" twice/),
  );
});

test("a step's name is checked before its work runs", async () => {
  const { run } = attempt();
  for (const name of ["", "a\0", "x".repeat(256)]) {
    await assert.rejects(
      run.step(name, () => assert.fail("it ran")),
      refused(ErrorCode.keyInvalid, /^The step name of job job-1/),
    );
  }
});

test("a step that throws writes nothing and its error comes out", async () => {
  const { run, writes } = attempt();
  const boom = new Error("boom");
  await assert.rejects(
    run.step("a", () => Promise.reject(boom)),
    boom,
  );
  await assert.rejects(
    run.step("b", () => {
      throw boom;
    }),
    boom,
  );
  assert.deepEqual(writes, []);
});

test("a step whose result JSON can't carry is refused with the step's name", async () => {
  const { run, writes } = attempt();
  await assert.rejects(
    run.step("now", () => new Date() as never),
    refused(ErrorCode.notJson, /^The result of step "now" of job job-1 contains a Date/),
  );
  assert.deepEqual(writes, []);
});

test("a key is the same in every attempt and different for every name and job", () => {
  const { run } = attempt({ lease: aLease({ fence: 1 }) });
  const later = attempt({ lease: aLease({ fence: 2 }) }).run;
  assert.equal(run.key("charge"), "job-1:charge");
  assert.equal(later.key("charge"), run.key("charge"));
  assert.notEqual(run.key("refund"), run.key("charge"));
  assert.throws(() => run.key(""), refused(ErrorCode.keyInvalid, /^The key name of job job-1 is empty/));
});

test("a heartbeat is written and moves the deadline to one timeout from then", async () => {
  const { run, writes, told, clock } = attempt();
  await clock.advance(59_999);
  await run.heartbeat();
  assert.deepEqual(writes, [{ type: "heartbeat" }]);
  assert.deepEqual(told, ["checkTrust"]);
  run.tick(clock.mono() + 59_999);
  assert.equal(run.abortedBy, undefined);
  run.tick(clock.mono() + 60_000);
  assert.equal(run.abortedBy, "timeout");
});

test("a refused heartbeat moves nothing: the deadline passes as if there had been none", async () => {
  const { run, told, state, clock, events } = attempt();
  await clock.advance(59_999);
  state.stale = aStale();
  await assert.rejects(run.heartbeat(), refused(ErrorCode.stale, /^Refused: /));
  assert.deepEqual(told, ["checkTrust"]);
  run.tick(clock.mono());
  assert.deepEqual(events.of("job.overdue"), []);
  run.tick(clock.mono() + 1);
  assert.equal(events.of("job.overdue").length, 1);
});

test("progress is JSON", async () => {
  const { run, writes } = attempt();
  await run.progress({ done: 3 });
  assert.deepEqual(writes, [{ type: "progress", value: '{"done":3}' }]);
  await assert.rejects(run.progress(1n as never), refused(ErrorCode.notJson, /^The progress of job job-1/));
});

test("a signal that was read is progress, and a wait for one that is not there yet is not", async () => {
  const waits = attempt();
  waits.state.signal = { kept: false };
  void waits.run.waitForSignal("go");
  await new Promise(setImmediate);
  assert.deepEqual([waits.writes.length, waits.told.includes("stepped")], [1, false]);
  const reads = attempt();
  reads.state.signal = { kept: true, payload: "1" };
  assert.equal(await reads.run.waitForSignal("go"), 1);
  assert.equal(reads.told.includes("stepped"), true);
});

test("a log line is emitted and kept, without NUL and cut at 8,192 characters", async () => {
  const { run, writes, events } = attempt();
  await run.log("a\0b");
  await run.log("x".repeat(10_000));
  await run.log(7 as never);
  assert.deepEqual(
    writes.map((write) => write.type === "log" && write.message),
    ["a\\0b", "x".repeat(8_192), "7"],
  );
  assert.equal(events.of("job.log")[0]!.message, "a\\0b");
});

test("children get ids of their content that are the same in every attempt, whatever was replayed before them", async () => {
  const first = attempt();
  const again = attempt({ lease: aLease({ fence: 2 }) });
  assert.deepEqual(await first.run.enqueue({} as never, "a" as never), { id: "job-1/a/1", created: true });
  assert.deepEqual(await first.run.enqueue({} as never, "b" as never), { id: "job-1/b/1", created: true });
  assert.deepEqual(await first.run.enqueue({} as never, "b" as never), { id: "job-1/b/2", created: true });
  assert.deepEqual(await again.run.enqueue({} as never, "b" as never), { id: "job-1/b/1", created: true });
});

test("a refused write throws what the store says and aborts the signal", async () => {
  const { run, state } = attempt();
  state.stale = aStale();
  await assert.rejects(
    run.step("a", () => 1),
    refused(ErrorCode.stale, /it is \(epoch 7, fence 9\) and running/),
  );
  assert.equal(run.abortedBy, "lease-lost");
  assert.equal((run.signal.reason as Interruption).message, "job job-1 has a new owner");
});

const everyWrite: Record<string, (run: Attempt) => Promise<unknown>> = {
  step: (run) => run.step("s", () => assert.fail("it ran")),
  heartbeat: (run) => run.heartbeat(),
  progress: (run) => run.progress(1),
  log: (run) => run.log("x"),
  enqueue: (run) => run.enqueue({} as never, 1 as never),
  commit: async (run) => run.commit(form, () => assert.fail("it ran")),
};

for (const [name, write] of Object.entries(everyWrite)) {
  test(`${name} is refused once the attempt has ended, writes nothing and is reported once`, async () => {
    const { run, writes, events } = attempt();
    run.ended = true;
    await assert.rejects(
      write(run),
      refused(ErrorCode.stale, /^Attempt 1 of job job-1 has ended and can't write any more/),
    );
    assert.deepEqual(writes, []);
    await assert.rejects(write(run));
    assert.deepEqual(
      events.of("call.failed").map(({ call, attemptEnded }) => [call, attemptEnded]),
      [[name, true]],
    );
  });

  test(`${name} throws the reason after the lease was lost or the job cancelled, and writes nothing`, async () => {
    for (const why of ["lease-lost", "cancelled"] as const) {
      const { run, writes } = attempt();
      run.abort(why, "stop");
      await assert.rejects(write(run), (thrown: unknown) => thrown instanceof Interruption && thrown.why === why);
      assert.deepEqual(writes, []);
    }
  });

  test(`${name} asks first whether the lease may still be trusted`, async () => {
    const job: { run?: Attempt } = {};
    const { run, writes } = attempt({}, { checkTrust: () => job.run!.abort("lease-lost", "was paused") });
    job.run = run;
    await assert.rejects(write(run), /was paused/);
    assert.deepEqual(writes, []);
  });
}

test("after a timeout or at a shutdown an attempt may still write: the grace is for that", async () => {
  for (const why of ["timeout", "shutdown"] as const) {
    const { run, writes } = attempt();
    run.abort(why, "end soon");
    await run.progress(1);
    await run.step("a", () => 1);
    assert.equal(await run.commit(form, () => 1), 1);
    assert.equal(writes.length, 2);
  }
});

test("a kept step is handed back also after the lease was lost: nothing is written", async () => {
  const { run } = attempt({ steps: [{ name: "a", result: "1" }] });
  run.abort("lease-lost", "stop");
  assert.equal(await run.step("a", () => 2), 1);
});

test("a refused commit is a rejection, not an exception of the call", async () => {
  const { run } = attempt();
  run.ended = true;
  const committing = run.commit(form, () => 1);
  await assert.rejects(committing, refused(ErrorCode.stale, /has ended/));
});

test("the sentence of a refused write names worker, job, both fences and what is so now", () => {
  assert.equal(
    staleText(aStale()),
    'worker w1 tried "succeed" on job job-1 with (epoch 7, fence 8); it is (epoch 7, fence 9) and running',
  );
  assert.equal(
    staleText(aStale({ epoch: 8, fence: 1, state: "queued" })),
    'worker w1 tried "succeed" on job job-1 with (epoch 7, fence 8); it is (epoch 8, fence 1) and queued',
  );
  assert.equal(
    staleText(aStale({ fence: 8, state: "succeeded", tried: "step render" })),
    'worker w1 tried "step render" on job job-1 with (epoch 7, fence 8); that attempt has ended and the job is succeeded',
  );
  assert.equal(
    staleText(aStale({ state: "missing", worker: null, epoch: 0, fence: 0 })),
    'worker w1 tried "succeed" on job job-1 with (epoch 7, fence 8); the job is not there any more',
  );
});

test("a refused write's error carries the sentence and the fences as data", () => {
  const error = staleError(aStale());
  assert.equal(error.code, ErrorCode.stale);
  assert.ok(error.message.startsWith(`Refused: ${staleText(aStale())}. Nothing was written.`));
  assert.deepEqual(error.data, { jobId: "job-1", fence: 8, now: { epoch: 7, fence: 9, state: "running" } });
});
