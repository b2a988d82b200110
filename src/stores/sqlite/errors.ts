// SQLite's errors in our own words: a stable code, what was being done, and the next thing to do.
import { ErrorCode, OutliveError } from "../../core/errors.ts";

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

/** SQLite's primary result code of an error, or undefined if it is not SQLite's. */
export function primaryCode(thrown: unknown): number | undefined {
  const code = (thrown as { errcode?: unknown } | null)?.errcode;
  return typeof code === "number" ? code & 0xff : undefined;
}

/** Whether one row was refused, by a constraint or a trigger, and others may be written. */
export function isOfOneRow(thrown: unknown): boolean {
  return primaryCode(thrown) === SQLITE_CONSTRAINT;
}

/** Failures of the machine below, not of the statement: no room, no memory, a disk that fails. SQLite may roll the transaction back. */
export function isMachineFailure(thrown: unknown): boolean {
  const code = primaryCode(thrown);
  return code === SQLITE_FULL || code === SQLITE_IOERR || code === SQLITE_NOMEM;
}

/** Whether SQLite says, itself or in our words, that the file's content is damaged, or no database at all. */
export function saysDamaged(thrown: unknown): boolean {
  const code = primaryCode(thrown) ?? (thrown as { data?: { sqlite?: unknown } } | null)?.data?.sqlite;
  return code === SQLITE_CORRUPT || code === SQLITE_NOTADB;
}

/** Whether it is no database at all, by its first bytes. */
export function saysNoDatabase(thrown: unknown): boolean {
  return (primaryCode(thrown) ?? (thrown as { data?: { sqlite?: unknown } } | null)?.data?.sqlite) === SQLITE_NOTADB;
}

export function translate<T>(doing: string, work: () => T): T {
  try {
    return work();
  } catch (thrown) {
    throw inOurWords(doing, thrown);
  }
}

/** An error of SQLite as one of ours; anything else as it is. */
export function inOurWords(doing: string, thrown: unknown): unknown {
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
    "Nothing was written. Give this user the right to write to the file and to its directory.",
  ],
  [SQLITE_CORRUPT]: [
    ErrorCode.storeCorrupt,
    "What this read needs is damaged; other reads go on. Stop all workers, then: outlive check --repair.",
  ],
  [SQLITE_FULL]: [ErrorCode.storeFull, "Nothing was written. Make room on the disk; the engine goes on by itself."],
  [SQLITE_CANTOPEN]: [
    ErrorCode.storeUnusable,
    "Check that the directory exists and that this user may read and write it.",
  ],
  [SQLITE_NOTADB]: [ErrorCode.storeUnusable, "The file is something else. Name another file, or move this one away."],
};
