// Holds the keeper to its rounds: beats, probes, looks, sweeps, and when it tells its process to stop or to die.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, OutliveError } from "../../src/core/errors.ts";
import { Keeper } from "../../src/core/keeper.ts";
import type { Liveness, LivenessTimes, Probe, WorkerRow } from "../../src/core/liveness.ts";
import type { BeatAnswer, Store, WorkerQuery, Upkeep } from "../../src/core/store.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";
import { condemned, aBeatAnswer, aWorkerRow, fakeStore, held, Recorder } from "./samples.ts";

const TIMES: LivenessTimes = { heartbeatMs: 30_000, leaseMs: 90_000, sweepMs: 60_000, probeMs: 250, contactMs: 3_000 };

interface Given {
  readonly worker?: string;
  readonly times?: Partial<LivenessTimes>;
  readonly workers?: WorkerRow[];
  readonly probes?: Record<string, Probe>;
  readonly store?: Partial<Store>;
  readonly liveness?: Partial<Liveness>;
}

/** A keeper of w1 with everything that it did written down. */
function keep(given: Given = {}) {
  const clock = virtualClock();
  const events = new Recorder();
  const started = clock.mono();
  /** "what at": what was asked of the store, and when. */
  const calls: string[] = [];
  const queries: WorkerQuery[] = [];
  const probed: string[] = [];
  const told: string[] = [];
  const confirmations: unknown[] = [];
  const small: Upkeep = { walBytes: 0, frames: 0, heldBy: null };
  const state = {
    lagMs: 0,
    answer: aBeatAnswer(),
    workers: given.workers ?? [],
    probes: given.probes ?? {},
    upkeep: small,
  };
  const at = (what: string): void => void calls.push(`${what} ${clock.mono() - started}`);
  const store = fakeStore({
    beat: () => (at("beat"), Promise.resolve({ ...state.answer, now: clock.now() })),
    workers: (query) => {
      queries.push(query);
      const isOver = ({ state: is }: WorkerRow): boolean => is === "gone" || is === "stopped";
      const after = state.workers.filter(
        (row) =>
          (query.after === undefined || row.id > query.after) &&
          (query.which === "leftBehind" ? isOver(row) && row.heldCount > 0 : query.which === "all" || !isOver(row)),
      );
      return Promise.resolve(after.slice(0, query.limit));
    },
    overdue: ({ marginMs, confirmed }) => {
      at(`expire+${marginMs}`);
      confirmations.push(confirmed);
      return Promise.resolve([]);
    },
    purge: () => (at("purge"), Promise.resolve({ jobs: 0, incidents: 0, more: false })),
    losses: () => Promise.resolve([]),
    upkeep: () => Promise.resolve(state.upkeep),
    note: (worker, word) => (at(`note ${worker} ${word}`), Promise.resolve()),
    condemn: (request) => {
      at(`recover ${request.worker.id}`);
      state.workers = state.workers.filter(({ id }) => id !== request.worker.id);
      return Promise.resolve(condemned(request));
    },
    heldBy: () => Promise.resolve({ jobs: [], more: false }),
    takeBack: () => Promise.resolve({ taken: [] }),
    ...given.store,
  });
  const liveness = {
    take: () => Promise.reject(new Error("not asked")),
    probe: (worker: WorkerRow) => (probed.push(worker.id), Promise.resolve(state.probes[worker.id] ?? "held")),
    clean: () => Promise.resolve(true),
    ...given.liveness,
  };
  let ids = 0;
  const keeper = new Keeper(
    {
      store,
      liveness,
      clock,
      random: fixedRandom(),
      events,
      newId: () => `id-${++ids}`,
      processState: () => "unknown",
    },
    {
      worker: given.worker ?? "w1",
      bootId: "boot",
      times: { ...TIMES, ...given.times },
      retention: { finishedMs: 1, incidentsMs: 2 },
      registered: { now: clock.now(), sentMono: clock.mono(), receivedMono: clock.mono() },
      schemaVersion: 1,
    },
    {
      loopLagMs: () => state.lagMs,
      beaten: (sentAtMono) => void told.push(`beaten ${sentAtMono - started}`),
      disowned: () => void told.push("disowned"),
      unfit: (why, detail) => void told.push(`unfit ${why}: ${detail}`),
      kill: (reason) => void told.push(`kill ${reason}`),
    },
  );
  const of = (what: string): string[] => calls.filter((call) => call.startsWith(what));
  return { keeper, clock, events, state, calls, queries, probed, told, confirmations, of };
}

