// A backup of a live store: as it was at one moment, compact, checked, and under its name only once it is complete and on the disk.
import { chmodSync, existsSync, linkSync, renameSync, rmSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import type { Backup, BackupOptions } from "../../../core/store.ts";
import { openBare } from "../database.ts";
import { inOurWords } from "../errors.ts";
import { createPrivately } from "../file.ts";
import { readFindings } from "./check.ts";
import { runInChild } from "./run-in-child.ts";
import { flush, flushFolder } from "./swap.ts";

const PROGRESS_MS = 250;
const BUSY_MS = 5_000;

/** Copies while workers run, in one read transaction that blocks no writer. SQLite does not reset the log until it has ended. */
export async function backupFile(path: string, to: string, options: BackupOptions = {}): Promise<Backup> {
  const { onProgress, force = false, signal } = options;
  if (!force && existsSync(to)) throw taken(to);
  const draft = `${to}.partial-${process.pid}`;
  const started = performance.now();
  rmSync(draft, { force: true });
  // SQLite fills an empty file. It is created here, so that no other user can read it at any moment.
  createPrivately(draft);
  const total = statSync(path).size;
  const timer =
    onProgress && setInterval(() => onProgress({ bytes: statSync(draft).size, totalBytes: total }), PROGRESS_MS);
  try {
    const copied = await runInChild({ do: "backup", path, to: draft }, signal ? { signal } : {});
    if (copied!.findings.length > 0) throw unsound(path, copied!.findings);
    chmodSync(draft, 0o600);
    flush(draft);
    // A file that is already there may still be needed: it is replaced only when the new one is complete.
    if (force) renameSync(draft, to);
    else linkSync(draft, to);
    flushFolder(to);
    return { file: to, bytes: statSync(to).size, tookMs: Math.round(performance.now() - started) };
  } catch (thrown) {
    throw (thrown as NodeJS.ErrnoException).code === "EEXIST" ? taken(to) : thrown;
  } finally {
    clearInterval(timer);
    rmSync(draft, { force: true });
    rmSync(`${draft}-journal`, { force: true });
  }
}

/** The copy, in the child. `to` does not exist or is an empty file. Returns what a quick check of the copy finds. */
export function copyTo(path: string, to: string): { readonly findings: readonly string[] } {
  try {
    const db = openBare(path, { readOnly: true, timeout: BUSY_MS });
    try {
      db.prepare("VACUUM INTO ?").run(to);
    } finally {
      db.close();
    }
  } catch (thrown) {
    throw inOurWords(`copying ${path}`, thrown);
  }
  return { findings: readFindings(to, "quick") };
}

function taken(to: string): OutliveError {
  return new OutliveError(
    ErrorCode.wrongState,
    `There is a file ${to} already.`,
    "Name another one, or add --force (`force: true`) to replace it. Nothing was written.",
    { path: to, folder: dirname(to) },
  );
}

function unsound(path: string, findings: readonly string[]): OutliveError {
  return new OutliveError(
    ErrorCode.storeCorrupt,
    `The copy of ${path} is not sound: ${findings.slice(0, 3).join("; ")}.`,
    "It was not kept. Check the store itself: outlive check --integrity.",
    { path, findings },
  );
}
