// A worker of fast jobs is killed with SIGKILL while it holds jobs that it has claimed ahead. Nothing is lost, no end is written twice, and what it held runs
// again, whether it had started or not. The worker dies at a job of the test's choice, three times.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Engine, JobInfo } from "../../src/index.ts";
import { MAX_AHEAD } from "../../src/worker/ahead.ts";
import { jobs as postgresJobs } from "../postgres/jobs.ts";
import { PostgresPlace } from "../postgres/place.ts";
import { jobs as sqliteJobs, tick } from "../support/jobs.ts";
import { type Child, Place, untilTrue } from "../support/processes.ts";

const ROUNDS = 12;
const TICKS = 250;
const TRANSFERS = 10;
/** In the middle of these rounds a job kills its worker. By then the worker has measured how fast its handlers are. */
const KILLS: readonly number[] = [2, 5, 8];
const CONCURRENCY = 4;
const WORKER = { concurrency: CONCURRENCY, only: ["tick", "transfer"] } as const;

interface Stage {
  readonly engine: Engine;
  readonly transfer: (typeof sqliteJobs)[number] | (typeof postgresJobs)[number];
  readonly child: () => Child;
  /** How often each effect happened. */
  readonly effects: () => Map<string, number>;
  /** How often each job is in the ledger. */
  readonly ledger: () => Promise<Map<string, number>>;
}

const transferOf = <J extends { readonly name: string }>(jobs: readonly J[]): J =>
  jobs.find(({ name }) => name === "transfer")!;

const STAGES: Readonly<Record<string, (t: TestContext) => Promise<Stage>>> = {
  SQLite: async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    await place.ledger(engine);
    return {
      engine,
      transfer: transferOf(sqliteJobs),
      child: () => place.child(WORKER),
      effects: () => place.effects(),
      ledger: async () => {
        const counts = new Map<string, number>();
        for (const { job } of await place.ledgerRows(engine)) counts.set(job, (counts.get(job) ?? 0) + 1);
        return counts;
      },
    };
  },
  PostgreSQL: async (t) => {
    const place = await PostgresPlace.shared(t);
    return {
      engine: await place.engine(),
      transfer: transferOf(postgresJobs),
      child: () => place.child(WORKER),
      effects: () => place.effects(),
      ledger: () => place.ledgerRows(),
    };
  },
};

for (const [store, stage] of Object.entries(STAGES))
  test(`on ${store} a worker that is killed with jobs claimed ahead loses none of them and ends none twice`, async (t) => {
    const { engine, transfer, child, effects, ledger } = await stage(t);
    for (let round = 0; round < ROUNDS; round++) {
      const kills = (n: number): boolean => KILLS.includes(round) && n === TICKS / 2;
      await engine.enqueueMany(
        tick,
        Array.from({ length: TICKS }, (_, n) => ({ n, kills: kills(n) })),
      );
      await engine.enqueueMany(
        transfer as never,
        Array.from({ length: TRANSFERS }, (_, n) => ({ n })),
      );
    }
    for (const _ of KILLS) assert.equal((await child().exited).signal, "SIGKILL");
    child();
    await untilTrue(
      async () => (await engine.counts()).filter(({ kind }) => (WORKER.only as readonly string[]).includes(kind)),
      (kinds) => kinds.every(({ ready, delayed, running }) => ready + delayed + running === 0),
      "all have ended",
    );

    const all = await allJobs(engine);
    assert.equal(all.length, ROUNDS * (TICKS + TRANSFERS), "nothing is lost");
    assert.deepEqual(
      all.filter(({ state, counters }) => state !== "succeeded" || counters.blamed > 0),
      [],
      "a first crash costs a job nothing",
    );
    const transfers = all.filter(({ kind }) => kind === "transfer");
    assert.deepEqual(await ledger(), new Map(transfers.map(({ id }) => [id, 1])), "each commit happened once");

    // Each attempt that started has one line: a second start under the same fence would add to its count.
    const started = effects();
    const ticks = all.filter(({ kind }) => kind === "tick");
    const runs = ({ id, attempt }: JobInfo): number[] =>
      Array.from({ length: attempt }, (_, at) => started.get(`tick ${id} attempt ${at + 1}`) ?? 0);
    assert.ok(ticks.every((one) => runs(one).every((count) => count <= 1) && runs(one).at(-1) === 1));
    const beyond = [...started.keys()].length - ticks.reduce((sum, one) => sum + runs(one).filter(Boolean).length, 0);
    assert.equal(beyond, 0, "no attempt started after the end of its job");
    const crashed = ticks.filter(({ counters }) => counters.crashes > 0);
    const waited = crashed.filter((one) => runs(one).includes(0));
    const ranAgain = crashed.length - waited.length;
    t.diagnostic(`${crashed.length} jobs were held at the kills, ${waited.length} of them had not started`);
    assert.ok(waited.length > 0, "the kills met jobs that were claimed ahead and had not started");
    assert.ok(ranAgain >= KILLS.length, "those that killed their worker ran again");
    assert.ok(ranAgain <= KILLS.length * (CONCURRENCY + MAX_AHEAD), `${ranAgain} jobs that had started ran again`);
  });

async function allJobs(engine: Engine): Promise<JobInfo[]> {
  const jobs: JobInfo[] = [];
  for (let after: string | undefined; ;) {
    const page = await engine.list({ limit: 1_000, ...(after !== undefined && { after }) });
    jobs.push(...page.jobs);
    if (page.next === null) return jobs;
    after = page.next;
  }
}
