// Walks every pair of state and event of the worker's loop, and holds what has to be true of all of them.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  afterClaimEvent,
  afterEvent,
  type ClaimEvent,
  type ClaimState,
  isTurning,
  type LoopEvent,
  type LoopState,
  PollPace,
} from "../../src/worker/loop-state.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";

const EVENTS: readonly LoopEvent[] = ["wake", "hint", "tick", "due", "ended", "failed", "retry", "close"];

/** For each state what becomes of it, in the order of EVENTS; a dot: nothing. */
const WALK: Readonly<Record<LoopState, string>> = {
  //               wake         hint          tick         due     ended     failed     retry     close
  idle: "          scheduled    hinted        .            .       .         .          .         closed",
  hinted: "        scheduled    .             scheduled    .       .         .          .         closed",
  scheduled: "     .            .             .            turning .         .          .         closed",
  turning: "       turningAgain turningHinted .            .       idle      backingOff .         closed",
  turningHinted: " turningAgain .             turningAgain .       hinted    backingOff .         closed",
  turningAgain: "  .            .             .            .       scheduled backingOff .         closed",
  backingOff: "    .            .             .            .       .         .          scheduled closed",
  closed: "        .            .             .            .       .         .          .         .",
};
const STATES = Object.keys(WALK) as LoopState[];

for (const state of STATES) {
  test(`the loop, ${state}, at every event`, () => {
    const expected = WALK[state]
      .trim()
      .split(/\s+/)
      .map((next) => (next === "." ? state : next));
    assert.deepEqual(
      EVENTS.map((event) => afterEvent(state, event)),
      expected,
    );
  });
}

test("whatever happens, a wake is never lost: a turn that begins after it follows within the events that end what is under way", () => {
  const next: Partial<Record<LoopState, LoopEvent>> = {
    scheduled: "due",
    turningAgain: "ended",
    backingOff: "retry",
  };
  for (const start of STATES.filter((state) => state !== "closed")) {
    let state = afterEvent(start, "wake");
    const way: LoopState[] = [state];
    while (state !== "turning" && way.length < 10) way.push((state = afterEvent(state, next[state]!)));
    assert.equal(state, "turning", `${start}: ${way.join(", ")}`);
  }
});

test("a wake-up that came to a full worker is taken up by a tick, and not by the end of the turn", () => {
  for (const start of ["idle", "turning"] as const) {
    let state = afterEvent(start, "hint");
    if (isTurning(state)) state = afterEvent(state, "ended");
    assert.equal(state, "hinted");
    assert.equal(afterEvent(state, "tick"), "scheduled");
  }
});

test("a turn begins only when it is due, and none begins while one is under way or the store is given time", () => {
  for (const state of STATES)
    for (const event of EVENTS) {
      const next = afterEvent(state, event);
      if (isTurning(next) && !isTurning(state)) assert.deepEqual([state, event, next], ["scheduled", "due", "turning"]);
    }
});

test("every state can be reached, and a closed loop stays closed", () => {
  const reached = new Set<LoopState>(["idle"]);
  for (const state of reached) for (const event of EVENTS) reached.add(afterEvent(state, event));
  assert.deepEqual([...reached].sort(), [...STATES].sort());
});

test("a worker claims from its start to its end, except while it may not trust its lease", () => {
  const events: readonly ClaimEvent[] = ["start", "trusted", "untrusted", "stop"];
  const walk: Readonly<Record<ClaimState, readonly ClaimState[]>> = {
    off: ["on", "off", "off", "off"],
    on: ["on", "on", "withheld", "off"],
    withheld: ["withheld", "on", "withheld", "off"],
  };
  for (const [state, expected] of Object.entries(walk) as [ClaimState, readonly ClaimState[]][])
    assert.deepEqual(
      events.map((event) => afterClaimEvent(state, event)),
      expected,
      state,
    );
});

test("a worker polls seldom while proofs arrive, says once when they end and when they are back, and the elected one reads schedules often", async () => {
  const clock = virtualClock();
  const said: boolean[] = [];
  const pace = new PollPace(clock, 1_000, (proved) => said.push(proved));
  assert.deepEqual([pace.everyMs, pace.validMs], [1_000, Number.POSITIVE_INFINITY], "nothing is proved yet");
  pace.proved();
  assert.deepEqual([pace.everyMs, pace.schedulesMs, pace.validMs], [10_000, 30_000, 40_000]);
  pace.isElected = true;
  assert.deepEqual([pace.everyMs, pace.schedulesMs], [10_000, 1_000]);
  pace.isElected = false;
  await clock.advance(39_000);
  assert.deepEqual([pace.everyMs, pace.validMs], [10_000, 1_000]);
  await clock.advance(1_000);
  assert.deepEqual([pace.everyMs, pace.everyMs, said], [1_000, 1_000, [false]]);
  pace.proved();
  assert.deepEqual([pace.everyMs, said], [10_000, [false, true]]);
});

test("where nothing was ever proved it says so after a while, and a setting that is longer than the seldom poll holds", async () => {
  const clock = virtualClock();
  const said: boolean[] = [];
  const pace = new PollPace(clock, 60_000, (proved) => said.push(proved));
  await clock.advance(40_000);
  assert.deepEqual([pace.everyMs, said], [60_000, [false]]);
  pace.proved();
  assert.equal(pace.everyMs, 60_000);
});
