// The jobs of one history, in the order in which they are sent: each a wish of one of the seed's workloads, with an id, a
// priority and perhaps a delay.
import { makeDraftNow } from "../../../src/job/enqueue.ts";
import type { JobDraft } from "../../../src/job/job.ts";
import { checkedContract, type Workload } from "../workloads/workload.ts";
import type { Profile } from "../world/profile.ts";
import type { SeededRandom } from "../world/random.ts";

export function drawDrafts(
  random: SeededRandom,
  { jobs, jobsOf }: Pick<Profile, "jobs" | "jobsOf">,
  workloads: readonly Workload[],
  muted: ReadonlySet<string> | undefined,
): JobDraft[] {
  const weights = Object.fromEntries(workloads.map(({ name, weight }) => [name, weight]));
  const drawn = new Map<string, number>();
  const drafts: JobDraft[] = [];
  const names = jobsOf === null ? null : shuffled(random, jobsOf);
  for (let i = 0; i < (names?.length ?? jobs); i++) {
    const name = names?.[i] ?? random.weighted(weights);
    const workload = workloads.find((one) => one.name === name)!;
    // Everything of the i-th job comes from its own stream: without one of them the others are the same.
    const draft = draftOf(random.fork(`job ${i}`), workload, i);
    drawn.set(name, (drawn.get(name) ?? 0) + 1);
    if (drawn.get(name)! <= (workload.most ?? Infinity) && !muted?.has(draft.id)) drafts.push(draft);
  }
  return drafts;
}

/** Each name as often as it says, in an order of the seed's. */
function shuffled(random: SeededRandom, counts: Readonly<Record<string, number>>): readonly string[] {
  const names = Object.entries(counts).flatMap(([name, count]) => Array.from({ length: count }, () => name));
  for (let i = names.length - 1; i > 0; i--) {
    const other = random.below(i + 1);
    [names[i], names[other]] = [names[other]!, names[i]!];
  }
  return names;
}

function draftOf(random: SeededRandom, workload: Workload, i: number): JobDraft {
  const { kind, input, dedupeKey, dedupe } = workload.wish(random);
  const id = `${kind}-${i}`;
  const priority = random.chance(0.2) ? random.below(5) : 0;
  const delayMs = random.chance(0.2) ? Math.floor(random.between(1, 4_000)) : 0;
  const options = {
    id,
    priority,
    ...(delayMs > 0 && !dedupe?.debounce && { delay: `${delayMs}ms` as const }),
    ...(dedupeKey !== undefined && { dedupeKey }),
    ...dedupe,
  };
  return makeDraftNow(checkedContract(kind, workload.kinds[kind]!), input, options, () => id);
}
