// Waiting as a handler and a program see it: sleep, signals, other jobs and results, with the real loop and the real store.
import assert from "node:assert/strict";
import { test } from "node:test";
import { z } from "zod";
import { type Engine, ErrorCode, job, type JobId, RetryLater, type Run, TerminalError } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { memory, raw, says } from "./engines.ts";

const NONE = { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 };

test("a sleep ends the attempt, holds no slot, and continues after it with the kept steps", async (t) => {
  const runs: number[] = [];
  let computed = 0;
  const nap = job<null>("nap");
  nap.handle(async (_, run) => {
    runs.push(run.attempt);
    await run.step("once", () => ++computed);
    await run.sleep("20ms");
    await run.sleep("20ms");
    assert.equal(run.interrupted, undefined);
    return computed;
  });
  const engine = await memory(t, [nap]);
  await engine.start({ concurrency: 1 });
  const { id } = await engine.enqueue(nap, null);
  assert.equal(await engine.result(id), 1);
  const details = await engine.get(id);
  assert.deepEqual(runs, [1, 2, 3]);
  assert.deepEqual(details?.counters, NONE);
  assert.deepEqual(
    details?.steps.map(({ name }) => name),
    ["once", "run.sleep#1", "run.sleep#2"],
  );
});

test("a job that waits leaves its slot to others, and why says what it waits for", async (t) => {
  const wait = job<null>("wait");
  wait.handle((_, run) => run.waitForSignal("go"));
  const other = job<null>("other");
  other.handle(() => "ran");
  const engine = await memory(t, [wait, other]);
  await engine.start({ concurrency: 1 });
  const { id } = await engine.enqueue(wait, null);
  await untilWaits(engine, id, "run.signal(go)#1");
  assert.equal(await engine.result((await engine.enqueue(other, null)).id), "ran");
  const why = await engine.why(id);
  assert.equal(why?.because, "waits-for-signal");
  assert.match(why?.text ?? "", /signal "go"/);
  assert.match(why?.next ?? "", /outlive signal/);
  assert.deepEqual(await engine.signal(id, "go", { by: "ann" }), { created: true });
  assert.deepEqual(await engine.result(id), { by: "ann" });
});

test("a signal is checked by its schema, ends by time as null, and is kept when it comes before the wait", async (t) => {
  const schema = z.object({ by: z.string() });
  const ask = job<{ timeout: "10ms" | "1h" }>("ask", { retry: { attempts: 1 } });
  ask.handle(async ({ timeout }, run) => {
    const first = await run.waitForSignal("approved", { schema, timeout });
    return first === null ? "nobody" : first.by;
  });
  const engine = await memory(t, [ask]);
  const early = await engine.enqueue(ask, { timeout: "1h" });
  await engine.signal(early.id, "approved", { by: "ann" }, { id: "request-1" });
  assert.deepEqual(await engine.signal(early.id, "approved", { by: "ann" }, { id: "request-1" }), { created: false });
  await engine.start();
  assert.equal(await engine.result(early.id), "ann");
  const late = await engine.enqueue(ask, { timeout: "10ms" });
  assert.equal(await engine.result(late.id), "nobody");
  await assert.rejects(engine.signal(late.id, "approved", {}), says(ErrorCode.signalRefused, late.id, "succeeded"));
  await assert.rejects(engine.signal("nobody", "approved", {}), says(ErrorCode.notFound, "nobody"));
  const wrong = await engine.enqueue(ask, { timeout: "1h" });
  await engine.signal(wrong.id, "approved", { by: 7 });
  await assert.rejects(engine.result(wrong.id), says(ErrorCode.noResult, "dead", "approved"));
});

