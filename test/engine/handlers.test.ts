// What a handler gets and what becomes of what it does: the input through its schema, steps, keys, results, children, signals.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { ErrorCode, type Interruption, job, type Json, open, OutliveError, type Run } from "../../src/index.ts";
import { checksumOf, stepOwner } from "../../src/stores/sqlite/checksums.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { AT_ONCE, forever, memory, raw, says, untilAborted } from "./engines.ts";

/** As small as a Standard Schema gets: a text that is a number. Its output is that number. */
function numberText(wait: boolean): StandardSchemaV1<string, number> {
  const check = (value: unknown): StandardSchemaV1.Result<number> => {
    const number = typeof value === "string" && value !== "" ? Number(value) : Number.NaN;
    return Number.isNaN(number) ? { issues: [{ message: "must be a number in a text", path: [] }] } : { value: number };
  };
  return {
    "~standard": {
      version: 1,
      vendor: "test",
      validate: (value) => (wait ? Promise.resolve().then(() => check(value)) : check(value)),
    },
  };
}

test("the handler gets the schema's output, and what is stored is the schema's input", async (t) => {
  const seen: unknown[] = [];
  const meeting = job("meeting", {
    input: z.object({ at: z.iso.datetime().transform((text) => new Date(text)), room: z.string().default("red") }),
  });
  meeting.handle((input) => void seen.push(input));
  const engine = await memory(t, [meeting]);
  const { id } = await engine.enqueue(meeting, { at: "2026-11-15T12:00:00Z" });
  assert.deepEqual((await engine.get(id))?.input, { at: "2026-11-15T12:00:00Z" });
  await engine.runUntilIdle();
  assert.deepEqual(seen, [{ at: new Date("2026-11-15T12:00:00Z"), room: "red" }]);
});

for (const wait of [false, true]) {
  test(`a hand-made Standard Schema serves as well${wait ? ", also an asynchronous one" : ""}`, async (t) => {
    const seen: number[] = [];
    const count = job("count", { input: numberText(wait) });
    count.handle((input) => void seen.push(input));
    const engine = await memory(t, [count]);
    const { id } = await engine.enqueue(count, "42");
    await assert.rejects(
      engine.enqueue(count, "many"),
      says(ErrorCode.inputInvalid, "count", "must be a number in a text", "Nothing was enqueued"),
    );
    assert.equal((await engine.get(id))?.input, "42");
    assert.equal((await engine.enqueueMany(count, ["1", "2"])).created, 2);
    await engine.runUntilIdle({ concurrency: 1 });
    assert.deepEqual(seen, [42, 1, 2]);
  });
}

test("a stored input that does not fit its schema any more is refused at the claim: dead at once, with the reason", async (t) => {
  const place = new Place(t);
  const before = job("user", { input: z.object({ name: z.string() }) });
  const { id } = await (await place.engine({ jobs: [before], heartbeat: {} })).enqueue(before, { name: "Ada" });
  let ran = 0;
  const after = job("user", { input: z.object({ name: z.string(), mail: z.email() }) });
  after.handle(() => void ran++);
  const engine = await place.engine({ jobs: [after], heartbeat: {} });
  await engine.start();
  await untilState(engine, id, "dead");
  const user = await engine.get(id);
  assert.equal(ran, 0);
  assert.equal(user?.lastOutcome, "rejected");
  assert.deepEqual(user.counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 });
  assert.match(
    user.history[0]!.reason,
    /its stored input was refused: The input does not fit the schema of user: mail/,
  );
  assert.deepEqual(user.input, { name: "Ada" }, "nothing of it is lost");
});

test("a schema that fails for a moment (it throws, or its promise rejects) costs an attempt and not the job", async (t) => {
  let broken = false;
  const flaky: StandardSchemaV1<string, string> = {
    "~standard": {
      version: 1,
      vendor: "test",
      validate: async (value) => {
        if (broken) throw new Error("the service that knows is down");
        return { value: value as string };
      },
    },
  };
  const note = job("note", { input: flaky, retry: { backoff: "linear" } }).handle(() => {});
  const engine = await memory(t, [note]);
  const { id } = await engine.enqueue(note, "x");
  broken = true;
  await engine.runUntilIdle();
  assert.equal((await engine.get(id))?.state, "queued");
});

