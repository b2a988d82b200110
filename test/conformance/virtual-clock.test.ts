// The virtual clock of `outlive/testing`: what stands still, what moves, and in which order timers fire.
import assert from "node:assert/strict";
import { test } from "node:test";
import { pause } from "../../src/job/time.ts";
import { virtualClock } from "../../src/testing/index.ts";

test("a virtual clock stands still until it is moved, and both its clocks move together", async () => {
  const clock = virtualClock(1_000);
  assert.deepEqual([clock.now(), clock.mono()], [1_000, 0]);
  await clock.advance(250);
  assert.deepEqual([clock.now(), clock.mono()], [1_250, 250]);
});

test("timers fire at their own instants, in the order in which they are due, and not before", async () => {
  const clock = virtualClock(0);
  const fired: [string, number][] = [];
  for (const [name, ms] of [
    ["c", 30],
    ["a", 10],
    ["b", 10],
    ["late", 31],
  ] as const)
    clock.after(ms, () => fired.push([name, clock.now()]));
  await clock.advance(30);
  assert.deepEqual(fired, [
    ["a", 10],
    ["b", 10],
    ["c", 30],
  ]);
  assert.equal(clock.nextTimerInMs(), 1);
  assert.equal(clock.now(), 30);
});

test("a timer that was called off does not fire, and may be called off again", async () => {
  const clock = virtualClock();
  const callOff = clock.after(5, () => assert.fail("it was called off"));
  callOff();
  await clock.advance(10);
  callOff();
  assert.equal(clock.nextTimerInMs(), null);
});

test("what a timer starts may wait again within the same advance", async () => {
  const clock = virtualClock(0);
  const seen: number[] = [];
  const loop = (async () => {
    for (let n = 0; n < 3; n++) {
      await pause(clock, 10);
      seen.push(clock.now());
    }
  })();
  await clock.advance(35);
  assert.deepEqual(seen, [10, 20, 30]);
  await loop;
});

test("a jump moves the wall clock alone and fires nothing", async () => {
  const clock = virtualClock(5_000);
  clock.after(1, () => assert.fail("no time has passed"));
  clock.jump(-4_000);
  assert.deepEqual([clock.now(), clock.mono()], [1_000, 0]);
});

test("a freeze lets time pass on both clocks and runs nothing until the clock is moved; then it runs late", async () => {
  const clock = virtualClock(0);
  const ranAt: number[] = [];
  clock.after(10, () => ranAt.push(clock.mono()));
  clock.freeze(1_000);
  assert.deepEqual([clock.now(), clock.mono(), ranAt], [1_000, 1_000, []]);
  await clock.advance(0);
  assert.deepEqual(ranAt, [1_000]);
});

test("settling runs all that needs no time, also what that puts off again, and moves no clock", async () => {
  const clock = virtualClock(0);
  const ran: string[] = [];
  clock.soon(() => {
    ran.push("first");
    clock.soon(() => ran.push("second"));
  });
  clock.after(1, () => assert.fail("no time has passed"));
  await clock.settle();
  assert.deepEqual([ran, clock.mono()], [["first", "second"], 0]);
});

test("what is to run soon runs automatically", async () => {
  const clock = virtualClock();
  await new Promise<void>((resolve) => clock.soon(resolve));
});
