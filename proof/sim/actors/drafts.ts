// The jobs of one history, in the order in which they are sent: each a wish of one of the seed's workloads, with an id, a
// priority and perhaps a delay.
import type { JobDraft } from "../../../src/core/job.ts";
import type { SeededRandom } from "../world/random.ts";
import type { Workload } from "../workloads/workload.ts";

export function drawDrafts(
  random: SeededRandom,
  count: number,
  workloads: readonly Workload[],
  muted: ReadonlySet<string> | undefined,
): JobDraft[] {
  const weights = Object.fromEntries(workloads.map(({ name, weight }) => [name, weight]));
  const drawn = new Map<string, number>();
  const drafts: JobDraft[] = [];
  for (let i = 0; i < count; i++) {
    const name = random.weighted(weights);
    const workload = workloads.find((one) => one.name === name)!;
    // Everything of the i-th job comes from its own stream: without one of them the others are the same.
    const draft = draftOf(random.fork(`job ${i}`), workload, i);
    drawn.set(name, (drawn.get(name) ?? 0) + 1);
    if (drawn.get(name)! <= (workload.most ?? Infinity) && !muted?.has(draft.id)) drafts.push(draft);
  }
  return drafts;
}

function draftOf(random: SeededRandom, workload: Workload, i: number): JobDraft {
  const { kind, input, dedupeKey = null } = workload.wish(random);
  return {
    id: `${kind}-${i}`,
    kind,
    input: JSON.stringify(input),
    priority: random.chance(0.2) ? random.below(5) : 0,
    runAt: null,
    delayMs: random.chance(0.2) ? Math.floor(random.between(1, 4_000)) : 0,
    dedupeKey,
  };
}
