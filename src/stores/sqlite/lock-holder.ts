// Who holds the write lock: the kernel's own list of file locks, on Linux. For people who ask why nothing moves; nothing is
// decided by it.
import { readFileSync, statSync } from "node:fs";

/** In WAL mode the writer holds this byte of the shared-memory file (WAL_WRITE_LOCK in SQLite's wal.c). */
const WRITE_LOCK_BYTE = 120;

export function lockHolder(databasePath: string): { readonly pid: number; readonly command: string } | null {
  try {
    // stat opens nothing: an open and close of the file itself would drop our own locks on it.
    const { ino } = statSync(`${databasePath}-shm`);
    for (const line of readFileSync("/proc/locks", "utf8").split("\n")) {
      // 12: POSIX  ADVISORY  WRITE 4711 fe:01:1835017 120 120
      const lock = /POSIX\s+ADVISORY\s+WRITE\s+(\d+)\s+\S+:(\d+)\s+(\d+)\s+(\d+|EOF)/.exec(line);
      if (!lock || Number(lock[2]) !== ino) continue;
      const to = lock[4] === "EOF" ? Number.POSITIVE_INFINITY : Number(lock[4]);
      if (Number(lock[3]) <= WRITE_LOCK_BYTE && to >= WRITE_LOCK_BYTE)
        return { pid: Number(lock[1]), command: commandOf(lock[1]!) };
    }
  } catch {
    // Not Linux, or no such file: not known.
  }
  return null;
}

function commandOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim().slice(0, 200);
  } catch {
    return "";
  }
}
