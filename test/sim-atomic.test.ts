// The real engine on a store in the shape of Redis, whose server fails over and loses its latest scripts. The long runs are
// `npm run sim -- --store atomic`.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { runAtomic, simulateAtomic } from "../proof/sim/atomic.ts";
import { ATOMIC_MUTANTS } from "../proof/sim/mutants/atomic.ts";
import { AtomicServer } from "../proof/sim/stores/atomic-server.ts";

const SEEDS = 15;

describe("the simulator on the atomic store", () => {
  it("finds no broken promise, and sees failovers, takeovers and stale writes", async () => {
    const { broken, failovers, lostScripts, takeovers, staleWrites } = await runAtomic(1, SEEDS);
    assert.deepEqual(broken, []);
    assert.ok(failovers > SEEDS, `${failovers} failovers`);
    assert.ok(lostScripts > SEEDS, `${lostScripts} lost scripts`);
    assert.ok(takeovers > SEEDS, `${takeovers} takeovers`);
    assert.ok(staleWrites > 0, `${staleWrites} stale writes`);
  });

  it("tells the same history for the same seed", async () => {
    for (const seed of [1, 2]) {
      const [one, other] = [await simulateAtomic(seed), await simulateAtomic(seed)];
      assert.equal(one.digest, other.digest);
    }
  });

  it("sees a failover that the server hides: fences come again, or workers of before are believed", async () => {
    class Hiding extends AtomicServer {
      override get run(): string {
        return "always the same";
      }
    }
    const found: string[] = [];
    for (let seed = 1; seed <= SEEDS; seed++) {
      const { violation } = await simulateAtomic(seed, Hiding);
      if (violation !== null) found.push(violation);
    }
    assert.ok(found.length > 0, `not found within ${SEEDS} seeds`);
    for (const violation of found)
      assert.match(violation, /^Violation: .*(was claimed under|was accepted|were applied)/);
  });
});

/** Seeds that are tried for a mutant, from the one on that found it when it was written. */
const MUTANT_SEEDS = 120;

describe("the simulator on the atomic store, with a bug on purpose", () => {
  for (const { name, what, law, from, Server, of } of ATOMIC_MUTANTS)
    it(`sees ${name}: ${what}`, async () => {
      for (let seed = from; seed < from + MUTANT_SEEDS; seed++) {
        const { violation } = await simulateAtomic(seed, Server, of);
        if (violation === null || !law.test(violation.split("\n")[0]!)) continue;
        assert.equal((await simulateAtomic(seed, AtomicServer, of)).violation, null, `seed ${seed} without the bug`);
        return;
      }
      assert.fail(`not found with the seeds ${from} to ${from + MUTANT_SEEDS - 1}`);
    });
});
