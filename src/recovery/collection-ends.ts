// Finds the ends of collections. A collection is complete after the commit of its last part, and found so by whichever process checks next: the one
// that kept the part, or the maintenance of any worker, which also finds those that nothing came for. `step` is guarded, so however many try,
// one succeeds.
import { decideCollection, followOf, isOpen, STEPS } from "../job/collections.ts";
import type { Emitter } from "../job/events.ts";
import type { Collections } from "../stores/collections.ts";

/** How many collections one check decides about. */
const AT_ONCE = 200;

/** As `endCollections`, for a caller that does not know the store's clock: none is abandoned. */
export function endComplete(collections: Collections, events: Emitter, ids: readonly string[]): Promise<string[]> {
  return endCollections(collections, events, ids, 0);
}

/** Decides about these collections, at this time of the store's clock. Returns the ids of those that it ended. */
export async function endCollections(
  collections: Collections,
  events: Emitter,
  ids: readonly string[],
  now: number,
): Promise<string[]> {
  if (ids.length === 0) return [];
  const ended: string[] = [];
  for (const row of await collections.get(ids)) {
    const decision = decideCollection(row, now);
    if (decision === null || !isOpen(row.state)) continue;
    const { to } = decision;
    const why = to === "abandoned" ? decision.why : null;
    const done = await collections.step({
      collection: row.id,
      from: STEPS[to],
      to,
      why,
      ...(to === "abandoned" && { ifDue: true as const }),
      follow: followOf(row, to),
    });
    if (!done) continue;
    ended.push(row.id);
    events.emit("collection.changed", { collection: row.id, kind: row.kind, state: to, why });
  }
  return ended;
}

/** One pass of the maintenance. One query where nothing is due, however many collections are open. */
export async function tendCollections(collections: Collections, events: Emitter, goOn: () => boolean): Promise<void> {
  for (;;) {
    const { ids, now } = await collections.due(AT_ONCE);
    const ended = await endCollections(collections, events, ids, now);
    if (ids.length < AT_ONCE || ended.length === 0 || !goOn()) return;
  }
}
