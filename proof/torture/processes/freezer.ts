// Zombies: workers that are frozen for longer than their lease, lose their work to others, and are woken into a world in which they are
// dead. Counted are those alone that were recovered while they were frozen and are seen at work after it, under a new name.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../../../src/index.ts";
import { standsStill } from "../../../src/torture/audit.ts";
import type { Chance } from "../../../src/torture/killer.ts";
import type { Place, RigFleet } from "./fleet.ts";
import type { Told } from "./history.ts";
import { flaky } from "./jobs.ts";
import { orderOf, placeOrder } from "./order.ts";
import { LEASE_MS } from "./settings.ts";

/** Frozen at once: the others have to watch, for a whole lease each. */
const MOST_FROZEN = 2;
/** How often another instant is tried when one was inside a transaction. */
const MOST_TRIES = 8;
const STORE_ANSWERS_MS = 120;
const STILL_WITHIN_MS = 1_000;
const TAKEN_WITHIN_MS = 10_000;
const BACK_WITHIN_MS = 10_000;
const LOOK_EVERY_MS = 60;
/** So many deaths lie between a death and its incident, at the most. */
const LATEST_INCIDENTS = 40;

/** What became of a freeze. */
type End =
  | "a zombie"
  | "always inside a transaction"
  | "killed meanwhile"
  | "not taken for dead in time"
  | "not back in time";

export class Freezer {
  /** How often each end came. */
  readonly ends = new Map<End, number>();
  readonly #engine: Engine;
  readonly #fleet: RigFleet;
  readonly #chance: Chance;
  readonly #signal: AbortSignal;
  readonly #tell: (told: Told) => void;
  readonly #held = new Map<Place, Promise<void>>();
  #probes = 0;

  /** `tell`: into the history of this process. */
  constructor(engine: Engine, fleet: RigFleet, chance: Chance, signal: AbortSignal, tell: (told: Told) => void) {
    this.#engine = engine;
    this.#fleet = fleet;
    this.#chance = chance;
    this.#signal = signal;
    this.#tell = tell;
  }

  get zombies(): number {
    return this.ends.get("a zombie") ?? 0;
  }

  /** How many are under way. */
  get frozen(): number {
    return this.#held.size;
  }

  get hasRoom(): boolean {
    return this.#held.size < MOST_FROZEN;
  }

  /** To be left alone until it has ended. Killing it all the same costs a zombie, and nothing else. */
  holds(place: Place): boolean {
    return this.#held.has(place);
  }

  /** In the background: the others go on dying meanwhile. */
  begin(place: Place): void {
    const over = this.#freeze(place).then((end) => {
      if (place.state === "frozen") this.#fleet.wake(place);
      this.#held.delete(place);
      this.ends.set(end, (this.ends.get(end) ?? 0) + 1);
    });
    this.#held.set(place, over);
  }

  async finished(): Promise<void> {
    await Promise.all(this.#held.values());
  }

  async #freeze(place: Place): Promise<End> {
    const { workerId, pid } = place;
    if (!(await this.#stopBetweenWrites(place)))
      return place.pid === pid ? "always inside a transaction" : "killed meanwhile";
    if (!(await this.#wasTaken(place, workerId)))
      return isFrozen(place) ? "not taken for dead in time" : "killed meanwhile";
    await this.#pause(this.#chance.whole(0, LEASE_MS / 2));
    if (!isFrozen(place)) return "killed meanwhile";
    this.#fleet.wake(place);
    await this.#fact(() => place.state !== "live" || place.workerId !== workerId, BACK_WITHIN_MS);
    if (place.pid !== pid || place.state !== "live") return "killed meanwhile";
    return place.workerId === workerId ? "not back in time" : "a zombie";
  }

  /** A process that is frozen inside a transaction of a file stops everybody, which loses nothing and shows nothing either. */
  async #stopBetweenWrites(place: Place): Promise<boolean> {
    for (let tries = 1; tries <= MOST_TRIES && place.state === "live"; tries++) {
      this.#fleet.freeze(place);
      await this.#fact(() => standsStill(place.pid), STILL_WITHIN_MS);
      if (await this.#storeAnswers()) return true;
      this.#fleet.wake(place);
      await this.#pause(this.#chance.whole(1, 25));
    }
    return false;
  }

  /** By a write: a process that is frozen inside a transaction does not stop others from reading. */
  async #storeAnswers(): Promise<boolean> {
    const probe = orderOf(flaky, { failures: 0 }, { id: `probe-${++this.#probes}` });
    return Promise.race([placeOrder(this.#engine, probe, this.#tell), pause(STORE_ANSWERS_MS, false)]);
  }

  async #wasTaken(place: Place, workerId: string | null): Promise<boolean> {
    await this.#pause(LEASE_MS);
    let taken = false;
    await this.#fact(async () => {
      if (!isFrozen(place)) return true;
      const incidents = await this.#engine.incidents({ limit: LATEST_INCIDENTS }).catch(() => []);
      taken = incidents.some(({ worker, completedAt }) => worker === workerId && completedAt !== null);
      return taken;
    }, TAKEN_WITHIN_MS);
    return taken && isFrozen(place);
  }

  async #fact(holds: () => boolean | Promise<boolean>, patienceMs: number): Promise<boolean> {
    const deadline = performance.now() + patienceMs;
    while (!(await holds())) {
      if (performance.now() > deadline || this.#signal.aborted) return false;
      await this.#pause(LOOK_EVERY_MS);
    }
    return true;
  }

  async #pause(ms: number): Promise<void> {
    await pause(ms, undefined, { signal: this.#signal }).catch(() => {});
  }
}

function isFrozen({ state }: Place): boolean {
  return state === "frozen";
}
