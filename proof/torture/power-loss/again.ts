// Power losses in a row: a process goes on with what a first one left, is recorded in its turn, and loses power as well.
import type { Durability } from "../scenarios/stage.ts";
import { loseOnce } from "./campaign.ts";
import { record, type Recording } from "./recording.ts";

/** In this scenario a job kills the process that runs it first: none could go on. */
const WITHOUT = "recovery";

/** Which scenario loses power first in each of `count` recordings, and the recording's own name. */
export function namesAgain(scenarios: readonly string[], count: number): { first: string; name: string }[] {
  const able = scenarios.filter((name) => name !== WITHOUT);
  if (able.length === 0) throw new Error(`Nobody can go on after ${WITHOUT}: choose another scenario.`);
  return Array.from({ length: count }, (_, number) => {
    const first = able[number % able.length]!;
    return { first, name: `${first}-again-${number}` };
  });
}

/** `count` recordings of processes that go on after a power loss in one of `recordings`, each in a folder of its own under `parent`. */
export async function recordAgain(
  recordings: readonly Recording[],
  { count, seed, durability, parent }: { count: number; seed: number; durability: Durability; parent: string },
): Promise<Recording[]> {
  const byName = new Map(recordings.map((recording) => [recording.scenario, recording]));
  const again: Recording[] = [];
  for (const [number, { first, name }] of namesAgain([...byName.keys()], count).entries()) {
    const start = loseOnce(byName.get(first)!, seed, number);
    again.push(await record({ name, before: [], watched: ["resume"] }, durability, parent, start));
  }
  return again;
}
