// Putting a salvaged file in the place of the damaged one. A kill at any moment leaves the old file in its place, or the new one
// complete: from the moment the journal of the swap is there, whoever comes next finishes it before anything else opens the file.
// The order matters: the old log goes before the new file comes, because SQLite would apply it to whatever file has the name.
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
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import { holdExclusively, probeExclusive } from "../database.ts";
import { SQLITE_BUSY } from "../errors.ts";
import { makeSideFolder, sideFolder } from "../lock.ts";

/** What belongs to a database file beside it. */
const LOGS = ["-wal", "-journal"] as const;

/** Where a new file is made until it is complete. */
export const salvagePath = (path: string): string => `${path}.salvage`;
const journalPath = (path: string): string => `${path}.swap`;
// Without the suffix of workers' locks, so that nobody takes one for a stray one.
const holdPath = (path: string): string => join(sideFolder(path), "repair.hold");
const wholePath = (path: string): string => join(sideFolder(path), "repair-whole.hold");

/** One step of a repair at a time, and no open meanwhile. Gone with the process. */
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
 * From the first check of a repair to its last, by whoever has the start lock: the steps are done by children, and nobody opens the
 * file between two. The file of this lock stays, as that of the start lock does, so that all see the same one.
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
 * For whoever has just opened the file: a repair that began after its look (`finishSwap`) may not have seen its connection. Either
 * the repair finds that somebody has the file open, or this finds the repair; the caller closes its connection then.
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
 * Ends a swap that was interrupted, and removes what an interrupted salvage left. The first thing that an open does; costs three
 * looks for a name when there is nothing to do. Throws STORE_BUSY while a repair is under way. Answers whether it ended one.
 * With `readOnly` it changes nothing, and a swap that must be ended first is refused.
 */
export function finishSwap(path: string, readOnly = false): boolean {
  if (isHeld(wholePath(path))) throw beingRepaired(path);
  if (readOnly) return refuseHalfSwapped(path);
  if (!existsSync(journalPath(path)) && !existsSync(holdPath(path))) return false;
  const hold = holdForRepair(path);
  try {
    if (existsSync(journalPath(path))) {
      complete(path);
      return true;
    }
    removeSalvage(path);
    return false;
  } finally {
    hold.drop();
  }
}

/** Half swapped, the file may already lack its log: what it shows then was never the store. */
function refuseHalfSwapped(path: string): false {
  if (!existsSync(journalPath(path))) return false;
  throw new OutliveError(
    ErrorCode.storeReadOnly,
    `A repair of ${path} was interrupted while it put the new file in its place, and to look only can't finish that.`,
    "Nothing was written. Run `outlive check` without --read-only, which finishes it; or start a worker.",
    { path },
  );
}

/** Makes the salvaged file the database. Under the hold, and with no connection open to either. */
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

/** Every step can be the last one before a kill, and can be done again. */
function complete(path: string): void {
  const { keptAs } = JSON.parse(readFileSync(journalPath(path), "utf8")) as { keptAs: string };
  if (existsSync(salvagePath(path))) {
    // A second name for the old file, so that at no moment there is none of that name.
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
    // A file system without links: for a moment there is no file of that name, but the journal says which one will be.
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
