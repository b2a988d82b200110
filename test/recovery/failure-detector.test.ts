// Holds who is taken for gone, who for silent, and who is left alone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { FailureDetector } from "../../src/recovery/failure-detector.ts";
import type { Liveness, Probe, ProcessState, WorkerRow } from "../../src/stores/liveness.ts";
import { type VirtualClock, virtualClock } from "../../src/testing/virtual-clock.ts";
import { aWorkerRow } from "../support/samples.ts";

const EVERY = 10_000;
const LEASE = 30_000;

function watch(
  probes: Record<string, Probe> = {},
  given: Partial<Liveness> = {},
  processes: Record<string, ProcessState> = {},
): { clock: VirtualClock; detector: FailureDetector } {
  const clock = virtualClock();
  const liveness: Liveness = {
    take: () => Promise.reject(new Error("not asked")),
    probe: (worker) => Promise.resolve(probes[worker.id] ?? "unknown"),
    clean: () => Promise.resolve(false),
    ...given,
  };
  const processState = ({ id }: WorkerRow): ProcessState => processes[id] ?? "unknown";
  return { clock, detector: new FailureDetector({ clock, liveness, processState, bootId: "boot" }) };
}

const worker = (given: Partial<WorkerRow> = {}): WorkerRow => aWorkerRow({ id: "w2", leaseMs: LEASE, ...given });

/** Checks every 10 s, `times` times, and returns what the last check found. */
async function checks(
  { clock, detector }: ReturnType<typeof watch>,
  workers: (pass: number) => WorkerRow[],
  times: number,
): ReturnType<FailureDetector["check"]> {
  let dead = await detector.check(workers(0), EVERY);
  for (let pass = 1; pass < times; pass++) {
    assert.deepEqual(dead, [], `pass ${pass}`);
    await clock.advance(EVERY);
    dead = await detector.check(workers(pass), EVERY);
  }
  return dead;
}

test("FR-011 UT-001 a worker whose lock is free is gone at the first check, however fresh its heartbeat", async () => {
  const { clock, detector } = watch({ w2: "free" });
  const row = worker({ lastWord: "killed itself" });
  assert.deepEqual(await detector.check([row], EVERY), [
    {
      worker: row,
      death: { how: "gone", lastSeenAliveAt: null, detectedAt: clock.now(), evidence: "killed itself" },
    },
  ]);
});

test("a worker whose row came back with a backup is gone at once, whatever its lock and its process say", async () => {
  const { clock, detector } = watch({ w2: "held" });
  const row = worker({ restored: true });
  const evidence = "the store was restored from a backup";
  const death = { how: "gone", lastSeenAliveAt: null, detectedAt: clock.now(), evidence } as const;
  assert.deepEqual(await detector.probe([row]), [{ worker: row, death }]);
});

test("a worker whose heartbeat moves is left alone forever, with its lock held or unknown", async () => {
  for (const probe of ["held", "unknown"] as const) {
    const dead = await checks(watch({ w2: probe }), (pass) => [worker({ beats: pass })], 50);
    assert.deepEqual(dead, []);
  }
});

test("FR-042 AC-007 UT-001 UT-004 a worker whose heartbeat stands still for one lease on our own clock is silent, although its lock is held", async () => {
  for (const probe of ["held", "unknown"] as const) {
    const watching = watch({ w2: probe });
    const dead = await checks(watching, () => [worker({ beats: 5, lastWord: null })], 4);
    assert.equal(dead.length, 1);
    const { death } = dead[0]!;
    assert.equal(death.how, "silent");
    assert.equal(death.evidence, "no heartbeat for 30000 ms (lease 30000 ms)");
    assert.equal(death.detectedAt, watching.clock.now());
  }
});

test("a silent worker's last word is part of the evidence", async () => {
  const dead = await checks(watch(), () => [worker({ lastWord: "the loop was blocked" })], 4);
  assert.equal(dead[0]!.death.evidence, "no heartbeat for 30000 ms (lease 30000 ms); the loop was blocked");
});

test("FR-037 UT-004 each worker is held to its own lease", async () => {
  const dead = await checks(watch(), () => [worker({ id: "short", leaseMs: 20_000 }), worker({ id: "long" })], 3);
  assert.deepEqual(
    dead.map(({ worker: { id } }) => id),
    ["short"],
  );
});

test("the heartbeat's own instant is never looked at", async () => {
  for (const heartbeatAt of [0, Number.MAX_SAFE_INTEGER]) {
    const dead = await checks(watch(), (pass) => [worker({ heartbeatAt, startedAt: heartbeatAt, beats: pass })], 10);
    assert.deepEqual(dead, []);
  }
});

test("a counter that went back has moved too", async () => {
  const dead = await checks(watch(), (pass) => [worker({ beats: 1_000 - pass })], 10);
  assert.deepEqual(dead, []);
});

