// The nemesis: one act of violence after the other, drawn by weight, until so many processes were killed. It waits on facts (who
// lives, what the store says), so a slow machine makes it slower, not different.
import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import type { Chance } from "../demo/chance.ts";
import type { Engine, EngineEvent } from "../index.ts";
import type { Crew, Seat } from "./crew.ts";
import { LEASE_MS } from "./settings.ts";

/** Violence to what is around the processes: the server, the network, the disk. Brought by whoever starts the rig. */
export interface Fault {
  readonly name: string;
  /** How often, beside the acts below. */
  readonly weight: number;
  /** Breaks something and mends it again. */
  strike(chance: Chance, signal: AbortSignal): Promise<void>;
}

export interface NemesisOptions {
  readonly kills: number;
  readonly faults: readonly Fault[];
  readonly signal: AbortSignal;
  tell(what: string): void;
}

/** How long the nemesis waits for a fact before it goes on without it. */
const PATIENCE_MS = 10_000;
/** How long after a fault of the surroundings a process may still fail to start. */
const AFTERMATH_MS = 5_000;
const LEAST_GAP_MS = 60;
const MOST_GAP_MS = 350;

export class Nemesis {
  /** Workers that were frozen past their lease and woken after their jobs were taken. */
  zombies = 0;
  /** How often each act was done. */
  readonly acts = new Map<string, number>();
  readonly #engine: Engine;
  readonly #crew: Crew;
  readonly #chance: Chance;
  readonly #options: NemesisOptions;
  readonly #acts: readonly { readonly name: string; readonly weight: number; readonly act: () => Promise<void> }[];
  #freezing: Promise<void> | null = null;
  #striking: Promise<void> | null = null;
  #struckAt = Number.NEGATIVE_INFINITY;
  /** Kills the next worker that says it found a death. */
  #ambush = false;

