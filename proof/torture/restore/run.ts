// Restores under living workers: a producer enqueues and workers work while their store is replaced by an older copy of itself, again and
// again. Workers from before must stop and say why; their places are filled by processes that open what is there now.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { connect } from "../../../src/client.ts";
import { type Engine, open } from "../../../src/index.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { atEnd } from "../../../src/torture/run.ts";
import { type Place, type RigExit, type RigFleet, rigFleet } from "../processes/fleet.ts";
import { readHistories, teller, type Told } from "../processes/history.ts";
import { JOBS, nap } from "../processes/jobs.ts";
import { ledgerOf } from "../processes/ledger.ts";
import { orderOf, placeOrder } from "../processes/order.ts";
import { CONCURRENCY, HEARTBEAT, LEASE, storeOptions } from "../processes/settings.ts";
import { judgeRestores, type Restore, type RestoreJudgement } from "./oracle.ts";
import type { ReplaceableStore } from "./replaceable-store.ts";

export interface RestoreOptions {
  readonly rounds: number;
  readonly seed: number;
  readonly workers: number;
  /** For the histories. */
  readonly folder: string;
}

export interface RestoreOutcome extends RestoreJudgement {
  readonly restores: number;
  /** Workers that lived when the store was replaced, and were left to notice it. */
  readonly oldWorkers: number;
  /** Those that ended on their own, with an error that says why. */
  readonly stoppedLoudly: number;
}

/** "At once", on a busy machine. */
const STOP_WITHIN_MS = 5_000;
/** How long a client from before is left alone after it must have noticed: what it gets acknowledged then has to be there. */
const CLIENT_MS = 1_000;
const LIVE_WITHIN_MS = 30_000;
const ENDED_WITHIN_MS = 120_000;
const LEAVE_MS = 20_000;
const CHECK_EVERY_MS = 60;
/** More naps than there is room for: some are queued in the copy, taken after it was made, and still run when it is restored. */
const NAPS_PER_SLOT = 2;
const NAP_MS = 1_500;

export async function runRestores(where: ReplaceableStore, options: RestoreOptions): Promise<RestoreOutcome> {
  await using end = new AsyncDisposableStack();
  const { seed, workers, folder } = options;
  const histories = join(folder, "histories");
  mkdirSync(histories);
  const note = teller(histories);
  const ledger = await ledgerOf(where.schema);
  await withEngine(where, (engine) => ledger.create(engine));
  let isRestoring = false;
  const fleet = rigFleet({
    url: where.url,
    schema: where.schema,
    seed,
    places: { worker: workers, producer: 1, supervisor: 0 },
    histories,
    cache: join(folder, "compiled"),
    cli: "",
    heard: () => {},
    // A process that is in the middle of its start when the store is replaced says so, and ends.
    wasBrokenSince: () => isRestoring,
  });
  atEnd(() => fleet.destroy());
  end.defer(() => fleet.destroy());
  fleet.start();
  const chance = new Chance(seed);
  const restores: Restore[] = [];
  const ends: (RigExit | null)[] = [];
  const violations: string[] = [];
  for (let round = 1; round <= options.rounds; round++) {
    if (!(await until(() => fleet.missing() === 0 && liveWorkers(fleet).length === workers, LIVE_WITHIN_MS)))
      violations.push(`not every worker was at work before restore ${round}`);
    await enqueueNaps(where, round, workers * CONCURRENCY * NAPS_PER_SLOT, note);
    const copyBeganAt = Date.now();
    await where.copies.take();
    await pause(chance.whole(200, NAP_MS));
    isRestoring = true;
    const old = liveWorkers(fleet).map(oldWorkerOf);
    await where.copies.putBack();
    const restoredAt = Date.now();
    process.stderr.write(`restore ${round}: a copy that is ${restoredAt - copyBeganAt} ms old is in place\n`);
    const noticedBy = restoredAt + where.noticeMs;
    restores.push({ copyBeganAt, restoredAt, noticedBy });
    for (const { name, exit } of await replaceWorkers(fleet, old)) {
      ends.push(exit);
      if (exit === null) violations.push(`${name} did not stop within ${STOP_WITHIN_MS} ms after restore ${round}`);
      else if (!isLoud(exit)) violations.push(`${name} ended after restore ${round} without an error that says why`);
    }
    await until(() => Date.now() > noticedBy + CLIENT_MS, Infinity);
    fleet.kill(fleet.places("producer"));
    await until(() => fleet.missing() === 0, LIVE_WITHIN_MS);
    isRestoring = false;
  }
  await fleet.stop(["producer"], LEAVE_MS);
  await withEngine(where, async (engine) => {
    if (!(await until(() => hasEnded(engine), ENDED_WITHIN_MS)))
      violations.push("not every job had ended when the time was up");
  });
  await fleet.stop(["worker"], LEAVE_MS);
  const judgement = await withEngine(where, (engine) =>
    judgeRestores(engine, ledger, readHistories(histories), restores),
  );
  return {
    restores: restores.length,
    oldWorkers: ends.length,
    stoppedLoudly: ends.filter((exit) => exit !== null && isLoud(exit)).length,
    ...judgement,
    violations: [...violations, ...judgement.violations, ...fleet.unexpected],
  };
}

