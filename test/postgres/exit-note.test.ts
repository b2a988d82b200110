// What a parent reports of its child's exit proves a death where no kernel can be asked: the work is taken at once and the crash is
// counted, also if another process took the work before, as lost. And losses are judged by `open` and by `recover`, not by workers only.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { slow as slowOfAllStores } from "../support/jobs.ts";
import { nodeWithoutProcSys } from "../regressions/namespaces.ts";
import { Supervisors } from "../regressions/supervised.ts";
import { withClient } from "../support/postgres.ts";
import { Place, untilTrue } from "../support/processes.ts";
import { slow } from "./jobs.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

/** Nothing but a proof takes work within the time of a test. */
const NEVER_LOST = { ...PATIENT, contact: "10m", lease: "30m" } as const;
/** Contact is lost within a moment. */
const SOON_LOST = { ...PATIENT, contact: "500ms" } as const;

/** A worker that no kernel of ours can prove dead, killed while it ran the job. */
async function killedElsewhere(place: PostgresPlace, engine: Engine): Promise<{ id: string; worker: string }> {
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const victim = place.child({ elsewhere: true, heartbeat: NEVER_LOST });
  await victim.untilFact("started", { id });
  const { worker } = await victim.untilFact("working");
  victim.kill();
  await victim.exited;
  return { id, worker: String(worker) };
}

async function untilTakenAsLost(engine: Engine): Promise<void> {
  const recovered = async () => (await engine.operator.recover(), engine.incidents());
  const [incident] = await untilTrue(recovered, (found) => found.length > 0, "contact is lost");
  assert.deepEqual([incident!.how, incident!.resolution], ["lost", null]);
}

async function fate(engine: Engine, id: string) {
  const { state, counters } = (await engine.get(id))!;
  const [incident] = await engine.incidents();
  return { state, crashes: counters.crashes, losses: counters.losses, resolution: incident?.resolution ?? null };
}

test("a reported exit is a proof: the work is taken at once and the crash is counted, where no kernel can be asked", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine({ heartbeat: NEVER_LOST });
  const { id, worker } = await killedElsewhere(place, engine);
  assert.equal(await engine.operator.recover(), null, "nothing proves the death yet");
  assert.equal(await engine.operator.noteDeath(worker, "killed by SIGKILL", { agoMs: 0.25 }), true);
  const [dead] = (await engine.operator.recover())!.deadWorkers;
  assert.deepEqual([dead?.workerId, dead?.how, dead?.evidence], [worker, "gone", "killed by SIGKILL"]);
  assert.deepEqual(await fate(engine, id), { state: "queued", crashes: 1, losses: 0, resolution: null });
});

test("a loss that another process has taken resolves as died when the exit is reported, and is counted by the next pass", async (t) => {
  const place = await PostgresPlace.shared(t);
  const parent = await place.engine({ heartbeat: NEVER_LOST });
  const { id, worker } = await killedElsewhere(place, parent);
  await untilTakenAsLost(await place.engine({ heartbeat: SOON_LOST }));
  assert.deepEqual(await fate(parent, id), { state: "queued", crashes: 0, losses: 1, resolution: null });
  await parent.operator.noteDeath(worker, "killed by SIGKILL");
  assert.equal((await fate(parent, id)).resolution, "died", "at once");
  await parent.operator.recover();
  assert.deepEqual(await fate(parent, id), { state: "queued", crashes: 1, losses: 0, resolution: "died" });
});