test("a parent gets the results of its children, typed, and sees how each of them ended", async (t) => {
  const half = job("half", { input: z.object({ n: z.number() }), output: z.object({ half: z.number() }) });
  half.handle(({ n }) => {
    if (n % 2 === 1) throw new TerminalError("odd");
    return { half: n / 2 };
  });
  const sum = job<number[]>("sum", { retry: { attempts: 1 } });
  sum.handle(async (numbers, run) => {
    const ids: JobId<{ half: number }>[] = await run.enqueueMany(
      half,
      numbers.map((n) => ({ n })),
    );
    const ends = await run.wait(ids);
    return ends.map((end) => (end.state === "succeeded" ? end.result.half : end.state));
  });
  const strict = job<number[]>("strict", { retry: { attempts: 1 } });
  strict.handle(async (numbers, run) => {
    const ids = await run.enqueueMany(
      half,
      numbers.map((n) => ({ n })),
    );
    return (await run.results(ids)).map((each) => each.half);
  });
  const engine = await memory(t, [half, sum, strict]);
  await engine.start();
  assert.deepEqual(await engine.result((await engine.enqueue(sum, [2, 3, 8])).id), [1, "dead", 4]);
  assert.deepEqual(await engine.result((await engine.enqueue(strict, [2, 8])).id), [1, 4]);
  const failed = await engine.enqueue(strict, [2, 5]);
  await assert.rejects(engine.result(failed.id), says(ErrorCode.noResult, "dead", "odd"));
  const { id } = await engine.enqueue(half, { n: 4 });
  const typed: { half: number } = await engine.result(id);
  assert.deepEqual(typed, { half: 2 });
  const [parent] = (await engine.list({ kind: "sum" })).jobs;
  const children = await engine.list({ parent: parent!.id });
  assert.deepEqual(
    children.jobs.map((child) => [child.kind, child.parent]),
    Array.from({ length: 3 }, () => ["half", parent!.id]),
  );
});

test("a result that does not fit the output of its kind fails the attempt and says why", async (t) => {
  const wrong = job("wrong", { input: z.null(), output: z.object({ rows: z.number() }), retry: { attempts: 1 } });
  wrong.handle(() => ({ rows: "many" }));
  const engine = await memory(t, [wrong]);
  await engine.start();
  const { id } = await engine.enqueue(wrong, null);
  await assert.rejects(engine.result(id), says(ErrorCode.noResult, "does not fit the output"));
});

test("RetryLater runs the job again at no cost, however often", async (t) => {
  let left = 12;
  const busy = job<null>("busy", { retry: { attempts: 1 } });
  busy.handle(() => {
    if (left-- > 0) throw new RetryLater("1ms", "the other side is busy");
    return "done";
  });
  const engine = await memory(t, [busy]);
  await engine.start();
  const { id } = await engine.enqueue(busy, null);
  assert.equal(await engine.result(id), "done");
  const { counters, history } = (await engine.get(id))!;
  assert.deepEqual(counters, { ...NONE, interruptions: 12 });
  assert.match(history[0]!.reason, /the other side is busy/);
  assert.throws(() => new RetryLater("soon" as never), says(ErrorCode.optionInvalid, "soon"));
});

test("an attempt that begins to wait ends when its other calls have ended, and later calls are refused", async (t) => {
  const gate = Promise.withResolvers<void>();
  const later: unknown[] = [];
  const mixed = job<null>("mixed");
  mixed.handle(async (_, run) => {
    await Promise.all([
      run.step("slow", () => gate.promise),
      run.sleep("5ms"),
      run.attempt === 1 ? waitThenWrite(run, later) : undefined,
    ]);
    return "done";
  });
  const engine = await memory(t, [mixed]);
  await engine.start();
  const { id } = await engine.enqueue(mixed, null);
  await untilTrue(
    () => later.length,
    (count) => count === 1,
    "the late call was refused",
  );
  assert.equal((await engine.get(id))?.state, "running", "a step is under way");
  gate.resolve();
  assert.equal(await engine.result(id), "done");
  assert.ok(says(ErrorCode.attemptWaits, id, "run.sleep#1")(later[0]));
});

async function untilWaits(engine: Engine, id: string, step: string): Promise<void> {
  await untilTrue(
    () => engine.get(id),
    (details) => details?.waitsAt === step,
    `it waits at ${step}`,
  );
}

async function waitThenWrite(run: Run, later: unknown[]): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
  await run.step("late", () => 1).catch((thrown: unknown) => later.push(thrown));
}

