// A process is killed with SIGKILL before or after the commit of a transaction that ends a job from which another follows. Both are there, or
// neither is; and in the end what follows has run once.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Engine } from "../../src/index.ts";
import { followerOf } from "../support/following.ts";
import { stepped, transfer } from "../support/jobs.ts";
import { Place, untilState } from "../support/processes.ts";

/** Nothing that the child does enqueues, except what follows. */
const FOLLOWS = "INSERT INTO outlive_jobs";

const ENDS = {
  "a turn": (engine: Engine) => engine.enqueue(stepped, {}),
  "a commit": (engine: Engine) => engine.enqueue(transfer, { n: 7 }),
} as const;

for (const [how, enqueue] of Object.entries(ENDS))
  for (const when of ["before", "after"] as const)
    test(`a job that ${how} ends, killed ${when} its commit, is ended together with what follows or not at all`, async (t) => {
      const { place, engine } = await prepared(t);
      const { id } = await enqueue(engine);
      const next = followerOf(id);
      // It does not run what follows, which its last turn would claim at once.
      const only = [stepped.name, transfer.name];
      const child = place.child({ killAt: `${when}:${FOLLOWS}`, follows: true, only });
      assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");
      assert.deepEqual(
        [(await engine.get(id))?.state, (await engine.get(next))?.state],
        when === "before" ? ["running", undefined] : ["succeeded", "queued"],
      );

      await place.child({ follows: true }).untilFact("working");
      await untilState(engine, id, "succeeded");
      await untilState(engine, next, "succeeded");
      assert.equal((await engine.get(id))?.attempt, when === "before" ? 2 : 1);
      assert.equal((await engine.get(next))?.attempt, 1);
      assert.equal(place.effects().get(`compute ${next} attempt 1`), 1);
      assert.equal((await engine.list()).jobs.length, 2);
      if (how === "a commit") assert.deepEqual(await place.ledgerRows(engine), [{ job: id, n: 7 }]);
    });

for (const when of ["before", "after"] as const)
  test(`a recovery killed ${when} its commit has taken the job back together with what follows or not at all`, async (t) => {
    const { place, engine } = await prepared(t);
    const { id } = await engine.enqueue(stepped, { stopAt: "end" });
    const next = followerOf(id);
    const victim = place.child();
    await victim.untilFact("waiting", { point: "end" });
    victim.kill();
    await victim.exited;
    const first = place.child({ killAt: `${when}:${FOLLOWS}`, follows: true, recoverOnly: true });
    assert.equal((await first.exited).signal, "SIGKILL", "the recovery died at the point");
    assert.deepEqual(
      [(await engine.get(id))?.state, (await engine.get(next))?.state],
      when === "before" ? ["running", undefined] : ["queued", "queued"],
    );

    const second = place.child({ follows: true, recoverOnly: true });
    await second.untilFact("open");
    const job = await engine.get(id);
    assert.deepEqual([job?.state, job?.counters.crashes], ["queued", 1]);
    assert.equal((await engine.get(next))?.state, "queued");
    assert.equal((await engine.list()).jobs.length, 2);
  });

async function prepared(t: TestContext): Promise<{ place: Place; engine: Engine }> {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  return { place, engine };
}
