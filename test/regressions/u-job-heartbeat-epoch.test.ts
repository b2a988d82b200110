// Not confirmed in the research: `job_heartbeat()` in SQL names a job, a worker and a fence, but no epoch. At 01d593d it accepted an attempt
// of an epoch that had ended before its worker registered, and one that only a restored dump calls running.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Room } from "../../src/stores/port.ts";
import { draft, kind, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema } from "../support/postgres.ts";
import { WAYS } from "./dumps.ts";

const ONE: Room = { total: 1, kinds: [{ kind: "mail", room: 1 }] };

test("U: job_heartbeat() refuses an attempt of an epoch from before its worker, and one that a dump brought back", async (t) => {
  const fresh = await freshSchema(t);
  const query = (text: string): Promise<Record<string, unknown>[]> =>
    fresh.query(text.replaceAll("outlive.", `"${fresh.schema}".`));
  const store = await openStore(fresh);
  t.after(() => store.close());
  const heartbeat = async (): Promise<unknown> =>
    (await query("SELECT outlive.job_heartbeat('a', 'w', 1) AS owns"))[0]!["owns"];
  await store.declare([kind("mail")]);
  await store.enqueue([draft("a")]);
  await store.upkeep.raiseEpoch();
  await store.register(workerRecord("w"));
  await store.turn("w", [], ONE);
  assert.equal(await heartbeat(), true);
  await query("UPDATE outlive.jobs SET epoch = epoch - 1");
  assert.equal(await heartbeat(), false, "of an older epoch");
  await query("UPDATE outlive.jobs SET epoch = epoch + 1");
  const restore = await WAYS["DROP SCHEMA and psql"]!(t, fresh);
  await restore();
  assert.equal(await heartbeat(), false, "of a restored dump");
  await store.register(workerRecord("young"));
  assert.equal(await heartbeat(), false, "also once the store is worked on again");
});
