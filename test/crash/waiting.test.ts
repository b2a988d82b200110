// A process is killed with SIGKILL at each statement by which a job begins to wait, is woken, gets children or reads a signal, before or
// after the commit. In the end the job has run each of its steps once, has the result of every child, and has read its signal once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { crowd, family, ward } from "../support/jobs.ts";
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

/** Each point is passed several times: the process dies at the first piece, and others go on. */
for (const [what, statement] of Object.entries({
  "in the first piece": "UPDATE outlive_family_cancels SET cursor",
  "at the end of the last piece": "DELETE FROM outlive_family_cancels",
}))
  for (const when of ["before", "after"] as const)
    test(`a worker that is killed ${when} the commit ${what} of a cancelled family leaves no child that has not begun`, async (t) => {
      const place = new Place(t);
      const engine = await place.engine();
      await engine.pause(ward);
      const { id } = await engine.enqueue(crowd, { children: 600 });
      const first = place.child();
      await untilTrue(
        () => engine.get(id),
        (details) => details?.waitsAt === "run.wait#1",
        "the parent waits for its children",
      );
      first.kill();
      await first.exited;
      assert.equal(await engine.cancel(id, { children: true }), "cancelled");
      const child = place.child({ killAt: `${when}:${statement}` });
      assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");
      place.child();
      const counted = () => engine.counts().then((kinds) => kinds.find(({ kind }) => kind === ward.name)!);
      const end = await untilTrue(counted, ({ cancelled }) => cancelled === 600, "every child is cancelled");
      assert.deepEqual([end.ready, end.running, end.succeeded], [0, 0, 0]);
      const { jobs } = await engine.list({ parent: id, limit: 1_000 });
      for (const one of [jobs[0]!, jobs[350]!, jobs.at(-1)!])
        assert.equal((await engine.get(one.id))!.history.filter(({ event }) => event === "cancel").length, 1);
    });
