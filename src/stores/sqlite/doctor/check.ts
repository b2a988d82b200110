// SQLite's own check of a file. It runs next to live workers, makes no file and removes none. A check of a whole file runs in the
// child process, under a time limit; one that did not finish is UNFINISHED, never PASSED.
import { statSync } from "node:fs";
import type { Emitter } from "../../../core/events.ts";
import type { CheckDepth, IntegrityCheck } from "../../../core/integrity.ts";
import { type Database, openBare } from "../database.ts";
import { inOurWords, primaryCode, saysDamaged, SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_NOTADB } from "../errors.ts";
import { assertExists } from "../file.ts";
import { type ChildOptions, runInChild } from "./run-in-child.ts";

const MAX_FINDINGS = 100;

/** How long to wait while another process opens the file first or closes it last. */
const BUSY_MS = 5_000;

/**
 * Reads the whole file, at a low priority and never through this process's own connections, and returns what is wrong with it.
 * A check that takes longer than `limitMs` (Infinity: no limit) is killed and UNFINISHED.
 */
export async function checkFile(
  path: string,
  depth: CheckDepth,
  limitMs: number,
  options: Pick<ChildOptions, "signal" | "background"> = {},
): Promise<IntegrityCheck> {
  assertExists(path);
  const started = performance.now();
  const findings = await runInChild({ do: "check", path, depth }, { limitMs, ...options });
  const tookMs = Math.round(performance.now() - started);
  if (findings === null) return { verdict: "UNFINISHED", depth, findings: [], tookMs };
  return { verdict: findings.length === 0 ? "PASSED" : "FAILED", depth, findings, tookMs };
}

export interface BackgroundCheck {
  /** Null: it was stopped before it had a verdict. */
  readonly verdict: Promise<IntegrityCheck | null>;
  stop(): void;
}

/**
 * Continues a check that an open could not finish in time: the whole file, without a limit, at the lowest priority. The child does
 * not keep this process alive, and ends with it.
 */
export function checkInBackground(path: string, events: Emitter): BackgroundCheck {
  const stopping = new AbortController();
  const options = { signal: stopping.signal, background: true };
  const verdict = checkFile(path, "full", Number.POSITIVE_INFINITY, options).then(
    (check) => {
      events.emit("integrity.checked", { ...check, background: true });
      return check;
    },
    () => null,
  );
  return { verdict, stop: () => stopping.abort() };
}

/** The check on an open connection. It blocks its thread, so it is for small files. Returns no finding if the file is sound. */
export function checkOpen(db: Database, depth: CheckDepth): readonly string[] {
  try {
    return findingsOf(db.sql(checkPragma(depth)).all());
  } catch (thrown) {
    // The damage is so early in the file that the check itself fails.
    if (saysDamaged(thrown)) return [(thrown as Error).message];
    throw thrown;
  }
}

/** The check in the child. A file that SQLite can't open or parse is a finding, not an error. */
export function readFindings(path: string, depth: CheckDepth): readonly string[] {
  // Without a log no process has the file open. It is then read without the two files that a connection would create. If another
  // process has opened it in the meantime, the findings may be its half-written pages: the check runs again, with locks.
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

function checkPragma(depth: CheckDepth): string {
  return `PRAGMA ${depth === "full" ? "integrity" : "quick"}_check(${MAX_FINDINGS})`;
}

/** What the rows of that pragma say. */
function findingsOf(rows: readonly object[]): readonly string[] {
  return rows
    .flatMap((row) => String(Object.values(row)[0]).split("\n"))
    .filter((finding) => finding !== "ok" && !/^\*\*\* in database \S+ \*\*\*$/.test(finding))
    .slice(0, MAX_FINDINGS);
}
