// The figures of isolation (src/job/isolation.ts), each a law in a history in which nothing else goes wrong:
//
// - A culprit among 50 jobs that outlast the search: it is in quarantine after at most ceil(log2(50)) + its limit deaths.
// - 1,000 slow jobs in one worker, two others come up, and twice the worker with the most jobs is killed: all run again within 5 s.
//
// In neither is any other job ever blamed.
import { simulate } from "./history.ts";
import type { Mutant } from "./mutants/mutant.ts";
import { allowedDeaths } from "./oracle/isolation-law.ts";
import { kindFacts } from "./workloads/index.ts";
import { NO_ACTS, type Profile } from "./world/profile.ts";
import { RUN_AGAIN_MS } from "./world/two-kills.ts";

const JOBS = 50;
const SLOW_JOBS = 1_000;
/** A history of 1,000 jobs costs as much as so many of 50. */
const SLOW_EVERY = 10;

const QUIET = {
  locksProve: true,
  sessions: false,
  hosts: 1,
  requestLost: 0,
  answerLost: 0,
  slow: 0,
  stall: 0,
  killRecovery: 0,
  killMigration: 0,
  durability: "full",
  nemesis: NO_ACTS,
  producers: 1,
  console: false,
} as const satisfies Partial<Profile>;

export const CULPRIT: Partial<Profile> = {
  ...QUIET,
  isolation: "culprit",
  workloads: ["crowd", "poison"],
  jobsOf: { crowd: JOBS - 1, poison: 1 },
  workers: 1,
  concurrency: JOBS,
  faultsMs: 2_000,
};

export const TWO_KILLS: Partial<Profile> = {
  ...QUIET,
  isolation: "twoKills",
  workloads: ["crowd"],
  jobsOf: { crowd: SLOW_JOBS },
  jobs: SLOW_JOBS,
  workers: 3,
  concurrency: SLOW_JOBS,
  recoveryBatch: 1_000,
  faultsMs: 30_000,
};

export interface Isolation {
  /** Histories of a culprit among 50. */
  readonly seeds: number;
  readonly deaths: number;
  readonly culpritDeaths: number;
  readonly allowedCulpritDeaths: number;
  /** Histories of 1,000 slow jobs. */
  readonly slowSeeds: number;
  readonly runAgainMs: number;
  readonly allowedRunAgainMs: number;
  readonly innocentsQuarantined: number;
  readonly violations: number;
  /** What was broken, and by which seed. */
  readonly broken: readonly string[];
}

/** `mutant`: a bug on purpose. */
export async function runIsolation(seeds: number, mutant?: Mutant): Promise<Isolation> {
  const planted = mutant ? { mutant } : {};
  const broken: string[] = [];
  const sum = { deaths: 0, culpritDeaths: 0, slowSeeds: 0, runAgainMs: 0, innocentsQuarantined: 0 };
  const play = async (seed: number, profile: Partial<Profile>): Promise<void> => {
    const { tally, violation } = await simulate(seed, { ...planted, profile });
    sum.deaths += tally.deaths;
    sum.culpritDeaths = Math.max(sum.culpritDeaths, tally.culpritDeaths);
    sum.runAgainMs = Math.max(sum.runAgainMs, Math.ceil(tally.runAgainMs));
    sum.innocentsQuarantined += tally.innocents;
    if (violation !== null) broken.push(`seed ${seed}, ${profile.isolation}: ${violation}`);
  };
  for (let seed = 1; seed <= seeds; seed++) {
    // One worker holds all of them; several share them, and each of the others takes a group of its own.
    await play(seed, { ...CULPRIT, workers: 1 + (seed % 3) });
    if (seed % SLOW_EVERY !== 1) continue;
    sum.slowSeeds++;
    await play(seed, TWO_KILLS);
  }
  return {
    seeds,
    deaths: sum.deaths,
    culpritDeaths: sum.culpritDeaths,
    allowedCulpritDeaths: allowedDeaths(JOBS, kindFacts("poison").limits.crashes),
    slowSeeds: sum.slowSeeds,
    runAgainMs: sum.runAgainMs,
    allowedRunAgainMs: RUN_AGAIN_MS,
    innocentsQuarantined: sum.innocentsQuarantined,
    violations: broken.length,
    broken,
  };
}
