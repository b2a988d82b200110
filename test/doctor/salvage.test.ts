// What a salvaged file owes the store's rules: running jobs are recovered, kinds keep their names, keys are held once, the log of the
// file is part of it and that of another is not, and what is not ours comes along.
import assert from "node:assert/strict";
import { copyFileSync, readdirSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { KIND_DEFAULTS } from "../../src/engine/kind-options.ts";
import { job } from "../../src/index.ts";
import type { KindSettings } from "../../src/job/job.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { type KindColumns, kindSettings } from "../../src/stores/rows.ts";
import { Database } from "../../src/stores/sqlite/database.ts";
import { checkFile, findInconsistencies } from "../../src/stores/sqlite/doctor/check.ts";
import { repairFile } from "../../src/stores/sqlite/doctor/repair.ts";
import { furnish, pageOf, readFixture, zero } from "../support/damaged-file.ts";
import { slow } from "../support/jobs.ts";
import { Place, untilState } from "../support/processes.ts";

const salvaged = (place: Place) => repairFile(place.path, { salvage: true }, { clock: systemClock });

/** Damage that only a salvage repairs, and that costs nothing: the index of ids. */
function breakIndex(path: string): void {
  zero(path, pageOf(path, "outlive_jobs_id", "leaf"));
}

test("a running job whose worker's row is lost is recovered by the next open", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const worker = place.child();
  await worker.untilFact("started", { id });
  worker.kill();
  await worker.exited;
  await engine.close();
  zero(place.path, pageOf(place.path, "outlive_workers", "leaf"));
  const { sound, salvage } = await salvaged(place);
  assert.ok(sound);
  assert.equal(salvage!.tables.find(({ table }) => table === "outlive_workers")!.lost, 1);
  const next = await place.engine();
  const recovered = (await next.get(id))!;
  assert.deepEqual([recovered.state, recovered.counters.crashes], ["queued", 1]);
  assert.match((await next.report())!.text, /Orphaned Jobs Found: 1/);
});

test("a kind whose row is lost keeps its name, by the index of names, and its jobs run", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 1 });
  await engine.close();
  zero(place.path, pageOf(place.path, "outlive_kinds", "leaf"));
  const { sound, salvage } = await salvaged(place);
  assert.ok(sound);
  assert.deepEqual(salvage!.partial, []);
  const next = await place.engine();
  await next.start();
  await untilState(next, id, "succeeded");
});

test("a kind whose row is lost has the default settings, as if it had been declared without options", async (t) => {
  const place = new Place(t);
  const plain = job<null>("plain");
  const patient = job<null>("patient", { timeout: "1h", grace: "1m", retry: { attempts: 2, backoff: "linear" } });
  const engine = await place.engine({ jobs: [plain, patient] });
  await engine.enqueue(plain, null);
  await engine.enqueue(patient, null);
  await engine.close();
  const declared = kindsIn(place.path);
  assert.deepEqual(declared.get("plain"), { name: "plain", ...KIND_DEFAULTS });
  assert.notDeepEqual(declared.get("patient"), { name: "patient", ...KIND_DEFAULTS });
  zero(place.path, pageOf(place.path, "outlive_kinds", "leaf"));
  assert.ok((await salvaged(place)).sound);
  const kept = kindsIn(place.path);
  for (const name of ["plain", "patient"]) assert.deepEqual(kept.get(name), { name, ...KIND_DEFAULTS });
});

function kindsIn(path: string): Map<string, KindSettings> {
  const db = new DatabaseSync(path, { readOnly: true });
  const rows = db.prepare("SELECT * FROM outlive_kinds").all() as unknown as KindColumns[];
  db.close();
  return new Map(rows.map((row) => [row.name, kindSettings(row)]));
}

test("an unfinished job that has lost a step is quarantined: to run the step again is for a person to decide", async (t) => {
  const place = new Place(t);
  const stepped = job<null>("two-steps").handle(async (_, run) => {
    await run.step("pay", () => ({ paid: true }));
    throw new Error("later");
  });
  const engine = await place.engine({ jobs: [stepped] });
  const { id } = await engine.enqueue(stepped, null);
  const worker = await engine.start();
  await untilStep(engine, id);
  await worker.stop();
  await engine.close();
  zero(place.path, pageOf(place.path, "outlive_steps", "leaf"));
  const { salvage } = await salvaged(place);
  assert.deepEqual(salvage!.partial, [id]);
  const next = await place.engine({ jobs: [stepped] });
  const after = (await next.get(id))!;
  assert.equal(after.state, "quarantined");
  assert.match(after.history.at(-1)!.reason, /^corrupt: the result of its step "pay" is lost/);
});

