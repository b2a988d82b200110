// Where claims on PostgreSQL begin to read: no ready job is below a floor for longer than promised, and each bug on purpose is found.
import assert from "node:assert/strict";
import { test } from "node:test";
import { FLOOR_MUTANTS, huntFloors, runFloors } from "../proof/sim/floors.ts";
import { rangesOf } from "../src/stores/postgres/floors.ts";

test("six histories with late commits and jobs that return: no ready job stays below a floor", () => {
  const { broken, claims, bounded } = runFloors(1, 6);
  assert.deepEqual(broken, []);
  assert.ok(bounded > claims / 10, `${bounded} of ${claims} claims began at a floor`);
});

test("every bug on purpose in the memory of floors is found", () => {
  assert.equal(FLOOR_MUTANTS.length, 4);
  const caught = huntFloors(20, FLOOR_MUTANTS);
  assert.deepEqual(
    caught.filter(({ seed }) => seed === null).map(({ mutant }) => mutant),
    [],
  );
  for (const { violation } of caught) assert.match(violation!, /a ready job is below the floor/);
});

test("the ranges of a claim have each priority once, in the order of the claim", () => {
  const all = { highest: 2 ** 31 - 1, lowest: -(2 ** 31), floor: null };
  assert.deepEqual(rangesOf([]), [all]);
  assert.deepEqual(
    rangesOf([
      { priority: 6, seq: 40 },
      { priority: 5, seq: 70 },
      { priority: 0, seq: 90 },
    ]),
    [
      { ...all, lowest: 7 },
      { highest: 6, lowest: 6, floor: 40 },
      { highest: 5, lowest: 5, floor: 70 },
      { highest: 4, lowest: 1, floor: null },
      { highest: 0, lowest: 0, floor: 90 },
      { ...all, highest: -1 },
    ],
  );
  assert.deepEqual(rangesOf([{ priority: 2 ** 31 - 1, seq: 1 }])[0], {
    highest: 2 ** 31 - 1,
    lowest: 2 ** 31 - 1,
    floor: 1,
  });
  assert.deepEqual(rangesOf([{ priority: -(2 ** 31), seq: 1 }]).at(-1), {
    highest: -(2 ** 31),
    lowest: -(2 ** 31),
    floor: 1,
  });
});
