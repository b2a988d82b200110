// A job that a worker takes back and the same job taken back by SQL read the same in the views: two stores with the same rows, one
// reclaimed by `reclaim_stale_jobs()`, the other by the recovery of the engine.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { decideCrash, decideOverdue } from "../../src/core/recovery.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { MINUTE, scene, type Scene } from "./scene.ts";

/** Each job under a worker of its own, but for `company`, of which there are two. SQL sets the row and its kind. */
const DIED: Readonly<Record<string, string>> = {
  // The first death: while others die, it could not be told from them.
  poison: "crashes = 2, blamed = 2",
  alone: "",
  again: "crashes = 1",
  company: "",
  cancelled: "cancel_requested = true",
  "late-timeouts": "timeouts = 10",
  "late-errors": "errors = 10",
  fails: "",
  pending: "",
};
const OVERDUE: Readonly<Record<string, string>> = {
  slow: "",
  "slow-last": "timeouts = 9",
  "slow-cancelled": "cancel_requested = true",
};
const SETTINGS: Readonly<Record<string, string>> = {
  fails: "on_crash = 'fail'",
  pending: "on_crash = 'pending'",
  company: "timeout_ms = 20000",
};

async function furnished(t: TestContext): Promise<Scene> {
  const store = await scene(t);
  for (const [id, counters] of Object.entries({ ...DIED, ...OVERDUE })) {
    await store.worker(`w-${id}`);
    for (const job of id === "company" ? ["company-1", "company-2"] : [id]) {
      await store.sql("SELECT outlive.enqueue($1, '{}', id => $2, wake => false)", [`kind-${id}`, job]);
      if (SETTINGS[id]) await store.sql(`UPDATE outlive.kinds SET ${SETTINGS[id]} WHERE name = $1`, [`kind-${id}`]);
      await store.claim(`w-${id}`, job);
      if (counters !== "") await store.sql(`UPDATE outlive.jobs SET ${counters} WHERE id = $1`, [job]);
    }
  }
  // Those that died are silent for 35 s; the jobs of the others, whose workers beat, are past their deadline.
  await store.pass(16 * MINUTE);
  for (const id of Object.keys(DIED)) {
    await store.sql("UPDATE outlive.fleet SET heartbeat_at = outlive.now_ms() - 35000 WHERE id = $1", [`w-${id}`]);
    await store.sql(
      `UPDATE outlive.jobs j SET started_at = outlive.now_ms() - 60000, deadline_at = outlive.now_ms() - 60000 + k.timeout_ms
       FROM outlive.kinds k WHERE k.id = j.kind AND k.name = $1`,
      [`kind-${id}`],
    );
  }
  for (const id of Object.keys(OVERDUE)) await store.beat(`w-${id}`);
  return store;
}

const HISTORY = `SELECT job_id, kind, worker, decision, cause, attempts, age, state, fence, at, reason FROM outlive.reclaim_history ORDER BY job_id`;
const DEAD = `SELECT job_id, kind, state, reason, error, last_error, attempts, errors, crashes, blamed, timeouts, worker FROM outlive.dead_jobs ORDER BY job_id`;

test("what a worker takes back and what SQL takes back read the same in reclaim_history and dead_jobs", async (t) => {
  const bySql = await furnished(t);
  const taken = await bySql.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  assert.equal(taken.length, Object.keys(DIED).length + 1 + Object.keys(OVERDUE).length);

  const byWorker = await furnished(t);
  const store = await openStore(byWorker);
  t.after(() => store.close());
  const now = 1_800_000_000_000 + 16 * MINUTE;
  const workers = await store.workers({});
  const dead = Object.keys(DIED).map((id) => workers.find((worker) => worker.id === `w-${id}`)!);
  for (const [at, worker] of dead.entries())
    await store.recover({
      worker,
      death: { how: "silent", lastSeenAliveAt: null, detectedAt: now, evidence: null },
      recovery: { id: "pass", startedAt: now, by: "a-worker", integrity: "NOT_CHECKED", walFrames: 0 },
      incident: `incident-${at}`,
      limit: 100,
      decide: decideCrash,
    });
  await store.expire(2_000, 100, (job) => decideOverdue(job, 0.5));

  const said = await byWorker.psql(HISTORY);
  assert.equal(said, await bySql.psql(HISTORY));
  assert.equal(await byWorker.psql(DEAD), await bySql.psql(DEAD));
  assert.deepEqual(
    said.split("\n").map((line) => [line.split("|")[0], line.split("|").at(-1)]),
    [
      [
        "again",
        "RECLAIMED_TTL: Exceeded TTL (30 s): crash 2, 1 of 3 alone, it will run alone; no heartbeat of worker w-again for 35 s",
      ],
      ["alone", "RECLAIMED_TTL: Exceeded TTL (30 s): crash 1, 1 of 3 alone; no heartbeat of worker w-alone for 35 s"],
      [
        "cancelled",
        "RECLAIMED_TTL: Exceeded TTL (30 s): no heartbeat of worker w-cancelled for 35 s; its cancel had been asked for",
      ],
      [
        "company-1",
        "RECLAIMED_TTL: Exceeded TTL (20 s): crash 1, 0 of 3 alone; no heartbeat of worker w-company for 35 s",
      ],
      [
        "company-2",
        "RECLAIMED_TTL: Exceeded TTL (20 s): crash 1, 0 of 3 alone; no heartbeat of worker w-company for 35 s",
      ],
      [
        "fails",
        "RECLAIMED_TTL: Exceeded TTL (30 s): its kind says that a crash ends the job; no heartbeat of worker w-fails for 35 s",
      ],
      [
        "late-errors",
        "RECLAIMED_TTL: Max attempts reached: error 10 of 10, no more are allowed; no heartbeat of worker w-late-errors for 35 s",
      ],
      [
        "late-timeouts",
        "RECLAIMED_TTL: Max attempts reached: timeout 10 of 10, no more are allowed; no heartbeat of worker w-late-timeouts for 35 s",
      ],
      [
        "pending",
        "RECLAIMED_TTL: Exceeded TTL (30 s): no heartbeat of worker w-pending for 35 s; queued again, not counted",
      ],
      [
        "poison",
        "RECLAIMED_TTL: Max attempts reached: 3 of 3 workers died while it ran alone; no heartbeat of worker w-poison for 35 s",
      ],
      ["slow", "RECLAIMED_TTL: Exceeded TTL (15 min): timeout 1 of 10; worker w-slow"],
      [
        "slow-cancelled",
        "RECLAIMED_TTL: Exceeded TTL (15 min): worker w-slow-cancelled; its cancel had been asked for",
      ],
      ["slow-last", "RECLAIMED_TTL: Max attempts reached: timeout 10 of 10, no more are allowed; worker w-slow-last"],
    ],
  );
});

test("a reclaim that can't be worded is kept with the reason that the engine wrote, and stops no recovery", async (t) => {
  const scenery = await furnished(t);
  await scenery.sql("ALTER TABLE outlive.kinds DROP COLUMN on_crash CASCADE");
  await scenery.sql(
    `INSERT INTO outlive.history (job, at, epoch, fence, from_state, to_state, event, actor, reason)
     SELECT seq, outlive.now_ms(), epoch, fence, 1, 0, 'crash', 'system/recovery', 'its worker died' FROM outlive.jobs WHERE id = 'alone'`,
  );
  assert.equal(await scenery.psql("SELECT job_id, reason FROM outlive.reclaim_history"), "alone|its worker died");
});
