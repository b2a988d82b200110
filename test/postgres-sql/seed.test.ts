// The tests, edge cases and troubleshooting queries of the executor jobs that this store had to take over (seed 003), with our
// names, asked by psql while no Node worker is alive.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { executorJobs } from "../../examples/executor-jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { shownSql } from "./docs.ts";
import { MINUTE, fixture, type Fixture, judgeLosses } from "./fixture.ts";

/** The store of the executor with its six kinds, and one worker that has started and does not beat any more. */
async function executor(t: TestContext): Promise<Fixture> {
  const store = await fixture(t);
  await store.declare(executorJobs);
  await store.worker("test-worker");
  return store;
}

test("the six kinds have their timeouts in the table, names with dots included", async (t) => {
  const store = await executor(t);
  assert.equal(
    await store.psql("SELECT name, outlive.ttl_text(timeout_ms) FROM outlive.kinds ORDER BY name"),
    [
      "build_artifact|15 min",
      "document.protected|5 min",
      "protect_document_v2|5 min",
      "run_tsa|30 min",
      "submit_anchor_bitcoin|60 min",
      "submit_anchor_polygon|60 min",
    ].join("\n"),
  );
});

test("test 1: the job of a dead worker is queued again with one attempt more, and its error says why", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a', dedupe_key => 'test-ttl-reclaim')");
  await store.sql("UPDATE outlive.jobs SET errors = 1 WHERE id = 'a'");
  await store.claim("test-worker", "a");
  await store.pass(35 * MINUTE);
  assert.equal(await store.psql("SELECT * FROM outlive.reclaim_stale_jobs()"), "a|run_tsa|test-worker|lost|2|00:35:00");
  const { state, error } = await store.job("a");
  assert.equal(state, "queued");
  assert.match(error!.message, /^RECLAIMED_TTL: Exceeded TTL \(30 min\)/);
  assert.equal(
    await store.psql(
      "SELECT dedupe_key, attempts FROM outlive.jobs JOIN outlive.reclaim_history ON job_id = id WHERE reason LIKE 'RECLAIMED_TTL:%'",
    ),
    "test-ttl-reclaim|2",
  );
});

test("test 1, as it was written: a row put in by hand under a worker that no process knows", async (t) => {
  const store = await executor(t);
  await store.psql(`
    INSERT INTO outlive.jobs (id, dedupe_key, kind, priority, input, state, created_at, started_at, deadline_at, worker, fence, timeouts)
    SELECT 'a', 'test-ttl-reclaim', id, 0, '{}', 1, outlive.now_ms(), outlive.now_ms() - 35 * 60000, outlive.now_ms() - 5 * 60000, 999, 1, 1
    FROM outlive.kinds WHERE name = 'run_tsa'`);
  assert.equal(await store.psql("SELECT * FROM outlive.reclaim_stale_jobs()"), "a|run_tsa||retry|2|00:35:00");
  const { state, error, waitsMs } = await store.job("a");
  assert.equal(state, "queued");
  assert.ok(waitsMs! > 0, "a timeout has a backoff");
  assert.match(error!.message, /^RECLAIMED_TTL: Exceeded TTL \(30 min\)/);
});

test("test 2: no job runs for longer than twice its timeout once something has called tick", async (t) => {
  const store = await executor(t);
  await store.psql(
    "SELECT outlive.enqueue('run_tsa', '{}', id => 'a'), outlive.enqueue('build_artifact', '{}', id => 'b')",
  );
  await store.claim("test-worker", "a");
  await store.claim("test-worker", "b");
  await store.pass(61 * MINUTE);
  assert.equal(await store.psql("SELECT job_id FROM outlive.stale_validation ORDER BY job_id"), "a\nb");
  await store.psql("SELECT outlive.tick()");
  assert.equal(await store.psql("SELECT count(*) FROM outlive.stale_validation"), "0");
});

