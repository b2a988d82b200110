// A worker is killed with SIGKILL at every point at which something is being written. Afterwards another process must find the
// job, end it exactly once, and leave exactly one ledger row and one kept result per step.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { migrationsOf } from "../../src/stores/registry.ts";
import { MIGRATIONS } from "../../src/stores/sqlite/schema.ts";
import { stepped, tick, transfer } from "../support/jobs.ts";
import { assertKept, assertRuns, copyKept, KEPT_OPTIONS } from "../support/kept-stores.ts";
import { Place, untilState } from "../support/processes.ts";

const CLAIM = "SET state = 1, worker";
const POINTS = [
  { point: `before:INSERT INTO outlive_workers`, what: "between taking the lock and writing its row", claimed: false },
  {
    point: `after:INSERT INTO outlive_workers`,
    what: "after registering, before its first heartbeat",
    claimed: false,
    knownBug: 1,
  },
  { point: `before:${CLAIM}`, what: "inside BEGIN IMMEDIATE, before the claim's commit", claimed: false },
  { point: `after:${CLAIM}`, what: "after the claim's commit, before the handler starts", claimed: true },
  { point: `before:INSERT INTO ledger`, what: "before the commit of the user's rows and the success", claimed: true },
  { point: `after:INSERT INTO ledger`, what: "after the commit of the user's rows and the success", claimed: false },
];

for (const { point, what, claimed } of POINTS) {
  test(`FR-010 NFR-005 a transfer whose worker is killed ${what} is committed exactly once`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    await place.ledger(engine);
    const { id } = await engine.enqueue(transfer, { n: 7 });

    const child = place.child({ killAt: point });
    assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");

    const rescuer = place.child();
    await rescuer.untilFact("working");
    await untilState(engine, id, "succeeded");
    assert.deepEqual(await place.ledgerRows(engine), [{ job: id, n: 7 }]);
    const job = await engine.get(id);
    assert.equal(job?.counters.crashes, claimed ? 1 : 0, "a crash is counted once, and only if it held the job");
  });
}

const STEP_POINTS = [
  {
    point: "before:INSERT INTO outlive_steps",
    what: "before its first step's commit",
    first: 2,
    second: 1,
    lastStep: undefined,
  },
  {
    point: "after:INSERT INTO outlive_steps",
    what: "after its first step's commit",
    first: 1,
    second: 1,
    lastStep: "first",
  },
  {
    point: "after:INSERT INTO outlive_steps#2",
    what: "after its last step's commit",
    first: 1,
    second: 1,
    lastStep: "second",
  },
  { point: "before:SET state = 2", what: "before the settlement's commit", first: 1, second: 1, lastStep: "second" },
];

for (const { point, what, first, second, lastStep } of STEP_POINTS) {
  test(`a job with steps whose worker is killed ${what} goes on from its last durable step`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    const { id } = await engine.enqueue(stepped, {});
    const child = place.child({ killAt: point });
    assert.equal((await child.exited).signal, "SIGKILL");

    const rescuer = place.child();
    const started = await rescuer.untilFact("started", { kind: "stepped" });
    assert.deepEqual(
      started["interrupted"],
      lastStep === undefined ? { how: "crashed" } : { how: "crashed", lastStep },
    );
    await untilState(engine, id, "succeeded");
    const effects = place.effects();
    assert.equal(effects.get(`first ${id}`), first);
    assert.equal(effects.get(`second ${id}`), second);
    const job = await engine.get(id);
    assert.deepEqual(
      job?.steps.map(({ name, result }) => [name, result]),
      [
        ["first", { at: "first" }],
        ["second", ["first"]],
      ],
    );
    assert.deepEqual(job?.result, { done: true });
  });
}

test("a job whose worker is killed after the settlement's commit has ended and does not run again", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(stepped, {});
  const child = place.child({ killAt: "after:SET state = 2" });
  assert.equal((await child.exited).signal, "SIGKILL");
  const rescuer = place.child();
  await rescuer.untilFact("working");
  const { id: later } = await engine.enqueue(stepped, {});
  await untilState(engine, later, "succeeded");
  const job = await engine.get(id);
  assert.equal(job?.state, "succeeded");
  assert.equal(job?.attempt, 1);
  assert.equal(place.effects().get(`second ${id}`), 1);
});

