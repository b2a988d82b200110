// The worker's turn as the port wants it: settles, then claims, inside one transaction.
import type { Room, Settlement, TurnAnswer } from "../port.ts";
import {
  type AtDoors,
  claimAtDoors,
  claimReady,
  type Claims,
  type Front,
  promoteDue,
  roomAtDoors,
  untilExpiry,
} from "./claim.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./enqueue.ts";
import { expireDue } from "./expiry.ts";
import { cancelChildren } from "./families.ts";
import type { Settling } from "./settle.ts";
import { admitHeld, type AdmittedHeld, isAnyAtGate, nextRoomInMs } from "./admission.ts";
import { spendStarts } from "./key-facts.ts";
import { wakeKeys } from "./keys.ts";
import { admitFound, makeReady } from "./door-visit.ts";
import { actOnWakes, isFamilyDue } from "./waits.ts";
import type { Workers } from "./workers.ts";

export interface TurnDeps {
  readonly db: Database;
  readonly kinds: Kinds;
  readonly workers: Workers;
  readonly settling: Settling;
  readonly front: Front;
}

export function takeTurn(
  { db, kinds, workers, settling, front }: TurnDeps,
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
  const { woken, more, expiryInMs, moreExpired } = isAnyAwaited(db) ? wake(db, kinds, now) : NONE_WOKEN;
  const dueInMs = sooner(promoteDue(db, now), expiryInMs);
  const marks = kinds.marks(now);
  // A job with a key is claimed only if it was admitted before, so with none here the claim finds none either.
  const keyed = roomy.size > 0 || marks.fair.size > 0 || isAnyKeyed(db);
  const claimDeps = { db, kinds, marks, front, now };
  const atDoors = keyed ? roomAtDoors(claimDeps, moreExpired ? NO_ROOM : room) : null;
  const held = keyed ? admitHeld({ db, kinds, marks, now }, room, roomy, atDoors?.most ?? null) : NONE_ADMITTED;
  const { ahead = 0 } = room;
  const inSlots =
    ahead > 0 && marks.fair.size > 0 && isAnyAtGate(db, kinds, marks, room) ? { ...room, ahead: 0 } : room;
  const isAny = held.toClaim.length + held.atDoors.length > 0;
  const isDirect = isAny && atDoors?.isClear === true;
  if (!isDirect && isAny) {
    makeReady(db, held.toClaim);
    admitFound(
      db,
      held.atDoors.map(([job]) => job),
    );
  }
  const first =
    isDirect && atDoors.before === 0 ? NO_CLAIMS : claimReady(claimDeps, worker, moreExpired ? NO_ROOM : inSlots);
  const claims = isDirect ? claimAtDoors(claimDeps, worker, room, atDoors, held, first) : first;
  const rows = claims.claimed.map(({ lease }) => lease.row);
  if (keyed && (held.starts || first !== NO_CLAIMS)) spendStarts(db, rows, now);
  return {
    settled,
    ...claims,
    live: true,
    cancels: workers.takeCancels(worker.seq),
    nextDueInMs:
      more || held.more || moreExpired
        ? 0
        : sooner(
            marks.resumesInMs,
            keyed ? sooner(dueInMs, nextRoomInMs(db, now, leavesRest(held, atDoors, rows.length))) : dueInMs,
          ),
    woken: woken + leftOf(held.ready, rows) + (held.left ? 1 : 0),
  };
}

/** Whether the keys that still have room are for other workers, or for a later turn: this one has taken all that it has room for. */
function leavesRest({ left }: AdmittedHeld, atDoors: AtDoors | null, claimed: number): boolean {
  return left && atDoors !== null && claimed >= atDoors.takes;
}

const NO_CLAIMS: Claims = { claimed: [], corrupt: [] };
const NO_ROOM: Room = { total: 0, kinds: [] };
const NONE_WOKEN: Woken = { woken: 0, more: false, expiryInMs: null, moreExpired: false };
const NONE_ADMITTED: AdmittedHeld = { ready: [], toClaim: [], atDoors: [], more: false, left: false, starts: true };

// A turn without waiting jobs and without keys asks these two, and none of the statements behind them.

function isAnyAwaited(db: Database): boolean {
  return db.sql(AWAITED).get() !== undefined;
}

const AWAITED = `SELECT 1 WHERE EXISTS (SELECT 1 FROM outlive_wakes)
  OR EXISTS (SELECT 1 FROM outlive_family_cancels WHERE due = 1)
  OR EXISTS (SELECT 1 FROM outlive_extras WHERE expires_at IS NOT NULL)`;

/** Whether a key has room, will have it at a known time, or is taken by a job. */
function isAnyKeyed(db: Database): boolean {
  return db.sql(KEYED).get() !== undefined;
}

const KEYED = `SELECT 1 WHERE EXISTS (SELECT 1 FROM outlive_key_wakes)
  OR EXISTS (SELECT 1 FROM outlive_keys WHERE due_at IS NOT NULL)
  OR EXISTS (SELECT 1 FROM outlive_extras WHERE key1 IS NOT NULL AND place > 1)`;

interface Woken {
  readonly woken: number;
  readonly more: boolean;
  /** In how many ms the next job expires; null: none does. */
  readonly expiryInMs: number | null;
  /** What has expired must not be claimed. While more of it is left than one turn takes, nothing is. */
  readonly moreExpired: boolean;
}

/** What expires, and children of a cancelled job, first: their ends append wakes. */
function wake(db: Database, kinds: Kinds, now: number): Woken {
  const moreExpired = untilExpiry(db, now) === 0 && expireDue(db, now);
  const family = isFamilyDue(db) && cancelChildren(db, now).more;
  const { woken, more } = actOnWakes(db, kinds, now);
  return { woken, more: more || family, expiryInMs: untilExpiry(db, now), moreExpired };
}

/** How many of these jobs others may claim. */
function leftOf(ready: readonly number[], claimed: readonly number[]): number {
  if (ready.length === 0) return 0;
  const ours = new Set(claimed);
  return ready.filter((job) => !ours.has(job)).length;
}

function sooner(one: number | null, other: number | null): number | null {
  return one === null ? other : other === null ? one : Math.min(one, other);
}
