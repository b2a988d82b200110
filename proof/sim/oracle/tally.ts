// What a history has seen, in numbers. A history without a takeover, a stale write or an ambiguous answer proves nothing.

export interface Tally {
  /** Jobs that recovery took from a worker. */
  takeovers: number;
  /** Writes that the store refused because of their fence. */
  staleWrites: number;
  /** Writes that were applied and whose answer never came. */
  ambiguous: number;
  deaths: number;
  pauses: number;
  succeeded: number;
  quarantined: number;
  /** Jobs in quarantine that never killed anybody. */
  innocents: number;
  /** Of those that never killed anybody: how many reached their limit of deaths alone. */
  accused: number;
  /** How many workers died that held the job that kills. */
  culpritDeaths: number;
  /** How long it took at most after a kill until all jobs ran again (virtual ms). */
  runAgainMs: number;
  powerLosses: number;
  /** Acknowledged under "relaxed" durability, and gone with the power. */
  lostWithPower: number;
  restores: number;
  /** Acknowledged after a backup was taken, and gone when it was restored. */
  takenBack: number;
}

export function newTally(): Tally {
  return {
    takeovers: 0,
    staleWrites: 0,
    ambiguous: 0,
    deaths: 0,
    pauses: 0,
    succeeded: 0,
    quarantined: 0,
    innocents: 0,
    accused: 0,
    culpritDeaths: 0,
    runAgainMs: 0,
    powerLosses: 0,
    lostWithPower: 0,
    restores: 0,
    takenBack: 0,
  };
}

export function isVoid(tally: Tally): boolean {
  return tally.takeovers === 0 && tally.staleWrites === 0 && tally.ambiguous === 0;
}
