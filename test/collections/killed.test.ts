// Processes that are killed with SIGKILL while they open, fill, end or clean up a collection: no part is lost, none counts twice, and the end
// comes once.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { collections } from "../support/collection-jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";

const PARTS = 6;
const DONE = `done tx ${Array.from({ length: PARTS }, (_, i) => i + 1).join(" ")}`;

async function assertSound({ path }: Place): Promise<void> {
  const store = await openStore(systemClock, path);
  try {
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  } finally {
    await store.close();
  }
}

const blobsOf = ({ folder }: Place): string[] =>
  readdirSync(join(folder, "blobs"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.parentPath.includes(".incoming"))
    .map((entry) => join(entry.parentPath, entry.name));

/** All that the collection must have come to, whatever died on the way. */
async function assertCollected(place: Place, engine: Engine): Promise<void> {
  await untilTrue(
    () => engine.collection("tx"),
    (found) => found?.state === "notified",
    "the collection is notified",
  );
  await untilTrue(
    () => engine.get("tx:done"),
    (job) => job?.state === "succeeded",
    "what follows has run",
  );
  const { series, transitions } = (await engine.collection("tx"))!;
  assert.deepEqual([series["files"]?.have, series["notes"]?.have, series["files"]?.missing], [PARTS, 1, ""]);
  assert.equal(transitions.filter(({ state }) => state === "complete").length, 1, "it became complete once");
  assert.equal(blobsOf(place).length, PARTS + 1, "one blob for each part");
  const { jobs } = await engine.list({ kind: "scan" });
  assert.equal(jobs.length, 1, "one job follows the last part");
  assert.ok(place.effects().has(DONE), "it read every part in order");
  await assertSound(place);
}

/** Where a process dies, by a statement of the transaction. The number is the N-th such transaction. */
const POINTS = {
  "the collection is opened": "INSERT INTO outlive_collections",
  "its producer has been asked": "UPDATE outlive_collection_texts SET transitions",
  "the first part is kept": "INSERT INTO outlive_parts",
  "a part in the middle is kept": "INSERT INTO outlive_parts#4",
  "a series is announced": "UPDATE outlive_series SET expected",
  "the last part is kept": `INSERT INTO outlive_parts#${PARTS + 1}`,
} as const;

for (const [what, statement] of Object.entries(POINTS))
  for (const when of ["before", "after"] as const)
    test(`a process that is killed ${when} the commit in which ${what} loses and doubles nothing`, async (t) => {
      const place = new Place(t);
      const collect = { id: "tx", kind: "scan", parts: PARTS } as const;
      const killed = place.collectionProcess({ collect }, `${when}:${statement}`);
      assert.equal((await killed.exited).signal, "SIGKILL", "it died at the point");
      const engine = await place.engine({ jobs: collections, blobs: join(place.folder, "blobs") });
      place.collectionProcess({ collect });
      await assertCollected(place, engine);
    });

/** These are written by a worker, with all parts there. */
const ENDS = {
  "the collection becomes complete": "INSERT INTO outlive_jobs .*#2",
  "it is notified": "VALUES \\(0, \\?7",
} as const;

for (const [what, statement] of Object.entries(ENDS))
  for (const when of ["before", "after"] as const)
    test(`a worker that is killed ${when} the commit in which ${what} is followed by another, and the end comes once`, async (t) => {
      const place = new Place(t);
      const collect = { id: "tx", kind: "scan", parts: PARTS } as const;
      const killed = place.collectionProcess({ collect }, `${when}:${statement}`);
      assert.equal((await killed.exited).signal, "SIGKILL", "it died at the point");
      const engine = await place.engine({ jobs: collections, blobs: join(place.folder, "blobs") });
      // Nothing is put again: all parts were durable.
      place.collectionProcess();
      await assertCollected(place, engine);
    });

test("a putter that dies after the last part, before it looks whether the set is complete: any worker finds the end", async (t) => {
  const place = new Place(t);
  const collect = { id: "tx", kind: "scan", parts: PARTS } as const;
  const killed = place.collectionProcess({ collect, works: false }, `after:INSERT INTO outlive_parts#${PARTS + 1}`);
  assert.equal((await killed.exited).signal, "SIGKILL", "it died at the point");
  const engine = await place.engine({ jobs: collections, blobs: join(place.folder, "blobs") });
  assert.equal((await engine.collection("tx"))?.state, "collecting", "nothing has looked yet");
  place.collectionProcess();
  await assertCollected(place, engine);
});

for (const when of ["before", "after"] as const)
  test(`a clean-up that is killed ${when} the commit in which parts are deleted leaves the rest to another, and nothing is left`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine({ jobs: collections, blobs: join(place.folder, "blobs") });
    const collect = { id: "tx", kind: "brief", parts: 3 } as const;
    await place.collectionProcess({ collect, works: false }).untilFact("collected");
    const killed = place.collectionProcess({}, `${when}:DELETE FROM outlive_parts`);
    assert.equal((await killed.exited).signal, "SIGKILL", "it died at the point");
    place.collectionProcess();
    await untilTrue(
      () => engine.collection("tx"),
      (found) => found === null,
      "the collection is cleaned up",
    );
    assert.deepEqual(blobsOf(place), []);
    assert.equal(place.effects().get("abandoned tx 4"), 1);
    await assertSound(place);
  });
