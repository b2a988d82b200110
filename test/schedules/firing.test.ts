// Schedules through the engine, on a clock that the test moves: what fires, once, and what is done with what was missed.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import {
  type Declared,
  type Engine,
  type EngineEvent,
  ErrorCode,
  job,
  open,
  schedule,
  type Scheduled,
  type ScheduleOptions,
} from "../../src/index.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { setRow } from "../../src/job/schedules.ts";
import { systemRandom } from "../../src/platform/clock.ts";
import { zoneDataVersion } from "../../src/schedules/calendar.ts";
import { ScheduleDeclaration, specOf } from "../../src/schedules/declaration.ts";
import { ScheduleFiring } from "../../src/schedules/firing.ts";
import { Database } from "../../src/stores/sqlite/database.ts";
import { migrate } from "../../src/stores/sqlite/schema.ts";
import { sqliteStore } from "../../src/stores/sqlite/store.ts";
import { type VirtualClock, virtualClock } from "../../src/testing/index.ts";
import { says } from "../engine/engines.ts";

const START = Date.UTC(2026, 2, 28, 12);
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
/** Few timers, so that a day passes in moments. */
const QUIET = { interval: "1d", lease: "3d", probe: "1d", sweep: "1d" } as const;

interface Place {
  readonly clock: VirtualClock;
  readonly engine: Engine;
  readonly events: EngineEvent[];
  readonly runs: { readonly input: string; readonly scheduled: Scheduled | undefined }[];
}

async function placeFor(t: TestContext, jobsOf: (runs: Place["runs"]) => readonly Declared[]): Promise<Place> {
  const clock = virtualClock(START);
  const events: EngineEvent[] = [];
  const runs: Place["runs"] = [];
  const engine = await open("sqlite::memory:", {
    jobs: jobsOf(runs),
    clock,
    logger: false,
    heartbeat: QUIET,
    poll: "10m",
    onEvent: (event) => events.push(event),
  });
  t.after(async () => {
    const closing = engine.close({ grace: "0ms" });
    await clock.advance(1_000);
    await closing;
  });
  return { clock, engine, events, runs };
}

/** So many hours, of which only the minutes around each full hour run: the others would be thousands of polls. */
async function hours(clock: VirtualClock, count: number): Promise<void> {
  for (let hour = 0; hour < count; hour++) {
    const toNextMs = HOUR - (clock.now() % HOUR);
    if (toNextMs > 10_000) clock.freeze(toNextMs - 10_000);
    await clock.advance(Math.min(toNextMs, 10_000) + 5_000);
  }
}

const reportTo = (runs: Place["runs"]) =>
  job<string>("report").handle((input, run) => void runs.push({ input, scheduled: run.scheduled }));
type Report = ReturnType<typeof reportTo>;

async function place(t: TestContext): Promise<Place & { readonly report: Report }> {
  let report: Report | undefined;
  const made = await placeFor(t, (runs) => [(report = reportTo(runs))]);
  return { ...made, report: report! };
}

/** Hours and minutes of the occurrences that ran. */
const ats = (runs: Place["runs"]): (string | undefined)[] => runs.map(({ scheduled }) => scheduled?.at.slice(11, 16));
const skipped = (events: readonly EngineEvent[]): string[] =>
  events.flatMap((event) => (event.name === "schedule.skipped" ? [`${event.reason} ${event.count}`] : []));

test("a cron schedule enqueues one job for each occurrence, and its handler knows which", async (t) => {
  const { clock, engine, runs, report } = await place(t);
  await engine.schedules.set("hourly", report, { cron: "0 * * * *", input: "x" });
  await engine.start();
  await hours(clock, 3);
  assert.deepEqual(runs[0], {
    input: "x",
    scheduled: { schedule: "hourly", at: "2026-03-28T13:00:00.000Z", caughtUp: false },
  });
  assert.deepEqual(ats(runs), ["13:00", "14:00", "15:00"]);
  const info = await engine.schedules.get("hourly");
  assert.equal(info?.fired, 3);
  assert.equal(info?.nextAt, Date.parse("2026-03-28T16:00:00Z"));
  assert.deepEqual(
    (await engine.schedules.jobs("hourly")).map(({ at }) => new Date(at).toISOString().slice(11, 16)),
    ["15:00", "14:00", "13:00"],
  );
});

test("a job that no schedule enqueued has no occurrence, also if its id looks like one", async (t) => {
  const { clock, engine, runs, report } = await place(t);
  await engine.start();
  await engine.enqueue(report, "plain", { id: `s${"0".repeat(31)}` });
  await engine.enqueue(report, "plain");
  await clock.advance(1_000);
  assert.deepEqual(
    runs.map(({ scheduled }) => scheduled),
    [undefined, undefined],
  );
});

