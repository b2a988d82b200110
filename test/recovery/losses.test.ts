// What becomes of a loss: who judges it as died, who as away and when, and what a watcher that slept may not say.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  decideLoss,
  type Loss,
  LossJudge,
  type LossVerdict,
  type LostJob,
  type Resolution,
} from "../../src/recovery/losses.ts";
import type { Probe, ProcessState, WorkerRow } from "../../src/stores/liveness.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { aKind, aWorkerRow, counted, fakeStore, Recorder } from "../support/samples.ts";

const EVERY = 10_000;
const LEASE = 30_000;

function aLostJob(given: Partial<LostJob> = {}): LostJob {
  return {
    id: "job-1",
    row: 1,
    state: "queued",
    epoch: 1,
    fence: 1,
    counters: counted({ losses: 1 }),
    kind: aKind(),
    alone: false,
    movedOn: false,
    deathsElsewhere: 0,
    ...given,
  };
}

test("a loss that is not counted on the job any more, because a row of it was convicted, is not judged", () => {
  for (const resolution of ["died", "returned"] as const) {
    const job = aLostJob({ counters: counted({}) });
    assert.deepEqual(decideLoss(job, resolution), { job, decision: "none", change: null });
  }
});

/** A judge of one loss, of worker w2 with a lease of 30 s. */
function judge(given: { readonly job?: LostJob; readonly worker?: WorkerRow | null } = {}) {
  const clock = virtualClock();
  const events = new Recorder();
  const { worker = aWorkerRow({ id: "w2", leaseMs: LEASE, state: "gone" }) } = given;
  const state = {
    process: "unknown" as ProcessState,
    probe: "unknown" as Probe,
    /** What another process has resolved it as. */
    resolution: null as Resolution | null,
    judged: [] as LossVerdict[],
    isClosed: false,
  };
  const store = fakeStore({
    losses: {
      open: () =>
        Promise.resolve(
          state.isClosed ? [] : [{ incident: "i1", worker, resolution: state.resolution } satisfies Loss],
        ),
      resolve: (_, resolution) => Promise.resolve((state.resolution ??= resolution)),
      jobs: () => Promise.resolve([given.job ?? aLostJob()]),
      judge: (_, verdicts) => {
        state.judged.push(...verdicts);
        state.isClosed = verdicts.length > 0;
        return Promise.resolve(state.isClosed);
      },
    },
  });
  const liveness = {
    take: () => Promise.reject(new Error("not asked")),
    probe: () => Promise.resolve(state.probe),
    clean: () => Promise.resolve(true),
  };
  const losses = new LossJudge({ store, liveness, clock, events, processState: () => state.process });
  /** Passes every 10 s. Returns after how many it was resolved; null: not within `most`. */
  const passes = async (most: number): Promise<number | null> => {
    for (let n = 0; n < most; n++) {
      if (n > 0) await clock.advance(EVERY);
      await losses.pass(EVERY);
      if (state.isClosed) return n;
    }
    return null;
  };
  const crashes = (): number[] => state.judged.map(({ change }) => change?.add.crashes ?? 0);
  return { clock, events, losses, state, passes, crashes };
}

for (const [proof, late] of [
  ["the kernel says that its process is gone", { process: "gone" }],
  ["its lock is free", { probe: "free" }],
] as const)
  test(`a late proof resolves a loss as died at the next pass, and the crash is counted: ${proof}`, async () => {
    const { losses, state, events, crashes, clock } = judge();
    await losses.pass(EVERY);
    assert.equal(state.resolution, null, "nothing is known yet");
    Object.assign(state, late);
    await clock.advance(EVERY);
    await losses.pass(EVERY);
    assert.equal(state.resolution, "died");
    assert.deepEqual(crashes(), [1]);
    assert.deepEqual(
      events.of("loss.resolved").map(({ worker, resolution }) => [worker, resolution]),
      [["w2", "died"]],
    );
  });

test("a worker that stays away for two leases of the watcher's own clock is counted then, and not before", async () => {
  const { passes, state, crashes } = judge();
  assert.equal(await passes(7), 6, "resolved 60 s after the first pass");
  assert.equal(state.resolution, "away");
  assert.deepEqual(crashes(), [1]);
});

test("a jump of the wall clock makes no absence", async () => {
  const { clock, losses, state } = judge();
  await losses.pass(EVERY);
  clock.jump(86_400_000);
  await losses.pass(EVERY);
  assert.equal(state.resolution, null);
});

test("a watcher that slept counts the absence from when it woke up", async () => {
  const { clock, losses, state, passes } = judge();
  await losses.pass(EVERY);
  clock.freeze(10 * LEASE);
  assert.equal(await passes(6), null);
  assert.equal(state.resolution, null);
  await clock.advance(EVERY);
  await losses.pass(EVERY);
  assert.equal(state.resolution, "away");
});

test("a pass is late only beyond twice its interval and a second", async () => {
  for (const [ms, late] of [
    [2 * EVERY + 1_000, false],
    [2 * EVERY + 1_001, true],
  ] as const) {
    const { clock, losses, state } = judge({ worker: aWorkerRow({ leaseMs: EVERY, state: "gone" }) });
    await losses.pass(EVERY);
    clock.freeze(ms);
    await losses.pass(EVERY);
    assert.equal(state.resolution, late ? null : "away", String(ms));
  }
});

test("a watcher that could not reach the store itself starts the absence again", async () => {
  const { clock, losses, state, passes } = judge();
  assert.equal(await passes(6), null);
  losses.restart();
  await clock.advance(EVERY);
  await losses.pass(EVERY);
  assert.equal(state.resolution, null);
});

test("a worker that returned costs nothing, also if its process has died since", async () => {
  const { losses, state, crashes } = judge();
  Object.assign(state, { resolution: "returned", process: "gone" });
  await losses.pass(EVERY);
  assert.deepEqual(crashes(), [0]);
  assert.equal(state.judged[0]!.change?.add.losses, -1);
});

test("a loss whose worker's row was removed is away", async () => {
  const { losses, crashes } = judge({ worker: null });
  await losses.pass(EVERY);
  assert.deepEqual(crashes(), [1]);
});

test("a quarantine is not undone when the lost worker returns", async () => {
  for (const state of ["quarantined", "dead", "succeeded", "cancelled"] as const) {
    const { losses, state: kept } = judge({
      job: aLostJob({ state, counters: counted({ crashes: 3, blamed: 3, losses: 1 }) }),
    });
    kept.resolution = "returned";
    await losses.pass(EVERY);
    assert.deepEqual(
      kept.judged.map(({ decision, change }) => [decision, change]),
      [["none", null]],
      state,
    );
  }
});
