// The nemesis: kills workers again and again, all of them once at the same moment, and freezes one past its lease while it
// surely holds jobs. It waits on facts (who lives, what the store says), so a slow machine makes it slower, not different.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../index.ts";
import type { Chance } from "./chance.ts";
import type { Fleet, Place } from "./fleet.ts";
import { rejectedWritesOf } from "./facts.ts";
import { count } from "./ink.ts";
import { vaultOf } from "./vault.ts";

/** What happened to the worker that was frozen. */
export interface Freeze {
  readonly place: number;
  readonly workerId: string;
  readonly held: number;
  readonly frozenAt: number;
  /** When the others took its jobs; null: they did not. */
  takenAt: number | null;
  wokenAt: number | null;
  /** Its writes that were refused after it woke. */
  rejected: number;
}

/** When, as shares of the time under fire. */
const MASSACRE = 0.25;
const FREEZE = 0.42;

/** How long the nemesis waits for a fact before it goes on without it. */
const PATIENCE_MS = 15_000;

export interface NemesisOptions {
  readonly forMs: number;
  readonly signal: AbortSignal;
  readonly tell: (what: string) => void;
}

export class Nemesis {
  massacreAt: number | null = null;
  frozen: Freeze | null = null;
  readonly #engine: Engine;
  readonly #fleet: Fleet;
  readonly #chance: Chance;
  readonly #options: NemesisOptions;
  readonly #everyMs: number;
  #began: number | null = null;
  #freezingSince: number | null = null;
  #over = false;

  constructor(engine: Engine, fleet: Fleet, chance: Chance, options: NemesisOptions) {
    this.#engine = engine;
    this.#fleet = fleet;
    this.#chance = chance;
    this.#options = options;
    this.#everyMs = Math.max(400, options.forMs / 22);
  }

  async run(): Promise<void> {
    await this.#fact(() => this.#live().length >= this.#fleet.places.length / 2);
    this.#began = performance.now();
    await this.#raidUntil(() => this.#share() >= MASSACRE);
    await this.#massacre();
    await this.#raidUntil(() => this.#share() >= FREEZE);
    let thawed = false;
    const freezing = this.#freezeOne().finally(() => (thawed = true));
    await this.#raidUntil(() => thawed && this.#share() >= 1);
    await freezing;
    this.#over = true;
  }

