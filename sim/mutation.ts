// Every mutant, seed after seed until the oracle finds it. One that is not found within its budget means that a promise is not
// watched.
import { type History, simulate } from "./history.ts";
import type { Mutant } from "./mutants/mutant.ts";

export interface Caught {
  readonly mutant: string;
  /** The seed that found it; null: none did. */
  readonly seed: number | null;
  readonly seeds: number;
  readonly violation: string | null;
}

/** `focused`: in the weather in which it shows soonest, instead of any. */
export async function hunt(mutant: Mutant, from: number, budget: number, focused = false): Promise<Caught> {
  const options = focused && mutant.focus ? { mutant, temper: mutant.focus } : { mutant };
  for (let seed = from; seed < from + budget; seed++) {
    const history: History = await simulate(seed, options);
    if (history.violation !== null)
      return { mutant: mutant.name, seed, seeds: seed - from + 1, violation: history.violation };
  }
  return { mutant: mutant.name, seed: null, seeds: budget, violation: null };
}
