// Holds the end of a worker that was asked to stop: time to finish, a notice, a release, a flush.
import assert from "node:assert/strict";
import { test } from "node:test";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { shutDown } from "../../src/worker/life.ts";
import { held } from "../support/samples.ts";

/** A worker that holds `jobs` until `empty` is resolved, and records each call and when it came. */
function stopping(graceMs: number, jobs = 3) {
  const clock = virtualClock();
  const started = clock.mono();
  const told: string[] = [];
  const empty = held<void>();
  const at = (what: string): void => void told.push(`${what} at ${clock.mono() - started}`);
  const loop = {
    drain: () => (at("drain"), empty.promise),
    interruptAll: (why: string) => at(`interrupt ${why}`),
    releaseAll: (reason: string) => (at(`release (${reason})`), jobs),
  };
  let released: number | undefined;
  const done = shutDown(loop, clock, graceMs).then((count) => {
    released = count;
    at("left");
  });
  return { clock, told, empty, done, released: () => released };
}

test("a worker that becomes empty within the grace leaves at once, and no handler is aborted", async () => {
  const { clock, told, empty, done, released } = stopping(25_000);
  await clock.advance(19_999);
  empty.resolve();
  await done;
  assert.deepEqual(told, ["drain at 0", "left at 19999"]);
  assert.equal(released(), 0);
  assert.equal(clock.nextTimerInMs(), null);
});

test("for the last fifth of the grace handlers know that they should end", async () => {
  const { clock, told, empty, done, released } = stopping(10_000);
  await clock.advance(8_000);
  assert.deepEqual(told, ["drain at 0", "interrupt shutdown at 8000"]);
  await clock.advance(1_999);
  empty.resolve();
  await done;
  assert.equal(told.at(-1), "left at 9999");
  assert.equal(released(), 0);
});

test("the notice is five seconds at the most", async () => {
  const { clock, told } = stopping(3_600_000);
  await clock.advance(3_594_999);
  assert.deepEqual(told, ["drain at 0"]);
  await clock.advance(1);
  assert.deepEqual(told, ["drain at 0", "interrupt shutdown at 3595000"]);
});

test("what still runs when the grace has passed is released, and the worker waits until that is durable", async () => {
  const { clock, told, empty, done, released } = stopping(10_000);
  await clock.advance(10_000);
  assert.equal(told.at(-1), "release (its worker shut down) at 10000");
  await clock.advance(700);
  assert.equal(released(), undefined);
  empty.resolve();
  await done;
  assert.equal(told.at(-1), "left at 10700");
  assert.equal(released(), 3);
});

test("a store that does not answer keeps a worker from leaving for five seconds and not longer", async () => {
  const { clock, told, done, released } = stopping(10_000);
  await clock.advance(15_000);
  await done;
  assert.equal(told.at(-1), "left at 15000");
  assert.equal(released(), 3);
  assert.equal(clock.nextTimerInMs(), null);
});

test("without a grace everything is aborted and released at once, in this order", async () => {
  const { clock, told, empty, done } = stopping(0);
  await clock.advance(0);
  empty.resolve();
  await done;
  assert.deepEqual(told, ["drain at 0", "interrupt shutdown at 0", "release (its worker shut down) at 0", "left at 0"]);
});
