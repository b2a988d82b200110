// Many slots are filled without holding up whatever else the process does: a count of what happens between two turns of the event loop holds on any machine.
import assert from "node:assert/strict";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";

const SLOTS = 5_000;
/** As many as one turn claims (worker/loop.ts). A job of this size takes some microseconds, so that all of them take less than 50 ms. */
const AT_ONCE = 500;

test("of 5,000 jobs that fill a worker at once, no more than 500 start before the event loop goes on", async () => {
  const held = Promise.withResolvers<void>();
  const all = Promise.withResolvers<void>();
  const plain = job<{ n: number }>("plain");
  let started = 0;
  let since = 0;
  let most = 0;
  plain.handle(() => {
    since++;
    if (++started === SLOTS) all.resolve();
    return held.promise;
  });
  await using engine = await open("sqlite::memory:", { jobs: [plain], logger: false });
  await engine.enqueueMany(
    plain,
    Array.from({ length: SLOTS }, (_, n) => ({ n })),
  );
  let goesOn = true;
  const turned = (): void => {
    most = Math.max(most, since);
    since = 0;
    if (goesOn) setImmediate(turned);
  };
  turned();
  await engine.start({ concurrency: SLOTS });
  await all.promise;
  turned();
  goesOn = false;
  held.resolve();
  assert.ok(most > 0 && most <= AT_ONCE, `${most} jobs started in one turn of the event loop`);
});
