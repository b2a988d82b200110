// Holds what an open does to a file before it trusts it: which check when, what is repaired automatically, what ends the start-up,
// and what can still be read.
import assert from "node:assert/strict";
import { readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { type EngineEvent, type EngineOptions, ErrorCode, job, open, OutliveError } from "../../src/index.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";
import { says } from "../engine/engines.ts";
import { garbleIndex, overwrite, zeroRoot } from "../support/damage.ts";
import { Place, untilTrue } from "../support/processes.ts";

const note = job<number>("note").handle(async () => null);

/** A store with some jobs, cleanly closed. */
async function stored(t: TestContext, count = 20): Promise<{ place: Place; ids: string[] }> {
  const place = new Place(t);
  const ids: string[] = [];
  const engine = await open(place.url, { jobs: [note], logger: false });
  await engine.enqueueMany(
    note,
    Array.from({ length: count }, (_, n) => n),
    { onBatch: (batch) => ids.push(...batch.map(({ id }) => id)) },
  );
  await engine.close();
  return { place, ids };
}

/** Opens, hearing everything. */
async function heard(place: Place, options: EngineOptions = {}) {
  const events: EngineEvent[] = [];
  const engine = await place.engine({ jobs: [note], onEvent: (event) => void events.push(event), ...options });
  const of = <Name extends EngineEvent["name"]>(name: Name) =>
    events.filter((event): event is EngineEvent & { name: Name } => event.name === name);
  return { engine, events, of };
}

test("FR-006 AC-009 after a clean stop the check is quick, it passes, and the events of recovery carry the verdict", async (t) => {
  const { place } = await stored(t);
  const { of } = await heard(place);
  assert.deepEqual(
    of("integrity.checked").map(({ verdict, depth, background }) => [verdict, depth, background]),
    [["PASSED", "quick", false]],
  );
  assert.equal(of("recovery.started")[0]?.findings?.integrity, "PASSED");
  assert.equal(of("recovery.completed")[0]?.findings?.integrity, "PASSED");
});

test("FR-003 FR-006 a recovery that finds nothing is logged in one line, with the verdict and the depth of the check", async (t) => {
  const { place } = await stored(t);
  const lines: string[] = [];
  const log = (line: string): void => void lines.push(line);
  const { engine, of } = await heard(place, { logger: { info: log, warn: log, error: log } });
  assert.equal(of("recovery.started")[0]!.workers, 0);
  assert.deepEqual(
    lines.map((line) => line.replace(/\d+ ms/, "N ms")),
    ["start-up recovery: nothing to recover (N ms); integrity check PASSED (quick)"],
  );
  lines.length = 0;
  assert.equal(await engine.operator.recover(), null);
  assert.match(lines.join("\n"), /^recovery by recover: nothing to recover \(\d+ ms\)$/);
  lines.length = 0;
  assert.equal(await engine.operator.recover({ periodic: true }), null);
  assert.deepEqual(lines, [], "a pass on a timer that finds nothing is not logged");
});

test("a new file, a check that is turned off and a database in memory are NOT_CHECKED, never PASSED", async (t) => {
  const place = new Place(t);
  const fresh = await heard(place);
  assert.equal(fresh.of("recovery.completed")[0]?.findings?.integrity, "NOT_CHECKED");
  await fresh.engine.close();
  const off = await heard(place, { recovery: { integrityCheckOnStartup: false } });
  assert.deepEqual(off.of("integrity.checked"), []);
  assert.equal(off.of("recovery.completed")[0]?.findings?.integrity, "NOT_CHECKED");
  const events: EngineEvent[] = [];
  const memory = await open("sqlite::memory:", { logger: false, onEvent: (event) => void events.push(event) });
  await memory.close();
  assert.ok(events.every(({ name }) => name !== "integrity.checked"));
});

test("with a worker alive nothing is checked and no lock is waited for", async (t) => {
  const { place } = await stored(t);
  const working = await heard(place, { jobs: [note] });
  await working.engine.start();
  const { of } = await heard(place);
  assert.deepEqual(of("integrity.checked"), []);
  assert.equal(of("recovery.completed")[0]?.findings?.integrity, "NOT_CHECKED");
});

test("FR-007 FR-057 FR-058 FR-060 an index that disagrees with its table is rebuilt by the open, which says so and loses nothing", async (t) => {
  const { place, ids } = await stored(t);
  garbleIndex(place.path, "outlive_jobs_id", ids[7]!);
  rmSync(`${place.path}.outlive`, { recursive: true });
  // A row that names a live worker without a lock: the stop was not clean, so the check is a full one.
  const db = new DatabaseSync(place.path);
  db.exec(
    "INSERT INTO outlive_workers (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at, counts_rows) VALUES ('w', 'live', 'h', 'b', 1, '1', 1, 1000, 1, '[]', 1, 1, 1)",
  );
  db.close();
  const lines: string[] = [];
  const log = (line: string): void => void lines.push(line);
  const { engine, of } = await heard(place, { logger: { info: log, warn: log, error: log } });
  const [check] = of("integrity.checked");
  assert.equal(check?.verdict, "FAILED");
  assert.equal(check.depth, "full");
  assert.match(check.findings.join("\n"), /outlive_jobs_id/);
  assert.equal(of("store.repaired")[0]?.sound, true);
  assert.equal(of("recovery.completed")[0]?.findings?.integrity, "REPAIRED");
  assert.ok(
    lines.some((line) => /integrity check FAILED.*outlive_jobs_id/.test(line)),
    lines.join("\n"),
  );
  assert.ok(
    lines.some((line) => /is sound again; make a backup now/.test(line)),
    lines.join("\n"),
  );
  for (const id of ids) assert.equal((await engine.get(id))?.state, "queued", id);
});

test("FR-025 FR-067 an open that repaired the file has a report, although no worker died", async (t) => {
  const { place, ids } = await stored(t);
  garbleIndex(place.path, "outlive_jobs_id", ids[3]!);
  const { engine, of } = await heard(place);
  // Quick checks do not compare indexes with tables: this damage waits for a full one, after a stop that was not clean.
  assert.equal(of("recovery.completed")[0]?.findings?.check?.depth, "quick");
  assert.equal(await engine.report(), null);
  await engine.close();
  writeFileSync(`${place.path}.outlive/left-by-a-death.lock`, "");
  const again = await heard(place);
  const report = await again.engine.report();
  assert.equal(report?.integrity, "REPAIRED");
  assert.deepEqual(report.deadWorkers, []);
  assert.equal(report.store?.backupRecommended, true);
  assert.equal(report.integrityDepth, "full");
  assert.match(report.text, /^Integrity Check: REPAIRED \(full\)$/m);
  assert.match(report.text, /^Damage Found: \d+$/m);
  assert.match(report.text, /^ {2}- reindex: ok/m);
  assert.match(report.text, /^Recommended: make a backup now/m);
  for (const id of ids) assert.equal((await again.engine.get(id))?.state, "queued", id);
  await again.engine.close();
  const later = await heard(place);
  assert.equal((await later.engine.report())?.id, report.id, "a sound open hides no report");
});

test("FR-006 FR-056 a garbled index passes the quick check of a clean start, whose report says quick; the next full check finds it", async (t) => {
  const { place, ids } = await stored(t);
  garbleIndex(place.path, "outlive_jobs_id", ids[3]!);
  // Something worth a report, so that a clean start has one: another tool has changed the journal mode.
  const db = new DatabaseSync(place.path);
  db.exec("PRAGMA journal_mode = DELETE");
  db.close();
  const { engine } = await heard(place);
  const report = await engine.report();
  assert.deepEqual([report?.integrity, report?.integrityDepth], ["PASSED", "quick"]);
  assert.match(report!.text, /^Integrity Check: PASSED \(quick\)$/m);
  const whole = await engine.operator.integrity();
  assert.deepEqual([whole.verdict, whole.depth], ["FAILED", "full"]);
  assert.match(whole.findings.join("\n"), /outlive_jobs_id/);
});

for (const repair of ["off", "reindex"] as const)
  test(`FR-008 damage that can't be repaired ends the start-up with the commands to type (repair: ${repair})`, async (t) => {
    const { place } = await stored(t, 2_000);
    zeroRoot(place.path, "outlive_jobs");
    const before = readFileSync(place.path);
    await assert.rejects(
      open(place.url, { jobs: [note], logger: false, recovery: { repair } }),
      says(
        ErrorCode.storeDamaged,
        place.path,
        `outlive check --repair --store ${place.url}`,
        "outlive recover --restored",
        "readOnly: true",
        repair === "off" ? "Nothing was changed." : "It can't be repaired without loss.",
      ),
    );
    assert.ok(readFileSync(place.path).equals(before), "it is as it was");
    // Nothing is held after it: the next one comes to the same answer at once.
    await assert.rejects(open(place.url, { logger: false, recovery: { repair } }), says(ErrorCode.storeDamaged));
  });

test("a store whose head is overwritten is damaged, not something else", async (t) => {
  const { place } = await stored(t);
  overwrite(place.path, 0, Buffer.alloc(100, "x"));
  await assert.rejects(open(place.url, { logger: false }), says(ErrorCode.storeDamaged, "not a database"));
});

test("an empty file is refused while a write-ahead log is next to it: SQLite would delete that", async (t) => {
  const { place } = await stored(t);
  writeFileSync(`${place.path}-wal`, "the only copy");
  truncateSync(place.path, 0);
  await assert.rejects(open(place.url, { logger: false }), says(ErrorCode.storeDamaged, "empty", "-wal"));
  rmSync(place.path);
  await assert.rejects(open(place.url, { logger: false }), says(ErrorCode.storeDamaged, "gone"));
  assert.equal(readFileSync(`${place.path}-wal`, "utf8"), "the only copy");
});

test("FR-065 FR-066 a journal mode that another tool changed is WAL again, which is logged and in the report", async (t) => {
  const { place } = await stored(t);
  const db = new DatabaseSync(place.path);
  db.exec("PRAGMA journal_mode = DELETE");
  db.close();
  const { engine, of, events } = await heard(place);
  assert.deepEqual(
    of("store.upkeep").flatMap(({ what, facts }) => (what === "journal.restored" ? [facts["was"]] : [])),
    ["delete"],
  );
  const order = events.map(({ name }) => name);
  assert.ok(order.indexOf("integrity.checked") < order.indexOf("store.upkeep"), "checked before it was changed");
  assert.equal((await engine.health()).store["journalMode"], "wal");
  assert.match((await engine.report())!.text, /^Journal Mode: restored to WAL \(it was delete\)$/m);
});

test("FR-070 inconsistencies that an open finds are an event, and listed in the report", async (t) => {
  const { place } = await stored(t);
  writeFileSync(`${place.path}.outlive/stray.lock`, "");
  const { engine, of } = await heard(place);
  assert.deepEqual(
    of("store.inconsistent").flatMap(({ inconsistencies }) => inconsistencies.map(({ what }) => what)),
    ["lock-without-worker"],
  );
  assert.match((await engine.report())!.text, /^Inconsistencies: 1\n {2}- .*stray\.lock/m);
});

test("NFR-002 a check that does not end in its time is UNFINISHED, never PASSED, and goes on in the background", async (t) => {
  const { place } = await stored(t);
  const bus = new EventBus(toStoredError);
  const events: EngineEvent[] = [];
  bus.onAny((event) => void events.push(event));
  const deps = { clock: systemClock, random: systemRandom, events: bus, bootId: "boot" };
  const startUp = { integrityCheck: true, repair: "reindex", checkLimitMs: 1, checkHereBytes: 0 } as const;
  const backend = await openSqlite(deps, { path: place.path }, { startUp });
  t.after(() => backend.store.close());
  const findings = await backend.prepare(true);
  assert.equal(findings.integrity, "UNFINISHED");
  const opening = { recovery: "r", startedAt: 1, completedAt: 2, findings };
  await backend.store.upkeep.noteOpening!(opening);
  await backend.opened!(true);
  const later = await untilTrue(
    () => backend.store.upkeep.latestOpening!(),
    (it) => it?.findings.integrity !== "UNFINISHED",
    "the background check has ended",
  );
  assert.equal(later?.findings.integrity, "PASSED");
  assert.deepEqual(
    events
      .filter((event) => event.name === "integrity.checked")
      .map(({ verdict, depth, background }) => [verdict, depth, background]),
    [
      ["UNFINISHED", "quick", false],
      ["PASSED", "full", true],
    ],
  );
});

test("a check in a separate process comes to the same verdict as one here", async (t) => {
  const { place } = await stored(t, 500);
  const deps = { clock: systemClock, random: systemRandom, events: new EventBus(toStoredError), bootId: "boot" };
  const startUp = { integrityCheck: true, repair: "off", checkHereBytes: 0, checkLimitMs: 60_000 } as const;
  const sound = await openSqlite(deps, { path: place.path }, { startUp });
  assert.equal((await sound.prepare(true)).integrity, "PASSED");
  await sound.opened!(true);
  await sound.store.close();
  zeroRoot(place.path, "outlive_jobs");
  await assert.rejects(openSqlite(deps, { path: place.path }, { startUp }), says(ErrorCode.storeDamaged));
});

test("NFR-009 readOnly: everything can be read, and every change is refused by name", async (t) => {
  const { place, ids } = await stored(t);
  const sideFiles = (): string[] => readdirSync(`${place.path}.outlive`).toSorted();
  const before = sideFiles();
  const engine = await place.engine({ jobs: [note], readOnly: true });
  const id = ids[0]!;
  assert.equal((await engine.get(id))?.input, 0);
  assert.equal((await engine.list({ limit: 5 })).jobs.length, 5);
  assert.equal((await engine.counts())[0]?.ready, ids.length);
  assert.deepEqual(await engine.workers({ which: "all" }), []);
  assert.deepEqual(await engine.incidents(), []);
  assert.equal(await engine.report(), null);
  assert.deepEqual(await engine.operator.deaths(), []);
  assert.ok(await engine.why(id));
  assert.equal((await engine.health()).ok, true);
  assert.equal((await engine.operator.integrity()).verdict, "PASSED");
  const refused = says(ErrorCode.storeReadOnly, "readOnly", "Nothing was written");
  const changes: Record<string, () => Promise<unknown>> = {
    enqueue: () => engine.enqueue(note, 1),
    enqueueMany: () => engine.enqueueMany(note, [1]),
    enqueueByName: () => engine.operator.enqueueByName("note", 1),
    start: () => engine.start(),
    work: () => engine.work(),
    cancel: () => engine.cancel(id),
    retry: () => engine.retry(id),
    pause: () => engine.pause(note),
    resume: () => engine.resume(note),
    recover: () => engine.operator.recover(),
    restored: () => engine.operator.recover({ restored: true }),
    repair: () => engine.operator.repair(),
  };
  for (const [name, change] of Object.entries(changes))
    await assert.rejects(change(), (thrown) => {
      assert.ok(thrown instanceof OutliveError, `${name}: ${String(thrown)}`);
      return refused(thrown);
    });
  assert.deepEqual(sideFiles(), before, "nothing was put next to the file");
  assert.equal((await engine.get(id))?.state, "queued");
});

test("readOnly opens a damaged file as far as SQLite can read it: a read of a broken page is an error, the others go on", async (t) => {
  const { place } = await stored(t, 2_000);
  zeroRoot(place.path, "outlive_jobs");
  await assert.rejects(open(place.url, { logger: false }), says(ErrorCode.storeDamaged));
  const engine = await place.engine({ readOnly: true });
  await assert.rejects(engine.list(), says(ErrorCode.storeCorrupt, "listing jobs", "outlive check --repair"));
  assert.deepEqual(await engine.workers({ which: "all" }), []);
  assert.deepEqual(await engine.incidents(), []);
});

test("readOnly of a file that is not there, has no tables or is newer says so", async (t) => {
  const place = new Place(t);
  await assert.rejects(place.engine({ readOnly: true }), says(ErrorCode.storeUnusable, "There is no file"));
  const db = new DatabaseSync(place.path);
  db.exec("CREATE TABLE mine (a)");
  await assert.rejects(place.engine({ readOnly: true }), says(ErrorCode.schemaMissing));
  db.exec("CREATE TABLE outlive_meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID");
  db.exec("INSERT INTO outlive_meta VALUES ('schema', 99)");
  db.close();
  await assert.rejects(place.engine({ readOnly: true }), says(ErrorCode.schemaNewer));
  await assert.rejects(place.engine(), says(ErrorCode.schemaNewer, "Nothing was changed"));
});
