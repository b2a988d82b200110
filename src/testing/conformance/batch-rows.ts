// What the port promises about the rows of a block: each counts once, by its mark or with its block, however the block ends and however often it
// is repeated; and what they leave behind is kept with them.
import assert from "node:assert/strict";
import { decodeBlock, type OutputPart, type RowEnds, type RowSums } from "../../job/batches.ts";
import type { ClaimedJob, KindSettings } from "../../job/job.ts";
import type { Change } from "../../job/transitions.ts";
import type { AttemptWrite, Settlement } from "../../stores/port.ts";
import { CommitControl } from "../../worker/run.ts";
import { type BatchFixture, batchDraft, batchSpecifier, blocksOf, failedRow, ZERO } from "./batch-fixture.ts";
import {
  answers,
  expireOnce,
  GRACE_MS,
  type TestWorker,
  kind,
  roomFor,
  SETTLE,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";
import { lose, resolve } from "./losses.ts";

/** A kind whose jobs may fail in each way once. */
const ONCE: KindSettings = kind("mail", { limits: { errors: 1, timeouts: 1, crashes: 1 } });

function ends(more: Partial<RowEnds>): RowEnds {
  return { succeeded: [], failed: [], outputs: [], ...more };
}

function rows(more: Partial<RowEnds>): AttemptWrite {
  return { type: "rows", ends: ends(more) };
}

/** A file with a text for each of these lines. */
function output(file: string, ...lines: readonly number[]): OutputPart {
  return { file, texts: JSON.stringify(lines.map((line) => [line, `${line}\n`])) };
}

function withRows({ lease, change }: Settlement, more: Partial<RowEnds>): Settlement {
  return { lease, change: { ...change, rows: ends(more) } satisfies Change };
}

export function specifyBatchRows(specify: Specify): void {
  const onBatches = batchSpecifier(specify);

  onBatches("BR-014 rows are marked as they end, and count at once; the next attempt gets the marks", async (on) => {
    await on.submit("b", [5]);
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    assert.deepEqual(answers(await worker.record(job, rows({ succeeded: [0, 3] }))), ["applied"]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 2 });
    await worker.record(job, rows({ failed: [failedRow(4, 5), failedRow(1, 2, { as: "quarantined" })] }));
    assert.deepEqual(await on.sums("b"), { succeeded: 2, failed: 1, quarantined: 1, aborted: 0 });
    await worker.settle(SETTLE.release(job));
    const again = await worker.next();
    assert.deepEqual([again.block, again.input], [{ marks: "11011" }, job.input]);
    await worker.settle(SETTLE.succeed(again));
    assert.deepEqual(await on.sums("b"), { succeeded: 3, failed: 1, quarantined: 1, aborted: 0 });
    assert.deepEqual(await on.settle(), ["b"]);
  });

  onBatches("a row that is marked again counts once, in one write, in one call and in a later one", async (on) => {
    await on.submit("b", [5]);
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    const twice = rows({ succeeded: [0, 0, 1], failed: [failedRow(1, 2), failedRow(2, 3), failedRow(2, 3)] });
    assert.deepEqual(answers(await worker.record(job, twice, twice)), ["applied", "applied"]);
    await worker.record(job, rows({ succeeded: [0, 1, 2, 3] }), rows({ failed: [failedRow(0, 1), failedRow(3, 4)] }));
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 3, failed: 1 });
    const [block] = await on.batches.failures("b", 1, null, 10);
    assert.deepEqual(
      block!.rows.map(({ line }) => line),
      [3],
    );
    await worker.settle(withRows(SETTLE.succeed(job), { succeeded: [0, 4], failed: [failedRow(2, 3)] }));
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 4, failed: 1 });
  });

  onBatches("an index that the block does not have ends nothing", async (on) => {
    await on.submit("b", [2]);
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    await worker.record(job, rows({ succeeded: [-1, 2, 100], failed: [failedRow(2, 9)] }));
    assert.deepEqual(await on.sums("b"), ZERO);
    assert.deepEqual(await on.batches.failures("b", 1, null, 10), []);
  });

  onBatches("BR-022 rows of a stale attempt end nothing, whatever it writes", async (on) => {
    const { fixture } = on;
    await on.submit("b", [5]);
    const [zombie, heir] = [await fixture.worker("zombie"), await fixture.worker("heir")];
    const job = await zombie.next();
    await zombie.record(job, rows({ succeeded: [0] }));
    await fixture.recoverAll(zombie);
    const again = await heir.next();
    assert.deepEqual(again.block, { marks: "10000" });
    const some = { succeeded: [1, 2], failed: [failedRow(3, 4)], outputs: [output("f", 2, 3)] };
    assert.deepEqual(answers(await zombie.record(job, rows(some), { type: "rowBegins", row: 1 })), ["stale", "stale"]);
    assert.deepEqual(answers(await zombie.settle(withRows(SETTLE.succeed(job), some))), ["stale"]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 1 });
    assert.deepEqual([await on.batches.failures("b", 1, null, 9), await on.batches.outputFiles("b")], [[], []]);
    await heir.settle(SETTLE.succeed(again));
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 5 });
  });

  onBatches("known bug 11: a settlement that is sent again, its answer lost, counts its rows once", async (on) => {
    await on.submit("b", [4, 3]);
    const worker = await on.fixture.worker("w");
    const [one, two] = (await worker.claim(2)) as [ClaimedJob, ClaimedJob];
    const some = { failed: [failedRow(0, 1)], outputs: [output("f", 1, 2, 3, 4)] };
    const settlements = [withRows(SETTLE.succeed(one), some), SETTLE.failForGood(two)];
    assert.deepEqual(answers(await worker.settle(...settlements)), ["applied", "applied"]);
    assert.deepEqual(answers(await worker.settle(...settlements)), ["repeated", "repeated"]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 3, failed: 4 });
    const { blocks } = await on.batches.outputs("b", 1, "f", null, 9);
    assert.deepEqual(blocks, [[output("f", 1, 2, 3, 4).texts]]);
  });

  onBatches("rows of a job that is not a block end nothing", async (on) => {
    await on.fixture.enqueue("a");
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    assert.deepEqual(answers(await worker.record(job, rows({ succeeded: [0] }), { type: "rowBegins", row: 0 })), [
      "applied",
      "applied",
    ]);
    assert.deepEqual(answers(await worker.settle(withRows(SETTLE.succeed(job), { succeeded: [0] }))), ["applied"]);
    assert.deepEqual(await on.fixture.states("a"), ["succeeded"]);
  });

  for (const [name, way] of Object.entries(WAYS)) {
    onBatches(`rows without a mark share the end of their block, once: ${name}`, async (on) => {
      await on.fixture.declare(way.kind ?? ONCE);
      await on.submit("b", [5]);
      const worker = await on.fixture.worker("w");
      const job = await worker.next();
      await worker.record(job, rows({ succeeded: [1], failed: [failedRow(3, 4)] }));
      if (!(await way.end(on, worker, job))) return;
      const expected = { ...ZERO, succeeded: 1, failed: 1 };
      expected[way.as] += 3;
      assert.deepEqual(await on.sums("b"), expected);
      // The attempt that was ended comes too late, with all of its rows.
      await worker.record(job, rows({ succeeded: [0, 2] }));
      await worker.settle(withRows(SETTLE.succeed(job), { succeeded: [0, 2, 4] }));
      assert.deepEqual(await on.sums("b"), expected);
      const [block, ...others] = await on.batches.failures("b", 1, null, 10);
      assert.deepEqual([others, block!.rows.map(({ line }) => line)], [[], [4]]);
      if (way.as === "failed" || way.as === "quarantined") {
        const { error, ...whole } = block!.whole!;
        assert.deepEqual({ ...whole, input: null }, { input: null, marks: "01010", as: way.as });
        assert.deepEqual(error, (await on.fixture.job("b:1:0")).error);
        if (name !== "its input is damaged") assert.equal(whole.input, job.input);
      } else assert.equal(block!.whole, null);
      assert.deepEqual(await on.settle(), ["b"]);
    });
  }

  onBatches("a block of which every row was marked adds nothing when it ends", async (on) => {
    await on.fixture.declare(ONCE);
    await on.submit("b", [2]);
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    await worker.record(job, rows({ succeeded: [0], failed: [failedRow(1, 2)] }));
    await worker.settle(SETTLE.failForGood(job));
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 1, failed: 1 });
    assert.equal((await on.batches.failures("b", 1, null, 1))[0]!.whole, null);
  });

  onBatches("where a cancel takes the place of a change, the change's rows end nothing", async (on) => {
    await on.submit("b", [3]);
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    await on.fixture.store.operate.cancel("b:1:0", "ann");
    const { lease, change } = withRows(SETTLE.fail(job), { failed: [failedRow(0, 1)] });
    const ifCancelled = { ...change.ifCancelled!, rows: ends({ succeeded: [1] }) };
    await worker.settle({ lease, change: { ...change, ifCancelled } });
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 1, aborted: 2 });
  });

  for (const how of ["dies", "is lost"] as const)
    onBatches(`the row that was begun when a worker ${how} again and again is convicted, and only that`, async (on) => {
      const { fixture } = on;
      await fixture.declare(ONCE);
      await on.submit("b", [5]);
      for (let death = 1; ; death++) {
        assert.ok(death < 8, "a row was convicted");
        const worker = await fixture.worker(`w${death}`);
        const job = await worker.next();
        if (job.block !== undefined && job.block.marks !== "10000") {
          assert.deepEqual([job.block.marks, job.counters.crashes, job.counters.losses], ["10100", 0, 0]);
          await worker.settle(SETTLE.succeed(job));
          break;
        }
        if (death === 1) await worker.record(job, rows({ succeeded: [0] }));
        // The last beginning counts.
        await worker.record(job, { type: "rowBegins", row: 1 }, { type: "rowBegins", row: 2 });
        if (how === "dies") await fixture.recoverAll(worker);
        else {
          await lose(fixture, worker);
          await resolve(fixture, worker, "died");
        }
      }
      assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 4, quarantined: 1 });
      const [block] = await on.batches.failures("b", 1, null, 10);
      assert.deepEqual([block!.whole, block!.rows.length], [null, 1]);
      const { line, input, as, error } = block!.rows[0]!;
      assert.deepEqual([line, input, as, error.name], [3, '{"n":3}', "quarantined", "WorkerDied"]);
      assert.deepEqual(await on.settle(), ["b"]);
    });

  onBatches("the row is convicted also by the death of an earlier worker that turns out later", async (on) => {
    const { fixture } = on;
    await fixture.declare(kind("mail", { limits: { errors: 1, timeouts: 1, crashes: 2 } }));
    await on.submit("b", [5]);
    const lost: TestWorker[] = [];
    for (let death = 1; ; death++) {
      assert.ok(death < 9, "a row was convicted");
      const worker = await fixture.worker(`w${death}`);
      const job = await worker.next();
      if (job.block !== undefined) {
        assert.deepEqual([job.block, job.counters.crashes, job.counters.losses], [{ marks: "00100" }, 0, 0]);
        break;
      }
      await worker.record(job, { type: "rowBegins", row: 2 });
      await lose(fixture, worker);
      // Of two losses the older one is judged, and the latest attempt is not the one that it was of.
      lost.push(worker);
      if (lost.length > 1) await resolve(fixture, lost.shift()!, "died");
    }
    assert.deepEqual(await on.sums("b"), { ...ZERO, quarantined: 1 });
  });

  onBatches("a row that has ended, or that an earlier attempt began, is not convicted", async (on) => {
    const { fixture } = on;
    await on.submit("b", [5]);
    const [first, second] = [await fixture.worker("first"), await fixture.worker("second")];
    const begunOf = async (worker: TestWorker) => {
      const condemned = await fixture.store.condemn(await fixture.recovery(worker));
      assert.ok(condemned !== null && condemned !== "locked");
      const { jobs } = await fixture.store.heldBy({ condemned, limit: 10 });
      return jobs.map(({ begun }) => begun);
    };
    const job = await first.next();
    await first.record(job, { type: "rowBegins", row: 2 }, rows({ succeeded: [2] }), { type: "rowBegins", row: 3 });
    assert.deepEqual(await begunOf(first), [{ row: 3, input: job.input }]);
    await fixture.recoverAll(first);
    const again = await second.next();
    assert.deepEqual(await begunOf(second), [undefined], "this attempt has begun none");
    await second.record(again, { type: "rowBegins", row: 3 }, rows({ succeeded: [3] }));
    assert.deepEqual(await begunOf(second), [undefined], "it has ended");
  });

  onBatches("a row's end and the user's writes are one transaction, fenced, and done once", async (on) => {
    const { fixture } = on;
    const user = fixture.user();
    if (!user) return;
    await on.submit("b", [5]);
    const worker = await fixture.worker("w");
    const { lease } = await worker.next();
    const { transactions } = fixture.store;
    const write = (row: number, then: () => unknown = () => row) =>
      transactions!.write(
        { lease, write: rows({ succeeded: [row], outputs: [output("f", row + 1)] }) },
        user.writing(`row ${row}`, then) as never,
      );
    const done = await write(1);
    assert.deepEqual([done.answer.is, done.value], ["applied", 1]);
    const thrown = new Error("not enough money");
    await assert.rejects(
      write(2, () => {
        throw thrown;
      }),
      thrown,
    );
    const repeated = await write(1);
    assert.deepEqual([repeated.answer.is, repeated.value], ["repeated", undefined]);
    assert.deepEqual(await user.written(fixture.store), ["row 1"]);
    assert.deepEqual(await fixture.states("b:1:0"), ["running"]);
    // The worker's own note of the same row comes at the same moment, and afterwards.
    const flush = { lease, write: rows({ succeeded: [0, 3], outputs: [output("f", 1, 4)] }) };
    await Promise.all([write(3), fixture.store.write([flush]), fixture.store.write([flush])]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 3 });
    assert.deepEqual((await user.written(fixture.store)).filter((text) => text === "row 1").length, 1);
    await fixture.recoverAll(worker);
    assert.equal((await write(4)).answer.is, "stale");
    assert.ok(!(await user.written(fixture.store)).includes("row 4"));
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 3 });
    const lines = (await texts(on, "f")).map(([line]) => line);
    assert.deepEqual(
      lines.toSorted((a, b) => a - b),
      [1, 2, 4],
    );
  });

  onBatches("a row's transaction that is interrupted before its end writes nothing", async (on) => {
    const { fixture } = on;
    const user = fixture.user();
    if (!user) return;
    await on.submit("b", [2]);
    const { lease } = await (await fixture.worker("w")).next();
    const control = new CommitControl(0);
    const reason = new Error("out of time");
    control.interrupt(reason);
    const write = { lease, write: rows({ succeeded: [0] }) };
    await assert.rejects(
      fixture.store.transactions!.write(write, user.writing("row", () => 0) as never, control),
      reason,
    );
    assert.deepEqual(await user.written(fixture.store), []);
    assert.deepEqual(await on.sums("b"), ZERO);
  });

  onBatches("the user's commit of a block ends all of its rows", async (on) => {
    const { fixture } = on;
    const user = fixture.user();
    if (!user) return;
    await on.submit("b", [5]);
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await worker.record(job, rows({ succeeded: [0] }));
    const settlement = withRows(SETTLE.succeed(job), { failed: [failedRow(1, 2)] });
    const body = user.writing("block", () => null);
    const { answer } = await fixture.store.transactions!.commit(settlement, body as never, () => null);
    assert.equal(answer.is, "applied");
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 4, failed: 1 });
  });

  onBatches(
    "outputs come in the order of blocks, in pages, and only of rows that ended by what brought them",
    async (on) => {
      const { batches } = on;
      await on.submit("b", [2, 2, 2]);
      const worker = await on.fixture.worker("w");
      const [one, two, three] = (await worker.claim(3)) as [ClaimedJob, ClaimedJob, ClaimedJob];
      await worker.settle(withRows(SETTLE.succeed(three), { succeeded: [0, 1], outputs: [output("f", 5, 6)] }));
      await worker.record(one, rows({ succeeded: [1], outputs: [output("f", 2), output("g", 2)] }));
      // Row 1 has ended before: what it brings again is dropped, what row 0 brings is kept.
      await worker.record(one, rows({ succeeded: [0, 1], outputs: [output("f", 1, 2), output("g", 2)] }));
      await worker.record(one, rows({ succeeded: [0, 1], outputs: [output("h", 1, 2)] }));
      await worker.settle(SETTLE.succeed(one));
      // A success ends the rows that are not named, too.
      await worker.record(two, rows({ succeeded: [0], outputs: [output("f", 3)] }));
      await worker.settle(withRows(SETTLE.succeed(two), { outputs: [output("f", 3, 4)] }));
      assert.deepEqual(await batches.outputFiles("b"), ["f", "g"]);
      const first = await batches.outputs("b", 1, "f", null, 2);
      assert.deepEqual(first.blocks, [
        [output("f", 2).texts, output("f", 1).texts],
        [output("f", 3).texts, output("f", 4).texts],
      ]);
      assert.equal(first.next, 1);
      const second = await batches.outputs("b", 1, "f", first.next, 2);
      assert.deepEqual(second, { blocks: [[output("f", 5, 6).texts]], next: null });
      assert.deepEqual(await batches.outputs("b", 1, "g", null, 1), { blocks: [[output("g", 2).texts]], next: null });
      assert.deepEqual(await batches.outputs("b", 1, "none", null, 1), { blocks: [], next: null });
      assert.deepEqual(
        [await batches.outputFiles("x"), await batches.outputs("x", 1, "f", null, 1)],
        [[], { blocks: [], next: null }],
      );
      await batches.setOutputs("b", 1, '{"f":1}');
      assert.equal((await on.get("b")).outputs, '{"f":1}');
      assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 6 });
    },
  );

  onBatches("outputs are those of one round", async (on) => {
    const { batches } = on;
    const worker = await on.fixture.worker("w");
    const run = async (round: number): Promise<void> => {
      for (const number of [0, 1]) {
        const job = await worker.next(roomFor(1, ["mail"]));
        const part = output("f", round * 10 + number);
        await worker.settle(withRows(SETTLE.succeed(job), { succeeded: [0], outputs: [part] }));
      }
      await on.settle();
    };
    await on.submit("b", [1, 1]);
    await run(1);
    await batches.reopen("b", 1, { ...blocksOf("x", [1])[0]!.job!, id: "round", kind: "sms" });
    await batches.append("b", 2, blocksOf("b", [1, 1], { round: 2 }));
    await batches.seal("b", 2);
    await run(2);
    const lines = async (round: number) => (await texts(on, "f", round)).map(([line]) => line);
    assert.deepEqual([await lines(1), await lines(2), await lines(3)], [[10, 11], [20, 21], []]);
    assert.deepEqual(await batches.outputFiles("b"), ["f"]);
  });

  onBatches("failures come in the order of blocks, in pages, and only blocks that have any", async (on) => {
    const { batches } = on;
    await on.submit("b", [2, 2, 2, 2, 2]);
    const worker = await on.fixture.worker("w");
    const jobs = await worker.claim(5);
    await worker.settle(
      withRows(SETTLE.succeed(jobs[4]!), { failed: [failedRow(1, 10)] }),
      SETTLE.succeed(jobs[3]!),
      SETTLE.failForGood(jobs[2]!),
      withRows(SETTLE.succeed(jobs[1]!), { succeeded: [0] }),
      withRows(SETTLE.succeed(jobs[0]!), { failed: [failedRow(1, 2), failedRow(0, 1)] }),
    );
    const first = await batches.failures("b", 1, null, 2);
    assert.deepEqual(
      first.map(({ number, rows: failed, whole }) => [number, failed.map(({ line }) => line), whole?.marks]),
      [
        [0, [1, 2], undefined],
        [2, [], "00"],
      ],
    );
    const rest = await batches.failures("b", 1, 2, 2);
    assert.deepEqual(
      rest.map(({ number }) => number),
      [4],
    );
    assert.deepEqual(await batches.failures("b", 1, 4, 2), []);
    assert.deepEqual(await batches.failures("x", 1, null, 2), []);
    const { row: _, ...kept } = failedRow(1, 10);
    assert.deepEqual(rest[0]!.rows, [kept]);
  });

  onBatches("all blocks come in their order, in pages, with marks, states and what failed of them", async (on) => {
    const { batches } = on;
    await batches.open(batchDraft("b"));
    const rejected = { number: 5, job: null, rows: 0, rejected: [failedRow(0, 11)] };
    await batches.append("b", 1, [...blocksOf("b", [2, 2, 2, 2, 2]), rejected]);
    const worker = await on.fixture.worker("w");
    const jobs = await worker.claim(4);
    await worker.settle(
      withRows(SETTLE.succeed(jobs[0]!), { failed: [failedRow(1, 2)] }),
      SETTLE.failForGood(jobs[1]!),
      SETTLE.succeed(jobs[2]!),
    );
    await worker.record(jobs[3]!, { type: "rows", ends: { succeeded: [1], failed: [], outputs: [] } });
    const first = await batches.blocks("b", 1, null, 4);
    const rest = await batches.blocks("b", 1, 3, 4);
    assert.deepEqual(
      [...first, ...rest].map(({ number, rows, job }) => [
        number,
        rows.map(({ line }) => line),
        job?.state,
        job?.marks,
      ]),
      [
        [0, [2], "succeeded", "01"],
        [1, [], "dead", "00"],
        [2, [], "succeeded", "00"],
        [3, [], "running", "01"],
        [4, [], "queued", "00"],
        [5, [11], undefined, undefined],
      ],
    );
    assert.equal(first[1]!.job!.error?.message !== undefined, true);
    assert.equal(first[2]!.job!.input, blocksOf("b", [2, 2, 2])[2]!.job!.input, "that of a block that has succeeded");
    assert.deepEqual(
      decodeBlock(rest[0]!.job!.input).rows.map(({ line }) => line),
      [9, 10],
    );
    assert.deepEqual([await batches.blocks("b", 1, 5, 4), await batches.blocks("x", 1, null, 4)], [[], []]);
  });

  onBatches("texts of any alphabet, and errors with all of their parts, are kept as they are", async (on) => {
    await on.submit("b", [1]);
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    const input = JSON.stringify({ text: 'Grüße, 世界 \u0000 "quoted" \\ \n 😀'.repeat(500) });
    const error = { name: "TypeError", message: "schön\n😀", code: "NOT_JSON", stack: "at a\nat b" } as const;
    const part = { file: "Überweisungen 世界.csv", texts: JSON.stringify([[1, 'a\t"😀"\n']]) };
    const failed = [failedRow(0, 4_000_000_000, { input, error })];
    await worker.settle(withRows(SETTLE.succeed(job), { failed, outputs: [part] }));
    const [block] = await on.batches.failures("b", 1, null, 1);
    assert.deepEqual(block!.rows, [{ line: 4_000_000_000, input, error, as: "failed" }]);
    assert.deepEqual(await on.batches.outputFiles("b"), [part.file]);
    assert.deepEqual(await on.batches.outputs("b", 1, part.file, null, 1), { blocks: [[part.texts]], next: null });
  });

  onBatches("a batch is read while a transaction is open that ends rows of it, and sees none of them", async (on) => {
    const { fixture } = on;
    const user = fixture.user();
    if (!user?.waiting) return fixture.t.skip("a transaction of this store can't be left open");
    await on.submit("b", [3]);
    const worker = await fixture.worker("w");
    const { lease } = await worker.next();
    const gate = Promise.withResolvers<void>();
    const write = { lease, write: rows({ succeeded: [0] }) };
    const committed = fixture.store.transactions!.write(write, user.waiting("row", gate.promise) as never);
    const other = (await fixture.connect()).batches!;
    try {
      const [batch] = await other.get(["b"]);
      assert.deepEqual(batch!.sums, ZERO);
    } finally {
      gate.resolve();
    }
    await committed;
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 1 });
  });
}

