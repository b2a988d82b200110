// Histories of schedules: the real firing code of several processes on the real SQLite store, or on the one in the shape of Redis, which loses its latest scripts now and then, for a year of virtual time. Jobs are purged a week after their end. Processes are killed between and
// inside their calls, answers are lost, calls are slow, all workers are away for a while, and the store's clock jumps. The laws (laws.ts) read the rows.
import { setImmediate as turn } from "node:timers/promises";
import { job } from "../../../src/engine/options.ts";
import { toStoredError } from "../../../src/job/errors.ts";
import { EventBus } from "../../../src/job/events.ts";
import { type Clock, pause } from "../../../src/job/time.ts";
import { ScheduleDeclaration, type ScheduleOptions } from "../../../src/schedules/declaration.ts";
import { ScheduleFiring } from "../../../src/schedules/firing.ts";
import { ScheduleClient } from "../../../src/schedules/schedules.ts";
import { observed } from "../../../src/stores/observed.ts";
import type { Store } from "../../../src/stores/port.ts";
import { type VirtualClock, virtualClock } from "../../../src/testing/virtual-clock.ts";
import { SeededRandom } from "../world/random.ts";
import { type Ground, onAtomic, onSqlite } from "./ground.ts";
import { HEALTHY_MS, type Planted, POLL_MS, ScheduleLaws } from "./laws.ts";
import type { ScheduleMutant } from "./mutants.ts";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** How long an ended job is kept. */
const KEPT_MS = 7 * DAY;

export interface ScheduleHistory {
  readonly seed: number;
  readonly fired: number;
  readonly kills: number;
  readonly jumps: number;
  /** Occurrences that were enqueued, and went with the latest scripts of a server that failed over. */
  readonly lost: number;
  readonly simulatedDays: number;
  readonly violation: string | null;
}

/** One process that fires. */
interface Worker {
  readonly id: string;
  readonly firing: ScheduleFiring;
  alive: boolean;
  /** Nothing was done to it since then, in virtual time. */
  healthySince: number;
}

export async function simulateSchedules(
  seed: number,
  days: number,
  mutant?: ScheduleMutant,
  on: "sqlite" | "atomic" = "sqlite",
): Promise<ScheduleHistory> {
  const world = new ScheduleWorld(seed, mutant, on);
  try {
    return await world.run(days);
  } finally {
    await world.close();
  }
}

class ScheduleWorld {
  readonly #seed: number;
  readonly #random: SeededRandom;
  readonly #clock: VirtualClock = virtualClock(Date.UTC(2026, 2, 1));
  readonly #ground: Ground;
  readonly #store: Store;
  readonly #workers: Worker[] = [];
  readonly #mutant: ScheduleMutant | undefined;
  readonly #planted: Planted[] = [];
  readonly #declared: ScheduleDeclaration[] = [];
  #kills = 0;
  #jumps = 0;
  #lost = 0;
  readonly #laws: ScheduleLaws;
  #started = 0;
  #away = false;

  constructor(seed: number, mutant: ScheduleMutant | undefined, on: "sqlite" | "atomic") {
    this.#seed = seed;
    this.#random = new SeededRandom(`schedules ${seed}`);
    this.#mutant = mutant;
    this.#ground = on === "sqlite" ? onSqlite(this.#clock, this.#random.fork("store")) : onAtomic(this.#clock);
    this.#laws = new ScheduleLaws(this.#ground, this.#clock);
    this.#store = mutant?.store?.(this.#ground.store, this.#clock) ?? this.#ground.store;
  }

