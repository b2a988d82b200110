// One run from the first job to the outcome: enqueue, work, kill, wait until everything has ended, audit. It ends when
// its time is up, whatever the engine does.
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { type Engine, type EngineEvent, open } from "../index.ts";
import { programFile } from "../platform/program-file.ts";
import { audit, type Audit, type Percentiles, percentiles, type Recovery, RecoveryTimes } from "./audit.ts";
import { Fleet, type Place } from "./fleet.ts";
import { Chance, Killer, type KillerEnd, type Zombie } from "./killer.ts";
import type { ScratchStore } from "./scratch-store.ts";
import {
  ACCOUNTS,
  checkedTransfer,
  CONCURRENCY,
  HEARTBEAT,
  JOBS,
  LEASE,
  poison,
  storeOptions,
  tablesOf,
  transfer,
  type Transfer,
  writeTo,
} from "./tables.ts";

export interface Plan {
  readonly where: ScratchStore;
  readonly workers: number;
  readonly seed: number;
  readonly end: KillerEnd;
  readonly freezes: number;
  /** The approximate time between two kills. */
  readonly killEveryMs: number;
  /** How long a transfer works on average. */
  readonly workMs: number;
  /** The total number of transfers; null: as many as keep the workers busy. */
  readonly transfers: number | null;
  /** A run that takes longer has failed. */
  readonly timeLimitMs: number;
}

/** Receives what happens during a run. */
export interface Observer {
  /** Before anything is enqueued. The engine is not one of the workers' engines. */
  began(engine: Engine, fleet: Fleet): void;
  /** What the killer did. */
  killed(what: string): void;
  /** An event of the engine in a worker process. */
  heard(place: Place, event: EngineEvent): void;
  /** A job killed the worker in this place. */
  poisoned(place: number): void;
  /** No process is left; the audit comes next. */
  ended(): Promise<void>;
}

/** Percentiles, with the number of kills behind them. */
export interface Timed extends Percentiles {
  readonly timed: number;
}

export interface Outcome {
  readonly store: string;
  readonly seed: number;
  readonly elapsedMs: number;
  readonly audit: Audit;
  /** One sentence per violation; empty: all promises held. */
  readonly violations: readonly string[];
  readonly kills: number;
  readonly killedAtOnce: number;
  /** Workers that the poison job killed. */
  readonly poisoned: number;
  readonly zombies: readonly Zombie[];
  /** Jobs of killed workers. */
  readonly recoveredJobs: number;
  /** Kills of workers that held jobs. */
  readonly killsWithJobs: number;
  /** From a kill to the proof of the death, and to the last job of the worker running again. */
  readonly detectMs: Percentiles;
  readonly resumeMs: { readonly ofAll: Timed; readonly othersAlive: Timed; readonly nobodyLeft: Timed };
  readonly jobsPerSecond: number;
  /** The text of one incident's report. */
  readonly report: string | null;
}

/** The share of the workers' time that deaths and recoveries leave for work. */
export const ALIVE = 0.45;
/**
 * The share of a fixed number of transfers enqueued before the first kill, and the share before the poison job, so that
 * it has others around it.
 */
const BEFORE_KILLS = 0.5;
const BEFORE_POISON = 0.05;
const STOP_MS = 10_000;

