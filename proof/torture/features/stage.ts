// What the scenarios of the rig for waiting and keys have in common: a store of their own with an observer in it, worker processes, and the wait for
// the end of all jobs.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, open } from "../../../src/index.ts";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { Chance } from "../../../src/torture/killer.ts";
import type { Facts, Findings } from "./audit.ts";
import { type Database, databaseAt } from "./database.ts";
import { KINDS, type Line } from "./kinds.ts";
import { Observer } from "./observer.ts";
import { isPlanted, plantRows } from "./plants.ts";
import { RedisObserver } from "./redis-observer.ts";
import { Workers } from "./workers.ts";

/** Where one scenario takes place: an empty store, and a folder for its histories. */
export interface Place {
  readonly url: string;
  readonly folder: string;
}

export interface Sizes {
  readonly kills: number;
  readonly seed: number;
  /** Omitted: the scenario's own. */
  readonly workers?: number;
  readonly keys?: number;
  /** The share of its full size to which a scenario without kills is reduced: 1 from 100 kills on. */
  readonly scale: number;
  /** How long the jobs may take to end after the last kill. */
  readonly endedWithinMs: number;
}

export interface Outcome {
  readonly kills: number;
  readonly enqueued: number;
  readonly findings: Findings;
  /** What was measured, for the last line. */
  readonly figures?: Readonly<Record<string, number>>;
}

export type StoreName = "sqlite" | "postgres" | "redis";

export interface Scenario {
  readonly name: string;
  readonly stores: readonly StoreName[];
  run(place: Place, sizes: Sizes): Promise<Outcome>;
}

const KILL_EVERY_MS = 200;
const CHECK_EVERY_MS = 100;
/** Jobs that are named in the findings; the others are as many again. */
const MAX_UNFINISHED = 100;
const OBSERVED = ["limited", "paced", "ordered", "slow"];

export class Stage implements AsyncDisposable {
  readonly engine: Engine;
  readonly fleet: Workers;
  readonly chance: Chance;
  readonly #db: Database | null;
  readonly #observer: Pick<Observer, "sightings">;
  readonly #place: Place;
  readonly #end: () => Promise<void>;

  private constructor(place: Place, sizes: Sizes, engine: Engine, watched: Watched, workers: number) {
    this.#place = place;
    this.engine = engine;
    this.#db = watched.db;
    this.#observer = watched.observer;
    this.#end = watched.end;
    this.fleet = new Workers({ ...place, count: sizes.workers ?? workers });
    this.chance = new Chance(sizes.seed);
  }

  /** `workers`: how many, unless the sizes say otherwise. */
  static async set(place: Place, sizes: Sizes, workers: number): Promise<Stage> {
    if (!place.url.startsWith("sqlite:")) await (await migrationsOf(place.url)).up();
    const engine = await open(place.url, { jobs: KINDS, logger: false });
    return new Stage(place, sizes, engine, await watched(place.url), workers);
  }

  /** The tables of the store. */
  get db(): Database {
    if (this.#db === null) throw new Error("This store has no tables.");
    return this.#db;
  }

  /** A process is killed every 200 ms, whatever it does just then. `meanwhile` runs before each. */
  async kill(kills: number, meanwhile: () => Promise<unknown>): Promise<void> {
    for (let killed = 0; killed < kills; killed++) {
      await pause(KILL_EVERY_MS);
      await meanwhile();
      this.fleet.killOne(this.chance);
      if ((killed + 1) % 50 === 0) process.stderr.write(`${killed + 1} of ${kills} kills\n`);
    }
  }

  /** Waits until all jobs have ended or the time has passed, stops the workers, and reads what there is to audit. */
  async end(withinMs: number): Promise<Pick<Facts, "lines" | "killedAt" | "sightings" | "unfinished" | "ended">> {
    const { engine, fleet } = this;
    const until = performance.now() + withinMs;
    while (performance.now() < until && !(await hasEnded(engine))) await pause(CHECK_EVERY_MS);
    const unfinished = [];
    for (const state of ["queued", "running"] as const)
      for (const { id, kind } of (await engine.list({ state, limit: MAX_UNFINISHED })).jobs)
        unfinished.push({ id, kind, why: (await engine.why(id))?.text ?? "it is gone" });
    const ended = [];
    for (const state of ["dead", "cancelled", "quarantined"] as const)
      for (const { id, kind } of (await engine.list({ state, limit: 1_000 })).jobs)
        if (kind !== "ward") ended.push({ id, kind, state });
    await fleet.stop();
    const sightings = await this.#observer.sightings();
    return { lines: readLines(this.#place.folder), killedAt: fleet.killedAt, sightings, unfinished, ended };
  }

  /** How many jobs of a kind there are, however they ended. */
  async found(kind: string): Promise<number> {
    if (this.#db === null) {
      const counts = (await this.engine.counts()).find((one) => one.kind === kind)!;
      const { kind: _, paused: __, pause: ____, oldestReadyMs: ___, ...states } = counts;
      return Object.values(states).reduce((sum, count) => sum + count, 0);
    }
    const { jobs, kinds } = { jobs: this.db.table("jobs"), kinds: this.db.table("kinds") };
    const [row] = await this.db.rows<{ n: number | string }>(
      `SELECT count(*) AS n FROM ${jobs} j JOIN ${kinds} k ON k.id = j.kind WHERE k.name = '${kind}'`,
    );
    return Number(row!.n);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.fleet.destroy();
    await this.engine.close();
    await this.#end();
  }
}

interface Watched {
  readonly db: Database | null;
  readonly observer: Pick<Observer, "sightings">;
  readonly end: () => Promise<void>;
}

async function watched(url: string): Promise<Watched> {
  if (url.startsWith("redis:")) {
    for (const plant of ["signals", "wakes"] as const)
      if (isPlanted(plant)) throw new Error(`--plant ${plant}: it is a trigger, and redis has none.`);
    const observer = await RedisObserver.watch(url, OBSERVED);
    return { db: null, observer, end: async () => observer.close() };
  }
  const db = await databaseAt(url);
  await plantRows(db);
  return { db, observer: await Observer.watch(db, OBSERVED), end: async () => db[Symbol.asyncDispose]() };
}

async function hasEnded(engine: Engine): Promise<boolean> {
  return (await engine.counts()).every(({ ready, delayed, held, running }) => ready + delayed + held + running === 0);
}

export function readLines(folder: string): Line[] {
  const lines = readdirSync(folder)
    .filter((name) => name.endsWith(".history"))
    .flatMap((name) => readFileSync(join(folder, name), "utf8").split("\n"))
    // The last line of a process that was killed may be torn.
    .filter((line) => line.endsWith("}"))
    .map((line) => JSON.parse(line) as Line);
  return lines.sort((a, b) => a.at - b.at);
}