  constructor(engine: Engine, crew: Crew, chance: Chance, options: NemesisOptions) {
    this.#engine = engine;
    this.#crew = crew;
    this.#chance = chance;
    this.#options = options;
    this.#acts = [
      { name: "kill a worker", weight: 50, act: () => this.#raid() },
      { name: "kill a worker, and whoever recovers it", weight: 12, act: () => this.#ambushRecovery() },
      { name: "kill a producer", weight: 10, act: () => this.#killOne("producer") },
      { name: "kill a supervised worker", weight: 6, act: () => this.#killSupervised() },
      { name: "kill the supervisor", weight: 3, act: () => this.#killOne("supervisor") },
      { name: "kill everybody at once", weight: 2, act: () => this.#massacre() },
      { name: "freeze a worker past its lease", weight: 17, act: () => this.#freeze() },
      ...options.faults.map((fault) => ({ name: fault.name, weight: fault.weight, act: () => this.#strike(fault) })),
    ];
  }

  /** Nothing around the processes is broken now, nor was a moment ago. */
  get storeIsWell(): boolean {
    return this.#striking === null && performance.now() - this.#struckAt > AFTERMATH_MS;
  }

  get kills(): number {
    return this.#crew.kills.length;
  }

  async run(): Promise<void> {
    await this.#fact(() => this.#live().length >= this.#workers().length / 2);
    while (this.kills < this.#options.kills && !this.#options.signal.aborted) {
      const { name, act } = this.#draw();
      this.acts.set(name, (this.acts.get(name) ?? 0) + 1);
      await act();
      await this.#pause(this.#chance.whole(LEAST_GAP_MS, MOST_GAP_MS));
    }
    await Promise.all([this.#freezing, this.#striking]);
  }

  /** What the workers tell. */
  heard(seat: Seat, event: EngineEvent): void {
    if (!this.#ambush || event.name !== "worker.gone") return;
    this.#ambush = false;
    this.#crew.kill([seat]);
  }

  #draw(): { readonly name: string; readonly act: () => Promise<void> } {
    let left = this.#chance.next() * this.#acts.reduce((sum, { weight }) => sum + weight, 0);
    return this.#acts.find(({ weight }) => (left -= weight) < 0) ?? this.#acts[0]!;
  }

  async #raid(): Promise<void> {
    await this.#fact(() => this.#targets().length > 0);
    const young = this.#workers().filter(({ state }) => state === "starting");
    const victim = this.#chance.pick(this.#chance.next() < 0.2 && young.length > 0 ? young : this.#targets());
    if (victim) this.#crew.kill([victim]);
  }

  async #ambushRecovery(): Promise<void> {
    await this.#raid();
    this.#ambush = true;
    await this.#fact(() => !this.#ambush, 2_000);
    this.#ambush = false;
  }

  async #killOne(role: "producer" | "supervisor"): Promise<void> {
    const victim = this.#chance.pick(this.#crew.seats(role).filter(({ state }) => state === "live"));
    if (victim) this.#crew.kill([victim]);
  }

  /** A worker that the supervisor started: known by its parent, so that a pid that was given again is never hit. */
  async #killSupervised(): Promise<void> {
    const supervisors = new Set(this.#crew.seats("supervisor").map(({ pid }) => pid));
    const workers = await this.#engine.workers().catch(() => []);
    const victim = this.#chance.pick(
      workers.filter(({ state, pid }) => state === "live" && supervisors.has(parentOf(pid))),
    );
    if (!victim) return;
    const at = Date.now();
    process.kill(victim.pid, "SIGKILL");
    this.#crew.kills.push({ at, role: "worker", pid: victim.pid, workerId: victim.id });
  }

  async #massacre(): Promise<void> {
    await this.#fact(() => this.#live().length === this.#workers().length);
    const count = this.#crew.kill(this.#crew.seats());
    this.#options.tell(`killed all ${count} processes at the same moment`);
  }

  /** In the background: the others go on dying meanwhile, but for one witness, who has to watch for a whole lease. */
  async #freeze(): Promise<void> {
    if (this.#freezing) return;
    this.#freezing = this.#freezeOne().finally(() => (this.#freezing = null));
  }

  async #freezeOne(): Promise<void> {
    const seat = this.#chance.pick(this.#targets());
    if (!seat?.workerId) return;
    const { workerId } = seat;
    this.#crew.freeze(seat);
    await this.#pause(30);
    // A process that is frozen inside a transaction of a file stops everybody, which loses nothing and shows nothing either.
    if (!(await this.#storeAnswers())) return this.#crew.wake(seat);
    let taken = false;
    await this.#fact(async () => {
      if (seat.state !== "frozen") return true;
      const incidents = await this.#engine.incidents({ limit: 100 }).catch(() => []);
      taken = incidents.some(({ worker, completedAt }) => worker === workerId && completedAt !== null);
      return taken;
    });
    await this.#pause(this.#chance.whole(0, LEASE_MS));
    if (seat.state !== "frozen") return;
    this.#crew.wake(seat);
    if (taken) this.zombies++;
  }

  /** Beside the other acts; one at a time. */
  async #strike(fault: Fault): Promise<void> {
    if (this.#striking) return;
    this.#options.tell(fault.name);
    this.#striking = fault.strike(this.#chance, this.#options.signal).finally(() => {
      this.#striking = null;
      this.#struckAt = performance.now();
    });
  }

  /** Nobody while less than half of the workers would be left alive, or a slow machine would never get any work done. */
  #targets(): readonly Seat[] {
    const live = this.#live();
    const frozen = this.#workers().some(({ state }) => state === "frozen");
    if (live.length + (frozen ? 1 : 0) <= this.#workers().length / 2) return [];
    const witness = frozen ? [...live].sort((a, b) => a.sinceAt - b.sinceAt)[0] : undefined;
    return live.filter((seat) => seat !== witness);
  }

  #live(): readonly Seat[] {
    return this.#workers().filter(({ state }) => state === "live");
  }

  #workers(): readonly Seat[] {
    return this.#crew.seats("worker");
  }

  async #storeAnswers(): Promise<boolean> {
    const paused = this.#engine.pause("torture.flaky").then(() => this.#engine.resume("torture.flaky"));
    return Promise.race([paused.then(() => true).catch(() => false), pause(250, false)]);
  }

  async #fact(holds: () => boolean | Promise<boolean>, patienceMs = PATIENCE_MS): Promise<void> {
    const deadline = performance.now() + patienceMs;
    while (!(await holds()) && performance.now() < deadline && !this.#options.signal.aborted) await this.#pause(15);
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
