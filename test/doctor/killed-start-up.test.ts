// Start-ups that die, and start-ups side by side, in real processes.
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import type { EngineEvent } from "../../src/index.ts";
import { holdExclusively } from "../../src/stores/sqlite/database.ts";
import { garbleIndex } from "../support/damage.ts";
import { slow, transfer } from "../support/jobs.ts";
import { type Child, Place, untilTrue } from "../support/processes.ts";

/** A store whose only worker was killed while it ran a job. */
async function unclean(t: TestContext): Promise<{ place: Place; id: string }> {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await engine.close();
  const worker = place.child();
  await worker.untilFact("started", { id });
  worker.kill();
  await worker.exited;
  return { place, id };
}

/** Child processes of `pid` that check or repair a file. */
function doctorsOf(pid: number): string[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((name) => {
      try {
        const parent = readFileSync(`/proc/${name}/stat`, "utf8").split(") ")[1]?.split(" ")[1];
        return Number(parent) === pid && readFileSync(`/proc/${name}/cmdline`, "utf8").includes("/doctor/child.");
      } catch {
        return false; // it has ended meanwhile
      }
    });
}

function eventsOf(child: Child): EngineEvent[] {
  return child.facts.filter(({ fact }) => fact === "event").map((fact) => fact["event"] as EngineEvent);
}

test("FR-001 FR-002 FR-003 FR-004 FR-005 the parts of a start-up come in their order, and open resolves after all of them", async (t) => {
  const { place, id } = await unclean(t);
  const names: string[] = [];
  const engine = await place.engine({ onEvent: ({ name }) => void names.push(name) });
  assert.deepEqual(names, [
    "integrity.checked",
    "store.upkeep",
    "recovery.started",
    "worker.gone",
    "job.recovered",
    "worker.cleaned",
    "recovery.completed",
  ]);
  assert.equal((await engine.get(id))?.state, "queued");
  const report = await engine.report();
  assert.match(report!.text, /^Integrity Check: PASSED \(full\)\nWAL Checkpointed: \d+ frames$/m);
});

test("FR-056 three opens at once of a store that was left unclean do one integrity check: the others wait and take its verdict", async (t) => {
  const { place } = await unclean(t);
  // All of them are at the lock before any of them has it.
  const lock = holdExclusively(join(`${place.path}.outlive`, "start-up.held"));
  const children = [0, 1, 2].map(() => place.child({ recoverOnly: true }));
  const waits = await Promise.all(children.map((child) => child.untilEvent("open.waits")));
  if (process.platform === "linux") assert.ok(waits.every(({ pid }) => pid === process.pid));
  lock.drop();
  await Promise.all(children.map((child) => child.untilFact("open")));
  const checks = children.flatMap(eventsOf).filter((event) => event.name === "integrity.checked");
  assert.deepEqual(
    checks.map(({ verdict, depth }) => [verdict, depth]),
    [["PASSED", "full"]],
  );
  const completed = children.flatMap(eventsOf).filter((event) => event.name === "recovery.completed");
  assert.deepEqual(
    completed.map(({ findings }) => findings?.integrity),
    ["PASSED", "PASSED", "PASSED"],
  );
  assert.equal(completed.flatMap(({ incidents }) => incidents).length, 1, "one death, one incident");
});

for (const at of [
  "PRAGMA integrity_check",
  String.raw`wal_checkpoint\(PASSIVE\)`,
  String.raw`wal_checkpoint\(TRUNCATE\)`,
])
  test(`an open that is killed at ${at} frees the start lock, and the next one does all of it`, async (t) => {
    const { place, id } = await unclean(t);
    const child = place.child({ recoverOnly: true, killAt: `at:${at}` });
    assert.equal((await child.exited).signal, "SIGKILL");
    assert.ok(!child.facts.some(({ fact }) => fact === "open"));
    const events: EngineEvent[] = [];
    const engine = await place.engine({ onEvent: (event) => void events.push(event) });
    const checked = events.filter((event) => event.name === "integrity.checked");
    assert.deepEqual(
      checked.map(({ verdict, depth }) => [verdict, depth]),
      [["PASSED", "full"]],
    );
    assert.equal((await engine.get(id))?.state, "queued");
    assert.equal((await engine.incidents()).length, 1);
  });

test("an open that is killed while it rebuilds an index leaves it to the next one", async (t) => {
  const { place, id } = await unclean(t);
  const engine = await place.engine();
  const { id: other } = await engine.enqueue(transfer, { n: 1 });
  await engine.close();
  // If the kill came too late, the file is sound already: try again.
  for (let tries = 0; ; tries++) {
    assert.ok(tries < 20, "no kill came in time");
    garbleIndex(place.path, "outlive_jobs_id", other);
    // Left by a death: the check is a full one.
    holdExclusively(join(`${place.path}.outlive`, "dead.lock")).drop();
    const child = place.child({ recoverOnly: true });
    // The process that rebuilds the indexes is the opener's child; it ends with its parent.
    const [doctor] = await untilTrue(
      () => doctorsOf(child.pid),
      ({ length }) => length > 0 || child.facts.some(({ fact }) => fact === "open"),
      "the doctor is at work, or it is too late",
    );
    child.kill();
    await child.exited;
    if (doctor)
      await untilTrue(
        () => existsSync(`/proc/${doctor}`),
        (lives) => !lives,
        "the doctor has ended, too",
      );
    using db = new DatabaseSync(place.path);
    if (Object.values(db.prepare("PRAGMA integrity_check(1)").get()!)[0] !== "ok") break;
  }
  const events: EngineEvent[] = [];
  const again = await place.engine({ onEvent: (event) => void events.push(event) });
  const [completed] = events.filter((event) => event.name === "recovery.completed");
  assert.equal(completed?.findings?.integrity, "REPAIRED");
  assert.deepEqual(await Promise.all([id, other].map(async (each) => (await again.get(each))?.state)), [
    "queued",
    "queued",
  ]);
});

test("a worker does not begin while another process is at its start-up, which may repair the file", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const lock = holdExclusively(join(`${place.path}.outlive`, "start-up.held"));
  t.after(() => lock.drop());
  const starting = engine.start();
  await untilTrue(
    () => readdirSync(`${place.path}.outlive`).some((name) => name.endsWith(".lock")),
    Boolean,
    "the worker holds its lock",
  );
  assert.deepEqual(await engine.workers(), [], "it is not registered yet");
  lock.drop();
  const { id } = await starting;
  assert.deepEqual(
    (await engine.workers()).map((worker) => worker.id),
    [id],
  );
});

test("an unclean stop is seen although the folder of the locks is gone", async (t) => {
  const { place } = await unclean(t);
  rmSync(`${place.path}.outlive`, { recursive: true });
  const events: EngineEvent[] = [];
  await place.engine({ onEvent: (event) => void events.push(event) });
  const checked = events.find((event) => event.name === "integrity.checked");
  assert.equal(checked?.depth, "full");
});
