// Unconfirmed list: on SQLite no heartbeat was written while the maintenance thread booted, and a short lease ended meanwhile.
import assert from "node:assert/strict";
import { test } from "node:test";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { systemClock as clock, systemRandom as random } from "../../src/platform/clock.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";
import { workerRecord } from "../../src/testing/conformance/fixture.ts";
import { Place } from "../support/processes.ts";

test("U: on SQLite heartbeats are written while the maintenance thread still boots", async (t) => {
  const { path } = new Place(t);
  const events = new EventBus(toStoredError);
  const backend = await openSqlite({ clock, random, events, bootId: "boot" }, { path });
  t.after(() => backend.close());
  const lock = await backend.liveness.take("w");
  await backend.store.register({ ...workerRecord("w"), lock: lock.evidence });
  let isUp = false;
  let beatsBefore = 0;
  const times = { heartbeatMs: 5, leaseMs: 60_000, sweepMs: 60_000, probeMs: 60_000, contactMs: 3_000 };
  const maintenance = await backend.startMaintenance(
    {
      worker: "w",
      bootId: "boot",
      times,
      registered: { now: Date.now(), sentMono: 0, receivedMono: 0 },
      retention: { finishedMs: 60_000, incidentsMs: 60_000 },
      schemaVersion: backend.schemaVersion,
    },
    {
      beaten: () => void (isUp || beatsBefore++),
      disowned: () => assert.fail("it is live"),
      unfit: (_why, detail) => assert.fail(detail),
    },
  );
  isUp = true;
  await maintenance.stop();
  assert.equal(await backend.store.leave("w"), true);
  await lock.drop(true);
  // A thread takes far longer than 5 ms to boot.
  assert.ok(beatsBefore > 0, "a heartbeat was accepted before the thread was up");
});
