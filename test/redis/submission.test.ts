// Submissions that take several scripts, with real kills between any two of them, of the process that submits and of the server: no row and no job is
// lost or doubled, and one call of `enqueue` is whole or nothing.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import type { JobInfo } from "../../src/job/job.ts";
import type { ListPage, Store } from "../../src/stores/port.ts";
import { idsOf, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { untilTrue } from "../support/processes.ts";
import { freshName, ownRedis } from "../support/redis.ts";
import { BATCH, BLOCKS, JOBS, ROWS_PER_BLOCK, struckStore, SUBMISSIONS } from "./submission.ts";

const PROGRAM = fileURLToPath(new URL("./submitting-process.ts", import.meta.url));

/** Submits in a separate process, which is killed before its script of that number. Returns whether it got to the end all the same. */
async function submitted(t: TestContext, url: string, which: keyof typeof SUBMISSIONS, dies: number): Promise<boolean> {
  const child = fork(PROGRAM, [url, which, String(dies)], {
    execArgv: ["--disable-warning=ExperimentalWarning"],
    stdio: ["ignore", "inherit", "inherit", "ipc"],
  });
  t.after(() => child.kill("SIGKILL"));
  const [code, signal] = (await once(child, "exit")) as [number | null, string | null];
  assert.ok(code === 0 || signal === "SIGKILL", `it ended with ${code ?? signal}`);
  return code === 0;
}

async function jobsIn(store: Store): Promise<readonly JobInfo[]> {
  const jobs: JobInfo[] = [];
  for (let after: string | null = null; ;) {
    const page: ListPage = await store.inspect.list({}, 1_000, after);
    jobs.push(...page.jobs);
    if (page.next === null) return jobs;
    after = page.next;
  }
}

/** Each of them once, whichever process claims it. */
async function runAll(store: Store, kinds: readonly string[]): Promise<readonly string[]> {
  await store.register(workerRecord("w"));
  const ran: string[] = [];
  for (;;) {
    const { claimed } = await store.turn("w", [], roomFor(200, kinds));
    if (claimed.length === 0) return ran;
    ran.push(...idsOf(claimed));
    await store.turn(
      "w",
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
}

async function assertBatchIsWhole(store: Store): Promise<void> {
  const [batch] = await store.batches!.get([BATCH]);
  assert.deepEqual([batch!.state, batch!.rows, batch!.blocks], ["sealed", BLOCKS * ROWS_PER_BLOCK, BLOCKS]);
  const ran = await runAll(store, ["mail"]);
  assert.deepEqual([ran.length, new Set(ran).size], [BLOCKS, BLOCKS]);
  assert.equal((await store.batches!.get([BATCH]))[0]!.sums.succeeded, BLOCKS * ROWS_PER_BLOCK);
  assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  assert.deepEqual(await store.upkeep.integrity(), []);
}

test("a submitter that is killed between two scripts of a batch submits again, and no row is lost or doubled", async (t) => {
  // declare, open, three appends, seal.
  const kills = [2, 3, 5];
  await Promise.all(
    kills.map(async (dies) => {
      const { url, name } = await freshName(t);
      const at = `${url}?store=${name}`;
      assert.equal(await submitted(t, at, "batch", dies), false);
      const store = struckStore(at);
      t.after(() => store.close());
      await SUBMISSIONS.batch(store);
      await assertBatchIsWhole(store);
    }),
  );
});

test("a process that is killed within one enqueue of many jobs has enqueued all of them or none", async (t) => {
  // declare, three stages, the decision, three inserts.
  const decidedAt = 5;
  const kills = [3, 4, 5, 7];
  await Promise.all(
    kills.map(async (dies) => {
      const { url, name } = await freshName(t);
      const at = `${url}?store=${name}`;
      assert.equal(await submitted(t, at, "jobs", dies), false);
      const store = struckStore(at);
      t.after(() => store.close());
      if (dies < decidedAt) {
        assert.deepEqual(await jobsIn(store), []);
        await store.register(workerRecord("before"));
        assert.equal((await store.turn("before", [], roomFor(0))).nextDueInMs, null);
        await SUBMISSIONS.jobs(store);
      } else {
        // It is not submitted again: turns of a worker go on with it.
        await store.register(workerRecord("goes-on"));
        await untilTrue(
          async () => (await store.turn("goes-on", [], roomFor(0))).nextDueInMs,
          (next) => next === null,
          "all of it is inserted",
        );
      }
      const jobs = await jobsIn(store);
      assert.deepEqual([jobs.length, new Set(jobs.map(({ id }) => id)).size], [JOBS, JOBS]);
      const ran = await runAll(store, ["mail"]);
      assert.deepEqual([ran.length, new Set(ran).size], [JOBS, JOBS]);
    }),
  );
});

test("a server that is killed between two scripts of a submission, and started again, has lost and doubled nothing", async (t) => {
  const server = await ownRedis(t, { fsync: "always" });
  for (const [which, strikes] of [
    ["batch", [2, 4, 5]],
    ["jobs", [2, 4, 6]],
  ] as const)
    for (const strike of strikes) {
      const at = `${server.url()}?store=${which}-${strike}`;
      const struck = struckStore(at, async (call) => {
        if (call !== strike) return;
        await server.kill();
        await server.start();
      });
      await SUBMISSIONS[which](struck).catch(() => {});
      await struck.close();
      const store = struckStore(at);
      t.after(() => store.close());
      await SUBMISSIONS[which](store);
      if (which === "batch") await assertBatchIsWhole(store);
      else {
        const ran = await runAll(store, ["mail"]);
        assert.deepEqual([ran.length, new Set(ran).size], [JOBS, JOBS]);
      }
    }
});
