// Jobs that a worker has claimed and not started, in memory that its two threads share: the main loop starts them, and the maintenance releases those
// of a loop that is blocked. Starting and releasing are one compare-and-swap on the same number, so exactly one of the two does it.
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Lease } from "../job/lease.ts";
import type { Clock } from "../job/time.ts";
import { releaseUnstarted } from "../job/transitions.ts";
import { NO_ROOM, type Settlement, type Store } from "../stores/port.ts";

/** How many jobs can wait. */
export const CELLS = 1_024;
/** A job that was claimed ahead and has not started after this long is released. */
export const MAX_WAIT_MS = 250;
/** The loop had its chance: what waits for this long waits behind a loop that is blocked. */
export const BLOCKED_WAIT_MS = 2 * MAX_WAIT_MS;

/** The lower bit of a cell's state: whether a job waits in it. The rest counts its uses, so that a late release never hits the next job of the cell. */
const WAITS = 1;
/** When it was claimed (monotonic), and row, epoch and fence of its lease. */
const FIELDS = 4;

interface WaitingCell {
  readonly cell: number;
  readonly state: number;
}

export class AheadCells {
  readonly shared: SharedArrayBuffer;
  readonly #states: Int32Array;
  readonly #fields: Float64Array;

  constructor(shared = new SharedArrayBuffer(CELLS * (4 + 8 * FIELDS))) {
    this.shared = shared;
    this.#fields = new Float64Array(shared, 0, CELLS * FIELDS);
    this.#states = new Int32Array(shared, CELLS * 8 * FIELDS, CELLS);
  }

  /** Only the main loop puts, and only into a cell in which nothing waits. */
  put(cell: number, { row, epoch, fence }: Lease, claimedMono: number): void {
    const at = cell * FIELDS;
    this.#fields[at] = claimedMono;
    this.#fields[at + 1] = row;
    this.#fields[at + 2] = epoch;
    this.#fields[at + 3] = fence;
    Atomics.add(this.#states, cell, 1);
  }

  /** The main loop takes the job out. False: the maintenance has released it. */
  take(cell: number): boolean {
    const state = Atomics.load(this.#states, cell);
    return (state & WAITS) === WAITS && this.#end({ cell, state });
  }

  /** Jobs that were claimed before then (monotonic) and wait, by `rowKey`. */
  waitingSince(mono: number): ReadonlyMap<string, WaitingCell> {
    const found = new Map<string, WaitingCell>();
    for (let cell = 0; cell < CELLS; cell++) {
      const state = Atomics.load(this.#states, cell);
      if ((state & WAITS) === 0 || this.#fields[cell * FIELDS]! >= mono) continue;
      const [row, epoch, fence] = this.#fields.subarray(cell * FIELDS + 1, cell * FIELDS + FIELDS);
      found.set(rowKey({ row: row!, epoch: epoch!, fence: fence! }), { cell, state });
    }
    return found;
  }

  /** False: the main loop has taken it out since it was found. */
  release(found: WaitingCell): boolean {
    return this.#end(found);
  }

  #end({ cell, state }: WaitingCell): boolean {
    return Atomics.compareExchange(this.#states, cell, state, (state + 1) | 0) === state;
  }
}

function rowKey({ row, epoch, fence }: Pick<Lease, "row" | "epoch" | "fence">): string {
  return `${row} ${epoch} ${fence}`;
}

/**
 * Releases what has waited for too long, at no cost to the jobs. Their leases are read from the store. The loop, once it goes on, starts none of
 * them and releases them, too: if the store fails here, nothing is left behind.
 */
export async function releaseWaiting(
  { store, clock, events }: { readonly store: Store; readonly clock: Clock; readonly events: Emitter },
  worker: string,
  cells: AheadCells,
  loopLagMs: number,
): Promise<void> {
  const found = cells.waitingSince(clock.mono() - BLOCKED_WAIT_MS);
  if (found.size === 0) return;
  const { live, leases = [] } = await store.beat(worker, { loopLagMs: Math.round(loopLagMs), leases: true });
  if (!live) return;
  const reason = "its worker's event loop was blocked before it started";
  const settlements: Settlement[] = [];
  for (const { lease, counters } of leases) {
    const cell = found.get(rowKey(lease));
    if (cell && cells.release(cell))
      settlements.push({ lease, change: releaseUnstarted({ id: lease.jobId, state: "running", counters }, reason) });
  }
  if (settlements.length === 0) return;
  try {
    await store.turn(worker, settlements, NO_ROOM);
    for (const { lease } of settlements) events.emit("job.released", { jobId: lease.jobId, reason });
  } catch (thrown) {
    events.emit("store.failed", { doing: "releasing claimed jobs", error: toStoredError(thrown), retryInMs: 0 });
  }
}