export async function run(plan: Plan, observer: Observer): Promise<Outcome> {
  const began = performance.now();
  const { where, workers, seed } = plan;
  const { schema, url, scratch } = where;
  const limit = AbortSignal.timeout(plan.timeLimitMs);
  writeTo(url, schema);
  const tables = await tablesOf(url, schema);
  await using engine = await open(url, {
    ...storeOptions(schema),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
  });
  await tables.create(engine);
  const fleet: Fleet = new Fleet({
    places: { worker: workers },
    cache: join(scratch.folder, "compiled"),
    programOf: () => [fileURLToPath(programFile("torture/worker")), schema === null ? [url] : [url, schema]],
    heard(place, { event }) {
      if (!event) return;
      killer.heard(place, event);
      observer.heard(place, event);
    },
    mayEnd: ({ signal }) => signal === "SIGKILL",
    exited({ number, signal, killedByUs }) {
      if (signal === "SIGKILL" && !killedByUs) observer.poisoned(number);
    },
  });
  atEnd(() => fleet.destroy());
  const killer = new Killer(engine, fleet, tables, new Chance(seed + 1), {
    end: plan.end,
    everyMs: plan.killEveryMs,
    freezes: plan.freezes,
    signal: limit,
    tell: (what) => observer.killed(what),
  });
  const producer = new Producer(engine, new Chance(seed), { workMs: plan.workMs, signal: limit });
  observer.began(engine, fleet);
  const transfers = plan.transfers ?? workers * CONCURRENCY * 4;
  await producer.enqueueTransfers(Math.floor(transfers * BEFORE_POISON));
  await producer.enqueuePoison();
  await producer.enqueueTransfers(Math.floor(transfers * BEFORE_KILLS));
  const startedAt = Date.now();
  fleet.start();
  await Promise.all([producer.stream(pace(plan, producer, killer)), killer.run()]);
  const inTime = await allEnded(engine, fleet, limit);
  await fleet.stop(["worker"], STOP_MS);
  await observer.ended();
  const found = await audit(engine, tables, producer.promised);
  const recoveries = await new RecoveryTimes(engine).of(fleet.kills);
  const poisoned = fleet.exits.filter(({ signal, killedByUs }) => signal === "SIGKILL" && !killedByUs).length;
  return {
    store: where.store,
    seed,
    audit: found,
    violations: [
      ...(inTime ? [] : [`not every job had ended after ${plan.timeLimitMs / 1_000} s`]),
      ...found.verdicts.flatMap(({ violations }) => violations),
      ...fleet.unexpected,
      ...recoveries.flatMap(unrecovered),
      ...unshown(killer, fleet, plan),
    ],
    kills: fleet.kills.length,
    killedAtOnce: fleet.kills.filter(({ nobodyLeft }) => nobodyLeft).length,
    poisoned,
    zombies: killer.zombies,
    ...timesOf(recoveries),
    jobsPerSecond: Math.round(found.succeeded / (Math.max(1, found.lastEndAt - startedAt) / 1_000)),
    report: await largestReport(engine),
    elapsedMs: performance.now() - began,
  };
}

/** How many transfers should exist at any moment; null: no more. There is work as long as the killer runs. */
function pace({ transfers, workers, workMs }: Plan, producer: Producer, killer: Killer): () => number | null {
  const first = producer.transfers;
  if (transfers !== null)
    return () => (producer.transfers >= transfers ? null : first + (transfers - first) * killer.progress);
  const began = performance.now();
  const perMs = (workers * CONCURRENCY * ALIVE) / workMs;
  return () => (killer.hasEnded ? null : first + (performance.now() - began) * perMs);
}

/**
 * Waits until every job has ended and every death has been found: workers that are about to leave still have to find a
 * worker that died without a job.
 */
async function allEnded(engine: Engine, fleet: Fleet, limit: AbortSignal): Promise<boolean> {
  while (!limit.aborted) {
    const [counts, workers] = await Promise.all([engine.counts(), engine.workers()]);
    const living = new Set(
      fleet
        .places()
        .filter(({ state }) => state !== "dead")
        .map(({ pid }) => pid),
    );
    const isEnded = counts.every(({ ready, delayed, running }) => ready + delayed + running === 0);
    if (isEnded && workers.every(({ pid }) => living.has(pid))) return true;
    await pause(50, undefined, { signal: limit }).catch(() => {});
  }
  return false;
}

function timesOf(
  recoveries: readonly Recovery[],
): Pick<Outcome, "recoveredJobs" | "killsWithJobs" | "detectMs" | "resumeMs"> {
  const timed = (of: readonly Recovery[]): Timed => {
    const times = of.flatMap(({ backMs }) => (backMs === null ? [] : [backMs]));
    return { timed: times.length, ...percentiles(times) };
  };
  const othersAlive = recoveries.filter(({ kill }) => !kill.nobodyLeft);
  return {
    recoveredJobs: recoveries.reduce((total, { jobs }) => total + jobs, 0),
    killsWithJobs: recoveries.filter(({ jobs }) => jobs > 0).length,
    detectMs: percentiles(othersAlive.map(({ detectedMs }) => detectedMs)),
    resumeMs: {
      ofAll: timed(recoveries),
      othersAlive: timed(othersAlive),
      nobodyLeft: timed(recoveries.filter(({ kill }) => kill.nobodyLeft)),
    },
  };
}

/** What a kill left behind that was not recovered. */
function unrecovered({ kill, incidents, waiting }: Recovery): string[] {
  if (incidents.length === 0)
    return kill.workerId === null ? [] : [`worker ${kill.workerId} was killed, and there is no incident of its death`];
  return waiting.map((id) => `job ${id} was recovered from worker ${kill.workerId ?? kill.pid} and never ran again`);
}

