// Group commit: all writes requested in one turn of the event loop share one transaction and one fsync, and each
// promise resolves only when that is done. SQLite's own busy handler starves processes (one of 4 did 99 % of the work).
// The writer therefore retries the lock itself, after a random 1 to 10 ms, without blocking the loop. Four processes
// then drain at 78-95 % of the rate of one (with 1 to 5 ms: 68-91 %), and the smallest share of the work is 16-23 %.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { type Clock, pause, type Random } from "../../job/time.ts";
import { closed } from "../observed.ts";
import { type Database, storeReplaced } from "./database.ts";
import { isMachineFailure, primaryCode, SQLITE_BUSY } from "./errors.ts";

interface Operation {
  /** A savepoint isolates user code, so that its failure undoes only itself. */
  readonly ownSavepoint: boolean;
  readonly run: () => unknown;
  readonly resolve: (value: never) => void;
  readonly reject: (reason: unknown) => void;
}

type Outcome = { readonly value: unknown } | { readonly thrown: unknown };

export interface GroupHooks {
  /** Before each commit, inside the transaction. */
  readonly ending: () => void;
  /** After each rolled-back transaction: what was read in it may never have been committed. */
  readonly undone: () => void;
}

/** How long a write waits for another process's transaction before it is refused. */
const BUSY_LIMIT_MS = 30_000;

export class Writer {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #hooks: GroupHooks;
  #waiting: Operation[] = [];
  #scheduled = false;
  #retrying = false;
  #busySinceMono: number | null = null;
  #closed = false;
  readonly #ofCallbacks = new WeakSet<object>();
  /** The error of the latest transaction; null: it was committed. */
  lastFailure: string | null = null;
  /** How many operations the latest transaction contained: the size of a group commit. */
  lastGroup = 0;
  /** The number of transactions, and of operations in all of them. */
  groupCount = 0;
  operationCount = 0;

  constructor(db: Database, clock: Clock, random: Random, hooks: GroupHooks) {
    this.#db = db;
    this.#clock = clock;
    this.#random = random;
    this.#hooks = hooks;
  }

