// What the main thread and the keeper's thread say to each other, and the instants that they share without saying.
import type { KeeperOptions, UnfitReason } from "../core/keeper.ts";
import type { BeatAnswer } from "../core/store.ts";

export interface KeeperData<Own> {
  readonly options: KeeperOptions;
  /** What the store's own part of the thread needs: how to open it, which lock is the worker's. */
  readonly own: Own;
  readonly shared: SharedArrayBuffer;
}

export type ToKeeper = { readonly type: "beat" } | { readonly type: "stop" };

export type FromKeeper =
  | { readonly type: "ready" }
  | { readonly type: "event"; readonly name: string; readonly event: object }
  | { readonly type: "beaten"; readonly sentAtMono: number; readonly answer: BeatAnswer }
  | { readonly type: "disowned" }
  | { readonly type: "unfit"; readonly why: UnfitReason; readonly detail: string }
  /** Another process may have made work ready, or the store is back. */
  | { readonly type: "bell" };

/** In ms: when the main loop last turned and the last accepted beat (monotonic), and how far the store's clock is from the monotonic one. */
export interface SharedTimes {
  loopAt(): number;
  setLoopAt(mono: number): void;
  beatAt(): number | null;
  setBeatAt(mono: number): void;
  /** Null: not said yet. */
  storeOffset(): number | null;
  setStoreOffset(ms: number): void;
  /** Whether the session that speaks for the worker is there. */
  inContact(): boolean;
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
