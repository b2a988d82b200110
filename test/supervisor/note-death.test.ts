// engine.noteDeath: what a supervisor knows of a death reaches the report, before the recovery or after it.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { slow } from "../support/jobs.ts";
import { Place } from "../support/processes.ts";

async function killedWorker(place: Place, engine: Engine): Promise<{ pid: number; bornAt: number }> {
  const bornAt = Date.now();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const victim = place.child({ heartbeat: {} });
  await victim.untilFact("started", { id });
  victim.kill();
  await victim.exited;
  return { pid: victim.pid, bornAt };
}

async function evidence(engine: Engine): Promise<string | null> {
  return (await engine.report())!.deadWorkers[0]!.evidence;
}

test("a note before the recovery is the incident's evidence, and the death has an instant", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { pid, bornAt } = await killedWorker(place, engine);
  const diedAt = Date.now() - 5;
  await engine.noteDeath(pid, "killed by SIGKILL", { bornAt, diedAt });
  const [dead] = (await engine.recover())!.deadWorkers;
  assert.equal(dead?.evidence, "killed by SIGKILL");
  assert.equal(Date.parse(dead.lastSeenAliveAt!), diedAt);
});

test("a note after the recovery is added to the incident, once", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { pid, bornAt } = await killedWorker(place, engine);
  await engine.recover();
  assert.equal(await evidence(engine), null);
  await engine.noteDeath(pid, "exited with code 3", { bornAt });
  assert.equal(await evidence(engine), "exited with code 3");
  await engine.noteDeath(pid, "exited with code 3", { bornAt });
  assert.equal(await evidence(engine), "exited with code 3");
});

test("a note about a process that was born later says nothing about an earlier one with the same pid", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { pid } = await killedWorker(place, engine);
  await engine.recover();
  await engine.noteDeath(pid, "exited with code 3", { bornAt: Date.now() });
  await engine.noteDeath(pid, "exited with code 3");
  assert.equal(await evidence(engine), null);
});
