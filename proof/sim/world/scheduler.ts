// Virtual time. Everything that happens is an event of one simulated thread; the next one is the earliest, and the seed decides
// between equals. After each event all promises that it settled have run on: nothing else is pending in this real thread.
import type { CallOff } from "../../../src/job/time.ts";
import type { Thread } from "./thread.ts";

/** 2026-03-01 in ms: the wall clock of the simulated host at the beginning. */
export const WALL_ORIGIN = 1_772_323_200_000;

export interface Event {
  at: number;
  readonly order: number;
  /** Null: the world itself (the nemesis, the supervisor), which neither stops nor dies. */
  readonly thread: Thread | null;
  readonly task: () => void;
  calledOff: boolean;
}

export class Scheduler {
  /** Virtual ms since the beginning of this history. */
  now = 0;
  /** How far the wall clock of the host has jumped. */
  wallJumpMs = 0;
  eventCount = 0;
  readonly #heap: Event[] = [];
  #orders = 0;

  /** The wall clock of the simulated host, which is the store's. */
  get wall(): number {
    return WALL_ORIGIN + this.now + this.wallJumpMs;
  }

  at(at: number, thread: Thread | null, task: () => void): CallOff {
    const event: Event = { at: Math.max(at, this.now), order: this.#orders++, thread, task, calledOff: false };
    this.push(event);
    return () => void (event.calledOff = true);
  }

  /**
   * Takes events until `over` says so or `untilMs` is reached; false: time ran out, or nothing is left to happen. `after` hears
   * of each event once all that it started has come to rest.
   */
  async run(untilMs: number, after: (event: Event) => void, over: () => boolean): Promise<boolean> {
    while (!over()) {
      const event = this.#pop();
      if (!event) return false;
      if (event.at > untilMs) {
        this.push(event);
        this.now = untilMs;
        return false;
      }
      if (event.calledOff || event.thread?.dead) continue;
      this.now = Math.max(this.now, event.at);
      if (event.thread?.stopped) {
        event.thread.defer(event);
        continue;
      }
      this.eventCount++;
      event.task();
      await allAtRest();
      after(event);
    }
    return true;
  }

  /** What will happen if nothing else does, in no order. */
  pending(): readonly Event[] {
    return this.#heap.filter(({ calledOff, thread }) => !calledOff && !thread?.dead);
  }

  /** When the next event is due; null: nothing is left to happen. */
  nextAt(): number | null {
    return this.#heap[0]?.at ?? null;
  }

  push(event: Event): void {
    const heap = this.#heap;
    let at = heap.length;
    heap.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!before(event, heap[parent]!)) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = event;
  }

  #pop(): Event | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (heap.length === 0 || !last) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && before(heap[child + 1]!, heap[child]!)) child++;
      if (!before(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }
}

function before(a: Event, b: Event): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order);
}

/** Node runs every microtask, and those they make, before the next tick. Nothing in the simulation waits for anything else. */
export function allAtRest(): Promise<void> {
  return new Promise((resolve) => process.nextTick(resolve));
}