test("FR-031 FR-032 AC-006 it beats at its interval and tells when each beat was sent", async () => {
  const { keeper, clock, of, told } = keep();
  keeper.start();
  await clock.advance(90_000);
  assert.deepEqual(of("beat"), ["beat 30000", "beat 60000", "beat 90000"]);
  assert.deepEqual(told, ["beaten 30000", "beaten 60000", "beaten 90000"]);
});

test("FR-051 FR-052 a failed beat comes again soon, with growing delays, and at the interval once one is accepted", async () => {
  const at: number[] = [];
  const kept = keep({
    store: {
      beat: () => {
        at.push(kept.clock.mono());
        return at.length <= 3 ? Promise.reject(new Error("busy")) : Promise.resolve(aBeatAnswer());
      },
    },
  });
  kept.keeper.start();
  await kept.clock.advance(61_000);
  assert.deepEqual(at, [30_000, 30_100, 30_300, 30_700, 60_700]);
  assert.equal(kept.events.of("heartbeat.failed").length, 3);
});

test("FR-039 FR-040 it sweeps at its interval", async () => {
  const { keeper, clock, of } = keep();
  keeper.start();
  await clock.advance(120_000);
  assert.deepEqual(of("purge"), ["purge 60000", "purge 120000"]);
});

test("a sweep recovers who is over and still holds jobs, and reads no row of the others that are over: there may be months of them", async () => {
  const over = [
    aWorkerRow({ id: "w2", state: "gone", heldCount: 1 }),
    aWorkerRow({ id: "w3", state: "stopped", heldCount: 2 }),
    aWorkerRow({ id: "w4", state: "gone", heldCount: 0 }),
  ];
  const { keeper, of, queries } = keep({ workers: over });
  await keeper.sweep();
  assert.deepEqual(of("recover"), ["recover w2 0", "recover w3 0"]);
  assert.deepEqual(
    queries.filter(({ which }) => which === "all"),
    [],
  );
});

test("FR-039 FR-040 AC-007 it looks at everybody often enough to see silence within a quarter of a lease, and expires what is overdue", async () => {
  const { keeper, clock, of } = keep();
  keeper.start();
  await clock.advance(60_000);
  // A sweep waits for a lease more.
  assert.deepEqual(of("expire"), ["expire+2000 22500", "expire+2000 45000", "expire+92000 60000"]);
});

test("what is overdue by a step of the store's clock is not confirmed, however far it is stepped", async () => {
  const { keeper, clock, confirmations } = keep();
  keeper.start();
  await clock.advance(45_000);
  assert.deepEqual(confirmations.at(-1), { asOf: clock.now(), steadyMs: 45_000 });
  clock.jump(3_600_000);
  await clock.advance(22_500);
  // The beat at 60 s has seen the step.
  assert.deepEqual(confirmations.at(-1), { asOf: clock.now(), steadyMs: 7_500 });
});

const REPLACED = new OutliveError(ErrorCode.storeReplaced, "It is another file.", "Start again.", {
  why: "it was moved",
});

test("a worker whose store is another one is unfit, whether the beat returns that or fails with it, and everything stops", async () => {
  for (const beat of [
    () => Promise.resolve(aBeatAnswer({ live: false, replaced: "it was moved" })),
    () => Promise.reject(REPLACED),
  ]) {
    const { keeper, clock, told, events, calls } = keep({ store: { beat } });
    keeper.start();
    await clock.advance(30_000);
    assert.deepEqual(told, ["unfit store-replaced: it was moved"]);
    assert.deepEqual(events.of("heartbeat.failed"), []);
    const done = calls.length;
    await clock.advance(120_000);
    assert.deepEqual([told.length, calls.length], [1, done]);
  }
});

