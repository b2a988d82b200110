// What becomes of an attempt that did not succeed: how long it waits, how often it may, and what is kept of what was thrown.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Duration, type Engine, type Events, job, type RetryOptions, TerminalError } from "../../src/index.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { AT_ONCE, forever, memory, untilAborted } from "./engines.ts";

/** Everything that a listener heard of an event, in order. */
function heard<Name extends "job.failed" | "job.dead" | "job.overdue">(engine: Engine, name: Name): Events[Name][] {
  const events: Events[Name][] = [];
  engine.on(name, (event) => void events.push(event));
  return events;
}

const delays: { title: string; retry: RetryOptions; waits: number[] }[] = [
  {
    title: "exponential backoff doubles up to its longest delay",
    retry: { attempts: 6, backoff: { base: "2ms", max: "10ms", jitter: 0 } },
    waits: [2, 4, 8, 10, 10],
  },
  {
    title: "linear backoff grows by its base",
    retry: { attempts: 5, backoff: { type: "linear", base: "3ms", max: "10ms", jitter: 0 } },
    waits: [3, 6, 9, 10],
  },
  {
    title: "a backoff function of the user's own is asked with the number of failures and the error",
    retry: { attempts: 4, backoff: (failures, { message }) => `${failures * message.length}ms` as Duration },
    waits: [4, 8, 12],
  },
];

for (const { title, retry, waits } of delays) {
  test(title, async (t) => {
    const bad = job<null>("bad", { retry });
    bad.handle(() => {
      throw new Error("oops");
    });
    const engine = await memory(t, [bad]);
    const failed = heard(engine, "job.failed");
    const { id } = await engine.enqueue(bad, null);
    await engine.start();
    await untilState(engine, id, "dead");
    assert.deepEqual(
      failed.map(({ attempt, to, delayMs }) => [attempt, to, delayMs]),
      [...waits.map((ms, i) => [i + 1, "queued", ms]), [waits.length + 1, "dead", 0]],
    );
  });
}

test("a delay has a random part by default, and a job that waits for its retry can be seen waiting", async (t) => {
  const bad = job<null>("bad", { retry: { backoff: { base: "1h", max: "1h" } } });
  bad.handle(() => {
    throw new Error("oops");
  });
  const engine = await memory(t, [bad]);
  const failed = heard(engine, "job.failed");
  await engine.enqueueMany(
    bad,
    Array.from({ length: 20 }, () => null),
  );
  const [counts] = await engine.runUntilIdle();
  assert.deepEqual([counts?.delayed, counts?.ready], [20, 0]);
  assert.ok(failed.every(({ delayMs }) => delayMs >= 1_800_000 && delayMs <= 3_600_000));
  assert.ok(new Set(failed.map(({ delayMs }) => delayMs)).size > 1, "not all the same");
  const [one] = (await engine.list({ state: "queued" })).jobs;
  assert.ok(one!.runAt! > Date.now() + 1_000_000);
});

test("a backoff function that throws or returns nonsense does not lose the job: the default stands in and the error says so", async (t) => {
  const throwing = job<null>("throwing", {
    retry: {
      backoff: () => {
        throw new Error("broken backoff");
      },
    },
  });
  const nonsense = job<null>("nonsense", { retry: { backoff: () => "soon" as Duration } });
  for (const kind of [throwing, nonsense])
    kind.handle(() => {
      throw new Error("oops");
    });
  const engine = await memory(t, [throwing, nonsense]);
  const { id: a } = await engine.enqueue(throwing, null);
  const { id: b } = await engine.enqueue(nonsense, null);
  await engine.runUntilIdle();
  for (const [id, message] of [
    [a, "oops (and its backoff function threw: broken backoff)"],
    [
      b,
      'oops (and its backoff function threw: what the backoff of nonsense returned is "soon", which is not a duration.',
    ],
  ] as const) {
    const { state, error, counters } = (await engine.get(id))!;
    assert.equal(state, "queued");
    assert.equal(counters.errors, 1);
    assert.ok(error!.message.startsWith(message), error!.message);
  }
});

test("a TerminalError ends the job at once, regardless of its limits, even if it is a class of the user's own", async (t) => {
  class NoSuchCustomer extends TerminalError {
    override readonly name = "NoSuchCustomer";
  }
  const bill = job<null>("bill", { retry: { attempts: 10, backoff: AT_ONCE } });
  bill.handle(async () => {
    throw new NoSuchCustomer("customer 7 does not exist");
  });
  const engine = await memory(t, [bill]);
  const dead = heard(engine, "job.dead");
  const { id } = await engine.enqueue(bill, null);
  await engine.runUntilIdle();
  const { state, attempt, counters, error, history } = (await engine.get(id))!;
  assert.deepEqual([state, attempt, counters.errors, error?.name], ["dead", 1, 1, "NoSuchCustomer"]);
  assert.equal(history[0]?.reason, "terminal error: customer 7 does not exist");
  assert.deepEqual(dead, [{ jobId: id, kind: "bill", reason: "terminal error: customer 7 does not exist" }]);
});

