// The reclaim in SQL among others that work at the same time: two reclaims, a claim or a heartbeat under way, a row that can't be
// written, a batch that ends before the work. Locks are real, between real sessions.
import assert from "node:assert/strict";
import { test } from "node:test";
import { untilTrue } from "../support/processes.ts";
import { MINUTE, type Fixture, fixture, judgeLosses } from "./fixture.ts";

async function held(store: Fixture, worker: string, count: number, kind = "mail"): Promise<string[]> {
  await store.worker(worker);
  const ids = Array.from({ length: count }, (_, i) => `${worker}-${i}`);
  for (const id of ids) {
    await store.sql("SELECT outlive.enqueue($1, '{}', id => $2, wake => false)", [kind, id]);
    await store.claim(worker, id);
  }
  return ids;
}

test("with every process dead one SELECT requeues all work, in one incident per worker", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 3);
  await held(store, "w2", 1);
  await store.pass(MINUTE);
  const rows = await store.sql<{ job_id: string; worker: string; decision: string }>(
    "SELECT job_id, worker, decision FROM outlive.reclaim_stale_jobs() ORDER BY job_id",
  );
  assert.deepEqual(rows, [
    { job_id: "w1-0", worker: "w1", decision: "lost" },
    { job_id: "w1-1", worker: "w1", decision: "lost" },
    { job_id: "w1-2", worker: "w1", decision: "lost" },
    { job_id: "w2-0", worker: "w2", decision: "lost" },
  ]);
  assert.deepEqual(
    await store.sql(
      `SELECT i.worker, i.how, i.held_at_death::int AS held, i.recovered_by, i.completed_at = outlive.now_ms() AS completed, f.state,
         (SELECT count(*)::int FROM outlive.incident_jobs j WHERE j.incident = i.id AND j.success) AS jobs
       FROM outlive.incidents i JOIN outlive.fleet f ON f.incident = i.id ORDER BY i.worker`,
    ),
    [
      { worker: "w1", how: "silent", held: 3, recovered_by: "sql", completed: true, state: "gone", jobs: 3 },
      { worker: "w2", how: "silent", held: 1, recovered_by: "sql", completed: true, state: "gone", jobs: 1 },
    ],
  );
  for (const id of ["w1-0", "w2-0"]) {
    const { crashes, blamed, losses } = await store.job(id);
    assert.deepEqual([crashes, blamed, losses], [0, 0, 1], "a silent worker need not be dead");
  }
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), [], "once is enough");
});

test("SQL requeues the jobs of a worker whose death is proved and counts nothing; core charges them: the only suspect is blamed, and no fresh job", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 3);
  await held(store, "w2", 1);
  await held(store, "w3", 2);
  await store.sql("UPDATE outlive.jobs SET crashes = 1 WHERE id = 'w3-0'");
  for (const worker of ["w1", "w2", "w3"]) await store.die(worker);
  assert.equal((await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()")).length, 6);
  const counted = async (id: string): Promise<readonly number[]> => {
    const { crashes, blamed, losses } = await store.job(id);
    return [crashes, blamed, losses];
  };
  assert.deepEqual(await counted("w1-0"), [0, 0, 1], "SQL counts nothing but the loss");
  assert.deepEqual(await counted("w3-0"), [1, 0, 1], "SQL blames no job");
  assert.deepEqual(
    await store.sql("SELECT DISTINCT how, resolution, judged_at FROM outlive.incidents"),
    [{ how: "silent", resolution: "died", judged_at: null }],
    "the death is known, and core judges it",
  );
  await judgeLosses(store);
  assert.deepEqual(await counted("w1-0"), [1, 0, 0], "it was in company");
  assert.deepEqual(await counted("w2-0"), [1, 0, 0], "it was the only job, and its first crash");
  assert.deepEqual(await counted("w3-0"), [2, 1, 0], "it was the only suspect");
  assert.deepEqual(await counted("w3-1"), [1, 0, 0], "it ran with a suspect");
});

test("SQL continues the recovery of a proved death as a loss, also in an incident that was judged, and core counts it", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 2);
  await store.sql(
    `INSERT INTO outlive.incidents (id, recovery, worker, how, evidence, host, pid, version, worker_started_at, last_heartbeat_at,
       loop_lag_ms, detected_at, started_at, completed_at, judged_at, recovered_by, integrity, wal_frames, held_at_death, suspects_at_death)
     VALUES ('i', 'r', 'w1', 'gone', 'its process is gone', 'host', 7, '0', 1, 1, 0, 1, 1, 1, 1, 'a-worker', 'NOT_CHECKED', 0, 2, 0)`,
  );
  await store.sql("UPDATE outlive.fleet SET state = 'gone', incident = 'i' WHERE id = 'w1'");
  assert.equal((await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()")).length, 2);
  const incident = "SELECT how, resolution, judged_at IS NULL AS open, evidence FROM outlive.incidents";
  const evidence = "its process is gone";
  assert.deepEqual(await store.sql(incident), [{ how: "silent", resolution: "died", open: true, evidence }]);
  await judgeLosses(store);
  const { crashes, losses } = await store.job("w1-0");
  assert.deepEqual([crashes, losses], [1, 0]);
  assert.deepEqual(await store.sql(incident), [{ how: "silent", resolution: "died", open: false, evidence }]);
});

