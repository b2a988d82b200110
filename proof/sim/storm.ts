// A storm of kills from outside over short innocent jobs and one poison: who is blamed. It measures the rule of blame, and is not
// a law: an innocent whose every run is killed can't be told from a poison.
import { simulate } from "./history.ts";
import type { Mutant } from "./mutants/mutant.ts";
import { NO_ACTS } from "./world/temper.ts";

export interface Storm {
  readonly seeds: number;
  readonly deaths: number;
  readonly innocentsQuarantined: number;
  /** How many would have been by the number of their deaths alone. */
  readonly innocentsAccused: number;
  readonly poisonQuarantined: number;
  readonly violations: number;
  /** What was broken, and by which seed. */
  readonly broken: readonly string[];
}

/** `mutant`: a bug on purpose. */
export async function runStorm(seeds: number, mutant?: Mutant): Promise<Storm> {
  const broken: string[] = [];
  const sum = { seeds, deaths: 0, innocentsQuarantined: 0, innocentsAccused: 0, poisonQuarantined: 0, violations: 0 };
  for (let seed = 1; seed <= seeds; seed++) {
    const { tally, violation } = await simulate(seed, { temper: STORM, ...(mutant && { mutant }) });
    sum.deaths += tally.deaths;
    sum.innocentsQuarantined += tally.innocents;
    sum.innocentsAccused += tally.accused;
    sum.poisonQuarantined += tally.quarantined - tally.innocents;
    if (tally.innocents > 0) broken.push(`seed ${seed}: ${tally.innocents} innocents are in quarantine`);
    if (violation === null) continue;
    sum.violations++;
    broken.push(`seed ${seed}: ${violation}`);
  }
  return { ...sum, broken };
}

const STORM = {
  workers: 4,
  concurrency: 1,
  jobs: 40,
  locksProve: true,
  workloads: ["money", "poison"],
  requestLost: 0,
  answerLost: 0,
  slow: 0,
  stall: 0,
  killRecovery: 0,
  killMigration: 0,
  durability: "full",
  nemesisEveryMs: 250,
  nemesis: { ...NO_ACTS, kill: 1 },
  faultsMs: 40_000,
  producers: 1,
} as const;
