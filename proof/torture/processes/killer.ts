// The killer: one act of violence after the other, drawn by weight, until this many processes were killed; strikes at their surroundings
// and zombies next to them, as many as belong to this many kills. It waits on facts (who lives, how many are still starting), so a slow machine
// makes it slower, not different: each of the three has a chance of its own, and what one is drawn for is the seed's.
import { existsSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../../../src/index.ts";
import type { FromProcess } from "../../../src/torture/fleet.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { type Fault, type FaultContext, FaultSchedule, NotDone } from "./fault-schedule.ts";
import { byItsJob, type Place, type RigFleet } from "./fleet.ts";
import { Freezer } from "./freezer.ts";
import type { Told } from "./history.ts";
import { orderOf, placeOrder } from "./order.ts";

export interface KillerOptions {
  readonly kills: number;
  readonly seed: number;
  readonly faults: readonly Fault[];
  /** How often each fault strikes if no process is to be killed. */
  readonly rounds: number;
  readonly signal: AbortSignal;
  /** For observers. */
  tell(what: string): void;
  /** Into the history of this process. */
  note(told: Told): void;
}

interface Act {
  readonly name: string;
  readonly weight: number;
  readonly act: () => void | Promise<void>;
}

/** How long the killer waits for a fact before it goes on without it. */
const PATIENCE_MS = 10_000;
/** Until this process has heard of the end of another one. */
const HEARD_OF_MS = 5_000;
/** How long it lies in wait for the process that finds a death. */
const RECOVERER_MS = 2_000;
/** A recovery takes about as long: it is struck before its transaction, inside it, or when it has ended. */
const RECOVERY_MS = 60;
const LEAST_GAP_MS = 30;
const MOST_GAP_MS = 200;
/** How many workers are frozen past their lease and woken, for each one that is killed. */
const ZOMBIES_PER_KILL = 0.15;
/** How often it does not wait until every place is filled again, but strikes a process that has not begun yet. With more, a machine does nothing but start programs. */
const IMPATIENT = 0.2;

export class Killer {
  readonly faultSchedule: FaultSchedule;
  /** What strikes found wrong, one sentence each. */
  readonly violations: string[] = [];
  /** How often each act was done. */
  readonly acts = new Map<string, number>();
  readonly #engine: Engine;
  readonly #fleet: RigFleet;
  readonly #chance: Chance;
  /** For what facts bring about, and not the plan. */
  readonly #luck: Chance;
  readonly #options: KillerOptions;
  readonly #freezer: Freezer;
  readonly #acts: readonly Act[];
  /** Until when the next worker that says it found a death is killed, and the kill that is on its way. */
  #killRecovererUntil = 0;
  #recovererKill: Promise<void> = Promise.resolve();
  #impatient = false;
  readonly #waitingForCommit = new Set<(place: Place, job: string) => void>();
  #ordered = 0;

  constructor(engine: Engine, fleet: RigFleet, options: KillerOptions) {
    const { faults, seed, signal, kills, rounds } = options;
    this.#engine = engine;
    this.#fleet = fleet;
    this.#chance = new Chance(seed);
    this.#luck = new Chance(seed + 1);
    this.#options = options;
    const context = this.#faultContext();
    this.faultSchedule = new FaultSchedule(faults, new Chance(seed + 2), signal, context, kills === 0 ? rounds : null);
    this.#freezer = new Freezer(engine, fleet, this.#luck, signal, (told) => options.note(told));
    this.#acts = [
      { name: "kill a worker", weight: 50, act: () => this.#killWorker() },
      {
        name: "kill a worker, and the process that recovers it",
        weight: 12,
        act: () => this.#killWorkerAndRecoverer(),
      },
      { name: "kill a producer", weight: 8, act: () => this.#killOne("producer") },
      { name: "kill a supervised worker", weight: 6, act: () => this.#killSupervised() },
      { name: "kill the supervisor", weight: 2, act: () => this.#killOne("supervisor") },
      { name: "kill everybody at once", weight: 1, act: () => this.#killEveryone() },
    ];
  }

  /** What chance never drew, or could not be done, when the run has ended. */
  get notRun(): readonly string[] {
    const { undone } = this.faultSchedule;
    const undrawn = [...this.#acts, ...this.#options.faults]
      .map(({ name }) => name)
      .filter((name) => !this.acts.has(name) && !undone.some((one) => one.name === name));
    return [
      ...undrawn.map((name) => `${name}: not drawn in this run`),
      ...undone.map(({ name, why }) => `${name}: could not be done (${why})`),
    ];
  }

  get kills(): number {
    return this.#fleet.kills.length;
  }

  /** Workers that were frozen past their lease, and woken after their jobs were taken. */
  get zombies(): number {
    return this.#freezer.zombies;
  }

  async run(): Promise<void> {
    await this.#fact(() => this.#live().length >= this.#workers().length / 2);
    while (this.kills < this.#options.kills && !this.#options.signal.aborted) {
      const struck = this.faultSchedule.beginIfDue(this.kills);
      if (struck !== null) this.#options.tell(struck);
      const { name, act } = this.#draw();
      this.acts.set(name, (this.acts.get(name) ?? 0) + 1);
      await act();
      this.#freezeIfDue();
      await this.#pause(this.#chance.whole(LEAST_GAP_MS, MOST_GAP_MS));
      this.#impatient = this.#chance.next() < IMPATIENT;
      await this.#fact(() => this.#fleet.missing() <= Number(this.#impatient));
    }
    await this.#strikeWhatIsOwed();
    await Promise.all([this.#freezer.finished(), this.faultSchedule.finished(), this.#recovererKill]);
    for (const [name, times] of this.faultSchedule.done) this.acts.set(name, times);
    for (const [end, times] of this.#freezer.ends) this.acts.set(`freeze a worker past its lease: ${end}`, times);
  }

  /** What the workers tell. */
  heard(place: Place, { event, committing }: FromProcess): void {
    if (committing !== undefined) for (const hear of this.#waitingForCommit) hear(place, committing);
    if (event?.name !== "recovery.started" || performance.now() > this.#killRecovererUntil) return;
    this.#killRecovererUntil = 0;
    const { pid } = place;
    this.#recovererKill = this.#pause(this.#luck.whole(0, RECOVERY_MS)).then(() => {
      if (place.pid === pid && !this.#isHeld(place)) this.#fleet.kill([place], { recovering: true });
    });
  }

  /** Strikes that the kills were too fast for, and all of them if no process is to be killed. */
  async #strikeWhatIsOwed(): Promise<void> {
    while (this.faultSchedule.owes(this.kills) && !this.#options.signal.aborted) {
      const struck = this.faultSchedule.beginIfDue(this.kills);
      if (struck !== null) this.#options.tell(struck);
      await this.faultSchedule.finished();
      await this.#pause(50);
    }
  }

  #faultContext(): Omit<FaultContext, "hold"> {
    const engine = this.#engine;
    return {
      engine,
      targets: () => this.#targets(),
      freeze: (place) => this.#fleet.freeze(place),
      wake: (place) => this.#fleet.wake(place),
      endedByItsJob: async (pid) => {
        // The others learn of a death from the kernel, and may do so before this process hears of it.
        const exit = () => this.#fleet.exits.find((one) => one.pid === pid);
        const giveUpAt = performance.now() + HEARD_OF_MS;
        while (!existsSync(`/proc/${pid}`) && !exit() && performance.now() < giveUpAt) await this.#pause(10);
        const found = exit();
        return found !== undefined && !found.killedByUs && byItsJob(found);
      },
      wasHit: (id) => [...this.#fleet.kills, ...this.#fleet.freezes].some(({ workerId }) => workerId === id),
      enqueue: async (contract, input) => {
        const id = `strike-${++this.#ordered}`;
        const order = orderOf(contract, input, { id });
        if (await placeOrder(engine, order, (told) => this.#options.note(told))) return id;
        throw new NotDone("the store did not take its jobs");
      },
      nextCommit: (fits, withinMs) => this.#nextCommit(fits, withinMs),
      violation: (sentence) => void this.violations.push(sentence),
    };
  }

  async #nextCommit(
    fits: (place: Place) => boolean,
    withinMs: number,
  ): Promise<{ readonly place: Place; readonly job: string } | null> {
    const { promise, resolve } = Promise.withResolvers<{ place: Place; job: string } | null>();
    const hear = (place: Place, job: string): void => {
      if (this.#targets().includes(place) && fits(place)) resolve({ place, job });
    };
    this.#waitingForCommit.add(hear);
    const late = setTimeout(() => resolve(null), withinMs);
    try {
      return await promise;
    } finally {
      clearTimeout(late);
      this.#waitingForCommit.delete(hear);
    }
  }

  #draw(): Act {
    let left = this.#chance.next() * this.#acts.reduce((sum, { weight }) => sum + weight, 0);
    return this.#acts.find(({ weight }) => (left -= weight) < 0) ?? this.#acts[0]!;
  }

  async #killWorker(): Promise<void> {
    await this.#fact(() => this.#targets().length > 0);
    const young = this.#workers().filter((place) => place.state === "starting" && !this.#isHeld(place));
    const victim = this.#chance.pick(this.#impatient && young.length > 0 ? young : this.#targets());
    if (victim) this.#fleet.kill([victim]);
  }

  async #killWorkerAndRecoverer(): Promise<void> {
    await this.#killWorker();
    this.#killRecovererUntil = performance.now() + RECOVERER_MS;
  }

  #killOne(role: "producer" | "supervisor"): void {
    const victim = this.#chance.pick(this.#fleet.places(role).filter(({ state }) => state === "live"));
    if (victim) this.#fleet.kill([victim]);
  }

  /** A worker that the supervisor started: known by its parent, so that a pid that was given again is never hit. */
  async #killSupervised(): Promise<void> {
    const supervisors = new Set(this.#fleet.places("supervisor").map(({ pid }) => pid));
    const workers = await this.#engine.workers().catch(() => []);
    const victim = this.#chance.pick(
      workers.filter(({ state, pid }) => state === "live" && supervisors.has(parentOf(pid))),
    );
    if (!victim) return;
    const at = Date.now();
    process.kill(victim.pid, "SIGKILL");
    const missing = this.#fleet.missing();
    const { pid, id: workerId } = victim;
    this.#fleet.kills.push({ at, role: "worker", pid, workerId, nobodyLeft: false, recovering: false, missing });
  }

  /** The frozen, too, which are not zombies then. */
  async #killEveryone(): Promise<void> {
    await this.#fact(() => this.#fleet.missing() === 0);
    const count = this.#fleet.kill(this.#fleet.places(), { nobodyLeft: true });
    this.#options.tell(`killed all ${count} processes at the same moment`);
  }

  /** In addition to the other acts, so that there are as many zombies as there should be, however slow the machine is. */
  #freezeIfDue(): void {
    const due = this.#freezer.zombies + this.#freezer.frozen < this.kills * ZOMBIES_PER_KILL + 1;
    if (!due || !this.#freezer.hasRoom || !this.faultSchedule.storeIsWell) return;
    const place = this.#luck.pick(this.#targets());
    if (place) this.#freezer.begin(place);
  }

  /**
   * None while less than a third of the workers would be left alive, or a slow machine would never get any work done. While a process
   * is frozen, not the eldest either: it is the witness, who has to watch for a whole lease.
   */
  #targets(): readonly Place[] {
    const live = this.#live();
    if (live.length <= this.#workers().length / 3) return [];
    const anyFrozen = this.#workers().some(({ state }) => state === "frozen");
    const witness = anyFrozen ? [...live].sort((a, b) => a.sinceAt - b.sinceAt)[0] : undefined;
    return live.filter((place) => place !== witness);
  }

  /** At work, and not chosen as a victim yet. */
  #live(): readonly Place[] {
    return this.#workers().filter((place) => place.state === "live" && !this.#isHeld(place));
  }

  #isHeld(place: Place): boolean {
    return this.#freezer.holds(place) || this.faultSchedule.holds(place);
  }

  #workers(): readonly Place[] {
    return this.#fleet.places("worker");
  }

  async #fact(holds: () => boolean, patienceMs = PATIENCE_MS): Promise<void> {
    const deadline = performance.now() + patienceMs;
    while (!holds() && performance.now() < deadline && !this.#options.signal.aborted) await this.#pause(15);
  }

  async #pause(ms: number): Promise<void> {
    await pause(ms, undefined, { signal: this.#options.signal }).catch(() => {});
  }
}

/** The parent of a process of this machine; 0: not known. */
function parentOf(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ")[1] ?? 0);
  } catch {
    return 0;
  }
}