/** What the run was meant to show and did not. */
function unshown({ killedAll, zombies }: Killer, fleet: Fleet, { freezes }: Plan): string[] {
  return [
    ...(fleet.kills.length === 0 ? ["no worker was killed"] : []),
    ...(killedAll ? [] : ["the workers were never killed at the same moment"]),
    ...(freezes > 0 && zombies.length === 0 ? ["no worker could be frozen while it held jobs"] : []),
    ...zombies.flatMap(({ workerId, takenAt, refused }) => {
      if (takenAt === null)
        return [`the jobs of frozen worker ${workerId} were not taken from it when its lease had expired`];
      return refused === 0 ? [`no write of zombie ${workerId} was refused`] : [];
    }),
  ];
}

/** The largest of the incidents that requeued jobs. */
async function largestReport(engine: Engine): Promise<string | null> {
  const incidents = await engine.incidents({ limit: 1_000 });
  const [largest] = incidents.toSorted((a, b) => b.jobCount - a.jobCount);
  return largest ? ((await engine.report(largest.id))?.text ?? null) : null;
}

// What must be undone whatever happens: processes, files, the terminal. Runs once, synchronously, the latest first,
// both at the end of the process and at Ctrl-C.

const steps: (() => void)[] = [];

export function atEnd(step: () => void): void {
  steps.push(step);
}

const SIGNALS = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;

let isInstalled = false;

/** Call it before anything is started; a second call changes nothing. */
export function cleanUpInEveryCase(): void {
  if (isInstalled) return;
  isInstalled = true;
  process.on("exit", cleanUp);
  for (const [signal, code] of Object.entries(SIGNALS))
    process.on(signal, () => {
      if (process.stderr.isTTY) process.stderr.write("\n");
      process.exit(code);
    });
}

/** A step that fails is reported and keeps neither the others from being run nor the process from its exit code. */
function cleanUp(): void {
  for (let step = steps.pop(); step; step = steps.pop())
    try {
      step();
    } catch (thrown) {
      process.stderr.write(`Not cleaned up: ${thrown instanceof Error ? thrown.message : String(thrown)}\n`);
    }
}

// Enqueues the jobs of a run and remembers every id whose enqueue resolved, with its input: the audit compares these
// promises with the store.

const EVERY_MS = 100;
/** The share of transfers with steps. */
const CHECKED = 0.25;
const POISON_ID = "poison-1";

interface ProducerOptions {
  /** How long a transfer works on average. */
  readonly workMs: number;
  readonly signal: AbortSignal;
}

class Producer {
  /** Jobs whose enqueue resolved, with the input of a transfer; null: the poison job. */
  readonly promised = new Map<string, Transfer | null>();
  /** Transfers so far. */
  transfers = 0;
  readonly #engine: Engine;
  readonly #chance: Chance;
  readonly #options: ProducerOptions;

  constructor(engine: Engine, chance: Chance, options: ProducerOptions) {
    this.#engine = engine;
    this.#chance = chance;
    this.#options = options;
  }

  /** `upTo`: the intended total. */
  async enqueueTransfers(upTo: number): Promise<void> {
    const enqueued: Promise<unknown>[] = [];
    while (this.transfers < upTo && !this.#options.signal.aborted) {
      const id = `transfer-${String(++this.transfers).padStart(6, "0")}`;
      const kind = this.#chance.next() < CHECKED ? checkedTransfer : transfer;
      const input = this.#input();
      enqueued.push(this.#engine.enqueue(kind, input, { id }).then(() => this.promised.set(id, input)));
    }
    await Promise.all(enqueued);
  }

  /** The job that kills whichever worker runs it. */
  async enqueuePoison(): Promise<void> {
    const { id } = await this.#engine.enqueue(poison, {}, { id: POISON_ID });
    this.promised.set(id, null);
  }

  /** Enqueues transfers to keep up with `upTo`, until it returns null. */
  async stream(upTo: () => number | null): Promise<void> {
    const { signal } = this.#options;
    for (let due = upTo(); due !== null && !signal.aborted; due = upTo()) {
      await this.enqueueTransfers(Math.floor(due));
      await pause(EVERY_MS, undefined, { signal }).catch(() => {});
    }
  }

  #input(): Transfer {
    const { workMs } = this.#options;
    const from = this.#chance.whole(1, ACCOUNTS);
    const to = (from + this.#chance.whole(1, ACCOUNTS - 1) - 1) % ACCOUNTS;
    return {
      from,
      to: to + 1,
      amount: this.#chance.whole(1, 500),
      workMs: Math.round(workMs * (0.4 + 1.2 * this.#chance.next())),
    };
  }
}