for (const [which, counters, proved] of [
  ["timeouts", "timeouts = 10", true],
  ["errors", "errors = 10", true],
  ["timeouts", "timeouts = 10", false],
  ["errors", "errors = 10", false],
] as const)
  test(`test 3: a job that has used up its ${which} and whose worker is ${proved ? "known to be dead" : "silent"} is dead, and the number of its attempts is unchanged`, async (t) => {
    const store = await executor(t);
    await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
    await store.sql(`UPDATE outlive.jobs SET ${counters} WHERE id = 'a'`);
    await store.claim("test-worker", "a");
    await store.pass(35 * MINUTE);
    if (proved) await store.die("test-worker");
    else assert.equal(await store.psql("SELECT worker, state FROM outlive.workers"), "test-worker|silent");
    assert.equal(await store.psql("SELECT job_id, decision, attempts FROM outlive.reclaim_stale_jobs()"), "a|fail|10");
    assert.equal(await store.psql("SELECT worker, state FROM outlive.workers"), "test-worker|gone");
    assert.equal((await store.job("a")).state, "dead");
    assert.match(
      await store.psql("SELECT state, attempts, reason FROM outlive.dead_jobs"),
      new RegExp(
        `^dead\\|10\\|RECLAIMED_TTL: Max attempts reached: ${which.slice(0, -1)} 10 of 10, no more are allowed`,
      ),
    );
  });

test("test 3, by its crashes: SQL takes back a job that killed as many workers as it may, alone; core quarantines it, and dead_jobs names it", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.sql("UPDATE outlive.jobs SET crashes = 2, blamed = 2 WHERE id = 'a'");
  await store.claim("test-worker", "a");
  await store.pass(35 * MINUTE);
  await store.die("test-worker");
  assert.equal(await store.psql("SELECT job_id, decision, attempts FROM outlive.reclaim_stale_jobs()"), "a|lost|3");
  await judgeLosses(store);
  assert.match(
    await store.psql("SELECT state, attempts, reason FROM outlive.dead_jobs"),
    /^quarantined\|3\|RECLAIMED_TTL: Max attempts reached: 3 of 3 workers died while it ran alone/,
  );
});

test("test 3, with its worker alive: a job that has used up its attempts is dead, and their number is unchanged", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.sql("UPDATE outlive.jobs SET timeouts = 10 WHERE id = 'a'");
  await store.claim("test-worker", "a");
  await store.pass(35 * MINUTE);
  await store.beat("test-worker");
  assert.equal(await store.psql("SELECT job_id, decision, attempts FROM outlive.reclaim_stale_jobs()"), "a|fail|10");
  assert.equal((await store.job("a")).state, "dead");
  assert.match(
    await store.psql("SELECT state, attempts, reason FROM outlive.dead_jobs"),
    /^dead\|10\|RECLAIMED_TTL: Max attempts reached/,
  );
});

test("a job of a silent worker is not charged before it is known what happened to the worker, and at its limit it waits for that", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  for (const [attempts, waits] of [
    [1, "f"],
    [2, "f"],
    [3, "t"],
  ]) {
    await store.worker(`worker-${attempts}`);
    await store.claim(`worker-${attempts}`, "a");
    await store.pass(MINUTE);
    assert.equal(
      await store.psql("SELECT job_id, decision, attempts FROM outlive.reclaim_stale_jobs()"),
      `a|lost|${attempts}`,
    );
    const { crashes, blamed, losses } = await store.job("a");
    assert.deepEqual([crashes, blamed, losses], [0, 0, attempts]);
    assert.equal(await store.psql("SELECT run_at IS NOT NULL AND lane = 0 FROM outlive.jobs"), waits);
  }
  assert.match(
    await store.psql("SELECT reason FROM outlive.reclaim_history LIMIT 1"),
    /^RECLAIMED_TTL: Exceeded TTL \(30 s\): loss 3 of 3, not counted yet, it waits until it is known what happened to its workers/,
  );
});

