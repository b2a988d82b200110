// Holds the maintenance to its rounds: beats, probes, looks, sweeps, and when it tells its process to stop or to die.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";
import { pause } from "../../src/job/time.ts";
import { Maintenance } from "../../src/recovery/maintenance.ts";
import type { Liveness, LivenessTimes, Neighbours, Probe, ProcessState, WorkerRow } from "../../src/stores/liveness.ts";
import type { SomeVerbs } from "../../src/stores/observed.ts";
import type { BeatAnswer, Pending, StoreNews, WorkerQuery } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";
import { aBeatAnswer, aWorkerRow, condemned, fakeStore, held, Recorder } from "../support/samples.ts";

const TIMES: LivenessTimes = { heartbeatMs: 30_000, leaseMs: 90_000, sweepMs: 60_000, probeMs: 250, contactMs: 3_000 };

interface Given {
  readonly worker?: string;
  readonly times?: Partial<LivenessTimes>;
  readonly workers?: WorkerRow[];
  readonly probes?: Record<string, Probe>;
  readonly store?: SomeVerbs;
  readonly liveness?: Partial<Liveness>;
  /** What the kernel says, by pid. */
  readonly processes?: Record<number, ProcessState>;
  /** What waits, if this process is elected. */
  readonly pending?: () => Pending;
  readonly pendingTakesMs?: number;
  readonly neighbours?: Neighbours;
}

/** A maintenance of w1 with everything that it did written down. */
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
  const noNews: readonly StoreNews[] = [];
  const state = {
    lagMs: 0,
    answer: aBeatAnswer(),
    workers: given.workers ?? [],
    probes: given.probes ?? {},
    upkeep: noNews,
  };
  const at = (what: string): void => void calls.push(`${what} ${clock.mono() - started}`);
  const store = fakeStore({
    beat: (worker, { lastWord }) => {
      at(lastWord === undefined ? "beat" : `last word of ${worker} ${lastWord}`);
      return Promise.resolve({ ...state.answer, now: clock.now() });
    },
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
    heldBy: (query) => {
      if ("overdue" in query) {
        at(`expire+${query.overdue.marginMs}`);
        confirmations.push(query.overdue.confirmed);
      }
      return Promise.resolve({ jobs: [], more: false });
    },
    purge: () => (at("purge"), Promise.resolve({ jobs: 0, incidents: 0, more: false })),
    losses: { open: () => Promise.resolve([]) },
    upkeep: {
      tend: () => Promise.resolve(state.upkeep),
      pending: (kinds) => {
        at(`pending ${kinds.join(",")}`);
        const found = given.pending?.() ?? { now: false, nextInMs: null };
        const { pendingTakesMs } = given;
        return pendingTakesMs === undefined ? Promise.resolve(found) : pause(clock, pendingTakesMs).then(() => found);
      },
    },
    notify: (what) => at(what),
    condemn: (request) => {
      at(`recover ${request.worker.id}`);
      state.workers = state.workers.filter(({ id }) => id !== request.worker.id);
      return Promise.resolve(condemned(request));
    },
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
  const maintenance = new Maintenance(
    {
      store,
      liveness,
      clock,
      random: fixedRandom(),
      events,
      newId: () => `id-${++ids}`,
      processState: ({ pid }) => given.processes?.[pid] ?? "unknown",
      ...(given.neighbours && { neighbours: given.neighbours }),
    },
    {
      worker: given.worker ?? "w1",
      bootId: "boot",
      times: { ...TIMES, ...given.times },
      retention: { finishedMs: 1, incidentsMs: 2 },
      registered: { now: clock.now(), sentMono: clock.mono(), receivedMono: clock.mono() },
      schemaVersion: 1,
      ...(given.pending && { pollMs: 1_000 }),
    },
    {
      elected: (is) => void told.push(`elected ${is}`),
      loopLagMs: () => state.lagMs,
      beaten: (sentAtMono) => void told.push(`beaten ${sentAtMono - started}`),
      disowned: () => void told.push("disowned"),
      unfit: (why, detail) => void told.push(`unfit ${why}: ${detail}`),
      kill: (reason) => void told.push(`kill ${reason}`),
    },
  );
  const of = (what: string): string[] => calls.filter((call) => call.startsWith(what));
  return { maintenance, clock, events, state, calls, queries, probed, told, confirmations, of };
}

test("FR-031 FR-032 AC-006 it beats at its interval and tells when each beat was sent", async () => {
  const { maintenance, clock, of, told } = keep();
  maintenance.start();
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
  kept.maintenance.start();
  await kept.clock.advance(61_000);
  assert.deepEqual(at, [30_000, 30_100, 30_300, 30_700, 60_700]);
  assert.equal(kept.events.of("heartbeat.failed").length, 3);
});

test("FR-039 FR-040 it sweeps at its interval", async () => {
  const { maintenance, clock, of } = keep();
  maintenance.start();
  await clock.advance(120_000);
  assert.deepEqual(of("purge"), ["purge 60000", "purge 120000"]);
});

test("a sweep recovers finished workers that still hold jobs, and reads no row of other finished workers: there may be months of them", async () => {
  const over = [
    aWorkerRow({ id: "w2", state: "gone", heldCount: 1 }),
    aWorkerRow({ id: "w3", state: "stopped", heldCount: 2 }),
    aWorkerRow({ id: "w4", state: "gone", heldCount: 0 }),
  ];
  const { maintenance, of, queries } = keep({ workers: over });
  await maintenance.sweep();
  assert.deepEqual(of("recover"), ["recover w2 0", "recover w3 0"]);
  assert.deepEqual(
    queries.filter(({ which }) => which === "all"),
    [],
  );
});

test("FR-039 FR-040 AC-007 it looks at everybody often enough to see silence within a quarter of a lease, and expires what is overdue", async () => {
  const { maintenance, clock, of } = keep();
  maintenance.start();
  await clock.advance(60_000);
  // A sweep waits for a lease more.
  assert.deepEqual(of("expire"), ["expire+2000 22500", "expire+2000 45000", "expire+92000 60000"]);
});

test("what is overdue by a step of the store's clock is not confirmed, however far it is stepped", async () => {
  const { maintenance, clock, confirmations } = keep();
  maintenance.start();
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
    const { maintenance, clock, told, events, calls } = keep({ store: { beat } });
    maintenance.start();
    await clock.advance(30_000);
    assert.deepEqual(told, ["unfit store-replaced: it was moved"]);
    assert.deepEqual(events.of("heartbeat.failed"), []);
    const done = calls.length;
    await clock.advance(120_000);
    assert.deepEqual([told.length, calls.length], [1, done]);
  }
});

