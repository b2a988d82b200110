// U: a role or database whose transactions are REPEATABLE READ by default. What waits for a worker's row must see the claim that it waited for.
import assert from "node:assert/strict";
import pg from "pg";
import { test, type TestContext } from "node:test";
import { recoverBatch } from "../../src/recovery/recover.ts";
import type { Store } from "../../src/stores/port.ts";
import { draft, kind, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

/** A worker "w" and a job "a" on a store whose sessions are REPEATABLE READ by default; `claim` takes the job and does not commit yet. */
async function stage(
  t: TestContext,
): Promise<{ store: Store; claim: pg.Client; commitOnceWaitedFor: () => Promise<void> }> {
  const fresh = await freshSchema(t);
  const url = new URL(fresh.url);
  url.searchParams.set("options", "-c default_transaction_isolation=repeatable\\ read");
  const store = await openStore({ url: url.href, schema: fresh.schema });
  const claim = new pg.Client({ connectionString: fresh.url });
  await claim.connect();
  t.after(async () => {
    await claim.end();
    await store.close();
  });
  await store.declare([kind("mail")]);
  await store.enqueue([draft("a")]);
  await store.register(workerRecord("w"));
  const table = (name: string): string => `"${fresh.schema}".${name}`;
  await claim.query("BEGIN");
  await claim.query(`SELECT 1 FROM ${table("fleet")} WHERE id = 'w' FOR KEY SHARE`);
  await claim.query(
    `UPDATE ${table("jobs")} SET state = 1, fence = 1, worker = (SELECT seq FROM ${table("fleet")} WHERE id = 'w') WHERE id = 'a'`,
  );
  const { rows } = await claim.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
  const commitOnceWaitedFor = async (): Promise<void> => {
    await untilTrue(
      () => fresh.query("SELECT 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", [rows[0]!.pid]),
      (waiting) => waiting.length > 0,
      "it waits for the claim",
    );
    await claim.query("COMMIT");
  };
  return { store, claim, commitOnceWaitedFor };
}

test("U: with REPEATABLE READ by default a worker that leaves sees a claim that was committed while it waited", async (t) => {
  const { store, commitOnceWaitedFor } = await stage(t);
  const [left] = await Promise.all([store.leave("w"), commitOnceWaitedFor()]);
  assert.equal(left, false, "it holds a job and is left to recovery");
});

test("U: with REPEATABLE READ by default a recovery sees a claim that was committed while it waited", async (t) => {
  const { store, commitOnceWaitedFor } = await stage(t);
  const [worker] = await store.workers({});
  const request = {
    worker: worker!,
    death: { how: "gone", lastSeenAliveAt: null, detectedAt: 1, evidence: null },
    recovery: { id: "r", startedAt: 1, by: "test", integrity: "NOT_CHECKED", summary: null },
    incident: "i",
  } as const;
  // A recovery that could not have the row in time took nothing and says so: it is asked again, as maintenance does.
  const recovered = async (): Promise<readonly string[]> => {
    for (;;) {
      const { incident, jobs } = await recoverBatch(store, request, 10);
      if (incident !== null) return jobs.map(({ jobId }) => jobId);
    }
  };
  const [jobs] = await Promise.all([recovered(), commitOnceWaitedFor()]);
  assert.deepEqual(jobs, ["a"]);
});