test("two reclaims at once take every job once", async (t) => {
  const store = await fixture(t);
  for (let worker = 0; worker < 20; worker++) await held(store, `w${worker}`, 2);
  await store.pass(MINUTE);
  const sessions = await Promise.all([store.session(), store.session(), store.session()]);
  const taken = await Promise.all(
    sessions.map((one) => one.sql<{ job_id: string }>("SELECT job_id FROM outlive.reclaim_stale_jobs()")),
  );
  const ids = taken.flat().map(({ job_id }) => job_id);
  assert.equal(ids.length, 40);
  assert.equal(new Set(ids).size, 40);
  assert.deepEqual(await store.sql("SELECT DISTINCT losses FROM outlive.jobs"), [{ losses: 1 }]);
  assert.deepEqual(await store.sql("SELECT count(*)::int AS n FROM outlive.incidents"), [{ n: 20 }]);
});

test("a reclaim that another one has begun and not ended does not wait for it", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1);
  await store.pass(MINUTE);
  const first = await store.session();
  await first.sql("BEGIN");
  assert.equal((await first.sql("SELECT * FROM outlive.reclaim_stale_jobs()")).length, 1);
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), []);
  await first.sql("ROLLBACK");
  assert.equal((await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()")).length, 1, "nothing was lost with it");
});

test("a claim of the same worker that is under way keeps the worker's jobs: they are not taken in between", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1);
  await store.pass(MINUTE);
  const worker = await store.session();
  await worker.sql("BEGIN");
  await worker.sql("SELECT seq FROM outlive.fleet WHERE id = 'w1' AND state = 'live' FOR KEY SHARE");
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), []);
  await worker.sql("COMMIT");
  assert.equal((await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()")).length, 1);
});

test("a claim that comes while a reclaim is under way waits for it and then finds its worker over", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1);
  await store.pass(MINUTE);
  const reclaim = await store.session();
  await reclaim.sql("BEGIN");
  await reclaim.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  const worker = await store.session();
  const [{ pid }] = (await worker.sql<{ pid: number }>("SELECT pg_backend_pid() AS pid")) as [{ pid: number }];
  const claim = worker.sql("SELECT seq FROM outlive.fleet WHERE id = 'w1' AND state = 'live' FOR KEY SHARE");
  await untilTrue(
    async () =>
      (await store.sql<{ on: string }>("SELECT wait_event_type AS on FROM pg_stat_activity WHERE pid = $1", [pid]))[0]!
        .on,
    (on) => on === "Lock",
    "the claim waits for the lock",
  );
  await reclaim.sql("COMMIT");
  assert.deepEqual(await claim, [], "it may not claim: it must register again");
});

test("a worker whose heartbeat arrives before the lock is not taken", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1);
  await store.pass(MINUTE);
  const worker = await store.session();
  await worker.sql("BEGIN");
  await worker.sql("UPDATE outlive.fleet SET beats = beats + 1, heartbeat_at = outlive.now_ms() WHERE id = 'w1'");
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), []);
  await worker.sql("COMMIT");
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), []);
  assert.equal((await store.job("w1-0")).state, "running");
});

test("a settlement under way wins: the job that it ends is not taken", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 2);
  await store.pass(MINUTE);
  const worker = await store.session();
  await worker.sql("BEGIN");
  await worker.sql(
    "UPDATE outlive.jobs SET state = 2, outcome = 0, finished_at = outlive.now_ms() WHERE id = 'w1-0' AND state = 1 AND fence = 1",
  );
  const taken = await store.sql("SELECT job_id FROM outlive.reclaim_stale_jobs()");
  assert.deepEqual(taken, [{ job_id: "w1-1" }]);
  await worker.sql("COMMIT");
  assert.deepEqual(await store.sql("SELECT job_id FROM outlive.reclaim_stale_jobs()"), []);
  assert.equal((await store.job("w1-0")).state, "succeeded");
  assert.deepEqual((await store.job("w1-1")).blamed, 0, "two were held at the death");
});

test("a batch is a limit: the rest is taken by the next call, in the same incident, and no job is blamed for being last", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 5);
  await store.pass(MINUTE);
  const taken: number[] = [];
  for (let i = 0; i < 4; i++) taken.push((await store.sql("SELECT * FROM outlive.reclaim_stale_jobs(2)")).length);
  assert.deepEqual(taken, [2, 2, 1, 0]);
  assert.deepEqual(
    await store.sql("SELECT held_at_death::int AS held, completed_at IS NOT NULL AS over FROM outlive.incidents"),
    [{ held: 5, over: true }],
  );
  assert.deepEqual(await store.sql("SELECT DISTINCT blamed FROM outlive.jobs"), [{ blamed: 0 }]);
});

