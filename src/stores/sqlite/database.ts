// The only file that uses node:sqlite: opening with the right settings, cached statements, lock files, and the guard
// that keeps a user's callback from ending our transaction. Trap: POSIX locks belong to the process. In a process that
// uses the database or a lock file, only SQLite may open or close it: a mere readFileSync drops every lock that SQLite
// holds on it.
import { rmSync, statSync } from "node:fs";
import type { DatabaseSync, SQLInputValue, SQLOutputValue, StatementSync } from "node:sqlite";
import { pathToFileURL } from "node:url";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import {
  assertExists,
  assertLocalFilesystem,
  assertOneName,
  assertPlatform,
  createPrivately,
  isOnReadOnlyDisk,
  whyUnopened,
} from "./address.ts";
import { assertSafeSqlite, wrapError, primaryCode, SQLITE_BUSY, SQLITE_FULL, translate } from "./errors.ts";

/** A row by the names of its columns. */
export type Row = Record<string, SQLOutputValue>;
/** Not imported: in a Node that has no SQLite the import would fail before anything could say that this Node is too old (stores/registry.ts). */
const builtin = process.getBuiltinModule?.("node:sqlite");

export type { SQLInputValue, StatementSync };

export interface DatabaseOptions {
  /** `:memory:` or a path. */
  readonly path: string;
  readonly readOnly?: boolean;
  /**
   * Keeps the journal mode unchanged, for callers that inspect the file before anything is changed. `useWal` sets it
   * later.
   */
  readonly asIs?: boolean;
  /**
   * Reads the main file alone, without its write-ahead log, and takes no lock: only while no other process has it open.
   */
  readonly withoutWal?: boolean;
  /** A missing file is an error; no new one is created. */
  readonly mustExist?: boolean;
  /** "relaxed" is synchronous=NORMAL: a power loss may lose the last acknowledged commits. */
  readonly durability?: "full" | "relaxed";
  /** Opens even though this SQLite has a known bug that can corrupt the file. */
  readonly allowUnsafeSqlite?: boolean;
  /** Opens even though the file system is known to break SQLite's locks. */
  readonly allowNetworkFilesystem?: boolean;
}

export class Database {
  readonly path: string;
  readonly readOnly: boolean;
  /** Device and inode of the file that this connection has open; null: it is in memory. */
  readonly file: string | null;
  readonly #db: DatabaseSync;
  readonly #statements = new Map<string, StatementSync>();
  /** Those that return arrays: a text may be asked for in both forms. */
  readonly #arrays = new Map<string, StatementSync>();
  readonly #userStatements = new Map<string, StatementSync>();
  #inUserCode = false;
  /** Device and inode of the write-ahead log when it was first seen. */
  #log: string | null = null;

