// Unconfirmed list: a leap second. The wall clock repeats a second (a step by -1 s), leaves one out (+1 s), or is slowed down until it is
// a second behind (a smear). On SQLite two workers go through one in virtual time, with a lease that is shorter than the leap; then real
// processes do. On PostgreSQL it is the server's clock that leaps, and tick() is asked as well.
import assert from "node:assert/strict";
import { join } from "node:path";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { contractsOf } from "../../src/engine/client.ts";
import { Engine } from "../../src/engine/engine.ts";
import { engineSettings } from "../../src/engine/options.ts";
import { job, open } from "../../src/index.ts";
import { pause } from "../../src/job/time.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";
import { virtualClock, type VirtualClock } from "../../src/testing/virtual-clock.ts";
import { fixture, MINUTE } from "../postgres-sql/fixture.ts";
import { fixedRandom } from "../support/fixed-random.ts";
import { jobs, slow } from "../support/jobs.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { PATIENT, Place, untilState, untilTrue } from "../support/processes.ts";

const SECOND = 1_000;
const MIDNIGHT = Date.UTC(2017, 0, 1);
const TICK = 15 * SECOND;

interface Leap {
  readonly title: string;
  /** How long it takes. */
  readonly lastsMs: number;
  /** From one minute before the leap to one minute after it. */
  readonly pass: (clock: VirtualClock) => Promise<void>;
}

/** After every `everyMs` the wall clock is 1 ms behind, `count` times. */
const smear =
  (everyMs: number, count: number): Leap["pass"] =>
  async (clock) => {
    await clock.advance(MINUTE);
    for (let n = 0; n < count; n++) {
      await clock.advance(everyMs);
      clock.jump(-1);
    }
    await clock.advance(MINUTE);
  };

const step =
  (ms: number): Leap["pass"] =>
  async (clock) => {
    await clock.advance(MINUTE);
    clock.jump(ms);
    await clock.advance(MINUTE / 2);
    // More of them, so that some fall right before a heartbeat and some right after one.
    for (let n = 0; n < 10; n++) {
      await clock.advance(2_030);
      clock.jump(ms);
    }
    await clock.advance(MINUTE / 2);
  };

const LEAPS: readonly Leap[] = [
  { title: "that is repeated", lastsMs: 0, pass: step(-SECOND) },
  { title: "that is left out", lastsMs: 0, pass: step(SECOND) },
  { title: "that is smeared over a day, for 10 minutes of it", lastsMs: 7 * 86_400, pass: smear(86_400, 7) },
  { title: "that is smeared over 1000 seconds", lastsMs: 1_000 * SECOND, pass: smear(SECOND, 1_000) },
];

