// The clocks of a process: its own, with timers and randomness, for the ports of the domain; the times that its two threads share; and the
// clock of a store's server. A pending timer keeps the process alive, because some caller awaits its end.
import { randomBytes } from "node:crypto";
import type { Clock, Random } from "../job/time.ts";

export const systemClock: Clock = {
  now: () => Date.now(),
  // hrtime has one origin for all threads of a process; performance.now has one per thread.
  mono: () => Number(process.hrtime.bigint()) / 1e6,
  after(ms, task) {
    const timer = setTimeout(task, ms);
    return () => clearTimeout(timer);
  },
  soon(task) {
    setImmediate(task);
  },
};

export const systemRandom: Random = {
  next: () => Math.random(),
  hex: (count) => randomBytes(count).toString("hex"),
};

// What the main thread and the maintenance thread know of each other without messages.

/**
 * In ms: when the main loop last ran and when the last heartbeat was accepted (monotonic), and the offset of the
 * store's clock from the monotonic clock.
 */
export interface SharedTimes {
  loopAt(): number;
  setLoopAt(mono: number): void;
  readonly beatAt: () => number | null;
  setBeatAt(mono: number): void;
  /** Null: not reported yet. */
  storeOffset(): number | null;
  setStoreOffset(ms: number): void;
  /** Whether the session that proves this worker alive is connected. */
  readonly inContact: () => boolean;
  setInContact(there: boolean): void;
}

export function newSharedTimes(): SharedArrayBuffer {
  return new SharedArrayBuffer(32);
}

export function sharedTimes(shared: SharedArrayBuffer): SharedTimes {
  const cells = new BigInt64Array(shared);
  const read = (cell: number): number => Number(Atomics.load(cells, cell)) / 1_000;
  const write = (cell: number, mono: number): void => void Atomics.store(cells, cell, BigInt(Math.round(mono * 1_000)));
  return {
    loopAt: () => read(0),
    setLoopAt: (mono) => write(0, mono),
    beatAt: () => read(1) || null,
    setBeatAt: (mono) => write(1, mono),
    storeOffset: () => read(2) || null,
    setStoreOffset: (ms) => write(2, ms),
    inContact: () => Atomics.load(cells, 3) === 0n,
    setInContact: (there) => void Atomics.store(cells, 3, there ? 0n : 1n),
  };
}

// The time as a store's server reports it. Its distance from this process's monotonic clock is measured, so that this machine's wall clock,
// which may be hours off, is never compared with an instant in the store.

export interface ServerClock extends Clock {
  /** The server said `now` in answer to a question asked at `sentAtMono`. */
  set(now: number, sentAtMono: number): void;
}

/** `kept`: where the distance is, if two threads share it. */
export function serverClock(
  clock: Clock,
  kept: { storeOffset(): number | null; setStoreOffset(ms: number): void } = inMemory(),
): ServerClock {
  return {
    ...clock,
    now: () => Math.round(clock.mono() + (kept.storeOffset() ?? clock.now() - clock.mono())),
    set(now, sentAtMono) {
      // The answer was made somewhere between the question and now; half-way is off by half a round trip at the most.
      kept.setStoreOffset(now - (sentAtMono + clock.mono()) / 2);
    },
  };
}

function inMemory(): { storeOffset(): number | null; setStoreOffset(ms: number): void } {
  let offset: number | null = null;
  return { storeOffset: () => offset, setStoreOffset: (ms) => void (offset = ms) };
}
