// Histories of expiry, removal and the audit: nothing expires early, begins late, keeps anything of a removed job, or miscounts; and each bug on purpose is found.
import assert from "node:assert/strict";
import { test } from "node:test";
import { OPERATIONS_MUTANTS } from "../proof/sim/operations/mutants.ts";
import { huntOperations, simulateOperations } from "../proof/sim/operations/world.ts";

test("twenty histories: what expires, is removed or is changed is what was asked for, under deaths of workers", async () => {
  const sums = { expired: 0, removed: 0, deaths: 0 };
  for (let seed = 1; seed <= 20; seed++) {
    const { violation, ...history } = await simulateOperations(seed);
    assert.equal(violation, null, `seed ${seed}`);
    for (const name of ["expired", "removed", "deaths"] as const) sums[name] += history[name];
  }
  assert.ok(sums.expired > 100 && sums.removed > 300 && sums.deaths > 50, JSON.stringify(sums));
});

test("every bug on purpose in expiry, removal and the audit is found, by more than one law", async () => {
  assert.ok(OPERATIONS_MUTANTS.length >= 10);
  const caught = await huntOperations(10, OPERATIONS_MUTANTS);
  assert.deepEqual(
    caught.filter(({ seed }) => seed === null).map(({ mutant }) => mutant),
    [],
  );
  const laws = new Set(caught.map(({ violation }) => violation!.split(":")[0]));
  for (const law of ["late", "early", "stuck", "contents", "running", "audit"]) assert.ok(laws.has(law), law);
});
