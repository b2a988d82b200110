// A pass by hand or of a supervisor: it has no heartbeat of its own, so it tries to write before it believes in a silence.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Wiring } from "../../src/engine/engine.ts";
import { RecoveryPasses } from "../../src/engine/operator.ts";
import { pause } from "../../src/job/time.ts";
import type { Probe } from "../../src/stores/liveness.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";
import { aWorkerRow, condemned, fakeStore, Recorder } from "../support/samples.ts";

const EVERY = 10_000;
const LEASE = 30_000;

/** Passes over one worker, w2, whose heartbeat stands still. */
function watching(given: { readonly probe?: Probe } = {}) {
  const clock = virtualClock();
  const state = { blockedMs: 0, refuses: false };
  const taken: string[] = [];
  const store = fakeStore({
    workers: ({ which }) =>
      Promise.resolve(which === "leftBehind" || taken.length > 0 ? [] : [aWorkerRow({ id: "w2", leaseMs: LEASE })]),
    upkeep: {
      untilWritable: async () => {
        await pause(clock, state.blockedMs);
        if (state.refuses) throw new Error("busy");
      },
    },
    condemn: (request) => {
      taken.push(`${request.worker.id} ${request.death.how}`);
      return Promise.resolve(condemned(request));
    },
    heldBy: () => Promise.resolve({ jobs: [], more: false }),
    takeBack: () => Promise.resolve({ taken: [] }),
    losses: { open: () => Promise.resolve([]) },
  });
  const liveness = {
    take: () => Promise.reject(new Error("not asked")),
    probe: () => Promise.resolve(given.probe ?? "unknown"),
    clean: () => Promise.resolve(true),
  };
  const recoveries = new RecoveryPasses({
    backend: { store, liveness, readOnly: false },
    settings: { times: { heartbeatMs: EVERY } },
    clock,
    random: fixedRandom(),
    bus: new Recorder(),
    identity: { bootId: "boot" },
    processState: () => "unknown",
  } as unknown as Wiring);
  /** Passes every 10 s. */
  const passes = async (count: number): Promise<void> => {
    for (let n = 0; n < count; n++) {
      const pass = recoveries.pass(undefined, {});
      await clock.advance(state.blockedMs);
      await pass;
      await clock.advance(EVERY - state.blockedMs);
    }
  };
  return { state, taken, passes };
}

test("a worker that is silent for a lease on a store that can be written to is taken", async () => {
  const { taken, passes } = watching();
  await passes(3);
  assert.deepEqual(taken, []);
  await passes(1);
  assert.deepEqual(taken, ["w2 silent"]);
});

for (const [what, blocked] of [
  ["lets no write through for half a second", { blockedMs: 600 }],
  ["refuses every write", { refuses: true }],
] as const)
  test(`silence on a store that ${what} proves nothing, and is counted again from then on`, async () => {
    const { state, taken, passes } = watching();
    await passes(3);
    Object.assign(state, blocked);
    await passes(2);
    assert.deepEqual(taken, []);
    Object.assign(state, { blockedMs: 0, refuses: false });
    await passes(1);
    assert.deepEqual(taken, [], "the silence began again when the store was blocked");
    await passes(2);
    assert.deepEqual(taken, ["w2 silent"]);
  });

test("a proven death is taken without a question to the store", async () => {
  const { state, taken, passes } = watching({ probe: "free" });
  state.refuses = true;
  await passes(1);
  assert.deepEqual(taken, ["w2 gone"]);
});
