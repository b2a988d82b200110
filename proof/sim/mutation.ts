// Every mutant, seed after seed until a law finds it. One that is not found within its budget means that a promise is not watched;
// one that stumbles over itself, or whose seed finds something without it too, has proved nothing.
import { type History, simulate } from "./history.ts";
import type { Mutant } from "./mutants/mutant.ts";

export interface Caught {
  readonly mutant: string;
  /** The seed that found it; null: none did. */
  readonly seed: number | null;
  readonly seeds: number;
  /** The law that found it, or why what was seen does not count. */
  readonly violation: string | null;
}

/** So many seeds of a focus are played without their mutant, next to the one that found it. */
const CONTROLS = 2;

/** `focused`: in the conditions in which it shows soonest, instead of any. */
export async function hunt(mutant: Mutant, from: number, budget: number, focused = false): Promise<Caught> {
  const sound = focused && mutant.focus ? { profile: mutant.focus } : {};
  const missed = (seeds: number, why: string | null): Caught => ({
    mutant: mutant.name,
    seed: null,
    seeds,
    violation: why,
  });
  const controls = focused ? Array.from({ length: CONTROLS }, (_, i) => from + i) : [];
  for (let seed = from; seed < from + budget; seed++) {
    const { violation, lawBroken }: History = await simulate(seed, { ...sound, mutant });
    if (violation === null) continue;
    const seeds = seed - from + 1;
    if (!lawBroken) return missed(seeds, `no law was broken, but an error was thrown: ${violation}`);
    for (const control of new Set([...controls, seed])) {
      const { violation: without } = await simulate(control, sound);
      if (without !== null) return missed(seeds, `seed ${control} finds something without the mutant: ${without}`);
    }
    return { mutant: mutant.name, seed, seeds, violation };
  }
  // Some faults are rare in any conditions; a law that sees the mutant in the conditions that was made for it watches the promise all the same.
  return focused || !mutant.focus ? missed(budget, null) : hunt(mutant, from, budget, true);
}
