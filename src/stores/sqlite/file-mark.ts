// What tells a copy that was put back from the file itself. The mark lies next to the locks, not in the file, so no copy of the file
// brings it back: which file (device and inode) was opened here last, and the highest epoch that was issued on it.
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { sideFolder } from "./lock.ts";

export interface Mark {
  readonly file: string;
  readonly epoch: number;
}

/** Null: there is none yet, or it can't be read. Then nothing is known, and the next open that finds nobody at work raises the epoch. */
export function readMark(databasePath: string): Mark | null {
  try {
    const { file, epoch } = JSON.parse(readFileSync(markPath(databasePath), "utf8")) as Mark;
    return typeof file === "string" && Number.isSafeInteger(epoch) ? { file, epoch } : null;
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
export function whyRestored(mark: Mark | null, file: string | null, epoch: number): string | null {
  if (mark === null) return null;
  if (file !== mark.file) return "the file is another one than was opened here before";
  if (epoch < mark.epoch) return `its epoch is ${epoch}, and ${mark.epoch} was issued before`;
  return null;
}

function markPath(databasePath: string): string {
  return join(sideFolder(databasePath), "mark.json");
}
