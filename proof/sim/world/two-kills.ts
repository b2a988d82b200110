// Kills the worker that holds the most jobs, twice, each time when all jobs run and every worker is up. The first time one worker
// holds all of them. They must all run again soon.
import { type Model, STATE } from "../oracle/model.ts";
import { demand } from "../oracle/violation.ts";
import type { SimProcess } from "./process.ts";
import type { Supervisor } from "./supervisor.ts";
import type { World } from "./world.ts";

/** So long after the kill all jobs run again, at the latest. */
export const RUN_AGAIN_MS = 5_000;

const CHECK_EVERY_MS = 10;
const KILLS = 2;

export class TwoKills {
  readonly #world: World;
  readonly #supervisor: Supervisor;
  readonly #model: Model;
  readonly #jobs: number;
  #kills = 0;
  #killedAt = 0;
  #othersStarted = false;
  #done = false;

  constructor(world: World, supervisor: Supervisor, model: Model, jobs: number) {
    this.#world = world;
    this.#supervisor = supervisor;
    this.#model = model;
    this.#jobs = jobs;
  }

  /** Two kills, and all jobs ran again after each. */
  get done(): boolean {
    return this.#done;
  }

  start(): void {
    const { scheduler } = this.#world;
    scheduler.at(scheduler.now + CHECK_EVERY_MS, null, () => {
      this.#check();
      if (!this.#done) this.start();
    });
  }

  #check(): void {
    const held = this.#held();
    const running = [...held.values()].reduce((sum, count) => sum + count, 0);
    if (this.#kills > 0) this.#runAgain(running);
    if (running < this.#jobs) return;
    this.#done = this.#kills === KILLS;
    if (!this.#othersStarted) {
      this.#othersStarted = true;
      this.#supervisor.startOthers();
    } else if (!this.#done && this.#supervisor.allRunning) {
      const [[victim] = []] = [...held].toSorted(([, a], [, b]) => b - a);
      this.#kills++;
      this.#killedAt = this.#world.scheduler.now;
      victim?.kill("nemesis");
    }
  }

  /** Virtual time since the kill, while some job does not run. */
  #runAgain(running: number): void {
    if (this.#killedAt === 0) return;
    const { scheduler, tally } = this.#world;
    const tookMs = scheduler.now - this.#killedAt;
    demand(
      tookMs <= RUN_AGAIN_MS,
      () => `${Math.round(tookMs)} ms after kill ${this.#kills} only ${running} of ${this.#jobs} jobs run`,
    );
    if (running < this.#jobs) return;
    tally.runAgainMs = Math.max(tally.runAgainMs, tookMs);
    this.#killedAt = 0;
  }

  /** How many jobs run in each process that lives. */
  #held(): ReadonlyMap<SimProcess, number> {
    const held = new Map<SimProcess, number>();
    for (const { state, worker } of this.#model.jobs.values()) {
      const process = state === STATE.running ? this.#model.workers.get(worker ?? -1)?.process : null;
      if (process?.alive) held.set(process, (held.get(process) ?? 0) + 1);
    }
    return held;
  }
}
