// What the main thread and the keeper's thread say to each other, and the two instants that they share without saying.
import type { BeatAnswer } from "../../core/store.ts";
import type { KeeperOptions } from "../../core/keeper.ts";
import type { DatabaseOptions } from "./database.ts";

export interface KeeperData {
  readonly database: DatabaseOptions;
  readonly options: KeeperOptions;
  readonly ownLock: string;
  readonly shared: SharedArrayBuffer;
}

export type ToKeeper = { readonly type: "beat" } | { readonly type: "stop" };

export type FromKeeper =
  | { readonly type: "ready" }
  | { readonly type: "event"; readonly name: string; readonly event: object }
  | { readonly type: "beaten"; readonly sentAtMono: number; readonly answer: BeatAnswer }
  | { readonly type: "disowned" }
  | { readonly type: "unfit"; readonly why: "schema-newer" | "foreign-worker"; readonly detail: string };

/** Two instants of the process's monotonic clock in microseconds: when the main loop last turned, and the last accepted beat. */
export interface SharedTimes {
  loopAt(): number;
  setLoopAt(mono: number): void;
  beatAt(): number | null;
  setBeatAt(mono: number): void;
}

export function newSharedTimes(): SharedArrayBuffer {
  return new SharedArrayBuffer(16);
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
  };
}
