// What a store brings along beside the port: the proof of life, the keeper, and what an open does to the store itself.
import type { Clock } from "./clock.ts";
import type { StoreFindings } from "./integrity.ts";
import type { KeeperHost, KeeperOptions } from "./keeper.ts";
import type { Liveness } from "./liveness.ts";
import type { Store } from "./store.ts";

/** A keeper at work: in a thread, or beside the worker. */
export interface KeeperHandle {
  /** Beats now: an answer was lost. */
  beat(): void;
  /** Last accepted heartbeat (own monotonic clock), for stores whose keeper can tell without a message; null: only by `beaten`. */
  lastBeatMono(): number | null;
  stop(): Promise<void>;
}

export interface Backend {
  readonly store: Store;
  /** What the time is for this store, if that is not this machine's to say: a server's clock decides. */
  readonly clock?: Clock;
  readonly liveness: Liveness;
  readonly schemaVersion: number;
  /** True if only this process can reach the data: a database in memory. */
  readonly private: boolean;
  startKeeper(options: KeeperOptions, host: Omit<KeeperHost, "loopLagMs" | "kill">): Promise<KeeperHandle>;
  /** What an open does to the store itself before recovery. `alone`: nobody's lock is held. */
  prepare(alone: boolean): Promise<StoreFindings>;
  /** Removes what workers left behind that no row names. Answers what it was. */
  removeStrays(): Promise<readonly string[]>;
  /** Lets go of all of it, the store included. */
  close(): Promise<void>;
}
