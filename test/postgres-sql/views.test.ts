// What the views say, at the edges: from which second on a job is a warning, when it is stale, who is silent, why a job is dead.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MINUTE, fixture, judgeLosses } from "./fixture.ts";

test("stale_monitor is OK below 80 % of the timeout, WARNING from there on, STALE beyond it", async (t) => {
  const store = await fixture(t);
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
  const store = await fixture(t);
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
  const store = await fixture(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a'); UPDATE outlive.kinds SET timeout_ms = NULL");
  await store.claim("w", "a");
  await store.pass(10_000 * MINUTE);
  await store.beat("w");
  assert.equal(await store.psql("SELECT percent IS NULL, status FROM outlive.stale_monitor"), "t|OK");
  assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_validation"), "0");
});

test("stale_validation is empty up to twice the timeout and the grace, and an alarm beyond", async (t) => {
  const store = await fixture(t);
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
  const store = await fixture(t);
  for (const id of ["poison", "late"]) await store.sql("SELECT outlive.enqueue('mail', id => $1)", [id]);
  await store.sql("UPDATE outlive.jobs SET crashes = 2, blamed = 2, lane = 2 WHERE id = 'poison'");
  await store.sql("UPDATE outlive.jobs SET timeouts = 9, errors = 2 WHERE id = 'late'");
  await store.worker("w1");
  await store.worker("w2");
  await store.claim("w1", "poison");
  await store.claim("w2", "late");
  await store.pass(16 * MINUTE);
  await store.beat("w2");
  await store.die("w1");
  await store.psql("SELECT outlive.reclaim_stale_jobs()");
  await judgeLosses(store);
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
    "late|fail|timeOut|dead|sql|f\npoison|lost|lose|queued|sql|t",
  );
});

test("the heartbeat, age, timeout and share of a running job stay right when the timeout of its kind changes", async (t) => {
  const store = await fixture(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'beaten'), outlive.enqueue('mail', id => 'never')");
  const fence = await store.claim("w", "beaten");
  await store.claim("w", "never");
  await store.pass(5 * MINUTE);
  await store.psql(`SELECT outlive.job_heartbeat('beaten', 'w', ${fence})`);
  await store.pass(3 * MINUTE);
  await store.beat("w");
  const shown = (): Promise<string> =>
    store.psql(
      "SELECT job_id, heartbeat_at - started_at, age, timeout, percent, status FROM outlive.stale_monitor ORDER BY job_id",
    );
  const right = "beaten|00:05:00|00:03:00|00:15:00|20.0|OK\nnever||00:08:00|00:15:00|53.3|OK";
  assert.equal(await shown(), right);
  for (const timeout of ["60000", "36000000", "NULL"]) {
    await store.sql(`UPDATE outlive.kinds SET timeout_ms = ${timeout}`);
    assert.equal(await shown(), right, `a timeout of ${timeout}`);
    assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_validation"), "0");
  }
  // Reclaim agrees with the view: both go by the deadline of the attempt.
  await store.sql("UPDATE outlive.kinds SET timeout_ms = 60000");
  await store.pass(7 * MINUTE + 8_000);
  await store.beat("w");
  assert.equal(await store.psql("SELECT job_id FROM outlive.stale_monitor WHERE status = 'STALE'"), "never");
  assert.equal(await store.psql("SELECT job_id, age FROM outlive.reclaim_stale_jobs()"), "never|00:15:08");
  assert.match(
    await store.psql("SELECT reason FROM outlive.reclaim_history"),
    /^RECLAIMED_TTL: Exceeded TTL \(15 min\): timeout 1 of 10; worker w$/,
  );
});

test("maxRuntime caps the deadline and not the instant of the heartbeat", async (t) => {
  const store = await fixture(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a'); UPDATE outlive.kinds SET max_runtime_ms = 1200000");
  const fence = await store.claim("w", "a");
  await store.pass(14 * MINUTE);
  await store.beat("w");
  await store.psql(`SELECT outlive.job_heartbeat('a', 'w', ${fence})`);
  assert.equal(
    await store.psql("SELECT heartbeat_at - started_at, deadline_at - started_at, age FROM outlive.stale_monitor"),
    "00:14:00|00:20:00|00:00:00",
  );
});

test("a heartbeat of an earlier attempt is not shown as one of the attempt that runs", async (t) => {
  const store = await fixture(t);
  await store.worker("w");
  await store.psql("SELECT outlive.enqueue('mail', id => 'a')");
  await store.claim("w", "a");
  await store.pass(MINUTE);
  await store.psql("SELECT outlive.job_heartbeat('a', 'w', 1)");
  await store.sql("UPDATE outlive.jobs SET state = 0");
  await store.pass(MINUTE);
  await store.claim("w", "a");
  assert.equal(await store.psql("SELECT heartbeat_at IS NULL, age FROM outlive.stale_monitor"), "t|00:00:00");
});

test("dead_jobs shows every row although the stored error of one can't be read", async (t) => {
  const store = await fixture(t);
  await store.sql("INSERT INTO outlive.kinds (name) VALUES ('mail')");
  for (const [id, error] of [
    ["half", '{"name":"Error","message":"half a horse \\ud83d"}'],
    ["damaged", "{broken"],
    ["sound", '{"name":"Error","message":"boom"}'],
  ])
    await store.sql(
      "INSERT INTO outlive.jobs (id, kind, priority, input, state, created_at, error) SELECT $1, k.id, 0, '{}', 3, 1, $2 FROM outlive.kinds k",
      [id, error],
    );
  assert.equal(
    await store.psql("SELECT job_id, state, error, last_error FROM outlive.dead_jobs ORDER BY job_id"),
    ["damaged|dead|Unreadable|{broken", "half|dead|Error|half a horse \ufffd", "sound|dead|Error|boom"].join("\n"),
  );
});