const downFor = (downHours: number, options: Partial<ScheduleOptions<string>>) => async (t: TestContext) => {
  const { clock, engine, events, runs, report } = await place(t);
  await engine.schedules.set("hourly", report, { every: "1h", input: "x", overlap: "allow", ...options });
  clock.freeze(downHours * HOUR + 30 * MINUTE);
  await engine.start();
  await clock.advance(1_000);
  const caughtUp = ats(runs);
  assert.ok(runs.every(({ scheduled }) => scheduled?.caughtUp));
  await hours(clock, 1);
  assert.equal(runs.at(-1)?.scheduled?.caughtUp, false, "the next one is on time");
  return { caughtUp, all: ats(runs), skipped: skipped(events), info: await engine.schedules.get("hourly") };
};

test("missed: latest runs the latest of what no worker could fire, and says how many it skipped", async (t) => {
  const found = await downFor(5, {})(t);
  assert.deepEqual(found.caughtUp, ["17:00"]);
  assert.deepEqual(found.skipped, ["missed 4"]);
  assert.deepEqual(found.info?.skipped, { missed: 4, "too-old": 0, overlap: 0 });
});

test("missed: skip runs none of them", async (t) => {
  const found = await downFor(5, { missed: "skip" })(t);
  assert.deepEqual(found.caughtUp, []);
  assert.deepEqual(found.all, ["18:00"]);
  assert.deepEqual(found.skipped, ["missed 4", "missed 1"]);
});

test("missed: all runs each of them once, in their order, as far back as within", async (t) => {
  const all = await downFor(5, { missed: "all" })(t);
  assert.deepEqual(all.caughtUp, ["13:00", "14:00", "15:00", "16:00", "17:00"]);
  assert.deepEqual(all.skipped, []);
});

test("missed: all skips what is older than within, and says so", async (t) => {
  const within = await downFor(5, { missed: "all", within: "3h" })(t);
  assert.deepEqual(within.caughtUp, ["15:00", "16:00", "17:00"]);
  assert.deepEqual(within.skipped, ["too-old 2"]);
});

test("missed: latest skips the latest, too, if it is older than within", async (t) => {
  const found = await downFor(5, { within: "10m" })(t);
  assert.deepEqual(found.caughtUp, []);
  assert.deepEqual(found.skipped, ["missed 4", "too-old 1"]);
});

test("missed: all of a long outage come in transactions of 100, each exactly once", async (t) => {
  const { clock, engine, runs, report } = await place(t);
  await engine.schedules.set("often", report, { every: "1m", input: "x", overlap: "allow", missed: "all" });
  clock.freeze(6 * HOUR + 30_000);
  await engine.start({ concurrency: 100 });
  await clock.advance(1_000);
  assert.equal(runs.length, 360);
  assert.equal(new Set(runs.map(({ scheduled }) => scheduled?.at)).size, 360);
});

/** A kind whose jobs end when the test says so. */
async function slowPlace(t: TestContext, options: Partial<ScheduleOptions<string>>) {
  const ends: (() => void)[] = [];
  const begun: (string | undefined)[] = [];
  let slow: ReturnType<typeof make> | undefined;
  const make = () =>
    job<string>("slow", { timeout: "2d" }).handle(async (_, run) => {
      begun.push(run.scheduled?.at.slice(11, 16));
      await new Promise<void>((resolve) => ends.push(resolve));
    });
  const { clock, engine, events } = await placeFor(t, () => [(slow = make())]);
  t.after(() => ends.forEach((end) => end()));
  await engine.schedules.set("slow", slow!, { every: "1h", input: "x", ...options });
  await engine.start();
  return { clock, engine, events, ends, begun };
}

test("overlap: skip leaves out an occurrence while the job before has not ended", async (t) => {
  const { clock, events, ends, begun } = await slowPlace(t, {});
  await hours(clock, 3);
  assert.deepEqual(begun, ["13:00"]);
  assert.deepEqual(skipped(events), ["overlap 1", "overlap 1"]);
  ends[0]!();
  await hours(clock, 1);
  assert.deepEqual(begun, ["13:00", "16:00"]);
});

