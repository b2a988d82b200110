// Holds the write-ahead log through unclean stops, loss, mix-ups and readers that never end.
import assert from "node:assert/strict";
import { copyFileSync, existsSync, readdirSync, rmSync, statSync, truncateSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { type EngineEvent, ErrorCode } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { Database } from "../../src/stores/sqlite/database.ts";
import { tendWal, walBytes, walNews } from "../../src/stores/sqlite/doctor/wal.ts";
import { says } from "../engine/engines.ts";
import { transfer } from "../support/jobs.ts";
import { type Child, Place } from "../support/processes.ts";

async function end(...children: Child[]): Promise<void> {
  for (const child of children) child.kill("SIGKILL");
  await Promise.all(children.map((child) => child.exited));
}

/** The inputs of all jobs, in the order in which they were enqueued. */
async function inputs(place: Place, options = {}): Promise<number[]> {
  const engine = await place.engine(options);
  return engine.transaction(sqlite, (tx) =>
    tx.all<{ n: number }>("SELECT json_extract(input, '$.n') AS n FROM outlive_jobs ORDER BY seq").map(({ n }) => n),
  );
}

/** The facts of the store's own news of this sort. */
function newsOf(events: readonly EngineEvent[], what: string): Readonly<Record<string, unknown>> | undefined {
  return events.flatMap((event) => (event.name === "store.upkeep" && event.what === what ? [event.facts] : []))[0];
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

test("IT-003 FR-009 FR-061 AC-010 an unclean stop with a large log loses nothing: it is checked in full and flushed", async (t) => {
  const place = new Place(t);
  await (await place.engine()).close();
  // While a process reads an old state the log is not used again from its start, and grows.
  const reader = place.fileUser({ read: true });
  await reader.untilFact("reading");
  const writer = place.fileUser({ enqueue: 50_000 });
  await writer.untilFact("enqueued");
  await end(writer, reader);
  const left = walBytes(place.path);
  assert.ok(left > 8 << 20, `the log has ${left} bytes`);
  const events: EngineEvent[] = [];
  assert.deepEqual(await inputs(place, { onEvent: (event: EngineEvent) => void events.push(event) }), upTo(50_000));
  const checked = events.find((event) => event.name === "integrity.checked");
  assert.deepEqual([checked?.verdict, checked?.depth], ["PASSED", "full"]);
  const flushed = newsOf(events, "wal.checkpointed");
  assert.ok(flushed?.["truncated"] && Number(flushed["frames"]) > 1_000, JSON.stringify(flushed));
  assert.ok(walBytes(place.path) < 1 << 20, "it is small again");
});

test("FR-010 what a killed process had written and not committed is gone, although it was in the log", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  await engine.close();
  const writer = place.fileUser({ uncommitted: 20_000 });
  await writer.untilFact("written");
  await end(writer);
  assert.ok(walBytes(place.path) > 1 << 20, "most of it was there");
  assert.deepEqual(await place.ledgerRows(await place.engine()), []);
});

test("FR-010 FR-066 the same under a journal mode that another tool had set: undone first, then WAL again", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  await engine.close();
  const db = new DatabaseSync(place.path);
  db.exec("PRAGMA journal_mode = DELETE");
  db.close();
  const writer = place.fileUser({ uncommitted: 20_000 });
  await writer.untilFact("written");
  await end(writer);
  assert.ok(statSync(`${place.path}-journal`).size > 0, "it left a journal");
  const events: EngineEvent[] = [];
  const again = await place.engine({ onEvent: (event) => void events.push(event) });
  assert.deepEqual(await place.ledgerRows(again), []);
  assert.deepEqual(newsOf(events, "journal.restored"), { was: "delete" });
  assert.equal((await again.operator.integrity()).verdict, "PASSED");
});

test("a missing -shm file costs nothing", async (t) => {
  const place = new Place(t);
  const writer = place.fileUser({ enqueue: 3_000 });
  await writer.untilFact("enqueued");
  await end(writer);
  rmSync(`${place.path}-shm`);
  assert.deepEqual(await inputs(place), upTo(3_000));
});

test("a log that was cut off costs what was behind the cut, and nothing else: whole transactions from the end", async (t) => {
  const place = new Place(t);
  const writer = place.fileUser({ enqueue: 3_000 });
  await writer.untilFact("enqueued");
  await end(writer);
  truncateSync(`${place.path}-wal`, Math.floor(statSync(`${place.path}-wal`).size * 0.7) + 13);
  const left = await inputs(place);
  assert.ok(left.length < 3_000 && left.length % 1_000 === 0, `${left.length} are left`);
  assert.deepEqual(left, upTo(left.length));
});

