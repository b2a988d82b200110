// What a salvaged file owes jobs with keys: those whose rows survive run within their limits and in their order, and one that has lost its keys is not run.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { jobKey } from "../../src/job/limits.ts";
import { systemClock } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { repairFile } from "../../src/stores/sqlite/doctor/repair.ts";
import { draft, kind, names, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { pageOf, zero } from "../support/damaged-file.ts";
import { Place } from "../support/processes.ts";

const JOBS = 400;
const KEYS = 4;

/** Loses one page of the table while one job of each key runs and the others are held, salvages, and opens again. */
async function salvaged(t: TestContext, table: string): Promise<Store> {
  const place = new Place(t);
  const store = await openStore(systemClock, place.path);
  await store.declare([kind("mail", { keyed: [limit("tenant", { running: 1 })] })]);
  await store.register(workerRecord("w"));
  await store.enqueue(names("a", JOBS).map((id, n) => draft({ id, keys: [jobKey("tenant", `key-${n % KEYS}`)] })));
  const { claimed } = await store.turn("w", [], roomFor(10));
  assert.equal(claimed.length, KEYS);
  await store.turn(
    "w",
    claimed.map((job) => SETTLE.succeed(job)),
    roomFor(0),
  );
  await store.close();
  zero(place.path, pageOf(place.path, table, "leaf"));
  const { sound } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.ok(sound);
  const again = await openStore(systemClock, place.path);
  t.after(() => again.close());
  const ofKeys = /held|door|slot|key/;
  assert.deepEqual(
    (await again.upkeep.inconsistencies!()).filter(({ what }) => ofKeys.test(what)),
    [],
  );
  return again;
}

/** Runs everything that is left, and returns it in the order in which it started. */
async function runAll(store: Store): Promise<string[]> {
  await store.register(workerRecord("again"));
  const started: string[] = [];
  let { claimed } = await store.turn("again", [], roomFor(10));
  while (claimed.length > 0) {
    assert.ok(claimed.length <= KEYS, "one of each key at a time");
    started.push(...claimed.map(({ lease }) => lease.jobId));
    const settled = claimed.map((job) => SETTLE.succeed(job));
    ({ claimed } = await store.turn("again", settled, roomFor(10)));
  }
  return started;
}

test("entries of doors that are lost are made again from the jobs, and every job runs in its order", async (t) => {
  const store = await salvaged(t, "outlive_doors");
  const started = await runAll(store);
  assert.deepEqual(started.toSorted(), names("a", JOBS).slice(KEYS));
  for (let key = 0; key < KEYS; key++) {
    const own = started.filter((id) => (Number(id.slice(1)) - 1) % KEYS === key);
    assert.deepEqual(own, own.toSorted());
  }
});

test("a job whose keys are lost is quarantined, and all others run within their limits", async (t) => {
  const store = await salvaged(t, "outlive_extras");
  const started = await runAll(store);
  const [counts] = await store.inspect.counts();
  assert.equal(counts!.held, 0);
  assert.ok(counts!.quarantined > 0, "some have lost their keys");
  assert.equal(started.length + counts!.quarantined, JOBS - KEYS);
  const { jobs } = await store.inspect.list({ state: "quarantined" }, 1, null);
  assert.match(jobs[0]!.error!.message, /keys.*are lost/);
});
