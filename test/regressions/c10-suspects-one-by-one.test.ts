// C10: with a single worker everything waited for the suspects, one after the other, also jobs of a higher priority.
import assert from "node:assert/strict";
import { test } from "node:test";
import { seenWithin, STORES, suspectFixture } from "./suspects.ts";

const LIMIT_MS = 15_000;

for (const store of STORES) {
  test(`C10: on ${store} suspects and fresh jobs run by priority, and no fresh job waits for a suspect`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick, release } = await suspectFixture(t, store);
    const low = await enqueueHeld({ suspect: true });
    const middle = await enqueueHeld({ suspect: true, priority: 5 });
    const urgent = await Promise.all(Array.from({ length: 5 }, () => enqueueQuick(1_000)));
    const ordinary = await enqueueQuick(1);
    await engine.start({ concurrency: 5 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length >= 7,
    );
    assert.deepEqual([started.slice(0, 5).toSorted(), started.slice(5)], [urgent.toSorted(), [middle, ordinary]]);
    release(middle);
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length >= 8,
    );
    assert.deepEqual(started.slice(7), [low]);
    release(low);
  });

  test(`C10: on ${store} fresh jobs run next to a suspect of the same priority, and the next suspect after it`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick, release } = await suspectFixture(t, store);
    const suspects = [await enqueueHeld({ suspect: true }), await enqueueHeld({ suspect: true })];
    const fresh = await Promise.all(Array.from({ length: 5 }, () => enqueueQuick()));
    await engine.start({ concurrency: 5 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length >= 6,
    );
    assert.deepEqual(started.toSorted(), [suspects[0]!, ...fresh].toSorted());
    release(suspects[0]!);
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length === 7,
    );
    assert.deepEqual(started.slice(6), [suspects[1]]);
    release(suspects[1]!);
  });
}