test("two waits at once and a wait that does not match the kept one fail the attempt and say so", async (t) => {
  const two = job<null>("two", { retry: { attempts: 1 } });
  two.handle(async (_, run) => {
    await Promise.all([run.sleep("1h"), run.waitForSignal("go")]);
  });
  let changed = false;
  const drifts = job<null>("drifts", { retry: { attempts: 1 } });
  drifts.handle(async (_, run) => {
    if (changed) await run.waitForSignal("other");
    else await run.sleep("5ms");
  });
  const engine = await memory(t, [two, drifts]);
  engine.on("attempt.ended", ({ outcome }) => (changed ||= outcome === "waiting"));
  await engine.start();
  const both = await engine.enqueue(two, null);
  await assert.rejects(engine.result(both.id), says(ErrorCode.noResult, "two waits at once"));
  const drifted = await engine.enqueue(drifts, null);
  await assert.rejects(engine.result(drifted.id), says(ErrorCode.noResult, "run.sleep#1", "run.signal(other)"));
});

test("a wait for other jobs than those it was woken from, before or after its end, fails the attempt and says so", async (t) => {
  const child = job<number, number>("child");
  let sees = 0;
  child.handle((n, run) => (n === 0 ? run.waitForSignal("go").then(() => n) : n));
  // The first attempt waits for 0 and 1, the second comes to the same wait with others.
  const pending = job<null>("pending", { retry: { attempts: 1 } });
  pending.handle(async (_, run) => {
    const ids = await run.enqueueMany(child, [0, 1]);
    await run.wait(run.attempt === 1 ? ids : ids.slice(0, 1), { timeout: "5ms" });
  });
  // Its first wait has ended and is kept; after the sleep it asks for one more.
  const passed = job<null>("passed", { retry: { attempts: 1 } });
  passed.handle(async (_, run) => {
    const ids = await run.enqueueMany(child, run.attempt < 3 ? [1, 2] : [1, 2, 3]);
    sees += (await run.results(ids)).length;
    await run.sleep("1ms");
  });
  // The same ids in another order are the same wait, and each result is that of its id.
  const turned = job<null>("turned", { retry: { attempts: 1 } });
  turned.handle(async (_, run) => {
    const ids = await run.enqueueMany(child, [1, 2, 3]);
    const results = await run.results(run.attempt % 2 === 1 ? ids : ids.toReversed());
    await run.sleep("1ms");
    return run.attempt % 2 === 1 ? results : results.toReversed();
  });
  const engine = await memory(t, [child, pending, passed, turned]);
  await engine.start();
  const other = says(ErrorCode.noResult, "run.wait#1", "with the ids of other jobs");
  await assert.rejects(engine.result((await engine.enqueue(pending, null)).id), other);
  await assert.rejects(engine.result((await engine.enqueue(passed, null)).id), other);
  assert.equal(sees, 2, "it was refused before it got results of other jobs");
  assert.deepEqual(await engine.result((await engine.enqueue(turned, null)).id), [1, 2, 3]);
});

test("a handler that returns or commits without coming to the wait it was woken from fails the attempt and says so", async (t) => {
  const returns = job<null>("returns", { retry: { attempts: 1 } });
  returns.handle(async (_, run) => {
    if (run.attempt === 1) await run.sleep("1ms");
  });
  const commits = job<null>("commits", { retry: { attempts: 1 } });
  commits.handle(async (_, run) => {
    if (run.attempt === 1) await run.waitForSignal("go", { timeout: "1ms" });
    await run.commit(sqlite, () => 1);
  });
  // It comes to the wait and does not await it: what it returns is its result, as before.
  const loose = job<null>("loose");
  loose.handle(async (_, run) => {
    const waits = run.sleep("1ms");
    if (run.attempt === 1) await waits;
    return "returned";
  });
  // A rollback of the deploy goes on where the first handler was.
  let isRolledBack = false;
  const back = job<null>("back", { retry: { attempts: 5, backoff: () => "1ms" } });
  back.handle(async (_, run) => {
    if (run.attempt === 1 || isRolledBack) await run.sleep("1ms");
    return "slept";
  });
  const engine = await memory(t, [returns, commits, loose, back]);
  engine.on("job.failed", () => (isRolledBack = true));
  await engine.start();
  const says1 = says(ErrorCode.noResult, "run.sleep#1", "ended without coming to it");
  await assert.rejects(engine.result((await engine.enqueue(returns, null)).id), says1);
  const says2 = says(ErrorCode.noResult, "run.signal(go)#1", "ended without coming to it");
  await assert.rejects(engine.result((await engine.enqueue(commits, null)).id), says2);
  assert.equal(await engine.result((await engine.enqueue(loose, null)).id), "returned");
  isRolledBack = false;
  assert.equal(await engine.result((await engine.enqueue(back, null)).id), "slept");
});