test("a TerminalError is terminal even if the backoff function throws", async (t) => {
  const bill = job<null>("bill", {
    retry: {
      backoff: () => {
        throw new Error("broken backoff");
      },
    },
  });
  bill.handle(() => {
    throw new TerminalError("no");
  });
  const engine = await memory(t, [bill]);
  const { id } = await engine.enqueue(bill, null);
  await engine.runUntilIdle();
  assert.equal((await engine.get(id))?.state, "dead");
});

test("a job is dead after as many errors as it may have, and its history names each of them", async (t) => {
  let ran = 0;
  const bad = job<null>("bad", { retry: { attempts: 3, backoff: AT_ONCE } });
  bad.handle(() => {
    throw new Error(`oops ${++ran}`);
  });
  const engine = await memory(t, [bad]);
  const { id } = await engine.enqueue(bad, null);
  await engine.runUntilIdle();
  assert.equal(ran, 3);
  const { state, counters, error, history, finishedAt } = (await engine.get(id))!;
  assert.equal(state, "dead");
  assert.deepEqual(counters, { errors: 3, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 });
  assert.equal(error?.message, "oops 3");
  assert.match(error.stack!, /retry\.test\.ts/);
  assert.ok(finishedAt !== null);
  assert.deepEqual(
    history.map(({ event, from, to, attempt, reason }) => [event, from, to, attempt, reason]),
    [
      ["fail", "running", "queued", 1, "error 1 of 3: oops 1"],
      ["fail", "running", "queued", 2, "error 2 of 3: oops 2"],
      ["fail", "running", "dead", 3, "error 3 of 3, no more are allowed: oops 3"],
    ],
  );
});

test("a success after failures is a success, and its history lists only the failures", async (t) => {
  const shaky = job<null>("shaky", { retry: { backoff: AT_ONCE } });
  shaky.handle((_, run) => {
    if (run.attempt === 1) throw new Error("once");
    return "well";
  });
  const engine = await memory(t, [shaky]);
  const { id } = await engine.enqueue(shaky, null);
  await engine.runUntilIdle();
  const { state, result, history, lastOutcome } = (await engine.get(id))!;
  assert.deepEqual([state, result, lastOutcome, history.length], ["succeeded", "well", "succeeded", 1]);
});

const cycle: Record<string, unknown> = {};
cycle["itself"] = cycle;
const odd: { what: string; thrown: () => unknown; name: string; message: string }[] = [
  { what: "a text", thrown: () => "just a text", name: "NonError", message: "just a text" },
  { what: "undefined", thrown: () => undefined, name: "NonError", message: "undefined" },
  { what: "null", thrown: () => null, name: "NonError", message: "null" },
  { what: "a number", thrown: () => 42, name: "NonError", message: "42" },
  { what: "a symbol", thrown: () => Symbol("s"), name: "NonError", message: "Symbol(s)" },
  { what: "a bigint", thrown: () => 7n, name: "NonError", message: "[object BigInt]" },
  { what: "an object", thrown: () => ({ code: 7 }), name: "NonError", message: '{"code":7}' },
  { what: "an object that holds itself", thrown: () => cycle, name: "NonError", message: "[object Object]" },
  { what: "a promise", thrown: () => Promise.resolve(1), name: "NonError", message: "{}" },
  { what: "a function", thrown: () => () => 1, name: "NonError", message: "() => 1" },
  { what: "an error with NUL", thrown: () => new Error("a\0b"), name: "Error", message: "a\\0b" },
  {
    what: "an error whose cause is itself",
    thrown: () => {
      const error = new Error("round");
      error.cause = error;
      return error;
    },
    name: "Error",
    message: "round",
  },
];

for (const { what, thrown, name, message } of odd)
  for (const how of ["thrown", "rejected"] as const)
    test(`${what}, ${how} by a handler, is a failure like any other`, async (t) => {
      const bad = job<null>("bad", { retry: { attempts: 2, backoff: AT_ONCE } });
      bad.handle(
        how === "thrown"
          ? () => {
              throw thrown();
            }
          : () => Promise.reject(thrown()),
      );
      const engine = await memory(t, [bad]);
      const { id } = await engine.enqueue(bad, null);
      await engine.runUntilIdle();
      const { state, counters, error } = (await engine.get(id))!;
      assert.deepEqual([state, counters.errors, error?.name, error?.message], ["dead", 2, name, message]);
    });

test("a very long message is kept short", async (t) => {
  const bad = job<null>("bad", { retry: { attempts: 1 } });
  bad.handle(() => {
    throw new Error("x".repeat(100_000));
  });
  const engine = await memory(t, [bad]);
  const { id } = await engine.enqueue(bad, null);
  await engine.runUntilIdle();
  assert.match((await engine.get(id))!.error!.message, /^x{8192}… \(100000 characters\)$/);
});

test("an error that can't even be read is a failure like any other", async (t) => {
  class Hostile extends Error {
    override get message(): string {
      throw new TypeError("don't look at me");
    }
  }
  const bad = job<null>("bad", { retry: { attempts: 1 } });
  bad.handle(() => Promise.reject(new Hostile()));
  const engine = await memory(t, [bad]);
  const { id } = await engine.enqueue(bad, null);
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.deepEqual([state, error], ["dead", { name: "NonError", message: "what was thrown can't be read" }]);
});

