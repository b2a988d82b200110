// What rows write to output files is kept in memory until their end is durable: much of it makes them durable sooner, in several writes, and none is lost if
// one of these fails.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch, ErrorCode } from "../../src/index.ts";
import { runBlock } from "../../src/batches/block-runner.ts";
import type { BatchContract } from "../../src/batches/contract.ts";
import type { RowEnds } from "../../src/job/batches.ts";
import type { BlockAttempt } from "../../src/worker/run.ts";
import { memory, says } from "../engine/engines.ts";

const TURN = Promise.resolve();
const MIB = "x".repeat(1 << 20);

interface Ran {
  /** What was written before the attempt ended. */
  readonly written: readonly RowEnds[];
  /** What its end brings. */
  readonly pending: RowEnds | null;
  readonly thrown: unknown;
}

/** Runs a block of so many rows. `refuses`: the store fails as often. */
async function ran(
  contract: BatchContract<never, never>,
  rows: number,
  refuses = 0,
  more: object = {},
  mono = () => 0,
): Promise<Ran> {
  const written: RowEnds[] = [];
  let left = refuses;
  const run = {
    id: "b:1:0",
    job: { counters: { crashes: 0 } },
    isInterrupted: false,
    pendingRows: null as BlockAttempt["pendingRows"],
    async endRows(ends: RowEnds): Promise<void> {
      if (left-- > 0) throw new Error("the store is busy");
      written.push(ends);
    },
    ...more,
  };
  const numbers = Array.from({ length: rows }, (_, n) => n);
  const { settings, handlers } = contract;
  const clock = { now: () => 0, mono, after: () => () => {} };
  const deps = { clock, settings, handlers, shared: undefined, context: null, parse: null };
  const block = { batch: "b", round: 1, number: 0, lines: numbers.map((n) => n + 1), rows: numbers };
  let thrown: unknown = null;
  try {
    await runBlock(deps as never, block, run as unknown as BlockAttempt);
  } catch (error) {
    thrown = error;
  }
  return { written, pending: run.pendingRows!(), thrown };
}

/** The lines whose texts these have, in their order. */
function linesOf(ends: readonly (RowEnds | null)[]): number[] {
  const parts = ends.flatMap((one) => one?.outputs ?? []);
  return parts.flatMap(({ texts }) => (JSON.parse(texts) as [number, string][]).map(([line]) => line));
}

const charactersOf = ({ outputs }: RowEnds): number => outputs.reduce((sum, { texts }) => sum + texts.length, 0);

const LINES = Array.from({ length: 20 }, (_, n) => n + 1);

for (const [what, contract] of Object.entries({
  "one after the other": batch("rows").handle((row) => row.write("f", MIB)),
  "that wait": batch("rows", { atOnce: 4 }).handle(async (row) => {
    await TURN;
    row.write("f", MIB);
  }),
  "of a block that is handled as a whole": batch("rows").handleBlock((rows) => {
    for (const row of rows) row.write("f", MIB);
  }),
}))
  test(`rows ${what} are made durable whenever they have written 4 MiB`, async () => {
    const { written, pending, thrown } = await ran(contract as never, 20);
    assert.equal(thrown, null);
    assert.deepEqual(
      linesOf([...written, pending]).toSorted((a, b) => a - b),
      LINES,
    );
    assert.ok(written.length >= 4, `${written.length} writes`);
    for (const ends of [...written, ...(pending ? [pending] : [])]) assert.ok(charactersOf(ends) < 6 << 20);
  });

test("a row that ends after a write has failed and its attempt has ended is the last one that its lane runs", async () => {
  const slow = Promise.withResolvers<void>();
  const handled: number[] = [];
  let reads = 0;
  const contract = batch("rows", { atOnce: 2 }).handle((row) => {
    handled.push(row.line);
    if (row.line === 1) return slow.promise;
    row.write("f", MIB);
    return undefined;
  });
  const { thrown } = await ran(contract as never, 20, 1, {}, () => {
    assert.ok(++reads < 1_000, "its lane never ends");
    return 0;
  });
  assert.match(String(thrown), /the store is busy/);
  const before = handled.length;
  slow.resolve();
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(handled.length, before);
  assert.ok(reads < 1_000);
});

