// SQLite's own check of a file, in the doctor's child. It reads beside live workers, makes no file and removes none.
import { statSync } from "node:fs";
import type { CheckDepth } from "../../../core/integrity.ts";
import { openBare } from "../database.ts";
import { inOurWords, primaryCode, SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_NOTADB } from "../errors.ts";

export const MOST_FINDINGS = 100;

export function checkPragma(depth: CheckDepth): string {
  return `PRAGMA ${depth === "full" ? "integrity" : "quick"}_check(${MOST_FINDINGS})`;
}

/** What the rows of that pragma say; none: it is sound. */
export function findingsOf(rows: readonly object[]): readonly string[] {
  return rows
    .flatMap((row) => String(Object.values(row)[0]).split("\n"))
    .filter((finding) => finding !== "ok" && !/^\*\*\* in database \S+ \*\*\*$/.test(finding))
    .slice(0, MOST_FINDINGS);
}

/** How long the moment may last in which another process opens the file first or closes it last. */
const BUSY_MS = 5_000;

/** What SQLite finds wrong; none: nothing. A file that it can't open or parse is a finding, not an error. */
export function readFindings(path: string, depth: CheckDepth): readonly string[] {
  // Without a log nobody has the file open: it is read without the two files that a connection would make. If somebody has come
  // meanwhile, what was found may be his half-written pages, and is read again with the locks of all others.
  if (!hasLog(path)) {
    const found = findings(path, depth, true);
    if (found.length === 0 || !hasLog(path)) return found;
  }
  return findings(path, depth, false);
}

function hasLog(path: string): boolean {
  return ["-wal", "-journal"].some((suffix) => statSync(path + suffix, { throwIfNoEntry: false }) !== undefined);
}

function findings(path: string, depth: CheckDepth, immutable: boolean): readonly string[] {
  try {
    const db = openBare(path, { readOnly: true, immutable, timeout: BUSY_MS });
    try {
      return findingsOf(db.prepare(checkPragma(depth)).all());
    } finally {
      db.close();
    }
  } catch (thrown) {
    const code = primaryCode(thrown);
    if (code === undefined || code === SQLITE_BUSY || code === SQLITE_CANTOPEN)
      throw inOurWords(`checking ${path}`, thrown);
    return [
      code === SQLITE_NOTADB
        ? "the file is not a database: its head is damaged, or it is something else"
        : `SQLite can't read the file: ${(thrown as Error).message}`,
    ];
  }
}
