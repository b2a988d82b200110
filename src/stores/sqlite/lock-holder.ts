// Who holds the write lock: the kernel's own list of file locks, on Linux. For people who ask why nothing moves; nothing is
// decided by it.
import { readFileSync, statSync } from "node:fs";

/** In WAL mode the writer holds this byte of the shared-memory file (WAL_WRITE_LOCK in SQLite's wal.c). */
const WRITE_LOCK_BYTE = 120;

export function lockHolder(databasePath: string): { readonly pid: number; readonly command: string } | null {
  try {
    // stat opens nothing: an open and close of the file itself would drop our own locks on it.
    const { dev, ino } = statSync(`${databasePath}-shm`, { bigint: true });
    const key = fileKey(dev, ino);
    for (const line of readFileSync("/proc/locks", "utf8").split("\n")) {
      // 12: POSIX  ADVISORY  WRITE 4711 fe:01:1835017 120 120
      const lock = /POSIX\s+ADVISORY\s+WRITE\s+(\d+)\s+(\S+:\d+)\s+(\d+)\s+(\d+|EOF)/.exec(line);
      if (lock?.[2] !== key) continue;
      const to = lock[4] === "EOF" ? Number.POSITIVE_INFINITY : Number(lock[4]);
      if (Number(lock[3]) <= WRITE_LOCK_BYTE && to >= WRITE_LOCK_BYTE)
        return { pid: Number(lock[1]), command: commandOf(lock[1]!) };
    }
  } catch {
    // Not Linux, or no such file: not known.
  }
  return null;
}

/** A file as the kernel's list names it: device (major and minor in hex) and inode. */
export function fileKey(dev: bigint, ino: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  return `${major.toString(16).padStart(2, "0")}:${minor.toString(16).padStart(2, "0")}:${ino}`;
}

/** All files on which some process holds a write lock. Empty where the kernel does not tell. */
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
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim().slice(0, 200);
  } catch {
    return "";
  }
}