test("overlap: queue runs the occurrences one after the other, in their order", async (t) => {
  const { clock, events, ends, begun } = await slowPlace(t, { overlap: "queue" });
  await hours(clock, 3);
  assert.deepEqual(begun, ["13:00"]);
  ends[0]!();
  await clock.advance(1_000);
  assert.deepEqual(begun, ["13:00", "14:00"]);
  ends[1]!();
  await clock.advance(1_000);
  assert.deepEqual(begun, ["13:00", "14:00", "15:00"]);
  assert.deepEqual(skipped(events), []);
});

test("overlap: allow runs them at the same time", async (t) => {
  const { clock, begun } = await slowPlace(t, { overlap: "allow" });
  await hours(clock, 3);
  assert.deepEqual(begun, ["13:00", "14:00", "15:00"]);
});

test("jitter delays each occurrence by its own share, and never fires one early", async (t) => {
  const { clock, engine, runs, events, report } = await place(t);
  const fired: number[] = [];
  engine.on("schedule.fired", ({ at }) => void fired.push(clock.now() - at));
  await engine.schedules.set("spread", report, { every: "1h", input: "x", jitter: "10s", overlap: "allow" });
  await engine.start();
  for (let hour = 0; hour < 12; hour++) {
    await hours(clock, 1);
    await clock.advance(6_000);
  }
  assert.equal(runs.length, 12);
  assert.ok(
    fired.every((lateMs) => lateMs >= 0 && lateMs <= 11_000),
    String(fired),
  );
  assert.ok(new Set(fired).size > 6, "the shares differ");
  assert.deepEqual(skipped(events), []);
});

test("a paused schedule fires nothing; what was due meanwhile is missed, also when the pause ends by its time", async (t) => {
  const { clock, engine, runs, report } = await place(t);
  await engine.schedules.set("hourly", report, { every: "1h", input: "x" });
  await engine.start();
  await engine.schedules.pause("hourly", { reason: "a migration", actor: "ann" });
  clock.freeze(3 * HOUR + 10 * MINUTE);
  await clock.advance(2_000);
  assert.deepEqual(ats(runs), []);
  const paused = await engine.schedules.get("hourly");
  assert.equal(paused?.nextAt, null);
  assert.deepEqual([paused?.paused?.reason, paused?.paused?.by, paused?.paused?.until], ["a migration", "ann", null]);
  await engine.schedules.resume("hourly");
  await clock.advance(1_000);
  assert.deepEqual(ats(runs), ["15:00"]);
  await engine.schedules.pause("hourly", { until: "130m" });
  clock.freeze(2 * HOUR + 5 * MINUTE);
  await clock.advance(2_000);
  assert.deepEqual(ats(runs), ["15:00"], "it is 17:15");
  clock.freeze(10 * MINUTE);
  await clock.advance(2_000);
  assert.deepEqual(ats(runs), ["15:00", "17:00"], "the pause ended at 17:20");
  assert.equal((await engine.schedules.get("hourly"))?.paused, null);
});

test("a schedule of a paused kind obeys missed when the kind goes on", async (t) => {
  const { clock, engine, runs, events, report } = await place(t);
  await engine.schedules.set("hourly", report, { every: "1h", input: "x" });
  await engine.start();
  await engine.pause(report);
  await hours(clock, 4);
  assert.equal((await engine.list()).jobs.length, 0, "no pile of jobs waits for the resume");
  await engine.resume(report);
  await clock.advance(10_000);
  assert.deepEqual(ats(runs), ["16:00"]);
  assert.deepEqual(skipped(events), ["missed 3"]);
});

test("an edit takes effect at once, and setting the same again moves nothing", async (t) => {
  const { clock, engine, runs, report } = await place(t);
  await engine.schedules.set("edited", report, { every: "12h", input: "x" });
  await engine.start();
  await hours(clock, 1);
  await engine.schedules.set("edited", report, { every: "1h", input: "y" });
  await hours(clock, 1);
  assert.deepEqual(
    runs.map(({ input, scheduled }) => `${input} ${scheduled?.at.slice(11, 16)}`),
    ["y 14:00"],
  );
  clock.freeze(50 * MINUTE);
  await engine.schedules.set("edited", report, { every: "1h", input: "z" });
  await engine.schedules.set("edited", report, { every: "1h", input: "z" });
  await hours(clock, 1);
  assert.deepEqual(ats(runs), ["14:00", "15:00"]);
  assert.equal(runs.at(-1)?.input, "z");
});