for (const when of ["before", "after"] as const) {
  test(`jobs that end together and whose worker is killed ${when} the commit of their ends all end, and none runs again that had ended`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    const ids = Array.from({ length: 40 }, (_, n) => `tick-${n}`);
    await engine.enqueueMany(
      tick,
      ids.map((_, n) => ({ n })),
      { each: ({ n }) => ({ id: ids[n]! }) },
    );
    const child = place.child({ killAt: `${when}:NOT INDEXED SET state = 2`, concurrency: 20, only: ["tick"] });
    assert.equal((await child.exited).signal, "SIGKILL", "neighbours ended in one statement");
    const ended = await Promise.all(ids.map((id) => engine.get(id)));
    const before = ended.filter((job) => job?.state === "succeeded").length;
    assert.ok(when === "before" ? before === 0 : before >= 4, `${before} had ended`);
    const rescuer = place.child({ only: ["tick"] });
    await rescuer.untilFact("working");
    for (const id of ids) await untilState(engine, id, "succeeded");
    const runs = (id: string): number =>
      [1, 2, 3].reduce((sum, attempt) => sum + (place.effects().get(`tick ${id} attempt ${attempt}`) ?? 0), 0);
    for (const [i, id] of ids.entries()) {
      const most = ended[i]!.state === "succeeded" ? 1 : 2;
      assert.ok(runs(id) >= 1 && runs(id) <= most, `${id} ran ${runs(id)} times`);
    }
  });
}

for (const point of ["inside", "between"] as const) {
  test(`a job killed ${point === "inside" ? "inside a step" : "between an effect and the next step"} repeats only what was not durable`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    const { id } = await engine.enqueue(stepped, { stopAt: point });
    const child = place.child();
    await child.untilFact("waiting", { point });
    child.kill();
    const rescuer = place.child();
    await rescuer.untilFact("working");
    await untilState(engine, id, "succeeded");
    const effects = place.effects();
    assert.equal(effects.get(`first ${id}`), point === "inside" ? 2 : 1);
    assert.equal(effects.get(`between ${id}`), point === "inside" ? 1 : 2);
    assert.equal(effects.get(`second ${id}`), 1);
  });
}

test("FR-029 FR-030 NFR-006 AC-011 a recovery that is killed before or after any of its transactions is finished by the next one, in one incident", async (t) => {
  for (const killAt of ["before:outlive_incidents", "after:INSERT INTO outlive_incidents", "before:SET completed_at"]) {
    const place = new Place(t);
    const engine = await place.engine();
    const { id } = await engine.enqueue(stepped, { stopAt: "end" });
    const victim = place.child();
    await victim.untilFact("waiting", { point: "end" });
    victim.kill();
    await victim.exited;
    const first = place.child({ killAt, recoverOnly: true });
    assert.equal((await first.exited).signal, "SIGKILL", killAt);
    const report = await engine.operator.recover();
    const incidents = await engine.incidents();
    assert.equal(incidents.length, 1, `${killAt}: one death is one incident`);
    assert.equal(incidents[0]!.jobCount, 1);
    assert.ok(incidents[0]!.completedAt);
    if (report)
      assert.deepEqual(
        report.recoveredJobs.map(({ jobId, decision }) => [jobId, decision]),
        [[id, "retry"]],
      );
    const job = await engine.get(id);
    assert.equal(job?.state, "queued");
    assert.equal(job?.counters.crashes, 1);
    assert.equal(await engine.operator.recover(), null, "recovering again finds nothing");
  }
});

test("a new store whose creation is killed before or after its commit has no tables or all of them, and the next open goes on", async (t) => {
  const numbers = MIGRATIONS.map((_, i) => i + 1);
  for (const when of ["before", "after"]) {
    const place = new Place(t);
    const child = place.child({ killAt: `${when}:'schema', 1\\)` });
    assert.equal((await child.exited).signal, "SIGKILL", when);
    const whole = (await (await migrationsOf(place.url)).list())
      .filter(({ applied }) => applied)
      .map((one) => one.number);
    assert.deepEqual(whole, when === "before" ? [] : numbers);
    const engine = await place.engine();
    assert.equal((await engine.enqueue(stepped, {})).created, true);
  }
});

test("a migration of an older store that is killed before or after its commit is done whole by the next open, and everything is there", async (t) => {
  const numbers = MIGRATIONS.map((_, i) => i + 1);
  for (const number of numbers.slice(1))
    for (const when of ["before", "after"]) {
      const place = new Place(t);
      copyKept("sqlite-1.db.gz", place.path);
      const child = place.child({ killAt: `${when}:'schema', ${number}\\)` });
      assert.equal((await child.exited).signal, "SIGKILL", `${when} migration ${number}`);
      const whole = (await (await migrationsOf(place.url)).list())
        .filter(({ applied }) => applied)
        .map((one) => one.number);
      assert.deepEqual(whole, numbers.slice(0, when === "before" ? number - 1 : number));
      const engine = await open(place.url, KEPT_OPTIONS);
      await assertKept(engine);
      await assertRuns(engine);
      await engine.close();
    }
});
