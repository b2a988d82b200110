// The program's own code around enqueues and attempts: the order, what it may change, what its errors are, and that waits and commits are heard of.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type AttemptEnd, ErrorCode, job, type Middleware, open, TerminalError } from "../../src/index.ts";
import { connect } from "../../src/client.ts";
import { sqlite } from "../../src/sqlite.ts";
import { Place } from "../support/processes.ts";
import { AT_ONCE, memory, says } from "./engines.ts";

const TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/** Writes what it is around, with its own name. */
function noting(name: string, seen: string[]): Middleware {
  return {
    async enqueue(job, next) {
      seen.push(`${name} enqueue ${job.job.name} ${JSON.stringify(job.input)}`);
      const enqueued = await next(job);
      seen.push(`${name} enqueued ${enqueued.created}`);
      return enqueued;
    },
    async attempt({ kind, input, run }, next) {
      seen.push(`${name} attempt ${run.attempt} of ${kind} ${JSON.stringify(input)}`);
      const result = await next();
      seen.push(`${name} returned ${JSON.stringify(result)}`);
      return result;
    },
  };
}

test("the first middleware is the outermost, around an enqueue and around an attempt", async (t) => {
  const seen: string[] = [];
  const one = job<{ n: number }>("one").handle(({ n }) => {
    seen.push(`handler ${n}`);
    return { twice: 2 * n };
  });
  const engine = await memory(t, [one], { middleware: [noting("outer", seen), noting("inner", seen)] });
  const { id } = await engine.enqueue(one, { n: 2 });
  await engine.runUntilIdle();
  assert.deepEqual(seen, [
    'outer enqueue one {"n":2}',
    'inner enqueue one {"n":2}',
    "inner enqueued true",
    "outer enqueued true",
    'outer attempt 1 of one {"n":2}',
    'inner attempt 1 of one {"n":2}',
    "handler 2",
    'inner returned {"twice":4}',
    'outer returned {"twice":4}',
  ]);
  assert.deepEqual((await engine.get(id))?.result, { twice: 4 });
});

test("a middleware may change input, options and result, and what it passes is checked as the caller's", async (t) => {
  const one = job<{ n: number }>("one").handle(({ n }) => n);
  const engine = await memory(t, [one], {
    middleware: [
      {
        enqueue: (given, next) =>
          next({ ...given, input: { n: 7 }, options: { ...given.options, id: "mine", trace: TRACE } }),
        attempt: async (_, next) => ({ was: (await next()) as number }),
      },
    ],
  });
  const { id } = await engine.enqueue(one, { n: 1 });
  assert.equal(id, "mine");
  await engine.runUntilIdle();
  const details = await engine.get("mine");
  assert.deepEqual([details?.input, details?.result, details?.trace], [{ n: 7 }, { was: 7 }, TRACE]);

  const wrong = await memory(t, [one], {
    middleware: [{ enqueue: (given, next) => next({ ...given, options: { trace: "" } }) }],
  });
  await assert.rejects(wrong.enqueue(one, { n: 1 }), says(ErrorCode.keyInvalid, "The trace of a one job"));
});

test("what a middleware throws rejects the enqueue, and is an error of the handler in an attempt", async (t) => {
  let deny = true;
  const one = job("one", { retry: { attempts: 2, backoff: AT_ONCE } }).handle(() => "done");
  const engine = await memory(t, [one], {
    middleware: [
      {
        async enqueue(given, next) {
          if (deny) throw new Error("not allowed");
          return next(given);
        },
        async attempt({ run }, next) {
          if (run.attempt === 1) throw new Error("too early");
          return next();
        },
      },
    ],
  });
  await assert.rejects(engine.enqueue(one, null), /not allowed/);
  assert.equal((await engine.list()).jobs.length, 0);
  deny = false;
  const { id } = await engine.enqueue(one, null);
  await engine.runUntilIdle();
  const details = await engine.get(id);
  assert.deepEqual([details?.state, details?.counters.errors, details?.attempt], ["succeeded", 1, 2]);

  const dead = await memory(t, [one], {
    middleware: [
      {
        attempt() {
          throw new TerminalError("never");
        },
      },
    ],
  });
  const never = await dead.enqueue(one, null);
  await dead.runUntilIdle();
  assert.deepEqual([(await dead.get(never.id))?.state, (await dead.get(never.id))?.error?.message], ["dead", "never"]);
});

