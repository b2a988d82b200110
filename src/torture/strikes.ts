// Violence to what is around the processes: the server, the network, the disk. One strike at a time, with calm between two, so that what
// is measured of a well store is measured on one; and the record of when the store was broken on purpose.
import type { Chance } from "../demo/chance.ts";

/** Brought by whoever starts the rig. */
export interface Fault {
  readonly name: string;
  /** How often, beside the other faults. */
  readonly weight: number;
  /** How long after its end the engine may still hold back, or a process fail to start. */
  readonly aftermathMs: number;
  /** Breaks something and mends it again. */
  strike(chance: Chance, signal: AbortSignal): Promise<void>;
}

interface Strike {
  readonly name: string;
  readonly at: number;
  /** With its aftermath; Infinity: it is still broken. */
  overAt: number;
}

const LEAST_CALM_MS = 8_000;
const MOST_CALM_MS = 24_000;

export class Strikes {
  readonly #chance: Chance;
  readonly #signal: AbortSignal;
  readonly #past: Strike[] = [];
  #current: Promise<void> | null = null;
  #calmUntil = 0;

  constructor(chance: Chance, signal: AbortSignal) {
    this.#chance = chance;
    this.#signal = signal;
  }

  /** Nothing around the processes is broken now, nor was a moment ago. */
  get storeIsWell(): boolean {
    return this.#past.length === 0 || this.#past.at(-1)!.overAt < Date.now();
  }

  get mayBegin(): boolean {
    return this.#current === null && this.#calmUntil < Date.now();
  }

  /** In the background: the acts of the nemesis go on meanwhile. */
  begin(fault: Fault): void {
    const strike: Strike = { name: fault.name, at: Date.now(), overAt: Infinity };
    this.#past.push(strike);
    this.#current = fault.strike(this.#chance, this.#signal).finally(() => {
      strike.overAt = Date.now() + fault.aftermathMs;
      this.#calmUntil = strike.overAt + this.#chance.whole(LEAST_CALM_MS, MOST_CALM_MS);
      this.#current = null;
    });
  }

  async finished(): Promise<void> {
    await this.#current;
  }

  /** The strikes, with their aftermath, that fell into this time. */
  during(from: number, to: number): readonly string[] {
    return this.#past.filter(({ at, overAt }) => at <= to && from <= overAt).map(({ name }) => name);
  }
}
