// Many histories of requests, and the hunt for bugs on purpose among them.
import type { Mutant } from "../mutants/mutant.ts";
import type { Caught } from "../mutation.ts";
import { REQUEST_MUTANTS } from "./mutants.ts";
import { simulateRequests } from "./world.ts";

export interface RequestCampaign {
  readonly seeds: number;
  readonly requests: number;
  readonly arrivals: number;
  readonly kills: number;
  readonly asked: number;
  readonly lost: number;
  readonly callbacksWrong: number;
  readonly sentTwice: number;
  readonly inversions: number;
  readonly violations: number;
  /** What was broken, and by which seed. */
  readonly broken: readonly string[];
}

export async function runRequestHistories(from: number, seeds: number, mutant?: Mutant): Promise<RequestCampaign> {
  const broken: string[] = [];
  const sum = { requests: 0, arrivals: 0, kills: 0, asked: 0 };
  for (let seed = from; seed < from + seeds; seed++) {
    const history = await simulateRequests(seed, mutant);
    sum.requests += history.requests;
    sum.arrivals += history.arrivals;
    sum.kills += history.kills;
    sum.asked += history.asked;
    if (history.violation !== null) broken.push(`seed ${seed}: ${history.violation}`);
  }
  const of = (law: string): number => broken.filter((one) => one.includes(`: ${law}: `)).length;
  return {
    seeds,
    ...sum,
    lost: of("lost"),
    callbacksWrong: of("callback"),
    sentTwice: of("twice"),
    inversions: of("inversion"),
    violations: broken.length,
    broken,
  };
}

const LAWS = /^(lost|callback|twice|inversion): /;

/** A mutant counts as found if a law finds it, and the same seed finds nothing without it. */
export async function huntRequests(budget: number, mutants = REQUEST_MUTANTS): Promise<readonly Caught[]> {
  const caught: Caught[] = [];
  for (const mutant of mutants) caught.push(await hunt(mutant, budget));
  return caught;
}

async function hunt(mutant: Mutant, budget: number): Promise<Caught> {
  const { name } = mutant;
  for (let seed = 1; seed <= budget; seed++) {
    const { violation } = await simulateRequests(seed, mutant);
    if (violation === null) continue;
    const why = !LAWS.test(violation)
      ? `no law was broken, but an error was thrown: ${violation}`
      : (await simulateRequests(seed)).violation;
    return why === null
      ? { mutant: name, seed, seeds: seed, violation }
      : { mutant: name, seed: null, seeds: seed, violation: why };
  }
  return { mutant: name, seed: null, seeds: budget, violation: null };
}
