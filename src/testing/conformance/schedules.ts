// What the port promises about schedules: a row moves and its jobs are inserted together or not at all, of two who fire at once one succeeds, and what is
// due is known by the store's own clock.
import assert from "node:assert/strict";
import type { ScheduleRow } from "../../job/schedules.ts";
import type { Schedules } from "../../stores/schedules.ts";
import { scheduleKey } from "../../job/limits.ts";
import { draft, type Fixture, idsOf, roomFor, SETTLE, type Specify } from "./fixture.ts";

/** The part, or null: the store has none, and the test is skipped. */
function schedulesOf({ store, t }: Fixture): Schedules | null {
  if (store.schedules === undefined) t.skip("this store has no schedules");
  return store.schedules ?? null;
}

const HOUR = 3_600_000;

export function scheduleRow(name: string, dueAt: number | null, more: Partial<ScheduleRow> = {}): ScheduleRow {
  const { id: _, ...job } = draft({ id: "", kind: "mail" });
  return {
    name,
    kind: "mail",
    version: 0,
    timing: { everyMs: HOUR, fromMs: 0 },
    missed: "latest",
    withinMs: 24 * HOUR,
    overlap: "skip",
    jitterMs: 0,
    draft: job,
    nextAt: dueAt,
    dueAt,
    lastAt: null,
    lastJob: null,
    fired: 0,
    skipped: { missed: 0, "too-old": 0, overlap: 0 },
    pause: null,
    origin: "api",
    digest: "d1",
    former: [],
    zoneData: null,
    createdAt: 1,
    changedAt: 1,
    ...more,
  };
}

/** As it is stored now. */
async function stored(schedules: Schedules, name: string): Promise<ScheduleRow> {
  const found = await schedules.get(name);
  assert.ok(found, `schedule ${name}`);
  return found;
}

const planned = (id: string, at: number, caughtUp = false) => ({ draft: draft({ id, kind: "mail" }), at, caughtUp });

