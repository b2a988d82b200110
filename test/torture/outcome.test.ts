// The end of a run: what a program finds on the last line, and what a person reads.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { jsonLine, text } from "../../proof/torture/processes/outcome.ts";
import type { Outcome } from "../../proof/torture/processes/rig.ts";

const none = { p50: null, p99: null, max: null };

function outcome(given: Partial<Outcome> = {}): Outcome {
  return {
    store: "sqlite",
    seed: 7,
    kills: 30,
    zombies: 4,
    takeovers: 21,
    staleWritesRejected: 3,
    enqueued: 900,
    lost: 0,
    committedTwice: 0,
    quarantined: 2,
    quarantinedInnocents: 0,
    poison: 2,
    blamedWithoutDeath: 0,
    faults: { reset: 3, clock: 0 },
    detectMs: { p50: 12, p99: 90, max: 91 },
    resumeMs: { p50: 130, p99: 700, max: 800 },
    timed: 17,
    resumeMsDuringFaults: { timed: 3, p50: 900, p99: 2_000, max: 2_000 },
    resumeMsRecovererKilled: { timed: 1, p50: 950, p99: 950, max: 950 },
    resumeMsNobodyLeft: { timed: 0, ...none },
    resumeMsOfAll: { timed: 21, p50: 140, p99: 2_000, max: 2_000 },
    slowest: [],
    violations: [],
    acts: new Map([["kill a worker", 12]]),
    elapsedMs: 61_400,
    notRun: ["power loss: elsewhere"],
    ...given,
  };
}

describe("the outcome of a run", () => {
  it("has on its last line every key that was promised, and the group of every kill that was timed", () => {
    const line = jsonLine(outcome());
    assert.doesNotMatch(line, /\n/);
    const parsed = JSON.parse(line) as Record<string, unknown>;
    const { timed, resumeMsDuringFaults, resumeMsRecovererKilled, resumeMsNobodyLeft, resumeMsOfAll, ...promised } =
      parsed;
    assert.deepEqual(promised, {
      store: "sqlite",
      seed: 7,
      kills: 30,
      zombies: 4,
      takeovers: 21,
      staleWritesRejected: 3,
      enqueued: 900,
      lost: 0,
      committedTwice: 0,
      quarantined: 2,
      quarantinedInnocents: 0,
      poison: 2,
      blamedWithoutDeath: 0,
      faults: { reset: 3, clock: 0 },
      detectMs: { p50: 12, p99: 90, max: 91 },
      resumeMs: { p50: 130, p99: 700, max: 800 },
      notRun: ["power loss: elsewhere"],
    });
    assert.equal(timed, 17);
    assert.deepEqual(resumeMsDuringFaults, { timed: 3, p50: 900, p99: 2_000, max: 2_000 });
    assert.deepEqual(resumeMsRecovererKilled, { timed: 1, p50: 950, p99: 950, max: 950 });
    assert.deepEqual(resumeMsNobodyLeft, { timed: 0, p50: null, p99: null, max: null });
    assert.deepEqual(resumeMsOfAll, { timed: 21, p50: 140, p99: 2_000, max: 2_000 });
  });

  it("tells a person what was done, what came of it, what was not measured and what was not run", () => {
    const said = text(outcome());
    assert.match(said, /^sqlite: .*--seed 7, 61 s$/m);
    assert.match(said, /^ +12 {2}kill a worker$/m);
    assert.match(said, /from the kill to the last job running again 130 \/ 700 \/ 800 ms .*of 17 kills/);
    assert.match(said, /when everybody was killed, .*not measured/);
    assert.match(said, /^not run: power loss: elsewhere$/m);
    assert.match(said, /\nEvery promise held\.$/);
  });

  it("never says that every promise held next to a violation", () => {
    const said = text(outcome({ violations: ["job a is still queued", "job b is still queued"] }));
    assert.match(said, /^violation: job a is still queued$/m);
    assert.match(said, /\n2 things went wrong\.$/);
    assert.doesNotMatch(said, /Every promise held/);
  });
});
