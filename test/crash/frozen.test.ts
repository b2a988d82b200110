// A process that is frozen and thawed, as by `docker pause` or a debugger: its work is taken by others, and nothing is counted, however
// often that happens.
import assert from "node:assert/strict";
import { test } from "node:test";
import { slow } from "../support/jobs.ts";
import { type Child, freezeOutsideOfAWrite, PATIENT, Place, untilTrue } from "../support/processes.ts";

/** Long enough that a busy machine does not look frozen, and twice that for a thawed worker to return. */
const LEASE = { ...PATIENT, lease: "5s" } as const;

test("a job whose workers are frozen three times is taken each time, and neither counted nor quarantined", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ heartbeat: LEASE });
  const children = [place.child({ heartbeat: LEASE }), place.child({ heartbeat: LEASE })];
  await Promise.all(children.map((child) => child.untilFact("working")));
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const owner = (attempt: number): Promise<Child> =>
    Promise.any(children.map((child) => child.untilFact("started", { id, attempt }).then(() => child)));
  for (let round = 1; round <= 3; round++) {
    const frozen = await owner(round);
    await freezeOutsideOfAWrite(engine, frozen.pid);
    await owner(round + 1);
    const { counters } = (await engine.get(id))!;
    assert.deepEqual([counters.crashes, counters.blamed], [0, 0]);
    frozen.kill("SIGCONT");
    await untilTrue(
      () => Promise.all([engine.incidents(), engine.get(id)]),
      ([incidents, job]) =>
        incidents.length === round &&
        incidents.every(({ resolution }) => resolution !== null) &&
        job!.counters.losses === 0,
      `the worker of round ${round} has returned`,
    );
  }
  assert.deepEqual(
    (await engine.incidents()).map(({ how, resolution }) => [how, resolution]),
    Array(3).fill(["silent", "returned"]),
  );
  const { state, attempt, counters } = (await engine.get(id))!;
  assert.deepEqual([state, attempt, counters.crashes, counters.blamed, counters.losses], ["running", 4, 0, 0, 0]);
});