test("a handler that never returns is reported, given up after its grace, and dead after its timeouts; its slot is free again", async (t) => {
  const entered: number[] = [];
  const stuck = job<null>("stuck", { timeout: "30ms", grace: "20ms", retry: { timeouts: 2, backoff: AT_ONCE } });
  stuck.handle((_, run) => {
    entered.push(run.attempt);
    return forever();
  });
  const quick = job<null>("quick").handle(() => {});
  const engine = await memory(t, [stuck, quick]);
  const overdue = heard(engine, "job.overdue");
  const { id } = await engine.enqueue(stuck, null, { priority: 1 });
  const { id: behind } = await engine.enqueue(quick, null);
  const worker = await engine.start({ concurrency: 1 });
  await untilState(engine, behind, "succeeded");
  await untilState(engine, id, "dead");
  await untilTrue(
    () => worker.held,
    (held) => held === 0,
    "nothing is held",
  );
  assert.deepEqual(entered, [1, 2]);
  assert.deepEqual(
    overdue.map(({ jobId, fencedOut }) => [jobId, fencedOut]),
    [
      [id, false],
      [id, false],
    ],
  );
  const { counters, error, history } = (await engine.get(id))!;
  assert.deepEqual(counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 2, interruptions: 0, losses: 0 });
  assert.equal(error?.message, "the attempt passed its deadline (timeout 2 of 2)");
  assert.deepEqual(
    history.map(({ event, reason }) => [event, reason]),
    [
      ["timeOut", "timeout 1 of 2"],
      ["timeOut", "timeout 2 of 2, no more are allowed"],
    ],
  );
});

test("whatever an abandoned handler still does changes nothing, and the next attempt runs next to it", async (t) => {
  const { promise: secondRuns, resolve: second } = Promise.withResolvers<void>();
  const { promise: late, resolve: tellLate } = Promise.withResolvers<unknown>();
  const stuck = job<null>("stuck", { timeout: "30ms", grace: "0ms", retry: { backoff: AT_ONCE } });
  stuck.handle(async (_, run) => {
    if (run.attempt === 1) {
      await secondRuns;
      await run.step("late", () => "by the first").catch(tellLate);
      return "first";
    }
    second();
    await late;
    return "second";
  });
  const engine = await memory(t, [stuck]);
  const { id } = await engine.enqueue(stuck, null);
  await engine.start();
  await untilState(engine, id, "succeeded");
  assert.equal(((await late) as { code: string }).code, "STALE_ATTEMPT");
  const { result, steps, attempt } = (await engine.get(id))!;
  assert.deepEqual([result, steps, attempt], ["second", [], 2]);
});

test("a handler that returns within its grace has succeeded, and one that throws within it has timed out", async (t) => {
  const late = job<boolean>("late", { timeout: "20ms", retry: { timeouts: 1 } });
  late.handle(async (well, run) => {
    await untilAborted(run.signal);
    if (!well) throw new Error("whatever");
    return "just in time";
  });
  const engine = await memory(t, [late]);
  const { id: good } = await engine.enqueue(late, true);
  const { id: bad } = await engine.enqueue(late, false);
  await engine.start();
  await untilState(engine, good, "succeeded");
  await untilState(engine, bad, "dead");
  assert.equal((await engine.get(good))?.counters.timeouts, 0);
  const { lastOutcome, counters } = (await engine.get(bad))!;
  assert.deepEqual([lastOutcome, counters.timeouts, counters.errors], ["timed-out", 1, 0]);
});

test("errors, timeouts and interruptions are counted once each, when the attempt ends, and never at the claim", async (t) => {
  const { promise: inThird, resolve: third } = Promise.withResolvers<void>();
  const mixed = job<null>("mixed", { timeout: "1s", retry: { backoff: AT_ONCE } });
  mixed.handle(async (_, run) => {
    if (run.attempt === 1) throw new Error("an error");
    if (run.attempt === 2) throw await untilAborted(run.signal);
    if (run.attempt === 3) {
      await run.heartbeat();
      third();
      throw await untilAborted(run.signal);
    }
  });
  const engine = await memory(t, [mixed]);
  const { id } = await engine.enqueue(mixed, null);
  const worker = await engine.start();
  await inThird;
  assert.deepEqual((await engine.get(id))?.counters, {
    errors: 1,
    crashes: 0,
    blamed: 0,
    timeouts: 1,
    interruptions: 0,
    losses: 0,
  });
  await worker.stop({ grace: "0ms" });
  const stopped = (await engine.get(id))!;
  assert.deepEqual([stopped.state, stopped.lastOutcome], ["queued", "released"]);
  assert.deepEqual(stopped.counters, { errors: 1, crashes: 0, blamed: 0, timeouts: 1, interruptions: 1, losses: 0 });
  await engine.runUntilIdle();
  const done = (await engine.get(id))!;
  assert.deepEqual([done.state, done.attempt], ["succeeded", 4]);
  assert.deepEqual(done.counters, stopped.counters);
});
