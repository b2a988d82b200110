// The disk under all simulated processes: one real SQLite database, and what can happen to a file. It is busy for a while, it is
// full for a while, with relaxed durability a loss of power takes everything since the last sync, and an older copy is put in its
// place. Each process has a connection of its own, which is the real one with these faults in it.
import type { Database, SQLInputValue, StatementSync } from "../../../src/stores/sqlite/database.ts";
import type { Mark, MarkFile } from "../../../src/stores/sqlite/workers.ts";

type Runs = Pick<StatementSync, "run">;

/** A copy of the whole file. */
export interface Backup {
  readonly takenAt: number;
  readonly epoch: number;
  readonly tables: readonly { readonly name: string; readonly rows: readonly (readonly SQLInputValue[])[] }[];
}

/**
 * How an older copy gets into the place of the file. `moved`: as a file of its own, as `mv` does; every process that has the old one open
 * writes to a file without a name. `over`: into the file itself, as `cp` does, and without its write-ahead log; every process that has it
 * open sees the older rows.
 */
export type RestoreWay = "moved" | "over";

export class Disk {
  readonly db: Database;
  /** Until when (virtual ms) another program holds the write lock, or the disk is full. */
  busyUntil = 0;
  fullUntil = 0;
  /** How many transactions were committed: who looks for changes looks at this first. */
  commitCount = 0;
  restoreCount = 0;
  /** When everything before was safe. */
  syncedAt = 0;
  inTransaction = false;
  /** The mark that lies next to the file: no copy of the file brings it back. */
  mark: Mark | null = null;
  /** A write to a file that was no longer at the path, by the name of its process; null: there was none. */
  misplaced: string | null = null;
  /** Which file is at the path, and which write-ahead log next to it. */
  inode = 1;
  log = 1;
  #syncedMark: Mark | null = null;
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
    this.#syncedMark = this.mark;
  }

  losePower(): void {
    if (!this.#relaxed) return;
    this.db.exec("ROLLBACK");
    this.db.exec("DELETE FROM sim_seen");
    this.db.exec("BEGIN");
    this.inTransaction = false;
    this.mark = this.#syncedMark;
  }

  /** Where all processes keep the mark of the file. */
  readonly markFile: MarkFile = { read: () => this.mark, write: (mark) => void (this.mark = mark) };

  /** Null: the tables are not there yet, or no process has declared its kinds. */
  backup(): Backup | null {
    const isTable = "type = 'table' AND (name = 'sqlite_sequence' OR name NOT LIKE 'sqlite%') AND name <> 'sim_seen'";
    const tables = this.db.sql(`SELECT name FROM sqlite_schema WHERE ${isTable}`).all() as { name: string }[];
    const copied = tables.map(({ name }) => ({
      name,
      rows: this.db
        .sql(`SELECT * FROM ${name}`)
        .all()
        .map((row) => Object.values(row)),
    }));
    if (!copied.some(({ name, rows }) => name === "outlive_kinds" && rows.length > 0)) return null;
    const epoch = this.db.sql("SELECT value FROM outlive_meta WHERE key = 'epoch'").get()?.["value"] ?? 0;
    return { takenAt: this.#now(), epoch: Number(epoch), tables: copied };
  }

  /** Only with full durability, and only between two transactions. */
  restore({ tables }: Backup, way: RestoreWay): void {
    this.db.exec("BEGIN");
    for (const { name, rows } of tables) {
      this.db.exec(`DELETE FROM ${name}`);
      for (const row of rows) this.db.sql(`INSERT INTO ${name} VALUES (${row.map(() => "?").join(", ")})`).run(...row);
    }
    this.db.exec("DELETE FROM sim_seen");
    this.db.exec("COMMIT");
    if (way === "moved") this.inode++;
    this.log++;
    this.restoreCount++;
  }

  end(): void {
    if (this.db.inTransaction) this.db.exec("COMMIT");
  }

  /** The file as one thread of this process has it open. */
  connect(process = "the simulator"): Database {
    return new Connection(this, process) as unknown as Database;
  }

  /** `inode`: of the file that the connection has open. */
  begin(inode: number, process: string): void {
    if (inode !== this.inode) this.misplaced ??= process;
    if (this.#now() < this.busyUntil) throw sqliteError(5, "database is locked");
    this.db.sql(this.#relaxed ? "SAVEPOINT sim_commit" : "BEGIN IMMEDIATE").run();
    this.inTransaction = true;
  }

  commit(): void {
    if (this.#now() < this.fullUntil) {
      // SQLite may or may not have undone the transaction on its own when it says so.
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
  readonly file: string;
  readonly #disk: Disk;
  readonly #inode: number;
  #log: number | null = null;
  /** Its own. */
  #commits = 0;
  readonly #special: ReadonlyMap<string, Runs>;

  constructor(disk: Disk, process: string) {
    this.#disk = disk;
    this.#inode = disk.inode;
    this.file = `1:${disk.inode}`;
    const runs = (run: () => void): Runs => ({
      run: () => {
        run();
        return { changes: 0, lastInsertRowid: 0 };
      },
    });
    this.#special = new Map([
      ["BEGIN IMMEDIATE", runs(() => disk.begin(this.#inode, process))],
      [
        "COMMIT",
        runs(() => {
          disk.commit();
          this.#commits++;
        }),
      ],
      ["ROLLBACK", runs(() => disk.rollback())],
    ]);
  }

  whyReplaced(): string | null {
    return this.#inode === this.#disk.inode ? null : "another file was put in the place of its own";
  }

  whyLogReplaced(): string | null {
    this.#log ??= this.#disk.log;
    return this.#log === this.#disk.log ? null : "its write-ahead log was removed or replaced";
  }

  sql(text: string): Runs {
    // The three are shorter than any other statement of ours.
    return (text.length <= 15 ? this.#special.get(text) : undefined) ?? this.#disk.db.sql(text);
  }

  sqlArrays(text: string): StatementSync {
    // All processes share one real connection, to which every commit is its own.
    if (text === "PRAGMA data_version") return { get: () => [this.#foreignCommits()] } as unknown as StatementSync;
    return this.#disk.db.sqlArrays(text);
  }

  #foreignCommits(): number {
    return this.#disk.commitCount - this.#commits + this.#disk.restoreCount;
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

/** An error as node:sqlite throws it. Without a stack: a busy file refuses thousands of times, and the place does not matter. */
function sqliteError(errcode: number, message: string): Error {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  const error = new Error(message);
  Error.stackTraceLimit = stackTraceLimit;
  return Object.assign(error, { code: "ERR_SQLITE_ERROR", errcode, errstr: message });
}
