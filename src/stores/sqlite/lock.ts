// The liveness lock: a small SQLite file per worker next to the database, held in an exclusive transaction by the main
// thread. The kernel releases it within 5 ms of the process's death; a blocked loop keeps it. A probe costs 50 µs.
// Trap: any second open of a process's own lock file drops the lock. Here only SQLite opens it, and never twice.
import { accessSync, constants, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { storableText } from "../../job/text.ts";
import type { Liveness, Probe, WorkerRow } from "../liveness.ts";
import { fileAt, fileKey, holdExclusively, probeExclusive, removeUnheld } from "./database.ts";
import { SQLITE_BUSY, SQLITE_IOERR } from "./errors.ts";

const SUFFIX = ".lock";

/** The folder next to the database that holds the locks and the wake-up file. */
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
      `${folder}, the folder for locks next to the database, can't be created or used: ${(thrown as Error).message}.`,
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
        // Removed before it is released: a free lock file proves a death, and a process that begins another life is not
        // dead.
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
      // Its holder may have removed and released it after we opened the file and before we tried its lock.
      return probe === "free" && inode(pathOf(name)) !== identity ? "unknown" : probe;
    },

    async probeAll(workers) {
      // One read of the kernel's list shows that most of them are alive. Workers that are not listed are probed one by
      // one: the list omits processes in other containers, and only SQLite's own result proves a death.
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

/** How often to retry a lock that another process is probing at the same moment. */
const TRIES = 200;

/**
 * A process that clears stray locks may hold ours between its creation and our lock on it. The lock is then briefly
 * busy, or fails with an I/O error (the file was removed under us), or we hold a file that no longer has a name.
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

/** Removes lock files that no worker's row names and no process holds: left by a death between lock and row. */
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

// Which file is at a path, as the kernel identifies it, and which processes hold locks on it, by the kernel's own list
// on Linux. This part uses stat, which opens nothing: opening and closing the database itself would drop SQLite's locks
// on it.

/** In WAL mode the writer holds this byte of the shared-memory file (WAL_WRITE_LOCK in SQLite's wal.c). */
const WRITE_LOCK_BYTE = 120;
/** A reader of the log holds one of these (WAL_READ_LOCK 1 to 4); a reader of the database alone holds 123. */
const READ_LOCK_BYTES = [124, 127] as const;
/** Every connection holds it as long as it is open (the "deadman switch"). */
const OPEN_BYTE = 128;

export interface ProcessOnFile {
  readonly pid: number;
  readonly command: string;
}

export function lockHolder(databasePath: string): ProcessOnFile | null {
  return holders(`${databasePath}-shm`, "WRITE", WRITE_LOCK_BYTE, WRITE_LOCK_BYTE)?.[0] ?? null;
}

/** Which processes read an older state from the write-ahead log, so that it can't be flushed completely. */
export function walReaders(databasePath: string): readonly ProcessOnFile[] {
  return holders(`${databasePath}-shm`, "READ", ...READ_LOCK_BYTES) ?? [];
}

/** Which processes have the database open in WAL mode, including this one; null: this host does not report it. */
export function openers(databasePath: string): readonly ProcessOnFile[] | null {
  return holders(`${databasePath}-shm`, "(?:READ|WRITE)", OPEN_BYTE, OPEN_BYTE);
}

/** Which process holds a file exclusively, as SQLite does with a lock file. */
export function exclusiveHolder(path: string): ProcessOnFile | null {
  return holders(path, "WRITE", 0, Number.MAX_SAFE_INTEGER)?.[0] ?? null;
}

/**
 * Which processes hold a lock of this kind on any byte from `first` to `last`, each once; null: the kernel does not
 * report it.
 */
function holders(path: string, kind: string, first: number, last: number): ProcessOnFile[] | null {
  try {
    const key = fileAt(path);
    const list = readFileSync("/proc/locks", "utf8");
    if (key === null) return [];
    // 12: POSIX  ADVISORY  WRITE 4711 fe:01:1835017 120 120
    const locks = list.matchAll(
      new RegExp(String.raw`POSIX\s+ADVISORY\s+${kind}\s+(\d+)\s+(\S+:\d+)\s+(\d+)\s+(\d+|EOF)`, "g"),
    );
    const pids = new Set<string>();
    for (const [, pid, of, from, to] of locks) {
      const until = to === "EOF" ? Number.POSITIVE_INFINITY : Number(to);
      if (of === key && Number(from) <= last && until >= first) pids.add(pid!);
    }
    return [...pids].map((pid) => ({ pid: Number(pid), command: commandOf(pid) }));
  } catch {
    return null; // Not Linux.
  }
}

/** All files on which some process holds a write lock. Empty where the kernel does not report it. */
export function lockedFiles(): ReadonlySet<string> {
  try {
    const locks = readFileSync("/proc/locks", "utf8").matchAll(/POSIX\s+ADVISORY\s+WRITE\s+\d+\s+(\S+:\d+)\s/g);
    return new Set(Array.from(locks, (lock) => lock[1]!));
  } catch {
    return new Set();
  }
}

function commandOf(pid: string): string {
  try {
    return storableText(readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim(), 200);
  } catch {
    return "";
  }
}
