// One run: producers enqueue, workers work, the killer strikes until it has killed enough, everything ends, and the oracle judges. It is
// over when its time is up, whatever the engine does.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, open } from "../../../src/index.ts";
import { atEnd } from "../../../src/torture/run.ts";
import type { Fault } from "./fault-schedule.ts";
import { type RigFleet, rigFleet, type Role, type WorkerStart } from "./fleet.ts";
import { readHistories, teller, type Told } from "./history.ts";
import { hog, JOBS, poison } from "./jobs.ts";
import { Killer } from "./killer.ts";
import { ledgerOf } from "./ledger.ts";
import { judge, type Judgement } from "./oracle.ts";
import { orderOf, placeOrder } from "./order.ts";
import { HEARTBEAT, KILLS_PER_HOG, KILLS_PER_POISON, LEASE, storeOptions } from "./settings.ts";
import { type Timing, timingOf } from "./timing.ts";

export interface Plan {
  /** The name in the outcome. */
  readonly store: string;
  /** What the processes open; it may lead through a proxy. */
  readonly url: string;
  /** What the judge opens. */
  readonly directUrl: string;
  /** The schema of the run on PostgreSQL; null: the store is a file. */
  readonly schema: string | null;
  /** 0: no process is killed, and each fault strikes `rounds` times. */
  readonly kills: number;
  readonly rounds?: number;
  readonly seed: number;
  readonly places: Readonly<Record<Role, number>>;
  /** How the worker of a place is started; default: all of them open `url`. */
  readonly workerAt?: (number: number) => WorkerStart;
  /** For every process. */
  readonly env?: Readonly<Record<string, string>>;
  /** For the histories and what else belongs to the run. */
  readonly folder: string;
  readonly cli: string;
  readonly faults: readonly Fault[];
  /** What can't be done here, with the reason. */
  readonly notRun: readonly string[];
}

export interface Outcome extends Judgement, Omit<Timing, "violations"> {
  readonly store: string;
  readonly seed: number;
  readonly kills: number;
  readonly zombies: number;
  readonly acts: ReadonlyMap<string, number>;
  /** How often each fault was brought about, by its key. */
  readonly faults: Readonly<Record<string, number>>;
  readonly elapsedMs: number;
  readonly notRun: readonly string[];
}

export interface Progress {
  readonly kills: number;
  readonly zombies: number;
  readonly elapsedMs: number;
}

/** What a kill may take at most, with all that belongs to it. */
const MS_PER_KILL = 3_000;
const DRAIN_MS = 300_000;
const STOP_MS = 20_000;

export async function torture(
  plan: Plan,
  show: { tell(what: string): void; progress(now: Progress): void },
): Promise<Outcome> {
  const began = performance.now();
  // Whatever ends it, it leaves nothing behind that goes on.
  await using end = new AsyncDisposableStack();
  const over = new AbortController();
  end.defer(() => over.abort());
  const limit = AbortSignal.any([AbortSignal.timeout(plan.kills * MS_PER_KILL + DRAIN_MS), over.signal]);
  const histories = join(plan.folder, "histories");
  mkdirSync(histories, { recursive: true });
  const note = teller(histories);
  const ledger = await ledgerOf(plan.schema);
  const engine = end.use(
    await open(plan.directUrl, {
      ...storeOptions(plan.schema),
      jobs: JOBS,
      heartbeat: { interval: HEARTBEAT, lease: LEASE },
      logger: false,
    }),
  );
  await ledger.create(engine);
  const { url, seed, places, cli, workerAt, env } = plan;
  const cache = join(plan.folder, "compiled");
  const fleet: RigFleet = rigFleet({
    url,
    schema: plan.schema,
    seed,
    places,
    cli,
    histories,
    cache,
    ...(workerAt && { workerAt }),
    ...(env && { env }),
    heard: (place, message) => killer.heard(place, message),
    wasBrokenSince: (at) => killer.faultSchedule.during(at, Date.now()).length > 0,
  });
  atEnd(() => fleet.destroy());
  end.defer(() => fleet.destroy());
  const killer = new Killer(engine, fleet, {
    kills: plan.kills,
    seed,
    faults: plan.faults,
    rounds: plan.rounds ?? 1,
    signal: limit,
    tell: (what) => show.tell(what),
    note,
  });
  const told = setInterval(
    () => show.progress({ kills: killer.kills, zombies: killer.zombies, elapsedMs: performance.now() - began }),
    1_000,
  );
  end.defer(() => clearInterval(told));
  fleet.start();
  await Promise.all([killer.run(), plant(engine, killer, plan.kills, limit, note)]);
  await fleet.stop(["producer"], STOP_MS);
  const inTime = await allEnded(engine, fleet, limit);
  await fleet.stop(["worker", "supervisor"], STOP_MS);
  const judgement = await judge(engine, ledger, readHistories(histories));
  const timing = await timingOf(engine, fleet.kills, (from, to) => killer.faultSchedule.during(from, to));
  const late = inTime ? [] : ["not every job had ended when the time was up"];
  return {
    ...judgement,
    ...timing,
    violations: [...late, ...judgement.violations, ...timing.violations, ...killer.violations, ...fleet.unexpected],
    store: plan.store,
    seed: plan.seed,
    kills: killer.kills,
    zombies: killer.zombies,
    acts: killer.acts,
    faults: killer.faultSchedule.counts,
    elapsedMs: performance.now() - began,
    notRun: [...plan.notRun, ...killer.notRun],
  };
}

/** Jobs that end their worker, spread over the run. None if no process is to die. */
async function plant(
  engine: Engine,
  killer: Killer,
  kills: number,
  limit: AbortSignal,
  note: (told: Told) => void,
): Promise<void> {
  if (kills === 0) return;
  const plants = [
    { contract: poison, every: KILLS_PER_POISON },
    { contract: hog, every: KILLS_PER_HOG },
  ].flatMap(({ contract, every }) =>
    Array.from({ length: Math.max(1, Math.floor(kills / every)) }, (_, i) => ({
      at: Math.min(kills / 2, every / 10) + i * every,
      contract,
      id: `${contract.name}-${i + 1}`,
    })),
  );
  plants.sort((a, b) => a.at - b.at);
  for (const { at, contract, id } of plants) {
    while (killer.kills < at && !limit.aborted) await pause(50, undefined, { signal: limit }).catch(() => {});
    while (!limit.aborted && !(await placeOrder(engine, orderOf(contract, {}, { id }), note)))
      await pause(100, undefined, { signal: limit }).catch(() => {});
  }
}

/** Every job has ended, and every death has been found: who was killed last without a job is found by those who are about to leave. */
async function allEnded(engine: Engine, fleet: RigFleet, limit: AbortSignal): Promise<boolean> {
  const killed = new Set(fleet.kills.map(({ workerId }) => workerId));
  while (!limit.aborted) {
    const [counts, workers] = await Promise.all([engine.counts(), engine.workers()]).catch(() => []);
    const isEnded = counts?.every(({ ready, delayed, running }) => ready + delayed + running === 0);
    if (isEnded && workers?.every(({ id }) => !killed.has(id))) return true;
    await pause(100, undefined, { signal: limit }).catch(() => {});
  }
  return false;
}
