// Holds the passes of recovery: one incident per death, in batches, a failure that stops no other recovery, and what is decided.
import assert from "node:assert/strict";
import { test } from "node:test";
import { decideCrash, decideOverdue, expireOverdue, recoverDead, RECOVERY_BATCH } from "../../src/recovery/recover.ts";
import type { Death, WorkerRow } from "../../src/stores/liveness.ts";
import type { SomeVerbs } from "../../src/stores/observed.ts";
import type { CondemnRequest, HeldJob, RecoveredJob, Taken } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";
import { aKind, aView, aWorkerRow, condemned, counted, fakeStore, Recorder } from "../support/samples.ts";

const gone: Death = { how: "gone", lastSeenAliveAt: null, detectedAt: 1, evidence: "exit code 137" };
const dead = (...ids: string[]): { worker: WorkerRow; death: Death }[] =>
  ids.map((id) => ({ worker: aWorkerRow({ id, lock: { name: `${id}.lock`, identity: "1" } }), death: gone }));

function aRecovered(jobId: string, given: Partial<RecoveredJob> = {}): RecoveredJob {
  return {
    jobId,
    kind: "mail",
    decision: "retry",
    counters: counted({ crashes: 1 }),
    limit: 3,
    fence: 1,
    lastStep: null,
    alone: true,
    success: true,
    error: null,
    ...given,
  };
}

function aHeld(given: Partial<HeldJob> = {}): HeldJob {
  return {
    ...aView(),
    row: 1,
    worker: "w2",
    epoch: 1,
    fence: 1,
    kind: aKind(),
    deadlineAt: 0,
    lastStep: null,
    deathsElsewhere: 0,
    ...given,
  };
}

/** One batch as the store has it: what the worker holds, of which "refused" and "moved" are not taken. `done` false: more is left. */
interface Batch {
  readonly incident: string | null;
  readonly jobs: readonly HeldJob[];
  readonly done: boolean;
}

/** Recovery against a store that returns `batches`, one after the other. */
function recovering(batches: ((request: CondemnRequest) => Batch)[], store: SomeVerbs = {}) {
  const clock = virtualClock();
  const events = new Recorder();
  const asked: CondemnRequest[] = [];
  const limits: number[] = [];
  const cleaned: string[] = [];
  let ids = 0;
  let batch: Batch;
  const deps = {
    store: fakeStore({
      condemn: async (request) => {
        asked.push(request);
        await clock.advance(10);
        batch = batches.shift()!(request);
        return batch.incident === null
          ? null
          : {
              ...condemned(request),
              incident: batch.incident,
              opened: asked.filter(({ incident }) => incident === request.incident).length === 1,
            };
      },
      heldBy: ({ limit }) => {
        limits.push(limit);
        return Promise.resolve({ jobs: batch.jobs, more: !batch.done });
      },
      takeBack: ({ verdicts }) =>
        Promise.resolve({
          taken: verdicts.map(({ job }): Taken => {
            if (job.id === "moved") return "moved";
            return job.id === "refused" ? { refused: "a constraint" } : "taken";
          }),
        }),
      ...store,
    }),
    liveness: {
      take: () => Promise.reject(new Error("not asked")),
      probe: () => Promise.reject(new Error("not asked")),
      clean: (worker: WorkerRow) => (cleaned.push(worker.id), Promise.resolve(true)),
    },
    clock,
    events,
    random: fixedRandom(),
    newId: () => `id-${++ids}`,
  };
  return { deps, clock, events, asked, limits, cleaned };
}