test("run enqueues now, backfill enqueues past occurrences once, remove ends a schedule", async (t) => {
  const { clock, engine, runs, report } = await place(t);
  await engine.schedules.set("hourly", report, { every: "1h", input: "x", overlap: "allow" });
  await engine.start();
  const { id, created } = await engine.schedules.run("hourly");
  assert.ok(created);
  await clock.advance(1_000);
  assert.equal((await engine.get(id))?.state, "succeeded");
  assert.equal(runs[0]?.scheduled?.schedule, "hourly");
  await hours(clock, 1);
  const from = new Date(START - 2 * HOUR);
  const to = new Date(START + HOUR);
  assert.deepEqual(await engine.schedules.backfill("hourly", from, to), { count: 4, created: 3 }, "13:00 has run");
  assert.deepEqual(await engine.schedules.backfill("hourly", from, to), { count: 4, created: 0 });
  await clock.advance(1_000);
  assert.deepEqual(ats(runs).slice(2), ["10:00", "11:00", "12:00"]);
  assert.ok(await engine.schedules.remove("hourly"));
  assert.equal(await engine.schedules.remove("hourly"), false);
  await hours(clock, 3);
  assert.equal(runs.length, 5);
  assert.equal(await engine.schedules.get("hourly"), null);
});

test("a declared schedule is kept by the worker, and its input function gets the occurrence", async (t) => {
  const { clock, engine, runs } = await placeFor(t, (all) => {
    const report = reportTo(all);
    const daily = schedule("daily", report, {
      cron: "0 3 * * *",
      zone: "Europe/Berlin",
      input: ({ at }) => `of ${at}`,
    });
    return [report, daily];
  });
  assert.deepEqual(await engine.schedules.list(), [], "a program that runs no worker declares nothing");
  await engine.start();
  const [info] = await engine.schedules.list();
  assert.deepEqual([info?.origin, info?.declared, info?.computed], ["code", true, true]);
  await hours(clock, 36);
  assert.deepEqual(
    runs.map(({ input }) => input),
    ["of 2026-03-29T01:00:00.000Z"],
    "03:00 of the day on which clocks go forward is 01:00 UTC",
  );
  assert.deepEqual(
    (await engine.schedules.preview("daily", 2)).map(({ at, offset }) => `${new Date(at).toISOString()} ${offset}`),
    ["2026-03-30T01:00:00.000Z +02:00", "2026-03-31T01:00:00.000Z +02:00"],
  );
  await assert.rejects(
    engine.schedules.set("daily", job<string>("report"), { every: "1h", input: "" }),
    says(ErrorCode.kindUnknown),
  );
});

test("what is not a schedule is refused with what to do", async (t) => {
  const { engine, report } = await place(t);
  const set = (options: ScheduleOptions<string>, name = "bad") => engine.schedules.set(name, report, options);
  const refused: [ScheduleOptions<string>, RegExp][] = [
    [{}, /either cron or every/],
    [{ cron: "0 3 * * *", every: "1h" }, /either cron or every/],
    [{ cron: "" }, /not a cron pattern/],
    [{ cron: "@daily" }, /not a cron pattern/],
    [{ cron: "H 1 * * *" }, /not a cron pattern/],
    [{ cron: "1--100000000 * * * *" }, /not a cron pattern/],
    [{ cron: "2027-01-01T00:00:00" }, /not a cron pattern/],
    [{ cron: "0 0 31 2 *" }, /never occurs/],
    [{ cron: "0 3 * * *".padEnd(101) }, /more than 100 characters/],
    [{ cron: "0 3 * * *", zone: "Europe/Atlantis" }, /time zone "Europe\/Atlantis"/],
    [{ cron: "0 3 * * *", offset: "1m" }, /offset belongs to every/],
    [{ every: "1h", zone: "UTC" }, /zone belongs to cron/],
    [{ every: "10ms" }, /every is "10ms"/],
    [{ every: "1h", offset: "1h" }, /offset is "1h"/],
    [{ every: "1h", missed: "none" as never }, /missed is "none"/],
    [{ every: "1h", overlap: "none" as never }, /overlap is "none"/],
    [{ every: "1h", jitter: "2d" }, /jitter is "2d"/],
    [{ every: "1h", priority: 2_000 }, /priority is 2000/],
    [{ every: "1h", input: () => "x" }, /input is a function/],
    [{ every: "1h", cronn: "" } as never, /no option "cronn"/],
  ];
  for (const [options, what] of refused) await assert.rejects(set(options), says(ErrorCode.optionInvalid, what));
  await assert.rejects(set({ every: "1h" }, ""), says(ErrorCode.optionInvalid, /name/));
  await assert.rejects(set({ every: "1h" }, "x".repeat(201)), says(ErrorCode.optionInvalid, /201 characters/));
  await assert.rejects(engine.schedules.pause("none"), says(ErrorCode.notFound, "none"));
  assert.deepEqual(await engine.schedules.list(), [], "nothing was stored");
  assert.throws(() => schedule("bad", report, {}), says(ErrorCode.optionInvalid, /either cron or every/));
});

