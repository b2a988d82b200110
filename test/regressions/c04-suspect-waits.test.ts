// C4: one job that had to run alone stopped its worker from claiming for as long as anything else ran in that worker.
import assert from "node:assert/strict";
import { test } from "node:test";
import { seenWithin, STORES, suspectFixture } from "./suspects.ts";

/** A limit, not a wait. */
const LIMIT_MS = 15_000;

for (const store of STORES) {
  test(`C4: on ${store} a worker with a job that does not end goes on claiming although a suspect waits, and runs the suspect when no other is left`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick, release } = await suspectFixture(t, store);
    const long = await enqueueHeld();
    await engine.start({ concurrency: 10 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(long),
    );
    const first = await enqueueHeld({ suspect: true });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(first),
    );
    const second = await enqueueHeld({ suspect: true });
    const quick = await Promise.all(Array.from({ length: 5 }, () => enqueueQuick()));
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => quick.every((id) => ids.includes(id)),
    );
    assert.deepEqual(
      started.toSorted(),
      [long, first, ...quick].toSorted(),
      "fresh jobs ran, the second suspect did not",
    );
    release(first);
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(second),
    );
    assert.equal(started.at(-1), second, "although the long job still runs");
  });

  test(`C4: on ${store} why says of a suspect that waits which worker holds too many others`, async (t) => {
    const { engine, started, enqueueHeld } = await suspectFixture(t, store);
    const first = await enqueueHeld({ suspect: true });
    const worker = await engine.start({ concurrency: 10 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(first),
    );
    const second = await enqueueHeld({ suspect: true });
    const said = await engine.why(second);
    assert.equal(said?.because, "suspect");
    assert.match(said.text, new RegExp(`runs with at most 0 other such .* Worker ${worker.id} holds 1 of them`));
  });
}
