// C10: with a single worker everything waited for the suspects, one after the other, also jobs of a higher priority.
import assert from "node:assert/strict";
import { test } from "node:test";
import { seenWithin, STORES, suspectScene } from "./suspects.ts";

const LIMIT_MS = 15_000;
/** Longer than a worker runs suspects before ordinary jobs of the same priority have their turn. */
const ROUND_MS = 5_500;

for (const store of STORES) {
  test(`C10: on ${store} ordinary jobs of a higher priority run before the suspects, and suspects of a higher priority before ordinary jobs`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick, release } = await suspectScene(t, store);
    const low = await enqueueHeld({ suspect: true });
    const middle = await enqueueHeld({ suspect: true, priority: 5 });
    const urgent = await Promise.all(Array.from({ length: 5 }, () => enqueueQuick(1_000)));
    const ordinary = await enqueueQuick(1);
    await engine.start({ concurrency: 5 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length >= 6,
    );
    assert.deepEqual([started.slice(0, 5).toSorted(), started.slice(5)], [urgent.toSorted(), [middle]]);
    release(middle);
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length >= 8,
    );
    assert.deepEqual(started.slice(6), [ordinary, low]);
    release(low);
  });

  test(`C10: on ${store} ordinary jobs have their turn after a suspect, before the next suspect of the same priority`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick, release } = await suspectScene(t, store);
    const suspects = [await enqueueHeld({ suspect: true }), await enqueueHeld({ suspect: true })];
    const ordinary = await Promise.all(Array.from({ length: 5 }, () => enqueueQuick()));
    await engine.start({ concurrency: 5 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length > 0,
    );
    assert.deepEqual(started, [suspects[0]]);
    await new Promise((resolve) => setTimeout(resolve, ROUND_MS));
    release(suspects[0]!);
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.length === 7,
    );
    assert.deepEqual([started.slice(1, 6).toSorted(), started.slice(6)], [ordinary.toSorted(), [suspects[1]]]);
    release(suspects[1]!);
  });
}