test("a job whose row can't be written is reported and holds up no other, not even in a batch of one", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 2);
  await store.sql("ALTER TABLE outlive.jobs ADD CONSTRAINT stuck CHECK (id <> 'w1-0' OR losses = 0)");
  await store.pass(MINUTE);
  const taken = await store.sql("SELECT job_id FROM outlive.reclaim_stale_jobs(1)");
  assert.deepEqual(taken, [{ job_id: "w1-1" }]);
  await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  assert.deepEqual(
    await store.sql(
      "SELECT job_id, decision, success, error ~ 'stuck' AS told FROM outlive.incident_jobs ORDER BY job_id",
    ),
    [
      { job_id: "w1-0", decision: "none", success: false, told: true },
      { job_id: "w1-1", decision: "lost", success: true, told: null },
    ],
  );
  await store.sql("ALTER TABLE outlive.jobs DROP CONSTRAINT stuck");
  assert.deepEqual(await store.sql("SELECT job_id FROM outlive.reclaim_stale_jobs()"), [{ job_id: "w1-0" }]);
});

test("a job past its deadline is taken although its worker lives, after its grace and not before", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1);
  await store.pass(15 * MINUTE + 6_000);
  await store.beat("w1");
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), [], "its worker does it itself");
  assert.equal(await store.psql("SELECT status FROM outlive.stale_monitor"), "STALE");
  await store.pass(2_000);
  assert.deepEqual(await store.sql("SELECT job_id, worker, decision, attempts FROM outlive.reclaim_stale_jobs()"), [
    { job_id: "w1-0", worker: "w1", decision: "retry", attempts: 1 },
  ]);
  assert.deepEqual(await store.sql("SELECT state FROM outlive.fleet"), [{ state: "live" }]);
  assert.deepEqual(await store.sql("SELECT * FROM outlive.incidents"), [], "nobody died");
});

test("a job without a timeout is never overdue, but goes with its worker", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1, "forever");
  await store.sql("UPDATE outlive.kinds SET timeout_ms = NULL");
  await store.sql("UPDATE outlive.jobs SET deadline_at = NULL");
  assert.equal(await store.psql("SELECT outlive.job_heartbeat('w1-0', 'w1', 1)"), "t");
  await store.pass(1_000 * MINUTE);
  await store.beat("w1");
  assert.deepEqual(await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()"), []);
  await store.pass(MINUTE);
  assert.equal((await store.sql("SELECT * FROM outlive.reclaim_stale_jobs()")).length, 1);
});

test("a heartbeat of the job can't go beyond maxRuntime", async (t) => {
  const store = await fixture(t);
  await held(store, "w1", 1);
  await store.sql("UPDATE outlive.kinds SET max_runtime_ms = 1200000");
  await store.pass(10 * MINUTE);
  await store.psql("SELECT outlive.job_heartbeat('w1-0', 'w1', 1)");
  assert.equal(await store.psql("SELECT deadline_at - started_at FROM outlive.stale_monitor"), "00:20:00");
});

test("after the server was restarted or frozen the first tick only looks, and the next one acts", async (t) => {
  const store = await fixture(t);
  await store.psql("SELECT outlive.tick()");
  await held(store, "w1", 1);
  await store.pass(MINUTE);
  assert.equal(
    await store.psql("SELECT outlive.tick(); SELECT held FROM outlive.ticks"),
    "0\nt",
    "the clock had stood still",
  );
  await store.pass(15_000);
  assert.equal(await store.psql("SELECT outlive.tick(); SELECT held FROM outlive.ticks"), "1\nf");
  await held(store, "w2", 1);
  await store.pass(15_000);
  await store.psql("SELECT outlive.tick()");
  await store.pass(16_000);
  await store.sql("UPDATE outlive.ticks SET server_run = server_run - interval '1 hour'");
  assert.equal(await store.psql("SELECT outlive.tick(); SELECT held FROM outlive.ticks"), "0\nt", "a restart");
  await store.pass(15_000);
  assert.equal(await store.psql("SELECT outlive.tick()"), "1");
});

test("calling tick once a minute does not count as late", async (t) => {
  const store = await fixture(t);
  const said: string[] = [];
  for (let i = 0; i < 4; i++) {
    await store.psql("SELECT outlive.tick()");
    said.push(await store.psql("SELECT held FROM outlive.ticks"));
    await store.pass(MINUTE);
  }
  assert.deepEqual(said, ["f", "t", "f", "f"]);
});

test("a batch that is not a number of jobs is refused", async (t) => {
  const store = await fixture(t);
  for (const batch of ["0", "-1", "10001", "NULL"])
    await assert.rejects(store.sql(`SELECT * FROM outlive.reclaim_stale_jobs(${batch})`), { code: "22023" });
});