test("what a handler returns is the job's result, and nothing is null", async (t) => {
  const echo = job<{ value: unknown }>("echo").handle(({ value }) => value as string);
  const nothing = job<number>("nothing").handle(() => {});
  const later = job<number>("later").handle(async (n) => ({ n: await Promise.resolve(n) }));
  const engine = await memory(t, [echo, nothing, later]);
  const values: Json[] = [null, 0, "", false, "naïve \u{1f600} \u2028 \ud800", [1, [2, []]], { a: { b: [null] } }];
  const ids = await Promise.all(values.map((value) => engine.enqueue(echo, { value })));
  const { id: none } = await engine.enqueue(nothing, 1);
  const { id: awaited } = await engine.enqueue(later, 7);
  await engine.runUntilIdle();
  for (const [i, { id }] of ids.entries()) assert.deepEqual((await engine.get(id))?.result, values[i]);
  assert.equal((await engine.get(none))?.result, null);
  assert.deepEqual((await engine.get(awaited))?.result, { n: 7 });
});

test("a result that JSON can't carry is a failure of the attempt, with the path", async (t) => {
  const bad = job<number>("bad", { retry: { attempts: 1 } });
  bad.handle(() => ({ rows: [{ at: new Date() as unknown as string }] }));
  const engine = await memory(t, [bad]);
  const { id } = await engine.enqueue(bad, 1);
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.equal(state, "dead");
  assert.match(error!.message, new RegExp(`The result of job ${id} contains a Date at \\$\\.rows\\[0\\]\\.at`));
});

test("a step's result is the same in the first run and in a replay, whatever JSON makes of it", async (t) => {
  const made: Record<string, () => unknown> = {
    nothing: () => undefined,
    null: () => null,
    zero: () => -0,
    text: () => "naïve \u{1f600} \0 \u2028",
    nested: () => ({ a: [{ b: null, gone: undefined }], "": [[]] }),
    awaited: () => Promise.resolve([1, 2]),
  };
  const ran: string[] = [];
  const seen: unknown[][] = [];
  const stepped = job<null>("stepped", { retry: { backoff: AT_ONCE } });
  stepped.handle(async (_, run) => {
    const results: unknown[] = [];
    for (const [name, make] of Object.entries(made))
      results.push(
        await run.step(name, () => {
          ran.push(name);
          return make() as Json;
        }),
      );
    seen.push(results);
    if (run.attempt === 1) throw new Error("once more");
  });
  const engine = await memory(t, [stepped]);
  await engine.enqueue(stepped, null);
  await engine.runUntilIdle();
  assert.deepEqual(ran, Object.keys(made), "each ran once");
  assert.equal(seen.length, 2);
  assert.deepStrictEqual(seen[0], seen[1]);
  assert.deepStrictEqual(seen[0], [
    undefined,
    null,
    0,
    "naïve \u{1f600} \0 \u2028",
    { a: [{ b: null }], "": [[]] },
    [1, 2],
  ]);
});

test("a step that throws is not kept and runs again, those before it do not", async (t) => {
  const ran: string[] = [];
  const stepped = job<null>("stepped", { retry: { backoff: AT_ONCE } });
  stepped.handle(async (_, run) => {
    await run.step("a", () => void ran.push("a"));
    await run.step("b", () => {
      ran.push(`b${run.attempt}`);
      if (run.attempt < 3) throw new Error("not yet");
    });
  });
  const engine = await memory(t, [stepped]);
  const { id } = await engine.enqueue(stepped, null);
  await engine.runUntilIdle();
  assert.deepEqual(ran, ["a", "b1", "b2", "b3"]);
  const { state, steps } = (await engine.get(id))!;
  assert.equal(state, "succeeded");
  assert.deepEqual(
    steps.map(({ name, attempt }) => [name, attempt]),
    [
      ["a", 1],
      ["b", 3],
    ],
  );
});

test("two steps of one name in one attempt are an error that names job and step", async (t) => {
  const { promise, resolve } = Promise.withResolvers<unknown>();
  const twice = job<null>("twice", { retry: { attempts: 1 } });
  twice.handle(async (_, run) => {
    await run.step("mail", () => 1);
    await run.step("mail", () => 2).catch(resolve);
  });
  const engine = await memory(t, [twice]);
  const { id } = await engine.enqueue(twice, null);
  await engine.runUntilIdle();
  says(ErrorCode.stepReused, id, '"mail"', "its own name")(await promise);
  assert.deepEqual(
    (await engine.get(id))?.steps.map(({ result }) => result),
    [1],
  );
});

