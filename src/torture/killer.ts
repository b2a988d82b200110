// The killer: kills workers repeatedly, once all of them at the same moment, and freezes some past their lease while
// they are known to hold jobs. It waits on facts (which workers are alive, what the store shows), so a slow machine
// makes it slower, not different.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine, EngineEvent } from "../index.ts";
import { standsStill } from "./audit.ts";
import type { Fleet, Place } from "./fleet.ts";
import type { Tables } from "./tables.ts";

/** What happened to a frozen worker. */
export interface Zombie {
  readonly place: number;
  readonly workerId: string;
  /** How many jobs it held. */
  readonly held: number;
  readonly frozenAt: number;
  /** When other workers took its jobs; null: they did not. */
  takenAt: number | null;
  wokenAt: number | null;
  /** How many of its writes were refused after it woke. */
  refused: number;
}

/** How long the killer continues. */
export type KillerEnd = { readonly afterMs: number } | { readonly afterKills: number };

export interface KillerOptions {
  readonly end: KillerEnd;
  /** The approximate time between two kills. */
  readonly everyMs: number;
  /** How many workers to freeze, one after another. */
  readonly freezes: number;
  readonly signal: AbortSignal;
  readonly tell: (what: string) => void;
}

/** As shares of the whole run: when all workers are killed at once, and when, within its part, each freeze starts. */
const KILL_ALL_AT = 0.25;
const FREEZE_AT = 0.42;

/** How long the killer waits for a fact before it continues without it. */
const PATIENCE_MS = 15_000;
const STORE_ANSWERS_MS = 200;

export class Killer {
  readonly zombies: Zombie[] = [];
  killedAll = false;
  readonly #engine: Engine;
  readonly #fleet: Fleet;
  readonly #tables: Tables;
  readonly #chance: Chance;
  readonly #options: KillerOptions;
  #began: number | null = null;
  #freezingSince: number | null = null;
  #hasEnded = false;

  constructor(engine: Engine, fleet: Fleet, tables: Tables, chance: Chance, options: KillerOptions) {
    this.#engine = engine;
    this.#fleet = fleet;
    this.#tables = tables;
    this.#chance = chance;
    this.#options = options;
  }

