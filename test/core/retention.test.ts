// Holds the purge of what is old: in batches, until there is no more, and never without an end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { purgeOld } from "../../src/core/retention.ts";
import type { PurgeRequest } from "../../src/core/store.ts";
import { fakeStore } from "./samples.ts";

const times = { finishedMs: 604_800_000, incidentsMs: 7_776_000_000 };

test("it goes on until the store has no more, and adds up what went", async () => {
  const asked: PurgeRequest[] = [];
  const store = fakeStore({
    purge: (request) => {
      asked.push(request);
      return Promise.resolve({ jobs: 500, incidents: 2, more: asked.length < 4 });
    },
  });
  assert.deepEqual(await purgeOld(store, times), { jobs: 2_000, incidents: 8 });
  assert.equal(asked.length, 4);
  for (const request of asked) {
    assert.deepEqual(request, { finishedOlderThanMs: 604_800_000, incidentsOlderThanMs: 7_776_000_000, limit: 500 });
  }
});

test("a batch that removed nothing but says that there is more is not the end", async () => {
  let batches = 0;
  const store = fakeStore({ purge: () => Promise.resolve({ jobs: 0, incidents: 0, more: ++batches < 3 }) });
  await purgeOld(store, times);
  assert.equal(batches, 3);
});

test("one sweep ends after two hundred batches, whatever is left", async () => {
  let batches = 0;
  const store = fakeStore({ purge: () => (batches++, Promise.resolve({ jobs: 1, incidents: 0, more: true })) });
  assert.deepEqual(await purgeOld(store, times), { jobs: 200, incidents: 0 });
  assert.equal(batches, 200);
});

test("a store that fails ends the sweep with its error", async () => {
  const store = fakeStore({ purge: () => Promise.reject(new Error("busy")) });
  await assert.rejects(purgeOld(store, times), /busy/);
});