test("any task of the keeper that finds another store stops the worker: it does not wait for the next heartbeat", async () => {
  const { keeper, clock, told, events } = keep({ store: { workers: () => Promise.reject(REPLACED) } });
  keeper.start();
  await clock.advance(1_000);
  assert.deepEqual(told, ["unfit store-replaced: it was moved"]);
  assert.deepEqual(events.of("store.failed"), []);
});

test("a worker whose row is not live any more is told once, and everything stops", async () => {
  const { keeper, clock, calls, state, told } = keep();
  state.answer = aBeatAnswer({ live: false });
  keeper.start();
  await clock.advance(30_000);
  assert.deepEqual(told, ["disowned"]);
  calls.length = 0;
  await clock.advance(600_000);
  assert.deepEqual(told, ["disowned"]);
  assert.deepEqual(calls, []);
  assert.equal(clock.nextTimerInMs(), null);
});

test("stopping calls off every timer and waits for what is under way", async () => {
  const purge = held<{ jobs: number; incidents: number; more: boolean }>();
  const { keeper, clock, calls } = keep({ store: { purge: () => purge.promise } });
  keeper.start();
  await clock.advance(60_000);
  let stopped = false;
  const stopping = keeper.stop().then(() => (stopped = true));
  await clock.settle();
  assert.equal(stopped, false);
  purge.resolve({ jobs: 0, incidents: 0, more: false });
  await stopping;
  assert.equal(clock.nextTimerInMs(), null);
  calls.length = 0;
  await clock.advance(600_000);
  assert.deepEqual(calls, []);
});

test("a slow purge does not pile up, and holds up neither the heartbeat nor the detection of a death nor what is overdue", async () => {
  let running = 0;
  const overlaps: number[] = [];
  const purge = held<{ jobs: number; incidents: number; more: boolean }>();
  const { keeper, clock, of, state } = keep({
    times: { heartbeatMs: 1_000, leaseMs: 4_000, sweepMs: 1_000 },
    store: { purge: () => (overlaps.push(++running), purge.promise.finally(() => running--)) },
  });
  keeper.start();
  await clock.advance(20_000);
  assert.deepEqual(overlaps, [1]);
  assert.equal(of("beat").length, 20);
  assert.equal(of("expire+2000").length, 20);
  state.workers = [aWorkerRow({ id: "w2" })];
  state.probes = { w2: "free" };
  await clock.advance(250);
  assert.deepEqual(of("recover"), ["recover w2 20250"]);
  purge.resolve({ jobs: 0, incidents: 0, more: false });
  await clock.advance(0);
});

test("what throws is told and done again at its time, and stops nothing else", async () => {
  const { keeper, clock, events, of } = keep({ store: { workers: () => Promise.reject(new Error("disk is full")) } });
  keeper.start();
  await clock.advance(60_000);
  const told = new Set(events.of("store.failed").map(({ doing, error }) => `${doing}: ${error.message}`));
  assert.deepEqual([...told].toSorted(), [
    "keeper: jobs left behind: disk is full",
    "keeper: look: disk is full",
    "keeper: probe: disk is full",
  ]);
  assert.equal(of("beat").length, 2);
  assert.equal(of("purge").length, 1);
});

test("each task of a sweep fails for itself: a purge that fails hides neither overdue jobs nor jobs left behind", async () => {
  const { keeper, events, of } = keep({
    workers: [aWorkerRow({ id: "w2", state: "gone", heldCount: 1 })],
    store: {
      overdue: () => Promise.reject(new Error("no rights")),
      purge: () => Promise.reject(new Error("a foreign key")),
    },
  });
  await keeper.beat();
  await keeper.sweep();
  assert.deepEqual(of("recover"), ["recover w2 0"]);
  assert.deepEqual(
    events.of("store.failed").map(({ doing, error }) => `${doing}: ${error.message}`),
    ["keeper: long overdue jobs: no rights", "keeper: retention: a foreign key"],
  );
});

test("a job that retention can't delete is named", async () => {
  const error = { name: "error", message: "a row refers to it" };
  const refused = { jobs: 2, jobId: "job-7", error };
  const { keeper, events } = keep({
    store: { purge: () => Promise.resolve({ jobs: 3, incidents: 0, more: false, refused }) },
  });
  await keeper.sweep();
  assert.deepEqual(
    events.of("store.failed").map(({ doing, error: told }) => `${doing}: ${told.message}`),
    ["retention of 2 job(s), of job-7 first: a row refers to it"],
  );
});

