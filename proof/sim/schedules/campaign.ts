// Many histories of schedules, and the hunt for bugs on purpose among them.
import type { Caught } from "../mutation.ts";
import { SCHEDULE_MUTANTS, type ScheduleMutant } from "./mutants.ts";
import { simulateSchedules } from "./world.ts";

export interface ScheduleCampaign {
  readonly seeds: number;
  readonly occurrences: number;
  readonly kills: number;
  readonly clockJumps: number;
  readonly simulatedDays: number;
  readonly occurrencesTwice: number;
  readonly occurrencesMissed: number;
  readonly occurrencesEarly: number;
  readonly violations: number;
  /** What was broken, and by which seed. */
  readonly broken: readonly string[];
}

export async function runSchedules(from: number, seeds: number, days: number): Promise<ScheduleCampaign> {
  const broken: string[] = [];
  const sum = { occurrences: 0, kills: 0, clockJumps: 0, simulatedDays: 0 };
  for (let seed = from; seed < from + seeds; seed++) {
    const history = await simulateSchedules(seed, days);
    sum.occurrences += history.fired;
    sum.kills += history.kills;
    sum.clockJumps += history.jumps;
    sum.simulatedDays += history.simulatedDays;
    if (history.violation !== null) broken.push(`seed ${seed}: ${history.violation}`);
  }
  const of = (law: string): number => broken.filter((one) => one.includes(`: ${law}`)).length;
  return {
    seeds,
    ...sum,
    occurrencesTwice: of("twice"),
    occurrencesMissed: of("missing") + of("stuck"),
    occurrencesEarly: of("early"),
    violations: broken.length,
    broken,
  };
}

export async function huntSchedules(budget: number, mutants = SCHEDULE_MUTANTS): Promise<readonly Caught[]> {
  const caught: Caught[] = [];
  for (const mutant of mutants) caught.push(await hunt(mutant, budget));
  return caught;
}

async function hunt(mutant: ScheduleMutant, budget: number): Promise<Caught> {
  for (let seed = 1; seed <= budget; seed++) {
    const { violation } = await simulateSchedules(seed, 10, mutant);
    if (violation !== null) return { mutant: mutant.name, seed, seeds: seed, violation };
  }
  return { mutant: mutant.name, seed: null, seeds: budget, violation: null };
}
