// Holds how a worker divides its time between ordinary jobs and jobs that must run alone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { EMPTYING_MS, MAX_EMPTYING_MS, SuspectTurns } from "../../src/core/suspect-turns.ts";
import { aClaim } from "./samples.ts";

const NOTHING = { claimed: [] };
const ORDINARY = { claimed: [aClaim()] };
const EMPTYING = { claimed: [], emptying: true };
const ALONE = { claimed: [aClaim({ alone: true })] };

test("a worker for which no job waits to run alone owes ordinary jobs nothing", () => {
  const turns = new SuspectTurns();
  for (const [mono, answer] of [NOTHING, ORDINARY, NOTHING].entries()) {
    assert.equal(turns.ordinaryFirst(mono * 60_000), false);
    turns.noted(answer, mono * 60_000);
    assert.equal(turns.endsInMs(mono * 60_000), null);
  }
});

test("a worker that can't become idle claims as usual for ten times as long, then tries for twice as long, up to the limit", () => {
  const turns = new SuspectTurns();
  let mono = 0;
  const tried: number[] = [];
  const rested: number[] = [];
  for (let round = 0; round < 6; round++) {
    const began = mono;
    assert.equal(turns.ordinaryFirst(mono), false);
    turns.noted(EMPTYING, mono);
    const forMs = turns.endsInMs(mono)!;
    mono += forMs - 1;
    assert.equal(turns.ordinaryFirst(mono), false, "not a millisecond too soon");
    turns.noted(EMPTYING, mono);
    mono += 1;
    assert.equal(turns.ordinaryFirst(mono), true);
    tried.push(mono - began);
    const restBegan = mono;
    turns.noted(ORDINARY, mono);
    assert.equal(turns.endsInMs(mono), null);
    while (turns.ordinaryFirst(mono)) mono += 1_000;
    rested.push(mono - restBegan);
  }
  assert.deepEqual(
    tried,
    [1, 2, 4, 8, 12, 12].map((times) => times * EMPTYING_MS),
  );
  assert.deepEqual(
    rested,
    tried.map((ms) => 10 * ms),
  );
  assert.equal(tried.at(-1), MAX_EMPTYING_MS);
});

test("a worker that became idle runs such jobs for a while, and then ordinary jobs come first for as long as all of it took", () => {
  const turns = new SuspectTurns();
  turns.noted(EMPTYING, 0);
  turns.noted(ALONE, 1_000);
  // They end quickly, and more of them wait.
  for (let mono = 1_500; mono < 1_000 + EMPTYING_MS; mono += 500) {
    assert.equal(turns.ordinaryFirst(mono), false);
    turns.noted(ALONE, mono);
  }
  const end = 1_000 + EMPTYING_MS;
  assert.equal(turns.ordinaryFirst(end), true);
  turns.noted(ORDINARY, end);
  assert.equal(turns.ordinaryFirst(end + end - 1), true);
  assert.equal(turns.ordinaryFirst(end + end), false);
});

test("one long job that runs alone is followed by ordinary jobs for as long", () => {
  const turns = new SuspectTurns();
  turns.noted(ALONE, 0);
  // No turn claims while it runs.
  assert.equal(turns.ordinaryFirst(20_000), true);
  turns.noted(ORDINARY, 20_000);
  assert.equal(turns.ordinaryFirst(39_999), true);
  assert.equal(turns.ordinaryFirst(40_000), false);
});

test("how long a worker may empty itself follows how long it needed the last time", () => {
  const turns = new SuspectTurns();
  turns.noted(EMPTYING, 0);
  assert.equal(turns.ordinaryFirst(EMPTYING_MS), true);
  const second = 11 * EMPTYING_MS;
  assert.equal(turns.ordinaryFirst(second), false);
  turns.noted(EMPTYING, second);
  turns.noted(ALONE, second + 7_000);
  turns.noted(NOTHING, second + 8_000);
  const third = second + 100_000;
  assert.equal(turns.ordinaryFirst(third), false);
  turns.noted(EMPTYING, third);
  assert.equal(turns.endsInMs(third), 14_000);
});

test("a job that another worker takes ends the emptying, and a worker that stood still owes no more than its limit", () => {
  const turns = new SuspectTurns();
  turns.noted(EMPTYING, 0);
  turns.noted(ORDINARY, 100);
  assert.deepEqual([turns.endsInMs(100), turns.ordinaryFirst(199), turns.ordinaryFirst(200)], [null, true, false]);
  turns.noted(EMPTYING, 1_000);
  const woke = 3_600_000;
  assert.equal(turns.ordinaryFirst(woke), true);
  assert.equal(turns.ordinaryFirst(woke + 10 * EMPTYING_MS), false);
});

test("an idle worker that takes such a job while ordinary jobs have their turn begins a new round", () => {
  const turns = new SuspectTurns();
  turns.noted(EMPTYING, 0);
  assert.equal(turns.ordinaryFirst(EMPTYING_MS), true);
  turns.noted(ALONE, EMPTYING_MS + 100);
  turns.noted(NOTHING, EMPTYING_MS + 300);
  assert.equal(turns.ordinaryFirst(EMPTYING_MS + 499), true);
  assert.equal(turns.ordinaryFirst(EMPTYING_MS + 500), false);
});
