// Finds the ends of batches. A batch ends after the commit of its last row, by whichever process checks next: the worker that settled the last
// block, a `seal`, or the maintenance of any worker, which finds the ends that a killed process did not look for. `finish` is guarded, so
// however many try, one succeeds.
import { decideBatch, doneDraft, endedRows } from "../job/batches.ts";
import type { Emitter } from "../job/events.ts";
import type { Batches } from "../stores/batches.ts";

/** How much one call may do, so that it blocks no other process. */
const DELTAS = 1_000;
const BLOCKS = 1_000;

/** How far a batch is that goes on. */
export interface Progress {
  readonly ended: number;
  readonly left: number;
}

/** Decides about these batches. Returns those that go on as they are. */
export async function endBatches(
  batches: Batches,
  events: Emitter,
  ids: readonly string[],
): Promise<ReadonlyMap<string, Progress>> {
  const goOn = new Map<string, Progress>();
  if (ids.length === 0) return goOn;
  for (const batch of await batches.get(ids)) {
    const decision = decideBatch(batch);
    const { id, kind, round, state: from, rows, sums } = batch;
    if (decision === "abort") {
      await batches.abort(id);
      continue;
    }
    if (decision === null) {
      goOn.set(id, { ended: endedRows(sums), left: rows - endedRows(sums) });
      continue;
    }
    if (!(await batches.finish({ batch: id, round, from, to: decision, follow: [doneDraft(batch)] }))) continue;
    events.emit("batch.ended", { batch: id, kind, round, state: decision, rows: { total: rows, ...sums } });
  }
  return goOn;
}

/** One pass of the maintenance: adds up deltas, ends what is complete, and goes on with aborts and releases. */
export async function tendBatches(batches: Batches, events: Emitter, goOn: () => boolean): Promise<void> {
  await endBatches(batches, events, await batches.fold(DELTAS));
  while (goOn() && (await batches.tend(BLOCKS)));
}
