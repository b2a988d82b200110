// Rows that have ended are marked at least every 200 ms, whatever their handler does. Blocks that run for long, kills and refusals are in the other files here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch } from "../../src/index.ts";
import { runBlock } from "../../src/batches/block-runner.ts";
import type { RowEnds } from "../../src/job/batches.ts";
import type { BlockAttempt } from "../../src/worker/run.ts";

/** Runs a block of rows that wait for nothing. Returns which of them were marked before the block ended. */
async function marksOf(row: () => void, clock: { nowMs: number }, rows = 10): Promise<(readonly number[])[]> {
  const marks: (readonly number[])[] = [];
  const run = {
    job: { counters: { crashes: 0 } },
    isInterrupted: false,
    endRows: async ({ succeeded }: RowEnds): Promise<void> => void marks.push(succeeded),
  } as unknown as BlockAttempt;
  const { settings, handlers } = batch("busy").handle(row);
  const deps = {
    clock: { now: () => clock.nowMs, mono: () => clock.nowMs, after: () => () => {} },
    settings,
    handlers,
    shared: undefined,
    context: null,
    parse: null,
  } as unknown as Parameters<typeof runBlock>[0];
  const numbers = Array.from({ length: rows }, (_, n) => n);
  await runBlock(deps, { batch: "b", round: 1, number: 0, lines: numbers, rows: numbers }, run);
  return marks;
}

test("rows whose handler never waits are marked while their block runs", async () => {
  const clock = { nowMs: 0 };
  const marks = await marksOf(() => void (clock.nowMs += 90), clock);
  assert.deepEqual(marks, [
    [0, 1, 2],
    [3, 4, 5],
    [6, 7, 8],
  ]);
});

test("fast rows are marked by the end of their block alone", async () => {
  assert.deepEqual(await marksOf(() => {}, { nowMs: 0 }), []);
});

test("rows that become slow all at once are noticed within seven of them", async () => {
  const clock = { nowMs: 0 };
  let begun = 0;
  const marks = await marksOf(() => void (++begun > 20 && (clock.nowMs += 90)), clock, 40);
  const [first, ...others] = marks.map(({ length }) => length);
  assert.ok(first! <= 20 + 7 + 3, `${first} rows in the first mark`);
  assert.deepEqual(new Set(others), new Set([3]), "from then on as often as ever");
});
