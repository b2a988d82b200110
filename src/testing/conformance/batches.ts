// What the port promises about batches: blocks come in once, a batch that is sealed ends once, and whatever was asked for is done in pieces that a
// kill may come between. What rows come to is in batch-rows.ts.
import assert from "node:assert/strict";
import { type BatchRow, type BlockDraft, doneDraft, doneKind, endedRows, NO_ENDS } from "../../job/batches.ts";
import type { ClaimedJob } from "../../job/job.ts";
import { batchDraft, batchSpecifier, blocksOf, failedRow, ZERO } from "./batch-fixture.ts";
import { draft, idsOf, kind, roomFor, SETTLE, type Specify } from "./fixture.ts";

export function specifyBatches(specify: Specify): void {
  const onBatches = batchSpecifier(specify);

  onBatches("an opened batch is what its draft says, empty, and open", async ({ fixture, batches }) => {
    const asked = batchDraft("b", { key: "k", priority: 3, tolerance: { share: 0.05 }, held: true });
    const { created, batch } = await batches.open(asked);
    assert.deepEqual(
      [created, batch],
      [
        true,
        {
          ...asked,
          state: "open",
          round: 1,
          rows: 0,
          blocks: 0,
          sums: ZERO,
          earlier: ZERO,
          createdAt: fixture.clock.now(),
          sealedAt: null,
          endedAt: null,
          pace: null,
          outputs: null,
        },
      ],
    );
    assert.deepEqual(await batches.get(["x", "b", "y"]), [batch]);
  });

  onBatches("a key is taken once per kind, and an id once; the one that is there is returned", async (on) => {
    const { fixture, batches } = on;
    await fixture.declare(kind("sms"));
    await on.submit("b", [2], { key: "k" });
    const again = await batches.open(batchDraft("c", { key: "k" }));
    assert.deepEqual([again.created, again.batch.id, again.batch.state, again.batch.rows], [false, "b", "sealed", 2]);
    assert.equal((await batches.open(batchDraft("c", { key: "k", kind: "sms" }))).created, true);
    assert.equal((await batches.open(batchDraft("d", { key: "other" }))).created, true);
    const repeated = await batches.open(batchDraft("d", { key: "other" }));
    assert.deepEqual([repeated.created, repeated.batch.id], [false, "d"]);
    assert.equal((await batches.open(batchDraft("e"))).created, true);
    assert.deepEqual([(await batches.open(batchDraft("e"))).created, (await on.get("e")).key], [false, null]);
  });

  onBatches("a kind that was not declared is refused, and nothing is written", async ({ batches }) => {
    await assert.rejects(batches.open(batchDraft("b", { kind: "unheard" })), { code: "KIND_UNKNOWN" });
    assert.deepEqual(await batches.get(["b"]), []);
  });

  onBatches("blocks are jobs; a number that is there adds nothing, in the same call and in a later one", async (on) => {
    const { fixture, batches } = on;
    await on.open("b");
    const [first, second, third] = blocksOf("b", [5, 5, 2]) as [BlockDraft, BlockDraft, BlockDraft];
    assert.deepEqual(await batches.append("b", 1, [first, second, first]), { is: "appended", blocks: 2, rows: 10 });
    assert.deepEqual(await batches.append("b", 1, [second, third]), { is: "appended", blocks: 1, rows: 2 });
    assert.deepEqual(await batches.append("b", 1, [third]), { is: "appended", blocks: 0, rows: 0 });
    const { rows, blocks } = await on.get("b");
    assert.deepEqual([rows, blocks], [12, 3]);
    const worker = await fixture.worker("w");
    const claimed = await worker.claim(10);
    assert.deepEqual(idsOf(claimed), ["b:1:0", "b:1:1", "b:1:2"]);
    assert.deepEqual(
      claimed.map(({ input, block }) => [input, block]),
      [first, second, third].map(({ job }) => [job!.input, undefined]),
    );
  });

  onBatches(
    "new blocks of two submitters follow each other: who comes second adds nothing and learns where the next begins",
    async (on) => {
      const other = (await on.fixture.connect()).batches!;
      await on.open("b");
      const [first, second] = blocksOf("b", [5, 3]) as [BlockDraft, BlockDraft];
      const answers = await Promise.all([on.batches, other].map((by) => by.append("b", 1, [first], true)));
      assert.deepEqual(answers.map(({ is }) => is).toSorted(), ["appended", "moved"]);
      assert.deepEqual(
        answers.find(({ is }) => is === "moved"),
        { is: "moved", blocks: 1, rows: 5, added: 0 },
      );
      assert.deepEqual(await other.append("b", 1, [second], true), { is: "appended", blocks: 1, rows: 3 });
      const { rows, blocks } = await on.get("b");
      assert.deepEqual([rows, blocks], [8, 2]);
    },
  );

  onBatches("two submitters that append the same blocks at once add each of them once", async (on) => {
    const other = (await on.fixture.connect()).batches!;
    await on.open("b");
    const blocks = blocksOf("b", [5, 5, 5, 5, 5, 5, 5, 5]);
    const added = await Promise.all(
      [on.batches, other].flatMap((by) => blocks.map((block) => by.append("b", 1, [block]))),
    );
    const rows = added.map((one) => (one.is === "appended" ? one.rows : assert.fail(one.is)));
    assert.equal(
      rows.reduce((sum, n) => sum + n),
      40,
    );
    const { rows: kept, blocks: count } = await on.get("b");
    assert.deepEqual([kept, count], [40, 8]);
    await on.assertConsistent();
  });

  onBatches("rejected rows have failed at once, with their line; a block of only those has no job", async (on) => {
    const { batches } = on;
    await on.open("b");
    const [mixed] = blocksOf("b", [3]) as [BlockDraft];
    const rejected = [failedRow(0, 7), failedRow(0, 5)];
    const appended = await batches.append("b", 1, [
      { ...mixed, rejected },
      { number: 1, job: null, rows: 0, rejected: [failedRow(0, 9)] },
      { number: 2, job: null, rows: 0, rejected: [failedRow(0, 11)] },
    ]);
    assert.deepEqual(appended, { is: "appended", blocks: 3, rows: 7 });
    assert.deepEqual(await on.sums("b"), { ...ZERO, failed: 4 });
    const failed = await batches.failures("b", 1, null, 10);
    assert.deepEqual(
      failed.map(({ number, rows, whole }) => [number, rows.map(({ line }) => line), whole]),
      [
        [0, [5, 7], null],
        [1, [9], null],
        [2, [11], null],
      ],
    );
    const { row: _, ...kept } = failedRow(0, 5);
    assert.deepEqual(failed[0]!.rows[0], kept);
    assert.equal(await batches.seal("b", 1), "sealed");
    await on.runAll(await on.fixture.worker("w"));
    assert.deepEqual(await on.settle(), ["b"]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 3, failed: 4 });
  });

  onBatches(
    "a batch that is not open, or not in that round, takes no blocks; there is none without a batch",
    async (on) => {
      const { batches } = on;
      const blocks = blocksOf("b", [1]);
      assert.deepEqual(await batches.append("b", 1, blocks), { is: "missing" });
      assert.equal(await batches.seal("b", 1), "missing");
      assert.equal(await batches.abort("b"), "missing");
      await on.open("b");
      assert.deepEqual(await batches.append("b", 2, blocks), { is: "closed", state: "open" });
      assert.equal(await batches.seal("b", 2), "open");
      assert.equal(await batches.seal("b", 1), "sealed");
      assert.equal(await batches.seal("b", 1), "sealed");
      assert.deepEqual(await batches.append("b", 1, blocks), { is: "closed", state: "sealed" });
      assert.deepEqual([(await on.get("b")).rows, await on.fixture.states("b:1:0")], [0, ["missing"]]);
    },
  );

  onBatches("an empty batch ends when it is sealed", async (on) => {
    await on.open("b");
    assert.deepEqual(await on.settle(), []);
    await on.batches.seal("b", 1);
    assert.deepEqual(await on.settle(), ["b"]);
    const { state, endedAt } = await on.get("b");
    assert.deepEqual([state, endedAt], ["completed", on.fixture.clock.now()]);
    assert.deepEqual(await on.fixture.states("b:done:1"), ["queued"]);
  });

  onBatches("a batch ends once, whatever number of processes try, and what follows is enqueued once", async (on) => {
    const others = await Promise.all([on.fixture.connect(), on.fixture.connect()]);
    await on.submit("b", [5, 5]);
    await on.runAll(await on.fixture.worker("w"));
    assert.ok((await on.foldAll()).has("b"));
    const batch = await on.get("b");
    const end = { batch: "b", round: 1, from: "sealed", to: "completed", follow: [doneDraft(batch)] } as const;
    const ended = await Promise.all([on.batches, ...others.map((store) => store.batches!)].map((by) => by.finish(end)));
    assert.deepEqual(ended.filter(Boolean).length, 1);
    assert.equal(await on.batches.finish(end), false);
    assert.deepEqual(await on.settle(), []);
    const done = await on.fixture.countsOf(doneKind("mail"));
    assert.deepEqual([done.ready, (await on.get("b")).state], [1, "completed"]);
  });

  onBatches("a batch that is complete and not ended comes up at every look, until it is", async (on) => {
    await on.submit("b", [2]);
    await on.runAll(await on.fixture.worker("w"));
    for (const _ of [1, 2, 3]) assert.ok((await on.foldAll()).has("b"));
    const later = (await on.fixture.connect()).batches!;
    assert.ok((await later.fold(100)).includes("b"), "who looked first may have died");
    assert.deepEqual(await on.settle(later), ["b"]);
    assert.ok(!(await on.foldAll()).has("b"));
  });

  onBatches("more batches than the limit that can't end hide none of the others", async (on) => {
    const ids = ["b1", "b2", "b3", "b4", "b5"];
    for (const id of ids) await on.submit(id, []);
    const seen = new Set<string>();
    for (let look = 0; look < 6; look++) for (const id of await on.batches.fold(2)) seen.add(id);
    assert.deepEqual([...seen].sort(), ids);
  });

  onBatches("nothing ends that is not sealed, not complete, in another state or in another round", async (on) => {
    const { batches } = on;
    await on.open("b");
    await batches.append("b", 1, blocksOf("b", [2]));
    const end = { batch: "b", round: 1, from: "open", to: "completed", follow: [draft("follows")] } as const;
    const worker = await on.fixture.worker("w");
    const job = await worker.next();
    await batches.seal("b", 1);
    assert.equal(await batches.finish({ ...end, from: "sealed" }), false, "a row is left");
    await worker.settle(SETTLE.succeed(job));
    for (const wrong of [
      { ...end, from: "open" },
      { ...end, from: "aborting" },
      { ...end, from: "sealed", round: 2 },
      { ...end, from: "sealed", batch: "x" },
    ] as const)
      assert.equal(await batches.finish(wrong), false, JSON.stringify(wrong));
    await on.open("c");
    assert.equal(await batches.finish({ ...end, batch: "c" }), false, "it is open, although nothing is left of it");
    assert.deepEqual(await on.fixture.states("follows"), ["missing"]);
    assert.equal(await batches.finish({ ...end, from: "sealed" }), true);
    assert.deepEqual(await on.fixture.states("follows"), ["queued"]);
  });

  onBatches("a batch whose rows end while it is open ends with its seal", async (on) => {
    await on.open("b");
    await on.batches.append("b", 1, blocksOf("b", [2]));
    await on.runAll(await on.fixture.worker("w"));
    assert.deepEqual(await on.settle(), []);
    await on.batches.seal("b", 1);
    assert.deepEqual(await on.settle(), ["b"]);
  });

  onBatches(
    "BR-024 blocks of a held batch are not claimed before its seal, and then in pieces that may be cut",
    async (on) => {
      const { fixture, batches } = on;
      await on.open("b", { held: true });
      await batches.append("b", 1, blocksOf("b", [1, 1, 1, 1, 1]));
      const worker = await fixture.worker("w");
      await on.tendAll();
      await fixture.clock.advance(10_000_000);
      assert.deepEqual(await worker.claim(10), []);
      const { runAt, waitsForResolution } = await fixture.job("b:1:0");
      assert.deepEqual([runAt, waitsForResolution], [null, false]);
      assert.equal(await batches.seal("b", 1), "sealed");
      assert.equal((await on.get("b")).held, false);
      assert.equal(await batches.tend(2), true, "more is left");
      // Killed here: another process goes on.
      const other = (await fixture.connect()).batches!;
      while (await other.tend(2));
      assert.deepEqual(await on.runAll(worker), ["b:1:0", "b:1:1", "b:1:2", "b:1:3", "b:1:4"]);
      assert.deepEqual(await on.settle(), ["b"]);
    },
  );

  onBatches(
    "BR-022 BR-023 BR-024 recovery takes what still runs, and leaves the state of each batch alone",
    async (on) => {
      const { fixture, batches } = on;
      await on.submit("sealed", [1, 1]);
      await on.open("open");
      await batches.append("open", 1, blocksOf("open", [1]));
      await on.open("held", { held: true });
      await batches.append("held", 1, blocksOf("held", [1]));
      const [dead, heir] = [await fixture.worker("dead"), await fixture.worker("heir")];
      const held = await dead.claim(10);
      assert.deepEqual(idsOf(held).toSorted(), ["open:1:0", "sealed:1:0", "sealed:1:1"]);
      // It ends between the death and the recovery, by a settlement that was on its way.
      await dead.settle(SETTLE.succeed(held.find(({ lease }) => lease.jobId === "sealed:1:0")!));
      const before = await batches.get(["sealed", "open", "held"]);
      await fixture.recoverAll(dead);
      assert.deepEqual(await batches.get(["sealed", "open", "held"]), before);
      assert.deepEqual(await fixture.states("sealed:1:0", "sealed:1:1", "open:1:0"), ["succeeded", "queued", "queued"]);
      assert.deepEqual(
        idsOf(await heir.claim(10)).toSorted(),
        ["open:1:0", "sealed:1:1"],
        "and none of the held batch",
      );
    },
  );

  onBatches("an abort cancels what is queued, asks what runs to end, and ends when that has", async (on) => {
    const { fixture, batches } = on;
    await on.submit("b", [1, 2, 3, 4, 5]);
    const worker = await fixture.worker("w");
    const [succeeds, ends] = await worker.claim(2);
    assert.equal(await batches.abort("b"), "aborting");
    assert.equal(await batches.abort("b"), "aborting");
    assert.equal(await batches.seal("b", 1), "aborting");
    assert.equal((await batches.append("b", 1, blocksOf("b", [1], { from: 9 }))).is, "closed");
    assert.equal(await batches.tend(2), true, "more is left");
    await on.tendAll(2);
    assert.deepEqual(await fixture.states("b:1:2", "b:1:3", "b:1:4"), ["cancelled", "cancelled", "cancelled"]);
    assert.deepEqual(await worker.claim(10), []);
    assert.deepEqual(await on.settle(), [], "two blocks run");
    const { cancels } = await worker.turn([SETTLE.succeed(succeeds!)], roomFor(0));
    assert.ok(cancels.includes("b:1:1"));
    assert.deepEqual(await on.settle(), []);
    await worker.settle(SETTLE.endCancelled(ends!));
    assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 1, aborted: 14 });
    assert.deepEqual(await on.settle(), ["b"]);
    assert.equal((await on.get("b")).state, "aborted");
    assert.equal(await batches.abort("b"), "aborted", "it has ended");
  });

  onBatches("a block that fails while its batch is aborted is not queued again", async (on) => {
    await on.submit("b", [3, 1]);
    const [worker, other] = [await on.fixture.worker("w"), await on.fixture.worker("other")];
    const job = await worker.next();
    await other.next();
    await on.batches.abort("b");
    await on.tendAll();
    await worker.settle(SETTLE.fail(job));
    await on.fixture.recoverAll(other);
    assert.deepEqual(await on.fixture.states("b:1:0", "b:1:1"), ["cancelled", "cancelled"]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, aborted: 4 });
    assert.deepEqual(await on.settle(), ["b"]);
  });

  onBatches("a batch that is open, held, or empty can be aborted", async (on) => {
    await on.open("open");
    await on.batches.append("open", 1, blocksOf("open", [2]));
    await on.open("held", { held: true });
    await on.batches.append("held", 1, blocksOf("held", [3]));
    await on.open("empty");
    for (const id of ["open", "held", "empty"]) assert.equal(await on.batches.abort(id), "aborting");
    await on.tendAll(1);
    assert.deepEqual([...(await on.settle())].sort(), ["empty", "held", "open"]);
    assert.deepEqual(await on.sums("open"), { ...ZERO, aborted: 2 });
    assert.deepEqual(await on.sums("held"), { ...ZERO, aborted: 3 });
    assert.deepEqual(await on.fixture.states("open:done:1"), ["queued"]);
  });

  onBatches("a batch with more failures than it tolerates is aborted, and has failed", async (on) => {
    await on.submit("b", [2, 2, 2], { tolerance: { rows: 1 } });
    const worker = await on.fixture.worker("w");
    await worker.settle(SETTLE.failForGood(await worker.next()));
    assert.deepEqual(await on.settle(), []);
    assert.equal((await on.get("b")).state, "aborting");
    await on.tendAll();
    assert.deepEqual(await on.settle(), ["b"]);
    const { state, sums } = await on.get("b");
    assert.deepEqual([state, sums], ["failed", { ...ZERO, failed: 2, aborted: 4 }]);
  });

  onBatches(
    "a round is opened again once, with nothing in it, and keeps what the rounds before came to",
    async (on) => {
      const { fixture, batches } = on;
      await on.submit("b", [2, 3]);
      const round = draft({ id: "b:round:2", kind: "sms" });
      assert.equal(await batches.reopen("b", 1, round), false, "it has not ended");
      const worker = await fixture.worker("w");
      const [dead, fine] = await worker.claim(2);
      await worker.settle(SETTLE.failForGood(dead!), SETTLE.succeed(fine!));
      await on.settle();
      await batches.setOutputs("b", 1, '{"a.csv":{}}');
      assert.equal(await batches.reopen("b", 2, round), false, "that round is not there");
      assert.deepEqual((await Promise.all([batches.reopen("b", 1, round), batches.reopen("b", 1, round)])).sort(), [
        false,
        true,
      ]);
      assert.deepEqual(await fixture.states("b:round:2"), ["queued"]);
      const earlier = { ...ZERO, succeeded: 3, failed: 2 };
      const opened = await on.get("b");
      assert.deepEqual(
        [opened.state, opened.round, opened.rows, opened.blocks, opened.sums, opened.earlier, opened.pace],
        ["open", 2, 0, 0, ZERO, earlier, null],
      );
      assert.deepEqual([opened.sealedAt, opened.endedAt, opened.outputs], [null, null, '{"a.csv":{}}']);
      await batches.setOutputs("b", 1, '{"late.csv":{}}');
      assert.equal((await on.get("b")).outputs, '{"a.csv":{}}', "those of an earlier round replace nothing");
      assert.deepEqual(await batches.append("b", 1, blocksOf("b", [1], { from: 7 })), { is: "closed", state: "open" });
      const again = blocksOf("b", [2], { round: 2 });
      assert.deepEqual(await batches.append("b", 2, again), { is: "appended", blocks: 1, rows: 2 });
      assert.equal(await batches.seal("b", 2), "sealed");
      assert.deepEqual(await on.runAll(worker), ["b:2:0"]);
      assert.deepEqual(await on.sums("b"), { ...ZERO, succeeded: 2 });
      assert.deepEqual(await on.settle(), ["b"]);
      assert.deepEqual(await fixture.states("b:done:1", "b:done:2"), ["queued", "queued"]);
      assert.deepEqual((await on.get("b")).earlier, earlier);
      assert.equal(
        (await batches.failures("b", 1, null, 10)).length,
        1,
        "what failed in the first round is still there",
      );
      assert.deepEqual(await batches.failures("b", 2, null, 10), []);
    },
  );

  onBatches(
    "a later round that is aborted before it has all of its rows takes those that failed, and ends when it is sealed",
    async (on) => {
      const { fixture, batches } = on;
      await on.submit("b", [2, 2]);
      const worker = await fixture.worker("w");
      await worker.settle(...(await worker.claim(2)).map((job) => SETTLE.failForGood(job)));
      await on.settle();
      await batches.reopen("b", 1, draft({ id: "b:round:2", kind: "sms" }));
      await batches.append("b", 2, blocksOf("b", [2], { round: 2 }));
      assert.equal(await batches.abort("b"), "aborting");
      await on.tendAll();
      assert.deepEqual(await on.sums("b"), { ...ZERO, aborted: 2 });
      assert.deepEqual(await on.settle(), [], "two rows are missing");
      const end = { batch: "b", round: 2, from: "aborting", to: "aborted", follow: [] } as const;
      assert.equal(await batches.finish(end), false, "two rows are missing");
      const closed = { is: "closed", state: "aborting" };
      const rest = { number: 1, job: null, rows: 0, rejected: [failedRow(0, 3), failedRow(0, 4)] };
      assert.deepEqual(await batches.append("b", 2, blocksOf("b", [1], { round: 2, from: 1 }), true), closed);
      assert.deepEqual(
        await batches.append("b", 2, [rest]),
        closed,
        "a process that fills the round cuts other blocks",
      );
      assert.deepEqual(await batches.append("b", 1, [rest], true), closed);
      const moved = { is: "moved", blocks: 1, rows: 2, added: 0 };
      assert.deepEqual(await batches.append("b", 2, [{ ...rest, number: 2 }], true), moved);
      assert.deepEqual(await batches.append("b", 2, [rest], true), { is: "appended", blocks: 1, rows: 2 });
      assert.equal(await batches.seal("b", 1), "aborting");
      assert.deepEqual([...(await on.settle()), (await on.get("b")).sealedAt], [null]);
      assert.equal(await batches.seal("b", 2), "aborting");
      assert.equal((await on.get("b")).sealedAt, fixture.clock.now());
      assert.deepEqual(await batches.append("b", 2, [{ ...rest, number: 2 }], true), closed);
      assert.deepEqual(await on.sums("b"), { ...ZERO, failed: 2, aborted: 2 });
      assert.deepEqual(await on.settle(), ["b"]);
      assert.equal((await on.get("b")).state, "aborted");
      assert.deepEqual(await fixture.states("b:done:2"), ["queued"]);
      const [failed] = await batches.failures("b", 2, null, 10);
      assert.deepEqual(
        failed!.rows.map(({ line, error }) => [line, error.message]),
        [
          [3, "line 3 is wrong"],
          [4, "line 4 is wrong"],
        ],
      );
      await on.assertConsistent();
    },
  );

  onBatches("a block's job is retried by its batch only, and says which", async (on) => {
    await on.submit("b", [2]);
    const worker = await on.fixture.worker("w");
    await worker.settle(SETTLE.failForGood(await worker.next()));
    assert.deepEqual(await on.fixture.store.operate.retry("b:1:0", "ann"), { is: "of-batch", batch: "b" });
    assert.deepEqual(await on.fixture.states("b:1:0"), ["dead"]);
    assert.deepEqual(await on.sums("b"), { ...ZERO, failed: 2 });
  });

  onBatches("a list shows the newest first, in pages, filtered", async (on) => {
    const { fixture, batches } = on;
    await fixture.declare(kind("sms"));
    await on.open("b1");
    await fixture.clock.advance(1_000);
    const since = fixture.clock.now();
    await fixture.clock.advance(1_000);
    await on.open("b2", { kind: "sms" });
    await on.submit("b3", []);
    await on.open("b4");
    const ids = (rows: readonly BatchRow[]): readonly string[] => rows.map(({ id }) => id);
    assert.deepEqual(ids(await batches.list({}, 10, null)), ["b4", "b3", "b2", "b1"]);
    assert.deepEqual(ids(await batches.list({}, 2, null)), ["b4", "b3"]);
    assert.deepEqual(ids(await batches.list({}, 2, "b3")), ["b2", "b1"]);
    assert.deepEqual(ids(await batches.list({ kind: "sms" }, 10, null)), ["b2"]);
    assert.deepEqual(ids(await batches.list({ state: "sealed" }, 10, null)), ["b3"]);
    assert.deepEqual(ids(await batches.list({ createdAfter: since }, 10, null)), ["b4", "b3", "b2"]);
    assert.deepEqual(ids(await batches.list({ kind: "mail", state: "open" }, 1, "b4")), ["b1"]);
    assert.deepEqual(await batches.list({ kind: "fax" }, 10, null), []);
    assert.deepEqual(await batches.list({ state: "sealed" }, 10, null), [await on.get("b3")]);
  });

  onBatches("the pace is of two moments, the later one the latest at which sums were added up", async (on) => {
    const { fixture } = on;
    await on.submit("b", [5, 5, 5]);
    const worker = await fixture.worker("w");
    let rows = 0;
    for (let block = 0; block < 3; block++) {
      await fixture.clock.advance(1_000);
      await worker.settle(SETTLE.succeed(await worker.next()));
      rows += 5;
      assert.ok((await on.foldAll()).has("b"));
      const { pace, sums } = await on.get("b");
      assert.ok(pace);
      assert.deepEqual([pace.toAt, pace.toRows, endedRows(sums)], [fixture.clock.now(), rows, rows]);
      assert.ok(pace.fromAt <= pace.toAt && pace.fromRows <= pace.toRows);
    }
  });

  onBatches(
    "old batches go with their blocks, and only when the job that followed has ended as long ago",
    async (on) => {
      const { fixture, batches } = on;
      const all = { finishedOlderThanMs: 1_000, incidentsOlderThanMs: 1_000, limit: 1_000 };
      for (const id of ["young", "unfinished", "old"]) await on.submit(id, [1, 1, 1]);
      await on.open("open");
      await batches.append("open", 1, blocksOf("open", [1]));
      await batches.append("open", 1, [{ number: 1, job: null, rows: 0, rejected: [failedRow(0, 2)] }]);
      const worker = await fixture.worker("w");
      await on.runAll(worker);
      await on.settle();
      const [done] = await worker.claim(roomFor(1, [doneKind("mail")]));
      assert.equal(done!.lease.jobId, "young:done:1");
      await fixture.clock.advance(2_000);
      assert.deepEqual(await batches.purge(1_000, 10), { batches: 0, more: false }, "what follows has not ended");
      await on.runAll(worker, [doneKind("mail")]);
      await worker.settle(SETTLE.succeed(done!));
      assert.deepEqual(await batches.purge(1_000, 10), { batches: 0, more: false }, "it has just ended");
      await fixture.clock.advance(2_000);
      await on.submit("new", [1]);
      await on.runAll(worker);
      await on.settle();
      await fixture.store.purge(all);
      assert.deepEqual(
        await fixture.states("old:1:0", "open:1:0"),
        ["succeeded", "succeeded"],
        "blocks stay with batches",
      );
      let gone = 0;
      for (let more = true; more;) {
        const purged = await batches.purge(1_000, 2);
        gone += purged.batches;
        more = purged.more;
      }
      assert.equal(gone, 3);
      assert.deepEqual(await batches.get(["young", "unfinished", "old"]), []);
      assert.deepEqual(await fixture.states("old:1:0", "old:1:1", "old:1:2", "young:1:0"), Array(4).fill("missing"));
      assert.deepEqual(
        (await batches.get(["open", "new"])).map(({ state }) => state),
        ["open", "completed"],
      );
      assert.deepEqual(await fixture.states("open:1:0", "new:1:0"), ["succeeded", "succeeded"]);
      assert.deepEqual(await on.batches.failures("open", 1, null, 10).then((blocks) => blocks.length), 1);
      await on.assertConsistent();
    },
  );

  onBatches(
    "a block that marked all of its rows and has not ended is cancelled when its batch is purged",
    async (on) => {
      const { fixture, batches } = on;
      await on.submit("b", [1, 1]);
      const worker = await fixture.worker("w");
      const [queued, running] = (await worker.claim(2)) as [ClaimedJob, ClaimedJob];
      const ends = { ...NO_ENDS, succeeded: [0] };
      for (const job of [queued, running]) await worker.record(job, { type: "rows", ends });
      await worker.settle(SETTLE.release(queued));
      assert.deepEqual(await on.settle(), ["b"]);
      await on.runAll(worker, [doneKind("mail")]);
      await fixture.clock.advance(2_000);
      while ((await batches.purge(1_000, 10)).more);
      assert.deepEqual(await batches.get(["b"]), []);
      const [first, second] = await Promise.all(["b:1:0", "b:1:1"].map((id) => fixture.store.inspect.get(id)));
      assert.deepEqual([first?.state, second?.state, second?.cancelRequested], ["cancelled", "running", true]);
      await worker.settle(SETTLE.release(running));
      assert.deepEqual(await fixture.states("b:1:1"), ["cancelled"]);
      await on.assertConsistent();
    },
  );

  onBatches("a batch of the same id and key, made after the old one was purged, has nothing of it", async (on) => {
    const { fixture, batches } = on;
    const make = async (): Promise<void> => {
      await on.open("b", { key: "k" });
      const [block] = blocksOf("b", [2]) as [BlockDraft];
      await batches.append("b", 1, [{ ...block, rejected: [failedRow(0, 3)] }]);
      await batches.seal("b", 1);
    };
    await make();
    const worker = await fixture.worker("w");
    await on.runAll(worker);
    await on.settle();
    await on.runAll(worker, [doneKind("mail")]);
    await fixture.enqueue("last");
    await fixture.clock.advance(2_000);
    while ((await batches.purge(1_000, 1)).more);
    await fixture.store.purge({ finishedOlderThanMs: 1_000, incidentsOlderThanMs: 1_000, limit: 1_000 });
    await make();
    assert.deepEqual(await on.sums("b"), { ...ZERO, failed: 1 });
    assert.equal((await batches.failures("b", 1, null, 10)).length, 1);
    assert.deepEqual(await fixture.states("b:1:0"), ["queued"]);
  });
}