export function specifySchedules(specify: Specify): void {
  specify("known bug 40: a schedule is written once for each version, whatever else writes it", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    const first = scheduleRow("nightly", fixture.clock.now() + HOUR, { zoneData: "2026b", digest: "ä\"'\\" });
    assert.equal(await schedules.write(first), true);
    assert.equal(await schedules.write(first), false, "there is one already");
    assert.deepEqual(await schedules.get("nightly"), { ...first, version: 1 });
    const other = (await fixture.connect()).schedules!;
    const [a, b] = await Promise.all([
      schedules.write({ ...first, version: 1, digest: "a" }),
      other.write({ ...first, version: 1, digest: "b" }),
    ]);
    assert.deepEqual([a, b].filter(Boolean).length, 1);
    const after = await stored(schedules, "nightly");
    assert.deepEqual([after.version, after.digest], [2, a ? "a" : "b"]);
    assert.equal(await schedules.write({ ...first, version: 7 }), false);
    assert.equal(await schedules.get("none"), null);
  });

  specify(
    "known bug 41: what is due is due until it is fired, by the store's clock, the most overdue first",
    async (fixture) => {
      const schedules = schedulesOf(fixture);
      if (schedules === null) return;
      assert.deepEqual((await schedules.due(10)).nextInMs, null);
      const now = fixture.clock.now();
      for (const [name, inMs] of [
        ["b", 2_000],
        ["a", 5_000],
        ["c", 1_000],
        ["later", 60_000],
      ] as const)
        await schedules.write(scheduleRow(name, now + inMs));
      await schedules.write(scheduleRow("paused", null));
      const before = await schedules.due(10);
      assert.deepEqual([before.due, before.nextInMs, before.now], [[], 1_000, now]);
      await fixture.clock.advance(5_000);
      const { due, nextInMs } = await schedules.due(10);
      assert.deepEqual(
        due.map(({ row: { name } }) => name),
        ["c", "b", "a"],
      );
      assert.equal(nextInMs, 55_000);
      assert.deepEqual(due[0]!.row, { ...scheduleRow("c", now + 1_000), version: 1 });
      const some = await schedules.due(2);
      assert.deepEqual(
        [some.due.map(({ row: { name } }) => name), some.nextInMs],
        [["c", "b"], 0],
        "the rest is due, too",
      );
      assert.equal(await schedules.now(), fixture.clock.now());
    },
  );

  specify("a schedule of a paused kind is marked", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    const now = fixture.clock.now();
    await schedules.write(scheduleRow("paused", now));
    await schedules.write(scheduleRow("open", now, { kind: "sms" }));
    await fixture.store.operate.setPaused("mail", true);
    const { due } = await schedules.due(10);
    assert.deepEqual(due.map(({ row: { name }, isKindPaused }) => `${name} ${isKindPaused}`).toSorted(), [
      "open false",
      "paused true",
    ]);
  });

  specify(
    "known bug 25: firing moves the row and inserts the jobs, and of those who fire at once one does",
    async (fixture) => {
      const schedules = schedulesOf(fixture);
      if (schedules === null) return;
      const now = fixture.clock.now();
      await schedules.write(scheduleRow("hourly", now));
      const others = [schedules, (await fixture.connect()).schedules!, (await fixture.connect()).schedules!];
      const read = await stored(schedules, "hourly");
      const moved = { ...read, nextAt: now + HOUR, dueAt: now + HOUR, lastAt: now, fired: 1 };
      const answers = await Promise.all(
        others.map((one, i) =>
          one.fire([
            { row: { ...moved, lastJob: `job-${i}` }, jobs: [planned(`job-${i}`, now), planned(`also-${i}`, now)] },
          ]),
        ),
      );
      const won = answers.findIndex(([answer]) => answer!.is === "fired");
      assert.deepEqual(answers.map(([answer]) => answer!.is).toSorted(), ["fired", "stale", "stale"]);
      assert.deepEqual(answers[won]![0], {
        is: "fired",
        enqueued: [
          { id: `job-${won}`, created: true },
          { id: `also-${won}`, created: true },
        ],
      });
      const after = await stored(schedules, "hourly");
      assert.deepEqual([after.version, after.nextAt, after.lastJob], [2, now + HOUR, `job-${won}`]);
      assert.equal((await fixture.countsOf("mail")).ready, 2, "nothing of the others was inserted");
      assert.deepEqual((await schedules.due(10)).nextInMs, HOUR);
    },
  );

  specify("an occurrence whose job is known adds nothing, and the row moves all the same", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    const now = fixture.clock.now();
    await fixture.enqueue("known");
    await schedules.write(scheduleRow("hourly", now));
    const read = await stored(schedules, "hourly");
    const [answer] = await schedules.fire([
      { row: { ...read, nextAt: now + HOUR, dueAt: now + HOUR }, jobs: [planned("known", now)] },
    ]);
    assert.deepEqual(answer, { is: "fired", enqueued: [{ id: "known", created: false }] });
    assert.equal((await stored(schedules, "hourly")).nextAt, now + HOUR);
  });

  specify(
    "many schedules fire in one call, each under its own version; a row may move without a job",
    async (fixture) => {
      const schedules = schedulesOf(fixture);
      if (schedules === null) return;
      const now = fixture.clock.now();
      for (const name of ["a", "b", "c"]) await schedules.write(scheduleRow(name, now));
      const rows = await Promise.all(["a", "b", "c"].map((name) => stored(schedules, name)));
      await schedules.write({ ...rows[1]!, digest: "edited" });
      const answers = await schedules.fire(
        rows.map((read, i) => ({
          row: { ...read, nextAt: now + HOUR, dueAt: null },
          jobs: i === 2 ? [] : [planned(`job-${read.name}`, now)],
        })),
      );
      assert.deepEqual(
        answers.map(({ is }) => is),
        ["fired", "stale", "fired"],
      );
      assert.deepEqual(await fixture.states("job-a", "job-b"), ["queued", "missing"]);
      assert.equal((await stored(schedules, "b")).digest, "edited");
      assert.deepEqual(
        (await schedules.due(10)).due.map(({ row: { name } }) => name),
        ["b"],
      );
    },
  );

  specify("a job knows what it was planned for, and a schedule its jobs, until they are gone", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    const now = fixture.clock.now();
    await fixture.enqueue("plain");
    await schedules.write(scheduleRow("hourly", now));
    const read = await stored(schedules, "hourly");
    await schedules.fire([{ row: read, jobs: [planned("job-1", now - HOUR, true), planned("job-2", now)] }]);
    assert.deepEqual(await schedules.occurrences(["job-2", "plain", "none"]), [
      { job: "job-2", schedule: "hourly", at: now, caughtUp: false },
    ]);
    assert.deepEqual(
      (await schedules.fired("hourly", 10)).map(({ job, caughtUp }) => [job, caughtUp]),
      [
        ["job-2", false],
        ["job-1", true],
      ],
    );
    assert.deepEqual(
      (await schedules.fired("hourly", 1)).map(({ job }) => job),
      ["job-2"],
    );
    assert.deepEqual(await schedules.occurrences([]), []);
  });

  specify("a fired job with a key of the schedule waits for the one before", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    const now = fixture.clock.now();
    const keys = [scheduleKey("hourly")];
    await schedules.write(scheduleRow("hourly", now));
    const read = await stored(schedules, "hourly");
    const jobs = ["job-1", "job-2"].map((id) => ({
      ...planned(id, now),
      draft: { ...draft({ id, kind: "mail" }), keys },
    }));
    await schedules.fire([{ row: read, jobs }]);
    const worker = await fixture.worker("w1");
    const first = await worker.next(roomFor(5));
    assert.equal(first.lease.jobId, "job-1");
    assert.deepEqual(idsOf(await worker.claim(5)), []);
    await worker.settle(SETTLE.succeed(first));
    assert.deepEqual(idsOf(await worker.claim(5)), ["job-2"]);
  });

  specify("schedules are listed by name in pages, and removed under guard", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    for (const name of ["b", "a", "B", "c-1", "c"]) await schedules.write(scheduleRow(name, null));
    const names = async (limit: number, after: string | null) =>
      (await schedules.list(limit, after)).map(({ name }) => name);
    assert.deepEqual(await names(10, null), ["B", "a", "b", "c", "c-1"]);
    assert.deepEqual(await names(2, "a"), ["b", "c"]);
    assert.equal(await schedules.remove("a", 7), false);
    assert.equal(await schedules.remove("a", 1), true);
    assert.equal(await schedules.remove("b", null), true);
    assert.equal(await schedules.remove("none", null), false);
    assert.deepEqual(await names(10, null), ["B", "c", "c-1"]);
  });

  specify("what live workers declare is known, and what dead ones declared is not", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    const one = await fixture.worker("w1");
    await fixture.worker("w2");
    const declaration = (schedule: string, digest = "d") => ({ schedule, digest, zoneData: "2026b" });
    await schedules.declare("w1", [declaration("a"), declaration("b")]);
    await schedules.declare("w2", [declaration("b", "e")]);
    const found = async () =>
      (await schedules.declared()).map(({ worker, schedule, digest, zoneData }) =>
        [worker, schedule, digest, zoneData].join(" "),
      );
    assert.deepEqual((await found()).toSorted(), ["w1 a d 2026b", "w1 b d 2026b", "w2 b e 2026b"]);
    await schedules.declare("w1", [declaration("c")]);
    assert.deepEqual((await found()).toSorted(), ["w1 c d 2026b", "w2 b e 2026b"]);
    await fixture.recoverAll(one);
    assert.deepEqual(await found(), ["w2 b e 2026b"]);
  });

  specify("a review names what no live worker declares, and the time-zone data of each", async (fixture) => {
    const schedules = schedulesOf(fixture);
    if (schedules === null) return;
    assert.deepEqual(await schedules.review(), { undeclared: [], isAnyZoned: false, zoneData: [] });
    const [one] = [await fixture.worker("w1"), await fixture.worker("w2"), await fixture.worker("w3")];
    // More than one page of any store, and declared ones among them.
    const many = Array.from({ length: 1_500 }, (_, i) => `s${String(i).padStart(4, "0")}`);
    for (const name of many) {
      const tricky = { reason: '"origin":"code"', by: "ann", at: 1, until: null };
      await schedules.write(scheduleRow(name, null, { pause: tricky }));
    }
    for (const name of ["a", "z1", "z2"]) await schedules.write(scheduleRow(name, null, { origin: "code" }));
    const declaration = (schedule: string, zoneData: string) => ({ schedule, digest: "d", zoneData });
    await schedules.declare("w1", [declaration("a", "2026b"), declaration("z1", "2026b")]);
    await schedules.noteZoneData("w2", "2026b");
    await schedules.noteZoneData("w3", "2025a");
    assert.deepEqual(
      (await schedules.declared()).map(({ schedule }) => schedule),
      ["a", "z1"],
      "a note is not a declaration",
    );
    assert.deepEqual(await schedules.review(), {
      undeclared: ["z2"],
      isAnyZoned: false,
      zoneData: [
        { version: "2025a", workers: ["w3"] },
        { version: "2026b", workers: ["w1", "w2"] },
      ],
    });
    await schedules.write(scheduleRow("zoned", null, { zoneData: "2026b" }));
    await fixture.recoverAll(one);
    await schedules.declare("w3", [declaration("z1", "2025a")]);
    assert.deepEqual(await schedules.review(), {
      undeclared: ["a", "z2"],
      isAnyZoned: true,
      zoneData: [
        { version: "2025a", workers: ["w3"] },
        { version: "2026b", workers: ["w2"] },
      ],
    });
  });
}
