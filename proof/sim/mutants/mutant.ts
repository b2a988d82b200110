// A bug on purpose: which part of the world is replaced by one that breaks a promise. Nothing of it is in src.
import type { BlobStore } from "../../../src/blobs/blob-store.ts";
import type { Clock } from "../../../src/job/time.ts";
import type { MaintenanceHandle } from "../../../src/stores/backend.ts";
import type { Liveness } from "../../../src/stores/liveness.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import type { MarkFile } from "../../../src/stores/sqlite/workers.ts";
import type { SimProcess } from "../world/process.ts";
import { type Act, NO_ACTS, type Profile } from "../world/profile.ts";

export type StoreMutation = (store: Store, db: Database, clock: Clock) => Store;

export interface Mutant {
  readonly name: string;
  /** What is wrong with it. */
  readonly what: string;
  /** The conditions in which it shows soonest: with `--focus` its seeds are of this profile. */
  readonly focus?: Partial<Profile>;
  /** Instead of the real store, behind the wire. */
  readonly store?: StoreMutation;
  /** On the engine's side of the wire: what is asked of the store is wrong already, and it does as it is asked. */
  readonly asks?: (store: Store) => Store;
  /** Instead of the way by which the store reaches its file: other statements, inside its own transactions. */
  readonly connection?: (db: Database) => Database;
  /** Instead of where the mark of the file is kept. */
  readonly mark?: (mark: MarkFile) => MarkFile;
  /** Instead of where output files go. */
  readonly blobs?: (blobs: BlobStore) => BlobStore;
  /** A file whose tables lack something. */
  readonly schema?: (db: Database) => void;
  /** The clock by which the store decides, given its host's and the calling process's. */
  readonly storeClock?: (host: Clock, process: Clock) => Clock;
  readonly liveness?: (liveness: Liveness, process: SimProcess) => Liveness;
  /** Right before a worker is asked to stop. */
  readonly beforeStop?: (maintenance: MaintenanceHandle) => void;
}

/** A profile in which only this is done, to a program with these workloads. */
export function only(
  workloads: readonly string[],
  nemesis: Partial<Record<Act, number>>,
  more: Partial<Profile>,
): Partial<Profile> {
  return { workloads, killMigration: 0, nemesisEveryMs: 700, nemesis: { ...NO_ACTS, ...nemesis }, ...more };
}

/** Processes that stop with a write in their hand, and wake up when another process has the job. */
export function zombies(workload: string): Partial<Profile> {
  return only([workload], {}, { workers: 3, stall: 0.02, ambush: 0.9, durability: "full" });
}