test("a kind that ends at its first crash says so, and does not name attempts that it never had", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.sql("UPDATE outlive.kinds SET on_crash = 'fail' WHERE name = 'run_tsa'");
  await store.claim("test-worker", "a");
  await store.pass(35 * MINUTE);
  assert.equal(await store.psql("SELECT decision, attempts FROM outlive.reclaim_stale_jobs()"), "fail|0");
  assert.equal(
    await store.psql("SELECT state, reason FROM outlive.dead_jobs"),
    "dead|RECLAIMED_TTL: Exceeded TTL (30 min): its kind says that a crash ends the job; no heartbeat of worker test-worker for 2100 s",
  );
});

test("definition of done: with tick() every 15 s a job is reclaimed within 30 s, whenever between two ticks it became stale", async (t) => {
  const store = await executor(t);
  const tick = (): Promise<unknown> => store.sql("SELECT outlive.tick()");
  await tick();
  for (const lateMs of [0, 1, 7_500, 14_999]) {
    const job = `late-${lateMs}`;
    await store.pass(lateMs);
    await store.worker(`w-${lateMs}`);
    await store.sql("SELECT outlive.enqueue('submit_anchor_bitcoin', '{}', id => $1)", [job]);
    await store.claim(`w-${lateMs}`, job);
    // Its worker is dead from here on: the job is stale after a lease of 30 s, long before its timeout of 60 minutes.
    let sinceMs = 0;
    for (let toNextMs = 15_000 - lateMs; (await store.job(job)).state === "running"; toNextMs = 15_000) {
      await store.pass(toNextMs);
      sinceMs += toNextMs;
      await tick();
    }
    const staleMs = sinceMs - 30_000;
    assert.ok(staleMs >= 0 && staleMs <= 15_000, `${job} was reclaimed ${staleMs} ms after it had become stale`);
  }
});

test("definition of done: also if the server was restarted meanwhile, which holds one tick back, it is within 30 s", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.claim("test-worker", "a");
  for (let i = 0; i < 3; i++) {
    await store.psql("SELECT outlive.tick()");
    await store.pass(15_000);
  }
  // 45 s after the last heartbeat: stale since 15 s, and only now the server is back and cron calls again.
  await store.sql("UPDATE outlive.ticks SET server_run = server_run - interval '1 hour'");
  assert.equal(await store.psql("SELECT outlive.tick()"), "0");
  await store.pass(15_000);
  assert.equal(await store.psql("SELECT outlive.tick()"), "1");
});

test("the tenth timeout is the last: nine and one are ten, never eleven", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.sql("UPDATE outlive.jobs SET timeouts = 8 WHERE id = 'a'");
  for (const [decision, attempts] of [
    ["retry", 9],
    ["fail", 10],
  ]) {
    await store.sql("UPDATE outlive.jobs SET lane = 1 WHERE id = 'a'");
    await store.claim("test-worker", "a");
    await store.pass(31 * MINUTE);
    await store.beat("test-worker");
    assert.equal(
      await store.psql("SELECT decision, attempts FROM outlive.reclaim_stale_jobs()"),
      `${decision}|${attempts}`,
    );
  }
});

test("edge case 1: who is reclaimed while it runs finds out with its next heartbeat, and its end changes nothing", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  const fence = await store.claim("test-worker", "a");
  assert.equal(await store.psql(`SELECT outlive.job_heartbeat('a', 'test-worker', ${fence})`), "t");
  await store.pass(31 * MINUTE);
  await store.beat("test-worker");
  await store.psql("SELECT outlive.reclaim_stale_jobs()");
  await store.worker("other");
  await store.sql("UPDATE outlive.jobs SET lane = 1 WHERE id = 'a'");
  assert.equal(await store.claim("other", "a"), fence + 1);
  assert.equal(await store.psql(`SELECT outlive.job_heartbeat('a', 'test-worker', ${fence})`), "f");
  assert.equal(await store.psql(`SELECT outlive.job_heartbeat('a', 'other', ${fence})`), "f");
  assert.equal(await store.psql(`SELECT outlive.job_heartbeat('a', 'other', ${fence + 1})`), "t");
});