test("run.key is the same in every attempt and different for every job and name", async (t) => {
  const keys: string[][] = [];
  const mail = job<null>("mail", { retry: { backoff: AT_ONCE } });
  mail.handle((_, run) => {
    keys.push([run.key("mail"), run.key("bill")]);
    if (run.attempt < 3) throw new Error("again");
  });
  const engine = await memory(t, [mail]);
  await engine.enqueue(mail, null);
  await engine.enqueue(mail, null);
  await engine.runUntilIdle({ concurrency: 1 });
  assert.equal(keys.length, 6);
  assert.equal(new Set(keys.map((pair) => pair.join())).size, 2);
  assert.equal(new Set(keys.flat()).size, 4);
});

test("attempt and fence grow with every claim, and interrupted says how the last attempt ended and where", async (t) => {
  const seen: unknown[] = [];
  const fences: Run["fence"][] = [];
  const shaky = job<null>("shaky", { timeout: "20ms", grace: "0ms", retry: { backoff: AT_ONCE } });
  shaky.handle(async (_, run) => {
    seen.push([run.attempt, run.interrupted]);
    fences.push(run.fence);
    if (run.attempt === 1) throw new Error("first");
    await run.step("render", () => 1);
    if (run.attempt === 2) throw await untilAborted(run.signal);
    if (run.attempt === 3) await forever();
  });
  const engine = await memory(t, [shaky]);
  const { id } = await engine.enqueue(shaky, null);
  await engine.start();
  await untilState(engine, id, "succeeded");
  assert.deepEqual(seen, [
    [1, undefined],
    [2, { how: "failed", lastStep: undefined }],
    [3, { how: "timed-out", lastStep: "render" }],
    [4, { how: "timed-out", lastStep: "render" }],
  ]);
  assert.deepEqual(
    fences.map(({ number }) => number),
    [1, 2, 3, 4],
  );
  assert.equal(new Set(fences.map(({ epoch }) => epoch)).size, 1);
  const { counters, attempt } = (await engine.get(id))!;
  assert.deepEqual([counters.errors, counters.timeouts, attempt], [1, 2, 4]);
});

test("progress keeps the latest value, the log keeps its lines in order", async (t) => {
  const told: string[] = [];
  const long = job<null>("long").handle(async (_, run) => {
    await run.progress({ done: 1, of: 3 });
    await run.log("one");
    await run.progress({ done: 2, of: 3 });
    await run.log("two\0");
  });
  const engine = await memory(t, [long]);
  engine.on("job.log", ({ message }) => told.push(message));
  const { id } = await engine.enqueue(long, null);
  await engine.runUntilIdle();
  const { progress, log } = (await engine.get(id))!;
  assert.deepEqual(progress, { done: 2, of: 3 });
  assert.deepEqual(
    log.map(({ attempt, message }) => [attempt, message]),
    [
      [1, "one"],
      [1, "two\\0"],
    ],
  );
  assert.deepEqual(told, ["one", "two\\0"]);
});

test("the log keeps the last 1,000 lines of 8,192 characters each", async (t) => {
  const chatty = job<null>("chatty").handle(async (_, run) => {
    await run.log("x".repeat(10_000));
    await Promise.all(
      Array.from({ length: 1_004 }, (__, n) => run.log(`line ${n} ${"y".repeat(n === 4 ? 9_000 : 0)}`)),
    );
  });
  const engine = await memory(t, [chatty]);
  const { id } = await engine.enqueue(chatty, null);
  await engine.runUntilIdle();
  const { log } = (await engine.get(id))!;
  assert.equal(log.length, 1_000);
  assert.match(log[0]!.message, /^line 4 y+$/);
  assert.equal(log[0]!.message.length, 8_192);
  assert.equal(log.at(-1)?.message, "line 1003 ");
});

test("run.heartbeat moves the deadline by as long as the job has run", async (t) => {
  const alive = job<null>("alive", { timeout: "1m" });
  alive.handle(async (_, run) => {
    const end = performance.now() + 50;
    while (performance.now() < end) await new Promise(setImmediate);
    await run.heartbeat();
  });
  const engine = await memory(t, [alive]);
  const { id } = await engine.enqueue(alive, null);
  await engine.start();
  await untilState(engine, id, "succeeded");
  const done = (await engine.get(id))!;
  assert.equal(done.attempt, 1);
  assert.ok(done.deadlineAt! >= done.startedAt! + 60_000 + 45, "its deadline moved with its heartbeat");
});