test("what another session holds is asked for again twice a second until it is released, and no other task waits for it", async () => {
  let letGo = false;
  const kept = keep({
    workers: [aWorkerRow({ id: "w2" })],
    probes: { w2: "free" },
    store: {
      condemn: (request) => {
        kept.calls.push(`recover ${request.worker.id} ${request.worker.state} ${kept.clock.mono()}`);
        if (letGo) kept.state.workers = [];
        return Promise.resolve({ ...condemned(request), opened: request.worker.state === "live" });
      },
      takeBack: () => Promise.resolve({ taken: [], ...(!letGo && { locked: 1 }) }),
    },
  });
  kept.keeper.start();
  // Found by the probe at 250 ms; tried again at once, for a session that is just ending.
  await kept.clock.advance(1_500);
  assert.deepEqual(kept.of("recover"), [
    "recover w2 live 250",
    "recover w2 recovering 275",
    "recover w2 recovering 325",
    "recover w2 recovering 425",
    "recover w2 recovering 925",
    "recover w2 recovering 1425",
  ]);
  assert.deepEqual(kept.events.of("recovery.waits"), [{ name: "recovery.waits", worker: "w2", jobs: 1 }]);
  assert.equal(kept.events.of("worker.gone").length, 1);
  letGo = true;
  await kept.clock.advance(500);
  assert.equal(kept.of("recover").length, 7);
  await kept.clock.advance(5_000);
  assert.equal(kept.of("recover").length, 7);
  assert.equal(kept.events.of("recovery.started").length, 1);
  assert.deepEqual(kept.events.of("worker.cleaned").length, 1);
});

test("in a small fleet everybody's lock is probed, and its own never", async () => {
  const { keeper, probed } = keep({ worker: "w2", workers: ["w1", "w2", "w3", "w4"].map((id) => aWorkerRow({ id })) });
  await keeper.probe();
  assert.deepEqual(probed.toSorted(), ["w1", "w3", "w4"]);
});

test("in a large fleet it probes the eight that follow it in the ring, and reads no more rows than those", async () => {
  const ids = Array.from({ length: 100 }, (_, n) => `w${String(n).padStart(3, "0")}`);
  const workers = ids.map((id) => aWorkerRow({ id }));
  const middle = keep({ worker: "w050", workers });
  await middle.keeper.probe();
  assert.deepEqual(middle.probed, ids.slice(51, 59));
  assert.deepEqual(middle.queries, [{ after: "w050", limit: 8 }]);
  const end = keep({ worker: "w097", workers });
  await end.keeper.probe();
  assert.deepEqual(end.probed, [...ids.slice(98), ...ids.slice(0, 6)]);
  assert.deepEqual(end.queries, [{ after: "w097", limit: 8 }, { limit: 6 }]);
});

test("with every worker probing its ring, each lock of a large fleet is watched by eight others", async () => {
  const ids = Array.from({ length: 30 }, (_, n) => `w${String(n).padStart(2, "0")}`);
  const workers = ids.map((id) => aWorkerRow({ id }));
  const watchers = new Map<string, number>();
  for (const worker of ids) {
    const { keeper, probed } = keep({ worker, workers });
    await keeper.probe();
    for (const id of probed) watchers.set(id, (watchers.get(id) ?? 0) + 1);
  }
  assert.deepEqual(new Set(watchers.values()), new Set([8]));
  assert.equal(watchers.size, 30);
});

test("a death found by a probe is recovered at once", async () => {
  const { keeper, clock, of } = keep({ workers: [aWorkerRow({ id: "w2" })], probes: { w2: "free" } });
  keeper.start();
  await clock.advance(250);
  assert.deepEqual(of("recover"), ["recover w2 250"]);
});

test("after one death it looks at all workers now: others may have died with it, further round the ring", async () => {
  const ids = Array.from({ length: 40 }, (_, n) => `w${String(n).padStart(2, "0")}`);
  const { keeper, of } = keep({
    worker: "w00",
    workers: ids.map((id) => aWorkerRow({ id })),
    probes: { w03: "free", w20: "free", w39: "free" },
  });
  await keeper.probe();
  assert.deepEqual(of("recover"), ["recover w03 0", "recover w20 0", "recover w39 0"]);
});