  async run(days: number): Promise<ScheduleHistory> {
    const laws = this.#laws;
    const history = (violation: string | null): ScheduleHistory => ({
      seed: this.#seed,
      fired: laws.firedCount,
      kills: this.#kills,
      jumps: this.#jumps,
      lost: this.#lost,
      simulatedDays: days,
      violation,
    });
    try {
      await this.#plant();
      laws.know(this.#planted);
      for (let i = 0; i < 3; i++) await this.#start();
      const until = this.#clock.mono() + days * DAY;
      while (this.#clock.mono() < until) {
        await this.#step();
        laws.look(this.#healthyMs());
      }
      await this.#calm();
      laws.audit();
    } catch (thrown) {
      return history((thrown as Error).message);
    }
    return history(null);
  }

  async close(): Promise<void> {
    for (const worker of this.#workers) worker.alive = false;
    const closing = this.#store.close();
    await this.#clock.advance(1_000);
    await closing;
  }

  /** Ten schedules of every policy, some declared by the workers and some set at run time. */
  async #plant(): Promise<void> {
    const random = this.#random.fork("plan");
    const kinds = ["mail", "report"].map((name) => job<unknown>(name));
    await this.#store.declare(kinds.map(({ settings }) => settings));
    const client = new ScheduleClient({
      schedules: this.#store.schedules!,
      newId: () => `hand-${this.#random.hex(8)}`,
      assertKnown: () => {},
      declared: new Map(),
    });
    for (let i = 0; i < 10; i++) {
      const name = `schedule-${i}`;
      const options = drawOptions(random, i);
      const contract = random.pick(kinds);
      const isDeclared = random.chance(0.4);
      const declaration = new ScheduleDeclaration(name, contract as never, {
        ...options,
        input: (isDeclared ? ({ at }: { at: string }) => ({ at }) : { number: i }) as never,
      });
      if (isDeclared) this.#declared.push(declaration);
      else await this.#within(client.set(name, contract, declaration.options as never));
      this.#planted.push({
        name,
        timing:
          options.cron === undefined
            ? { everyMs: ms(options.every!), fromMs: 0 }
            : { cron: options.cron, zone: options.zone! },
        missed: options.missed!,
        withinMs: ms(options.within!),
        overlap: options.overlap!,
      });
    }
  }

