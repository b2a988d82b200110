// Replaces the damaged file with the salvaged one, and holds the file during a repair. A kill at any moment leaves the old file in its
// place, or the new one complete: once the journal of the swap exists, the next process finishes the swap before it opens the file.
// The order matters: the old log is moved before the new file, because SQLite would apply it to any file of that name.
import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { ErrorCode, OutliveError } from "../../../job/errors.ts";
import { holdExclusively, probeExclusive } from "../database.ts";
import { SQLITE_BUSY } from "../errors.ts";
import { makeSideFolder, sideFolder } from "../lock.ts";

/** The files next to a database that hold some of its rows. */
const LOGS = ["-wal", "-journal"] as const;

/** Where the new file is written until it is complete. */
export const salvagePath = (path: string): string => `${path}.salvage`;
const journalPath = (path: string): string => `${path}.swap`;
// Without the suffix of workers' locks: these are not stray ones.
const holdPath = (path: string): string => join(sideFolder(path), "repair.hold");
const wholePath = (path: string): string => join(sideFolder(path), "repair-whole.hold");

/** One step of a repair at a time, and no open meanwhile. The death of the process releases it. */
export function holdForRepair(path: string): { readonly drop: () => void } {
  const hold = holdAt(path, holdPath(path));
  return {
    drop: () => {
      rmSync(holdPath(path), { force: true });
      hold.drop();
    },
  };
}

/**
 * Held from the first check of a repair to its last, by the holder of the start lock: children do the steps, and no process opens
 * the file between two of them. The file of this lock is never removed, so that all processes see the same one.
 */
export function holdForWholeRepair(path: string): { readonly drop: () => void } {
  return holdAt(path, wholePath(path));
}

function holdAt(path: string, file: string): { readonly drop: () => void } {
  makeSideFolder(path);
  try {
    return holdExclusively(file);
  } catch (thrown) {
    if ((thrown as { data?: { sqlite?: unknown } }).data?.sqlite !== SQLITE_BUSY) throw thrown;
    throw beingRepaired(path, thrown);
  }
}

function beingRepaired(path: string, cause?: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `${path} is being repaired by another process.`,
    "Wait until it is done, then try again. Nothing was changed.",
    { path },
    { cause },
  );
}

/**
 * For a process that has just opened the file: a repair that began after its `finishSwap` may have missed its connection. Either the
 * repair finds the file open, or this finds the repair and throws STORE_BUSY; the caller then closes its connection.
 */
export function assertNoRepair(path: string): void {
  if (isUnderRepair(path)) throw beingRepaired(path);
}

export function isUnderRepair(path: string): boolean {
  return isHeld(wholePath(path)) || isHeld(holdPath(path));
}

function isHeld(file: string): boolean {
  return existsSync(file) && probeExclusive(file) === "held";
}

/**
 * Finishes a swap that was interrupted, and removes what an interrupted salvage left. The first thing that an open does; it costs
 * three stats when there is nothing to do. Throws STORE_BUSY during a repair. With `readOnly` it changes nothing and refuses a store
 * whose swap must be finished first.
 */
export function finishSwap(path: string, readOnly = false): void {
  if (isHeld(wholePath(path))) throw beingRepaired(path);
  if (readOnly) return refuseHalfSwapped(path);
  if (!existsSync(journalPath(path)) && !existsSync(holdPath(path))) return;
  const hold = holdForRepair(path);
  try {
    if (existsSync(journalPath(path))) complete(path);
    else removeSalvage(path);
  } finally {
    hold.drop();
  }
}

/** Half swapped, the file may already lack its log: its content was never that of the store. */
function refuseHalfSwapped(path: string): void {
  if (!existsSync(journalPath(path))) return;
  throw new OutliveError(
    ErrorCode.storeReadOnly,
    `A repair of ${path} was interrupted while it put the new file in its place, and a read-only open can't finish that.`,
    "Nothing was written. Run `outlive check` without --read-only, which finishes it; or start a worker.",
    { path },
  );
}

/** Makes the salvaged file the database. The caller holds the file and has no connection to either. */
export function swapIn(path: string, keptAs: string): void {
  flush(salvagePath(path));
  const draft = `${journalPath(path)}.draft`;
  writeFileSync(draft, JSON.stringify({ keptAs }), { mode: 0o600 });
  flush(draft);
  renameSync(draft, journalPath(path));
  flushFolder(path);
  complete(path);
}

export function removeSalvage(path: string): void {
  for (const suffix of ["", "-journal", "-wal", "-shm"]) rmSync(salvagePath(path) + suffix, { force: true });
  rmSync(`${journalPath(path)}.draft`, { force: true });
}

/** A kill may follow any step, and every step can be repeated. */
function complete(path: string): void {
  const { keptAs } = JSON.parse(readFileSync(journalPath(path), "utf8")) as { keptAs: string };
  if (existsSync(salvagePath(path))) {
    // A second name for the old file, so that a file of the first name exists at every moment.
    if (!existsSync(keptAs)) keepOld(path, keptAs);
    for (const log of LOGS) {
      const { size } = statSync(path + log, { throwIfNoEntry: false }) ?? {};
      if (size === 0) rmSync(path + log, { force: true });
      else if (size !== undefined) renameSync(path + log, keptAs + log);
    }
    rmSync(`${path}-shm`, { force: true });
    flushFolder(path);
    renameSync(salvagePath(path), path);
    flushFolder(path);
  }
  rmSync(journalPath(path), { force: true });
  flushFolder(path);
}

function keepOld(path: string, keptAs: string): void {
  try {
    linkSync(path, keptAs);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    // A file system without links: for a moment no file has that name, but the journal says which one will.
    if (code !== "EPERM" && code !== "ENOTSUP" && code !== "EOPNOTSUPP" && code !== "EMLINK") throw thrown;
    renameSync(path, keptAs);
  }
}

export function flush(path: string): void {
  const file = openSync(path, "r+");
  try {
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

export function flushFolder(path: string): void {
  const folder = openSync(dirname(path), "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}