test("the log of another store is not applied: the open is refused, and with repair auto it is put aside and kept", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueueMany(
    transfer,
    upTo(500).map((n) => ({ n })),
  );
  await engine.close();
  const other = new Place(t);
  const writer = other.fileUser({ enqueue: 2_000 });
  await writer.untilFact("enqueued");
  await end(writer);
  copyFileSync(`${other.path}-wal`, `${place.path}-wal`);
  await assert.rejects(
    place.engine(),
    says(ErrorCode.storeDamaged, "belongs to another store", `Move ${place.path}-wal`, "Nothing was changed."),
  );
  assert.equal(statSync(`${place.path}-wal`).size, statSync(`${other.path}-wal`).size, "it is as it was");
  const auto = { recovery: { repair: "auto" } } as const;
  assert.deepEqual(await inputs(place, auto), upTo(500));
  assert.ok(
    readdirSync(place.folder).some((name) => name.startsWith("jobs.db-wal.aside-")),
    "it is kept",
  );
  const report = await (await place.engine(auto)).report();
  assert.equal(report?.integrity, "REPAIRED");
  assert.match(report.text, /set-wal-aside: ok \(the write-ahead log did not fit the file and is kept as /);
  assert.deepEqual(await inputs(other), upTo(2_000), "the other one has lost nothing");
});

test("FR-064 a reader that holds the log back at an open is named, counted as a failed checkpoint, and stops nothing", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueue(transfer, { n: 1 });
  const reader = place.fileUser({ read: true });
  await reader.untilFact("reading");
  await engine.enqueue(transfer, { n: 2 });
  const events: EngineEvent[] = [];
  const second = await place.engine({ onEvent: (event) => void events.push(event) });
  const failed = newsOf(events, "checkpoint.failed");
  assert.ok(failed, "it was reported");
  const readers = failed["readers"] as readonly { readonly pid: number; readonly command: string }[];
  if (existsSync("/proc/locks")) {
    assert.deepEqual(
      readers.map(({ pid }) => pid),
      [reader.pid],
    );
    assert.match(readers[0]!.command, /file-user/);
  }
  assert.match((await second.report())!.text, /^WAL Not Flushed: /m);
  await second.enqueue(transfer, { n: 3 });
});

test("FR-062 FR-063 a large log is flushed while others work; a process that reads an old state is named", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueue(transfer, { n: 1 });
  const db = new Database({ path: place.path });
  t.after(() => db.close());
  const reader = place.fileUser({ read: true });
  await reader.untilFact("reading");
  await engine.enqueue(transfer, { n: 2 });
  const held = tendWal(db, 0);
  assert.ok(held.walBytes > 0 && held.heldBy !== null);
  if (existsSync("/proc/locks"))
    assert.deepEqual(
      held.heldBy.map(({ pid }) => pid),
      [reader.pid],
    );
  assert.deepEqual(tendWal(db), { walBytes: held.walBytes, frames: 0, heldBy: null }, "small ones are left alone");
  await end(reader);
  const free = tendWal(db, 0);
  assert.ok(free.frames > 0);
  assert.deepEqual([free.walBytes, free.heldBy], [0, null]);
  assert.equal((await engine.health()).store["walBytes"], 0);
});

test("FR-063 a large log that was flushed is reported; one that a reader holds back is reported once, with the reader, until it is small again", () => {
  const readers = [{ pid: 7, command: "backup" }];
  const news = walNews();
  const said = (walBytes: number, frames: number, heldBy: typeof readers | null): unknown[] =>
    news({ walBytes, frames, heldBy }).map(({ what, level, facts }) => [what, level, facts]);
  assert.deepEqual(said(0, 0, null), [], "a small one is no news");
  assert.deepEqual(said(0, 9, null), [["wal.checkpointed", "info", { frames: 9, truncated: true }]]);
  assert.deepEqual(said(99, 3, readers), [["wal.held", "warn", { bytes: 99, readers }]]);
  assert.deepEqual(said(99, 3, readers), []);
  assert.deepEqual(said(0, 0, null), []);
  assert.deepEqual(said(98, 0, []), [], "a reader that can't be named may be gone at the next pass");
  assert.deepEqual(said(98, 0, []), [["wal.held", "warn", { bytes: 98, readers: [] }]]);
});
