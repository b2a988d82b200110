// A job that a worker takes back and the same job taken back by SQL read the same in the views: two stores with the same rows, one
// reclaimed by `reclaim_stale_jobs()`, the other by the recovery of the engine.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { decideLoss } from "../../src/recovery/losses.ts";
import { decideCrash } from "../../src/recovery/recover.ts";
import { expireOnce, recoverOnce } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { MINUTE, fixture, type Fixture } from "./fixture.ts";

/** Each job under a worker of its own, but for `company`, of which there are two. SQL sets the row and its kind. */
const DIED: Readonly<Record<string, string>> = {
  // The first death: while others die, it could not be distinguished from them.
  poison: "crashes = 2, blamed = 2",
  alone: "",
  again: "crashes = 1",
  company: "",
  cancelled: "cancel_requested = true",
  "late-timeouts": "timeouts = 10",
  "late-errors": "errors = 10",
  "third-loss": "losses = 2",
  fails: "",
  pending: "",
};
const HOW = ["gone", "silent"] as const;
const DEATHS = HOW.flatMap((how) => Object.keys(DIED).map((id) => ({ how, id: `${how}-${id}` })));
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

/** `gone`: what a worker whose death is proved looks like; left out: such workers are still called live, and their recovery proves it. */
async function furnished(t: TestContext, gone?: "gone"): Promise<Fixture> {
  const store = await fixture(t);
  const cases = [...DEATHS.map(({ id }) => id), ...Object.keys(OVERDUE)];
  for (const id of cases) {
    const name = id.replace(/^(gone|silent)-/, "");
    const counters = DIED[name] ?? OVERDUE[name] ?? "";
    await store.worker(`w-${id}`);
    for (const job of name === "company" ? [`${id}-1`, `${id}-2`] : [id]) {
      await store.sql("SELECT outlive.enqueue($1, '{}', id => $2, wake => false)", [`kind-${id}`, job]);
      if (SETTINGS[name]) await store.sql(`UPDATE outlive.kinds SET ${SETTINGS[name]} WHERE name = $1`, [`kind-${id}`]);
      await store.claim(`w-${id}`, job);
      if (counters !== "") await store.sql(`UPDATE outlive.jobs SET ${counters} WHERE id = $1`, [job]);
    }
  }
  // Those that died are silent for 35 s; the jobs of the others, whose workers beat, are past their deadline.
  await store.pass(16 * MINUTE);
  for (const { id, how } of DEATHS) {
    await store.sql("UPDATE outlive.fleet SET heartbeat_at = outlive.now_ms() - 35000 WHERE id = $1", [`w-${id}`]);
    await store.sql(
      `UPDATE outlive.jobs j SET started_at = outlive.now_ms() - 60000, deadline_at = outlive.now_ms() - 60000 + k.timeout_ms
       FROM outlive.kinds k WHERE k.id = j.kind AND k.name = $1`,
      [`kind-${id}`],
    );
    if (how === gone) await store.die(`w-${id}`);
  }
  for (const id of Object.keys(OVERDUE)) await store.beat(`w-${id}`);
  return store;
}

const HISTORY = `SELECT job_id, kind, worker, decision, cause, attempts, age, state, fence, at, reason FROM outlive.reclaim_history ORDER BY job_id`;
const DEAD = `SELECT job_id, kind, state, reason, error, last_error, attempts, errors, crashes, blamed, timeouts, worker FROM outlive.dead_jobs ORDER BY job_id`;