  /** Moves the clock until this has ended. */
  async #within<T>(promise: Promise<T>): Promise<T> {
    let done = false;
    const watched = promise.finally(() => (done = true));
    watched.catch(() => {});
    while (!done) await this.#clock.advance(5);
    return watched;
  }

  async #start(): Promise<void> {
    const id = `worker-${this.#started++}`;
    const random = this.#random.fork(id);
    const clock = clockOf(this.#clock, () => worker.alive);
    const faults = { lost: random.chance(0.5) ? 0.01 : 0, slow: random.chance(0.5) ? 0.05 : 0, kill: 0.002 };
    const store = observed(this.#store, {
      around: async (_verb, _args, call) => {
        const gone = new Promise<never>(() => {});
        if (random.chance(faults.slow)) await pause(this.#clock, random.between(1, 3_000));
        if (random.chance(faults.kill)) this.#kill(worker);
        if (!worker.alive) return gone;
        const answer = await call();
        if (random.chance(faults.kill)) this.#kill(worker);
        if (!worker.alive) return gone;
        if (random.chance(faults.lost)) {
          worker.healthySince = this.#clock.mono();
          throw new Error("the answer was lost");
        }
        return answer;
      },
    });
    const declared = new Map(this.#declared.map((one) => [one.name, one]));
    const events = new EventBus(toStoredError);
    const deps = { store, clock, events, declared, worker: () => id, oftenMs: POLL_MS, pollMs: () => POLL_MS };
    const firing = new ScheduleFiring(this.#mutant?.deps?.(deps) ?? deps, store.schedules!);
    const worker: Worker = { id, firing, alive: true, healthySince: this.#clock.mono() };
    this.#workers.push(worker);
    await this.#ground.start(id);
    // One whose declaration fails dies, as its program would, and is started again.
    firing.start().catch(() => this.#kill(worker));
    await this.#clock.settle();
  }

  #kill(worker: Worker): void {
    if (!worker.alive) return;
    worker.alive = false;
    this.#kills++;
    const at = this.#workers.indexOf(worker);
    this.#workers.splice(at, 1);
    this.#ground.end(worker.id);
    if (this.#away) return;
    this.#clock.after(this.#random.between(10, 5 * MINUTE), () => void this.#start());
  }

  /** Something happens, and time passes. */
  async #step(): Promise<void> {
    const random = this.#random.fork(`step ${this.#clock.mono()}`);
    const what = random.weighted({
      pass: 40,
      kill: 6,
      away: 1.5,
      ahead: 0.7,
      back: 0.7,
      end: 20,
      lose: this.#ground.lose ? 4 : 0,
    });
    if (what === "kill" && this.#workers.length > 0) this.#kill(random.pick(this.#workers));
    else if (what === "away") await this.#leave(random.between(2 * MINUTE, 3 * DAY));
    else if (what === "ahead") this.#jump(random.between(1_000, 6 * HOUR));
    else if (what === "back") this.#jump(-random.between(1_000, 6 * HOUR));
    else if (what === "end") await this.#endJobs(random);
    else if (what === "lose") this.#lose(random);
    await this.#pass(random.between(MINUTE, 2 * HOUR));
  }

  async #pass(duration: number): Promise<void> {
    await this.#clock.advance(duration);
    await turn();
  }

  #jump(by: number): void {
    this.#jumps++;
    this.#clock.jump(by);
    for (const worker of this.#workers) worker.healthySince = this.#clock.mono();
  }

  /** All workers die, and none is started for this long. */
  async #leave(forMs: number): Promise<void> {
    this.#away = true;
    while (this.#workers.length > 0) this.#kill(this.#workers[0]!);
    this.#clock.freeze(forMs);
    this.#away = false;
    for (let i = 0; i < 2; i++) await this.#start();
  }

  async #endJobs(random: SeededRandom): Promise<void> {
    if (!random.chance(0.5)) return;
    this.#ground.endAll();
    // What is older goes, as by the maintenance: an id that is known protects an occurrence only so long.
    const retention = { finishedOlderThanMs: KEPT_MS, incidentsOlderThanMs: KEPT_MS, limit: 1_000 };
    await this.#within(this.#ground.store.purge(retention));
  }

  /** The server fails over and has lost its latest scripts. */
  #lose(random: SeededRandom): void {
    const lost = this.#ground.lose!(random);
    this.#lost += lost.length;
    this.#laws.lost(lost);
    for (const worker of this.#workers) worker.healthySince = this.#clock.mono();
  }

  /** How long the healthiest worker has been left in peace; 0: none is alive. */
  #healthyMs(): number {
    const mono = this.#clock.mono();
    return Math.max(0, ...this.#workers.map(({ healthySince }) => mono - healthySince));
  }

  async #calm(): Promise<void> {
    if (this.#workers.length === 0) await this.#start();
    this.#ground.endAll();
    await this.#clock.advance(2 * HEALTHY_MS);
  }
}

/** A dead process has no timers. */
function clockOf(clock: VirtualClock, isAlive: () => boolean): Clock {
  return {
    now: () => clock.now(),
    mono: () => clock.mono(),
    after: (after, task) => clock.after(after, () => isAlive() && task()),
    soon: (task) => clock.soon(() => isAlive() && task()),
  };
}

const CRONS = ["0 3 * * *", "*/20 * * * *", "30 2 * * *", "0 */4 * * 1-5", "15 6 1 * *"] as const;
const ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Africa/Cairo"] as const;

function drawOptions(random: SeededRandom, i: number): ScheduleOptions<never> {
  const every = random.pick(["10m", "1h", "6h", "1d"] as const);
  const timing = i % 2 === 0 ? { every } : { cron: random.pick(CRONS), zone: random.pick(ZONES) };
  return {
    ...timing,
    missed: (["skip", "latest", "all"] as const)[i % 3]!,
    within: random.pick(["1h", "12h", "7d"] as const),
    overlap: random.pick(["skip", "allow", "queue"] as const),
    jitter: random.chance(0.3) ? "30s" : "0s",
  };
}

const UNIT_MS = { m: MINUTE, h: HOUR, d: DAY } as const;
function ms(text: string): number {
  return Number(text.slice(0, -1)) * UNIT_MS[text.at(-1) as keyof typeof UNIT_MS];
}
