// Which file is at a path. stat opens nothing: an open and close of the database itself would drop SQLite's locks on it.
import { statSync } from "node:fs";
import { fileKey } from "./lock-holder.ts";

/** Device and inode; null: nothing is there. */
export function fileAt(path: string): string | null {
  const file = statSync(path, { bigint: true, throwIfNoEntry: false });
  return file === undefined ? null : fileKey(file.dev, file.ino);
}
