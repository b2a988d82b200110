// The liveness lock: a small SQLite file per worker beside the database, held in an exclusive transaction by the main thread.
// The kernel takes it away within 5 ms of the process's death; a blocked loop does not lose it. A probe costs 50 µs.
// Trap: a second open of one's own lock file by anything drops the lock. Nothing here opens it but SQLite, and never twice.
import { accessSync, constants, mkdirSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Liveness, Probe, WorkerRow } from "../liveness.ts";
import { fileKey, holdExclusively, probeExclusive, removeUnheld } from "./database.ts";
import { SQLITE_BUSY, SQLITE_IOERR } from "./errors.ts";
import { lockedFiles } from "./lock-holder.ts";

const SUFFIX = ".lock";

/** The folder beside the database that holds the locks and the file for wake-ups. */
export function sideFolder(databasePath: string): string {
  return `${databasePath}.outlive`;
}

export function makeSideFolder(databasePath: string): string {
  const folder = sideFolder(databasePath);
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    accessSync(folder, constants.R_OK | constants.W_OK | constants.X_OK);
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.storeUnusable,
      `${folder}, the folder for locks beside the database, can't be made or used: ${(thrown as Error).message}.`,
      "Check that this user may write to the directory and that nothing else has that name.",
      { path: folder },
      { cause: thrown },
    );
  }
  return folder;
}

export function lockFileLiveness(databasePath: string, bootId: string, own: Set<string> = new Set()): Liveness {
  const folder = sideFolder(databasePath);
  const pathOf = (name: string): string => join(folder, name);
  return {
    async take(workerId) {
      makeSideFolder(databasePath);
      const name = `${workerId}${SUFFIX}`;
      own.add(name);
      const lock = await hold(pathOf(name));
      return {
        evidence: { name, identity: inode(pathOf(name)) },
        // Removed before it is released: a free lock file proves a death, and a process that begins another life is not dead.
        drop: async (remove) => {
          if (remove) rmSync(pathOf(name), { force: true });
          lock.drop();
          own.delete(name);
        },
      };
    },

    async probe(worker) {
      const { name, identity } = worker.lock;
      if (name === null || own.has(name)) return name === null ? "unknown" : "held";
      if (worker.bootId !== bootId || identity === null || inode(pathOf(name)) !== identity) return "unknown";
      const probe = probeExclusive(pathOf(name));
      // Its holder may have removed and released it between our opening the file and our trying its lock.
      return probe === "free" && inode(pathOf(name)) !== identity ? "unknown" : probe;
    },

    async probeAll(workers) {
      // The kernel's list says of most that they live, in one read. Whoever is not on it is asked for itself: a process in
      // another container does not show, and only SQLite's own answer proves a death.
      const locked = workers.length > 1 ? lockedFiles() : new Set<string>();
      const probes: Probe[] = [];
      for (const worker of workers) {
        const { name, identity } = worker.lock;
        const listed = name !== null && identity !== null && worker.bootId === bootId && locked.has(identity);
        probes.push(listed && inode(pathOf(name)) === identity ? "held" : await this.probe(worker));
      }
      return probes;
    },

    async clean(worker: WorkerRow) {
      const { name } = worker.lock;
      if (name === null || own.has(name) || worker.bootId !== bootId) return false;
      return inode(pathOf(name)) !== null && removeUnheld(pathOf(name));
    },
  };
}

/** How often a lock is tried that somebody looks at in the same moment. */
const TRIES = 200;

/**
 * Whoever clears stray locks may hold ours between its creation and our lock on it: then it is busy for a moment, an I/O error
 * (its file was removed under us), or what we hold has no name any more.
 */
async function hold(path: string): Promise<{ drop: () => void }> {
  for (let tries = 1; ; tries++) {
    try {
      const lock = holdExclusively(path);
      if (inode(path) !== null) return lock;
      lock.drop();
    } catch (thrown) {
      const sqlite = (thrown as { data?: { sqlite?: unknown } }).data?.sqlite;
      if ((sqlite !== SQLITE_BUSY && sqlite !== SQLITE_IOERR) || tries === TRIES) throw thrown;
    }
    await pause(5);
  }
}

/** Removes lock files that no worker's row names and nobody holds: left by a death between lock and row. */
export function removeStrayLocks(databasePath: string, known: ReadonlySet<string>): string[] {
  const folder = sideFolder(databasePath);
  return readdirSync(folder).filter(
    (name) => name.endsWith(SUFFIX) && !known.has(name) && removeUnheld(join(folder, name)),
  );
}

function inode(path: string): string | null {
  try {
    const { dev, ino } = statSync(path, { bigint: true });
    return fileKey(dev, ino);
  } catch {
    return null;
  }
}
