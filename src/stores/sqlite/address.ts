// Which file an address means. Apart from the store: whoever reads an address need not load it.
import { lstatSync, readlinkSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { ErrorCode, OutliveError } from "../../job/errors.ts";

/** `sqlite:./jobs.db`, `sqlite:/var/lib/app/jobs.db`, `sqlite::memory:`. */
export function sqlitePath(url: string): string {
  const path = url.slice("sqlite:".length).replace(/^\/\/(?=\/)/, "");
  if (path === "")
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${JSON.stringify(url)} names no file.`,
      'Write "sqlite:./jobs.db", an absolute path, or "sqlite::memory:".',
      { url },
    );
  return path === ":memory:" ? path : realPath(resolve(path));
}

/**
 * The path without symbolic links, so that everything next to the file has one place, whatever name a process uses. SQLite does the
 * same for its log. A file that is not there yet is resolved up to its directory. What can't be resolved is returned
 * as it is: the open reports why.
 */
function realPath(path: string): string {
  try {
    return realpathSync.native(path);
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ELOOP") throw circular(path, thrown);
    const target = linkTarget(path);
    if (target !== null) return realPath(resolve(dirname(path), target));
  }
  try {
    return join(realpathSync.native(dirname(path)), basename(path));
  } catch {
    return path;
  }
}

/** Of a link that leads to a file that is not there yet; null: it is not a link. */
function linkTarget(path: string): string | null {
  try {
    return lstatSync(path).isSymbolicLink() ? readlinkSync(path) : null;
  } catch {
    return null;
  }
}

function circular(path: string, cause: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.storeUnusable,
    `The symbolic links of ${path} lead in a circle.`,
    "Correct the links, or name the file itself.",
    { path },
    { cause },
  );
}
