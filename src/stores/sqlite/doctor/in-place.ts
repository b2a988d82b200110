// What SQLite mends by itself, in the doctor's child: indexes made anew from their tables, the file written anew from its tables.
// Both are one transaction: killed at any moment, they have not happened.
import { type DatabaseSync, openBare } from "../database.ts";
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import { inOurWords, primaryCode, SQLITE_BUSY } from "../errors.ts";
import { holdForRepair } from "./swap.ts";

export function reindex(path: string): null {
  return alone(path, "making the indexes anew", (db) => db.exec("REINDEX"));
}

export function vacuum(path: string): null {
  return alone(path, "writing the file anew", (db) => db.exec("VACUUM"));
}

function alone(path: string, doing: string, work: (db: DatabaseSync) => void): null {
  const hold = holdForRepair(path);
  const db = openBare(path);
  try {
    // In this mode SQLite refuses if anybody else has the file open, reader or writer.
    db.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; BEGIN IMMEDIATE; COMMIT");
    work(db);
    return null;
  } catch (thrown) {
    if (primaryCode(thrown) === SQLITE_BUSY) throw inUse(path, thrown);
    throw inOurWords(doing, thrown);
  } finally {
    db.close();
    hold.drop();
  }
}

export function inUse(path: string, cause?: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `${path} is open in another process.`,
    "Stop all workers and everything else that has it open, then try again. Nothing was changed.",
    { path },
    { cause },
  );
}
