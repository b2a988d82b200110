// A bug on purpose: which part of the world is replaced by one that breaks a promise. Nothing of it is in src.
import type { Clock } from "../../src/core/clock.ts";
import type { KeeperHandle } from "../../src/core/backend.ts";
import type { Liveness } from "../../src/core/liveness.ts";
import type { Store } from "../../src/core/store.ts";
import type { Database } from "../../src/stores/sqlite/database.ts";
import type { SimProcess } from "../world/process.ts";

export type StoreMutation = (store: Store, db: Database, clock: Clock) => Store;

export interface Mutant {
  readonly name: string;
  /** What is wrong with it. */
  readonly what: string;
  /** Instead of the real store, behind the wire. */
  readonly store?: StoreMutation;
  /** A file whose tables lack something. */
  readonly schema?: (db: Database) => void;
  /** The clock by which the store decides, given its host's and the calling process's. */
  readonly storeClock?: (host: Clock, process: Clock) => Clock;
  readonly liveness?: (liveness: Liveness, process: SimProcess) => Liveness;
  /** Right before a worker is asked to stop. */
  readonly beforeStop?: (keeper: KeeperHandle) => void;
}
