// The batch arrangement that docs/requirements.md maps, with its own timing: workers on one store and the virtual clock, where only heartbeats say who
// is alive. Real processes are killed in killed.test.ts and stopping.test.ts.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { runBlock } from "../../src/batches/block-runner.ts";
import type { AnyBatch } from "../../src/batches/contract.ts";
import { engineSettings } from "../../src/engine/options.ts";
import { batch, job, open, RELAXED_HEARTBEAT } from "../../src/index.ts";
import { doneKind, NO_ENDS } from "../../src/job/batches.ts";
import { Maintenance } from "../../src/recovery/maintenance.ts";
import type { Probe } from "../../src/stores/liveness.ts";
import type { Store } from "../../src/stores/port.ts";
import { batchDraft, blocksOf } from "../../src/testing/conformance/batch-fixture.ts";
import { TestWorker, kind, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { type VirtualClock, virtualClock } from "../../src/testing/index.ts";
import type { BlockAttempt } from "../../src/worker/run.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { fixedRandom } from "../support/fixed-random.ts";
import { freshName } from "../support/redis.ts";
import { Recorder } from "../support/samples.ts";

const PRESET = engineSettings({ heartbeat: RELAXED_HEARTBEAT }).times;
const SECOND = 1_000;

interface Fleet {
  readonly store: Store;
  readonly clock: VirtualClock;
  readonly path: string;
  readonly worker: (id: string) => Promise<TestWorker>;
  /** The maintenance of this worker, which beats and watches from now on. */
  readonly watch: (id: string) => Promise<Maintenance>;
}

async function fleet(t: TestContext): Promise<Fleet> {
  const clock = virtualClock();
  const folder = await mkdtemp(join(tmpdir(), "outlive-batches-"));
  const path = join(folder, "jobs.db");
  const store = await openStore(clock, path);
  const watching: Maintenance[] = [];
  t.after(async () => {
    for (const one of watching) await one.stop();
    await store.close();
    await rm(folder, { recursive: true });
  });
  await store.declare([kind("mail", { timeoutMs: null }), kind(doneKind("mail"))]);
  let ids = 0;
  return {
    store,
    clock,
    path,
    async worker(id) {
      const { epoch } = await store.register(workerRecord(id, { leaseMs: PRESET.leaseMs }));
      return new TestWorker(store, id, epoch);
    },
    async watch(id) {
      const now = clock.now();
      const mono = clock.mono();
      // Nothing but heartbeats: no lock can be probed, and no kernel asked.
      const liveness = {
        take: () => Promise.reject(new Error("not asked")),
        probe: async (): Promise<Probe> => "unknown",
        clean: async () => true,
      } as const;
      const maintenance = new Maintenance(
        {
          store,
          liveness,
          clock,
          random: fixedRandom(),
          events: new Recorder(),
          newId: () => `id-${++ids}`,
          processState: () => "unknown",
        },
        {
          worker: id,
          bootId: "boot-1",
          times: PRESET,
          retention: { finishedMs: 86_400_000, incidentsMs: 86_400_000 },
          registered: { now, sentMono: mono, receivedMono: mono },
          schemaVersion: 1_000,
        },
        { loopLagMs: () => 0, beaten: () => {}, disowned: () => {}, unfit: () => {}, kill: () => {} },
      );
      watching.push(maintenance);
      maintenance.start();
      return maintenance;
    },
  };
}

/** One batch of ten rows, which `dead` holds with the first five marked. */
async function heldBatch({ store, worker }: Fleet): Promise<TestWorker> {
  await store.batches!.open(batchDraft("b", { blockRows: 10 }));
  await store.batches!.append("b", 1, blocksOf("b", [10]));
  await store.batches!.seal("b", 1);
  const dead = await worker("dead");
  const job = await dead.next();
  await dead.record(job, { type: "rows", ends: { ...NO_ENDS, succeeded: [0, 1, 2, 3, 4] } });
  return dead;
}

async function stateOf(store: Store): Promise<string> {
  return (await store.inspect.get("b:1:0"))!.state;
}

for (const offset of [0, 1, 14, 29])
  test(`BR-006 BR-007 BR-008 BR-021 BR-030 with heartbeats of 30 s, a lease of 60 s and a sweep of 60 s a death is found after 60 s and within 120 s: killed ${offset} s after its last sign of life`, async (t) => {
    const here = await fleet(t);
    const { store, clock } = here;
    await here.worker("heir");
    await here.watch("heir");
    await heldBatch(here);
    const dies = await here.watch("dead");
    // It lives: its heartbeats keep its block for longer than the lease.
    await clock.advance(150 * SECOND);
    assert.equal(await stateOf(store), "running");
    await clock.advance(offset * SECOND);
    await dies.stop();
    let seconds = 0;
    while ((await stateOf(store)) === "running") {
      assert.ok(seconds < 120, "it is found within 120 s");
      await clock.advance(SECOND);
      seconds++;
    }
    assert.equal(await stateOf(store), "queued");
    assert.ok(seconds + offset >= 60, `a lease has passed since its last sign of life: ${seconds} s`);
  });

test("BR-030 the preset has the timing of that arrangement", () => {
  const { heartbeatMs, leaseMs, sweepMs } = PRESET;
  assert.deepEqual([heartbeatMs, leaseMs, sweepMs], [30 * SECOND, 60 * SECOND, 60 * SECOND]);
});

test("BR-030 an interval that is not well below the lease is refused", () => {
  assert.throws(() => engineSettings({ heartbeat: { interval: "60s", lease: "60s" } }), /heartbeat\.lease/);
});

test("BR-018 BR-031 the ownership of rows has no time of its own: after an outage of ten minutes they are found", async (t) => {
  const here = await fleet(t);
  const { store, clock } = here;
  await heldBatch(here);
  // No process is there that beats or watches, and a set of rows with a time of 180 s would have expired three times.
  await clock.advance(600 * SECOND);
  assert.equal(await stateOf(store), "running");
  const heir = await here.worker("heir");
  await here.watch("heir");
  await clock.advance(120 * SECOND);
  const job = await heir.next();
  assert.deepEqual([job.lease.jobId, job.block?.marks], ["b:1:0", "1111100000"]);
});

test("BR-002 BR-005 BR-011 BR-012 BR-020 workers are found in the store's own table, also after it was closed, and one that was recovered is not looked at again", async (t) => {
  const here = await fleet(t);
  await heldBatch(here);
  const again = await openStore(here.clock, here.path);
  t.after(() => again.close());
  assert.deepEqual(
    (await again.workers({})).map(({ id, heldCount }) => [id, heldCount]),
    [["dead", 1]],
  );
  await here.worker("heir");
  await here.worker("third");
  await here.watch("heir");
  await here.watch("third");
  await here.clock.advance(120 * SECOND);
  assert.equal(await stateOf(again), "queued");
  assert.deepEqual(
    (await again.workers({})).map(({ id }) => id),
    ["heir", "third"],
  );
  const incidents = await again.inspect.incidents(10, null);
  assert.deepEqual(
    incidents.map(({ worker }) => worker),
    ["dead"],
    "one of the two recovered it, once",
  );
});

test("BR-015 BR-017 the end of a row whose mark could not be written is written with the end of its attempt", async () => {
  const careful = batch("careful", { mark: "row" }).handle(() => {}) as unknown as AnyBatch;
  const tried: number[][] = [];
  const run = {
    job: { counters: { crashes: 0 } },
    isInterrupted: false,
    pendingRows: null,
    endRows: async ({ succeeded }: { succeeded: number[] }) => {
      tried.push([...succeeded]);
      throw new Error("the store is away");
    },
  } as unknown as BlockAttempt;
  const { settings, handlers } = careful;
  const deps = { clock: virtualClock(), settings, handlers, shared: undefined, context: null, parse: null };
  const block = { batch: "b", round: 1, number: 0, lines: [1, 2], rows: ["x", "y"] };
  await assert.rejects(async () => runBlock(deps, block, run), /the store is away/);
  assert.deepEqual(tried, [[0]], "no row begins before the end of the one before it is durable");
  assert.deepEqual(run.pendingRows!()?.succeeded, [0]);
});

test("BR-027 BR-028 a worker that still holds rows does not leave the table of workers, so that they are found", async (t) => {
  const here = await fleet(t);
  const dead = await heldBatch(here);
  assert.equal(await here.store.leave(dead.id), false);
  const heir = await here.worker("heir");
  await here.watch("heir");
  await here.clock.advance(120 * SECOND);
  const job = await heir.next();
  assert.equal(job.block?.marks, "1111100000");
  await heir.settle(SETTLE.succeed(job));
  const [row] = await here.store.batches!.get(["b"]);
  assert.equal(row!.sums.succeeded, 10);
  assert.equal(await here.store.leave(heir.id), true, "one that holds nothing leaves");
  assert.deepEqual(
    (await here.store.workers({})).map(({ id }) => id),
    [],
  );
});

test("BR-032 all keys of a store on Redis are in one slot of a cluster", async (t) => {
  const { url, name, call } = await freshName(t);
  const ping = job("ping").handle(() => {});
  const engine = await open(`${url}?store=${name}`, { jobs: [ping], logger: false });
  t.after(() => engine.close({ grace: "0ms" }));
  await engine.start();
  await engine.result((await engine.enqueue(ping, null)).id);
  const keys = (await call("KEYS", `*${name}*`)) as string[];
  assert.ok(keys.length > 3, `${keys.length} keys`);
  assert.deepEqual(
    keys.filter((key) => !key.startsWith(`o:{${name}}:`)),
    [],
  );
});
