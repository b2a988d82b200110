// Every kind of harm by its name, and the one gate that each single strike of it passes. Chance is drawn before the gate, so a
// strike that is muted changes nothing else: that is how a failing seed is made smaller without becoming another seed.

export const FAULT_KINDS = [
  "kill",
  "killAll",
  "pause",
  "suspend",
  "stall",
  "ambush",
  "block",
  "clockJump",
  "hostClockJump",
  "slow",
  "requestLost",
  "answerLost",
  "busy",
  "fullDisk",
  "storeRestart",
  "powerLoss",
  "killRecovery",
  "killMigration",
  "deploy",
  "cut",
  "blockStore",
  "restore",
] as const;
export type FaultKind = (typeof FAULT_KINDS)[number];

/** What is left out of a history, in addition to what its seed leaves out. */
export interface Muted {
  readonly kinds?: ReadonlySet<FaultKind>;
  /** Single strikes, by the names that `Faults` gave them. */
  readonly strikes?: ReadonlySet<string>;
}

export class Faults {
  readonly #muted: Muted;
  readonly #counts = new Map<string, number>();
  /** What has struck, in its order. */
  readonly struck: string[] = [];

  constructor(muted: Muted) {
    this.#muted = muted;
  }

  /** Whether this strike happens. `whom` names the victim: the n-th strike on it has the same name in every run. */
  strikes(kind: FaultKind, whom: string): boolean {
    const place = `${kind} ${whom}`;
    const count = (this.#counts.get(place) ?? 0) + 1;
    this.#counts.set(place, count);
    const name = `${place} ${count}`;
    if (this.#muted.kinds?.has(kind) || this.#muted.strikes?.has(name)) return false;
    this.struck.push(name);
    return true;
  }
}
