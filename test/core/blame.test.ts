// Holds the search for the job that kills its workers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ALONE_FROM_CRASHES, blame, HARD_LIMIT, isOnTrial, mustRunAlone, ranAlone } from "../../src/core/blame.ts";
import { counted } from "./samples.ts";

const limits = { errors: 10, timeouts: 10, crashes: 3 };

test("a job runs alone from its second crash on, not before", () => {
  assert.equal(ALONE_FROM_CRASHES, 2);
  assert.deepEqual(
    [0, 1, 2, 3].map((crashes) => mustRunAlone({ crashes, losses: 0 })),
    [false, false, true, true],
  );
});

test("a worker ran a job alone only if it held exactly that one", () => {
  assert.deepEqual(
    [0, 1, 2, 1_000].map((heldAtDeath) => ranAlone({ heldAtDeath })),
    [false, true, false, false],
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
  assert.equal(isOnTrial(counted({ blamed: 1 }), { heldAtDeath: 1 }, limits), false);
  assert.equal(isOnTrial(counted({ blamed: 2 }), { heldAtDeath: 1 }, limits), true);
  assert.equal(isOnTrial(counted({ blamed: 2 }), { heldAtDeath: 2 }, limits), false);
});

test("a death beside others never makes a job guilty, even one that has used up its blame", () => {
  assert.equal(blame(counted({ crashes: 99, blamed: 99 }), false, limits).guilty, false);
});

test("a job that kills every worker is found within five deaths, and one that ran beside it twice is not blamed", () => {
  let killer = counted();
  let bystander = counted();
  let deaths = 0;
  for (let guilty = false; !guilty; deaths++) {
    const alone = mustRunAlone(killer);
    ({ counters: killer, guilty } = blame(killer, alone, limits));
    if (!alone) bystander = blame(bystander, false, limits).counters;
  }
  assert.equal(deaths, 5);
  assert.deepEqual(bystander, counted({ crashes: 2 }));
});
