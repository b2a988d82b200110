// C4: one job that has to run alone stopped its worker from claiming for as long as anything else ran in that worker.
import assert from "node:assert/strict";
import { test } from "node:test";
import { seenWithin, STORES, suspectScene } from "./suspects.ts";

/** Far longer than a worker empties itself at first (5 s). A limit, not a wait. */
const LIMIT_MS = 30_000;

for (const store of STORES) {
  test(`C4: on ${store} a worker with a job that does not end goes on claiming although a suspect waits, and runs the suspect when it is idle`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick, release } = await suspectScene(t, store);
    const long = await enqueueHeld();
    await engine.start({ concurrency: 10 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(long),
    );
    const suspect = await enqueueHeld({ suspect: true });
    const quick = await Promise.all(Array.from({ length: 5 }, () => enqueueQuick()));
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => quick.every((id) => ids.includes(id)),
    );
    assert.deepEqual(started.toSorted(), [long, ...quick].toSorted(), "the ordinary jobs ran, the suspect did not");
    release(long);
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(suspect),
    );
    assert.equal(started.at(-1), suspect);
  });

  test(`C4: on ${store} why names the suspect and the worker that empties itself, and says for how long at most`, async (t) => {
    const { engine, started, enqueueHeld, enqueueQuick } = await suspectScene(t, store);
    const long = await enqueueHeld();
    const worker = await engine.start({ concurrency: 10 });
    await seenWithin(
      LIMIT_MS,
      () => started,
      (ids) => ids.includes(long),
    );
    const suspect = await enqueueHeld({ suspect: true });
    const quick = await enqueueQuick();
    const said = await seenWithin(
      LIMIT_MS,
      () => engine.why(quick),
      (why) => why?.because !== "about-to-run",
    );
    assert.equal(said?.because, "waits-for-suspect");
    assert.match(said.text, new RegExp(`^Worker ${worker.id} empties itself for job ${suspect}, .* at most 1m`));
    const about = await engine.why(suspect);
    assert.equal(about?.because, "runs-alone");
    assert.match(about.text, new RegExp(`Worker ${worker.id} claims only jobs of a higher priority until it is idle`));
  });
}