test("any task of the maintenance that finds another store stops the worker: it does not wait for the next heartbeat", async () => {
  const { maintenance, clock, told, events } = keep({ store: { workers: () => Promise.reject(REPLACED) } });
  maintenance.start();
  await clock.advance(1_000);
  assert.deepEqual(told, ["unfit store-replaced: it was moved"]);
  assert.deepEqual(events.of("store.failed"), []);
});

test("a worker whose row is no longer live is notified once, and everything stops", async () => {
  const { maintenance, clock, calls, state, told } = keep();
  state.answer = aBeatAnswer({ live: false });
  maintenance.start();
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
  const { maintenance, clock, calls } = keep({ store: { purge: () => purge.promise } });
  maintenance.start();
  await clock.advance(60_000);
  let stopped = false;
  const stopping = maintenance.stop().then(() => (stopped = true));
  await clock.settle();
  assert.equal(stopped, false);
  purge.resolve({ jobs: 0, incidents: 0, more: false });
  await stopping;
  assert.equal(clock.nextTimerInMs(), null);
  calls.length = 0;
  await clock.advance(600_000);
  assert.deepEqual(calls, []);
});

test("the heartbeat of a worker that holds nothing polls every 10 s, within a part of the time that a heartbeat may take", async () => {
  const polls: (readonly [at: number, ms: number])[] = [];
  let answer = aBeatAnswer();
  const kept: ReturnType<typeof keep> = keep({
    times: { heartbeatMs: 4_000 },
    store: {
      beat: (_, { pollMs }) => {
        if (pollMs !== undefined) polls.push([kept.clock.mono() - startedMono, pollMs]);
        return Promise.resolve({ ...answer, now: kept.clock.now() });
      },
    },
  });
  const startedMono = kept.clock.mono();
  kept.maintenance.start();
  await kept.clock.advance(24_000);
  assert.deepEqual(
    polls.map(([at]) => at),
    [8_000, 16_000, 24_000],
    "not the first one: what the worker holds is not known before",
  );
  assert.ok(polls.every(([, ms]) => ms === 50));
  answer = aBeatAnswer({ held: { count: 1, digest: 7 } });
  await kept.clock.advance(4_000);
  polls.length = 0;
  await kept.clock.advance(60_000);
  assert.deepEqual(polls, [], "it holds a job");
});