for (const { title, lastsMs, pass } of LEAPS)
  test(`U: a leap second ${title} ends no lease and no attempt, and runs no delayed job twice`, async () => {
    const clock = virtualClock(MIDNIGHT - MINUTE);
    const random = fixedRandom();
    const bus = new EventBus(toStoredError);
    const events: string[] = [];
    bus.onAny(({ name }) => events.push(name));
    const backend = await openSqlite({ clock, random, events: bus, bootId: "boot" }, { path: ":memory:" });

    /** Each start of a job, with the wall clock at that moment. */
    const starts = new Map<string, number[]>();
    const interrupted: string[] = [];
    const kind = (name: string, timeout: "30s" | "30m") => {
      const contract = job<{ ms: number }>(name, { timeout, grace: "10ms" });
      contract.handle(async ({ ms }, run) => {
        starts.set(run.id, [...(starts.get(run.id) ?? []), clock.now()]);
        run.signal.addEventListener("abort", () => interrupted.push(`${run.id}: ${String(run.signal.reason)}`));
        await pause(clock, ms);
      });
      return contract;
    };
    const [brief, long, tight] = [kind("brief", "30s"), kind("long", "30m"), kind("tight", "30s")];

    // A lease of 0.9 s: compared with the wall clock, a leap of 1 s would end it. No kernel knows these workers, so heartbeats decide.
    const intervals = ["300ms", "440ms"] as const;
    const engines = intervals.map((interval, pid) => {
      const heartbeat = { interval, lease: "900ms", probe: "300ms", sweep: "500ms" } as const;
      const settings = engineSettings({ heartbeat, poll: "1s" });
      const identity = { host: "host", bootId: "boot", namespace: null, pid, startTicks: null };
      const contracts = contractsOf([brief, long, tight]);
      return new Engine({ backend, settings, contracts, clock, random, bus, identity, processState: () => "unknown" });
    });
    const [engine] = engines as [Engine, Engine];
    const inTime = async <T>(promise: Promise<T>): Promise<T> => {
      let ended = false;
      void promise.catch(() => {}).finally(() => (ended = true));
      while (!ended) await clock.advance(10);
      return promise;
    };
    for (const each of engines) await inTime(each.start({ concurrency: 40 }));

    const ids: string[] = [];
    const due = new Map<string, number>();
    // Every 100 ms around the leap one falls due, and most still run when the second is repeated.
    for (let ms = -3 * SECOND; ms <= 3 * SECOND; ms += 100) {
      const runAt = MIDNIGHT + ms;
      const { id } = await inTime(engine.enqueue(brief, { ms: 700 }, { runAt: new Date(runAt) }));
      ids.push(id);
      due.set(id, runAt);
    }
    // It runs from before the leap until after it.
    ids.push((await inTime(engine.enqueue(long, { ms: lastsMs + 90 * SECOND }))).id);
    // It ends half a second before its timeout.
    const atTheEnd = { runAt: new Date(MIDNIGHT - 15 * SECOND) };
    ids.push((await inTime(engine.enqueue(tight, { ms: 29_500 }, atTheEnd))).id);

    await pass(clock);
    await clock.advance(10 * SECOND);

    assert.deepEqual(interrupted, []);
    for (const id of ids) {
      const { state, attempt, counters } = (await engine.get(id))!;
      assert.deepEqual([id, state, attempt], [id, "succeeded", 1]);
      assert.deepEqual(
        Object.entries(counters).filter(([, count]) => count !== 0),
        [],
        id,
      );
      assert.equal(starts.get(id)?.length, 1, id);
    }
    for (const [id, runAt] of due) {
      const [startedAt] = starts.get(id)!;
      assert.ok(startedAt! >= runAt, `${id} started ${runAt - startedAt!} ms early`);
      // The step itself, and one poll.
      assert.ok(startedAt! <= runAt + 2 * SECOND, `${id} started ${startedAt! - runAt} ms late`);
    }
    const workers = await engine.workers();
    assert.deepEqual(
      workers.map(({ state }) => state),
      ["live", "live"],
    );
    assert.deepEqual(await engine.incidents(), []);
    const unwanted =
      /^(incident\.|recovery\.|worker\.(disowned|lost|gone)|write\.rejected|store\.failed|heartbeat\.failed)/;
    assert.deepEqual(
      events.filter((name) => unwanted.test(name)),
      [],
    );
    await inTime(Promise.all(engines.map((each) => each.close({ grace: "0ms" }))));
  });

/** Every live worker has sent `count` more heartbeats. */
async function untilBeats(engine: Engine, count: number): Promise<void> {
  const before = new Map((await engine.workers()).map(({ id, beats }) => [id, beats]));
  await untilTrue(
    () => engine.workers(),
    (rows) => rows.length === 2 && rows.every(({ id, beats }) => beats >= (before.get(id) ?? 0) + count),
    `two workers have sent ${count} heartbeats`,
  );
}