test("as long as nobody died it does not look at all workers with each probe", async () => {
  const { keeper, of } = keep({ workers: [aWorkerRow({ id: "w2" })] });
  await keeper.probe();
  assert.deepEqual(of("expire"), []);
});

test("FR-043 FR-044 a worker that is silent for a lease is recovered although its lock is held", async () => {
  const { keeper, clock, events } = keep({ workers: [aWorkerRow({ id: "w2", leaseMs: 90_000 })] });
  keeper.start();
  await clock.advance(22_500 + 89_999);
  assert.deepEqual(events.of("worker.gone"), []);
  await clock.advance(1);
  assert.deepEqual(
    events.of("worker.gone").map(({ worker, how }) => `${worker} ${how}`),
    ["w2 silent"],
  );
});

test("it never watches itself", async () => {
  const { keeper, clock, events } = keep({ workers: [aWorkerRow({ id: "w1" })], probes: { w1: "free" } });
  keeper.start();
  await clock.advance(600_000);
  assert.deepEqual(events.of("worker.gone"), []);
});

test("it kills its process only when the loop is blocked and a job is past deadline and grace", async () => {
  const cases: [lagMs: number, overdueMs: number | null, killed: boolean][] = [
    [0, null, false],
    [0, 60_000, false],
    [1_000, 60_000, false],
    [600_000, null, false],
    [1_001, 0, true],
    [5_000, 60_000, true],
  ];
  for (const [lagMs, overdueMs, killed] of cases) {
    const { keeper, state, told } = keep();
    state.lagMs = lagMs;
    state.answer = aBeatAnswer({ overdueMs, overdueJobId: overdueMs === null ? null : "job-7" });
    await keeper.beat();
    assert.equal(
      told.some((what) => what.startsWith("kill")),
      killed,
      `lag ${lagMs}, overdue ${overdueMs}`,
    );
  }
});

test("before it kills its process it leaves a last word that says which job and why", async () => {
  const { keeper, state, told, calls } = keep();
  state.lagMs = 5_000.4;
  state.answer = aBeatAnswer({ overdueMs: 61_000.2, overdueJobId: "job-7" });
  await keeper.beat();
  const word = "killed itself: job job-7 was 61000 ms past deadline and grace while the loop was blocked for 5000 ms";
  assert.deepEqual(calls, ["beat 0", `note w1 ${word} 0`]);
  assert.deepEqual(told, ["beaten 0", `kill ${word}`]);
});

test("it kills its process also when its last word can't be written", async () => {
  const { keeper, state, told } = keep({ store: { note: () => Promise.reject(new Error("read-only")) } });
  state.lagMs = 5_000;
  state.answer = aBeatAnswer({ overdueMs: 1, overdueJobId: "job-7" });
  await keeper.beat();
  assert.match(told[1]!, /^kill/);
});

test("it does not kill a process whose loop came back while the last word was written, and says so", async () => {
  const words: string[] = [];
  const kept = keep({
    store: {
      note: (_worker, word) => {
        words.push(word);
        kept.state.lagMs = 3;
        return Promise.resolve();
      },
    },
  });
  kept.state.lagMs = 5_000;
  kept.state.answer = aBeatAnswer({ overdueMs: 61_000, overdueJobId: "job-7" });
  await kept.keeper.beat();
  assert.deepEqual(kept.told, ["beaten 0"]);
  assert.match(words.at(-1)!, /^would have killed itself: job job-7 .*; then the loop came back$/);
});

test("a loop that stands still is told once, its worker beats meanwhile, and it is told again the next time", async () => {
  const { keeper, state, events, of } = keep();
  state.lagMs = 1_500.6;
  await keeper.probe();
  await keeper.probe();
  assert.deepEqual(
    events.of("worker.blocked").map(({ worker, loopLagMs }) => [worker, loopLagMs]),
    [["w1", 1_501]],
  );
  assert.ok(of("beat").length >= 1);
  state.lagMs = 3;
  await keeper.probe();
  state.lagMs = 2_000;
  await keeper.probe();
  assert.equal(events.of("worker.blocked").length, 2);
});