test("outcomes that are too large to keep: what had not ended stays so for later attempts, in any order, and later waits match", async (t) => {
  const text = "x".repeat(100_000);
  const child = job<number, string>("child");
  child.handle(async (n, run) => {
    if (n === 0) await run.waitForSignal("go");
    return text;
  });
  const seen: string[] = [];
  const parent = job<null>("parent", { retry: { attempts: 1 } });
  parent.handle(async (_, run) => {
    const ids = await run.enqueueMany(child, [0, 1, 2, 3]);
    if (run.attempt === 1) {
      await untilWaits(engine, ids[0]!, "run.signal(go)#1");
      for (const id of ids.slice(1)) await engine.result(id);
    }
    // A replay may name them in another order.
    const ends = await run.wait(run.attempt === 3 ? ids.toReversed() : ids, { timeout: "1ms" });
    const states = new Map(ends.map((end) => [end.id, end.state === "succeeded" ? end.result.length : end.state]));
    seen.push(ids.map((id) => states.get(id)).join(" "));
    const left = ends.filter(({ state }) => state === "queued" || state === "running").map(({ id }) => id);
    if (run.attempt === 2) await engine.signal(left[0]!, "go");
    return (await run.results(left)).length;
  });
  const engine = await memory(t, [child, parent]);
  await engine.start({ concurrency: 4 });
  const { id } = await engine.enqueue(parent, null);
  assert.equal(await engine.result(id), 1);
  assert.deepEqual(seen, ["queued 100000 100000 100000", "queued 100000 100000 100000"]);
  // The mark of the ids that a wait was for is not shown.
  const { steps } = (await engine.get(id))!;
  assert.deepEqual(
    steps.map(({ name }) => name),
    ["run.wait#1", "run.wait#2"],
  );
});

test("a step may not have the name of a wait", async (t) => {
  const named = job<null>("named", { retry: { attempts: 1 } });
  named.handle((_, run) => run.step("run.sleep#1", () => 1));
  const engine = await memory(t, [named]);
  await engine.start();
  await assert.rejects(engine.result((await engine.enqueue(named, null)).id), says(ErrorCode.noResult, "run.sleep#1"));
});

test("waiting for a result ends with an error and never hangs: after its timeout, for a job that does not exist, and when the client closes", async (t) => {
  const never = job<null>("never");
  const engine = await memory(t, [never]);
  const { id } = await engine.enqueue(never, null);
  await assert.rejects(engine.result(id, { timeout: "20ms" }), says(ErrorCode.noResult, id, "20ms"));
  await assert.rejects(engine.result("nobody"), says(ErrorCode.noResult, "nobody"));
  const pending = engine.result(id);
  await Promise.all([assert.rejects(pending, says(ErrorCode.closed, id)), engine.close()]);
});

test("a parent that is cancelled while it waits stays cancelled when its children end", async (t) => {
  const gate = Promise.withResolvers<void>();
  const child = job<null>("child");
  child.handle(() => gate.promise);
  const parent = job<null>("parent");
  parent.handle(async (_, run) => run.wait([(await run.enqueue(child, null)).id]).then(() => "woken"));
  const engine = await memory(t, [child, parent]);
  await engine.start();
  const { id } = await engine.enqueue(parent, null);
  await untilWaits(engine, id, "run.wait#1");
  assert.equal(await engine.cancel(id), "cancelled");
  gate.resolve();
  const [only] = (await engine.list({ parent: id })).jobs;
  await untilState(engine, only!.id, "succeeded");
  assert.equal((await engine.get(id))?.state, "cancelled");
});

