// Jobs on their way in: durable when the promise resolves, ordered, delayed, unique, and many at once.
import assert from "node:assert/strict";
import { StatementSync } from "node:sqlite";
import { type TestContext, test } from "node:test";
import { ErrorCode, job } from "../../src/index.ts";
import { Place, untilState } from "../support/processes.ts";
import { AT_ONCE, memory, says, script } from "./engines.ts";

/** How many transactions are committed from now on. */
function commits(t: TestContext): () => number {
  const { run } = StatementSync.prototype as unknown as Record<"run", (...values: unknown[]) => unknown>;
  const commit = t.mock.fn();
  t.mock.method(StatementSync.prototype, "run", function (this: StatementSync, ...values: unknown[]) {
    if (/^\s*COMMIT/.test(this.sourceSQL)) commit();
    return run.apply(this, values);
  });
  return () => commit.mock.callCount();
}

test("a job is in the file when its enqueue has resolved, even if the process is killed in the same moment", async (t) => {
  const place = new Place(t);
  const note = job<{ n: number }>("note");
  const engine = await place.engine({ jobs: [note] });
  const { signal, stdout } = await script(
    `const { job, open } = await import(SRC + "index.ts");
     const { writeSync } = await import("node:fs");
     const note = job("note");
     const engine = await open(ARGS[0], { jobs: [note] });
     for (let n = 0; n < 20; n++) writeSync(1, (await engine.enqueue(note, { n })).id + "\\n");
     void engine.enqueue(note, { n: 20 });
     process.kill(process.pid, "SIGKILL");`,
    { args: [place.url] },
  );
  assert.equal(signal, "SIGKILL");
  const told = stdout.trim().split("\n");
  assert.equal(told.length, 20);
  for (const [n, id] of told.entries()) assert.deepEqual((await engine.get(id))?.input, { n });
});

test("enqueues of one turn of the event loop share one transaction", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  const count = commits(t);
  const all = await Promise.all(Array.from({ length: 50 }, (_, n) => engine.enqueue(note, n)));
  assert.equal(count(), 1);
  assert.equal((await engine.health()).store["lastGroupCommit"], 50);
  assert.equal(new Set(all.map(({ id }) => id)).size, 50);
  assert.equal((await engine.counts())[0]?.ready, 50);
  for (let n = 0; n < 3; n++) await engine.enqueue(note, n);
  assert.equal(count(), 4, "one after the other they have one each");
});

test("one enqueue that is refused does not harm the others of its turn", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  const answers = await Promise.allSettled([
    engine.enqueue(note, 1),
    engine.enqueue(note, Number.NaN),
    engine.enqueue(note, 2, { priority: 1.5 }),
    engine.enqueue(note, 3),
  ]);
  assert.deepEqual(
    answers.map(({ status }) => status),
    ["fulfilled", "rejected", "rejected", "fulfilled"],
  );
  assert.equal((await engine.counts())[0]?.ready, 2);
});

test("ids that the engine makes sort in the order of the calls", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  const ids = (await Promise.all(Array.from({ length: 300 }, (_, n) => engine.enqueue(note, n)))).map(({ id }) => id);
  assert.deepEqual(ids, ids.toSorted());
});

test("higher priority runs first, and equals run in the order in which they came", async (t) => {
  const ran: string[] = [];
  const note = job<string>("note");
  const other = job<string>("other");
  for (const kind of [note, other]) kind.handle((name) => void ran.push(name));
  const engine = await memory(t, [note, other]);
  await engine.enqueue(note, "c");
  await engine.enqueue(note, "low", { priority: -1000 });
  await engine.enqueue(other, "d");
  await engine.enqueue(note, "e");
  await engine.enqueue(other, "b", { priority: 5 });
  await engine.enqueue(note, "a", { priority: 1000 });
  await engine.runUntilIdle({ concurrency: 1 });
  assert.deepEqual(ran, ["a", "b", "c", "d", "e", "low"]);
});

test("a priority that is not a whole number from -1000 to 1000 is refused", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  for (const priority of [1001, -1001, 0.5, Number.NaN, "1" as unknown as number])
    await assert.rejects(
      engine.enqueue(note, 1, { priority }),
      says(ErrorCode.optionInvalid, "priority", "note", "higher runs first"),
    );
  assert.deepEqual((await engine.list()).jobs, []);
});

