// The strikes of a run: how many for this many kills, which, and when the store was broken on purpose, because what is measured of a well
// store must not be measured then.
import assert from "node:assert/strict";
import { describe, it, type TestContext } from "node:test";
import { type Fault, type FaultContext, FaultSchedule, NotDone } from "../../proof/torture/processes/fault-schedule.ts";
import type { Place, RigFleet } from "../../proof/torture/processes/fleet.ts";
import { Killer } from "../../proof/torture/processes/killer.ts";
import type { Engine } from "../../src/index.ts";
import { Chance } from "../../src/torture/killer.ts";

interface Held {
  readonly fault: Fault;
  readonly mend: () => void;
}

/** A fault that lasts until it is repaired. */
function held(name: string, aftermathMs: number): Held {
  const { promise, resolve } = Promise.withResolvers<void>();
  return { fault: { key: name, name, aftermathMs, strike: () => promise }, mend: resolve };
}

/** Faults that end at once. */
function brief(...names: readonly string[]): Fault[] {
  return names.map((name) => ({ key: name, name, aftermathMs: 0, strike: async () => {} }));
}

const PLENTY = 1_000;
const NO_CONTEXT = {} as FaultContext;

function strikesAt(
  t: TestContext,
  now: number,
  faults: readonly Fault[],
  { seed = 1, rounds = null }: { readonly seed?: number; readonly rounds?: number | null } = {},
): FaultSchedule {
  t.mock.timers.enable({ apis: ["Date"], now });
  return new FaultSchedule(faults, new Chance(seed), new AbortController().signal, NO_CONTEXT, rounds);
}

/** So many kills, one every `msPerKill`; returns the strikes with the kill at which each began. */
async function strikesOf(
  t: TestContext,
  strikes: FaultSchedule,
  kills: number,
  msPerKill: number,
): Promise<[number, string][]> {
  const struck: [number, string][] = [];
  for (let kill = 0; kill < kills; kill++) {
    const name = strikes.beginIfDue(kill);
    if (name !== null) struck.push([kill, name]);
    await strikes.finished();
    t.mock.timers.tick(msPerKill);
  }
  return struck;
}

const TWELVE = "kill,stop,freeze,fill,delay,cut all,cut some,cut inside,swallow,reset,clock,frozen commit".split(",");
const SLOW_MS = 640;

