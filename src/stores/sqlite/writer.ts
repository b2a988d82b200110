// Group commit: all writes that are asked for in one turn of the event loop share one transaction and one fsync, and each
// promise resolves only when that is done. SQLite's own busy handler starves (of 4 processes one did 99 % of the work), so the
// lock is retried here after 1 to 10 ms at random, without blocking the loop: four processes then drain at 78-95 % of one (1 to 5 ms:
// 68-91 %), the smallest share of the work being 16-23 %.
import type { Clock, Random } from "../../core/clock.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { closed } from "../closed.ts";
import type { Database } from "./database.ts";
import { inOurWords, isMachineFailure, primaryCode, SQLITE_BUSY } from "./errors.ts";

interface Operation {
  readonly doing: string;
  /** User code is fenced off by a savepoint, so that its failure undoes only itself. */
  readonly ownSavepoint: boolean;
  readonly run: () => unknown;
  readonly resolve: (value: never) => void;
  readonly reject: (reason: unknown) => void;
}

/** `own`: the error is of the user's callback and comes out as it is. A full disk is never its own. */
type Outcome = { readonly value: unknown } | { readonly thrown: unknown; readonly own?: true };

/** How long a write waits for another process's transaction before it is refused. */
const BUSY_LIMIT_MS = 30_000;

export class Writer {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #undone: () => void;
  #waiting: Operation[] = [];
  #scheduled = false;
  #retrying = false;
  #busySinceMono: number | null = null;
  #closed = false;
  /** What the latest transaction failed with; null: it was committed. */
  lastFailure: string | null = null;
  /** How many operations the latest transaction held: the size of a group commit. */
  lastGroup = 0;
  /** How many transactions there were, and how many operations in all of them. */
  groupCount = 0;
  operationCount = 0;

  /** `undone` is called after each transaction that was rolled back: what was read in it may never have been there. */
  constructor(db: Database, clock: Clock, random: Random, undone: () => void) {
    this.#db = db;
    this.#clock = clock;
    this.#random = random;
    this.#undone = undone;
  }

  /** Runs `run` inside the next transaction, at the end of this turn. `run` must be synchronous and may be run again if the transaction is. */
  write<T>(doing: string, run: () => T, ownSavepoint = false): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#closed) return reject(closed());
      this.#waiting.push({ doing, ownSavepoint, run, resolve, reject });
      if (this.#scheduled || this.#retrying) return;
      this.#scheduled = true;
      this.#clock.soon(() => {
        this.#scheduled = false;
        this.#flush();
      });
    });
  }

  /** As `write`, but without waiting for the end of the turn: for callers that are at its edge already. */
  writeNow<T>(doing: string, run: () => T): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#closed) return reject(closed());
      this.#waiting.push({ doing, ownSavepoint: false, run, resolve, reject });
      if (!this.#retrying) this.#flush();
    });
  }

  /** Does what is still waiting, then nothing more. */
  async close(): Promise<void> {
    while (this.#waiting.length > 0) await this.write("closing", () => undefined).catch(() => {});
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
    // One of them broke the shared transaction. Each gets one of its own, so that only the broken one fails.
    for (const operation of group) this.#runByItself(operation);
  }

  /** False: the file is busy, and the flush comes again by itself. */
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
    for (const operation of group) operation.reject(inOurWords(operation.doing, thrown));
  }

  /** All in one transaction. Null: it had to be undone as a whole, nothing is written and nobody has been answered. */
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
      // Another process took the lock in between: back into the queue, unanswered.
      if (primaryCode(thrown) === SQLITE_BUSY)
        void this.write(operation.doing, operation.run, operation.ownSavepoint).then(
          operation.resolve as (value: unknown) => void,
          operation.reject,
        );
      else operation.reject(inOurWords(operation.doing, thrown));
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
          `The transaction was ended while ${operation.doing}.`,
          "Do not use ON CONFLICT ROLLBACK or RAISE(ROLLBACK) inside the callback.",
          {},
          "thrown" in outcome ? { cause: outcome.thrown } : undefined,
        ),
      };
    }
    if ("thrown" in outcome) this.#db.sql("ROLLBACK TO outlive_user").run();
    this.#db.sql("RELEASE outlive_user").run();
    return "thrown" in outcome && isOwn ? { ...outcome, own: true } : outcome;
  }

  #rollback(): void {
    if (this.#db.inTransaction) this.#db.sql("ROLLBACK").run();
    this.#undone();
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
    if ("thrown" in outcome)
      operation.reject(outcome.own ? outcome.thrown : inOurWords(operation.doing, outcome.thrown));
    else operation.resolve(outcome.value as never);
  });
}

function storeReplaced(path: string, why: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeReplaced,
    `${path} is not the file that was opened: ${why}.`,
    "Nothing was written. If a backup was put back, start this program again; if not, find out what moved the file.",
    { path, why },
  );
}
