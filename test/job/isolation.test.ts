// Holds the search for the job that kills its workers.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  ANY_NUMBER,
  blame,
  boundOf,
  HARD_LIMIT,
  hasRoomForSuspects,
  type HeldSuspects,
  type InFlight,
  isOnTrial,
  isSuspect,
  ranAlone,
  suspectsToTake,
  togetherAfter,
} from "../../src/job/isolation.ts";
import { counted } from "../support/samples.ts";

const limits = { errors: 10, timeouts: 10, crashes: 3 };

const inFlight = (suspectsAtDeath: number): InFlight => ({ suspectsAtDeath });
const fresh = counted();
const suspect = counted({ crashes: 1 });
const NONE = { count: 0, together: null, oldestFirst: false };

test("a job is a suspect from its first crash, or its first unresolved loss, on", () => {
  assert.deepEqual([fresh, suspect, counted({ losses: 1 }), counted({ errors: 9 })].map(isSuspect), [
    false,
    true,
    true,
    false,
  ]);
});

test("a job ran alone if it was the only one of its worker with an earlier crash", () => {
  assert.equal(ranAlone(suspect, inFlight(1)), true);
  assert.equal(ranAlone(counted({ losses: 1 }), inFlight(1)), true);
  assert.equal(ranAlone(suspect, inFlight(2)), false);
  assert.equal(ranAlone(fresh, inFlight(1)), false, "another one was the suspect");
  assert.equal(ranAlone(fresh, inFlight(0)), false, "its first crash, with or without other jobs");
});

test("a job may run with half of the suspects that died with it, and with any number after its first crash", () => {
  assert.deepEqual(
    [1, 2, 3, 50, 1_000].map((suspects) => togetherAfter(suspect, inFlight(suspects))),
    [1, 1, 1, 25, 500],
  );
  assert.equal(togetherAfter(fresh, inFlight(12)), 0);
});

test("a stored job that crashed twice before its bound was kept runs as the only suspect", () => {
  assert.deepEqual(
    [
      { together: 0, crashes: 1, losses: 0 },
      { together: 0, crashes: 1, losses: 1 },
      { together: 7, crashes: 9, losses: 0 },
    ].map(boundOf),
    [ANY_NUMBER, 1, 7],
  );
});

test("a worker takes suspects while their number stays within the smallest `together` that it holds", () => {
  const waiting = [25, 25, 3, 2, 2, 1].map((together) => ({ together }));
  const taken = (held: Partial<HeldSuspects>): readonly number[] =>
    suspectsToTake(waiting, { ...NONE, ...held }).map(({ together }) => together);
  assert.deepEqual(taken({}), [25, 25, 3]);
  assert.deepEqual(taken({ count: 2, together: 25 }), [25, 25]);
  assert.deepEqual(taken({ count: 24, together: 25 }), [25]);
  assert.deepEqual(taken({ count: 1, together: 2 }), [25]);
  assert.deepEqual(taken({ count: 1, together: 1 }), []);
  assert.deepEqual(
    [NONE, { ...NONE, count: 1, together: 2 }, { ...NONE, count: 2, together: 2 }].map(hasRoomForSuspects),
    [true, true, false],
  );
});

test("every death counts as a crash, and only one alone counts as blame", () => {
  const before = counted({ crashes: 1, errors: 4 });
  assert.deepEqual(blame(before, false, limits), { counters: counted({ crashes: 2, errors: 4 }), guilty: false });
  assert.deepEqual(blame(before, true, limits), {
    counters: counted({ crashes: 2, blamed: 1, errors: 4 }),
    guilty: false,
  });
});

test("a job is guilty at the death alone that reaches its limit", () => {
  assert.equal(blame(counted({ blamed: 1 }), true, limits).guilty, false);
  assert.equal(blame(counted({ blamed: 2 }), true, limits).guilty, true);
  assert.equal(blame(counted({ blamed: 7 }), true, limits).guilty, true);
});

test("a job does not stand out while as many workers died that did not hold it, up to three times its limit", () => {
  const guiltyAt = (blamedBefore: number, deathsElsewhere: number): boolean =>
    blame(counted({ blamed: blamedBefore }), true, limits, deathsElsewhere).guilty;
  assert.equal(HARD_LIMIT, 3);
  assert.deepEqual(
    [2, 3, 4].map((deaths) => guiltyAt(2, deaths)),
    [true, false, false],
  );
  assert.equal(guiltyAt(7, 1_000), false);
  assert.equal(guiltyAt(8, 1_000), true);
});

test("what others suffered matters only for a job that was alone and is at its limit", () => {
  assert.equal(isOnTrial(counted({ blamed: 1 }), true, limits), false);
  assert.equal(isOnTrial(counted({ blamed: 2 }), true, limits), true);
  assert.equal(isOnTrial(counted({ blamed: 2 }), false, limits), false);
});

test("a death next to others never makes a job guilty, even one that has used up its blame", () => {
  assert.equal(blame(counted({ crashes: 99, blamed: 99 }), false, limits).guilty, false);
});

test("the job that kills its workers among fifty is found within log2(50) deaths and its limit, and no other is blamed", () => {
  let killer = counted();
  let together = Number.POSITIVE_INFINITY;
  let others = 49;
  let deaths = 0;
  for (let guilty = false; !guilty; deaths++) {
    others = Math.min(others, together - 1);
    const death = inFlight(deaths === 0 ? 0 : others + 1);
    const alone = ranAlone(killer, death);
    together = togetherAfter(killer, death) || Number.POSITIVE_INFINITY;
    ({ counters: killer, guilty } = blame(killer, alone, limits));
  }
  assert.equal(deaths, 9);
  assert.deepEqual(killer, counted({ crashes: 9, blamed: 3 }));
});
