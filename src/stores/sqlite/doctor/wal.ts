// The write-ahead log: how large it is, flushing it at an open and while somebody works, and putting one aside that does not belong
// to its database. Its file is looked at by stat and moved by rename only; what is in it only SQLite reads.
import { renameSync, rmSync, statSync } from "node:fs";
import type { Emitter } from "../../../core/events.ts";
import type { Upkeep } from "../../../core/store.ts";
import type { Database } from "../database.ts";
import { primaryCode, SQLITE_BUSY } from "../errors.ts";
import { type ProcessOnFile, walReaders } from "../lock-holder.ts";

/** SQLite flushes by itself at 4 MB; beyond this somebody holds it back, or one transaction was very large. */
export const WAL_LIMIT_BYTES = 64 << 20;

/** The size of the write-ahead log, by a stat: it opens nothing and so drops no lock. */
export function walBytes(path: string): number {
  return statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
}

interface Checkpointed {
  /** Frames in the log. */
  readonly frames: number;
  readonly truncated: boolean;
  /** Why not all of it could be flushed; null: it was. */
  readonly heldBack: string | null;
}

/**
 * At an open: PASSIVE, which waits for nobody and tells how many frames there were; alone also TRUNCATE, which leaves an empty log.
 * A failure is told and nothing more: what is in the log is as durable there.
 */
export function checkpointAtOpen(db: Database, alone: boolean, events: Emitter): Checkpointed {
  let frames = 0;
  let heldBack: string | null = null;
  try {
    const passive = checkpoint(db, "PASSIVE");
    frames = passive.frames;
    if (alone && checkpoint(db, "TRUNCATE").busy) heldBack = "somebody reads or writes";
    if (!alone && passive.left > 0) heldBack = `${passive.left} frame(s) are still read`;
  } catch (thrown) {
    if (primaryCode(thrown) === undefined) throw thrown;
    heldBack = (thrown as Error).message;
  }
  const truncated = alone && heldBack === null;
  if (heldBack !== null && alone)
    events.emit("checkpoint.failed", { frames, reason: heldBack, readers: others(walReaders(db.path)) });
  else if (frames > 0) events.emit("wal.checkpointed", { frames, truncated });
  return { frames, truncated, heldBack: alone ? heldBack : null };
}

/**
 * While somebody works: a log that is not large is left alone. PASSIVE first, which holds nobody up; only if that flushed everything,
 * TRUNCATE, which then has nothing left to do under the write lock. A transaction that begins in between makes it busy: next time.
 */
export function tendWal(db: Database, limitBytes: number = WAL_LIMIT_BYTES): Upkeep {
  const before = walBytes(db.path);
  if (before <= limitBytes) return { walBytes: before, frames: 0, heldBy: null };
  const { frames, left, busy } = checkpoint(db, "PASSIVE");
  if (left === 0 && !busy) checkpoint(db, "TRUNCATE");
  return { walBytes: walBytes(db.path), frames: frames - left, heldBy: left > 0 ? walReaders(db.path) : null };
}

function checkpoint(db: Database, mode: "PASSIVE" | "TRUNCATE"): { frames: number; left: number; busy: boolean } {
  try {
    const row = db.sql(`PRAGMA wal_checkpoint(${mode})`).get() as { busy: number; log: number; checkpointed: number };
    const frames = Math.max(0, row.log);
    return { frames, left: frames - Math.max(0, row.checkpointed), busy: row.busy !== 0 };
  } catch (thrown) {
    // Another checkpoint is under way.
    if (primaryCode(thrown) === SQLITE_BUSY) return { frames: 0, left: 0, busy: true };
    throw thrown;
  }
}

/** Moves a log away that does not belong to its database, and drops the index of it. Nobody may have the database open. */
export function setWalAside(path: string, now: number): string {
  const keptAs = `${path}-wal.aside-${new Date(now).toISOString().replaceAll(/[:.]/g, "-")}`;
  renameSync(`${path}-wal`, keptAs);
  rmSync(`${path}-shm`, { force: true });
  return keptAs;
}

/** Locks belong to the process: our own connection shows as a reader while it asks. */
function others(processes: readonly ProcessOnFile[]): readonly ProcessOnFile[] {
  return processes.filter(({ pid }) => pid !== process.pid);
}
