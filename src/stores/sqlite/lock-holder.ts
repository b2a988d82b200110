// Which file is at a path, as the kernel names it, and which processes hold locks on it, by the kernel's own list on Linux. Everything
// here uses stat, which opens nothing: to open and close the database itself would drop SQLite's locks on it.
import { readFileSync } from "node:fs";
import { storableText } from "../../job/text.ts";
import { fileAt } from "./database.ts";

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

/** Who reads an older state out of the write-ahead log, so that it can't be flushed whole. */
export function walReaders(databasePath: string): readonly ProcessOnFile[] {
  return holders(`${databasePath}-shm`, "READ", ...READ_LOCK_BYTES) ?? [];
}

/** Which processes have the database open in WAL mode, this one included; null: this host does not tell. */
export function openers(databasePath: string): readonly ProcessOnFile[] | null {
  return holders(`${databasePath}-shm`, "(?:READ|WRITE)", OPEN_BYTE, OPEN_BYTE);
}

/** Who holds a file exclusively, as SQLite does with a lock file. */
export function exclusiveHolder(path: string): ProcessOnFile | null {
  return holders(path, "WRITE", 0, Number.MAX_SAFE_INTEGER)?.[0] ?? null;
}

/** Who holds a lock of this kind on any byte from `first` to `last`, each once; null: the kernel does not tell. */
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
    return storableText(readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim(), 200);
  } catch {
    return "";
  }
}
