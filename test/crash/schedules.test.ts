// A worker is killed with SIGKILL while it fires a schedule: before, within and after the commit or the script that moves the row and inserts the job.
// Afterwards every occurrence has exactly one job, on each store.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { tick as tickOnPostgres } from "../postgres/jobs.ts";
import { PostgresPlace } from "../postgres/place.ts";
import { RedisPlace } from "../redis/place.ts";
import { kinds, transfer } from "../support/jobs.ts";
import { type Child, Place, untilTrue } from "../support/processes.ts";

const OPTIONS = { every: "1s", input: { n: 1 }, missed: "all", overlap: "allow" } as const;

/** One worker dies at the point, two others go on. Returns the jobs of the schedule's first occurrences, none of which is missing. */
async function firedAcross(
  engine: Engine,
  kind: { readonly name: string },
  child: (killAt?: string) => Child,
  killAt: string,
) {
  await engine.schedules.set("kept", kind as never, OPTIONS);
  const first = (await engine.schedules.get("kept"))!.nextAt!;
  assert.equal((await child(killAt).exited).signal, "SIGKILL", "the child died at the point");
  child();
  child();
  const jobs = await untilTrue(
    async () => (await engine.schedules.jobs("kept", { limit: 100 })).toReversed(),
    (all) => all.length >= 4,
    "four occurrences have jobs",
  );
  assert.deepEqual(
    jobs.map(({ at }) => at),
    jobs.map((_, i) => first + i * 1_000),
    "every second has one job, from the first on",
  );
  assert.equal((await engine.schedules.get("kept"))!.skipped.missed, 0);
  return jobs;
}

const ON_SQLITE = [
  { point: "before:UPDATE outlive_schedules", what: "before the commit that moves the row" },
  { point: "after:UPDATE outlive_schedules", what: "after the commit that moves the row" },
  { point: "before:INSERT INTO outlive_occurrences#2", what: "before the commit of its second firing" },
];

for (const { point, what } of ON_SQLITE) {
  test(`known bug 25: a worker that is killed ${what} neither loses an occurrence nor fires one twice`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    await place.ledger(engine);
    const jobs = await firedAcross(engine, transfer, (killAt) => place.child(killAt ? { killAt } : {}), point);
    const rows = await untilTrue(
      () => place.ledgerRows(engine),
      (all) => all.length >= 4,
      "four occurrences have run",
    );
    const ids = rows.map(({ job }) => job);
    assert.equal(new Set(ids).size, ids.length, "none was committed twice");
    const known = new Set([...jobs, ...(await engine.schedules.jobs("kept", { limit: 100 }))].map(({ job }) => job));
    assert.ok(
      ids.every((id) => known.has(id)),
      "and none is of anything else",
    );
  });
}

for (const point of ["before:schedule_rows s SET#2", "after:schedule_rows s SET"])
  test(`PostgreSQL: a worker that is killed ${point.split(":")[0]} the commit of a firing (${point}) neither loses an occurrence nor fires one twice`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const engine = await place.engine();
    await firedAcross(engine, tickOnPostgres, (killAt) => place.child(killAt ? { killAt } : {}), point);
  });

for (const point of ["sent:fireSchedules", "after:fireSchedules#2"])
  test(`Redis: a worker that is killed around the script of a firing (${point}) neither loses an occurrence nor fires one twice`, async (t) => {
    const place = await RedisPlace.shared(t);
    const engine = await place.engine();
    await firedAcross(engine, kinds.tick, (killAt) => place.child(killAt ? { killAt } : {}), point);
  });