  /**
   * From 0 to 1, for whoever brings the work: a part is kept until one is to be frozen, who must have something in its hands, and
   * the rest until it is over.
   */
  get progress(): number {
    if (this.#over) return 1;
    if (this.#began === null) return 0;
    if (this.frozen) return Math.max(0.7, Math.min(0.95, this.#share()));
    if (this.#freezingSince === null) return Math.min(0.6, this.#share());
    return 0.7 + 0.25 * Math.min(1, (performance.now() - this.#freezingSince) / 8_000);
  }

  /** One kill after the other; now and then one that is only just starting. */
  async #raidUntil(over: () => boolean): Promise<void> {
    for (;;) {
      const next = performance.now() + this.#everyMs * (0.5 + this.#chance.next());
      const early = this.#chance.next() < 0.2;
      let victim: Place | undefined;
      while (!victim) {
        if (over() || this.#options.signal.aborted) return;
        await this.#pause(10);
        if (performance.now() >= next) victim = this.#chance.pick(this.#targets(early));
      }
      const when = victim.state === "starting" ? " while it was starting" : "";
      if (this.#fleet.kill([victim]).length > 0) this.#options.tell(`killed worker ${victim.number}${when}`);
    }
  }

  /**
   * Who may be killed now: nobody while less than half of the places would be left alive, or a slow machine would never get any
   * work done. While one is frozen, the longest-lived of the others is spared: silence has to be watched for a whole lease by one
   * witness. And a zombie is left alone until it has tried to write.
   */
  #targets(early: boolean): readonly Place[] {
    const { places } = this.#fleet;
    const live = this.#live();
    const frozen = places.some(({ state }) => state === "frozen");
    if (live.length + (frozen ? 1 : 0) <= places.length / 2) return [];
    const young = places.filter(({ state }) => state === "starting");
    if (early && young.length > 0) return young;
    const witness = frozen ? [...live].sort((a, b) => a.sinceAt - b.sinceAt)[0] : undefined;
    const zombie = this.frozen?.rejected === 0 ? this.frozen.place : undefined;
    return live.filter((place) => place !== witness && place.number !== zombie);
  }

  async #massacre(): Promise<void> {
    await this.#fact(() => this.#live().length === this.#fleet.places.length);
    const kills = this.#fleet.kill(this.#fleet.places);
    this.massacreAt = kills[0]?.at ?? null;
    this.#options.tell(`killed all ${kills.length} workers at the same moment`);
  }

  async #freezeOne(): Promise<void> {
    const place = await this.#freezeWhileItHolds();
    const freeze = this.frozen;
    if (!place || !freeze) return;
    this.#options.tell(`froze worker ${place.number} with ${count(freeze.held, "job")} in its hands`);
    await this.#fact(async () => {
      const incidents = await this.#engine.incidents({ limit: 1_000 });
      freeze.takenAt = incidents.find(({ worker }) => worker === freeze.workerId)?.completedAt ?? null;
      return freeze.takenAt !== null;
    });
    await this.#pause(300);
    this.#fleet.wake(place);
    freeze.wokenAt = Date.now();
    this.#options.tell(`woke worker ${place.number}, now a zombie: its jobs belong to others`);
    await this.#fact(async () => {
      freeze.rejected = await rejectedWritesOf(this.#engine, freeze.workerId);
      return freeze.rejected > 0;
    });
  }

  /**
   * Stops a worker at a moment when it holds jobs and not the file's write lock: a process that is frozen inside a transaction
   * stops everybody, which loses nothing but shows nothing either. If the moment was wrong, it goes on and is stopped again.
   */
  async #freezeWhileItHolds(): Promise<Place | null> {
    this.#freezingSince = performance.now();
    const deadline = performance.now() + PATIENCE_MS;
    while (performance.now() < deadline && !this.#options.signal.aborted) {
      const live = this.#live();
      const place = live.length > 1 ? this.#chance.pick(live) : undefined;
      if (place?.workerId) {
        this.#fleet.freeze(place);
        const frozenAt = Date.now();
        await this.#pause(20);
        const held = (await this.#storeIsFree()) ? await this.#heldBy(place.workerId) : 0;
        if (held > 0 && place.state === "frozen") {
          const { number, workerId } = place;
          this.frozen = { place: number, workerId, held, frozenAt, takenAt: null, wokenAt: null, rejected: 0 };
          return place;
        }
        this.#fleet.wake(place);
      }
      await this.#pause(20);
    }
    return null;
  }

  async #storeIsFree(): Promise<boolean> {
    const free = vaultOf(this.#engine)
      .isFree(this.#engine)
      .catch(() => false);
    return Promise.race([free, pause(200, false)]);
  }

  async #heldBy(workerId: string): Promise<number> {
    const workers = await this.#engine.workers();
    return workers.find(({ id, state }) => id === workerId && state === "live")?.heldCount ?? 0;
  }

  async #fact(holds: () => boolean | Promise<boolean>): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS;
    while (!(await holds()) && performance.now() < deadline && !this.#options.signal.aborted) await this.#pause(25);
  }

  #live(): readonly Place[] {
    return this.#fleet.places.filter(({ state }) => state === "live");
  }

  #share(): number {
    return (performance.now() - (this.#began ?? 0)) / this.#options.forMs;
  }

  async #pause(ms: number): Promise<void> {
    await pause(ms, undefined, { signal: this.#options.signal }).catch(() => {});
  }
}
