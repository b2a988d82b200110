// What a worker does about a job that waits to run alone, the same on every store. A store asks these inside its claim, with the
// rows that it found; how long a worker may be taken up by such jobs is decided by the worker (suspect-turns.ts).
import type { Room } from "./settlement.ts";

/** A queued job that must run alone. */
export interface WaitingAlone {
  readonly seq: number;
  readonly kind: number;
  readonly priority: number;
  /** The number of the worker that empties itself for it, and the state of that worker's row; null: none does. */
  readonly reserved_by: number | null;
  readonly holder: string | null;
}

/** A kind that the worker has room for. */
interface KindRoom {
  readonly most: number;
  /** `most` is for all kinds together that share. */
  readonly shares: boolean;
}

/** A quarter of the live workers, and at least one, may be taken up at a time: after a correlated death there may be hundreds of such jobs. */
export function shareOfFleet(liveWorkers: number): number {
  return Math.max(1, Math.round(liveWorkers / 4));
}

/** Another live worker empties itself for this job. */
function isReservedElsewhere({ reserved_by, holder }: WaitingAlone, worker: number): boolean {
  return holder === "live" && reserved_by !== worker;
}

/**
 * Whether the worker may turn to this job at all. `withinShare`: one more worker may be taken up. An idle worker that takes a reserved job
 * sets the worker free that empties itself for it, so it may do that beyond the share.
 */
export function mayTurnTo(job: WaitingAlone, worker: number, idle: boolean, withinShare: boolean): boolean {
  const elsewhere = isReservedElsewhere(job, worker);
  return idle ? withinShare || elsewhere : job.reserved_by === worker || (withinShare && !elsewhere);
}

/** Ordinary jobs with a priority above this are claimed before the job that must run alone. */
export function claimedFirstAbove({ priority }: WaitingAlone, room: Room): number {
  return room.ordinaryFirst ? priority - 1 : priority;
}

/**
 * `take`: claim it, and nothing else. `empty`: reserve it, and claim only the ordinary jobs that go first. `leave`: claim as usual.
 * `first`: how many ordinary jobs go first.
 */
export function whatToDo(job: WaitingAlone, worker: number, room: Room, first: number): "take" | "empty" | "leave" {
  if (room.idle && first === 0) return "take";
  return room.ordinaryFirst || isReservedElsewhere(job, worker) ? "leave" : "empty";
}

/** How many ordinary jobs go first, if each kind has as many of them as `counts` says. */
export function roomForFirst(kinds: readonly KindRoom[], counts: readonly number[], total: number): number {
  let own = 0;
  let shared = 0;
  let sharedRoom = 0;
  kinds.forEach(({ most, shares }, i) => {
    if (shares) {
      shared += counts[i]!;
      sharedRoom = most;
    } else own += Math.min(most, counts[i]!);
  });
  return Math.min(total, own + Math.min(sharedRoom, shared));
}
