// A step of the server's clock and tick(): no running job is timed out by time that did not pass.
import assert from "node:assert/strict";
import { test } from "node:test";
import { quotedSchema } from "../../src/stores/postgres/address.ts";
import { confirmedTicks } from "../../src/stores/postgres/migrations/confirmed-ticks.ts";
import { MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import { type Fixture, fixture, MINUTE } from "./fixture.ts";

const TICK = 15_000;
/** Of the kind: the timeout of 15 minutes, its grace of 5 s, and the 2 s that others wait beyond it. */
const ALLOWED = 15 * MINUTE + 7_000;

/** A live worker that runs one job of the default timeout. */
async function running(on: Fixture): Promise<void> {
  await on.worker("w1");
  await on.sql("SELECT outlive.enqueue('mail', '{}', id => 'job', wake => false)");
  await on.claim("w1", "job");
}

/** Cron and the worker go on for this long: each beats every 15 s. Returns how many jobs were taken. */
async function goOn(on: Fixture, ms: number): Promise<number> {
  let taken = 0;
  for (let passed = 0; passed < ms; passed += TICK) {
    await on.pass(TICK);
    await on.beat("w1");
    taken += (await on.sql<{ taken: number }>("SELECT outlive.tick() AS taken"))[0]!.taken;
  }
  return taken;
}

test("a step of the server's clock times out no running job; it is overdue when its timeout has passed since", async (t) => {
  const on = await fixture(t);
  await running(on);
  assert.equal(await goOn(on, 4 * TICK), 0);
  await on.pass(60 * MINUTE);
  await on.beat("w1");
  assert.equal(await goOn(on, ALLOWED), 0, "its whole timeout is confirmed first");
  assert.deepEqual([(await on.job("job")).state, (await on.job("job")).timeouts], ["running", 0]);
  assert.equal(await goOn(on, 3 * TICK), 1);
  assert.equal((await on.job("job")).timeouts, 1);
});

test("steps forward and back again leave a running job alone, too", async (t) => {
  const on = await fixture(t);
  await running(on);
  await goOn(on, 4 * TICK);
  await on.pass(60 * MINUTE);
  await goOn(on, 2 * TICK);
  await on.pass(-60 * MINUTE);
  assert.equal(await goOn(on, 10 * MINUTE), 0);
  assert.equal((await on.job("job")).state, "running");
});

test("without a step a tick takes an overdue job as soon as it is one, also the first tick ever", async (t) => {
  for (const ticksBefore of [0, 1]) {
    const on = await fixture(t);
    await running(on);
    if (ticksBefore > 0) assert.equal(await goOn(on, ALLOWED - TICK), 0);
    else await on.pass(ALLOWED);
    await on.beat("w1");
    assert.equal(await goOn(on, 2 * TICK), 1);
  }
});

test("reclaim_stale_jobs() by hand trusts the server's clock", async (t) => {
  const on = await fixture(t);
  await running(on);
  await goOn(on, 4 * TICK);
  await on.pass(60 * MINUTE);
  await on.beat("w1");
  assert.equal(await on.psql("SELECT decision FROM outlive.reclaim_stale_jobs()"), "retry");
});

test("the step down puts the former functions back, and the step up can be made again", async (t) => {
  const on = await fixture(t);
  const texts = () =>
    on.sql("SELECT p.proname, p.prosrc FROM pg_proc p WHERE p.pronamespace = $1::regnamespace ORDER BY 1, p.oid", [
      on.schema,
    ]);
  // Later steps replace tick() again.
  for (const later of MIGRATIONS.slice(MIGRATIONS.indexOf(confirmedTicks) + 1).toReversed())
    await on.sql(later.down(quotedSchema(on.schema)));
  const up = await texts();
  await on.sql(confirmedTicks.down(quotedSchema(on.schema)));
  await on.psql("SELECT outlive.tick()");
  await on.sql(confirmedTicks.up(quotedSchema(on.schema)));
  const sources = (rows: readonly object[]) => rows.map((row) => JSON.stringify(row)).sort();
  assert.deepEqual(sources(await texts()), sources(up));
});
