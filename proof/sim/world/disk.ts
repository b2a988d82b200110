// The disk under all simulated processes: one real SQLite database, and what can happen to a file. It is busy for a while, it is
// full for a while, and with relaxed durability a loss of power takes everything since the last sync. Each process has a
// connection of its own, which is the real one with these faults in it.
import type { Database, StatementSync } from "../../../src/stores/sqlite/database.ts";

type Runs = Pick<StatementSync, "run">;

export class Disk {
  readonly db: Database;
  /** Until when (virtual ms) somebody outside holds the write lock, or the disk is full. */
  busyUntil = 0;
  fullUntil = 0;
  /** How many transactions were committed: who looks for changes looks at this first. */
  commitCount = 0;
  /** When everything before was safe. */
  syncedAt = 0;
  inTransaction = false;
  readonly #now: () => number;
  readonly #relaxed: boolean;

  constructor(db: Database, durability: "full" | "relaxed", now: () => number) {
    this.db = db;
    this.#now = now;
    this.#relaxed = durability === "relaxed";
  }

  /** With relaxed durability commits are savepoints of one long transaction, which the next sync ends. */
  start(): void {
    if (this.#relaxed) this.db.exec("BEGIN");
  }

  sync(): void {
    if (!this.#relaxed) return;
    this.db.exec("COMMIT");
    this.db.exec("BEGIN");
    this.syncedAt = this.#now();
  }

  losePower(): void {
    if (!this.#relaxed) return;
    this.db.exec("ROLLBACK");
    this.db.exec("DELETE FROM sim_seen");
    this.db.exec("BEGIN");
    this.inTransaction = false;
  }

  end(): void {
    if (this.db.inTransaction) this.db.exec("COMMIT");
  }

  /** The file as one thread of one process has it open. */
  connect(): Database {
    return new Connection(this) as unknown as Database;
  }

  begin(): void {
    if (this.#now() < this.busyUntil) throw sqliteError(5, "database is locked");
    this.db.sql(this.#relaxed ? "SAVEPOINT sim_commit" : "BEGIN IMMEDIATE").run();
    this.inTransaction = true;
  }

  commit(): void {
    if (this.#now() < this.fullUntil) {
      // SQLite may or may not have undone the transaction by itself when it says so.
      if (Math.floor(this.#now() * 1_000) % 2 === 0) this.rollback();
      throw sqliteError(13, "database or disk is full");
    }
    this.db.sql(this.#relaxed ? "RELEASE sim_commit" : "COMMIT").run();
    this.inTransaction = false;
    this.commitCount++;
  }

  rollback(): void {
    this.inTransaction = false;
    if (!this.#relaxed) return void this.db.sql("ROLLBACK").run();
    this.db.sql("ROLLBACK TO sim_commit").run();
    this.db.sql("RELEASE sim_commit").run();
  }
}

/** The side of `Database` that the store uses. */
class Connection {
  readonly path = ":memory:";
  readonly readOnly = false;
  readonly file = null;
  readonly #disk: Disk;
  readonly #special: ReadonlyMap<string, Runs>;

  whyReplaced(): null {
    return null;
  }

  whyLogReplaced(): null {
    return null;
  }

  constructor(disk: Disk) {
    this.#disk = disk;
    const runs = (run: () => void): Runs => ({
      run: () => {
        run();
        return { changes: 0, lastInsertRowid: 0 };
      },
    });
    this.#special = new Map([
      ["BEGIN IMMEDIATE", runs(() => disk.begin())],
      ["COMMIT", runs(() => disk.commit())],
      ["ROLLBACK", runs(() => disk.rollback())],
    ]);
  }

  sql(text: string): Runs {
    // The three are shorter than any other statement of ours.
    return (text.length <= 15 ? this.#special.get(text) : undefined) ?? this.#disk.db.sql(text);
  }

  sqlArrays(text: string): StatementSync {
    return this.#disk.db.sqlArrays(text);
  }

  exec(text: string): void {
    const special = this.#special.get(text);
    if (special) special.run();
    else this.#disk.db.exec(text);
  }

  get inTransaction(): boolean {
    return this.#disk.inTransaction;
  }

  asUser<T>(body: () => T): T {
    return this.#disk.db.asUser(body);
  }

  userSql(text: string): StatementSync {
    return this.#disk.db.userSql(text);
  }

  userExec(text: string): void {
    this.#disk.db.userExec(text);
  }

  close(): void {}
}

/** An error as node:sqlite throws it. Without a stack: a busy file refuses thousands of times, and nobody looks where. */
function sqliteError(errcode: number, message: string): Error {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  const error = new Error(message);
  Error.stackTraceLimit = stackTraceLimit;
  return Object.assign(error, { code: "ERR_SQLITE_ERROR", errcode, errstr: message });
}