test("U: a leap second takes no job from a real process on SQLite", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const file = join(place.folder, "clock");
  const options = {
    heartbeat: { ...PATIENT, sweep: "500ms" },
    poll: "100ms",
    execArgv: ["--import", fileURLToPath(new URL("./shifted-clock.ts", import.meta.url))],
    env: { OUTLIVE_TEST_CLOCK_FILE: file },
  } as const;
  const { id } = await engine.enqueue(slow, { ms: 300_000 });
  const owner = place.child(options);
  await owner.untilFact("started", { id });
  const other = place.child(options);
  await other.untilFact("working");
  await untilBeats(engine, 3);
  const delayed: string[] = [];
  for (const delay of ["100ms", "600ms", "1100ms"] as const)
    delayed.push((await engine.enqueue(slow, { ms: 1 }, { delay })).id);
  await untilState(engine, delayed[0]!, "succeeded");
  writeFileSync(file, String(-SECOND));
  for (const each of delayed) await untilState(engine, each, "succeeded");
  await untilBeats(engine, 10);
  const seen = await engine.get(id);
  assert.deepEqual([seen?.state, seen?.attempt, seen?.counters.timeouts], ["running", 1, 0]);
  for (const each of delayed) assert.equal(place.effects().get(`slow ${each} attempt 1`), 1);
  assert.equal(place.effects().size, delayed.length);
  assert.deepEqual(await engine.incidents(), []);
});

test("U: a leap second of the PostgreSQL server takes no job from a real process, by workers or by tick()", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, (client) => migrate(client, "outlive"));
  const place = new Place(t);
  const engine = await open(url, { jobs, logger: false });
  t.after(() => engine.close());
  const { id } = await engine.enqueue(slow, { ms: 300_000 });
  const options = { heartbeat: { ...PATIENT, sweep: "500ms" }, poll: "100ms", url } as const;
  const owner = place.child(options);
  await owner.untilFact("started", { id });
  const other = place.child(options);
  await other.untilFact("working");
  await untilBeats(engine, 3);
  const tick = () =>
    withClient(url, async (client) => (await client.query<{ taken: number }>("SELECT outlive.tick() AS taken")).rows);
  assert.deepEqual(await tick(), [{ taken: 0 }]);
  const delayed: string[] = [];
  for (const delay of ["100ms", "600ms", "1100ms"] as const)
    delayed.push((await engine.enqueue(slow, { ms: 1 }, { delay })).id);
  await untilState(engine, delayed[0]!, "succeeded");
  await withClient(url, (client) =>
    client.query(`CREATE OR REPLACE FUNCTION outlive.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
      AS $$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - ${SECOND} $$`),
  );
  assert.deepEqual(await tick(), [{ taken: 0 }]);
  for (const each of delayed) await untilState(engine, each, "succeeded");
  await untilBeats(engine, 10);
  assert.deepEqual(await tick(), [{ taken: 0 }]);
  const seen = await engine.get(id);
  assert.deepEqual([seen?.state, seen?.attempt, seen?.counters.timeouts], ["running", 1, 0]);
  for (const each of delayed) assert.equal(place.effects().get(`slow ${each} attempt 1`), 1);
  assert.equal(place.effects().size, delayed.length);
  assert.deepEqual(await engine.incidents(), []);
});

/** By how much the server's clock moves from one tick to the next. Before and after that, ticks come every 15 s. */
const MOVES: Readonly<Record<string, readonly number[]>> = {
  "that is repeated": [TICK - SECOND],
  "that is left out": [TICK + SECOND],
  "that is repeated between two ticks of one second": [400, 300 - SECOND, 300],
  "that is being smeared": Array.from({ length: 50 }, () => TICK - 15),
};

for (const [title, moves] of Object.entries(MOVES))
  test(`U: a leap second ${title} lets tick() reclaim no job of a live worker`, async (t) => {
    const on = await fixture(t);
    // The shortest lease that a worker with a heartbeat every 15 s may have.
    await on.worker("w1", { leaseMs: 2 * TICK });
    await on.sql("SELECT outlive.enqueue('mail', '{}', id => 'job', wake => false)");
    await on.claim("w1", "job");
    let taken = 0;
    const usual = [TICK, TICK, TICK, TICK];
    for (const ms of [...usual, ...moves, ...usual]) {
      await on.pass(ms);
      taken += (await on.sql<{ taken: number }>("SELECT outlive.tick() AS taken"))[0]!.taken;
      await on.beat("w1");
    }
    assert.equal(taken, 0);
    const { state, timeouts, crashes, fence } = await on.job("job");
    assert.deepEqual([state, timeouts, crashes, fence], ["running", 0, 0, 1]);
  });
