// What counts as a zombie: a worker whose work was taken while it was frozen, and that came back under a new name. A fleet and a store that do
// as the test says stand for the processes; the lease is waited out in real time.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { describe, it } from "node:test";
import type { Place, RigFleet } from "../../proof/torture/processes/fleet.ts";
import { Freezer } from "../../proof/torture/processes/freezer.ts";
import type { Engine } from "../../src/index.ts";
import { standsStill } from "../../src/torture/audit.ts";
import { Chance } from "../../src/torture/killer.ts";
import { untilTrue } from "../support/processes.ts";

/** No process has this number. */
const NOBODY = 2 ** 30;

interface Fixture {
  readonly place: Place;
  readonly freezer: Freezer;
  /** How often the place was frozen. */
  readonly freezes: () => number;
}

interface Script {
  /** Whether a write gets through while the worker is frozen. */
  readonly storeAnswers: boolean;
  /** Asked for its incidents: whether the worker was taken for dead. */
  readonly taken: (place: Place) => boolean;
  /** What the worker does when it is woken. */
  readonly woken?: (place: Place) => void;
}

function fixture({ storeAnswers, taken, woken }: Script): Fixture {
  const place: Place = { role: "worker", number: 1, state: "live", pid: NOBODY, workerId: "w1", sinceAt: 0, deaths: 0 };
  let freezes = 0;
  const fleet = {
    freeze: () => {
      freezes++;
      place.state = "frozen";
    },
    wake: () => {
      place.state = "live";
      woken?.(place);
    },
  } as unknown as RigFleet;
  const engine = {
    enqueue: () => (storeAnswers ? Promise.resolve({}) : Promise.reject(new Error("busy"))),
    incidents: async () => (taken(place) ? [{ worker: "w1", completedAt: 1 }] : []),
  } as unknown as Engine;
  const freezer = new Freezer(engine, fleet, new Chance(1), new AbortController().signal, () => {});
  return { place, freezer, freezes: () => freezes };
}

describe("a worker that is frozen", { concurrency: true }, () => {
  it("is a zombie if it was taken for dead and is back under a new name", async () => {
    const { place, freezer } = fixture({
      storeAnswers: true,
      taken: () => true,
      woken: (woken) => (woken.workerId = "w2"),
    });
    freezer.begin(place);
    assert.ok(freezer.holds(place));
    assert.equal(freezer.frozen, 1);
    await freezer.finished();
    assert.deepEqual([...freezer.ends], [["a zombie", 1]]);
    assert.equal(freezer.zombies, 1);
    assert.deepEqual([freezer.holds(place), place.state], [false, "live"]);
  });

  it("does not count if it was killed before it could wake", async () => {
    const { place, freezer } = fixture({
      storeAnswers: true,
      taken: (frozen) => {
        frozen.state = "dead";
        return true;
      },
    });
    freezer.begin(place);
    await freezer.finished();
    assert.deepEqual([...freezer.ends], [["killed meanwhile", 1]]);
    assert.equal(freezer.zombies, 0);
  });

  it("does not count if another process has its place when it wakes", async () => {
    const { place, freezer } = fixture({
      storeAnswers: true,
      taken: () => true,
      woken: (woken) => Object.assign(woken, { pid: 4712, workerId: "w2" }),
    });
    freezer.begin(place);
    await freezer.finished();
    assert.deepEqual([...freezer.ends], [["killed meanwhile", 1]]);
  });

  it("is woken at once if no other process can write while it is frozen, and given up after eight tries", async () => {
    const { place, freezer, freezes } = fixture({
      storeAnswers: false,
      taken: () => assert.fail("nobody waits for it"),
    });
    freezer.begin(place);
    await freezer.finished();
    assert.deepEqual([...freezer.ends], [["always inside a transaction", 1]]);
    assert.deepEqual([freezes(), place.state], [8, "live"]);
  });
});

it("a process stands still when all of its threads do, and does not when it was woken", async (t) => {
  const busy = `new (require("node:worker_threads").Worker)("for (;;);", { eval: true }); for (;;);`;
  const child = spawn(process.execPath, ["--eval", busy], { stdio: "ignore" });
  t.after(() => child.kill("SIGKILL"));
  const pid = child.pid!;
  assert.equal(standsStill(pid), false);
  child.kill("SIGSTOP");
  await untilTrue(() => standsStill(pid), Boolean, "it stands still");
  child.kill("SIGCONT");
  await untilTrue(() => !standsStill(pid), Boolean, "it runs again");
});
