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
  /** Every how many-th seed is run twice and compared. Default 100. */
  readonly replayEvery?: number;
  readonly onHistory?: (history: History, done: number) => void;
  /** Stops at the first violation. */
  readonly untilFirst?: boolean;
}

export async function runCampaign(options: CampaignOptions): Promise<Campaign> {
  const sum = { seeds: 0, violations: 0, void: 0, takeovers: 0, staleWrites: 0, ambiguous: 0 };
  let simulatedMs = 0;
  for (let seed = options.from; seed < options.from + options.seeds; seed++) {
    let history = await simulate(seed, options);
    if ((seed - options.from) % (options.replayEvery ?? 100) === 0) history = await replayed(history, options);
    sum.seeds++;
    simulatedMs += history.simulatedMs;
    if (history.violation !== null) sum.violations++;
    else if (isVoid(history.tally)) sum.void++;
    sum.takeovers += history.tally.takeovers;
    sum.staleWrites += history.tally.staleWrites;
    sum.ambiguous += history.tally.ambiguous;
    options.onHistory?.(history, sum.seeds);
    if (options.untilFirst && sum.violations > 0) break;
  }
  return { ...sum, simulatedHours: Math.round(simulatedMs / 3_600) / 1_000 };
}

/** A history that can't be told twice in the same words is worth nothing. */
async function replayed(history: History, options: WorldOptions): Promise<History> {
  const again = await simulate(history.seed, options);
  if (again.digest === history.digest) return history;
  const at = history.story.findIndex((line, i) => line !== again.story[i]);
  const differ = `first at the end of the story: ${history.story[at]} / ${again.story[at]}`;
  return {
    ...history,
    violation: history.violation ?? `the replay of seed ${history.seed} was another history, ${differ}`,
  };
}
