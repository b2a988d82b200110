// Histories of schedules: no occurrence twice, missing or early under kills, lost answers, outages and clock jumps; and each bug on purpose is found.
import assert from "node:assert/strict";
import { test } from "node:test";
import { huntSchedules } from "../proof/sim/schedules/campaign.ts";
import { SCHEDULE_MUTANTS } from "../proof/sim/schedules/mutants.ts";
import { simulateSchedules } from "../proof/sim/schedules/world.ts";

/** Both have kills and clock jumps; the second has long outages. */
for (const seed of [1, 2]) {
  test(`ten days of seed ${seed}: every occurrence is enqueued once, or skipped by its policy and counted`, async () => {
    const history = await simulateSchedules(seed, 10);
    assert.equal(history.violation, null);
    assert.ok(history.fired > 500 && history.kills > 50 && history.jumps > 0, JSON.stringify(history));
  });
}

test("ten days on a store that loses its latest scripts now and then: what was lost is enqueued again, and nothing twice", async () => {
  const history = await simulateSchedules(1, 10, undefined, "atomic");
  assert.equal(history.violation, null);
  assert.ok(history.fired > 500 && history.kills > 30 && history.lost > 0, JSON.stringify(history));
  for (const name of ["firesTwice", "movesBeforeItInserts", "jumpsOverTheRest"]) {
    const mutant = SCHEDULE_MUTANTS.find((one) => one.name === name)!;
    const { violation } = await simulateSchedules(1, 10, mutant, "atomic");
    assert.match(violation!, /^(twice|missing): /, name);
  }
});

test("the same seed is the same history", async () => {
  assert.deepEqual(await simulateSchedules(3, 3), await simulateSchedules(3, 3));
});

test("every bug on purpose in the firing of schedules is found, by more than one law", async () => {
  assert.ok(SCHEDULE_MUTANTS.length >= 10);
  const caught = await huntSchedules(3);
  assert.deepEqual(
    caught.filter(({ seed }) => seed === null).map(({ mutant }) => mutant),
    [],
  );
  const laws = new Set(caught.map(({ violation }) => violation!.split(":")[0]));
  for (const law of ["twice", "missing", "early", "stuck", "overlap", "too old"]) assert.ok(laws.has(law), law);
});
