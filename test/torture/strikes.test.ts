// When the store was broken on purpose: what is measured of a well store must not be measured then.
import assert from "node:assert/strict";
import { describe, it, type TestContext } from "node:test";
import { Chance } from "../../src/demo/chance.ts";
import { type Fault, Strikes } from "../../src/torture/strikes.ts";

interface Held {
  readonly fault: Fault;
  readonly mend: () => void;
}

/** A fault that lasts until it is mended. */
function held(name: string, aftermathMs: number): Held {
  const { promise, resolve } = Promise.withResolvers<void>();
  return { fault: { name, weight: 1, aftermathMs, strike: () => promise }, mend: resolve };
}

function strikesAt(t: TestContext, now: number): Strikes {
  t.mock.timers.enable({ apis: ["Date"], now });
  return new Strikes(new Chance(1), new AbortController().signal);
}

describe("the strikes of a run", () => {
  it("fall into every time that touches them, from their first instant to the last of their aftermath", async (t) => {
    const strikes = strikesAt(t, 10_000);
    const { fault, mend } = held("server frozen", 500);
    strikes.begin(fault);
    t.mock.timers.setTime(12_000);
    mend();
    await strikes.finished();
    for (const [from, to] of [
      [9_000, 10_000],
      [10_500, 11_000],
      [9_000, 20_000],
      [12_500, 13_000],
    ] as const)
      assert.deepEqual(strikes.during(from, to), ["server frozen"], `${from} to ${to}`);
    assert.deepEqual(strikes.during(8_000, 9_999), [], "it had not begun");
    assert.deepEqual(strikes.during(12_501, 13_000), [], "its aftermath was over");
  });

  it("last as long as nothing is mended", (t) => {
    const strikes = strikesAt(t, 10_000);
    assert.ok(strikes.storeIsWell);
    strikes.begin(held("disk full", 500).fault);
    assert.deepEqual(strikes.during(1e12, 1e12), ["disk full"]);
    t.mock.timers.setTime(1e12);
    assert.equal(strikes.storeIsWell, false);
    assert.equal(strikes.mayBegin, false);
  });

  it("are told each by its name, and the next waits until the calm after the last is over", async (t) => {
    const strikes = strikesAt(t, 10_000);
    for (const [name, at] of [
      ["cut", 20_000],
      ["delayed", 60_000],
    ] as const) {
      t.mock.timers.setTime(at);
      assert.ok(strikes.mayBegin, name);
      const { fault, mend } = held(name, 100);
      strikes.begin(fault);
      mend();
      await strikes.finished();
      assert.equal(strikes.mayBegin, false);
      t.mock.timers.setTime(at + 101);
      assert.ok(strikes.storeIsWell);
      assert.equal(strikes.mayBegin, false, "there is calm between two");
    }
    assert.deepEqual(strikes.during(20_000, 60_000), ["cut", "delayed"]);
    assert.deepEqual(strikes.during(20_000, 59_999), ["cut"]);
  });
});
