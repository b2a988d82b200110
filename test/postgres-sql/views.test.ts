// What the views say, at the edges: from which second on a job is a warning, when it is stale, who is silent, why a job is dead.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MINUTE, scene } from "./scene.ts";

test("stale_monitor is OK below 80 % of the timeout, WARNING from there on, STALE beyond it", async (t) => {
  const store = await scene(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a')");
  await store.claim("w", "a");
  const said: string[] = [];
  for (const ms of [0, 12 * MINUTE - 1, 1, 3 * MINUTE, 1]) {
    await store.pass(ms);
    await store.beat("w");
    said.push(await store.psql("SELECT percent, status FROM outlive.stale_monitor"));
  }
  assert.deepEqual(said, ["0.0|OK", "80.0|OK", "80.0|WARNING", "100.0|WARNING", "100.0|STALE"]);
});

test("stale_monitor is STALE as soon as the worker is past its lease, whatever the timeout", async (t) => {
  const store = await scene(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a')");
  await store.claim("w", "a");
  await store.pass(30_000);
  assert.equal(await store.psql("SELECT worker, worker_silent, status FROM outlive.stale_monitor"), "w|00:00:30|OK");
  await store.pass(1);
  assert.equal(await store.psql("SELECT status FROM outlive.stale_monitor"), "STALE");
  assert.equal(await store.psql("SELECT worker, state, holds FROM outlive.workers"), "w|silent|1");
  await store.psql("SELECT outlive.reclaim_stale_jobs()");
  assert.equal(
    await store.psql("SELECT worker, state, holds, incident IS NOT NULL FROM outlive.workers"),
    "w|gone|0|t",
  );
  assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_monitor"), "0");
});

test("a job without a timeout has no share of it and is OK while its worker lives", async (t) => {
  const store = await scene(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a'); UPDATE outlive.kinds SET timeout_ms = NULL");
  await store.claim("w", "a");
  await store.pass(10_000 * MINUTE);
  await store.beat("w");
  assert.equal(await store.psql("SELECT percent IS NULL, status FROM outlive.stale_monitor"), "t|OK");
  assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_validation"), "0");
});

test("stale_validation is empty up to twice the timeout and the grace, and an alarm beyond", async (t) => {
  const store = await scene(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a')");
  const fence = await store.claim("w", "a");
  await store.pass(30 * MINUTE + 7_000);
  assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_validation"), "0");
  await store.pass(1);
  assert.equal(
    await store.psql("SELECT job_id, kind, worker, age, timeout FROM outlive.stale_validation"),
    "a|mail|w|00:30:07.001|00:15:00",
  );
  await store.psql(`SELECT outlive.job_heartbeat('a', 'w', ${fence})`);
  assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_validation"), "0", "it has spoken");
});

test("dead_jobs tells quarantined from dead, with the reason and all counters", async (t) => {
  const store = await scene(t);
  for (const id of ["poison", "late"]) await store.sql("SELECT outlive.enqueue('mail', id => $1)", [id]);
  await store.sql("UPDATE outlive.jobs SET crashes = 2, blamed = 2, lane = 2 WHERE id = 'poison'");
  await store.sql("UPDATE outlive.jobs SET timeouts = 9, errors = 2 WHERE id = 'late'");
  await store.worker("w1");
  await store.worker("w2");
  await store.claim("w1", "poison");
  await store.claim("w2", "late");
  await store.pass(16 * MINUTE);
  await store.beat("w2");
  await store.psql("SELECT outlive.reclaim_stale_jobs()");
  assert.equal(
    await store.psql(
      "SELECT job_id, state, attempts, errors, crashes, blamed, timeouts, worker, error, substr(reason, 1, 35) FROM outlive.dead_jobs ORDER BY job_id",
    ),
    [
      "late|dead|12|2|0|0|10|w2|Timeout|RECLAIMED_TTL: Max attempts reached",
      "poison|quarantined|3|0|3|3|0|w1|WorkerDied|RECLAIMED_TTL: Max attempts reached",
    ].join("\n"),
  );
  assert.equal(
    await store.psql(
      "SELECT job_id, decision, cause, state, by, incident IS NOT NULL FROM outlive.reclaim_history ORDER BY job_id",
    ),
    "late|fail|timeOut|dead|sql|f\npoison|quarantine|crash|quarantined|sql|t",
  );
});