  async run(): Promise<void> {
    await this.#fact(() => this.#live().length >= this.#places().length / 2);
    this.#began = performance.now();
    await this.#killUntil(() => this.#share() >= KILL_ALL_AT);
    await this.#killAll();
    const { freezes } = this.#options;
    for (let i = 0; i < freezes; i++) {
      await this.#killUntil(() => this.#share() >= (i + FREEZE_AT) / freezes);
      let isDone = false;
      const freezing = this.#freezeOne().finally(() => (isDone = true));
      await this.#killUntil(() => isDone || this.#share() >= 1);
      await freezing;
    }
    await this.#killUntil(() => this.#share() >= 1);
    this.#hasEnded = true;
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /**
   * From 0 to 1, for a producer with a fixed number of jobs. The producer reserves a part until the first worker is
   * frozen, which must hold some, and the rest until the killer has ended.
   */
  get progress(): number {
    if (this.#hasEnded) return 1;
    if (this.#began === null) return 0;
    if (this.zombies.length > 0) return Math.max(0.7, Math.min(0.95, this.#share()));
    if (this.#freezingSince === null) return Math.min(0.6, this.#share());
    return 0.7 + 0.25 * Math.min(1, (performance.now() - this.#freezingSince) / 8_000);
  }

  /** An event of the engine in a worker process. */
  heard({ number }: Place, event: EngineEvent): void {
    if (event.name !== "write.rejected") return;
    const zombie = this.zombies.findLast(({ place }) => place === number);
    if (zombie?.workerId === event.lease.worker) zombie.refused++;
  }

  /** One kill after another; now and then a process that is only just starting. */
  async #killUntil(isDone: () => boolean): Promise<void> {
    for (;;) {
      const next = performance.now() + this.#options.everyMs * (0.5 + this.#chance.next());
      const early = this.#chance.next() < 0.2;
      let victim: Place | undefined;
      while (!victim) {
        if (isDone() || this.#options.signal.aborted) return;
        await this.#pause(10);
        if (performance.now() >= next) victim = this.#chance.pick(this.#targets(early));
      }
      const when = victim.state === "starting" ? " while it was starting" : "";
      if (this.#fleet.kill([victim]) > 0) this.#options.tell(`killed worker ${victim.number}${when}`);
    }
  }

  /**
   * Which workers may be killed now. None if fewer than half of the places would stay alive, or a slow machine would
   * never get any work done. While one is frozen, the longest-lived of the others is spared: one witness has to watch
   * the silence for a whole lease. A zombie is left alone until it has tried to write.
   */
  #targets(early: boolean): readonly Place[] {
    const places = this.#places();
    const live = this.#live();
    const isFrozen = places.some(({ state }) => state === "frozen");
    if (live.length + (isFrozen ? 1 : 0) <= places.length / 2) return [];
    const young = places.filter(({ state }) => state === "starting");
    if (early && young.length > 0) return young;
    const witness = isFrozen ? live.toSorted((a, b) => a.sinceAt - b.sinceAt)[0] : undefined;
    const zombie = this.zombies.at(-1);
    const spared = zombie?.refused === 0 ? zombie.place : undefined;
    return live.filter((place) => place !== witness && place.number !== spared);
  }

  async #killAll(): Promise<void> {
    await this.#fact(() => this.#live().length === this.#places().length);
    const count = this.#fleet.kill(this.#places(), { nobodyLeft: true });
    this.killedAll = count > 0;
    this.#options.tell(`killed all ${count} workers at the same moment`);
  }

  async #freezeOne(): Promise<void> {
    const place = await this.#freezeWhileItHolds();
    const zombie = this.zombies.at(-1);
    if (!place || !zombie) return;
    this.#options.tell(`froze worker ${place.number} while it held ${zombie.held} job${zombie.held === 1 ? "" : "s"}`);
    await this.#fact(async () => {
      const incidents = await this.#engine.incidents({ limit: 1_000 });
      zombie.takenAt = incidents.find(({ worker }) => worker === zombie.workerId)?.completedAt ?? null;
      return zombie.takenAt !== null;
    });
    await this.#pause(300);
    this.#fleet.wake(place);
    zombie.wokenAt = Date.now();
    this.#options.tell(`woke worker ${place.number}, now a zombie: its jobs belong to others`);
    await this.#fact(() => zombie.refused > 0);
  }

  /**
   * Stops a worker at a moment when it holds jobs and no lock of the store: a process frozen inside a transaction stops
   * the others, which loses nothing but shows nothing either. If the moment was wrong, the worker is resumed and
   * stopped again later.
   */
  async #freezeWhileItHolds(): Promise<Place | null> {
    this.#freezingSince ??= performance.now();
    const deadline = performance.now() + PATIENCE_MS;
    while (performance.now() < deadline && !this.#options.signal.aborted) {
      const live = this.#live();
      const place = live.length > 1 ? this.#chance.pick(live) : undefined;
      if (place?.workerId) {
        const { number, workerId } = place;
        this.#fleet.freeze(place);
        const frozenAt = Date.now();
        await this.#fact(() => standsStill(place.pid));
        await this.#pause(20);
        const held = (await this.#storeIsFree()) ? await this.#heldBy(workerId) : 0;
        if (held > 0 && place.state === "frozen") {
          this.zombies.push({ place: number, workerId, held, frozenAt, takenAt: null, wokenAt: null, refused: 0 });
          return place;
        }
        this.#fleet.wake(place);
      }
      await this.#pause(20);
    }
    return null;
  }

  async #storeIsFree(): Promise<boolean> {
    const free = this.#tables.isFree(this.#engine).catch(() => false);
    return Promise.race([free, pause(STORE_ANSWERS_MS, false)]);
  }

  async #heldBy(workerId: string): Promise<number> {
    const workers = await this.#engine.workers();
    return workers.find(({ id, state }) => id === workerId && state === "live")?.heldCount ?? 0;
  }

  async #fact(holds: () => boolean | Promise<boolean>): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS;
    while (!(await holds()) && performance.now() < deadline && !this.#options.signal.aborted) await this.#pause(25);
  }

  #places(): readonly Place[] {
    return this.#fleet.places();
  }

  #live(): readonly Place[] {
    return this.#places().filter(({ state }) => state === "live");
  }

  #share(): number {
    const { end } = this.#options;
    return "afterMs" in end
      ? (performance.now() - (this.#began ?? 0)) / end.afterMs
      : this.#fleet.kills.length / end.afterKills;
  }

  async #pause(ms: number): Promise<void> {
    await pause(ms, undefined, { signal: this.#options.signal }).catch(() => {});
  }
}

// Seeded randomness: one seed gives the same jobs and the same intended kills. Which processes are really hit depends
// on the machine.

export class Chance {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** Uniform in [0, 1). mulberry32. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** A whole number from `min` to `max`, both included. */
  whole(min: number, max: number): number {
    return min + Math.floor(this.next() * (max - min + 1));
  }

  pick<T>(of: readonly T[]): T | undefined {
    return of[Math.floor(this.next() * of.length)];
  }
}
