// Holds the one pause of core, which ends by time or by a signal and leaves nothing behind, and the clock that is cheap to read.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { type Clock, coarseClock, pause } from "../../src/job/time.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";

test("a pause ends when its time has passed, and not before", async () => {
  const clock = virtualClock();
  let over = false;
  const pausing = pause(clock, 100).then(() => (over = true));
  await clock.advance(99);
  assert.equal(over, false);
  await clock.advance(1);
  await pausing;
});

test("a pause ends at once when its signal aborts, and leaves neither timer nor listener", async () => {
  const clock = virtualClock();
  const { signal, abort } = aborter();
  const pausing = pause(clock, 1_000_000, signal);
  abort();
  await pausing;
  assert.equal(clock.nextTimerInMs(), null);
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("a pause whose signal was aborted before takes no time", async () => {
  const clock = virtualClock();
  const { signal, abort } = aborter();
  abort();
  await pause(clock, 1_000_000, signal);
  assert.equal(clock.nextTimerInMs(), null);
});

test("a pause that ended by time lets go of its signal", async () => {
  const clock = virtualClock();
  const { signal } = aborter();
  const pausing = pause(clock, 5, signal);
  await clock.advance(5);
  await pausing;
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

function aborter(): { signal: AbortSignal; abort: () => void } {
  const controller = new AbortController();
  return { signal: controller.signal, abort: () => controller.abort() };
}

test("a coarse clock stands still within a millisecond, and goes on whichever way the time of day is set", () => {
  let now = 1_000;
  let mono = 5;
  const clock = coarseClock({ now: () => now, mono: () => mono } as unknown as Clock);
  assert.equal(clock.mono(), 5);
  mono = 5.9;
  assert.equal(clock.mono(), 5);
  now += 1;
  assert.equal(clock.mono(), 5.9);
  mono = 7;
  now -= 3_600_000;
  assert.deepEqual([clock.mono(), clock.now()], [7, now]);
});
