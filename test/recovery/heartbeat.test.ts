// Holds the worker's sign of life: when it is sent, what counts as failed, and how failures are retried.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Heartbeat } from "../../src/recovery/heartbeat.ts";
import type { Beat, BeatAnswer } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { aBeatAnswer, fakeStore, held, Recorder } from "../support/samples.ts";

const CONFIRMED = { asOf: 7, steadyMs: 5 };

function heart(beat: (worker: string, beat: Beat) => Promise<BeatAnswer>, intervalMs = 30_000, loopLagMs = 0) {
  const clock = virtualClock();
  const events = new Recorder();
  const store = fakeStore({ beat });
  return {
    clock,
    events,
    heartbeat: new Heartbeat({
      store,
      clock,
      events,
      worker: "w1",
      intervalMs,
      loopLagMs: () => loopLagMs,
      confirmed: () => CONFIRMED,
    }),
  };
}

test("FR-031 FR-035 AC-006 a beat names the worker, how long the loop stood still, in whole ms, and which time is confirmed", async () => {
  const beats: unknown[] = [];
  const { heartbeat } = heart((...given) => (beats.push(given), Promise.resolve(aBeatAnswer())), 30_000, 12.7);
  await heartbeat.tick();
  assert.deepEqual(beats, [["w1", { loopLagMs: 13, confirmed: CONFIRMED }]]);
});

test("a beat that polls may take a third of its time longer for that, and 50 ms at most", async () => {
  const limits: unknown[] = [];
  for (const intervalMs of [50, 300, 30_000]) {
    const { heartbeat } = heart((_, { pollMs }) => (limits.push(pollMs), Promise.resolve(aBeatAnswer())), intervalMs);
    await heartbeat.tick(false, true);
  }
  assert.deepEqual(limits, [16, 33, 50]);
});

test("an accepted beat counts from when it was sent, not from when it was answered", async () => {
  const answer = held<BeatAnswer>();
  const { clock, heartbeat } = heart(() => answer.promise);
  const sentAt = clock.mono();
  const beat = heartbeat.tick();
  await clock.advance(9_000);
  answer.resolve(aBeatAnswer());
  assert.deepEqual(await beat, { sentAtMono: sentAt, answer: aBeatAnswer() });
});

test("an answered beat leaves no timer behind", async () => {
  const { clock, heartbeat } = heart(() => Promise.resolve(aBeatAnswer()));
  await heartbeat.tick();
  await clock.settle();
  assert.equal(clock.nextTimerInMs(), null);
});

test("FR-053 UT-003 a beat without an answer within a third of the interval has failed", async () => {
  const { clock, events, heartbeat } = heart(() => new Promise(() => {}));
  const beat = heartbeat.tick();
  await clock.advance(9_999);
  assert.equal(heartbeat.failures, 0);
  await clock.advance(1);
  assert.equal(await beat, null);
  assert.deepEqual(
    events.of("heartbeat.failed").map(({ worker, failures, error }) => [worker, failures, error.message]),
    [["w1", 1, "no answer within 10000 ms"]],
  );
});

test("even the shortest interval leaves a beat 50 ms", async () => {
  const { clock, heartbeat } = heart(() => new Promise(() => {}), 50);
  const beat = heartbeat.tick();
  await clock.advance(49);
  assert.equal(heartbeat.failures, 0);
  await clock.advance(1);
  assert.equal(await beat, null);
});

test("an answer that comes after the time was up changes nothing, and a late rejection does no harm", async () => {
  for (const end of ["resolve", "reject"] as const) {
    const answer = held<BeatAnswer>();
    const { clock, heartbeat } = heart(() => answer.promise);
    const beat = heartbeat.tick();
    await clock.advance(10_000);
    assert.equal(await beat, null);
    if (end === "resolve") answer.resolve(aBeatAnswer());
    else answer.reject(new Error("too late"));
    await clock.settle();
    assert.equal(heartbeat.failures, 1);
  }
});

test("FR-051 FR-054 UT-003 failures are counted and reported until a beat is accepted, and never thrown", async () => {
  const answers: (() => Promise<BeatAnswer>)[] = [
    () => Promise.reject(new Error("busy")),
    () => {
      throw new Error("closed");
    },
    () => Promise.reject("a text"),
    () => Promise.resolve(aBeatAnswer()),
    () => Promise.reject(new Error("busy again")),
  ];
  const { events, heartbeat } = heart(() => answers.shift()!());
  const counts: number[] = [];
  for (let beat = 0; beat < 5; beat++) {
    await heartbeat.tick();
    counts.push(heartbeat.failures);
  }
  assert.deepEqual(counts, [1, 2, 3, 0, 1]);
  assert.deepEqual(
    events.of("heartbeat.failed").map(({ failures, error }) => `${failures} ${error.message}`),
    ["1 busy", "2 closed", "3 a text", "1 busy again"],
  );
});

test("a refused beat, of a worker that is no longer live, is an answer and not a failure", async () => {
  const { heartbeat } = heart(() => Promise.resolve(aBeatAnswer({ live: false })));
  assert.equal((await heartbeat.tick())?.answer.live, false);
  assert.equal(heartbeat.failures, 0);
});

test("FR-052 after a failure the next beat comes after 100 ms, doubling up to half the interval", async () => {
  const { heartbeat } = heart(() => Promise.reject(new Error("down")));
  assert.equal(heartbeat.nextInMs(30_000), 30_000);
  const delays: number[] = [];
  for (let beat = 0; beat < 10; beat++) {
    await heartbeat.tick();
    delays.push(heartbeat.nextInMs(30_000));
  }
  assert.deepEqual(delays, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 15_000, 15_000]);
  assert.equal(heartbeat.nextInMs(60), 30);
  heartbeat.failures = 100_000;
  assert.equal(heartbeat.nextInMs(30_000), 15_000);
});
