// All workloads, and which of them one seed has. To add one, write its file and name it here.
import type { SeededRandom } from "../world/random.ts";
import { batches } from "./batches.ts";
import { blockers } from "./blockers.ts";
import { crowd } from "./crowd.ts";
import { deadlines } from "./deadlines.ts";
import { deaf } from "./deaf.ts";
import { failures } from "./failures.ts";
import { family } from "./family.ts";
import { doors, keys } from "./keys.ts";
import { long } from "./long.ts";
import { money } from "./money.ts";
import { naps } from "./naps.ts";
import { poison } from "./poison.ts";
import { sequels } from "./sequels.ts";
import { steps } from "./steps.ts";
import { ticks } from "./ticks.ts";
import { waiting } from "./waiting.ts";
import type { LimitSettings } from "../../../src/job/limits.ts";
import { checkedContract, type KindFacts, type Workload } from "./workload.ts";

/** Those of which a seed draws. One more draw would change what every seed is. */
const DRAWN: readonly Workload[] = [
  money,
  steps,
  failures,
  deadlines,
  family,
  poison,
  blockers,
  long,
  naps,
  deaf,
  crowd,
  sequels,
  waiting,
  keys,
  batches,
];

export const WORKLOADS: readonly Workload[] = [...DRAWN, ticks, doors];

const FACTS = new Map(WORKLOADS.flatMap(({ kinds }) => Object.entries(kinds)));

export function kindFacts(kind: string): KindFacts {
  const facts = FACTS.get(kind);
  if (!facts) throw new Error(`no facts about the kind ${kind}`);
  return facts;
}

const limits = new Map<string, LimitSettings>();

/** Every limit of every kind, by its name. */
export function limitFacts(name: string): LimitSettings {
  if (limits.size === 0)
    for (const [kind, facts] of FACTS)
      for (const limit of checkedContract(kind, facts).settings.keyed ?? []) limits.set(limit.name, limit);
  const found = limits.get(name);
  if (!found) throw new Error(`no facts about the limit ${name}`);
  return found;
}

/** The share of the seeds that have no other workload than `doors`. */
const ONLY_DOORS = 0.06;

export function drawWorkloads(random: SeededRandom): readonly string[] {
  if (random.fork("doors").chance(ONLY_DOORS)) return [doors.name];
  return DRAWN.filter(({ share }) => random.chance(share)).map(({ name }) => name);
}

export function workloadsNamed(names: readonly string[]): readonly Workload[] {
  return WORKLOADS.filter(({ name }) => names.includes(name));
}
