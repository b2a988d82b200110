// A copy of a live store: as it was at one moment, compact, checked, and under its name only when it is complete and on the disk.
import { chmodSync, existsSync, linkSync, renameSync, rmSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import type { Backup, BackupOptions } from "../../../core/store.ts";
import { inChild } from "./run-in-child.ts";
import { createPrivately } from "../file.ts";
import { flush, flushFolder } from "./swap.ts";

const PROGRESS_MS = 250;

/** Copies beside live workers: one read transaction, which holds up no writer; the log is not reset until it is over. */
export async function backupFile(path: string, to: string, options: BackupOptions = {}): Promise<Backup> {
  const { onProgress, force = false, signal } = options;
  if (!force && existsSync(to)) throw taken(to);
  const draft = `${to}.partial-${process.pid}`;
  const started = performance.now();
  rmSync(draft, { force: true });
  // SQLite fills an empty file; made here, so that nobody else can read it at any moment.
  createPrivately(draft);
  const total = statSync(path).size;
  const timer =
    onProgress && setInterval(() => onProgress({ bytes: statSync(draft).size, totalBytes: total }), PROGRESS_MS);
  try {
    const answer = await inChild({ do: "backup", path, to: draft }, signal ? { signal } : {});
    if (answer!.findings.length > 0) throw unsound(path, answer!.findings);
    chmodSync(draft, 0o600);
    flush(draft);
    // The file that was there may still be somebody's: it goes at the moment in which the new one is complete.
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
