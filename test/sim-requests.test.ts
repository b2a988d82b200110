// Histories of requests with a remote that may or may not have acted: nothing lost, one callback each, nothing sent twice under "ask" and "fail", no inversion; and bugs
// on purpose are found.
import assert from "node:assert/strict";
import { test } from "node:test";
import { huntRequests } from "../proof/sim/requests/campaign.ts";
import { REQUEST_MUTANTS } from "../proof/sim/requests/mutants.ts";
import { simulateRequests } from "../proof/sim/requests/world.ts";

test("a seed of kills, pauses and cuts breaks no law of requests, and is the same history each time", async () => {
  const history = await simulateRequests(1);
  assert.equal(history.violation, null, history.story.join("\n"));
  assert.ok(history.kills >= 3 && history.arrivals >= history.requests, JSON.stringify({ ...history, story: [] }));
  assert.deepEqual(await simulateRequests(1), history);
});

test("bugs on purpose are found, at least one by each law", async () => {
  const names = ["requestMarkLost", "requestCallbackTwice", "requestOrderForgotten", "requestFailedUnsettled"];
  const caught = await huntRequests(
    3,
    REQUEST_MUTANTS.filter(({ name }) => names.includes(name)),
  );
  assert.deepEqual(
    caught.map(({ violation }) => violation?.split(":")[0]),
    ["twice", "callback", "inversion", "lost"],
  );
});
