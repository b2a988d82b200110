// What tells a copy that was put back from the file itself. The mark lies next to the locks, not in the file, so no copy of the file
// brings it back: which file was opened here last, and the highest epoch that was issued on it.
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { sideFolder } from "./lock.ts";

/** Where rows are: a file, as the kernel of one boot knows it. */
export interface FilePlace {
  /** An inode means something during one boot only: some file systems number their files anew when they are mounted. */
  readonly boot: string;
  /** Without the device, whose number changes when a container's file system is mounted again. */
  readonly inode: string;
}

export interface Mark extends FilePlace {
  readonly epoch: number;
}

/** Where the mark of one database is kept. */
export interface MarkFile {
  read(): Mark | null;
  write(mark: Mark): void;
}

export function markFile(databasePath: string): MarkFile {
  return { read: () => readMark(databasePath), write: (mark) => writeMark(databasePath, mark) };
}

/** Null: there is none yet, or it can't be read. Then nothing is known, and the next open that finds nobody at work raises the epoch. */
export function readMark(databasePath: string): Mark | null {
  try {
    const { boot, inode, epoch } = JSON.parse(readFileSync(markPath(databasePath), "utf8")) as Mark;
    const isMark = typeof boot === "string" && typeof inode === "string" && Number.isSafeInteger(epoch);
    return isMark ? { boot, inode, epoch } : null;
  } catch {
    return null;
  }
}

/** Whole or not at all. A folder that can't be written to costs this safety net and nothing else. */
export function writeMark(databasePath: string, mark: Mark): void {
  const path = markPath(databasePath);
  const draft = `${path}.${process.pid}`;
  try {
    writeFileSync(draft, `${JSON.stringify(mark)}\n`, { mode: 0o600 });
    renameSync(draft, path);
  } catch {
    // Said by the open itself if the folder is unusable.
  }
}

/** Why the file is not the one that the mark speaks of; null: nothing says so. */
export function whyRestored(mark: Mark | null, { boot, inode }: FilePlace, epoch: number): string | null {
  if (mark === null) return null;
  if (mark.boot === boot && mark.inode !== inode) return "the file is another one than was opened here before";
  if (epoch < mark.epoch) return `its epoch is ${epoch}, and ${mark.epoch} was issued before`;
  return null;
}

function markPath(databasePath: string): string {
  return join(sideFolder(databasePath), "mark.json");
}
