// Histories of collections: no part lost or twice, none complete early or never, one notification id, under kills, lost answers and producers that repeat,
// contradict themselves and stop; and each bug on purpose is found.
import assert from "node:assert/strict";
import { test } from "node:test";
import { huntCollections } from "../proof/sim/collections/campaign.ts";
import { simulateCollections } from "../proof/sim/collections/world.ts";

test("a seed of kills breaks no law of collections, and is the same history each time", async () => {
  const history = await simulateCollections(1);
  assert.equal(history.violation, null);
  assert.ok(history.kills > 10 && history.messages > 200, JSON.stringify(history));
  assert.deepEqual(await simulateCollections(1), history);
});

test("every bug on purpose in collections is found, by every law", async () => {
  const caught = await huntCollections(5);
  assert.deepEqual(
    caught.filter(({ seed }) => seed === null).map(({ mutant }) => mutant),
    [],
  );
  const laws = new Set(caught.map(({ violation }) => violation!.split(":")[0]));
  assert.deepEqual(laws, new Set(["early", "left", "lost", "never", "notified", "state", "twice"]));
});