test("edge case 2: a job that always runs into its timeout ends dead after ten attempts, by SQL alone", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  let attempts = 0;
  while ((await store.job("a")).state === "queued") {
    await store.sql("UPDATE outlive.jobs SET lane = 1 WHERE id = 'a'");
    await store.claim("test-worker", "a");
    // Cron calls once a minute: only time that passes in its rhythm counts.
    while ((await store.job("a")).state === "running") {
      await store.pass(MINUTE);
      await store.beat("test-worker");
      await store.sql("SELECT outlive.tick()");
    }
    attempts++;
  }
  assert.equal(attempts, 10);
  assert.equal((await store.job("a")).state, "dead");
  assert.equal(await store.psql("SELECT count(*) FROM outlive.reclaim_history"), "10");
});

test("edge case 3: a reclaim that fails is a warning, the workers are woken all the same, and the next tick tries again", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.claim("test-worker", "a");
  await store.pass(35 * MINUTE);
  const [{ body }] = (await store.sql<{ body: string }>(
    `SELECT pg_get_functiondef('outlive.reclaim_confirmed_jobs(integer, bigint)'::regprocedure) AS body`,
  )) as [{ body: string }];
  await store.sql(
    `CREATE OR REPLACE FUNCTION outlive.reclaim_confirmed_jobs(batch integer, steady_ms bigint)
     RETURNS TABLE (job_id text, kind text, worker text, decision text, attempts integer, age interval)
     LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is on fire'; END $$`,
  );
  let warned = "";
  const heard = await store.psql(
    `LISTEN ${store.schema}_bell; SELECT outlive.tick();`,
    (notices) => void (warned = notices),
  );
  assert.match(heard, /Asynchronous notification/);
  assert.match(warned, /^WARNING: .*the disk is on fire/m);
  assert.equal(await store.psql("SELECT error FROM outlive.ticks"), "the disk is on fire");
  assert.equal((await store.job("a")).state, "running");
  await store.sql(body);
  assert.equal(await store.psql("SELECT outlive.tick()"), "1");
  assert.equal(await store.psql("SELECT error IS NULL FROM outlive.ticks"), "t");
});

test("edge case 4: a heartbeat of the job keeps it, however long ago it began", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  const fence = await store.claim("test-worker", "a");
  for (let i = 0; i < 4; i++) {
    await store.pass(20 * MINUTE);
    await store.beat("test-worker");
    assert.equal(await store.psql(`SELECT outlive.job_heartbeat('a', 'test-worker', ${fence})`), "t");
  }
  await store.pass(20 * MINUTE);
  await store.beat("test-worker");
  assert.equal(await store.psql("SELECT * FROM outlive.reclaim_stale_jobs()"), "");
  assert.equal(
    await store.psql("SELECT age, percent, status, heartbeat_at - started_at FROM outlive.stale_monitor"),
    "00:20:00|66.7|OK|01:20:00",
  );
});

test("a heartbeat of the worker shortens detection: its job is back after one lease, long before its timeout", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('submit_anchor_bitcoin', '{}', id => 'a')");
  await store.claim("test-worker", "a");
  await store.pass(29_000);
  assert.equal(await store.psql("SELECT * FROM outlive.reclaim_stale_jobs()"), "");
  await store.pass(2_000);
  assert.equal(await store.psql("SELECT job_id, decision, age FROM outlive.reclaim_stale_jobs()"), "a|lost|00:00:31");
  assert.match((await store.job("a")).error!.message, /^RECLAIMED_TTL: Exceeded TTL \(30 s\)/);
});

test("a kind that no program declared is reclaimed after the default timeout", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('brand.new', '{}', id => 'a')");
  await store.claim("test-worker", "a");
  await store.pass(16 * MINUTE);
  await store.beat("test-worker");
  assert.equal(await store.psql("SELECT job_id, decision FROM outlive.reclaim_stale_jobs()"), "a|retry");
  assert.match((await store.job("a")).error!.message, /^RECLAIMED_TTL: Exceeded TTL \(15 min\)/);
});

