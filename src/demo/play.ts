// One run from the first job to the outcome: enqueue, work, kill, wait until everything has ended, audit. It is over when the time
// is up, whatever the engine does.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, open } from "../index.ts";
import { audit, type Audit } from "./audit.ts";
import { openBank } from "./bank.ts";
import { Chance } from "./chance.ts";
import { atEnd } from "./clean-up.ts";
import * as facts from "./facts.ts";
import { Feeder } from "./feeder.ts";
import { Fleet, type Kill } from "./fleet.ts";
import { JOBS } from "./jobs.ts";
import { narrate } from "./narrator.ts";
import { Nemesis } from "./nemesis.ts";
import { Observer } from "./observer.ts";
import { setScene, strike } from "./scene.ts";
import type { DemoOptions } from "./options.ts";
import { percentiles, type Recovery } from "./recoveries.ts";
import type { Screen } from "./screen.ts";
import { CONCURRENCY, HEARTBEAT, LEASE, UNDER_FIRE } from "./settings.ts";
import type { Outcome } from "./summary.ts";
import { sceneOptions, useVault, vaultAt } from "./vault.ts";

/** The share of the workers' time that deaths and recoveries leave; jobs take as long as makes them last while the nemesis does. */
const ALIVE = 0.45;
const STOP_MS = 10_000;

interface Cast {
  readonly engine: Engine;
  readonly fleet: Fleet;
  readonly observer: Observer;
  readonly feeder: Feeder;
  readonly nemesis: Nemesis;
}

export async function play(options: DemoOptions, screen: Screen): Promise<Outcome> {
  const limit = AbortSignal.timeout(timeLimitMs(options));
  const began = performance.now();
  const cast = await gather(options, screen, limit);
  const { engine, fleet, observer, feeder, nemesis } = cast;
  await feeder.fill();
  const startedAt = Date.now();
  fleet.start();
  const over = new AbortController();
  const watching = observer.watch(over.signal, (view) => screen.show(view));
  await Promise.all([feeder.stream(() => nemesis.progress), nemesis.run()]);
  const inTime = await allEnded(engine, fleet, limit);
  await fleet.stop(STOP_MS);
  over.abort();
  await watching;
  screen.show(await observer.look());
  screen.end();
  const found = await audit(engine, feeder.promised);
  const outcome = await judge(cast, options, found, inTime, startedAt);
  await strike(engine, options);
  await engine.close();
  return { ...outcome, elapsedMs: performance.now() - began };
}

/** After this long the run is a failure. */
export function timeLimitMs({ seconds }: DemoOptions): number {
  return seconds * 2_000 + 30_000;
}

async function gather(options: DemoOptions, screen: Screen, limit: AbortSignal): Promise<Cast> {
  const { jobs, workers, seed } = options;
  const folder = makeFolder(options);
  const scene = await setScene(options, folder);
  const engine = await open(scene.url, {
    ...sceneOptions(scene),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
  });
  useVault(engine, vaultAt(scene));
  await openBank(engine);
  const fleet: Fleet = new Fleet(workers, scene, join(folder, "compiled"), {
    heard(place, event) {
      const line = narrate(fleet, place, event);
      if (line) screen.told(observer.note(line.text, line.mood));
    },
    poisoned: (place) => screen.told(observer.note(`worker ${place.number} was killed by the job it ran`, "bad")),
  });
  atEnd(() => fleet.destroy());
  const observer = new Observer(engine, fleet);
  const fireMs = options.seconds * 1_000 * UNDER_FIRE;
  const workMs = Math.min(250, (workers * CONCURRENCY * fireMs * ALIVE) / jobs);
  const feeder = new Feeder(engine, new Chance(seed), { jobs, workMs, signal: limit });
  const nemesis = new Nemesis(engine, fleet, new Chance(seed + 1), {
    forMs: fireMs,
    signal: limit,
    tell: (what) => screen.told(observer.note(what, "bad")),
  });
  return { engine, fleet, observer, feeder, nemesis };
}

