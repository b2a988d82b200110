// The executable specification of the store port (stores/port.ts): all subjects, registered for one store.
import { describe, type TestContext } from "node:test";
import type { Store, TransactionBody } from "../../stores/port.ts";
import { specifyAttemptWrites } from "./attempt-writes.ts";
import { specifyBatchRows } from "./batch-rows.ts";
import { specifyBatchTurns } from "./batch-turns.ts";
import { specifyBatches } from "./batches.ts";
import { specifyClaim } from "./claim.ts";
import { specifyCollections } from "./collections.ts";
import { specifyCommit } from "./commit.ts";
import { specifyCorrupt, specifyRestore } from "./damage.ts";
import { specifyExpire, specifyLiveness } from "./deadlines.ts";
import { specifyEnds } from "./ends.ts";
import { specifyEnqueue } from "./enqueue.ts";
import { specifier, type Specify } from "./fixture.ts";
import { specifyFairness } from "./fairness.ts";
import { specifyFamilies } from "./families.ts";
import { specifyFollow } from "./follow.ts";
import { specifyInspect } from "./inspect.ts";
import { specifyIsolation } from "./isolation.ts";
import { specifyLosses } from "./losses.ts";
import { specifyOperate } from "./operate.ts";
import { specifyOperations } from "./operations.ts";
import { specifyPurge } from "./purge.ts";
import { specifyRecover, specifyVerdicts } from "./recover.ts";
import { specifySchedules } from "./schedules.ts";
import { specifySettle } from "./settle.ts";
import { specifyDedupe } from "./dedupe.ts";
import { specifyKeySlots } from "./key-slots.ts";
import { specifyKeys } from "./keys.ts";
import { specifyWaiting } from "./waiting.ts";
import { specifyWorkers } from "./workers.ts";

const SUBJECTS: Readonly<Record<string, (specify: Specify) => void>> = {
  enqueue: specifyEnqueue,
  claim: specifyClaim,
  settle: specifySettle,
  follow: specifyFollow,
  "attempt writes": specifyAttemptWrites,
  commit: specifyCommit,
  corrupt: specifyCorrupt,
  recover: specifyRecover,
  verdicts: specifyVerdicts,
  losses: specifyLosses,
  isolation: specifyIsolation,
  expire: specifyExpire,
  waiting: specifyWaiting,
  families: specifyFamilies,
  ends: specifyEnds,
  keys: specifyKeys,
  "slots of keys": specifyKeySlots,
  fairness: specifyFairness,
  dedupe: specifyDedupe,
  workers: specifyWorkers,
  restore: specifyRestore,
  liveness: specifyLiveness,
  operate: specifyOperate,
  operations: specifyOperations,
  inspect: specifyInspect,
  purge: specifyPurge,
  batches: specifyBatches,
  "rows of batches": specifyBatchRows,
  "batches next to each other": specifyBatchTurns,
  schedules: specifySchedules,
  collections: specifyCollections,
};

/** Registers the tests of the store port with node:test. `makeStores` is called for every test and makes a fresh database. */
export function storeConformance(name: string, makeStores: MakeStores): void {
  const specify = specifier(makeStores);
  for (const [subject, tests] of Object.entries(SUBJECTS)) describe(`${name}: ${subject}`, () => tests(specify));
}

// What a backend brings to the conformance suite: connections to one fresh database, its clock, and its own way of writing
// inside `commit`. Nothing here knows any store.

/** One fresh, empty database for one test. */
export interface ConformanceStores {
  /** A further connection to the same database. The suite closes what it opened. */
  open(): Promise<Store>;
  /** The clock that decides in this database. It moves only when the suite says so. */
  readonly clock: SteeredClock;
  /** Removes the database, after every connection was closed. */
  cleanup(): Promise<void>;
  /** The user's own writes in `commit` and `transact`; omitted: this store has neither, and their tests are skipped. */
  readonly user?: UserWrites;
  /**
   * Changes a stored text behind the back of every connection, as a flipped bit on the disk would: the input, the result, or the
   * result of every step of this job. Left out: this store leaves that to its database, and those tests are skipped.
   */
  readonly damage?: Damage;
  /**
   * Recovers what dead workers hold by the database alone, as if no program were there; after a lease without a sign of life the second call
   * takes it. Omitted: this store needs a process, and the suite is that process.
   */
  readonly reclaim?: () => Promise<void>;
  /** What a restore does to the rows, behind the back of every connection. Left out: those tests are skipped. */
  readonly restore?: Restore;
  /** Heartbeats of idle workers poll (`BeatAnswer.pending`). Omitted: their turns are their polls. */
  readonly polls?: true;
}

/** Restores an earlier state of a store, as from a backup. */
export interface Restore {
  /** The row of worker `id` becomes that of worker `to`, with the same short number: another worker has it after a restore. */
  renameWorker(id: string, to: string): Promise<void>;
  /** All rows come back from a backup, as they are now. */
  comeBack(): Promise<void>;
}

/** Damages what the store keeps of one job. */
export type Damage = (id: string, what: "input" | "result" | "step") => Promise<void>;

/** Makes an empty store for one test. */
export type MakeStores = (t: TestContext) => Promise<ConformanceStores>;

/** The clock of a store under test. */
export interface SteeredClock {
  /** The time in milliseconds since 1970. */
  now(): number;
  /** Moves the clock ahead by this many milliseconds. */
  advance(ms: number): Promise<void>;
}

/** The suite can't write SQL of its own, because the transaction's handle differs by store. */
export interface UserWrites {
  /** A body that writes `text` into a table of the user's, then returns what `then` returns or throws what it throws. */
  writing<T>(text: string, then: () => T): TransactionBody<never, T>;
  /** A body that enqueues a job of `kind` with this id through the transaction's handle, then goes on as above. */
  enqueueing<T>(kind: string, id: string, then: () => T): TransactionBody<never, T>;
  /** A body that sends the signal "go" with this id to a job through the transaction's handle, then goes on as above. */
  signalling<T>(job: string, id: string, then: () => T): TransactionBody<never, T>;
  /** As `writing`, and then waits inside the transaction for `gate`; omitted: a transaction of this store can't be left open. */
  waiting?(text: string, gate: Promise<void>): TransactionBody<never, void>;
  /** All texts that are in the user's table, in the order of writing. */
  written(store: Store): Promise<readonly string[]>;
}
