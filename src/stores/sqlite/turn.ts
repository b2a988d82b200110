// The worker's turn as the port wants it: settles, then claims, inside one transaction.
import type { Room, Settlement, TurnAnswer } from "../port.ts";
import { claimReady, promoteDue, untilExpiry } from "./claim.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./enqueue.ts";
import { expireDue } from "./expiry.ts";
import { cancelChildren } from "./families.ts";
import type { Settling } from "./settle.ts";
import { admitHeld, nextRoomInMs, spendStarts } from "./admission.ts";
import { wakeKeys } from "./keys.ts";
import { actOnWakes, isFamilyDue } from "./waits.ts";
import type { Workers } from "./workers.ts";

export interface TurnDeps {
  readonly db: Database;
  readonly kinds: Kinds;
  readonly workers: Workers;
  readonly settling: Settling;
}

export function takeTurn(
  { db, kinds, workers, settling }: TurnDeps,
  workerId: string,
  settlements: readonly Settlement[],
  room: Room,
  now: number,
): TurnAnswer {
  const worker = workers.own(workerId);
  // Keys that the settlements gave room. This turn looks at them itself, unless the worker may not.
  const roomy = new Set<number>();
  const settled = settlements.length === 0 ? [] : settling.settle(settlements, now, roomy);
  if (!worker.live) {
    wakeKeys(db, roomy, now);
    const { replaced } = worker;
    const nothing = { claimed: [], live: false, cancels: [], nextDueInMs: null };
    return { settled, ...nothing, ...(replaced !== null && { replaced }) };
  }
  const family = isFamilyDue(db) ? cancelChildren(db, now) : null;
  const { woken, more } = actOnWakes(db, kinds, now);
  const expiryInMs = untilExpiry(db, now);
  // What has expired must not be claimed. While more of it is left than one turn takes, nothing is.
  const moreExpired = expiryInMs !== null && expiryInMs <= 0 && expireDue(db, now);
  const dueInMs = sooner(promoteDue(db, now), expiryInMs === null ? null : untilExpiry(db, now));
  const marks = kinds.marks(now);
  const { ready, more: moreHeld } = admitHeld({ db, kinds, marks, now }, room, roomy);
  const claims = claimReady({ db, kinds, marks, now }, worker, moreExpired ? NO_ROOM : room);
  const rows = claims.claimed.map(({ lease }) => lease.row);
  spendStarts(db, rows, now);
  return {
    settled,
    ...claims,
    live: true,
    cancels: workers.takeCancels(worker.seq),
    nextDueInMs:
      more || moreHeld || moreExpired || family?.more
        ? 0
        : sooner(marks.resumesInMs, sooner(dueInMs, nextRoomInMs(db, now))),
    woken: woken + leftOf(ready, rows),
  };
}

const NO_ROOM: Room = { total: 0, kinds: [] };

/** How many of these jobs others may claim. */
function leftOf(ready: readonly number[], claimed: readonly number[]): number {
  if (ready.length === 0) return 0;
  const ours = new Set(claimed);
  return ready.filter((job) => !ours.has(job)).length;
}

function sooner(one: number | null, other: number | null): number | null {
  return one === null ? other : other === null ? one : Math.min(one, other);
}