test("a job with runAt or delay waits for its time, and then runs without anybody asking", async (t) => {
  const note = job<string>("note").handle(() => {});
  const engine = await memory(t, [note]);
  const { id: later } = await engine.enqueue(note, "later", { runAt: new Date(Date.now() + 86_400_000) });
  const { id: soon } = await engine.enqueue(note, "soon", { delay: "80ms" });
  const { id: past } = await engine.enqueue(note, "past", { runAt: new Date(0) });
  const [counts] = await engine.counts();
  assert.deepEqual([counts?.ready, counts?.delayed], [1, 2]);
  await engine.start();
  await untilState(engine, past, "succeeded");
  await untilState(engine, soon, "succeeded");
  const job1 = await engine.get(soon);
  assert.ok(job1!.startedAt! - job1!.createdAt >= 80, "not before its time");
  assert.equal((await engine.get(later))?.state, "queued");
});

test("runAt and delay together are refused", async (t) => {
  const note = job<string>("note");
  const engine = await memory(t, [note]);
  await assert.rejects(
    engine.enqueue(note, "x", { runAt: new Date(), delay: "1s" }),
    says(ErrorCode.optionInvalid, "either `runAt` or `delay`"),
  );
});

test("a second enqueue with the same dedupe key returns the first job until that has ended", async (t) => {
  const order = job<number>("order");
  const bill = job<number>("bill");
  order.handle(() => {});
  const engine = await memory(t, [order, bill]);
  const first = await engine.enqueue(order, 1, { dedupeKey: "order-42" });
  assert.equal(first.created, true);
  assert.deepEqual(await engine.enqueue(order, 2, { dedupeKey: "order-42" }), { id: first.id, created: false });
  assert.equal((await engine.enqueue(bill, 1, { dedupeKey: "order-42" })).created, true, "each kind has its own keys");
  assert.equal((await engine.enqueue(order, 3, { dedupeKey: "order-43" })).created, true);
  assert.deepEqual((await engine.get(first.id))?.input, 1);
  await engine.runUntilIdle();
  const next = await engine.enqueue(order, 4, { dedupeKey: "order-42" });
  assert.equal(next.created, true, "the key is free after the end");
  assert.notEqual(next.id, first.id);
});

test("a dedupe key is held while its job runs and while it waits for a retry", async (t) => {
  const { promise: entered, resolve: enter } = Promise.withResolvers<void>();
  const { promise: opened, resolve: leave } = Promise.withResolvers<void>();
  const order = job<number>("order", { retry: { backoff: { base: "1h" } } });
  order.handle(async () => {
    enter();
    await opened;
    throw new Error("not yet");
  });
  const engine = await memory(t, [order]);
  const { id } = await engine.enqueue(order, 1, { dedupeKey: "k" });
  await engine.start();
  await entered;
  assert.deepEqual(await engine.enqueue(order, 2, { dedupeKey: "k" }), { id, created: false });
  leave();
  await untilState(engine, id, "queued");
  assert.deepEqual(await engine.enqueue(order, 3, { dedupeKey: "k" }), { id, created: false });
});

test("of many enqueues with one key in one turn exactly one is created, and all name it", async (t) => {
  const order = job<number>("order");
  const engine = await memory(t, [order]);
  const all = await Promise.all(Array.from({ length: 10 }, (_, n) => engine.enqueue(order, n, { dedupeKey: "k" })));
  assert.deepEqual(
    all.map(({ created }) => created),
    [true, ...Array.from({ length: 9 }, () => false)],
  );
  assert.equal(new Set(all.map(({ id }) => id)).size, 1);
});

test("a retry against a dedupe key that another job holds is an error that names the holder", async (t) => {
  const order = job<number>("order", { retry: { attempts: 1, backoff: AT_ONCE } });
  order.handle(() => {
    throw new Error("no");
  });
  const engine = await memory(t, [order]);
  const { id: first } = await engine.enqueue(order, 1, { dedupeKey: "order-42" });
  await engine.runUntilIdle();
  const { id: holder } = await engine.enqueue(order, 2, { dedupeKey: "order-42", delay: "1h" });
  await assert.rejects(engine.retry(first), (thrown) => {
    says(ErrorCode.keyHeld, first, holder, '"order-42"')(thrown);
    assert.deepEqual((thrown as { data: object }).data, { jobId: first, holder, dedupeKey: "order-42" });
    return true;
  });
  assert.equal((await engine.get(first))?.state, "dead", "nothing was changed");
  await engine.cancel(holder);
  assert.equal(await engine.retry(first), "queued");
});

