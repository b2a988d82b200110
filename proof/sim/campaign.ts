// Many seeds, one after the other: sums what they saw, replays every hundredth, and stops at nothing but the number it was given.
import { type History, simulate } from "./history.ts";
import { isVoid } from "./oracle/tally.ts";
import type { WorldOptions } from "./world/world.ts";

export interface Campaign {
  readonly seeds: number;
  readonly violations: number;
  readonly void: number;
  readonly takeovers: number;
  readonly staleWrites: number;
  readonly ambiguous: number;
  readonly simulatedHours: number;
}

export interface CampaignOptions extends WorldOptions {
  readonly from: number;
  readonly seeds: number;
  readonly onHistory?: (history: History, done: number) => void | Promise<void>;
}

/** Seeds 1, 101, 201, ... are run twice and compared. */
const REPLAY_EVERY = 100;

export const NO_CAMPAIGN: Campaign = {
  seeds: 0,
  violations: 0,
  void: 0,
  takeovers: 0,
  staleWrites: 0,
  ambiguous: 0,
  simulatedHours: 0,
};

export async function runCampaign(options: CampaignOptions): Promise<Campaign> {
  let sum = NO_CAMPAIGN;
  for (let seed = options.from; seed < options.from + options.seeds; seed++) {
    let history = await simulate(seed, options);
    if (seed % REPLAY_EVERY === 1) history = await replayed(history, options);
    sum = together(sum, campaignOf(history));
    await options.onHistory?.(history, sum.seeds);
  }
  return sum;
}

export function together(one: Campaign, other: Campaign): Campaign {
  const names = Object.keys(one) as (keyof Campaign)[];
  const sums = names.map((name) => [name, one[name] + other[name]]);
  const { simulatedHours, ...counts } = Object.fromEntries(sums) as unknown as Campaign;
  return { ...counts, simulatedHours: Math.round(simulatedHours * 1e6) / 1e6 };
}

export function campaignOf({ violation, tally, simulatedMs }: History): Campaign {
  return {
    seeds: 1,
    violations: violation === null ? 0 : 1,
    void: violation === null && isVoid(tally) ? 1 : 0,
    takeovers: tally.takeovers,
    staleWrites: tally.staleWrites,
    ambiguous: tally.ambiguous,
    simulatedHours: simulatedMs / 3_600_000,
  };
}

/** A history whose account is not the same each time is worth nothing. */
async function replayed(history: History, options: WorldOptions): Promise<History> {
  const again = await simulate(history.seed, options);
  if (again.digest === history.digest) return history;
  const at = history.story.findIndex((line, i) => line !== again.story[i]);
  const differ = at < 0 ? "before the lines that are kept" : `first here: ${history.story[at]} / ${again.story[at]}`;
  return {
    ...history,
    violation: history.violation ?? `the replay of seed ${history.seed} was another history, ${differ}`,
  };
}
