// The simulator keeps its own promises: a short run breaks nothing, the same seed is the same history to the last byte, the
// histories are worth something, and every planted bug is found. The long runs are `npm run sim`.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { runCampaign } from "../sim/campaign.ts";
import { type History, simulate } from "../sim/history.ts";
import { PLANTED_BUGS } from "../sim/planted/bugs.ts";

const SEEDS = 40;
/** Within so many seeds of a world in which processes often stop with a write in their hand, every planted bug is found. */
const FOUND_WITHIN = 250;
const STALLED = 0.03;

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
    assert.ok(campaign.void < SEEDS / 10, `${campaign.void} void seeds`);
  });

  it("tells the same seed in the same words, and another seed in others", async () => {
    for (const seed of [3, 11, 27]) {
      const [first, second] = [await simulate(seed, { keepLines: 1e6 }), await simulate(seed, { keepLines: 1e6 })];
      assert.deepEqual(first.story, second.story);
      assert.equal(first.digest, second.digest);
    }
    assert.notEqual((await simulate(3)).digest, (await simulate(4)).digest);
  });

  for (const [name, plant] of Object.entries(PLANTED_BUGS)) {
    it(`finds the planted bug ${name}`, async () => {
      const { violations } = await runCampaign({
        from: 1,
        seeds: FOUND_WITHIN,
        replayEvery: FOUND_WITHIN + 1,
        plant,
        temper: { stalled: STALLED },
        untilFirst: true,
      });
      assert.equal(violations, 1, `not found within ${FOUND_WITHIN} seeds`);
    });
  }
});