/** All that was written to a file in one round, read in pages of one block. */
async function texts({ batches }: BatchFixture, file: string, round = 1): Promise<[line: number, text: string][]> {
  const all: [number, string][] = [];
  for (let after: number | null = null; ;) {
    const { blocks, next } = await batches.outputs("b", round, file, after, 1);
    for (const part of blocks.flat()) all.push(...(JSON.parse(part) as [number, string][]));
    if (next === null) return all;
    after = next;
  }
}

interface Way {
  readonly as: keyof RowSums;
  readonly kind?: KindSettings;
  /** Ends the block of which the worker runs this attempt. False: it can't be done on this store, and the test is skipped. */
  end(on: BatchFixture, worker: TestWorker, job: ClaimedJob): Promise<boolean>;
}

/** Every way in which a block can end. */
const WAYS: Readonly<Record<string, Way>> = {
  "it succeeds": {
    as: "succeeded",
    end: async (_, worker, job) => settled(await worker.settle(SETTLE.succeed(job))),
  },
  "it fails for good": {
    as: "failed",
    end: async (_, worker, job) => settled(await worker.settle(SETTLE.failForGood(job))),
  },
  "its errors are used up": {
    as: "failed",
    end: async (_, worker, job) => settled(await worker.settle(SETTLE.fail(job, 0, ONCE))),
  },
  "its input is refused": {
    as: "failed",
    end: async (_, worker, job) => settled(await worker.settle(SETTLE.refuse(job))),
  },
  "it is overdue": {
    as: "failed",
    async end({ fixture }) {
      await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
      return (await expireOnce(fixture.store, 0, 10)).length === 1;
    },
  },
  "its workers die": {
    as: "quarantined",
    async end({ fixture }, worker) {
      await fixture.recoverAll(worker);
      for (let death = 1; (await fixture.job("b:1:0")).state === "queued"; death++) {
        const next = await fixture.worker(`next-${death}`);
        await next.next();
        await fixture.recoverAll(next);
      }
      return true;
    },
  },
  "its worker dies, and its kind ends with that": {
    as: "failed",
    kind: kind("mail", { onCrash: "fail" }),
    end: async ({ fixture }, worker) => (await fixture.recoverAll(worker)).jobs.length === 1,
  },
  "contact with its worker is lost, and its kind ends with that": {
    as: "failed",
    kind: kind("mail", { onCrash: "fail" }),
    end: async ({ fixture }, worker) => (await lose(fixture, worker)).jobs.length === 1,
  },
  "its workers are lost, and turn out to have died": {
    as: "quarantined",
    async end({ fixture }, worker) {
      await lose(fixture, worker);
      await resolve(fixture, worker, "died");
      for (let death = 1; (await fixture.job("b:1:0")).state === "queued"; death++) {
        const next = await fixture.worker(`next-${death}`);
        await next.next();
        await lose(fixture, next);
        await resolve(fixture, next, "died");
      }
      return true;
    },
  },
  "it is cancelled while it is queued": {
    as: "aborted",
    async end({ fixture }, worker, job) {
      await worker.settle(SETTLE.release(job));
      return (await fixture.store.operate.cancel("b:1:0", "ann")).is === "applied";
    },
  },
  "it is cancelled while it runs": {
    as: "aborted",
    async end({ fixture }, worker, job) {
      await fixture.store.operate.cancel("b:1:0", "ann");
      return settled(await worker.settle(SETTLE.endCancelled(job)));
    },
  },
  "it is cancelled while it runs, and fails": {
    as: "aborted",
    async end({ fixture }, worker, job) {
      await fixture.store.operate.cancel("b:1:0", "ann");
      return settled(await worker.settle(SETTLE.fail(job)));
    },
  },
  "it is cancelled while it runs, and its worker dies": {
    as: "aborted",
    async end({ fixture }, worker) {
      await fixture.store.operate.cancel("b:1:0", "ann");
      return (await fixture.recoverAll(worker)).jobs.length === 1;
    },
  },
  "it is cancelled while it runs, and succeeds all the same": {
    as: "succeeded",
    async end({ fixture }, worker, job) {
      await fixture.store.operate.cancel("b:1:0", "ann");
      return settled(await worker.settle(SETTLE.succeed(job)));
    },
  },
  "its input is damaged": {
    as: "quarantined",
    async end({ fixture }, worker, job) {
      const damage = fixture.damage();
      if (!damage) return false;
      await worker.settle(SETTLE.release(job));
      await damage("b:1:0", "input");
      const { claimed, corrupt } = await worker.turn([], roomFor(1));
      assert.deepEqual([claimed.length, corrupt?.length], [0, 1]);
      return true;
    },
  },
};

function settled(written: Parameters<typeof answers>[0]): boolean {
  assert.deepEqual(answers(written), ["applied"]);
  return true;
}
