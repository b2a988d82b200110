// Isolation by halving with real processes: after two kills of workers that held hundreds of long jobs, all of them run again at once,
// next to each other; and the job that kills its workers is found. A killed worker is replaced, as `outlive work` does.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Engine } from "../../src/index.ts";
import { PostgresPlace } from "../postgres/place.ts";
import { poison, slow } from "../support/jobs.ts";
import { type Child, Place, untilState, untilTrue } from "../support/processes.ts";

const JOBS = 1_000;
/** So long after the kill all jobs run again, at the latest. */
const RUN_AGAIN_MS = 5_000;

interface Stage {
  readonly engine: Engine;
  readonly child: () => Child;
}

const STAGES: Readonly<Record<string, (t: TestContext) => Promise<Stage>>> = {
  SQLite: async (t) => {
    const place = new Place(t);
    return { engine: await place.engine(), child: () => place.child({ concurrency: JOBS }) };
  },
  PostgreSQL: async (t) => {
    const place = await PostgresPlace.shared(t);
    return { engine: await place.engine(), child: () => place.child({ concurrency: JOBS }) };
  },
};

for (const [store, stage] of Object.entries(STAGES))
  test(`on ${store} 1,000 long jobs all run again within 5 s after each of two kills, and none is blamed`, async (t) => {
    const { engine, child } = await stage(t);
    const alive = new Map<string, Child>();
    const start = async (): Promise<void> => {
      const worker = child();
      alive.set(String((await worker.untilFact("working"))["worker"]), worker);
    };
    const held = async (): Promise<readonly (readonly [worker: string, held: number])[]> =>
      (await engine.workers()).flatMap(({ id, heldCount }) => (alive.has(id) ? [[id, heldCount] as const] : []));
    const untilAllRun = (): Promise<unknown> =>
      untilTrue(held, (workers) => workers.reduce((sum, [, count]) => sum + count, 0) === JOBS, "all run");
    /** Kills the worker that holds the most, and starts another in its place. */
    const kill = async (): Promise<void> => {
      const [[id] = [""]] = (await held()).toSorted(([, a], [, b]) => b - a);
      const worker = alive.get(id)!;
      alive.delete(id);
      const began = performance.now();
      worker.kill("SIGKILL");
      const started = start();
      await untilAllRun();
      const tookMs = Math.round(performance.now() - began);
      t.diagnostic(`all ran again ${tookMs} ms after the kill`);
      assert.ok(tookMs <= RUN_AGAIN_MS, `${tookMs} ms until all ran again`);
      await started;
    };
    await start();
    await engine.enqueueMany(
      slow,
      Array.from({ length: JOBS }, () => ({ ms: 600_000 })),
    );
    await untilAllRun();
    await Promise.all([start(), start()]);

    const running = async () => (await engine.list({ state: "running", limit: JOBS })).jobs;
    await kill();
    assert.ok(
      (await running()).every(({ together }) => together === 0),
      "a first crash costs nothing",
    );
    await kill();
    const jobs = await running();
    assert.equal(jobs.length, JOBS);
    assert.ok(jobs.every(({ counters }) => counters.blamed === 0));
    assert.ok(jobs.some(({ together }) => together > 0 && together <= JOBS / 2));
  });

for (const [store, stage] of Object.entries(STAGES))
  test(`on ${store} the job that kills its worker is found among 50 after six deaths, and quarantined after three more`, async (t) => {
    const { engine, child } = await stage(t);
    const { id } = await engine.enqueue(poison, { how: "SIGKILL" });
    await engine.enqueueMany(
      slow,
      Array.from({ length: 49 }, () => ({ ms: 50 })),
    );
    while ((await engine.get(id))?.state !== "quarantined") {
      const worker = child();
      await Promise.race([worker.exited, untilState(engine, id, "quarantined")]);
    }
    const { crashes, blamed } = (await engine.get(id))!.counters;
    // 50 twice, 25, 12, 6 and 3 died together, and then it was the only suspect of its worker.
    assert.ok(crashes <= 9, `${crashes} workers died`);
    assert.equal(blamed, 3);
    child();
    await untilTrue(
      () => engine.counts(),
      (kinds) => kinds.some(({ kind, succeeded }) => kind === "slow" && succeeded === 49),
      "the others have ended",
    );
    const { jobs } = await engine.list({ kind: "slow", limit: 50 });
    assert.ok(jobs.every(({ counters }) => counters.blamed === 0));
  });
