// A process that only enqueues. It chooses its own ids, so that after a lost answer, or a death, the same enqueue is sent again.
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import type { JobDraft } from "../../../src/job/job.ts";
import { pause } from "../../../src/job/time.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { SimProcess } from "../world/process.ts";

/** Sends what is `left`, each until it was answered; `sending` hears what is on its way, `acknowledged` hears the id that is in the store for a draft. */
export async function produce(
  process: SimProcess,
  store: Store,
  left: JobDraft[],
  spreadMs: number,
  sending: (drafts: readonly JobDraft[]) => void,
  acknowledged: (draft: JobDraft, id: string) => void,
): Promise<void> {
  const random = process.random.fork("producer");
  const { clock } = process.main;
  while (left.length > 0) {
    const some = left.slice(0, 1 + random.below(4));
    await pause(clock, random.next() * spreadMs);
    sending(some);
    try {
      const enqueued = await store.enqueue(some);
      some.forEach((draft, i) => acknowledged(draft, enqueued[i]!.id));
      left.splice(0, some.length);
    } catch (thrown) {
      // Only a program that is started again finds the store that is there now.
      if (whyStoreReplaced(thrown) !== null) throw thrown;
      await pause(clock, random.between(1, 200));
    }
  }
}
