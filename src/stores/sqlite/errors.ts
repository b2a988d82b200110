// Wraps SQLite's errors: a stable code, what was being done, and the next thing to do.
import { ErrorCode, isUnknownKind, OutliveError } from "../../job/errors.ts";

export const SQLITE_BUSY = 5;
export const SQLITE_IOERR = 10;
export const SQLITE_AUTH = 23;
export const SQLITE_CONSTRAINT = 19;
const SQLITE_NOMEM = 7;
const SQLITE_READONLY = 8;
export const SQLITE_CORRUPT = 11;
export const SQLITE_FULL = 13;
export const SQLITE_CANTOPEN = 14;
export const SQLITE_NOTADB = 26;

/** SQLite's primary result code of an error, or undefined if SQLite did not throw it. */
export function primaryCode(thrown: unknown): number | undefined {
  const code = (thrown as { errcode?: unknown } | null)?.errcode;
  return typeof code === "number" ? code & 0xff : undefined;
}

/**
 * Whether only one row was refused, by a constraint, a trigger, or because a follow-up of it has an unknown kind. Other
 * rows may still be written.
 */
export function isOfOneRow(thrown: unknown): boolean {
  return primaryCode(thrown) === SQLITE_CONSTRAINT || isUnknownKind(thrown);
}

/**
 * Failures of the machine, not of the statement: no disk space, no memory, a failing disk. SQLite may roll the
 * transaction back.
 */
export function isMachineFailure(thrown: unknown): boolean {
  const code = primaryCode(thrown);
  return code === SQLITE_FULL || code === SQLITE_IOERR || code === SQLITE_NOMEM;
}

/** Whether this error, raw or wrapped, reports that the file's content is damaged or is not a database at all. */
export function saysDamaged(thrown: unknown): boolean {
  const code = primaryCode(thrown) ?? (thrown as { data?: { sqlite?: unknown } } | null)?.data?.sqlite;
  return code === SQLITE_CORRUPT || code === SQLITE_NOTADB;
}

/** Whether the file is not a database at all, by its first bytes. */
export function saysNoDatabase(thrown: unknown): boolean {
  return (primaryCode(thrown) ?? (thrown as { data?: { sqlite?: unknown } } | null)?.data?.sqlite) === SQLITE_NOTADB;
}

export function translate<T>(doing: string, work: () => T): T {
  try {
    return work();
  } catch (thrown) {
    throw wrapError(doing, thrown);
  }
}

/** Wraps an error of SQLite; returns any other unchanged. */
export function wrapError(doing: string, thrown: unknown): unknown {
  if (thrown instanceof OutliveError) return thrown;
  const code = primaryCode(thrown);
  if (code === undefined && (thrown as { code?: unknown } | null)?.code !== "ERR_SQLITE_ERROR") return thrown;
  const message = (thrown as Error).message;
  const [ours, hint] = WORDS[code ?? -1] ?? [
    ErrorCode.storeFailed,
    "Nothing of it was written; it is safe to try again.",
  ];
  return new OutliveError(
    ours,
    `The SQLite store failed while ${doing}: ${message}.`,
    hint,
    // Another process held the write lock: that is not the job's fault.
    { sqlite: code, doing, ...(code === SQLITE_BUSY && { costsAttempt: false }) },
    { cause: thrown },
  );
}

const WORDS: Readonly<Record<number, readonly [ErrorCode, string]>> = {
  [SQLITE_BUSY]: [ErrorCode.storeBusy, "Another process holds the write lock. Nothing was written; try again."],
  [SQLITE_READONLY]: [
    ErrorCode.storeReadOnly,
    "Nothing was written. Give this user write permission for the file and its directory.",
  ],
  [SQLITE_CORRUPT]: [
    ErrorCode.storeCorrupt,
    "The part of the file that this read needs is damaged; other reads still work. Stop all workers, then run `outlive check --repair`.",
  ],
  [SQLITE_FULL]: [
    ErrorCode.storeFull,
    "Nothing was written. Free some disk space; the engine then continues automatically.",
  ],
  [SQLITE_CANTOPEN]: [
    ErrorCode.storeUnusable,
    "Check that the directory exists and that this user may read and write it.",
  ],
  [SQLITE_NOTADB]: [ErrorCode.storeUnusable, "The file is not a SQLite database. Use another path, or move this file."],
};

// Which SQLite versions, as bundled with Node, are safe for the store. No types of node:sqlite here.

/**
 * Ranges in which two connections that write or checkpoint at once can corrupt the file; the fix went into four release
 * lines.
 */
export function sqliteIsSafe(version: string): boolean {
  const [major = 0, minor = 0, patch = 0] = version.split(".").map(Number);
  if (major !== 3) return major > 3;
  if (minor === 44) return patch >= 6;
  if (minor === 50) return patch >= 7;
  if (minor === 51) return patch >= 3;
  return minor >= 52 || minor < 7;
}

/** Asks the library itself, and refuses an unsafe version with what is wrong and what to use instead. */
export function assertSafeSqlite(db: { prepare(sql: string): { get(): unknown } }): void {
  const { version, nul } = db.prepare("SELECT sqlite_version() AS version, 'a' || char(0) || 'b' AS nul").get() as {
    version: string;
    nul: string;
  };
  const wrong = !sqliteIsSafe(version)
    ? `SQLite ${version} can corrupt a database that two connections write to at once`
    : nul.length !== 3
      ? "this Node cuts texts at a NUL character when it reads them from SQLite"
      : undefined;
  if (wrong === undefined) return;
  throw new OutliveError(
    ErrorCode.sqliteUnsafe,
    `Node ${process.version} is not safe for the SQLite store: ${wrong}.`,
    "Use Node 24.16 or newer (26.1 or newer of that line), or pass `sqlite: { allowUnsafe: true }` if you accept the risk.",
    { node: process.version, sqlite: version },
  );
}