test("FR-020 FR-046 FR-047 FR-048 FR-049 FR-050 AC-008 AC-013 a pass recovers each death under one recovery id, tells everything and cleans up", async () => {
  const { deps, clock, events, asked, limits, cleaned } = recovering([
    ({ incident }) => ({
      incident,
      jobs: [aHeld({ id: "a", counters: counted({ crashes: 1 }) }), aHeld({ id: "refused" })],
      done: true,
    }),
    ({ incident }) => ({ incident, jobs: [], done: true }),
  ]);
  const startedAt = clock.now();
  const summary = { lines: ["Log Flushed: 7"], facts: { flushed: 7 } };
  const pass = await recoverDead(deps, dead("w2", "w3"), "open", { integrity: "PASSED", summary });
  assert.deepEqual(pass, {
    recovery: "id-1",
    startedAt,
    completedAt: startedAt + 20,
    incidents: ["id-2", "id-3"],
    jobs: [
      aRecovered("a", { counters: counted({ crashes: 2, blamed: 1 }) }),
      aRecovered("refused", {
        decision: "none",
        counters: counted(),
        alone: false,
        success: false,
        error: "a constraint",
      }),
    ],
    failed: [],
    locked: [],
  });
  assert.deepEqual(asked[0]!.recovery, { id: "id-1", startedAt, by: "open", integrity: "PASSED", summary });
  assert.deepEqual(limits, [RECOVERY_BATCH, RECOVERY_BATCH]);
  assert.deepEqual(cleaned, ["w2", "w3"]);
  assert.deepEqual(events.names(), [
    "recovery.started",
    "worker.gone",
    "job.recovered",
    "job.recovered",
    "worker.cleaned",
    "worker.gone",
    "worker.cleaned",
    "recovery.completed",
  ]);
  const { jobs, failed, durationMs } = events.of("recovery.completed")[0]!;
  assert.deepEqual([jobs, failed, durationMs], [2, 1, 20]);
});

test("FR-029 FR-030 UT-005 a pass that found nothing says so and writes nothing", async () => {
  const { deps, events, asked } = recovering([]);
  const pass = await recoverDead(deps, [], "open");
  assert.deepEqual(pass.incidents, []);
  assert.deepEqual(asked, []);
  assert.deepEqual(events.names(), ["recovery.started", "recovery.completed"]);
});

test("a death with many jobs is one incident in several transactions, reported once", async () => {
  const { deps, events, asked, cleaned } = recovering([
    () => ({ incident: "old", jobs: [aHeld({ id: "a" })], done: false }),
    () => ({ incident: "old", jobs: [aHeld({ id: "b" })], done: false }),
    () => ({ incident: "old", jobs: [], done: true }),
  ]);
  const pass = await recoverDead(deps, dead("w2"), "w1");
  assert.deepEqual(pass.incidents, ["old"]);
  assert.equal(asked.length, 3);
  assert.equal(new Set(asked.map(({ incident }) => incident)).size, 1);
  assert.equal(events.of("worker.gone").length, 1);
  assert.deepEqual(cleaned, ["w2"]);
});

test("FR-029 UT-005 a worker that turned out not to be dead, or that another process recovered, makes no incident", async () => {
  const { deps, events, cleaned } = recovering([() => ({ incident: null, jobs: [], done: true })]);
  const pass = await recoverDead(deps, dead("w2"), "w1");
  assert.deepEqual(pass.incidents, []);
  assert.deepEqual(cleaned, []);
  assert.deepEqual(events.names(), ["recovery.started", "recovery.completed"]);
});

test("the depth of the check is kept with the verdict of the incident", async () => {
  const { deps, asked } = recovering([({ incident }) => ({ incident, jobs: [], done: true })]);
  const check = { verdict: "PASSED", depth: "full", findings: [], tookMs: 1 } as const;
  await recoverDead(deps, dead("w2"), "open", { integrity: "PASSED", check });
  assert.equal(asked[0]!.recovery.integrity, "PASSED (full)");
});

test("FR-027 a worker whose recovery fails is reported and does not stop the recovery of others", async () => {
  const { deps, events, cleaned } = recovering([
    () => {
      throw new Error("disk is full");
    },
    ({ incident }) => ({ incident, jobs: [aHeld({ id: "b" })], done: true }),
  ]);
  const pass = await recoverDead(deps, dead("w2", "w3"), "w1");
  assert.deepEqual(
    pass.jobs.map(({ jobId }) => jobId),
    ["b"],
  );
  assert.deepEqual(
    events.of("recovery.failed").map(({ worker, error }) => `${worker}: ${error.message}`),
    ["w2: disk is full"],
  );
  assert.deepEqual(pass.failed, [{ worker: "w2", error: "disk is full" }]);
  assert.deepEqual(cleaned, ["w3"]);
});

