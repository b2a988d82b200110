// The worker's turn as the port wants it: settles, then claims, inside one transaction.
import type { Room, SettleAndClaim, Settlement } from "../../core/store.ts";
import { claimReady, promoteDue } from "./claim.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./kinds.ts";
import type { Settling } from "./settle.ts";
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
): SettleAndClaim {
  workers.recheck(workerId);
  const replaced = workers.whyReplaced(workerId);
  const settled = settlements.length === 0 ? [] : settling.settle(settlements, now);
  const worker = replaced === null ? workers.live(workerId) : null;
  if (!worker)
    return {
      settled,
      claimed: [],
      live: false,
      cancels: [],
      nextDueInMs: null,
      ...(replaced !== null && { replaced }),
    };
  const nextDueInMs = promoteDue(db, now);
  const claims = claimReady(db, kinds, worker, room, now);
  return { settled, ...claims, live: true, cancels: workers.takeCancels(worker.seq), nextDueInMs };
}