test("rows whose write failed come again with the next one, or with the end of their attempt", async () => {
  const writes = batch("rows").handle((row) => row.write("f", MIB)) as never;
  const { written, pending, thrown } = await ran(writes, 20, 1);
  assert.match(String(thrown), /the store is busy/);
  assert.deepEqual([written.length, pending!.succeeded, linesOf([pending])], [0, [0, 1, 2, 3], [1, 2, 3, 4]]);
  // A write by the timer fails: nothing waits for it, and nothing hears of it.
  let mark = (): void => {};
  const slow = batch("rows").handle(async (row, run) => {
    run.write("f", `line ${row.line}`);
    await TURN;
    if (row.line > 1) mark();
    for (let turn = 0; turn < 20; turn++) await TURN;
  }) as never;
  const clock = { now: () => 0, mono: () => 0, after: (_: number, task: () => void) => ((mark = task), () => {}) };
  const attempt = {
    job: { counters: { crashes: 0 } },
    isInterrupted: false,
    pendingRows: null as BlockAttempt["pendingRows"],
  };
  let refuses = 1;
  const ends: RowEnds[] = [];
  const endRows = async (one: RowEnds): Promise<void> => {
    if (refuses-- > 0) throw new Error("the store is busy");
    ends.push(one);
  };
  const { settings, handlers } = slow as BatchContract<never, never>;
  const deps = { clock, settings, handlers, shared: undefined, context: null, parse: null };
  const block = { batch: "b", round: 1, number: 0, lines: [1, 2, 3, 4], rows: [1, 2, 3, 4] };
  await runBlock(deps as never, block, Object.assign(attempt, { endRows }) as unknown as BlockAttempt);
  assert.ok(refuses <= 0, "one write failed");
  const all = [...ends, attempt.pendingRows!()];
  assert.deepEqual(new Set(linesOf(all)), new Set([1, 2, 3, 4]));
});

test("a commit that fails marks none of its rows, and keeps that others had failed before", async () => {
  const failing = batch("rows").handleBlock(async (rows, run) => {
    run.fail(rows[0]!, new Error("wrong"));
    await run.commit({} as never, () => {}).catch(() => {});
  }) as never;
  const more = {
    commit(this: { readonly pendingRows: BlockAttempt["pendingRows"] }) {
      assert.deepEqual(this.pendingRows!()!.succeeded, [1, 2]);
      return Promise.reject(new Error("rolled back"));
    },
  };
  const { pending } = await ran(failing, 3, 0, more);
  assert.deepEqual(
    pending!.failed.map(({ line }) => line),
    [1],
  );
});

test("a commit whose rows wrote more than 64 MiB is refused before it begins", async () => {
  const large = batch("rows").handleBlock(async (rows, run) => {
    for (const row of rows) for (let n = 0; n < 13; n++) row.write("f", MIB);
    await run.commit({} as never, () => assert.fail("it does not begin"));
  }) as never;
  const { thrown } = await ran(large, 5, 0, { commit: () => assert.fail("it does not begin") });
  says(ErrorCode.optionInvalid, "b:1:0", "68157440 characters", "at most 67108864", "smaller blocks")(thrown);
});

test("a row that writes more than 16 MiB in all fails alone, and its batch ends", async (t) => {
  const rows = batch("rows", { block: 3, retry: { attempts: 1 } }).handle((row, run) => {
    for (let n = 0; n < (row.line === 2 ? 17 : 1); n++) run.write(`f${n}`, MIB);
  });
  const engine = await memory(t, [rows]);
  const { id } = await engine.submit(rows, [1, 2, 3]);
  await engine.runUntilIdle();
  const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
  assert.deepEqual(
    failed.map(({ line }) => line),
    [2],
  );
  assert.match(failed[0]!.error!.message, /Line 2 writes more than 16777216 characters/);
  assert.deepEqual([(await engine.batch(id))!.state, (await engine.batch(id))!.rows.succeeded], ["completed", 2]);
});
