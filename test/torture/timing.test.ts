// How the times of a run are made: which kill is counted where, from which instants, and what a recovery left undone. The incidents are
// made by hand, on the clock of the kills.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { Engine, IncidentSummary, RecoveryReport } from "../../src/index.ts";
import type { Kill } from "../../proof/torture/processes/fleet.ts";
import { percentiles, timingOf } from "../../proof/torture/processes/timing.ts";

/** One death as it went into the store. */
interface Death {
  readonly worker: string;
  readonly how?: "gone" | "silent";
  readonly detectedAt: number;
  /** Null: the recovery was never finished. */
  readonly completedAt?: number | null;
  readonly jobs?: readonly { readonly id: string; readonly resumedAt: number | null; readonly decision?: string }[];
}

const T0 = 1_700_000_000_000;
const instant = (at: number): number => T0 + at;

const killed = (workerId: string | null, at: number, { nobodyLeft = false, recovering = false } = {}): Kill => ({
  at: T0 + at,
  role: "worker",
  pid: 1,
  workerId,
  nobodyLeft,
  recovering,
  missing: 0,
});

/** What `timingOf` reads of a store in which these died. */
function storeOf(
  deaths: readonly Death[],
  { states = {}, stopped = [] }: { states?: Record<string, string>; stopped?: readonly string[] } = {},
): Engine {
  const incidents = deaths.map(
    ({ worker, jobs = [] }, i) => ({ id: `i${i}`, worker, jobCount: jobs.length }) as IncidentSummary,
  );
  const report = async (id: string): Promise<RecoveryReport> => {
    const { worker, how = "gone", detectedAt, completedAt = detectedAt + 5, jobs = [] } = deaths[Number(id.slice(1))]!;
    return {
      completedAt: completedAt === null ? null : instant(completedAt),
      recoveredJobs: jobs.map(({ id: jobId, resumedAt, decision = "retry" }) => ({
        jobId,
        kind: "torture.transfer",
        crashes: 1,
        decision,
        resumedAt: resumedAt === null ? null : instant(resumedAt),
      })),
      deadWorkers: [
        {
          workerId: worker,
          how,
          detectedAt: instant(detectedAt),
          recoveredAt: completedAt === null ? null : instant(completedAt),
        },
      ],
    } as unknown as RecoveryReport;
  };
  return {
    incidents: async () => incidents,
    report,
    workers: async () => stopped.map((id) => ({ id, state: "stopped" })),
    get: async (id: string) => (id in states ? { state: states[id] } : null),
  } as unknown as Engine;
}

const well = (): readonly string[] => [];

