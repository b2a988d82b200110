// A process is killed with SIGKILL at each statement by which a job begins to wait, is woken, gets children or reads a signal, before or
// after the commit. In the end the job has run each of its steps once, has the result of every child, and has read its signal once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { family } from "../support/jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";

const POINTS = {
  "begins to wait": "INSERT INTO outlive_waits",
  "gets its children": "INSERT INTO outlive_extras",
  "is woken by its children": "INSERT INTO outlive_wakes",
  "has its wakes taken": "DELETE FROM outlive_wakes",
  "reads its signal": "UPDATE outlive_signals",
} as const;

for (const [what, statement] of Object.entries(POINTS))
  for (const when of ["before", "after"] as const)
    test(`a process that is killed ${when} the commit in which a job ${what} loses and doubles nothing`, async (t) => {
      const place = new Place(t);
      const engine = await place.engine();
      const { id } = await engine.enqueue(family, null);
      await engine.signal(id, "word", "yes", { id: "once" });
      const child = place.child({ killAt: `${when}:${statement}` });
      assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");
      await engine.signal(id, "word", "yes", { id: "once" });
      place.child();
      assert.deepEqual(await engine.result(id, { timeout: "50s" }), { results: [10, 20, 30], word: "yes" });
      const effects = place.effects();
      for (const step of [`begin ${id}`, `middle ${id} 10+20+30`, `end ${id} yes`])
        assert.equal(effects.get(step), 1, `${step}: ${JSON.stringify([...effects])}`);
      const details = (await engine.get(id))!;
      assert.deepEqual([details.counters.errors, details.counters.timeouts], [0, 0]);
      assert.equal((await engine.list({ parent: id })).jobs.length, 3);
    });

test("a worker that is killed while its job waits costs the job nothing: another goes on with it", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(family, null);
  const child = place.child();
  await untilTrue(
    () => engine.get(id),
    (details) => details?.waitsAt === "run.signal(word)#1",
    "it waits for its signal",
  );
  child.kill();
  await child.exited;
  await engine.signal(id, "word", "later");
  place.child();
  assert.deepEqual(await engine.result(id, { timeout: "50s" }), { results: [10, 20, 30], word: "later" });
  const { counters } = (await engine.get(id))!;
  assert.deepEqual([counters.crashes, counters.losses, counters.interruptions], [0, 0, 0]);
});