test("what a worker takes back and what SQL takes back read the same in reclaim_history and dead_jobs", async (t) => {
  const bySql = await furnished(t, "gone");
  const taken = await bySql.sql("SELECT * FROM outlive.reclaim_stale_jobs()");
  assert.equal(taken.length, DEATHS.length + HOW.length + Object.keys(OVERDUE).length);

  const byWorker = await furnished(t);
  const store = await openStore(byWorker);
  t.after(() => store.close());
  const now = 1_800_000_000_000 + 16 * MINUTE;
  const workers = await store.workers({});
  for (const { id, how } of DEATHS)
    await recoverOnce(store, {
      worker: workers.find((worker) => worker.id === `w-${id}`)!,
      death: { how, lastSeenAliveAt: null, detectedAt: now, evidence: null },
      recovery: { id: "pass", startedAt: now, by: "a-worker", integrity: "NOT_CHECKED", summary: null },
      incident: `incident-${id}`,
      limit: 100,
      decide: decideCrash,
    });
  await expireOnce(store, 2_000, 100);

  // SQL judges no death, so what it says of one that is proved is a loss that core counts later.
  const [written, bySqlWritten] = [await byWorker.psql(HISTORY), await bySql.psql(HISTORY)];
  const ofProvedDeath = (line: string): boolean => line.startsWith("gone-");
  const others = (text: string): string[] => text.split("\n").filter((line) => !ofProvedDeath(line));
  assert.deepEqual(others(written), others(bySqlWritten));
  assert.deepEqual(others(await byWorker.psql(DEAD)), others(await bySql.psql(DEAD)));
  const worded = (text: string): string[] =>
    text.split("\n").map((line) => {
      const columns = line.split("|");
      return `${columns[0]}: ${columns.at(-1)!.replace(/^RECLAIMED_TTL: /, "")}`;
    });
  assert.deepEqual(worded(bySqlWritten).filter(ofProvedDeath), [
    "gone-again: Worker died: loss 1 of 3, not counted yet, it will run as the only suspect; worker w-gone-again is gone",
    "gone-alone: Worker died: loss 1 of 3, not counted yet; worker w-gone-alone is gone",
    "gone-cancelled: Worker died: worker w-gone-cancelled is gone; its cancel had been asked for",
    "gone-company-1: Worker died: loss 1 of 3, not counted yet; worker w-gone-company is gone",
    "gone-company-2: Worker died: loss 1 of 3, not counted yet; worker w-gone-company is gone",
    "gone-fails: Worker died: its kind says that a crash ends the job; worker w-gone-fails is gone",
    "gone-late-errors: Max attempts reached: error 10 of 10, no more are allowed; worker w-gone-late-errors is gone",
    "gone-late-timeouts: Max attempts reached: timeout 10 of 10, no more are allowed; worker w-gone-late-timeouts is gone",
    "gone-pending: Worker died: worker w-gone-pending is gone; queued again, not counted",
    "gone-poison: Worker died: loss 1 of 3, not counted yet, it will run as the only suspect; worker w-gone-poison is gone",
    "gone-third-loss: Worker died: loss 3 of 3, not counted yet, it waits until it is known what happened to its workers; worker w-gone-third-loss is gone",
  ]);
  assert.deepEqual(worded(written), [
    "gone-again: Worker died: crash 2, 1 of 3 alone, it will run as the only suspect; worker w-gone-again is gone",
    "gone-alone: Worker died: crash 1, 0 of 3 alone; worker w-gone-alone is gone",
    "gone-cancelled: Worker died: worker w-gone-cancelled is gone; its cancel had been asked for",
    "gone-company-1: Worker died: crash 1, 0 of 3 alone; worker w-gone-company is gone",
    "gone-company-2: Worker died: crash 1, 0 of 3 alone; worker w-gone-company is gone",
    "gone-fails: Worker died: its kind says that a crash ends the job; worker w-gone-fails is gone",
    "gone-late-errors: Max attempts reached: error 10 of 10, no more are allowed; worker w-gone-late-errors is gone",
    "gone-late-timeouts: Max attempts reached: timeout 10 of 10, no more are allowed; worker w-gone-late-timeouts is gone",
    "gone-pending: Worker died: worker w-gone-pending is gone; queued again, not counted",
    "gone-poison: Max attempts reached: 3 of 3 workers died while it ran alone; worker w-gone-poison is gone",
    "gone-third-loss: Worker died: crash 1, 1 of 3 alone, it will run as the only suspect; worker w-gone-third-loss is gone",
    "silent-again: Exceeded TTL (30 s): loss 1 of 3, not counted yet, it will run as the only suspect; no heartbeat of worker w-silent-again for 35 s",
    "silent-alone: Exceeded TTL (30 s): loss 1 of 3, not counted yet; no heartbeat of worker w-silent-alone for 35 s",
    "silent-cancelled: Exceeded TTL (30 s): no heartbeat of worker w-silent-cancelled for 35 s; its cancel had been asked for",
    "silent-company-1: Exceeded TTL (20 s): loss 1 of 3, not counted yet; no heartbeat of worker w-silent-company for 35 s",
    "silent-company-2: Exceeded TTL (20 s): loss 1 of 3, not counted yet; no heartbeat of worker w-silent-company for 35 s",
    "silent-fails: Exceeded TTL (30 s): its kind says that a crash ends the job; no heartbeat of worker w-silent-fails for 35 s",
    "silent-late-errors: Max attempts reached: error 10 of 10, no more are allowed; no heartbeat of worker w-silent-late-errors for 35 s",
    "silent-late-timeouts: Max attempts reached: timeout 10 of 10, no more are allowed; no heartbeat of worker w-silent-late-timeouts for 35 s",
    "silent-pending: Exceeded TTL (30 s): no heartbeat of worker w-silent-pending for 35 s; queued again, not counted",
    "silent-poison: Exceeded TTL (30 s): loss 1 of 3, not counted yet, it will run as the only suspect; no heartbeat of worker w-silent-poison for 35 s",
    "silent-third-loss: Exceeded TTL (30 s): loss 3 of 3, not counted yet, it waits until it is known what happened to its workers; no heartbeat of worker w-silent-third-loss for 35 s",
    "slow: Exceeded TTL (15 min): timeout 1 of 10; worker w-slow",
    "slow-cancelled: Exceeded TTL (15 min): worker w-slow-cancelled; its cancel had been asked for",
    "slow-last: Max attempts reached: timeout 10 of 10, no more are allowed; worker w-slow-last",
  ]);
});