  /**
   * Runs `run` inside the next transaction, at the end of this turn. `run` must be synchronous; it runs again if the
   * transaction is retried.
   */
  write<T>(run: () => T, ownSavepoint = false): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#closed) return reject(closed());
      this.#waiting.push({ ownSavepoint, run, resolve, reject });
      if (this.#scheduled || this.#retrying) return;
      this.#scheduled = true;
      this.#clock.soon(() => {
        this.#scheduled = false;
        this.#flush();
      });
    });
  }

  /** As `write`, but without waiting for the end of the turn: for callers that are already at its end. */
  writeNow<T>(run: () => T): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#closed) return reject(closed());
      this.#waiting.push({ ownSavepoint: false, run, resolve, reject });
      if (!this.#retrying) this.#flush();
    });
  }

  /** Runs what is still queued, then accepts nothing more. */
  async close(): Promise<void> {
    while (this.#waiting.length > 0) await this.write(() => undefined).catch(() => {});
    this.#closed = true;
  }

  #flush(): void {
    if (this.#waiting.length === 0) return;
    if (!this.#begin()) return;
    const group = this.#waiting;
    this.#waiting = [];
    this.lastGroup = group.length;
    this.groupCount++;
    this.operationCount += group.length;
    const outcomes = this.#runTogether(group);
    if (outcomes) return settle(group, outcomes);
    // One of them broke the shared transaction. Each gets its own transaction, so that only the broken one fails.
    for (const operation of group) this.#runByItself(operation);
  }

  /** False: the file is busy, and the flush is retried automatically. */
  #begin(): boolean {
    const replaced = this.#db.whyReplaced();
    if (replaced !== null) {
      this.#rejectAll(storeReplaced(this.#db.path, replaced));
      return false;
    }
    try {
      this.#db.sql("BEGIN IMMEDIATE").run();
      this.#busySinceMono = null;
      return true;
    } catch (thrown) {
      if (primaryCode(thrown) !== SQLITE_BUSY) {
        this.#rejectAll(thrown);
        return false;
      }
      const mono = this.#clock.mono();
      this.#busySinceMono ??= mono;
      if (mono - this.#busySinceMono > BUSY_LIMIT_MS) {
        this.#busySinceMono = null;
        this.#rejectAll(thrown);
        return false;
      }
      this.#retrying = true;
      this.#clock.after(1 + this.#random.next() * 9, () => {
        this.#retrying = false;
        this.#flush();
      });
      return false;
    }
  }

  #rejectAll(thrown: unknown): void {
    const group = this.#waiting;
    this.#waiting = [];
    this.lastFailure = (thrown as Error).message;
    for (const operation of group) operation.reject(thrown);
  }

  /**
   * Whether the user's callback threw this error, which is then rethrown unchanged. A full disk is never the callback's
   * error.
   */
  isOfCallback(thrown: unknown): boolean {
    return typeof thrown === "object" && thrown !== null && this.#ofCallbacks.has(thrown);
  }

  /**
   * Runs all in one transaction. Null: it had to be rolled back as a whole; nothing is written and no promise has
   * settled.
   */
  #runTogether(group: readonly Operation[]): Outcome[] | null {
    const outcomes: Outcome[] = [];
    for (const operation of group) {
      const outcome = this.#runOne(operation);
      if ("thrown" in outcome && (!operation.ownSavepoint || !this.#db.inTransaction)) {
        this.#rollback();
        return group.length === 1 ? [outcome] : null;
      }
      outcomes.push(outcome);
    }
    try {
      this.#hooks.ending();
      this.#db.sql("COMMIT").run();
      this.lastFailure = null;
      return outcomes;
    } catch (thrown) {
      this.lastFailure = (thrown as Error).message;
      this.#rollback();
      return group.map(() => ({ thrown }));
    }
  }

  #runByItself(operation: Operation): void {
    try {
      this.#db.sql("BEGIN IMMEDIATE").run();
    } catch (thrown) {
      // Another process took the lock in between: requeue them, with their promises still pending.
      if (primaryCode(thrown) === SQLITE_BUSY)
        void this.write(operation.run, operation.ownSavepoint).then(
          operation.resolve as (value: unknown) => void,
          operation.reject,
        );
      else operation.reject(thrown);
      return;
    }
    settle([operation], this.#runTogether([operation])!);
  }

  #runOne(operation: Operation): Outcome {
    if (!operation.ownSavepoint) return attempt(operation.run);
    this.#db.sql("SAVEPOINT outlive_user").run();
    const outcome = attempt(operation.run);
    const isOwn = !("thrown" in outcome && isMachineFailure(outcome.thrown));
    if (!this.#db.inTransaction) {
      if (!isOwn) return outcome;
      return {
        thrown: new OutliveError(
          ErrorCode.commitRolledBack,
          "A statement of the callback ended the transaction.",
          "Do not use ON CONFLICT ROLLBACK or RAISE(ROLLBACK) inside the callback.",
          {},
          "thrown" in outcome ? { cause: outcome.thrown } : undefined,
        ),
      };
    }
    if ("thrown" in outcome) this.#db.sql("ROLLBACK TO outlive_user").run();
    this.#db.sql("RELEASE outlive_user").run();
    if ("thrown" in outcome && isOwn && typeof outcome.thrown === "object" && outcome.thrown !== null)
      this.#ofCallbacks.add(outcome.thrown);
    return outcome;
  }

  #rollback(): void {
    if (this.#db.inTransaction) this.#db.sql("ROLLBACK").run();
    this.#hooks.undone();
  }
}

function attempt(run: () => unknown): Outcome {
  try {
    return { value: run() };
  } catch (thrown) {
    return { thrown };
  }
}

function settle(group: readonly Operation[], outcomes: readonly Outcome[]): void {
  group.forEach((operation, i) => {
    const outcome = outcomes[i]!;
    if ("thrown" in outcome) operation.reject(outcome.thrown);
    else operation.resolve(outcome.value as never);
  });
}

/** How the parts of the store reach the file. */
export interface FileAccess {
  readonly db: Database;
  readonly now: () => number;
  /** Inside the next group commit. `run` is synchronous, and runs again if the transaction is retried. */
  readonly write: <T>(run: () => T, ownSavepoint?: boolean) => Promise<T>;
  /** A short read of committed state. */
  readonly read: <T>(run: () => T) => Promise<T>;
}

// Waits for a file that is briefly busy, without blocking the loop. Group commits have their own retry (writer.ts).

const LIMIT_MS = 30_000;

/** Runs `work` at once, and again every few ms while the file is busy, for at most half a minute. */
export async function whenFree<T>(clock: Clock, random: Random, work: () => T): Promise<T> {
  const giveUpAt = clock.mono() + LIMIT_MS;
  for (;;) {
    try {
      return work();
    } catch (thrown) {
      const busy = primaryCode(thrown) === SQLITE_BUSY || (thrown as { code?: unknown }).code === ErrorCode.storeBusy;
      if (!busy || clock.mono() > giveUpAt) throw thrown;
    }
    await pause(clock, 1 + random.next() * 10);
  }
}