test("a schema newer than the program makes the worker unfit, an older or equal one does not", async () => {
  const { keeper, state, told } = keep();
  await keeper.beat();
  state.answer = aBeatAnswer({ schemaVersion: 0 });
  await keeper.beat();
  assert.ok(told.every((what) => what.startsWith("beaten")));
  state.answer = aBeatAnswer({ schemaVersion: 2 });
  await keeper.beat();
  assert.equal(told.at(-1), "unfit schema-newer: the store's schema is 2, this program knows 1");
});

test("a live worker under another kernel makes this one unfit", async () => {
  const { keeper, clock, state, told } = keep();
  state.workers = [aWorkerRow({ id: "w9", bootId: "another", host: "there", beats: 1 })];
  await keeper.look();
  await clock.advance(22_500);
  state.workers = [aWorkerRow({ id: "w9", bootId: "another", host: "there", beats: 2 })];
  await keeper.look();
  assert.deepEqual(told, ["unfit foreign-worker: worker w9 on there is alive under another kernel"]);
});

test("an answer that comes after the stop is not told any more", async () => {
  const answer = held<BeatAnswer>();
  const { keeper, told } = keep({ store: { beat: () => answer.promise } });
  const beat = keeper.beat();
  await keeper.stop();
  answer.resolve(aBeatAnswer({ live: false }));
  await beat;
  assert.deepEqual(told, []);
});

test("FR-063 a large log that was flushed is told; one that a reader holds back is told once, with the reader, until it is small again", async () => {
  const { keeper, state, events } = keep();
  const readers = [{ pid: 7, command: "backup" }];
  await keeper.chores();
  assert.deepEqual(events.of("wal.checkpointed"), [], "a small one is no news");
  state.upkeep = { walBytes: 0, frames: 9, heldBy: null };
  await keeper.chores();
  assert.deepEqual(events.of("wal.checkpointed"), [{ name: "wal.checkpointed", frames: 9, truncated: true }]);
  state.upkeep = { walBytes: 99, frames: 3, heldBy: readers };
  await keeper.chores();
  await keeper.chores();
  assert.deepEqual(events.of("wal.held"), [{ name: "wal.held", bytes: 99, readers }]);
  state.upkeep = { walBytes: 0, frames: 0, heldBy: null };
  await keeper.chores();
  state.upkeep = { walBytes: 98, frames: 0, heldBy: [] };
  await keeper.chores();
  assert.equal(events.of("wal.held").length, 1, "who can't be named may be gone at the next look");
  await keeper.chores();
  assert.deepEqual(events.of("wal.held").at(-1), { name: "wal.held", bytes: 98, readers: [] });
});

test("where one looks for all, it probes everybody, the others nobody, and without one each probes its ring", async () => {
  const workers = Array.from({ length: 30 }, (_, n) => aWorkerRow({ id: `w${String(n).padStart(2, "0")}` }));
  for (const [leads, probes] of [
    [true, 29],
    [false, 0],
    [null, 8],
  ] as const) {
    const kept = keep({ worker: "w05", workers, liveness: { leads: () => Promise.resolve(leads) } });
    await kept.keeper.probe();
    assert.equal(kept.probed.length, probes, String(leads));
  }
});

test("whoever does not look for all still watches its ring, so that a frozen lookout is found", async () => {
  const workers = Array.from({ length: 30 }, (_, n) => aWorkerRow({ id: `w${String(n).padStart(2, "0")}` }));
  const kept = keep({ worker: "w05", workers, liveness: { leads: () => Promise.resolve(false) } });
  await kept.keeper.look();
  assert.deepEqual(kept.probed, ["w06", "w07", "w08", "w09", "w10", "w11", "w12", "w13"]);
});

test("where workers of several machines belong together, one under another kernel is no mistake", async () => {
  const foreign = aWorkerRow({ id: "w2", bootId: "elsewhere", beats: 1 });
  const kept = keep({ workers: [foreign], liveness: { manyHosts: true } });
  await kept.keeper.look();
  kept.state.workers = [{ ...foreign, beats: 2 }];
  await kept.keeper.look();
  assert.deepEqual(
    kept.told.filter((told) => told.startsWith("unfit")),
    [],
  );
});
