// Holds what a worker does about a job that waits to run alone, case by case.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  claimedFirstAbove,
  mayTurnTo,
  roomForFirst,
  shareOfFleet,
  type WaitingAlone,
  whatToDo,
} from "../../src/core/alone.ts";

const ME = 1;
const FREE: WaitingAlone = { seq: 9, kind: 1, priority: 3, reserved_by: null, holder: null };
const MINE: WaitingAlone = { ...FREE, reserved_by: ME, holder: "live" };
const THEIRS: WaitingAlone = { ...FREE, reserved_by: 2, holder: "live" };
const LEFT: WaitingAlone = { ...FREE, reserved_by: 2, holder: "gone" };
const IDLE = { total: 9, kinds: [], idle: true };
const BUSY = { ...IDLE, idle: false };

test("a quarter of the fleet, and at least one worker, may be taken up", () => {
  assert.deepEqual([0, 1, 5, 6, 8, 100].map(shareOfFleet), [1, 1, 1, 2, 2, 25]);
});

test("a busy worker turns to its own reservation, and within the share to what no live worker has reserved", () => {
  const may = (withinShare: boolean) => [FREE, MINE, THEIRS, LEFT].map((job) => mayTurnTo(job, ME, false, withinShare));
  assert.deepEqual(may(true), [true, true, false, true]);
  assert.deepEqual(may(false), [false, true, false, false]);
});

test("an idle worker turns to any within the share, and beyond it to what sets another worker free", () => {
  const may = (withinShare: boolean) => [FREE, MINE, THEIRS, LEFT].map((job) => mayTurnTo(job, ME, true, withinShare));
  assert.deepEqual(may(true), [true, true, true, true]);
  assert.deepEqual(may(false), [false, false, true, false]);
});

test("an idle worker takes it unless ordinary jobs go first, a busy one empties itself", () => {
  assert.equal(whatToDo(FREE, ME, IDLE, 0), "take");
  assert.equal(whatToDo(THEIRS, ME, IDLE, 0), "take");
  assert.equal(whatToDo(FREE, ME, IDLE, 2), "empty");
  assert.equal(whatToDo(THEIRS, ME, IDLE, 2), "leave", "the other worker runs it");
  assert.equal(whatToDo(FREE, ME, BUSY, 0), "empty");
  assert.equal(whatToDo(MINE, ME, BUSY, 3), "empty");
});

test("when ordinary jobs have their turn, those of the same priority go first and nothing is reserved", () => {
  const ordinaryFirst = true;
  assert.deepEqual([claimedFirstAbove(FREE, IDLE), claimedFirstAbove(FREE, { ...IDLE, ordinaryFirst })], [3, 2]);
  assert.equal(whatToDo(FREE, ME, { ...IDLE, ordinaryFirst }, 0), "take");
  assert.equal(whatToDo(FREE, ME, { ...IDLE, ordinaryFirst }, 1), "leave");
});

test("the room for what goes first is that of each kind, of those that share together, and of all", () => {
  const own = (most: number) => ({ most, shares: false });
  const shared = (most: number) => ({ most, shares: true });
  assert.equal(roomForFirst([own(2), own(9)], [5, 3], 9), 5);
  assert.equal(roomForFirst([own(2), own(9)], [5, 3], 4), 4);
  assert.equal(roomForFirst([own(2), shared(3), shared(3)], [1, 2, 2], 9), 4);
  assert.equal(roomForFirst([], [], 9), 0);
});