  /**
   * Opens the file, and creates it with mode 0600 if it does not exist. Throws an OutliveError that says what to do.
   */
  constructor(options: DatabaseOptions) {
    this.path = options.path;
    this.readOnly = options.readOnly === true;
    const memory = options.path === ":memory:";
    if (!memory) {
      if (!options.allowUnsafeSqlite) assertPlatform(options.path);
      if (!options.allowNetworkFilesystem) assertLocalFilesystem(options.path);
      if (options.mustExist) assertExists(options.path);
      else if (!this.readOnly) createPrivately(options.path);
      if (!this.readOnly) assertOneName(options.path);
    }
    const before = memory ? null : fileAt(options.path);
    const withoutWal = options.withoutWal || (this.readOnly && !memory && isAtRest(options.path));
    try {
      this.#db = translate(
        `opening ${options.path}`,
        () =>
          new builtin.DatabaseSync(withoutWal ? immutable(options.path) : options.path, {
            readOnly: this.readOnly,
            timeout: 0,
          }),
      );
    } catch (thrown) {
      throw whyUnopened(options.path, thrown, this.readOnly);
    }
    this.file = memory ? null : fileAt(options.path);
    try {
      if (this.file !== before) throw storeReplaced(this.path, "another file was put in its place while it was opened");
      translate(`opening ${options.path}`, () => {
        // The first reads: they fail here if the file is not a database, is damaged at its head, or can't be read.
        if (!options.allowUnsafeSqlite) assertSafeSqlite(this.#db);
        this.#db.prepare("SELECT count(*) FROM sqlite_schema").get();
        if (!options.asIs) this.useWal();
        this.#db.exec(`PRAGMA synchronous = ${options.durability === "relaxed" ? "NORMAL" : "FULL"}`);
      });
      this.#db.setAuthorizer((action, name, detail) =>
        this.#inUserCode ? authorize(action, name, detail) : builtin.constants.SQLITE_OK,
      );
    } catch (thrown) {
      this.#db.close();
      throw memory ? thrown : whyUnopened(options.path, thrown, this.readOnly);
    }
  }

  /**
   * Why the file at the path is no longer the one this connection has open: it was moved, removed or replaced.
   * Everything written from then on is lost with the old file. Null: it is still there. One stat, 2 µs.
   */
  whyReplaced(): string | null {
    if (this.file === null) return null;
    const there = fileAt(this.path);
    if (there === this.file) return null;
    return there === null ? "its file was moved or removed" : "another file was put in the place of its own";
  }

  /**
   * The same for its write-ahead log, which keeps one name and one inode as long as a connection is open: a copy
   * written over the file comes without that log. Called with heartbeats only, and never before the first write.
   */
  whyLogReplaced(): string | null {
    if (this.file === null) return null;
    const there = fileAt(`${this.path}-wal`);
    this.#log ??= there;
    return there === this.#log ? null : "its write-ahead log was removed or replaced";
  }

  /**
   * Sets the journal mode to WAL. Returns the previous mode if another tool had changed it; null: it was WAL already,
   * or the file is new.
   */
  useWal(): string | null {
    if (this.readOnly || this.path === ":memory:") return null;
    const was = this.#journalMode("PRAGMA journal_mode");
    if (was === "wal") return null;
    const { page_count: pages } = this.#db.prepare("PRAGMA page_count").get() as { page_count: number };
    const is = this.#journalMode("PRAGMA journal_mode = WAL");
    if (is === "wal") return pages === 0 ? null : was;
    throw new OutliveError(
      ErrorCode.storeUnusable,
      `${this.path} stays in journal mode ${is} instead of WAL.`,
      "Put the file on a local disk where SQLite can share memory between processes, and close whatever else has it open.",
      { path: this.path, journalMode: is },
    );
  }

  /**
   * SQLite copies the pages that a statement may have to undo. Beyond 64 KB it would move the copies into a temporary file, and then every later
   * statement of the transaction writes there as well: one that admits 50 jobs with keys made each of the following 50 claims twice as slow. Sorts
   * stay in memory, too, so this is for after the migrations, which sort whole tables.
   */
  undoInMemory(): void {
    this.#db.exec("PRAGMA temp_store = MEMORY");
  }

  #journalMode(pragma: string): string {
    return (this.#db.prepare(pragma).get() as { journal_mode: string }).journal_mode;
  }

  /** The prepared statement for a text; each text is prepared once. */
  sql(text: string): StatementSync {
    let statement = this.#statements.get(text);
    if (!statement) {
      statement = this.#db.prepare(text);
      this.#statements.set(text, statement);
    }
    return statement;
  }

  /** As `sql`, with rows as arrays: for the hot path only. */
  sqlArrays(text: string): StatementSync {
    let statement = this.#arrays.get(text);
    if (!statement) {
      statement = this.#db.prepare(text);
      statement.setReturnArrays(true);
      this.#arrays.set(text, statement);
    }
    return statement;
  }

  exec(text: string): void {
    this.#db.exec(text);
  }

  get inTransaction(): boolean {
    return this.#db.isTransaction;
  }

  /**
   * Runs a user's callback. Transaction control, ATTACH, PRAGMA and writes to our own tables are denied while it runs.
   */
  asUser<T>(body: () => T): T {
    this.#inUserCode = true;
    try {
      return body();
    } finally {
      this.#inUserCode = false;
    }
  }

  /** A user's statement. It is prepared, and therefore authorized, as user code; at most 500 are cached. */
  userSql(text: string): StatementSync {
    let statement = this.#userStatements.get(text);
    if (!statement) {
      statement = this.asUser(() => this.#db.prepare(text));
      if (this.#userStatements.size >= 500) this.#userStatements.delete(this.#userStatements.keys().next().value!);
      this.#userStatements.set(text, statement);
    }
    return statement;
  }

  userExec(text: string): void {
    this.asUser(() => this.#db.exec(text));
  }

  close(): void {
    this.#statements.clear();
    this.#arrays.clear();
    this.#userStatements.clear();
    if (this.#db.isOpen) this.#db.close();
  }
}

/** Inside a transaction: if `work` returns false or throws, nothing of it is written. */
export function wholly(db: Database, work: () => boolean): boolean {
  db.sql("SAVEPOINT outlive_part").run();
  let done = false;
  try {
    done = work();
    return done;
  } finally {
    // A full disk may have ended the whole transaction.
    if (!done && db.inTransaction) db.sql("ROLLBACK TO outlive_part").run();
    if (db.inTransaction) db.sql("RELEASE outlive_part").run();
  }
}

export function storeReplaced(path: string, why: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeReplaced,
    `${path} is not the file that was opened: ${why}.`,
    "Nothing was written. If a backup was restored, start this program again; if not, find out what moved the file.",
    { path, why },
  );
}

/** On a read-only disk no process writes, and without a log the file is whole. SQLite could not make the index of the log there. */
function isAtRest(path: string): boolean {
  return isOnReadOnlyDisk(path) && (statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0) === 0;
}

function immutable(path: string): URL {
  const url = pathToFileURL(path);
  url.searchParams.set("immutable", "1");
  return url;
}

/** Holds `path` exclusively until `drop` or the end of this process. The file is created if it does not exist. */
export function holdExclusively(path: string): { drop: () => void } {
  createPrivately(path);
  const db = translate(`opening ${path}`, () => new builtin.DatabaseSync(path, { timeout: 0 }));
  try {
    db.exec("BEGIN EXCLUSIVE");
  } catch (thrown) {
    db.close();
    const wrapped = wrapError(`locking ${path}`, thrown);
    throw primaryCode(thrown) === SQLITE_FULL ? whyUnopened(path, wrapped, false) : wrapped;
  }
  heldLocks.add(db);
  return {
    drop: () => {
      heldLocks.delete(db);
      if (db.isOpen) db.close();
    },
  };
}

/**
 * An unreferenced handle is garbage collected and its lock released: an experiment lost 1,495 of 2,000 locks that way.
 */
const heldLocks = new Set<DatabaseSync>();

/**
 * Removes a lock file that no process holds, and holds it while doing so. A process that wants the lock at that moment
 * finds it busy, then gone, and creates it again. Probing first and removing afterwards could remove a lock that was
 * taken in between.
 */
export function removeUnheld(path: string): boolean {
  let db: DatabaseSync | undefined;
  try {
    const before = statSync(path, { throwIfNoEntry: false })?.ino;
    if (before === undefined) return false;
    db = new builtin.DatabaseSync(path, { timeout: 0 });
    db.exec("BEGIN EXCLUSIVE");
    // A second process may have removed the file that we hold, and a third may have created its own lock under the same
    // name since.
    if (statSync(path, { throwIfNoEntry: false })?.ino !== before) return false;
    rmSync(path, { force: true });
    return true;
  } catch (thrown) {
    if (primaryCode(thrown) === undefined) throw thrown;
    return false;
  } finally {
    db?.close();
  }
}

/** Whether any process holds `path`. Opens without creating; never called for a lock that this process holds itself. */
export function probeExclusive(path: string): "held" | "free" | "unknown" {
  let db: DatabaseSync | undefined;
  try {
    db = new builtin.DatabaseSync(path, { readOnly: true, timeout: 0 });
    db.prepare("SELECT count(*) FROM sqlite_schema").get();
    return "free";
  } catch (thrown) {
    return primaryCode(thrown) === SQLITE_BUSY ? "held" : "unknown";
  } finally {
    db?.close();
  }
}

const OWN_TABLE = /^outlive_/i;

function authorize(action: number, name: string | null, detail: string | null): number {
  switch (action) {
    case builtin.constants.SQLITE_TRANSACTION:
    case builtin.constants.SQLITE_SAVEPOINT:
    case builtin.constants.SQLITE_ATTACH:
    case builtin.constants.SQLITE_DETACH:
      return builtin.constants.SQLITE_DENY;
    case builtin.constants.SQLITE_PRAGMA:
      // Reading a pragma is harmless; setting one may change how our own writes are stored.
      return detail === null ? builtin.constants.SQLITE_OK : builtin.constants.SQLITE_DENY;
    case builtin.constants.SQLITE_INSERT:
    case builtin.constants.SQLITE_UPDATE:
    case builtin.constants.SQLITE_DELETE:
    case builtin.constants.SQLITE_CREATE_TABLE:
    case builtin.constants.SQLITE_CREATE_TEMP_TABLE:
    case builtin.constants.SQLITE_CREATE_VIEW:
    case builtin.constants.SQLITE_CREATE_TEMP_VIEW:
    case builtin.constants.SQLITE_CREATE_VTABLE:
    case builtin.constants.SQLITE_DROP_TABLE:
      return OWN_TABLE.test(name ?? "") ? builtin.constants.SQLITE_DENY : builtin.constants.SQLITE_OK;
    case builtin.constants.SQLITE_CREATE_INDEX:
    case builtin.constants.SQLITE_CREATE_TRIGGER:
    case builtin.constants.SQLITE_CREATE_TEMP_INDEX:
    case builtin.constants.SQLITE_CREATE_TEMP_TRIGGER:
    case builtin.constants.SQLITE_DROP_INDEX:
    case builtin.constants.SQLITE_DROP_TRIGGER:
      // The second argument is the table of the index or trigger.
      return OWN_TABLE.test(name ?? "") || OWN_TABLE.test(detail ?? "")
        ? builtin.constants.SQLITE_DENY
        : builtin.constants.SQLITE_OK;
    case builtin.constants.SQLITE_ALTER_TABLE:
      return OWN_TABLE.test(detail ?? "") ? builtin.constants.SQLITE_DENY : builtin.constants.SQLITE_OK;
    default:
      return builtin.constants.SQLITE_OK;
  }
}

export type { DatabaseSync };

/**
 * A connection without any of our settings, for the processes that check, repair and copy files (doctor/child.ts): the
 * file may be in any state. `immutable` reads without locks and creates no files next to it: only where no other
 * process writes.
 */
export function openBare(
  path: string,
  how: { readonly readOnly?: boolean; readonly immutable?: boolean; readonly timeout?: number } = {},
): DatabaseSync {
  const { readOnly = false, immutable = false, timeout = 0 } = how;
  // Passed as a URL: a plain path may contain characters that SQLite would parse as options.
  const url = path === ":memory:" ? path : pathToFileURL(path);
  if (immutable && typeof url === "object") url.searchParams.set("immutable", "1");
  return new builtin.DatabaseSync(url, { readOnly: readOnly || immutable, timeout, defensive: false });
}

/** Device and inode of the file at a path; null: there is none. */
export function fileAt(path: string): string | null {
  const file = statSync(path, { bigint: true, throwIfNoEntry: false });
  return file === undefined ? null : fileKey(file.dev, file.ino);
}

/** A file as the kernel's lock list names it: device (major and minor in hex) and inode. */
export function fileKey(dev: bigint, ino: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  return `${major.toString(16).padStart(2, "0")}:${minor.toString(16).padStart(2, "0")}:${ino}`;
}

// Rows that are next to each other in a table: one statement along the table writes them for half of what a statement for each costs, and for two thirds of one
// that takes them from a list.

interface Run {
  readonly first: number;
  last: number;
}

/** Fewer neighbours than these are not worth a statement of their own. */
export const LEAST_RUN = 4;

/** The runs of neighbours in a list of rows, in its order. */
export function runsOf(rows: readonly number[]): readonly Run[] {
  const runs: Run[] = [];
  let run: Run | undefined;
  for (const row of rows)
    if (run && row === run.last + 1) run.last = row;
    else runs.push((run = { first: row, last: row }));
  return runs;
}

/** Runs `update`, which ends with WHERE or AND, for these rows: for each run of them, and for all others together. `id`: the column of their number. Returns how many were changed. */
export function updateRows(
  db: Database,
  update: string,
  values: readonly SQLInputValue[],
  id: string,
  rows: readonly number[],
): number {
  const others: number[] = [];
  let changed = 0;
  const run = (which: string, ...of: SQLInputValue[]): void =>
    void (changed += Number(db.sql(`${update} ${id} ${which}`).run(...values, ...of).changes));
  for (const { first, last } of runsOf(rows))
    if (last - first + 1 < LEAST_RUN) for (let row = first; row <= last; row++) others.push(row);
    else run("BETWEEN ? AND ?", first, last);
  if (others.length > 0) run("IN (SELECT value FROM json_each(?))", JSON.stringify(others));
  return changed;
}

/** With fewer rows than these in a run on average, a list of the rows is read instead. */
const ROWS_PER_RUN = 16;

/** Reads these rows, as arrays, along the table if most of them are neighbours. In ascending order if they are; `select` ends with WHERE or AND. */
export function readRows<T>(db: Database, select: string, id: string, rows: readonly number[]): T[] {
  const runs = runsOf(rows);
  if (runs.length * ROWS_PER_RUN > rows.length)
    return db.sqlArrays(`${select} ${id} IN (SELECT value FROM json_each(?))`).all(JSON.stringify(rows)) as T[];
  const statement = db.sqlArrays(`${select} ${id} BETWEEN ? AND ?`);
  return runs.flatMap(({ first, last }) => statement.all(first, last) as T[]);
}

// Facts about the store as a whole, stored as rows of outlive_meta.

/** The epoch under which claims are currently made. */
export function storedEpoch(db: Database): number {
  const row = db.sql("SELECT value FROM outlive_meta WHERE key = 'epoch'").get() as { value: number } | undefined;
  return row?.value ?? 0;
}

/** Null: there is no such key. */
export function metaValue(db: Database, key: string): unknown {
  return db.sql("SELECT value FROM outlive_meta WHERE key = ?").get(key)?.["value"] ?? null;
}

/** Inside a transaction. */
export function setMeta(db: Database, key: string, value: string | number): void {
  db.sql(
    "INSERT INTO outlive_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
  ).run(key, value);
}