test("the process that polls for all rests ten times as long as its poll takes, up to 10 s", async () => {
  const { maintenance, clock, of } = keep({
    workers: [aWorkerRow({ id: "w1" })],
    pending: () => ({ now: false, nextInMs: null }),
    pendingTakesMs: 500,
  });
  maintenance.start();
  await clock.advance(60_000);
  const at = of("pending").map((call) => Number(call.split(" ").at(-1)));
  assert.ok(at.length > 5);
  for (const [i, ms] of at.entries()) if (i > 0) assert.equal(ms - at[i - 1]!, 5_500);
});

test("a slow purge does not pile up, and holds up neither the heartbeat nor the detection of a death nor what is overdue", async () => {
  let running = 0;
  const overlaps: number[] = [];
  const purge = held<{ jobs: number; incidents: number; more: boolean }>();
  const { maintenance, clock, of, state } = keep({
    times: { heartbeatMs: 1_000, leaseMs: 4_000, sweepMs: 1_000 },
    store: { purge: () => (overlaps.push(++running), purge.promise.finally(() => running--)) },
  });
  maintenance.start();
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

test("what throws is reported and done again at its time, and stops nothing else", async () => {
  const { maintenance, clock, events, of } = keep({
    store: { workers: () => Promise.reject(new Error("disk is full")) },
  });
  maintenance.start();
  await clock.advance(60_000);
  const told = new Set(events.of("store.failed").map(({ doing, error }) => `${doing}: ${error.message}`));
  assert.deepEqual([...told].toSorted(), [
    "maintenance: check: disk is full",
    "maintenance: jobs left behind: disk is full",
    "maintenance: probe: disk is full",
  ]);
  assert.equal(of("beat").length, 2);
  assert.equal(of("purge").length, 1);
});

test("each task of a sweep fails for itself: a purge that fails hides neither overdue jobs nor jobs left behind", async () => {
  const { maintenance, events, of } = keep({
    workers: [aWorkerRow({ id: "w2", state: "gone", heldCount: 1 })],
    store: {
      heldBy: (query) =>
        "overdue" in query ? Promise.reject(new Error("no rights")) : Promise.resolve({ jobs: [], more: false }),
      purge: () => Promise.reject(new Error("a foreign key")),
    },
  });
  await maintenance.beat();
  await maintenance.sweep();
  assert.deepEqual(of("recover"), ["recover w2 0"]);
  assert.deepEqual(
    events.of("store.failed").map(({ doing, error }) => `${doing}: ${error.message}`),
    ["maintenance: long overdue jobs: no rights", "maintenance: retention: a foreign key"],
  );
});

test("a job that retention can't delete is named", async () => {
  const error = { name: "error", message: "a row refers to it" };
  const refused = { jobs: 2, jobId: "job-7", error };
  const { maintenance, events } = keep({
    store: { purge: () => Promise.resolve({ jobs: 3, incidents: 0, more: false, refused }) },
  });
  await maintenance.sweep();
  assert.deepEqual(
    events.of("store.failed").map(({ doing, error: told }) => `${doing}: ${told.message}`),
    ["retention of 2 jobs, of job-7 first: a row refers to it"],
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
  kept.maintenance.start();
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
  const { maintenance, probed } = keep({
    worker: "w2",
    workers: ["w1", "w2", "w3", "w4"].map((id) => aWorkerRow({ id })),
  });
  await maintenance.probe();
  assert.deepEqual(probed.toSorted(), ["w1", "w3", "w4"]);
});

test("in a large fleet it probes the eight that follow it in the ring, and reads no more rows than those", async () => {
  const ids = Array.from({ length: 100 }, (_, n) => `w${String(n).padStart(3, "0")}`);
  const workers = ids.map((id) => aWorkerRow({ id }));
  const middle = keep({ worker: "w050", workers });
  await middle.maintenance.probe();
  assert.deepEqual(middle.probed, ids.slice(51, 59));
  assert.deepEqual(middle.queries, [{ after: "w050", limit: 8 }]);
  const end = keep({ worker: "w097", workers });
  await end.maintenance.probe();
  assert.deepEqual(end.probed, [...ids.slice(98), ...ids.slice(0, 6)]);
  assert.deepEqual(end.queries, [{ after: "w097", limit: 8 }, { limit: 6 }]);
});

test("with every worker probing its ring, each lock of a large fleet is watched by eight others", async () => {
  const ids = Array.from({ length: 30 }, (_, n) => `w${String(n).padStart(2, "0")}`);
  const workers = ids.map((id) => aWorkerRow({ id }));
  const watchers = new Map<string, number>();
  for (const worker of ids) {
    const { maintenance, probed } = keep({ worker, workers });
    await maintenance.probe();
    for (const id of probed) watchers.set(id, (watchers.get(id) ?? 0) + 1);
  }
  assert.deepEqual(new Set(watchers.values()), new Set([8]));
  assert.equal(watchers.size, 30);
});

test("a death found by a probe is recovered at once", async () => {
  const { maintenance, clock, of } = keep({ workers: [aWorkerRow({ id: "w2" })], probes: { w2: "free" } });
  maintenance.start();
  await clock.advance(250);
  assert.deepEqual(of("recover"), ["recover w2 250"]);
});

test("after one death it looks at all workers now: others may have died with it, further round the ring", async () => {
  const ids = Array.from({ length: 40 }, (_, n) => `w${String(n).padStart(2, "0")}`);
  const { maintenance, of } = keep({
    worker: "w00",
    workers: ids.map((id) => aWorkerRow({ id })),
    probes: { w03: "free", w20: "free", w39: "free" },
  });
  await maintenance.probe();
  assert.deepEqual(of("recover"), ["recover w03 0", "recover w20 0", "recover w39 0"]);
});

test("as long as no worker died it does not read all workers with each probe", async () => {
  const { maintenance, of } = keep({ workers: [aWorkerRow({ id: "w2" })] });
  await maintenance.probe();
  assert.deepEqual(of("expire"), []);
});

test("FR-043 FR-044 a worker that is silent for a lease is recovered although its lock is held", async () => {
  const { maintenance, clock, events } = keep({ workers: [aWorkerRow({ id: "w2", leaseMs: 90_000 })] });
  maintenance.start();
  await clock.advance(22_500 + 89_999);
  assert.deepEqual(events.of("worker.gone"), []);
  await clock.advance(1);
  assert.deepEqual(
    events.of("worker.gone").map(({ worker, how }) => `${worker} ${how}`),
    ["w2 silent"],
  );
});

test("it never watches itself", async () => {
  const { maintenance, clock, events } = keep({ workers: [aWorkerRow({ id: "w1" })], probes: { w1: "free" } });
  maintenance.start();
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
    const { maintenance, state, told } = keep();
    state.lagMs = lagMs;
    state.answer = aBeatAnswer({ overdueMs, overdueJobId: overdueMs === null ? null : "job-7" });
    await maintenance.beat();
    assert.equal(
      told.some((what) => what.startsWith("kill")),
      killed,
      `lag ${lagMs}, overdue ${overdueMs}`,
    );
  }
});

test("before it kills its process it leaves a last word that says which job and why", async () => {
  const { maintenance, state, told, calls } = keep();
  state.lagMs = 5_000.4;
  state.answer = aBeatAnswer({ overdueMs: 61_000.2, overdueJobId: "job-7" });
  await maintenance.beat();
  const word = "killed itself: job job-7 was 61000 ms past deadline and grace while the loop was blocked for 5000 ms";
  assert.deepEqual(calls, ["beat 0", `last word of w1 ${word} 0`]);
  assert.deepEqual(told, ["beaten 0", `kill ${word}`]);
});

test("it kills its process also when its last word can't be written", async () => {
  const { maintenance, state, told } = keep({
    store: {
      beat: (_worker, { lastWord }) =>
        lastWord === undefined ? Promise.resolve({ ...state.answer }) : Promise.reject(new Error("read-only")),
    },
  });
  state.lagMs = 5_000;
  state.answer = aBeatAnswer({ overdueMs: 1, overdueJobId: "job-7" });
  await maintenance.beat();
  assert.match(told[1]!, /^kill/);
});

test("it does not kill a process whose loop came back while the last word was written, and says so", async () => {
  const words: string[] = [];
  const kept = keep({
    store: {
      beat: (_worker, { lastWord }) => {
        if (lastWord !== undefined) {
          words.push(lastWord);
          kept.state.lagMs = 3;
        }
        return Promise.resolve(kept.state.answer);
      },
    },
  });
  kept.state.lagMs = 5_000;
  kept.state.answer = aBeatAnswer({ overdueMs: 61_000, overdueJobId: "job-7" });
  await kept.maintenance.beat();
  assert.deepEqual(kept.told, ["beaten 0"]);
  assert.match(words.at(-1)!, /^would have killed itself: job job-7 .*; then the loop came back$/);
});

test("a loop that stands still is reported once, its worker beats meanwhile, and it is reported again the next time", async () => {
  const { maintenance, state, events, of } = keep();
  state.lagMs = 1_500.6;
  await maintenance.probe();
  await maintenance.probe();
  assert.deepEqual(
    events.of("worker.blocked").map(({ worker, loopLagMs }) => [worker, loopLagMs]),
    [["w1", 1_501]],
  );
  assert.ok(of("beat").length >= 1);
  state.lagMs = 3;
  await maintenance.probe();
  state.lagMs = 2_000;
  await maintenance.probe();
  assert.equal(events.of("worker.blocked").length, 2);
});

test("a schema newer than the program makes the worker unfit, an older or equal one does not", async () => {
  const { maintenance, state, told } = keep();
  await maintenance.beat();
  state.answer = aBeatAnswer({ schemaVersion: 0 });
  await maintenance.beat();
  assert.ok(told.every((what) => what.startsWith("beaten")));
  state.answer = aBeatAnswer({ schemaVersion: 2 });
  await maintenance.beat();
  assert.equal(told.at(-1), "unfit schema-newer: the store's schema is 2, this program knows 1");
});

test("a live worker under another kernel makes this one unfit", async () => {
  const { maintenance, clock, state, told } = keep();
  state.workers = [aWorkerRow({ id: "w9", bootId: "another", host: "there", beats: 1 })];
  await maintenance.checkWorkers();
  await clock.advance(22_500);
  state.workers = [aWorkerRow({ id: "w9", bootId: "another", host: "there", beats: 2 })];
  await maintenance.checkWorkers();
  assert.deepEqual(told, ["unfit foreign-worker: worker w9 on there is alive under another kernel"]);
});

test("an answer that comes after the stop is no longer reported", async () => {
  const answer = held<BeatAnswer>();
  const { maintenance, told } = keep({ store: { beat: () => answer.promise } });
  const beat = maintenance.beat();
  await maintenance.stop();
  answer.resolve(aBeatAnswer({ live: false }));
  await beat;
  assert.deepEqual(told, []);
});

test("what the store reports of its own files is emitted as it says it", async () => {
  const { maintenance, state, events } = keep();
  await maintenance.chores();
  assert.deepEqual(events.of("store.upkeep"), []);
  const news: StoreNews = { what: "wal.held", level: "warn", text: "the log is large", facts: { bytes: 99 } };
  state.upkeep = [news];
  await maintenance.chores();
  assert.deepEqual(events.of("store.upkeep"), [{ name: "store.upkeep", ...news }]);
});

test("where one worker checks for all, it probes every worker and the others none; without one each probes its ring", async () => {
  const workers = Array.from({ length: 30 }, (_, n) => aWorkerRow({ id: `w${String(n).padStart(2, "0")}` }));
  for (const [leads, probes] of [
    [true, 29],
    [false, 0],
    [null, 8],
  ] as const) {
    const kept = keep({ worker: "w05", workers, liveness: { leads: () => Promise.resolve(leads) } });
    await kept.maintenance.probe();
    assert.equal(kept.probed.length, probes, String(leads));
  }
});

test("a worker that does not check for all still watches its ring, so that a frozen detector is found", async () => {
  const workers = Array.from({ length: 30 }, (_, n) => aWorkerRow({ id: `w${String(n).padStart(2, "0")}` }));
  const kept = keep({ worker: "w05", workers, liveness: { leads: () => Promise.resolve(false) } });
  await kept.maintenance.checkWorkers();
  assert.deepEqual(kept.probed, ["w06", "w07", "w08", "w09", "w10", "w11", "w12", "w13"]);
});

test("where another process checks all locks, the processes of the neighbours are checked all the same, four times a second", async () => {
  const workers = Array.from({ length: 30 }, (_, n) =>
    aWorkerRow({ id: `w${String(n).padStart(2, "0")}`, pid: 100 + n }),
  );
  const processes: Record<number, ProcessState> = { 107: "alive" };
  const kept = keep({ worker: "w05", workers, processes, liveness: { leads: () => Promise.resolve(false) } });
  kept.maintenance.start();
  await kept.clock.advance(250);
  assert.deepEqual(kept.of("recover"), []);
  processes[107] = "gone";
  await kept.clock.advance(250);
  assert.deepEqual(kept.of("recover"), ["recover w07 500"]);
  assert.equal(kept.events.of("worker.gone")[0]!.how, "gone");
});

test("where workers of several machines belong together, one under another kernel is not a mistake", async () => {
  const foreign = aWorkerRow({ id: "w2", bootId: "elsewhere", beats: 1 });
  const kept = keep({ workers: [foreign], liveness: { manyHosts: true } });
  await kept.maintenance.checkWorkers();
  kept.state.workers = [{ ...foreign, beats: 2 }];
  await kept.maintenance.checkWorkers();
  assert.deepEqual(
    kept.told.filter((told) => told.startsWith("unfit")),
    [],
  );
});

test("after a time in which this watcher could not write, silence is counted from its first write that got through", async () => {
  for (let blockedMs = 60_000; blockedMs <= 200_000; blockedMs += 5_000) {
    const through: number[] = [];
    const kept = keep({
      workers: [aWorkerRow({ id: "w2", leaseMs: 90_000 })],
      probes: { w2: "unknown" },
      store: {
        beat: () => {
          if (kept.clock.mono() < blockedMs) return Promise.reject(new Error("busy"));
          through.push(kept.clock.mono());
          return Promise.resolve({ ...aBeatAnswer(), now: kept.clock.now() });
        },
      },
    });
    kept.maintenance.start();
    await kept.clock.advance(blockedMs + 180_000);
    const takenAt = Number(kept.of("recover w2")[0]!.split(" ").at(-1));
    assert.ok(takenAt - through[0]! >= 90_000, `blocked for ${blockedMs} ms, taken after ${takenAt - through[0]!} ms`);
  }
});

test("the last worker in the ring polls for all: it wakes them for what waits, and proves every 16 s that it polls", async () => {
  const state = { now: false };
  const { maintenance, clock, of, told } = keep({
    worker: "w5",
    workers: [aWorkerRow({ id: "w1", kinds: ["mail"] }), aWorkerRow({ id: "w3", kinds: ["mail", "sms"] })],
    pending: () => ({ now: state.now, nextInMs: null }),
  });
  maintenance.start();
  await clock.advance(4_200);
  assert.deepEqual(told, ["elected true"]);
  assert.equal(of("pending mail,sms").length, 4, "at once when it is elected, then every second");
  assert.deepEqual([of("proof").length, of("wake").length], [1, 0]);
  state.now = true;
  await clock.advance(2_000);
  assert.deepEqual([of("proof").length, of("wake").length], [1, 2]);
  await clock.advance(10_000);
  assert.deepEqual([of("proof").length, of("wake").length], [1, 12]);
  await clock.advance(2_000);
  assert.deepEqual([of("proof").length, of("wake").length], [2, 14]);
});

test("a worker that is not the last in the ring polls for none, and does as soon as those after it have ended", async () => {
  const last = aWorkerRow({ id: "w9" });
  const { maintenance, clock, of, state, told } = keep({
    workers: [last],
    pending: () => ({ now: true, nextInMs: null }),
  });
  maintenance.start();
  await clock.advance(5_000);
  assert.deepEqual([told, of("pending"), of("wake"), of("proof")], [[], [], [], []]);
  state.workers = [{ ...last, state: "recovering" }];
  await clock.advance(260);
  assert.deepEqual([told, of("wake").length, of("proof").length], [["elected true"], 1, 1]);
});

test("where a server elects one process, that one polls for all, as soon as something is due, until another is elected", async () => {
  const liveness = { is: true };
  const { maintenance, clock, of, told } = keep({
    workers: [aWorkerRow({ id: "w9" })],
    liveness: { leads: () => Promise.resolve(liveness.is) },
    pending: () => ({ now: false, nextInMs: 300 }),
  });
  maintenance.start();
  await clock.advance(1_000);
  assert.deepEqual(told, ["elected true"]);
  const polls = of("pending").length;
  assert.ok(polls >= 3, `${polls} polls within a second`);
  liveness.is = false;
  await clock.advance(1_000);
  const after = of("pending").length;
  await clock.advance(5_000);
  assert.deepEqual([told, of("pending").length], [["elected true", "elected false"], after]);
});

test("where no wake-up is lost, the elected process polls less and less often while nothing is written, and soon again after a wake-up", async () => {
  const state = { changes: 1 };
  const { maintenance, clock, of } = keep({
    workers: [],
    liveness: { leads: () => Promise.resolve(true) },
    store: { wakesSurely: true },
    pending: () => ({ now: false, nextInMs: null, changes: state.changes, isQuiet: true }),
  });
  maintenance.start();
  await clock.advance(120_000);
  const rested = of("pending").length;
  assert.ok(rested >= 6 && rested <= 11, `${rested} polls in two minutes`);
  await clock.advance(2_000);
  const before = of("pending").length;
  maintenance.heard("wake");
  await clock.advance(1_100);
  assert.equal(of("pending").length, before + 1, "one second after the wake-up");
  state.changes = 2;
  await clock.advance(2_100);
  assert.equal(of("pending").length, before + 2, "two seconds later");
  await clock.advance(1_000);
  assert.equal(of("pending").length, before + 3, "and a second after a poll that found a change");
});

test("a lone worker whose store announces who comes reads the workers again when it does", async () => {
  const { maintenance, clock, queries } = keep({
    workers: [],
    liveness: { leads: () => Promise.resolve(true) },
    store: { wakesSurely: true },
    pending: () => ({ now: false, nextInMs: null, changes: 1, isQuiet: true }),
  });
  maintenance.start();
  await clock.advance(60_000);
  const before = queries.length;
  assert.ok(before <= 10, `${before} reads in a minute`);
  maintenance.heard("fleet");
  await clock.advance(300);
  assert.equal(queries.length, before + 1);
});

test("a poll that fails is reported, and proves nothing", async () => {
  const { maintenance, clock, of, events } = keep({
    workers: [],
    pending: () => {
      throw new Error("busy");
    },
  });
  maintenance.start();
  await clock.advance(1_000);
  assert.deepEqual(of("proof"), []);
  assert.ok(events.of("store.failed").length > 0);
});

test("a hint that a neighbour has ended makes it look at once, and without a proof nothing is taken", async () => {
  let ended: (worker: string) => void = () => {};
  const known: string[][] = [];
  const processes: Record<number, ProcessState> = { 7: "alive" };
  const { maintenance, clock, of, state } = keep({
    workers: [aWorkerRow({ id: "w2", pid: 7 })],
    processes,
    neighbours: {
      know: (workers) => void known.push(workers.map(({ id }) => id)),
      onEnded: (listener) => void (ended = listener),
      close: () => {},
    },
  });
  maintenance.start();
  await clock.advance(260);
  assert.deepEqual(known, [["w2"]]);
  ended("w2");
  ended("nobody");
  await clock.advance(200);
  assert.deepEqual([of("recover"), state.workers.length], [[], 1]);
  processes[7] = "gone";
  ended("w2");
  await clock.advance(1);
  assert.deepEqual(of("recover").length, 1, "long before the next probe");
});