test("a lock that can't be removed is reported and does not fail the recovery", async () => {
  const { deps, events } = recovering([({ incident }) => ({ incident, jobs: [], done: true })]);
  const liveness = { ...deps.liveness, clean: () => Promise.reject(new Error("not permitted")) };
  const pass = await recoverDead({ ...deps, liveness }, dead("w2"), "w1");
  assert.equal(pass.incidents.length, 1);
  assert.deepEqual(
    events.of("store.failed").map(({ doing, error }) => `${doing}: ${error.message}`),
    ["removing the lock of w2: not permitted"],
  );
});

test("a quarantined job has an event of its own", async () => {
  const guilty = aHeld({ id: "a", counters: counted({ crashes: 4, blamed: 2 }) });
  const { deps, events } = recovering([({ incident }) => ({ incident, jobs: [guilty], done: true })]);
  await recoverDead(deps, dead("w2"), "w1");
  assert.deepEqual(
    events.of("job.quarantined").map(({ jobId, reason }) => `${jobId}: ${reason}`),
    ["a: it killed 3 workers while it ran alone"],
  );
});

test("a pass whose signal is aborted ends after the transaction that is under way", async () => {
  const stop = new AbortController();
  const { deps, asked, cleaned } = recovering([
    ({ incident }) => {
      stop.abort();
      return { incident, jobs: [aHeld({ id: "a" })], done: false };
    },
  ]);
  const pass = await recoverDead(deps, dead("w2", "w3"), "recover", undefined, stop.signal);
  assert.equal(asked.length, 1);
  assert.deepEqual(pass.incidents, ["id-2"]);
  assert.deepEqual(cleaned, []);
});

test("UT-002 only a job that was the only suspect of its worker is blamed for the death", () => {
  const job = aHeld({ counters: counted({ crashes: 3, blamed: 2 }) });
  assert.equal(decideCrash(job, { suspectsAtDeath: 1, how: "gone" }).decision, "quarantine");
  assert.equal(decideCrash(job, { suspectsAtDeath: 2, how: "gone" }).decision, "retry");
});

test("what is overdue has timed out, with the backoff of its timeouts, or is cancelled if that was asked for", () => {
  const job = aHeld({
    counters: counted({ errors: 2 }),
    kind: aKind({ limits: { errors: 3, timeouts: 5, crashes: 3 } }),
  });
  assert.equal(decideOverdue(job, 0.5).delayMs, 1_000);
  assert.equal(decideOverdue({ ...job, counters: counted({ timeouts: 2 }) }, 0.5).delayMs, 4_000);
  assert.equal(decideOverdue(job, 0.5).to, "queued");
  assert.equal(decideOverdue(job, 0.5).ifCancelled?.to, "cancelled");
});

const CONFIRMED = { asOf: 7, steadyMs: 5 };

test("what was fenced out as overdue is reported with its kind and its worker", async () => {
  const { deps, events } = recovering([], {
    heldBy: (query) => {
      assert.deepEqual(query, { overdue: { marginMs: 2_000, confirmed: CONFIRMED }, limit: RECOVERY_BATCH });
      return Promise.resolve({ jobs: [aHeld(), aHeld({ id: "moved" })], more: false });
    },
  });
  const overdue = await expireOverdue(deps, 2_000, CONFIRMED);
  assert.equal(overdue.length, 1);
  assert.equal(overdue[0]!.change.name, "timeOut");
  assert.deepEqual(events.events, [
    { name: "job.overdue", jobId: "job-1", kind: "mail", worker: "w2", fencedOut: true },
  ]);
});
