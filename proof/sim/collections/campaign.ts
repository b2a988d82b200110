// Many histories of collections, and the hunt for bugs on purpose among them.
import type { Caught } from "../mutation.ts";
import { COLLECTION_MUTANTS, type CollectionMutant } from "./mutants.ts";
import { simulateCollections } from "./world.ts";

export interface CollectionCampaign {
  readonly seeds: number;
  readonly collections: number;
  readonly messages: number;
  readonly kills: number;
  readonly partsLost: number;
  readonly partsTwice: number;
  readonly completeNever: number;
  readonly notifiedTwice: number;
  readonly violations: number;
  /** What was broken, and by which seed. */
  readonly broken: readonly string[];
}

export async function runCollections(from: number, seeds: number): Promise<CollectionCampaign> {
  const broken: string[] = [];
  const sum = { collections: 0, messages: 0, kills: 0 };
  for (let seed = from; seed < from + seeds; seed++) {
    const history = await simulateCollections(seed);
    sum.collections += history.collections;
    sum.messages += history.messages;
    sum.kills += history.kills;
    if (history.violation !== null) broken.push(`seed ${seed}: ${history.violation}`);
  }
  const of = (law: string): number => broken.filter((one) => one.includes(`: ${law}: `)).length;
  return {
    seeds,
    ...sum,
    partsLost: of("lost"),
    partsTwice: of("twice"),
    completeNever: of("never"),
    notifiedTwice: of("notified"),
    violations: broken.length,
    broken,
  };
}

export async function huntCollections(budget: number, mutants = COLLECTION_MUTANTS): Promise<readonly Caught[]> {
  const caught: Caught[] = [];
  for (const mutant of mutants) caught.push(await hunt(mutant, budget));
  return caught;
}

async function hunt(mutant: CollectionMutant, budget: number): Promise<Caught> {
  for (let seed = 1; seed <= budget; seed++) {
    const { violation } = await simulateCollections(seed, mutant);
    if (violation !== null) return { mutant: mutant.name, seed, seeds: seed, violation };
  }
  return { mutant: mutant.name, seed: null, seeds: budget, violation: null };
}