async function untilStep(engine: Awaited<ReturnType<Place["engine"]>>, id: string): Promise<void> {
  for (;;) {
    const seen = (await engine.get(id))!;
    if (seen.steps.length > 0 && seen.state === "queued") return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

test("what is only in the log is salvaged with the rest, also without a -shm", async (t) => {
  const place = new Place(t);
  await furnish(place, 100);
  const db = new DatabaseSync(place.path);
  db.exec("PRAGMA wal_autocheckpoint = 0; INSERT INTO ledger (n, what) VALUES (4711, 'only in the log')");
  const copy = new Place(t);
  for (const suffix of ["", "-wal"]) copyFileSync(place.path + suffix, copy.path + suffix);
  breakIndex(copy.path);
  db.close();
  const { sound } = await salvaged(copy);
  assert.ok(sound);
  assert.equal(readFixture(copy.path).ledger, 301);
});

test("a log of another file is not used, is kept next to the damaged file, and is reported", async (t) => {
  const place = new Place(t);
  const fixture = await furnish(place, 400);
  const other = new Place(t);
  const engine = await other.engine();
  await engine.enqueueMany(
    slow,
    Array.from({ length: 900 }, (_, ms) => ({ ms })),
  );
  copyFileSync(`${other.path}-wal`, `${place.path}-wal`);
  const check = await checkFile(place.path, "full", Number.POSITIVE_INFINITY);
  assert.equal(check.verdict, "FAILED");
  const { sound, steps, salvage } = await salvaged(place);
  assert.ok(sound);
  assert.match(steps.at(-1)!.detail, /log does not belong to this file/);
  assert.ok(readdirSync(place.folder).includes(`${salvage!.keptAs.split("/").at(-1)}-wal`));
  const now = readFixture(place.path);
  assert.deepEqual([now.inputs.size, now.ledger], [fixture.inputs.size, fixture.ledger]);
});

test("the user's indexes, views, triggers, full-text tables, blobs and large numbers come along", async (t) => {
  const place = new Place(t);
  await furnish(place, 100);
  const db = new DatabaseSync(place.path);
  db.exec(`
    CREATE TABLE things (a TEXT PRIMARY KEY, b BLOB, c REAL, d INT) WITHOUT ROWID;
    INSERT INTO things VALUES ('x', x'00ff10', 1.5, 9223372036854775807), ('y', NULL, 2, -5);
    CREATE TABLE odd (n INTEGER, double INTEGER GENERATED ALWAYS AS (n * 2) STORED, half GENERATED ALWAYS AS (n / 2) VIRTUAL);
    INSERT INTO odd (n) VALUES (7);
    ALTER TABLE odd ADD COLUMN later TEXT DEFAULT 'late';
    INSERT INTO odd (n) VALUES (9);
    CREATE INDEX odd_n ON odd (n);
    CREATE VIEW both AS SELECT a, n FROM things, odd;
    CREATE TRIGGER on_odd AFTER INSERT ON odd BEGIN INSERT INTO ledger VALUES (new.n, 'by trigger'); END;
    CREATE VIRTUAL TABLE words USING fts5 (text);
    INSERT INTO words VALUES ('a quick fox'), ('a slow one');
    PRAGMA user_version = 42;
    PRAGMA application_id = 99;`);
  const content = (of: DatabaseSync): unknown[] =>
    [
      "SELECT * FROM things",
      "SELECT rowid, * FROM odd",
      "SELECT * FROM both",
      "SELECT * FROM words WHERE words MATCH 'fox'",
      "PRAGMA user_version",
      "PRAGMA application_id",
      "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name",
    ].map((sql) => {
      const statement = of.prepare(sql);
      statement.setReadBigInts(true);
      return statement.all().map((row) => ({ ...row }));
    });
  const before = content(db);
  db.close();
  breakIndex(place.path);
  const { sound, findings } = await salvaged(place);
  assert.ok(sound, findings.join("\n"));
  const now = new DatabaseSync(place.path);
  t.after(() => now.close());
  assert.deepEqual(content(now), before);
});

test("a check makes no file and removes none, alone and next to a live worker", async (t) => {
  const place = new Place(t);
  await furnish(place, 100);
  const names = (): string[] => readdirSync(place.folder).toSorted();
  const alone = names();
  assert.equal((await checkFile(place.path, "quick", Number.POSITIVE_INFINITY)).verdict, "PASSED");
  assert.deepEqual(names(), alone);
  const worker = place.child();
  await worker.untilFact("working");
  const before = names();
  assert.equal((await checkFile(place.path, "full", Number.POSITIVE_INFINITY)).verdict, "PASSED");
  assert.deepEqual(names(), before);
});

test("FR-070 an open finds inconsistencies among 100,000 jobs without reading them all", async (t: TestContext) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueue(slow, { ms: 1 });
  await engine.close();
  const raw = new DatabaseSync(place.path);
  const columns = (raw.prepare("PRAGMA table_info(outlive_jobs)").all() as { name: string }[]).map(({ name }) =>
    name === "seq" ? "seq + i" : name === "id" ? "'job-' || i" : name,
  );
  raw.exec(`
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
    INSERT INTO outlive_jobs SELECT ${columns.join(", ")} FROM n, outlive_jobs WHERE outlive_jobs.id NOT LIKE 'job-%'`);
  raw.close();
  const db = new Database({ path: place.path });
  t.after(() => db.close());
  assert.deepEqual(findInconsistencies(db, [], "open"), [], "what only a scan of all rows finds is not searched for");
  assert.deepEqual(
    findInconsistencies(db, [], "full").map(({ what }) => what),
    ["counter-disagrees", "corrupt-content"],
  );
});
