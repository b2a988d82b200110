// A worker is killed with SIGKILL while it fires a schedule: before and after the commit that moves the row and inserts the job. Afterwards every
// occurrence has exactly one job.
import assert from "node:assert/strict";
import { test } from "node:test";
import { transfer } from "../support/jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";

const POINTS = [
  { point: "before:UPDATE outlive_schedules", what: "before the commit that moves the row" },
  { point: "after:UPDATE outlive_schedules", what: "after the commit that moves the row" },
  { point: "before:INSERT INTO outlive_occurrences#2", what: "before the commit of its second firing" },
];

for (const { point, what } of POINTS) {
  test(`known bug 25: a worker that is killed ${what} neither loses an occurrence nor fires one twice`, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    await place.ledger(engine);
    await engine.schedules.set("kept", transfer, {
      every: "1s",
      input: { n: 1 },
      missed: "all",
      overlap: "allow",
    });
    const first = (await engine.schedules.get("kept"))!.nextAt!;
    const child = place.child({ killAt: point });
    assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");

    place.child();
    place.child();
    const rows = await untilTrue(
      () => place.ledgerRows(engine),
      (all) => all.length >= 4,
      "four occurrences have run",
    );
    const jobs = await engine.schedules.jobs("kept", { limit: 100 });
    const ats = jobs.map(({ at }) => at).toReversed();
    assert.deepEqual(
      ats,
      ats.map((_, i) => first + i * 1_000),
      "every second has one job, from the first on",
    );
    const ids = rows.map(({ job }) => job);
    assert.equal(new Set(ids).size, ids.length, "none was committed twice");
    assert.ok(
      ids.every((id) => jobs.some(({ job }) => job === id)),
      "and none is of anything else",
    );
    assert.equal((await engine.schedules.get("kept"))!.skipped.missed, 0);
  });
}