test("maxRuntime caps what heartbeats add to the deadline", async (t) => {
  const { promise, resolve } = Promise.withResolvers<Interruption>();
  const alive = job<null>("alive", { timeout: "200ms", maxRuntime: "400ms", retry: { timeouts: 1 } });
  alive.handle(async (_, run) => {
    void untilAborted(run.signal).then(resolve);
    while (!run.signal.aborted) {
      await run.heartbeat();
      await new Promise(setImmediate);
    }
    throw new Error("told to stop");
  });
  const engine = await memory(t, [alive]);
  const { id } = await engine.enqueue(alive, null);
  await engine.start();
  assert.equal((await promise).why, "timeout");
  await untilState(engine, id, "dead");
  const done = (await engine.get(id))!;
  assert.equal(done.lastOutcome, "timed-out");
  assert.ok(done.deadlineAt! <= done.startedAt! + 400);
});

test("a maxRuntime without a timeout would cap nothing, and is refused", () => {
  assert.throws(
    () => job("long", { timeout: "none", maxRuntime: "1h" }),
    says(ErrorCode.optionInvalid, "maxRuntime of long", "Set a timeout"),
  );
});

test("children of a run are enqueued once, however often the run is repeated", async (t) => {
  const ran: string[] = [];
  const child = job<string>("child").handle((name) => void ran.push(name));
  const created: boolean[][] = [];
  const parent = job<null>("parent", { retry: { backoff: AT_ONCE } });
  parent.handle(async (_, run) => {
    const children = [
      await run.enqueue(child, "a"),
      await run.enqueue(child, "b"),
      await run.enqueue(child, "c", { id: "c-of-my-own" }),
    ];
    created.push(children.map((one) => one.created));
    if (run.attempt < 3) throw new Error("again");
    return children.map(({ id }) => id);
  });
  const engine = await memory(t, [parent, child]);
  const { id } = await engine.enqueue(parent, null);
  await engine.runUntilIdle();
  assert.deepEqual(ran.toSorted(), ["a", "b", "c"]);
  assert.deepEqual(created, [
    [true, true, true],
    [false, false, false],
    [false, false, false],
  ]);
  const ids = (await engine.get(id))!.result as string[];
  assert.equal(new Set(ids).size, 3);
  assert.equal(ids[2], "c-of-my-own");
  assert.deepEqual((await engine.get(ids[0]!))?.input, "a");
});

test("a long line of descendants does not outgrow what an id may be", async (t) => {
  const line = job<number>("line", { retry: { attempts: 1 } });
  line.handle(async (left, run) => {
    if (left > 0) await run.enqueue(line, left - 1);
  });
  const engine = await memory(t, [line]);
  await engine.enqueue(line, 40);
  await engine.runUntilIdle();
  assert.equal((await engine.counts())[0]?.succeeded, 41);
});

test("a child enqueued after a step that enqueues another is not lost when the step is replayed", async (t) => {
  const ran: string[] = [];
  const child = job<string>("child").handle((name) => void ran.push(name));
  const parent = job<null>("parent", { retry: { backoff: AT_ONCE } });
  parent.handle(async (_, run) => {
    await run.step("first", async () => void (await run.enqueue(child, "a")));
    if (run.attempt === 1) throw new Error("between the two");
    await run.enqueue(child, "b");
  });
  const engine = await memory(t, [parent, child]);
  await engine.enqueue(parent, null);
  await engine.runUntilIdle();
  assert.deepEqual(ran.toSorted(), ["a", "b"]);
});

test("children that are enqueued at once in another order in the next attempt are each enqueued once", async (t) => {
  const ran: string[] = [];
  const child = job<string>("child").handle((name) => void ran.push(name));
  const parent = job<null>("parent", { retry: { backoff: AT_ONCE } });
  parent.handle(async (_, run) => {
    if (run.attempt === 1) {
      await run.enqueue(child, "b");
      throw new Error("b was quicker than a");
    }
    await run.enqueue(child, "a");
    await run.enqueue(child, "b");
  });
  const engine = await memory(t, [parent, child]);
  await engine.enqueue(parent, null);
  await engine.runUntilIdle();
  assert.deepEqual(ran.toSorted(), ["a", "b"]);
});

