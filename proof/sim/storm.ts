// A storm of kills from outside over short innocent jobs and one poison: who is blamed, with 1, 4 and 8 jobs at once in each of four
// workers. It measures the rule of blame. That no innocent is quarantined is not a law of every history, because an innocent whose
// every run is killed can't be distinguished from a poison; in these storms it must not happen.
import { simulate } from "./history.ts";
import type { Mutant } from "./mutants/mutant.ts";
import { NO_ACTS } from "./world/profile.ts";

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
    const concurrency = CONCURRENCIES[seed % CONCURRENCIES.length]!;
    const profile = { ...STORM, concurrency, jobs: JOBS_PER_SLOT * concurrency };
    const { tally, violation } = await simulate(seed, { profile, ...(mutant && { mutant }) });
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

const CONCURRENCIES = [1, 4, 8] as const;
const JOBS_PER_SLOT = 40;

const STORM = {
  workers: 4,
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
