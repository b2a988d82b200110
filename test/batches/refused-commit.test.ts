// A worker that has lost its lease releases its block with the rows that have ended. A block whose commit was refused has none: its rows were not committed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { runBlock } from "../../src/batches/block-runner.ts";
import { batch } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import type { BlockAttempt } from "../../src/worker/run.ts";

test("a block whose commit is refused marks none of its rows", async () => {
  const contract = batch("refused").handleBlock(async (_, run) => {
    await run.commit({} as never, () => {});
  });
  const attempt = {
    job: { counters: { crashes: 0 } },
    pendingRows: null as BlockAttempt["pendingRows"],
    commit: () => Promise.reject(new Error("the lease was lost")),
  };
  const block = { batch: "b", round: 1, number: 0, lines: [1, 2], rows: [{ n: 1 }, { n: 2 }] };
  const { settings, handlers } = contract;
  const deps = { clock: systemClock, settings, handlers, shared: undefined, context: null, parse: null };
  await assert.rejects(async () => runBlock(deps, block, attempt as unknown as BlockAttempt), /the lease was lost/);
  assert.equal(attempt.pendingRows!(), null);
});
