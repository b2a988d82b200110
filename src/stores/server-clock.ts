// The time as a store's server says it: its distance from this process's monotonic clock is measured, so that this machine's wall clock,
// which may be hours off, is never compared with an instant in the store.
import type { Clock } from "../job/time.ts";

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
