// Violence to what is around the processes: the server, the network, the disk. One strike at a time, a number that depends on the kills, and each
// kind once before any comes again, with calm between two, so that what is measured of a well store is measured on one; and the record of
// when the store was broken on purpose.
import type { Engine } from "../../../src/index.ts";
import { Chance } from "../../../src/torture/killer.ts";
import type { Place } from "./fleet.ts";

/** Passed by the caller that starts the rig. */
export interface Fault {
  /** Names it on the command line and in the JSON line. */
  readonly key: string;
  readonly name: string;
  /** How long after its end the engine may still hold back, or a process fail to start. */
  readonly aftermathMs: number;
  /** Breaks something and repairs it again. Throws `NotDone` if it could not break it. */
  strike(chance: Chance, signal: AbortSignal, context: FaultContext): Promise<void>;
}

/** What a strike may use of the run that it is part of. */
export interface FaultContext {
  /** Opened directly on the store, past anything that a strike breaks. */
  readonly engine: Engine;
  /** Live workers that nothing else is done to. */
  targets(): readonly Place[];
  /** Until the strike has ended, no other act touches this worker, except one that kills every process. */
  hold(place: Place): void;
  freeze(place: Place): void;
  wake(place: Place): void;
  /** Whether the rig has killed or frozen this worker at any time. */
  wasHit(workerId: string): boolean;
  /** Whether a job has ended the process that it ran in, as the poison of the rig does. */
  endedByItsJob(pid: number): Promise<boolean>;
  /** Enqueues a job for the strike and returns its id. Throws `NotDone` if the store does not take it. */
  enqueue(contract: object, input: unknown): Promise<string>;
  /** The next worker, among those that `fits` accepts, that is inside a long commit; null: none within this time. */
  nextCommit(fits: (place: Place) => boolean, withinMs: number): Promise<{ place: Place; job: string } | null>;
  /** Adds a sentence to the violations of the run. */
  violation(sentence: string): void;
}

/** A fault that could not be brought about: nothing is shown by it. */
export class NotDone extends Error {}

interface Strike {
  readonly name: string;
  readonly at: number;
  /** With its aftermath; Infinity: it is still broken. */
  overAt: number;
}

/**
 * One strike in so many kills until each fault was there once, then in so many: with the twelve of PostgreSQL, 200 kills meet each of them,
 * and 5,000 each some 10 times, while the store is well for most of the time.
 */
const KILLS_PER_STRIKE = { first: 16, later: 40 } as const;
/** At the least, however fast the kills are. */
const CALM_MS = 3_000;

export class FaultSchedule {
  /** How often each fault was brought about. */
  readonly done = new Map<string, number>();
  /** What could not be brought about, with the reason. */
  readonly undone: { readonly name: string; readonly why: string }[] = [];
  readonly #faults: readonly Fault[];
  readonly #chance: Chance;
  readonly #signal: AbortSignal;
  readonly #context: Omit<FaultContext, "hold">;
  /** How often each fault strikes in a run that kills no process; null: strikes come with the kills. */
  readonly #rounds: number | null;
  readonly #past: Strike[] = [];
  /** Workers that the strike under way has to itself. */
  readonly #held = new Set<Place>();
  #bag: Fault[] = [];
  #begun = 0;
  /** The number of kills that the strikes so far were spread over. */
  #spread = 0;
  /** The number of kills after which the next one comes. */
  #dueAt: number;
  #current: Promise<void> | null = null;
  #calmUntil = 0;
  #failed: { readonly thrown: unknown } | null = null;

  /** A chance of its own, so that the plan is that of the seed, whatever the machine does meanwhile. */
  constructor(
    faults: readonly Fault[],
    chance: Chance,
    signal: AbortSignal,
    context: Omit<FaultContext, "hold">,
    rounds: number | null = null,
  ) {
    this.#faults = faults;
    this.#chance = chance;
    this.#signal = signal;
    this.#context = context;
    this.#rounds = rounds;
    this.#dueAt = this.#nextDue();
  }

  /** How often each fault was brought about, by its key. */
  get counts(): Readonly<Record<string, number>> {
    return Object.fromEntries(this.#faults.map(({ key, name }) => [key, this.done.get(name) ?? 0]));
  }

  /** The strike under way has this worker to itself. */
  holds(place: Place): boolean {
    return this.#held.has(place);
  }

  /** A strike belongs to this many kills and has not begun yet. */
  owes(kills: number): boolean {
    if (this.#faults.length === 0) return false;
    return this.#rounds === null ? kills >= this.#dueAt : this.#begun < this.#rounds * this.#faults.length;
  }

  /** Nothing around the processes is broken now, nor was a moment ago. */
  get storeIsWell(): boolean {
    return this.#past.length === 0 || this.#past.at(-1)!.overAt < Date.now();
  }

  /** Begins the next one if it is due after this many kills, and answers its name. In the background: the acts of the killer go on meanwhile. */
  beginIfDue(kills: number): string | null {
    this.#throwIfFailed();
    if (!this.owes(kills) || this.#current || this.#calmUntil > Date.now()) return null;
    const fault = this.#draw();
    this.#begun++;
    this.#dueAt = this.#nextDue();
    this.#begin(fault);
    return fault.name;
  }

  async finished(): Promise<void> {
    await this.#current;
    this.#throwIfFailed();
  }

  /** The strikes, with their aftermath, that fell into this time. */
  during(from: number, to: number): readonly string[] {
    return this.#past.filter(({ at, overAt }) => at <= to && from <= overAt).map(({ name }) => name);
  }

  #begin(fault: Fault): void {
    const { name, aftermathMs } = fault;
    const strike: Strike = { name, at: Date.now(), overAt: Infinity };
    this.#past.push(strike);
    // How often it asks chance may depend on the machine.
    const chance = new Chance(this.#chance.whole(0, 2 ** 31));
    const context = { ...this.#context, hold: (place: Place) => void this.#held.add(place) };
    this.#current = fault
      .strike(chance, this.#signal, context)
      .then(
        () => void this.done.set(name, (this.done.get(name) ?? 0) + 1),
        (thrown: unknown) => {
          if (thrown instanceof NotDone) this.undone.push({ name, why: thrown.message });
          else this.#failed ??= { thrown };
        },
      )
      .then(() => {
        this.#held.clear();
        strike.overAt = Date.now() + aftermathMs;
        // Where no process is killed, nothing is measured that calm would be needed for.
        this.#calmUntil = this.#rounds === null ? strike.overAt + CALM_MS : 0;
        this.#current = null;
      });
  }

  #draw(): Fault {
    if (this.#bag.length === 0) this.#bag = [...this.#faults];
    return this.#bag.splice(this.#chance.whole(0, this.#bag.length - 1), 1)[0]!;
  }

  /** Evenly over the kills, but at no kill that could be known before. */
  #nextDue(): number {
    const kills = this.#begun < this.#faults.length ? KILLS_PER_STRIKE.first : KILLS_PER_STRIKE.later;
    const dueAt = this.#spread + this.#chance.whole(kills / 4, (kills * 3) / 4);
    this.#spread += kills;
    return dueAt;
  }

  /** Whatever was broken is not repaired: nothing that comes after it would show anything. */
  #throwIfFailed(): void {
    if (this.#failed) throw this.#failed.thrown;
  }
}