/** The documented query for what reclaims now, about this schema only: other tests share the server. */
async function reclaimsNow(store: Fixture): Promise<string> {
  const query = shownSql("postgres.md").find((sql) => sql.includes("pg_stat_activity"))!;
  const statement = query.split(";").find((sql) => sql.includes("pg_stat_activity"))!;
  return store.psql(
    `SELECT state, cardinality(waits_for) FROM (${statement}) AS shown WHERE query LIKE '%${store.schema}.%' ORDER BY 1, 2`,
  );
}

/** As an operator of the first executor asked it. */
function firstQuery(store: Fixture): Promise<string> {
  return store.psql(
    `SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%outlive.reclaim_stale_jobs%' AND pid <> pg_backend_pid() AND state <> 'idle'`,
  );
}

test("troubleshooting: is it running? Nothing runs", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT * FROM outlive.reclaim_stale_jobs()");
  assert.equal(await reclaimsNow(store), "");
  assert.equal(await firstQuery(store), "0");
});

for (const [call, seenByFirst] of [
  ["SELECT * FROM outlive.reclaim_stale_jobs()", "1"],
  // The server knows the statement that was sent, not the functions that it calls.
  ["SELECT outlive.tick()", "0"],
] as const)
  test(`troubleshooting: is it running? Yes: ${call.split(".")[1]} is shown while it runs, and not when it has ended`, async (t) => {
    const store = await executor(t);
    await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
    await store.claim("test-worker", "a");
    await store.pass(35 * MINUTE);
    await store.sql(
      `CREATE FUNCTION outlive.slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$`,
    );
    await store.sql(
      "CREATE TRIGGER slowly BEFORE INSERT ON outlive.incident_jobs FOR EACH ROW EXECUTE FUNCTION outlive.slowly()",
    );
    const caller = await store.session();
    const [{ pid }] = (await caller.sql<{ pid: number }>("SELECT pg_backend_pid() AS pid")) as [{ pid: number }];
    const ended = caller.sql(call).then(
      () => "returned",
      () => "ended",
    );
    await untilTrue(
      () => reclaimsNow(store),
      (shown) => shown === "running|0",
      "it is shown as running, and it waits for no other session",
    );
    assert.equal(await firstQuery(store), seenByFirst);
    await store.sql("SELECT pg_cancel_backend($1)", [pid]);
    await ended;
    assert.equal(await reclaimsNow(store), "");
    assert.equal((await store.job("a")).state, "running", "what was ended half-way has not happened");
  });

test("troubleshooting: is it stuck? A caller that left its transaction open is named, and so is the tick that waits for it", async (t) => {
  const store = await executor(t);
  const left = await store.session();
  await left.sql("BEGIN");
  await left.sql("SELECT outlive.tick()");
  assert.equal(await reclaimsNow(store), "idle in transaction|0");
  const waiting = store.psql("SELECT outlive.tick()", (notices) => void (warned = notices));
  let warned = "";
  await untilTrue(
    () => reclaimsNow(store),
    (shown) => shown === "idle in transaction|0\nrunning|1",
    "the second tick waits for the first",
  );
  assert.equal(await waiting, "0", "it ends after 5 s at the latest, and is no error");
  assert.match(warned, /this tick is not recorded: .*lock timeout/);
  await left.sql("COMMIT");
  assert.equal(await reclaimsNow(store), "");
});

test("troubleshooting: what should be reclaimed, and how often it was", async (t) => {
  const store = await executor(t);
  await store.psql("SELECT outlive.enqueue('run_tsa', '{}', id => 'a')");
  await store.claim("test-worker", "a");
  await store.pass(35 * MINUTE);
  assert.equal(
    await store.psql("SELECT job_id, kind, status, age FROM outlive.stale_monitor WHERE status = 'STALE'"),
    "a|run_tsa|STALE|00:35:00",
  );
  await store.psql("SELECT * FROM outlive.reclaim_stale_jobs()");
  assert.equal(
    await store.psql(
      `SELECT kind, decision, count(*) FROM outlive.reclaim_history
       WHERE at > outlive.instant(outlive.now_ms()) - interval '1 hour' AND reason LIKE 'RECLAIMED_TTL:%' GROUP BY kind, decision`,
    ),
    "run_tsa|lost|1",
  );
});
