// C6: a transaction that stands still holds up its own job and no other, on the user's own pool and behind a pooler, too.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { pgbouncer } from "../postgres/pgbouncer.ts";
import { SHORT } from "../postgres/place.ts";
import { open } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { hold, nap } from "./commit-jobs.ts";
import { type CommitPlace, comes, commitPlace } from "./commit-place.ts";
import { attemptOf } from "../support/former-names.ts";

/** More than a lease. */
const FOUND_MS = 15_000;

/** A worker is frozen in the middle of a commit while it runs two other jobs. All three must run again in another worker. */
async function freeze(place: CommitPlace, options: Parameters<CommitPlace["child"]>[0]): Promise<void> {
  const { engine } = place;
  const frozen = place.child({ ...options, heartbeat: SHORT });
  await frozen.untilFact("working");
  const { id: commit } = await engine.enqueue(hold, { ms: 600_000 });
  const naps = await Promise.all([1, 2].map(async () => (await engine.enqueue(nap, { ms: 600_000 })).id));
  await frozen.untilFact("inside", { id: commit });
  await Promise.all(naps.map((id) => frozen.untilFact("started", { id })));
  const other = place.child({ ...options, heartbeat: SHORT });
  await other.untilFact("working");
  frozen.kill("SIGSTOP");
  const again = naps.map((id) => other.untilFact("started", { id, attempt: 2 }));
  assert.ok(await comes(FOUND_MS, Promise.all(again)), "the jobs alongside the frozen commit run again");
  assert.ok(await comes(FOUND_MS, untilState(engine, commit, "succeeded")), "the frozen transaction was ended");
  assert.equal(attemptOf((await engine.get(commit))!), 2);
  assert.equal((await engine.incidents()).length, 1);
}

test("C6: on the user's own pool a frozen commit holds up no other job of its worker, and its transaction is ended", async (t) => {
  const place = await commitPlace(t);
  await freeze(place, { pool: { max: 5 } });
});

test("C6: behind PgBouncer a frozen commit holds up no other job of its worker, and its transaction is ended", async (t) => {
  const place = await commitPlace(t);
  await freeze(place, { url: await pgbouncer(t, place.url, "transaction") });
});

test("C6: a job that another session holds is left out of the recovery, which takes it as soon as that session releases it", async (t) => {
  const place = await commitPlace(t);
  const { engine, schema } = place;
  const dead = place.child();
  await dead.untilFact("working");
  const [held, free] = await Promise.all([1, 2].map(async () => (await engine.enqueue(nap, { ms: 600_000 })).id));
  await Promise.all([held, free].map((id) => dead.untilFact("started", { id })));
  const other = place.child();
  await other.untilFact("working");
  const holder = new pg.Client({ connectionString: place.url });
  await holder.connect();
  try {
    await holder.query("BEGIN");
    await holder.query(`SELECT 1 FROM "${schema}".jobs WHERE id = $1 FOR UPDATE`, [held]);
    dead.kill();
    assert.ok(await comes(FOUND_MS, other.untilFact("started", { id: free, attempt: 2 })), "the other job runs again");
    assert.equal(attemptOf((await engine.get(held!))!), 1);
    await holder.query("ROLLBACK");
    const letGoAt = performance.now();
    await other.untilFact("started", { id: held, attempt: 2 });
    t.diagnostic(`it came back after ${Math.round(performance.now() - letGoAt)} ms`);
  } finally {
    await holder.end();
  }
  const [incident] = await untilTrue(
    () => engine.incidents(),
    ([found]) => found!.completedAt !== null,
    "the incident is closed",
  );
  assert.deepEqual([incident!.jobCount, (await engine.incidents()).length], [2, 1], "everything is counted once");
  assert.deepEqual(
    (await Promise.all([held, free].map((id) => engine.get(id!)))).map((job) => job!.counters.crashes),
    [1, 1],
  );
});

test("C6: a transaction of the engine's on the user's own pool has a name and a limit to standing idle, and leaves neither behind", async (t) => {
  const { url, schema } = await freshSchema(t);
  const pool = new pg.Pool({ connectionString: url, max: 1, application_name: "shop" });
  t.after(() => pool.end());
  await using engine = await open("postgres:", { jobs: [], logger: false, postgres: { schema, pool } });
  const settings =
    "SELECT current_setting('application_name') AS name, current_setting('idle_in_transaction_session_timeout') AS idle";
  const [inside] = await engine.transaction(postgres, (tx) => tx.query<{ name: string; idle: string }>(settings));
  assert.match(inside!.name, /^outlive-[0-9a-f]{12}$/);
  assert.equal(inside!.idle, "5min");
  assert.deepEqual((await pool.query(settings)).rows, [{ name: "shop", idle: "0" }]);
  await pool.query("SET idle_in_transaction_session_timeout = '1min'");
  const [shorter] = await engine.transaction(postgres, (tx) => tx.query<{ idle: string }>(settings));
  assert.equal(shorter!.idle, "1min", "a shorter limit of the user's own stays");
});
