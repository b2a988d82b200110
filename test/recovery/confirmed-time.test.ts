// Holds what a process may say of the store's clock: as much as its own monotonic clock has seen.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ConfirmedClock, overdueBy, TRUSTED } from "../../src/recovery/confirmed-time.ts";
import { virtualClock, type VirtualClock } from "../../src/testing/virtual-clock.ts";

const HOUR = 3_600_000;

/** A store on this machine: its clock is the wall clock. */
function watched(): { clock: VirtualClock; confirmed: ConfirmedClock; read: () => void } {
  const clock = virtualClock(1_000_000);
  const confirmed = new ConfirmedClock(clock, { now: clock.now(), sentMono: clock.mono(), receivedMono: clock.mono() });
  return { clock, confirmed, read: () => confirmed.read(clock.now(), clock.mono()) };
}

test("while both clocks agree, all the time since the first reading is confirmed", () => {
  const { clock, confirmed, read } = watched();
  for (let n = 0; n < 10; n++) {
    read();
    clock.freeze(30_000);
  }
  assert.deepEqual(confirmed.confirmed(), { asOf: clock.now(), steadyMs: 300_000 });
});

for (const ms of [HOUR, -HOUR, 501, -501])
  test(`a step of the store's clock by ${ms} ms confirms nothing, before it was seen and after`, () => {
    const { clock, confirmed, read } = watched();
    read();
    clock.freeze(60_000);
    read();
    clock.jump(ms);
    assert.deepEqual(confirmed.confirmed(), { asOf: clock.now() - ms, steadyMs: 60_000 });
    clock.freeze(1_000);
    read();
    assert.deepEqual(confirmed.confirmed(), { asOf: clock.now(), steadyMs: 0 });
    clock.freeze(5_000);
    read();
    assert.equal(confirmed.confirmed().steadyMs, 5_000);
  });

test("a machine that slept has confirmed nothing of its sleep", () => {
  const { clock, confirmed, read } = watched();
  read();
  clock.freeze(60_000);
  // The monotonic clock of Linux stands still meanwhile.
  clock.jump(8 * HOUR);
  assert.deepEqual(confirmed.confirmed(), { asOf: clock.now() - 8 * HOUR, steadyMs: 60_000 });
});

test("a clock that is slewed is not stepped", () => {
  const { clock, confirmed, read } = watched();
  for (let n = 0; n < 100; n++) {
    read();
    clock.freeze(30_000);
    clock.jump(15);
  }
  assert.equal(confirmed.confirmed().steadyMs, 3_000_000);
});

test("an answer that took long is not a step, and counts from the last moment at which it can have been made", () => {
  const clock = virtualClock(0);
  clock.freeze(10_000);
  const confirmed = new ConfirmedClock(clock, { now: 1_000, sentMono: 0, receivedMono: 10_000 });
  assert.deepEqual(confirmed.confirmed(), { asOf: 1_000, steadyMs: 0 });
  clock.freeze(20_000);
  // Made right after the first answer was heard, as far as anybody can tell; then one that was made long after it.
  confirmed.read(11_000, 10_000);
  assert.deepEqual(confirmed.confirmed(), { asOf: 21_000 - 10, steadyMs: 20_000 });
  clock.freeze(10_000);
  confirmed.read(40_000, 30_000);
  assert.deepEqual(confirmed.confirmed(), { asOf: 40_000, steadyMs: 30_000 });
});

test("a reading that took little time is remembered, and loses what clocks may drift apart", () => {
  const clock = virtualClock(0);
  const confirmed = new ConfirmedClock(clock, { now: 0, sentMono: 0, receivedMono: 0 });
  clock.freeze(10_000);
  confirmed.read(6_000, 5_000);
  assert.deepEqual(confirmed.confirmed(), { asOf: 9_995, steadyMs: 10_000 });
});

test("a job is overdue when its deadline is confirmed and it was watched for as long as it may take", () => {
  const job = { expiresAt: 100_000, allowedMs: 60_000 };
  assert.equal(overdueBy(job, 100_001), 1);
  assert.equal(overdueBy(job, 100_000), null);
  assert.equal(overdueBy(job, 100_001, TRUSTED), 1);
  assert.equal(overdueBy(job, 9_000_000, { asOf: 100_000, steadyMs: HOUR }), null);
  assert.equal(overdueBy(job, 9_000_000, { asOf: 100_010, steadyMs: HOUR }), 10);
  assert.equal(overdueBy(job, 9_000_000, { asOf: 9_000_000, steadyMs: 60_000 }), null);
  assert.equal(overdueBy(job, 9_000_000, { asOf: 9_000_000, steadyMs: 60_001 }), 8_900_000);
});