test("an exit that is reported while another process takes the work as lost is counted, too", async (t) => {
  const place = await PostgresPlace.shared(t);
  const parent = await place.engine({ heartbeat: NEVER_LOST });
  const { id, worker } = await killedElsewhere(place, parent);
  const watcher = await place.engine({ heartbeat: SOON_LOST });
  // Another session holds the job, so that the recovery stays open.
  await withClient(place.url, async (client) => {
    await client.query("BEGIN");
    await client.query(`SELECT 1 FROM "${place.schema}".jobs WHERE id = $1 FOR UPDATE`, [id]);
    await untilTakenAsLost(watcher);
    const recovering = (await parent.workers()).find((row) => row.id === worker);
    assert.equal(recovering?.state, "recovering");
    await parent.operator.noteDeath(worker, "killed by SIGKILL");
    assert.equal((await fate(parent, id)).resolution, "died");
    await client.query("ROLLBACK");
  });
  await parent.operator.recover();
  assert.deepEqual(await fate(parent, id), { state: "queued", crashes: 1, losses: 0, resolution: "died" });
});

test("an exit that was reported before its worker's row was there is a proof once it is", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine({ heartbeat: NEVER_LOST });
  const { id, worker } = await killedElsewhere(place, engine);
  const rename = (from: string, to: string) =>
    place.query("UPDATE outlive.fleet SET id = $2 WHERE id = $1", [from, to]);
  // As if the registration of a killed process were still on its way to the server.
  await rename(worker, `${worker}-later`);
  assert.equal(await engine.operator.noteDeath(worker, "killed by SIGKILL"), false);
  assert.equal(await engine.operator.recover(), null);
  await rename(`${worker}-later`, worker);
  assert.equal((await engine.operator.recover())?.deadWorkers[0]?.evidence, "killed by SIGKILL");
  assert.equal((await fate(engine, id)).crashes, 1);
});

test("a process that the kernel sees running is not taken because an exit was reported under its id", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const alive = place.child();
  await alive.untilFact("started", { id });
  const { worker } = await alive.untilFact("working");
  await engine.operator.noteDeath(String(worker), "killed by SIGKILL");
  assert.equal(await engine.operator.recover(), null);
  assert.equal((await engine.get(id))!.state, "running");
});

test("a supervised worker of a host without a boot id is taken by its parent's report, not after `contact`", async (t) => {
  const supervisors = new Supervisors(t);
  const place = await PostgresPlace.shared(t);
  const { folder } = new Place(t);
  const engine = await place.engine({ heartbeat: NEVER_LOST });
  const { id } = await engine.enqueue(slowOfAllStores, { ms: 600_000 });
  supervisors.work({
    store: place.url,
    folder,
    node: nodeWithoutProcSys(folder),
    env: {
      OUTLIVE_POSTGRES_SCHEMA: place.schema,
      OUTLIVE_HEARTBEAT_CONTACT: "10m",
      OUTLIVE_HEARTBEAT_LEASE: "30m",
    },
  });
  const owner = async () => (await engine.workers()).find(({ state, heldCount }) => state === "live" && heldCount > 0);
  const victim = await untilTrue(owner, (row) => row !== undefined, "the job runs");
  process.kill(victim!.pid, "SIGKILL");
  await untilTrue(
    () => engine.get(id),
    (job) => job?.state === "running" && job.attempt === 2,
    "the job runs again",
  );
  const { counters } = (await engine.get(id))!;
  assert.deepEqual([counters.crashes, counters.losses], [1, 0]);
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "gone");
});

for (const by of ["open", "recover"] as const)
  test(`what SQL reclaimed as lost is judged by ${by}, before a worker claims it`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const engine = await place.engine({ heartbeat: NEVER_LOST });
    const { id } = await engine.enqueue(slow, { ms: 600_000 });
    const victim = place.child({ heartbeat: NEVER_LOST });
    await victim.untilFact("started", { id });
    victim.kill();
    await victim.exited;
    await place.query("UPDATE outlive.fleet SET heartbeat_at = 0");
    await untilTrue(
      async () => (await place.query("SELECT outlive.reclaim_stale_jobs()"), fate(engine, id)),
      ({ losses }) => losses === 1,
      "SQL has taken the job",
    );
    if (by === "open") await place.engine({ heartbeat: NEVER_LOST });
    else await engine.operator.recover();
    assert.deepEqual(await fate(engine, id), { state: "queued", crashes: 1, losses: 0, resolution: "died" });
  });
