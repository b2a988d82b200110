// C14: a clean stop whose grace ends while a commit still runs costs the job nothing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { busy, hold } from "./commit-jobs.ts";
import { comes, commitPlace } from "./commit-place.ts";

for (const pool of [undefined, { max: 3 }]) {
  const where = pool ? "the user's own pool" : "the engine's own connections";
  test(`C14: a commit that outlasts a clean stop is rolled back and released, on ${where}`, async (t) => {
    const place = await commitPlace(t);
    const { engine } = place;
    const stopping = place.child({ grace: "500ms", ...(pool && { pool }) });
    await stopping.untilFact("working");
    const { id } = await engine.enqueue(hold, { ms: 600_000 });
    await stopping.untilFact("inside", { id });
    const other = place.child();
    await other.untilFact("working");
    stopping.kill("SIGTERM");
    await other.untilFact("inside", { id, attempt: 2 });
    const { counters, lastOutcome } = (await engine.get(id))!;
    assert.deepEqual(
      [counters.crashes, counters.errors, counters.interruptions],
      [0, 0, 1],
      `it was ${lastOutcome}, and that costs nothing`,
    );
    assert.deepEqual(await engine.incidents(), [], "no worker was called dead");
    assert.ok(await comes(15_000, stopping.untilFact("stopped")), "and the worker has left");
  });
}

test("C14: a statement that runs when the grace ends is ended with its transaction", async (t) => {
  const place = await commitPlace(t);
  const { engine } = place;
  const stopping = place.child({ grace: "500ms" });
  await stopping.untilFact("working");
  const { id } = await engine.enqueue(busy, {});
  await stopping.untilFact("inside", { id });
  const other = place.child();
  await other.untilFact("working");
  stopping.kill("SIGTERM");
  assert.ok(await comes(15_000, other.untilFact("inside", { id, attempt: 2 })), "its job runs again");
  const { counters } = (await engine.get(id))!;
  assert.deepEqual([counters.crashes, counters.errors, counters.interruptions], [0, 0, 1]);
});
