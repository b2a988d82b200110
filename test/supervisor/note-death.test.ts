// engine.noteDeath: what a supervisor knows of a death reaches the report, before the recovery or after it.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { slow } from "../support/jobs.ts";
import { Place } from "../support/processes.ts";

async function killedWorker(place: Place, engine: Engine): Promise<string> {
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const victim = place.child({ heartbeat: {} });
  await victim.untilFact("started", { id });
  const { worker } = (await engine.get(id))!;
  victim.kill();
  await victim.exited;
  return worker!;
}

async function evidence(engine: Engine): Promise<string | null> {
  return (await engine.report())!.deadWorkers[0]!.evidence;
}

/** What this host's kernel says. */
const PROVED = /^its process is gone \(pid \d+, start ticks \d+, pid:\[\d+\]\)$/;

test("a note before the recovery is the incident's evidence, and the death has an instant", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const worker = await killedWorker(place, engine);
  const before = Date.now();
  assert.equal(await engine.operator.noteDeath(worker, "killed by SIGKILL", { agoMs: 5_000 }), true);
  const after = Date.now();
  const [dead] = (await engine.operator.recover())!.deadWorkers;
  assert.equal(dead?.evidence, "killed by SIGKILL");
  const diedAt = dead.lastSeenAliveAt!;
  assert.ok(before - 5_000 <= diedAt && diedAt <= after - 5_000, String(diedAt));
});

test("a note after the recovery is added to the incident, once", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const worker = await killedWorker(place, engine);
  await engine.operator.recover();
  assert.match((await evidence(engine))!, PROVED);
  await engine.operator.noteDeath(worker, "exited with code 3");
  const noted = (await evidence(engine))!;
  assert.equal(noted, "exited with code 3", "what the parent knows replaces what the kernel says");
  await engine.operator.noteDeath(worker, "exited with code 3");
  assert.equal(await evidence(engine), noted);
});

test("a note about a worker that is not in the store changes nothing and says so", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const worker = await killedWorker(place, engine);
  await engine.operator.recover();
  for (const other of ["", `${worker}0`, worker.slice(0, -1), `${worker.slice(0, -1)}~`])
    assert.equal(await engine.operator.noteDeath(other, "exited with code 3"), false, other);
  assert.match((await evidence(engine))!, PROVED);
});

test("a note about a worker that has stopped cleanly is not kept", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const child = place.child();
  const { worker } = await child.untilFact("working");
  child.kill("SIGTERM");
  await child.exited;
  assert.equal(await engine.operator.noteDeath(String(worker), "exited with code 3"), true);
  assert.equal((await engine.workers({ which: "all" }))[0]?.lastWord, null);
});