describe("the strikes of a run", () => {
  it("fall into every time that touches them, from their first instant to the last of their aftermath", async (t) => {
    const { fault, mend } = held("server frozen", 500);
    const strikes = strikesAt(t, 10_000, [fault]);
    assert.equal(strikes.beginIfDue(PLENTY), "server frozen");
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

  it("last as long as nothing is repaired", (t) => {
    const strikes = strikesAt(t, 10_000, [held("disk full", 500).fault]);
    assert.ok(strikes.storeIsWell);
    strikes.beginIfDue(PLENTY);
    assert.deepEqual(strikes.during(1e12, 1e12), ["disk full"]);
    t.mock.timers.setTime(1e12);
    assert.equal(strikes.storeIsWell, false);
    assert.equal(strikes.beginIfDue(PLENTY), null);
  });

  it("are reported each by its name, and the next waits until the calm after the last has passed", async (t) => {
    const both = [held("cut", 100), held("delayed", 100)];
    const strikes = strikesAt(
      t,
      10_000,
      both.map(({ fault }) => fault),
    );
    const begun: (string | null)[] = [];
    for (const at of [20_000, 60_000]) {
      t.mock.timers.setTime(at);
      begun.push(strikes.beginIfDue(PLENTY));
      for (const { mend } of both) mend();
      await strikes.finished();
      t.mock.timers.setTime(at + 101);
      assert.ok(strikes.storeIsWell);
      assert.equal(strikes.beginIfDue(PLENTY), null, "there is calm between two");
    }
    assert.deepEqual(new Set(begun), new Set(["cut", "delayed"]));
    assert.deepEqual(strikes.during(20_000, 60_000), begun);
    assert.deepEqual(strikes.during(20_000, 59_999), begun.slice(0, 1));
  });

  it("are each once before any comes again, so that 200 kills meet all twelve and 5,000 each of them 10 times", async (t) => {
    for (const seed of [1, 2, 3, 20_261_116]) {
      const strikes = strikesAt(t, 10_000, brief(...TWELVE), { seed });
      const struck = await strikesOf(t, strikes, 5_000, SLOW_MS);
      const names = struck.map(([, name]) => name);
      for (let from = 0; from + TWELVE.length <= names.length; from += TWELVE.length)
        assert.deepEqual(names.slice(from, from + TWELVE.length).toSorted(), TWELVE.toSorted(), `seed ${seed}`);
      const early = new Set(struck.filter(([kill]) => kill < 200).map(([, name]) => name));
      assert.equal(early.size, TWELVE.length, `in 200 kills, seed ${seed}`);
      assert.ok(
        TWELVE.every((name) => strikes.done.get(name)! >= 10),
        JSON.stringify([...strikes.done]),
      );
      assert.deepEqual(strikes.counts, Object.fromEntries(strikes.done));
      const soon = struck.filter(([kill]) => kill < 30).length;
      assert.ok(soon >= 1 && soon <= 3, `${soon} in 30 kills, seed ${seed}`);
      t.mock.timers.reset();
    }
  });

  it("are the same for the same seed, at whatever pace and however often a fault asks chance", async (t) => {
    const fickle = brief(...TWELVE).map((fault, at) => ({
      ...fault,
      strike: async (chance: Chance) => void (at % 2 === 0 && chance.next()),
    }));
    const plans: [number, string][][] = [];
    for (const [faults, ms] of [
      [brief(...TWELVE), SLOW_MS],
      [fickle, 4 * SLOW_MS],
    ] as const) {
      plans.push(await strikesOf(t, strikesAt(t, 10_000, faults), 500, ms));
      t.mock.timers.reset();
    }
    assert.deepEqual(plans[1], plans[0]);
    const other = await strikesOf(t, strikesAt(t, 10_000, brief(...TWELVE), { seed: 2 }), 500, SLOW_MS);
    assert.notDeepEqual(other, plans[0]);
  });

  it("that could not be done are not counted, and reported with the reason", async (t) => {
    const strike = async (): Promise<void> => {
      throw new NotDone("it grew");
    };
    const strikes = strikesAt(t, 10_000, [{ key: "fill", name: "fill", aftermathMs: 0, strike }]);
    strikes.beginIfDue(PLENTY);
    await strikes.finished();
    assert.deepEqual([...strikes.done], []);
    assert.deepEqual(strikes.undone, [{ name: "fill", why: "it grew" }]);
    assert.deepEqual(strikes.counts, { fill: 0 });
  });

  it("that were not drawn or could not be done are what was not run", async () => {
    const faults: Fault[] = ["done", "undone"].map((name) => ({
      key: name,
      name,
      aftermathMs: 0,
      strike: async () => {
        if (name === "undone") throw new NotDone("it grew");
      },
    }));
    const signal = AbortSignal.abort();
    const options = { kills: 1, rounds: 1, seed: 1, faults, signal, tell: () => {}, note: () => {} };
    const fleet = { kills: [], places: () => [] } as unknown as RigFleet;
    for (const name of ["done", "undone"]) {
      const killer = new Killer({} as Engine, fleet, {
        ...options,
        faults: faults.filter((fault) => fault.name === name),
      });
      assert.ok(killer.notRun.includes(`${name}: not drawn in this run`));
      killer.faultSchedule.beginIfDue(PLENTY);
      await killer.run();
      const told = killer.notRun.filter((what) => what.startsWith(name));
      assert.deepEqual(told, name === "done" ? [] : ["undone: could not be done (it grew)"]);
      assert.equal(killer.acts.get(name), name === "done" ? 1 : undefined);
    }
  });

  it("that could not be repaired end the run", async (t) => {
    const strike = async (): Promise<void> => {
      throw new Error("the server does not start");
    };
    const strikes = strikesAt(t, 10_000, [{ key: "kill", name: "kill", aftermathMs: 0, strike }]);
    strikes.beginIfDue(PLENTY);
    await assert.rejects(strikes.finished(), /the server does not start/);
    assert.throws(() => strikes.beginIfDue(0), /the server does not start/);
    assert.deepEqual([...strikes.done], []);
  });

  it("come each so many times, at once and without calm, where no process is killed", async (t) => {
    const strikes = strikesAt(t, 10_000, brief("reset", "clock"), { rounds: 2 });
    const struck: (string | null)[] = [];
    while (strikes.owes(0)) {
      struck.push(strikes.beginIfDue(0));
      await strikes.finished();
    }
    assert.deepEqual(new Set(struck.slice(0, 2)), new Set(["clock", "reset"]));
    assert.deepEqual(strikes.counts, { reset: 2, clock: 2 });
    assert.equal(strikes.beginIfDue(PLENTY), null);
  });

  it("have a worker to themselves until they end", async (t) => {
    const place: Place = { role: "worker", number: 1, state: "live", pid: 1, workerId: "w", sinceAt: 0, deaths: 0 };
    const { promise, resolve } = Promise.withResolvers<void>();
    const strike: Fault["strike"] = async (_, __, context) => {
      context.hold(place);
      await promise;
    };
    const strikes = strikesAt(t, 10_000, [{ key: "reset", name: "reset", aftermathMs: 0, strike }]);
    strikes.beginIfDue(PLENTY);
    assert.ok(strikes.holds(place));
    resolve();
    await strikes.finished();
    assert.equal(strikes.holds(place), false);
  });

  it("that belong to the kills of a run come after them if they did not fit before", async () => {
    for (const [kills, times] of [
      [0, 2],
      [12, 1],
    ] as const) {
      const options = { kills, rounds: 2, seed: 1, faults: brief("clock"), tell: () => {}, note: () => {} };
      const fleet = { kills: Array.from({ length: kills }), places: () => [] } as unknown as RigFleet;
      const killer = new Killer({} as Engine, fleet, { ...options, signal: new AbortController().signal });
      await killer.run();
      assert.equal(killer.acts.get("clock"), times, `${kills} kills`);
    }
  });

  it("do not begin where nothing can be broken", (t) => {
    assert.equal(strikesAt(t, 10_000, []).beginIfDue(PLENTY), null);
  });
});