/** Moves the clock until this has ended. */
async function ended<T>(clock: VirtualClock, promise: Promise<T>): Promise<T> {
  let isDone = false;
  const watched = promise.finally(() => (isDone = true));
  watched.catch(() => {});
  while (!isDone) await clock.advance(5);
  return watched;
}

test("schedules that this process can't fire do not hide what is due behind them", async (t) => {
  const clock = virtualClock(START);
  const db = new Database({ path: ":memory:" });
  migrate(db);
  let ids = 0;
  const store = sqliteStore({ db, clock, random: systemRandom, newId: () => `id-${ids++}`, wakeup: null });
  t.after(async () => {
    const closing = store.close();
    await clock.advance(1_000);
    await closing;
  });
  const report = job<string>("report");
  await store.declare([report.settings]);
  const rowOf = async (name: string, input: ScheduleOptions<string>["input"], origin: "api" | "code") => {
    const options = { every: "1h", input } as object as ScheduleOptions<never>;
    const { calendar, ...spec } = await specOf(
      new ScheduleDeclaration(name, report as never, options),
      origin,
      clock.now(),
    );
    return setRow(null, spec, clock.now(), calendar.next)!;
  };
  const computed = Array.from({ length: 2_100 }, (_, i) => rowOf(`computed-${i}`, ({ at }) => at, "code"));
  const rows = [...(await Promise.all(computed)), await rowOf("stored", "an input", "api")];
  await ended(clock, Promise.all(rows.map((row) => store.schedules!.write(row))));
  clock.freeze(HOUR);
  const events = new EventBus(toStoredError);
  const deps = { store, clock, events, declared: new Map(), worker: () => "worker", oftenMs: HOUR, pollMs: () => HOUR };
  const firing = new ScheduleFiring(deps, store.schedules!);
  await ended(clock, firing.fire());
  assert.equal((await ended(clock, store.schedules!.fired("stored", 10))).length, 1);
  assert.notEqual(await ended(clock, firing.fire()), 0, "and what stays due is not asked for again at once");
});

test("workers with different time-zone data are reported once for each schedule, and in the review of all", async (t) => {
  const clock = virtualClock(START);
  const db = new Database({ path: ":memory:" });
  migrate(db);
  let ids = 0;
  const store = sqliteStore({ db, clock, random: systemRandom, newId: () => `id-${ids++}`, wakeup: null });
  t.after(async () => {
    const closing = store.close();
    await clock.advance(1_000);
    await closing;
  });
  const report = job<string>("report");
  await store.declare([report.settings]);
  const live = db.sql(
    `INSERT INTO outlive_workers (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at, counts_rows)
     VALUES (?, 'live', 'host', 'boot', 1, '1', 1, 1, 1, '[]', 1, 1, 1)`,
  );
  for (const id of ["declares", "fires"]) live.run(id);
  const options = { cron: "0 * * * *", zone: "Europe/Berlin", input: "x" } as object as ScheduleOptions<never>;
  const nightly = new ScheduleDeclaration("nightly", report as never, options);
  const found: [name: string, event: object][] = [];
  const firingOf = (worker: string, zoneData: string, declared: ReadonlyMap<string, ScheduleDeclaration>) => {
    const events = { has: () => true, emit: (name: string, event: object) => void found.push([name, event]) };
    const deps = { store, clock, events, declared, worker: () => worker, zoneData, oftenMs: HOUR, pollMs: () => HOUR };
    return new ScheduleFiring(deps, store.schedules!);
  };
  const declares = firingOf("declares", "2026b", new Map([["nightly", nightly]]));
  const fires = firingOf("fires", "2025a", new Map());
  await ended(clock, declares.declare());
  await ended(clock, fires.start());
  await clock.advance(10_000);
  const { isAnyZoned, zoneData } = await ended(clock, store.schedules!.review());
  assert.deepEqual(
    [isAnyZoned, zoneData],
    [
      true,
      [
        { version: "2025a", workers: ["fires"] },
        { version: "2026b", workers: ["declares"] },
      ],
    ],
  );
  for (let hour = 0; hour < 3; hour++) {
    clock.freeze(HOUR);
    await ended(clock, fires.fire());
  }
  await ended(clock, fires.stop());
  assert.deepEqual(
    found.filter(([name]) => name === "schedule.zones"),
    [["schedule.zones", { schedule: "nightly", here: "2025a", there: zoneDataVersion() }]],
  );
});