test("`next` works once, and takes the same job only", async (t) => {
  const one = job("one").handle(() => "done");
  const other = job("other").handle(() => "done");
  const twice = await memory(t, [one], {
    middleware: [
      {
        async enqueue(given, next) {
          await next(given);
          return next(given);
        },
      },
    ],
  });
  await assert.rejects(twice.enqueue(one, null), says(ErrorCode.wrongState, "twice"));
  const swapped = await memory(t, [one, other], {
    middleware: [{ enqueue: (given, next) => next({ ...given, job: other as never }) }],
  });
  await assert.rejects(swapped.enqueue(one, null), says(ErrorCode.optionInvalid, "other", "one"));
  assert.equal((await swapped.list()).jobs.length, 0);
});

test("children of a run and jobs of enqueueMany pass through, one by one, in one transaction", async (t) => {
  const seen: unknown[] = [];
  const child = job<number>("child").handle(() => {});
  const parent = job("parent").handle(async (_, run) => {
    await run.enqueue(child, 0);
    return run.enqueueMany(child, [1, 2]);
  });
  const engine = await memory(t, [parent, child], {
    middleware: [
      {
        enqueue(given, next) {
          seen.push(given.input);
          return next(given);
        },
      },
    ],
  });
  const batches: number[] = [];
  const many = await engine.enqueueMany(child, [10, 11, 12], {
    each: (input) => ({ id: `n${input}` }),
    onBatch: (batch) => batches.push(batch.length),
  });
  assert.deepEqual([many, batches], [{ count: 3, created: 3 }, [3]]);
  const { id } = await engine.enqueue(parent, null);
  await engine.runUntilIdle();
  assert.deepEqual(seen, [10, 11, 12, null, 0, 1, 2]);
  assert.equal(((await engine.get(id))!.result as string[]).length, 2);
  assert.equal((await engine.list({ kind: "child", state: "succeeded" })).jobs.length, 6);
});

test("a middleware that refuses one of many rejects the call, and earlier transactions stay", async (t) => {
  const one = job<number>("one").handle(() => {});
  const engine = await memory(t, [one], {
    middleware: [
      {
        async enqueue(given, next) {
          if (given.input === 1_001) throw new Error("not this one");
          return next(given);
        },
      },
    ],
  });
  const inputs = Array.from({ length: 1_500 }, (_, n) => n);
  await assert.rejects(engine.enqueueMany(one, inputs), /not this one/);
  assert.equal((await engine.counts()).find(({ kind }) => kind === "one")?.ready, 1_000);
});

test("ended is called for every end, also of a wait that `next` never returns from, and of a commit", async (t) => {
  const ends: AttemptEnd[] = [];
  const failures: string[] = [];
  const place = new Place(t);
  const sleeper = job("sleeper").handle(async (_, run) => {
    await run.sleep("1ms");
    return run.commit(sqlite, () => "committed");
  });
  const engine = await open(place.url, {
    jobs: [sleeper],
    logger: false,
    middleware: [
      {
        ended: (end) => {
          ends.push(end);
          if (ends.length === 1) throw new Error("a listener's own");
        },
      },
    ],
    onEvent: (event) => {
      if (event.name === "listener.failed") failures.push(event.error.message);
    },
  });
  t.after(() => engine.close({ grace: "0ms" }));
  const { id } = await engine.enqueue(sleeper, null);
  await engine.start();
  assert.equal(await engine.result(id), "committed");
  assert.deepEqual(
    ends.map(({ attempt, outcome, to }) => [attempt, outcome, to]),
    [
      [1, "waiting", "queued"],
      [2, "succeeded", "succeeded"],
    ],
  );
  assert.deepEqual(failures, ["a listener's own"]);
});

test("a client that is connected has them around its enqueues, and details reads the job", async (t) => {
  const place = new Place(t);
  const one = job("one").handle(() => {});
  const traces: (string | undefined)[] = [];
  const engine = await open(place.url, {
    jobs: [one],
    logger: false,
    middleware: [
      {
        async attempt({ details }, next) {
          traces.push((await details())?.trace);
          return next();
        },
      },
    ],
  });
  t.after(() => engine.close({ grace: "0ms" }));
  const client = await connect(place.url, {
    jobs: [one],
    middleware: [{ enqueue: (given, next) => next({ ...given, options: { trace: TRACE } }) }],
  });
  t.after(() => client.close());
  const { id } = await client.enqueue(one, null);
  await engine.start();
  await engine.result(id);
  assert.deepEqual(traces, [TRACE]);
});

test("what is not a middleware is refused", async () => {
  for (const wrong of [[{}], [{ enqueue: 1 }], {}, [null]])
    await assert.rejects(
      open("sqlite::memory:", { middleware: wrong as never, logger: false }),
      says(ErrorCode.optionInvalid, "middleware"),
    );
});
