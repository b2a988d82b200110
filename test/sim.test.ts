// The simulator keeps its own promises: a short run breaks nothing, the same seed is the same history to the last byte, a few
// mutants of different sorts are found, and a failing seed becomes a smaller one. The long runs are `npm run sim`.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { runCampaign } from "../sim/campaign.ts";
import { exhaust } from "../sim/exhaustive/exhaust.ts";
import { type History, simulate } from "../sim/history.ts";
import { MUTANTS } from "../sim/mutants/index.ts";
import { hunt } from "../sim/mutation.ts";
import { shrink } from "../sim/shrink.ts";
import { FAULT_KINDS } from "../sim/world/faults.ts";

const SEEDS = 40;
/** Enough for the mutants below, which nearly every seed finds. */
const FOUND_WITHIN = 30;

describe("the simulator", () => {
  it("finds no broken promise, and sees takeovers, stale writes and ambiguous answers", async () => {
    const broken: History[] = [];
    const campaign = await runCampaign({
      from: 1,
      seeds: SEEDS,
      onHistory: (history) => void (history.violation === null || broken.push(history)),
    });
    assert.deepEqual(
      broken.map(({ seed, violation, story }) => `seed ${seed}: ${violation}\n${story.join("\n")}`),
      [],
    );
    assert.equal(campaign.seeds, SEEDS);
    assert.ok(campaign.takeovers > SEEDS, `${campaign.takeovers} takeovers`);
    assert.ok(campaign.staleWrites > 0, `${campaign.staleWrites} stale writes`);
    assert.ok(campaign.ambiguous > SEEDS, `${campaign.ambiguous} ambiguous answers`);
    assert.ok(campaign.void < SEEDS / 5, `${campaign.void} void seeds`);
  });

  it("tells the same seed in the same words, and another seed in others", async () => {
    for (const seed of [3, 11, 27]) {
      const [first, second] = [await simulate(seed, { keepLines: 1e6 }), await simulate(seed, { keepLines: 1e6 })];
      assert.deepEqual(first.story, second.story);
      assert.equal(first.digest, second.digest);
    }
    assert.notEqual((await simulate(3)).digest, (await simulate(4)).digest);
  });

  it("does nothing to a history whose faults are all muted", async () => {
    const { strikes, tally } = await simulate(5, {
      muted: { kinds: new Set(FAULT_KINDS) },
      temper: { workloads: ["money", "steps"] },
    });
    assert.deepEqual(strikes, []);
    assert.equal(tally.takeovers + tally.staleWrites + tally.deaths, 0);
  });

  for (const name of ["staleSaidApplied", "commitInTwoParts", "innocentsBlamed", "epochNotRaised", "clientClock"]) {
    it(`finds the mutant ${name}`, async () => {
      const mutant = MUTANTS.find((one) => one.name === name)!;
      assert.notEqual((await hunt(mutant, 1, FOUND_WITHIN)).seed, null, `not found within ${FOUND_WITHIN} seeds`);
    });
  }

  it("finds a commit in two parts in the small scope, whatever the order of the store calls", async () => {
    const mutant = MUTANTS.find(({ name }) => name === "commitInTwoParts")!;
    const { violations, story } = await exhaust({ mutant, untilFirst: true });
    assert.equal(violations, 1);
    assert.match(story.at(-1)!, /the ledger got a row/);
  });

  it("shrinks a failing seed to fewer faults and jobs that still break the same law", async () => {
    const mutant = MUTANTS.find(({ name }) => name === "innocentsBlamed")!;
    const { seed } = await hunt(mutant, 1, FOUND_WITHIN);
    const failed = await simulate(seed!, { mutant });
    const { history, options } = await shrink(failed, { mutant }, 60);
    assert.match(history.violation!, /is blamed/);
    assert.ok(history.strikes.length < failed.strikes.length, `${history.strikes.length} of ${failed.strikes.length}`);
    assert.equal((await simulate(seed!, options)).digest, history.digest);
  });
});