describe("the times of a run", () => {
  it("go from the kill to the proof, and to the last of its jobs, not the first", async () => {
    const timing = await timingOf(
      storeOf([
        {
          worker: "w1",
          detectedAt: 130,
          jobs: [
            { id: "a", resumedAt: 180 },
            { id: "b", resumedAt: 240 },
            { id: "c", resumedAt: 200 },
          ],
        },
      ]),
      [killed("w1", 100)],
      well,
    );
    assert.deepEqual(timing.detectMs, { p50: 30, p99: 30, max: 30 });
    assert.deepEqual(timing.resumeMs, { p50: 140, p99: 140, max: 140 });
    assert.equal(timing.timed, 1);
    assert.equal(timing.takeovers, 3);
    assert.deepEqual(timing.violations, []);
    assert.match(timing.slowest.join("\n"), /^worker w1 .* after 140 ms: the last of 3, .* b, .*\(store well\)$/);
  });

  it("are told apart: a healthy store, a strike until the last of its jobs, no worker left", async () => {
    const death = (worker: string, detectedAt: number, resumedAt: number): Death => ({
      worker,
      detectedAt,
      jobs: [{ id: `of-${worker}`, resumedAt }],
    });
    const asked: [number, number][] = [];
    const timing = await timingOf(
      storeOf([death("well", 110, 150), death("struck", 1_020, 1_400), death("alone", 2_900, 3_500)]),
      [killed("well", 100), killed("struck", 1_000), killed("alone", 2_000, { nobodyLeft: true })],
      (from, to) => {
        asked.push([from - T0, to - T0]);
        // It begins after the death was found, and before its job ran again.
        return from - T0 <= 1_300 && 1_300 <= to - T0 ? ["server frozen"] : [];
      },
    );
    assert.deepEqual(asked[1], [1_000, 1_400], "until its job ran again, not only until it was found");
    assert.deepEqual(timing.resumeMs, { p50: 50, p99: 50, max: 50 });
    assert.equal(timing.timed, 1);
    assert.deepEqual(timing.detectMs, { p50: 10, p99: 10, max: 10 }, "of the well store alone");
    assert.deepEqual(timing.resumeMsDuringFaults, { timed: 1, p50: 400, p99: 400, max: 400 });
    assert.deepEqual(timing.resumeMsNobodyLeft, { timed: 1, p50: 1_500, p99: 1_500, max: 1_500 });
    assert.deepEqual(timing.resumeMsOfAll, { timed: 3, p50: 400, p99: 1_500, max: 1_500 });
    assert.deepEqual(
      timing.slowest.map((sentence) => /\(([^)]*)\)$/.exec(sentence)?.[1]),
      ["store well", "server frozen", "nobody was left"],
    );
  });

  it("count a worker that held nothing in the time to its proof only, and a zombie in neither", async () => {
    const timing = await timingOf(
      storeOf([
        { worker: "idle", detectedAt: 120 },
        { worker: "zombie", how: "silent", detectedAt: 300, jobs: [{ id: "a", resumedAt: 320 }] },
        { worker: "poisoned", detectedAt: 500, jobs: [{ id: "b", resumedAt: 505 }] },
      ]),
      // The poisoned one was killed by its job, not by us.
      [killed("idle", 100), killed("zombie", 900), killed(null, 950)],
      well,
    );
    assert.deepEqual(timing.detectMs, { p50: 20, p99: 20, max: 20 });
    assert.deepEqual([timing.resumeMs.max, timing.timed], [null, 0]);
    assert.equal(timing.takeovers, 2);
    assert.deepEqual(timing.violations, []);
  });

  it("are told apart when the recovering process was killed meanwhile, but not when it was killed before or after", async () => {
    const back = (worker: string, detectedAt: number): Death => ({
      worker,
      detectedAt,
      jobs: [{ id: `of-${worker}`, resumedAt: detectedAt + 10 }],
    });
    const timing = await timingOf(
      storeOf([back("before", 200), back("during", 1_900), back("after", 3_100)]),
      [
        killed("before", 100),
        killed("during", 1_000),
        killed("r1", 1_400, { recovering: true }),
        killed("after", 3_000),
        killed("r2", 3_200, { recovering: true }),
      ],
      well,
    );
    assert.deepEqual(timing.resumeMsRecovererKilled, { timed: 1, p50: 910, p99: 910, max: 910 });
    assert.deepEqual([timing.resumeMs.max, timing.timed], [110, 2]);
    assert.match(timing.slowest.join("\n"), /worker during .*\(a recoverer was killed\)/);
  });

  it("count a kill that was found by its silence, however late", async () => {
    const timing = await timingOf(
      storeOf([{ worker: "w1", how: "silent", detectedAt: 1_700, jobs: [{ id: "a", resumedAt: 1_750 }] }]),
      [killed("w1", 100)],
      well,
    );
    assert.deepEqual(timing.detectMs, { p50: 1_600, p99: 1_600, max: 1_600 });
    assert.deepEqual([timing.resumeMs.max, timing.timed], [1_650, 1]);
  });

  it("come with what recovery left undone, a sentence each", async () => {
    const timing = await timingOf(
      storeOf(
        [
          { worker: "twice", detectedAt: 10 },
          { worker: "twice", detectedAt: 20 },
          { worker: "half", detectedAt: 30, completedAt: null },
          {
            worker: "left",
            detectedAt: 40,
            jobs: [
              { id: "waits", resumedAt: null },
              // The statement that stops the incident's clock was lost, and it did run again.
              { id: "ended", resumedAt: null },
              // Not to run again.
              { id: "given-up", resumedAt: null, decision: "quarantine" },
            ],
          },
        ],
        { states: { waits: "queued", ended: "succeeded", "given-up": "quarantined" }, stopped: ["in-peace"] },
      ),
      [killed("twice", 0), killed("half", 0), killed("left", 0), killed("unseen", 0), killed("in-peace", 0)],
      well,
    );
    assert.deepEqual(timing.violations, [
      "the death of worker twice has 2 incidents",
      "worker unseen was killed, and there is no incident of its death",
      "incident i2 of worker half was never finished",
      "job waits was recovered from worker left and never ran again",
    ]);
  });

  it("have the percentiles of the values as they were, and none of no values", () => {
    const hundred = Array.from({ length: 100 }, (_, i) => 100 - i);
    assert.deepEqual(percentiles(hundred), { p50: 50, p99: 99, max: 100 });
    assert.deepEqual(percentiles([...hundred, 1_000, 1_000]), { p50: 51, p99: 1_000, max: 1_000 });
    assert.deepEqual(percentiles([9, 100, 8]), { p50: 9, p99: 100, max: 100 }, "by size, not by spelling");
    assert.deepEqual(percentiles([7]), { p50: 7, p99: 7, max: 7 });
    assert.deepEqual(percentiles([]), { p50: null, p99: null, max: null });
  });
});