/** A worker that lived before a restore: its place may be another's soon. */
interface OldWorker {
  readonly place: Place;
  readonly pid: number;
  readonly name: string;
}

function oldWorkerOf(place: Place): OldWorker {
  return { place, pid: place.pid, name: `worker ${place.workerId}` };
}

/**
 * Kills one worker that is still there, so that a process opens the restored store while the others live, and waits until those have ended.
 * Who does not has no exit here, and is killed.
 */
async function replaceWorkers(
  fleet: RigFleet,
  old: readonly OldWorker[],
): Promise<{ readonly name: string; readonly exit: RigExit | null }[]> {
  const exitOf = ({ pid }: OldWorker): RigExit | null => fleet.exits.find((exit) => exit.pid === pid) ?? null;
  const victim = old.find(({ place, pid }) => place.pid === pid && place.state === "live");
  if (victim) fleet.kill([victim.place]);
  const others = old.filter((worker) => worker !== victim);
  await until(() => others.every((worker) => exitOf(worker) !== null), STOP_WITHIN_MS);
  const left = others.filter((worker) => exitOf(worker) === null);
  const ends = others.map((worker) => ({ name: worker.name, exit: exitOf(worker) }));
  fleet.kill(left.map(({ place }) => place));
  return ends;
}

function isLoud({ code, said }: RigExit): boolean {
  return code !== null && code !== 0 && said !== "";
}

function liveWorkers(fleet: RigFleet): readonly Place[] {
  return fleet.places("worker").filter(({ state }) => state === "live");
}

async function enqueueNaps(
  where: ReplaceableStore,
  round: number,
  count: number,
  note: (told: Told) => void,
): Promise<void> {
  const client = await connect(where.url, { ...storeOptions(where.schema), jobs: JOBS });
  try {
    for (let i = 1; i <= count; i++)
      await placeOrder(client, orderOf(nap, { ms: NAP_MS }, { id: `nap-${round}-${i}` }), note);
  } finally {
    await client.close();
  }
}

/** A new one each time: an engine from before a restore is one more that has to stop. */
async function withEngine<T>(where: ReplaceableStore, work: (engine: Engine) => Promise<T>): Promise<T> {
  await using engine = await open(where.url, {
    ...storeOptions(where.schema),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
  });
  return await work(engine);
}

async function hasEnded(engine: Engine): Promise<boolean> {
  const counts = await engine.counts();
  return counts.every(({ ready, delayed, running }) => ready + delayed + running === 0);
}

/** False: not within this time. */
async function until(holds: () => boolean | Promise<boolean>, withinMs: number): Promise<boolean> {
  const deadline = performance.now() + withinMs;
  while (!(await holds())) {
    if (performance.now() > deadline) return false;
    await pause(CHECK_EVERY_MS);
  }
  return true;
}
