// Rows that have ended are marked at least every 200 ms, whatever their handler does. Blocks that run for long, kills and refusals are in the other files here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch } from "../../src/index.ts";
import { runBlock } from "../../src/batches/block-runner.ts";
import type { RowEnds } from "../../src/job/batches.ts";
import type { BlockAttempt } from "../../src/worker/run.ts";

/** Runs a block of ten rows, each of which takes 90 ms without waiting for anything. Returns which rows were marked before the block ended. */
async function marksOf(row: () => void, clock: { nowMs: number }): Promise<(readonly number[])[]> {
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
  const numbers = Array.from({ length: 10 }, (_, n) => n);
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
