// A process that only enqueues. It chooses its own ids, so that after a lost answer, or a death, the same enqueue is sent again.
import { pause } from "../../src/core/clock.ts";
import type { Store } from "../../src/core/store.ts";
import type { JobDraft } from "../../src/core/job.ts";
import type { SimProcess } from "../world/process.ts";
import type { SeededRandom } from "../world/random.ts";
import { ACCOUNTS } from "./tables.ts";
import type { KindName } from "./kinds.ts";

/** All drafts of one history, in the order in which they are sent. */
export function drawDrafts(random: SeededRandom, count: number, poison: boolean): JobDraft[] {
  const drafts: JobDraft[] = [];
  for (let i = 0; i < count; i++) {
    const kind = random.weighted<KindName>({
      transfer: 8,
      chain: 4,
      flaky: 2,
      tardy: 1,
      parent: 1,
      child: 0,
      poison: 0,
      blocker: 0.2,
      long: 0.1,
    });
    drafts.push(draft(random, kind, `${kind}-${i}`));
  }
  if (poison) drafts.splice(random.below(drafts.length), 0, draft(random, "poison", "poison-p"));
  return drafts;
}

function draft(random: SeededRandom, kind: KindName, id: string): JobDraft {
  return {
    id,
    kind,
    input: JSON.stringify(inputOf(random, kind)),
    priority: random.chance(0.2) ? random.below(5) : 0,
    runAt: null,
    delayMs: random.chance(0.2) ? Math.floor(random.between(1, 4_000)) : 0,
    dedupeKey: kind === "flaky" || (kind === "transfer" && random.chance(0.3)) ? `key-${random.below(3)}` : null,
  };
}

function inputOf(random: SeededRandom, kind: KindName): unknown {
  switch (kind) {
    case "transfer": {
      const source = random.below(ACCOUNTS);
      return { source, target: (source + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS, amount: 1 + random.below(50) };
    }
    case "chain":
      return 1 + random.below(4);
    case "parent":
      return 1 + random.below(2);
    case "blocker":
      return random.between(500, 6_000);
    default:
      return null;
  }
}

/** Sends what `next` gives, each until it was answered; `acknowledged` hears the id that is in the store. */
export async function produce(
  process: SimProcess,
  store: Store,
  left: JobDraft[],
  spreadMs: number,
  acknowledged: (id: string) => void,
): Promise<void> {
  const random = process.random.fork("producer");
  const { clock } = process.main;
  while (left.length > 0) {
    const some = left.slice(0, 1 + random.below(4));
    await pause(clock, random.next() * spreadMs);
    try {
      const enqueued = await store.enqueue(some);
      for (const { id } of enqueued) acknowledged(id);
      left.splice(0, some.length);
    } catch {
      await pause(clock, random.between(1, 200));
    }
  }
}