test("when a worker was last seen alive is when its lock was last found held", async () => {
  const probes: Record<string, Probe> = { w2: "held" };
  const { clock, detector } = watch(probes);
  await detector.check([worker()], EVERY);
  await clock.advance(EVERY);
  await detector.probe([worker()]);
  const seenAt = clock.now();
  await clock.advance(250);
  probes["w2"] = "free";
  const [found] = await detector.probe([worker()]);
  assert.equal(found!.death.lastSeenAliveAt, seenAt);
  assert.equal(found!.death.detectedAt, seenAt + 250);
});

test("a lock that was found held once is a sign of life: the first check counts", async () => {
  for (const first of ["check", "probe"] as const) {
    const probes: Record<string, Probe> = { w2: "held" };
    const { clock, detector } = watch(probes);
    const seenAt = clock.now();
    await (first === "check" ? detector.check([worker()], EVERY) : detector.probe([worker()]));
    await clock.advance(250);
    probes["w2"] = "free";
    const [found] = await detector.check([worker()], EVERY);
    assert.equal(found!.death.lastSeenAliveAt, seenAt, first);
  }
});

test("without a lock to ask, a worker was last seen alive when its heartbeat had last moved, and never before it did", async () => {
  const moved = watch();
  const dead = await checks(moved, (pass) => [worker({ beats: Math.min(pass, 1) })], 5);
  assert.equal(dead[0]!.death.lastSeenAliveAt, moved.clock.now() - 3 * EVERY);
  const still = await checks(watch(), () => [worker()], 4);
  assert.equal(still[0]!.death.lastSeenAliveAt, null);
});

test("a sleep before the first check counts, too: a probe had begun the watch", async () => {
  const { clock, detector } = watch({ w2: "held" });
  assert.deepEqual(await detector.probe([worker()]), []);
  await clock.advance(2 * LEASE);
  assert.deepEqual(await detector.check([worker()], EVERY), []);
  await clock.advance(EVERY);
  assert.deepEqual(await detector.check([worker()], EVERY), [], "the watch began when it woke up");
});

test("a check that comes too late starts the watch again: the watcher was asleep", async () => {
  const { clock, detector } = watch();
  await detector.check([worker()], EVERY);
  clock.freeze(10 * LEASE);
  assert.deepEqual(await detector.check([worker()], EVERY), []);
  await clock.advance(EVERY);
  assert.deepEqual(await detector.check([worker()], EVERY), []);
  await clock.advance(EVERY);
  assert.deepEqual(await detector.check([worker()], EVERY), []);
  await clock.advance(EVERY);
  assert.equal((await detector.check([worker()], EVERY)).length, 1);
});

test("a check is late only beyond twice its interval and a second", async () => {
  const onTime = watch();
  await onTime.detector.check([worker({ leaseMs: 21_000 })], EVERY);
  onTime.clock.freeze(2 * EVERY + 1_000);
  assert.equal((await onTime.detector.check([worker({ leaseMs: 21_000 })], EVERY)).length, 1);
  const late = watch();
  await late.detector.check([worker({ leaseMs: 21_000 })], EVERY);
  late.clock.freeze(2 * EVERY + 1_001);
  assert.deepEqual(await late.detector.check([worker({ leaseMs: 21_000 })], EVERY), []);
});

test("a wall clock that jumps, forward or back, starts the watch again", async () => {
  for (const jump of [501, -501, 86_400_000, -86_400_000]) {
    const { clock, detector } = watch();
    for (let pass = 0; pass < 3; pass++) {
      assert.deepEqual(await detector.check([worker()], EVERY), []);
      await clock.advance(EVERY);
    }
    clock.jump(jump);
    assert.deepEqual(await detector.check([worker()], EVERY), [], `jump ${jump}`);
    await clock.advance(EVERY);
    await detector.check([worker()], EVERY);
    await clock.advance(EVERY);
    await detector.check([worker()], EVERY);
    await clock.advance(EVERY);
    assert.equal((await detector.check([worker()], EVERY)).length, 1);
  }
});

test("a wall clock that is slewed does not start the watch again", async () => {
  const { clock, detector } = watch();
  for (let pass = 0; pass < 3; pass++) {
    assert.deepEqual(await detector.check([worker()], EVERY), []);
    await clock.advance(EVERY);
    clock.jump(500);
  }
  assert.equal((await detector.check([worker()], EVERY)).length, 1);
});

test("a lock that is free proves a death also right after the watcher slept", async () => {
  const { clock, detector } = watch({ w2: "free" });
  await detector.check([], EVERY);
  clock.freeze(10 * LEASE);
  assert.equal((await detector.check([worker()], EVERY)).length, 1);
});

test("a probe checks locks only, not silence", async () => {
  const { clock, detector } = watch({ w2: "held", w3: "unknown", w4: "free" });
  const workers = ["w2", "w3", "w4"].map((id) => worker({ id }));
  await detector.check(workers.slice(0, 2), EVERY);
  await clock.advance(2 * LEASE);
  const dead = await detector.probe(workers);
  assert.deepEqual(
    dead.map(({ worker: { id }, death: { how } }) => `${id} ${how}`),
    ["w4 gone"],
  );
});

