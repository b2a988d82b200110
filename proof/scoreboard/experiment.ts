// What an experiment is: it plays with one contender and answers that contender's cells.
import type { Contender } from "./contenders.ts";
import type { Cells } from "./results.ts";
import type { Stage } from "./stage.ts";

export interface Experiment {
  readonly name: string;
  /** Those that wait more than they work are played by all contenders at the same time. */
  readonly together: boolean;
  /** What is played more than once, in turns, so that what else the machine does falls on all contenders; their median counts. */
  readonly rounds?: { readonly count: number; readonly merge: (found: readonly Cells[]) => Cells };
  run(stage: Stage, contender: Contender, quick: boolean): Promise<Cells>;
}

/** Looks again and again until it is so; false if it was not within the time. */
export async function until(withinMs: number, isSo: () => boolean | Promise<boolean>): Promise<boolean> {
  const from = performance.now();
  while (!(await isSo())) {
    if (performance.now() - from > withinMs) return false;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return true;
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