/** A folder of its own under the system's temporary one, removed in every case unless it is to be kept. */
function makeFolder({ keep, store }: DemoOptions): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-demo-"));
  if (keep && store === "sqlite")
    atEnd(() => void process.stderr.write(`The database is kept: ${join(folder, "bank.db")}\n`));
  else atEnd(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 }));
  return folder;
}

/** Every job has ended and every death has been found: who died without a job just now is found by those who are about to leave. */
async function allEnded(engine: Engine, fleet: Fleet, limit: AbortSignal): Promise<boolean> {
  while (!limit.aborted) {
    const [counts, workers] = await Promise.all([engine.counts(), engine.workers()]);
    const lives = new Set(fleet.places.filter(({ state }) => state !== "dead").map(({ pid }) => pid));
    const isEnded = counts.every(({ ready, delayed, running }) => ready + delayed + running === 0);
    if (isEnded && workers.every(({ pid }) => lives.has(pid))) return true;
    await pause(50, undefined, { signal: limit }).catch(() => {});
  }
  return false;
}

async function judge(
  { engine, fleet, observer, nemesis }: Cast,
  options: DemoOptions,
  found: Audit,
  inTime: boolean,
  startedAt: number,
): Promise<Omit<Outcome, "elapsedMs">> {
  const recoveries = await observer.recoveries.of(fleet.kills);
  const atOnce = ({ at }: Kill): boolean => nemesis.massacreAt !== null && Math.abs(at - nemesis.massacreAt) < 50;
  const workedMs = Math.max(1, (await facts.lastEnd(engine)) - startedAt);
  return {
    store: options.store,
    seed: options.seed,
    audit: found,
    violations: [
      ...(inTime ? [] : [`not every job had ended after ${timeLimitMs(options) / 1_000} s`]),
      ...found.verdicts.flatMap((verdict) => verdict.violations),
      ...fleet.unexpected,
      ...recoveries.flatMap(unrecovered),
      ...unshown(nemesis, fleet),
    ],
    kills: fleet.kills.length,
    killedAtOnce: fleet.kills.filter(atOnce).length,
    poisoned: fleet.poisoned,
    freeze: nemesis.frozen,
    zombies: await facts.zombies(engine),
    staleWritesRejected: await facts.rejectedWrites(engine),
    keptSteps: await facts.keptSteps(engine),
    recoveredJobs: recoveries.reduce((sum, recovery) => sum + recovery.jobs, 0),
    killsWithJobs: recoveries.filter((recovery) => recovery.jobs > 0).length,
    recoveryMs: percentiles(recoveries),
    othersAliveMs: percentiles(recoveries.filter(({ kill }) => !atOnce(kill))),
    allDeadMs: percentiles(recoveries.filter(({ kill }) => atOnce(kill))),
    jobsPerSecond: Math.round(found.succeeded / (workedMs / 1_000)),
    report: await oneReport(engine),
  };
}

/** What a kill left behind that nobody took up. */
function unrecovered({ kill, incidents, waiting }: Recovery): string[] {
  if (incidents.length === 0)
    return kill.workerId === null ? [] : [`worker ${kill.workerId} was killed, and there is no incident of its death`];
  return waiting.map((id) => `job ${id} was recovered from worker ${kill.workerId ?? kill.pid} and never ran again`);
}

/** What the demo set out to show and did not. */
function unshown({ massacreAt, frozen }: Nemesis, fleet: Fleet): string[] {
  const missing: string[] = [];
  if (fleet.kills.length === 0) missing.push("no worker was killed");
  if (massacreAt === null) missing.push("the workers were never killed at the same moment");
  if (!frozen) missing.push("no worker could be frozen while it held jobs");
  else if (frozen.takenAt === null)
    missing.push(`the jobs of frozen worker ${frozen.workerId} were not taken from it when its lease was over`);
  else if (frozen.rejected === 0) missing.push(`no write of zombie ${frozen.workerId} was refused`);
  return missing;
}

/** Of the incidents that put jobs back, the largest. */
async function oneReport(engine: Engine): Promise<string | null> {
  const incidents = await engine.incidents({ limit: 1_000 });
  const [largest] = [...incidents].sort((a, b) => b.jobCount - a.jobCount);
  return largest ? ((await engine.report(largest.id))?.text ?? null) : null;
}