test("a cancel wakes the workers of other processes: jobs that waited for it continue, although no worker polls", async (t) => {
  const place = new Place(t);
  const stranger = job<null>("stranger");
  const waiter = job<string>("waiter");
  waiter.handle(async (id, run) => (await run.wait([id]))[0]!.state);
  const jobs = [stranger, waiter];
  const worker = await place.engine({ jobs, poll: "1h" });
  const operator = await place.engine({ jobs });
  await worker.start({ only: [waiter] });
  await operator.enqueue(stranger, null, { id: "stranger" });
  const { id } = await operator.enqueue(waiter, "stranger");
  await untilWaits(worker, id, "run.wait#1");
  assert.equal(await operator.cancel("stranger"), "cancelled");
  assert.equal(await worker.result(id, { timeout: "30s" }), "cancelled");
});

test("the promise of a wait never settles in the attempt that began it", async (t) => {
  const settled: string[] = [];
  const naps = job<null>("naps");
  naps.handle(async (_, run) => {
    const note = (how: string) => (): void => void settled.push(`${how} in attempt ${run.attempt}`);
    const nap = run.sleep("5ms");
    nap.then(note("resolved"), note("rejected"));
    await nap;
    return run.attempt;
  });
  const engine = await memory(t, [naps]);
  await engine.start();
  assert.equal(await engine.result((await engine.enqueue(naps, null)).id), 2);
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(settled, ["resolved in attempt 2"]);
});

test("a result that is awaited while its job is removed is an error and never a hang", async (t) => {
  const place = new Place(t);
  const never = job<null>("never");
  const engine = await place.engine({ jobs: [never] });
  const { id } = await engine.enqueue(never, null);
  const pending = engine.result(id);
  raw(t, place.path).prepare("DELETE FROM outlive_jobs WHERE id = ?").run(id);
  await assert.rejects(pending, says(ErrorCode.noResult, id, "is not in the store"));
});

test("tx.signal is kept with the user's own rows, in engine.transaction and in run.commit, or not at all", async (t) => {
  const approved = z.object({ by: z.string() });
  const order = job<null>("order");
  order.handle((_, run) => run.waitForSignal("approved", { schema: approved }));
  const click = job<string>("click", { retry: { attempts: 1 } });
  click.handle((id, run) =>
    run.commit(sqlite, (tx) => {
      tx.run("INSERT INTO clicks VALUES (?)", "commit");
      return tx.signal(id, "approved", { by: "ann" }, { id: "click" });
    }),
  );
  const engine = await memory(t, [order, click]);
  await engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE clicks (how TEXT)"));
  await engine.start();
  const [first, second] = [await engine.enqueue(order, null), await engine.enqueue(order, null)];
  const failing = engine.transaction(sqlite, (tx) => {
    tx.run("INSERT INTO clicks VALUES (?)", "failing");
    tx.signal(first.id, "approved", { by: "nobody" });
    throw new Error("not enough money");
  });
  await assert.rejects(failing, /not enough money/);
  const sent = await engine.transaction(sqlite, (tx) => {
    tx.run("INSERT INTO clicks VALUES (?)", "transaction");
    return tx.signal(first.id, "approved", { by: "bob" });
  });
  assert.deepEqual(sent, { created: true });
  assert.deepEqual(await engine.result(first.id), { by: "bob" });
  const clicked = await engine.enqueue(click, second.id);
  assert.deepEqual(await engine.result(clicked.id), { created: true });
  assert.deepEqual(await engine.result(second.id), { by: "ann" });
  const late = await engine.enqueue(click, first.id);
  await assert.rejects(engine.result(late.id), says(ErrorCode.noResult, "was refused: it is succeeded"));
  const rows = await engine.transaction(sqlite, (tx) => tx.all<{ how: string }>("SELECT how FROM clicks"));
  assert.deepEqual(
    rows.map(({ how }) => how),
    ["transaction", "commit"],
  );
  await assert.rejects(
    engine.transaction(sqlite, (tx) => tx.signal(first.id, "", null)),
    says(ErrorCode.keyInvalid, "The name of a signal"),
  );
});