test("a worker of another kernel whose heartbeat moves is reported as foreign; one that stands still is not", async () => {
  const { clock, detector } = watch();
  const foreign = (beats: number): WorkerRow => worker({ bootId: "another", beats });
  await detector.check([foreign(1)], EVERY);
  assert.equal(detector.foreign, null);
  await clock.advance(EVERY);
  await detector.check([foreign(1)], EVERY);
  assert.equal(detector.foreign, null);
  await clock.advance(EVERY);
  await detector.check([foreign(2)], EVERY);
  assert.deepEqual(detector.foreign, foreign(2));
});

test("a worker of our own kernel is never foreign", async () => {
  const watching = watch();
  await checks(watching, (pass) => [worker({ beats: pass })], 5);
  assert.equal(watching.detector.foreign, null);
});

test("a worker that left is forgotten: one that comes back is watched from the beginning", async () => {
  const { clock, detector } = watch();
  await detector.check([worker()], EVERY);
  await clock.advance(EVERY);
  await detector.check([], EVERY);
  for (let pass = 0; pass < 3; pass++) {
    await clock.advance(EVERY);
    assert.deepEqual(await detector.check([worker()], EVERY), []);
  }
});

test("the death of one hides no other", async () => {
  const watching = watch({ a: "free", c: "free" });
  const workers = ["a", "b", "c", "d"].map((id) => worker({ id }));
  const dead = await watching.detector.check(workers, EVERY);
  assert.deepEqual(
    dead.map(({ worker: { id } }) => id),
    ["a", "c"],
  );
});

test("silence while the store was away is the store's own: the watch starts again when the hold ends", async () => {
  let holdMs = 0;
  const watching = watch({}, { holdMs: () => holdMs });
  assert.deepEqual(await checks(watching, () => [worker()], 3), []);
  holdMs = 5_000;
  await watching.clock.advance(EVERY);
  assert.deepEqual(
    await watching.detector.check([worker()], EVERY),
    [],
    "a lease is over, but the store has just come back",
  );
  holdMs = 0;
  await watching.clock.advance(EVERY);
  assert.deepEqual(await watching.detector.check([worker()], EVERY), []);
  await watching.clock.advance(EVERY);
  assert.deepEqual(await watching.detector.check([worker()], EVERY), []);
  await watching.clock.advance(EVERY);
  assert.equal((await watching.detector.check([worker()], EVERY))[0]?.death.how, "silent");
});

// ---- what this host's kernel says of a process

test("a process that is gone is a proven death at the first probe, whatever its lock says", async () => {
  for (const probe of ["held", "missing", "unknown"] as const) {
    const { clock, detector } = watch({ w2: probe }, {}, { w2: "gone" });
    const row = worker({ namespace: "pid:[7]", startTicks: "99" });
    const evidence = "its process is gone (pid 42, start ticks 99, pid:[7])";
    const death = { how: "gone", lastSeenAliveAt: null, detectedAt: clock.now(), evidence } as const;
    assert.deepEqual(await detector.probe([row]), [{ worker: row, death }], probe);
    assert.deepEqual(detector.probeProcesses([row]), [{ worker: row, death }], probe);
  }
});

test("a check of processes alone finds the dead and asks no lock", () => {
  const processes: Record<string, ProcessState> = { alive: "alive", gone: "gone", hidden: "unknown" };
  const { detector } = watch({}, { probe: () => Promise.reject(new Error("not asked")) }, processes);
  const dead = detector.probeProcesses(Object.keys(processes).map((id) => worker({ id })));
  assert.deepEqual(
    dead.map(({ worker: { id } }) => id),
    ["gone"],
  );
});

test("contact with a worker is lost when its lock is missing, unless its process runs on this host", async () => {
  for (const state of ["unknown", "alive"] as const) {
    const { detector } = watch({ w2: "missing" }, {}, { w2: state });
    const dead = await detector.probe([worker()]);
    assert.deepEqual(
      dead.map(({ death: { how } }) => how),
      state === "alive" ? [] : ["lost"],
    );
  }
});

test("a process of this host that runs and is silent for a lease is out of contact all the same: it may be frozen", async () => {
  const dead = await checks(watch({ w2: "missing" }, {}, { w2: "alive" }), () => [worker({ beats: 5 })], 4);
  assert.equal(dead[0]!.death.how, "silent");
});

test("a process that was found running was last seen alive then", async () => {
  const processes: Record<string, ProcessState> = { w2: "alive" };
  const { clock, detector } = watch({}, {}, processes);
  detector.probeProcesses([worker()]);
  const seenAt = clock.now();
  await clock.advance(250);
  processes["w2"] = "gone";
  assert.equal(detector.probeProcesses([worker()])[0]!.death.lastSeenAliveAt, seenAt);
});
