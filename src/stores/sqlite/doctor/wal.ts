// The write-ahead log: its size, flushing it at an open and while workers run, and moving one away that does not belong to its
// database. This file uses stat and rename only; SQLite alone reads the content of the log.
import { renameSync, rmSync, statSync } from "node:fs";
import type { Emitter } from "../../../job/events.ts";
import type { StoreNote } from "../../store-parts.ts";
import type { StoreNews } from "../../port.ts";
import { flushed } from "../../rows.ts";
import type { Database } from "../database.ts";
import { primaryCode, SQLITE_BUSY } from "../errors.ts";
import { type ProcessOnFile, walReaders } from "../lock.ts";

/** SQLite flushes automatically at 4 MB; a log beyond this is held back by a reader, or one transaction was very large. */
const WAL_LIMIT_BYTES = 64 << 20;

/** A stat: it opens nothing and so drops no lock. */
export function walBytes(path: string): number {
  return statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
}

interface CheckpointResult {
  /** Frames in the log. */
  readonly frames: number;
  readonly truncated: boolean;
  /** Why not all of it could be flushed; null: it was. */
  readonly heldBack: string | null;
}

/**
 * At an open: PASSIVE, which waits for no other process and counts the frames; if no other process has the file open also TRUNCATE,
 * which leaves an empty log. A failure is only reported: the content of the log is as durable there.
 */
export function checkpointAtOpen(db: Database, alone: boolean, events: Emitter): CheckpointResult {
  let frames = 0;
  let heldBack: string | null = null;
  try {
    const passive = checkpoint(db, "PASSIVE");
    frames = passive.frames;
    if (alone && checkpoint(db, "TRUNCATE").busy) heldBack = "another process reads or writes";
    if (!alone && passive.left > 0) heldBack = `${passive.left} frame(s) are still read`;
  } catch (thrown) {
    if (primaryCode(thrown) === undefined) throw thrown;
    heldBack = (thrown as Error).message;
  }
  const truncated = alone && heldBack === null;
  if (heldBack !== null && alone)
    events.emit("store.upkeep", notFlushed(frames, heldBack, others(walReaders(db.path))));
  else if (frames > 0) events.emit("store.upkeep", checkpointed(frames, truncated));
  return { frames, truncated, heldBack: alone ? heldBack : null };
}

/** The result of tending the log. */
export interface TendedWal {
  /** Its size afterwards. */
  readonly walBytes: number;
  /** Frames that were flushed because it was large; 0: it was not. */
  readonly frames: number;
  /** It stays large: these processes read an old state, as far as this host can tell. null: it is not large. */
  readonly heldBy: readonly ProcessOnFile[] | null;
}

/**
 * While workers run: a small log is left alone. PASSIVE first, which blocks no other process; only if that flushed everything
 * TRUNCATE, which then has nothing left to do under the write lock. If a transaction begins in between, the next call does it.
 */
export function tendWal(db: Database, limitBytes: number = WAL_LIMIT_BYTES): TendedWal {
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

/** Moves a log away that does not belong to its database, and removes its index. No process may have the database open. */
export function setWalAside(path: string, now: number): string {
  const keptAs = `${path}-wal.aside-${new Date(now).toISOString().replaceAll(/[:.]/g, "-")}`;
  renameSync(`${path}-wal`, keptAs);
  rmSync(`${path}-shm`, { force: true });
  return keptAs;
}

/** Locks belong to the process: our own connection is listed as a reader as well. */
function others(processes: readonly ProcessOnFile[]): readonly ProcessOnFile[] {
  return processes.filter(({ pid }) => pid !== process.pid);
}

// How all of this is reported: in the report of an open, and as the store's own events.

/** What an open did to the log, and what was wrong with it. */
export function walNotes(
  frames: number,
  walHeldBack: string | null,
  journalWas: string | null,
): { readonly summary: StoreNote; readonly notice: StoreNote } {
  const lines = [
    ...(walHeldBack === null ? [] : [`WAL Not Flushed: ${walHeldBack}`]),
    ...(journalWas === null ? [] : [`Journal Mode: restored to WAL (it was ${journalWas})`]),
  ];
  return { summary: flushed(frames), notice: { lines, facts: { journalWas, walHeldBack } } };
}

export function journalRestored(was: string): StoreNews {
  const text = `another tool had set the journal mode to ${was}; it is WAL again`;
  return { what: "journal.restored", level: "warn", text, facts: { was } };
}

function checkpointed(frames: number, truncated: boolean): StoreNews {
  const text = `${frames} frames of the write-ahead log were flushed`;
  return { what: "wal.checkpointed", level: "info", text, facts: { frames, truncated } };
}

function notFlushed(frames: number, reason: string, readers: readonly ProcessOnFile[]): StoreNews {
  const text = `the write-ahead log (${frames} frames) was not flushed whole: ${reason}${readersText(readers)}; nothing is lost, it is tried again`;
  return { what: "checkpoint.failed", level: "warn", text, facts: { frames, reason, readers } };
}

/**
 * What to report after each pass, in order: that a large log was flushed, or that a reader holds it back. The latter is
 * reported once, and again only after the log was small. A reader that can't be named may be gone at the next pass, so
 * it is reported only if it is still there then.
 */
export function walNews(): (tended: TendedWal) => readonly StoreNews[] {
  let isReported = false;
  let heldPasses = 0;
  return ({ walBytes: bytes, frames, heldBy: readers }) => {
    if (readers === null) {
      isReported = false;
      heldPasses = 0;
      return frames > 0 ? [checkpointed(frames, bytes === 0)] : [];
    }
    heldPasses++;
    if (isReported || (readers.length === 0 && heldPasses === 1)) return [];
    isReported = true;
    const size = `the write-ahead log has ${Math.round(bytes / (1 << 20))} MB`;
    const text = `${size} and can't shrink while an old state is read${readersText(readers)}`;
    return [{ what: "wal.held", level: "warn", text, facts: { bytes, readers } }];
  };
}

function readersText(readers: readonly ProcessOnFile[]): string {
  if (readers.length === 0) return "";
  return `, by ${readers.map(({ pid, command }) => `process ${pid} (${command})`).join(", ")}`;
}
