// Holds that the table of ends and consequences of the conformance suite forgets no change that can end a job.
import assert from "node:assert/strict";
import { test } from "node:test";
import { CHANGES, type ChangeName } from "../../src/job/transitions.ts";
import { CONSEQUENCES, ENDINGS } from "../../src/testing/conformance/ends.ts";

/** Changes that end no job. */
const GO_ON: readonly ChangeName[] = ["claim", "forgetLoss", "promote", "retry"];
/** Changes that end no job that runs, as the table's do. What follows from them has cases of its own (src/testing/conformance/operations.ts). */
const OF_QUEUED: readonly ChangeName[] = ["expire", "remove"];

test("every change that can end a job is a row of the table", () => {
  const named = new Set(Object.values(ENDINGS).map(({ by }) => by));
  const wanted = (Object.keys(CHANGES) as ChangeName[]).filter(
    (name) => !GO_ON.includes(name) && !OF_QUEUED.includes(name),
  );
  assert.deepEqual([...named].toSorted(), wanted.toSorted());
});

test("every terminal state is the end of a row, and each column has a job of its own", () => {
  const states = new Set(Object.values(ENDINGS).map(({ state }) => state));
  assert.deepEqual([...states].toSorted(), ["cancelled", "dead", "quarantined", "succeeded"]);
  const ids = Object.values(CONSEQUENCES).map(({ target }) => target.id);
  assert.equal(new Set(ids).size, ids.length);
});
