// Holds the purge of what is old: in batches, until there is no more, and never without an end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { purgeOld } from "../../src/recovery/retention.ts";
import type { PurgeRequest, Store } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fakeStore } from "../support/samples.ts";

const times = { finishedMs: 604_800_000, incidentsMs: 7_776_000_000 };

/** A sweep in which no time passes but that of its own pauses. */
async function purge(store: Store, goOn?: () => boolean) {
  const clock = virtualClock();
  const purged = purgeOld({ store, clock }, times, goOn);
  const ended = purged.then(
    () => true,
    () => true,
  );
  while (!(await Promise.race([ended, clock.advance(100).then(() => false)])));
  return purged;
}

test("it goes on until the store has no more, and adds up what went", async () => {
  const asked: PurgeRequest[] = [];
  const store = fakeStore({
    purge: (request) => {
      asked.push(request);
      return Promise.resolve({ jobs: 500, incidents: 2, more: asked.length < 4 });
    },
  });
  assert.deepEqual(await purge(store), { jobs: 2_000, incidents: 8, refused: null, more: false });
  assert.equal(asked.length, 4);
  for (const request of asked) {
    assert.deepEqual(request, { finishedOlderThanMs: 604_800_000, incidentsOlderThanMs: 7_776_000_000, limit: 500 });
  }
});

test("a batch that removed nothing but says that there is more is not the end", async () => {
  let batches = 0;
  const store = fakeStore({ purge: () => Promise.resolve({ jobs: 0, incidents: 0, more: ++batches < 3 }) });
  await purge(store);
  assert.equal(batches, 3);
});

test("one sweep ends after two hundred batches, whatever is left", async () => {
  let batches = 0;
  const store = fakeStore({ purge: () => (batches++, Promise.resolve({ jobs: 1, incidents: 0, more: true })) });
  assert.deepEqual(await purge(store), { jobs: 200, incidents: 0, refused: null, more: true });
  assert.equal(batches, 200);
});

test("a store that deletes more at once is asked for that, as seldom as makes the same pace, and a sweep of it ends after as many jobs", async () => {
  const asked: [limit: number, mono: number][] = [];
  const clock = virtualClock();
  const store = fakeStore({
    purgesAtOnce: 2_000,
    purge: ({ limit }) => {
      asked.push([limit, clock.mono()]);
      return Promise.resolve({ jobs: limit, incidents: 0, more: true });
    },
  });
  const purged = purgeOld({ store, clock }, times);
  const ended = purged.then(() => true);
  while (!(await Promise.race([ended, clock.advance(10).then(() => false)])));
  assert.deepEqual(await purged, { jobs: 100_000, incidents: 0, refused: null, more: true });
  assert.equal(asked.length, 50);
  assert.ok(asked.every(([limit]) => limit === 2_000));
  assert.ok(asked.slice(1).every(([, mono], i) => mono - asked[i]![1] >= 160));
});

test("a store that fails ends the sweep with its error", async () => {
  const store = fakeStore({ purge: () => Promise.reject(new Error("busy")) });
  await assert.rejects(purge(store), /busy/);
});

test("a job that can't be deleted does not end the sweep: the first of them comes out, with how many there were", async () => {
  let batches = 0;
  const error = { name: "Error", message: "FOREIGN KEY constraint failed" };
  const store = fakeStore({
    purge: () =>
      Promise.resolve({
        jobs: 4,
        incidents: 0,
        more: ++batches < 3,
        ...(batches > 1 && { refused: { jobs: 2, jobId: `job-${batches}`, error } }),
      }),
  });
  assert.deepEqual(await purge(store), {
    jobs: 12,
    incidents: 0,
    refused: { jobs: 4, jobId: "job-2", error },
    more: false,
  });
});

test("between two batches other processes get at the store, and the sweep ends as soon as `goOn` says no", async () => {
  const at: number[] = [];
  const clock = virtualClock();
  const store = fakeStore({
    purge: () => (at.push(clock.mono()), Promise.resolve({ jobs: 1, incidents: 0, more: true })),
  });
  const purged = purgeOld({ store, clock }, times, () => at.length < 3);
  await clock.advance(1_000);
  await purged;
  assert.equal(at.length, 3);
  assert.ok(
    at[1]! - at[0]! > 10 && at[2]! - at[1]! > 10,
    "longer than a process waits between two tries for the write lock",
  );
});
