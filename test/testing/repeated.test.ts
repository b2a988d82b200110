// What counts as having happened twice: held against a run without a kill, whatever differs from run to run.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { type Effect, repeated } from "../../src/testing/crash-test/effects.ts";

/** `charge` without a key, `charge#k` under the key k. */
function effects(...texts: readonly string[]): Effect[] {
  return texts.map((text) => {
    const [what, key = null] = text.split("#");
    return { what: what!, key };
  });
}

const CASES: readonly {
  readonly what: string;
  readonly undisturbed: readonly string[];
  readonly killed: readonly string[];
  readonly twice?: readonly string[];
  readonly twiceUnderOneKey?: readonly string[];
}[] = [
  { what: "nothing, if nothing is done", undisturbed: [], killed: [] },
  { what: "nothing, if all is as it was", undisturbed: ["a", "a", "b#1", "b#1"], killed: ["b#1", "a", "b#1", "a"] },
  { what: "a thing without a key, once more", undisturbed: ["a"], killed: ["a", "a"], twice: ["a"] },
  {
    what: "a thing done twice on purpose, a third time",
    undisturbed: ["a", "a"],
    killed: ["a", "a", "a"],
    twice: ["a"],
  },
  { what: "a key, once more", undisturbed: ["a#1"], killed: ["a#1", "a#1"], twiceUnderOneKey: ["a"] },
  { what: "a new key of the same thing", undisturbed: ["a#1"], killed: ["a#1", "a#2"], twice: ["a"] },
  { what: "nothing, if each run has keys of its own", undisturbed: ["a#1", "a#2"], killed: ["a#3", "a#4"] },
  {
    what: "a key of the run's own, once more",
    undisturbed: ["a#1", "a#2"],
    killed: ["a#3", "a#3", "a#4"],
    twiceUnderOneKey: ["a"],
  },
  {
    what: "both, where a key is used again and a new one comes",
    undisturbed: ["a#1"],
    killed: ["a#1", "a#1", "a#2"],
    twice: ["a"],
    twiceUnderOneKey: ["a"],
  },
  { what: "a thing that lost its key", undisturbed: ["a#1"], killed: ["a#1", "a"], twice: ["a"] },
  { what: "nothing, if the text is the run's own", undisturbed: ["a of 1", "b"], killed: ["a of 2", "b"] },
  {
    what: "a text of the run's own, once more",
    undisturbed: ["a of 1"],
    killed: ["a of 2", "a of 2"],
    twice: ["a of 2"],
  },
  { what: "a text of each attempt's own", undisturbed: ["a of 1"], killed: ["a of 2", "a of 3"], twice: ["a of 3"] },
  {
    what: "a text of the run's own under one key, once more",
    undisturbed: ["a of 1#k"],
    killed: ["a of 2#k", "a of 2#k"],
    twiceUnderOneKey: ["a of 2"],
  },
  { what: "a thing that the undisturbed run never did", undisturbed: ["a"], killed: ["a", "b"], twice: ["b"] },
  // What is known by its text is never taken for another one's place.
  { what: "a known thing beside one that is missing", undisturbed: ["a", "b"], killed: ["a", "a"], twice: ["a"] },
];

describe("what happened twice", () => {
  for (const { what, undisturbed, killed, twice = [], twiceUnderOneKey = [] } of CASES)
    it(`is ${what}`, () => {
      assert.deepEqual(repeated(effects(...undisturbed), effects(...killed)), { twice, twiceUnderOneKey });
    });
});
