// What a store brings along beside the port: the proof of life, the keeper, and what an open does to the store itself.
import type { Clock } from "./clock.ts";
import type { RepairMode, StoreFindings } from "./integrity.ts";
import type { KeeperHost, KeeperOptions } from "./keeper.ts";
import type { Liveness } from "./liveness.ts";
import type { Store } from "./store.ts";

/** How an open begins. */
export interface StartUpOptions {
  /** Whether the store's integrity is checked before anything trusts its content. */
  readonly integrityCheck: boolean;
  readonly repair: RepairMode;
  /** How long the check may take. Default 10 s. */
  readonly checkLimitMs?: number;
  /** Up to this size the store is checked in this process. Default 8 MB. */
  readonly checkHereBytes?: number;
}

/** A keeper at work: in a thread, or beside the worker. */
export interface KeeperHandle {
  /** Beats now: an answer was lost. */
  beat(): void;
  stop(): Promise<void>;
}

/** What a worker wants to hear of its keeper. */
export interface KeeperListener extends Omit<KeeperHost, "loopLagMs" | "kill"> {
  /**
   * Before the keeper is started, where it can tell without a message: how to read the last accepted heartbeat (own monotonic clock;
   * null: none yet). A loop that was blocked while the keeper started has not heard of it when the handler returns.
   */
  beatsAt?(lastBeatMono: () => number | null): void;
  /** Likewise: whether the session that speaks for this worker is there. Without it the others may take its work soon, so it claims nothing. */
  contact?(inContact: () => boolean): void;
}

export interface Backend {
  readonly store: Store;
  /** What the time is for this store, if that is not this machine's to say: a server's clock decides. */
  readonly clock?: Clock;
  readonly liveness: Liveness;
  readonly schemaVersion: number;
  /** True if only this process can reach the data: a database in memory. */
  readonly private: boolean;
  startKeeper(options: KeeperOptions, host: KeeperListener): Promise<KeeperHandle>;
  /** Opened to look only: nothing is claimed and nothing written. */
  readonly readOnly?: boolean;
  /** What an open does to the store itself before recovery. `alone`: nobody's lock is held. */
  prepare(alone: boolean): Promise<StoreFindings>;
  /** Removes what workers left behind that no row names. Answers what it was. */
  removeStrays(): Promise<readonly string[]>;
  /** The open is over: lets go of what only a start-up may hold. `well` false: it failed, and the next one begins anew. */
  opened?(well: boolean): Promise<void>;
  /** Lets go of all of it, the store included. */
  close(): Promise<void>;
}