test("with the caller's own id a repeated enqueue is harmless, even after the job has ended", async (t) => {
  const ran: number[] = [];
  const note = job<number>("note").handle((n) => void ran.push(n));
  const engine = await memory(t, [note]);
  assert.deepEqual(await engine.enqueue(note, 1, { id: "mail/42" }), { id: "mail/42", created: true });
  assert.deepEqual(await engine.enqueue(note, 2, { id: "mail/42" }), { id: "mail/42", created: false });
  await engine.runUntilIdle();
  assert.deepEqual(await engine.enqueue(note, 3, { id: "mail/42" }), { id: "mail/42", created: false });
  await engine.runUntilIdle();
  assert.deepEqual(ran, [1]);
});

test("enqueueMany takes arrays, generators and asynchronous iterables", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  function* some(): Generator<number> {
    for (let n = 0; n < 30; n++) yield n;
  }
  async function* slowly(): AsyncGenerator<number> {
    for (const n of some()) yield await Promise.resolve(n);
  }
  for (const inputs of [[...some()], some(), slowly(), new Set(some())])
    assert.deepEqual(await engine.enqueueMany(note, inputs), { count: 30, created: 30 });
  assert.deepEqual(await engine.enqueueMany(note, []), { count: 0, created: 0 });
  assert.equal((await engine.counts())[0]?.ready, 120);
});

test("enqueueMany writes batches of 1,000 and reads no further ahead than one of them", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  let made = 0;
  let durable = 0;
  let ahead = 0;
  async function* many(): AsyncGenerator<number> {
    for (; made < 4_500; ahead = Math.max(ahead, made - durable)) yield made++;
  }
  const batches: number[] = [];
  const { count } = await engine.enqueueMany(note, many(), {
    onBatch: (batch) => {
      durable += batch.length;
      batches.push(batch.length);
    },
  });
  assert.equal(count, 4_500);
  assert.deepEqual(batches, [1_000, 1_000, 1_000, 1_000, 500]);
  assert.ok(ahead <= 1_000, `at most one batch is in memory, not ${ahead}`);
});

test("an input that enqueueMany refuses is reported when the batches ahead of it are durable", async (t) => {
  const note = job<unknown>("note");
  const engine = await memory(t, [note]);
  function* many(): Generator<unknown> {
    for (let n = 0; n < 2_200; n++) yield n;
    yield () => {};
  }
  const batches: number[] = [];
  const onBatch = (batch: readonly unknown[]): void => void batches.push(batch.length);
  await assert.rejects(engine.enqueueMany(note as never, many() as Iterable<never>, { onBatch }), { code: "NOT_JSON" });
  assert.deepEqual(batches, [1_000, 1_000]);
  assert.equal((await engine.counts()).find(({ kind }) => kind === "note")?.ready, 2_000);
});

test("each gives every job of enqueueMany its own options, and a repetition with the same ids adds nothing", async (t) => {
  const note = job<{ n: number }>("note");
  const engine = await memory(t, [note]);
  const inputs = Array.from({ length: 1_200 }, (_, n) => ({ n }));
  const each = (input: { n: number }, index: number): { id: string; priority: number } => {
    assert.equal(index, input.n);
    return { id: `n-${index}`, priority: index % 2 };
  };
  assert.deepEqual(await engine.enqueueMany(note, inputs, { each }), { count: 1_200, created: 1_200 });
  assert.deepEqual(await engine.enqueueMany(note, inputs, { each }), { count: 1_200, created: 0 });
  assert.equal((await engine.get("n-1101"))?.priority, 1);
});

test("what enqueueMany refuses names the input, and the batches before it are in", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  const inputs = Array.from({ length: 1_500 }, (_, n) => (n === 1_200 ? Number.NaN : n));
  await assert.rejects(engine.enqueueMany(note, inputs), says(ErrorCode.notJson, "The input of note", "NaN"));
  assert.equal((await engine.counts())[0]?.ready, 1_000);
});

test("a source that throws ends enqueueMany with its own error", async (t) => {
  const note = job<number>("note");
  const engine = await memory(t, [note]);
  async function* broken(): AsyncGenerator<number> {
    yield 1;
    throw new RangeError("the source broke");
  }
  await assert.rejects(engine.enqueueMany(note, broken()), RangeError);
  assert.deepEqual((await engine.list()).jobs, []);
});
