// All workloads, and which of them one seed has. To add one, write its file and name it here.
import type { SeededRandom } from "../world/random.ts";
import { blockers } from "./blockers.ts";
import { crowd } from "./crowd.ts";
import { deadlines } from "./deadlines.ts";
import { deaf } from "./deaf.ts";
import { failures } from "./failures.ts";
import { family } from "./family.ts";
import { long } from "./long.ts";
import { money } from "./money.ts";
import { naps } from "./naps.ts";
import { poison } from "./poison.ts";
import { sequels } from "./sequels.ts";
import { steps } from "./steps.ts";
import { waiting } from "./waiting.ts";
import type { KindFacts, Workload } from "./workload.ts";

export const WORKLOADS: readonly Workload[] = [
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
];

const FACTS = new Map(WORKLOADS.flatMap(({ kinds }) => Object.entries(kinds)));

export function kindFacts(kind: string): KindFacts {
  const facts = FACTS.get(kind);
  if (!facts) throw new Error(`no facts about the kind ${kind}`);
  return facts;
}

export function drawWorkloads(random: SeededRandom): readonly string[] {
  return WORKLOADS.filter(({ share }) => random.chance(share)).map(({ name }) => name);
}

export function workloadsNamed(names: readonly string[]): readonly Workload[] {
  return WORKLOADS.filter(({ name }) => names.includes(name));
}