test("a child of an unknown kind, or one that does not fit, fails the attempt and adds nothing", async (t) => {
  const stranger = job<number>("stranger");
  const strict = job("strict", { input: z.number() });
  const told: unknown[] = [];
  const parent = job<null>("parent").handle(async (_, run) => {
    await run.enqueue(stranger, 1).catch((thrown: unknown) => told.push(thrown));
    await run.enqueue(strict, "x" as unknown as number).catch((thrown: unknown) => told.push(thrown));
  });
  const engine = await memory(t, [parent, strict]);
  await engine.enqueue(parent, null);
  await engine.runUntilIdle();
  says(ErrorCode.kindUnknown, "stranger", "known: parent, strict")(told[0]);
  says(ErrorCode.inputInvalid, "strict")(told[1]);
  assert.equal((await engine.list()).jobs.length, 1);
});

const byName = ([a]: string[], [b]: string[]): number => a!.localeCompare(b!);

test("the signal's reason is timeout, cancelled or shutdown, and a listener that comes late sees it too", async (t) => {
  const reasons = new Map<string, Interruption>();
  const waits = job<string>("waits", { timeout: "60ms", retry: { timeouts: 1 } });
  const lasts = job<string>("lasts");
  for (const kind of [waits, lasts])
    kind.handle(async (name, run) => {
      reasons.set(name, await untilAborted(run.signal));
      throw run.signal.reason;
    });
  const engine = await memory(t, [waits, lasts]);
  const { id: timeout } = await engine.enqueue(waits, "timeout");
  const { id: cancelled } = await engine.enqueue(lasts, "cancelled");
  const { id: shutdown } = await engine.enqueue(lasts, "shutdown");
  const worker = await engine.start();
  await untilState(engine, cancelled, "running");
  await engine.cancel(cancelled);
  await untilState(engine, cancelled, "cancelled");
  await untilState(engine, timeout, "dead");
  await untilState(engine, shutdown, "running");
  await worker.stop({ grace: "50ms" });
  assert.deepEqual([...reasons].map(([name, { why, message }]) => [name, why, message]).toSorted(byName), [
    ["cancelled", "cancelled", `job ${cancelled} was cancelled`],
    ["shutdown", "shutdown", "the worker shuts down"],
    ["timeout", "timeout", `job ${timeout} passed its deadline; it has 5000 ms to end`],
  ]);
  assert.equal((await engine.get(shutdown))?.state, "queued");
});

test("what a handler writes after its end is refused and changes nothing", async (t) => {
  const { promise, resolve } = Promise.withResolvers<unknown[]>();
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  const leaky = job<null>("leaky").handle((_, run) => {
    void ended.then(async () => {
      const late = [
        run.step("late", () => 1),
        run.progress(1),
        run.log("late"),
        run.heartbeat(),
        run.enqueue(leaky, null),
      ];
      resolve((await Promise.allSettled(late)).map((one) => (one.status === "rejected" ? one.reason : one)));
    });
  });
  const engine = await memory(t, [leaky]);
  const { id } = await engine.enqueue(leaky, null);
  await engine.start();
  await untilState(engine, id, "succeeded");
  end();
  for (const thrown of await promise) {
    assert.ok(thrown instanceof OutliveError);
    says(ErrorCode.stale, id, "has ended and can't write any more")(thrown);
  }
  const done = (await engine.get(id))!;
  assert.deepEqual([done.steps, done.progress, done.log], [[], null, []]);
  assert.equal((await engine.list()).jobs.length, 1);
});

test("a step result that is not JSON fails the attempt and not the worker", async (t) => {
  const place = new Place(t);
  const stepped = job<null>("stepped", { retry: { attempts: 2, backoff: AT_ONCE } });
  const db = raw(t, place.path);
  stepped.handle(async (_, run) => {
    await run.step("a", () => 1);
    if (run.attempt === 1) {
      const sum = checksumOf("{not json", stepOwner(run.id, "a"));
      db.exec(`UPDATE outlive_steps SET result = '{not json', result_sum = ${sum}`);
      throw new Error("again");
    }
  });
  const engine = await open(place.url, { jobs: [stepped], logger: false });
  t.after(() => engine.close());
  const { id } = await engine.enqueue(stepped, null);
  await engine.start();
  await untilState(engine, id, "dead");
  await untilTrue(
    () => engine.health(),
    ({ worker }) => worker?.held === 0,
    "its slot is free",
  );
});