test("a job that core quarantines when it is known that its lost workers are dead is in dead_jobs with the same words", async (t) => {
  const scenery = await furnished(t);
  const store = await openStore(scenery);
  t.after(() => store.close());
  await scenery.psql("SELECT outlive.reclaim_stale_jobs()");
  const lost = (await store.losses.open()).find(({ worker }) => worker?.id === "w-silent-poison")!;
  await store.losses.resolve("w-silent-poison", "away");
  const [job] = await store.losses.jobs(lost.incident, 10);
  await store.losses.judge(lost.incident, [decideLoss({ ...job!, deathsElsewhere: 0 }, "away")!]);
  assert.equal(
    await scenery.psql(
      "SELECT state, attempts, reason, last_error = reason, error FROM outlive.dead_jobs WHERE job_id = 'silent-poison'",
    ),
    "quarantined|3|RECLAIMED_TTL: Max attempts reached: 3 of 3 workers died while it ran alone; no heartbeat of worker w-silent-poison for 35 s|t|WorkerDied",
  );
});

test("a reclaim that can't be worded is kept with the reason that the engine wrote, and stops no recovery", async (t) => {
  const scenery = await furnished(t);
  await scenery.sql("ALTER TABLE outlive.kinds DROP COLUMN on_crash CASCADE");
  await scenery.sql(
    `INSERT INTO outlive.history (job, at, epoch, fence, from_state, to_state, event, actor, reason)
     SELECT seq, outlive.now_ms(), epoch, fence, 1, 0, 'crash', 'system/recovery', 'its worker died' FROM outlive.jobs WHERE id = 'gone-alone'`,
  );
  assert.equal(await scenery.psql("SELECT job_id, reason FROM outlive.reclaim_history"), "gone-alone|its worker died");
});
