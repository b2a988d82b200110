// Which file an address means, and checks of that file before SQLite opens it: where it may be, that it exists, that no
// other user can read it. Separate from the store, so code that reads an address need not load the store. It never
// opens an existing file: that could drop our own locks.
import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  lstatSync,
  openSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  statfsSync,
  statSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { networkFilesystem } from "../../platform/filesystem.ts";

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
 * Resolves symbolic links, so that everything next to the file has one place, whatever name a process uses. SQLite does
 * the same for its log. A file that does not exist yet is resolved up to its directory. A path that can't be resolved
 * is returned unchanged: the open reports why.
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

/** The target of a link to a file that does not exist yet; null: it is not a link. */
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

export function assertLocalFilesystem(path: string): void {
  let magic: number;
  try {
    magic = statfsSync(dirname(path)).type;
  } catch {
    return; // No such directory: the open throws a better error.
  }
  const name = networkFilesystem(magic);
  if (name === undefined) return;
  throw new OutliveError(
    ErrorCode.storeUnusable,
    `${path} is on a network file system (${name}), where SQLite's locks do not hold.`,
    "Put the file on a local disk, or use PostgreSQL for several hosts. `sqlite: { allowNetworkFilesystem: true }` overrides this.",
    { path: path, filesystem: name },
  );
}

/**
 * Removing a worker's lock file relies on deleting an open file, and detecting a death relies on signals: neither works
 * the same on Windows. `platform` is a parameter so that it can be tested.
 */
export function assertPlatform(path: string, platform: string = process.platform): void {
  if (platform !== "win32") return;
  throw new OutliveError(
    ErrorCode.storeUnusable,
    `${path} can't be opened: the SQLite store is not supported on Windows, where a lock file can't be removed while it is open.`,
    "Use WSL or PostgreSQL. `sqlite: { allowUnsafe: true }` overrides this.",
    { path, platform },
  );
}

/**
 * SQLite keeps its log next to the file, under the name by which the file was opened. A second name has a second log,
 * and two logs corrupt the file. Symbolic links are resolved earlier (address.ts); hard links and a bind mount of the
 * file alone can't be.
 */
export function assertOneName(path: string): void {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found?.isDirectory())
    throw new OutliveError(
      ErrorCode.storeUnusable,
      `${path} is a folder, and the SQLite store is one file.`,
      "Name a file in it, for example sqlite:./jobs.db. Nothing was changed.",
      { path },
    );
  const links = found?.nlink ?? 1;
  if (links > 1)
    throw new OutliveError(
      ErrorCode.storeUnusable,
      `${path} has ${links} names (hard links). Each name would have its own write-ahead log, which corrupts the file.`,
      "Remove the other names (`find -samefile` lists them), or copy the file. Nothing was changed.",
      { path, links },
    );
  if (isMountPoint(path))
    throw new OutliveError(
      ErrorCode.storeUnusable,
      `${path} is mounted as a single file. Its write-ahead log would not be next to the original, which corrupts the file.`,
      "Mount the directory that holds the file instead. Nothing was changed.",
      { path },
    );
}

/**
 * Whether the path itself, not one of its directories, is in the kernel's list of mounts. False where there is no such
 * list.
 */
function isMountPoint(path: string): boolean {
  let mounts: string;
  try {
    mounts = readFileSync("/proc/self/mountinfo", "utf8");
  } catch {
    return false;
  }
  // 36 35 98:0 /source /mount\040point rw,noatime ...
  const escaped = path.replaceAll(/[ \t\n\\]/g, (char) => `\\0${char.charCodeAt(0).toString(8).padStart(2, "0")}`);
  return mounts.split("\n").some((line) => line.split(" ", 5)[4] === escaped);
}

export function assertExists(path: string): void {
  if (existsSync(path)) return;
  throw new OutliveError(
    ErrorCode.storeUnusable,
    `There is no file ${path}.`,
    "Check the store's address and the folder that you are in. `outlive migrate up`, a worker and a client create the file.",
    { path },
  );
}

/** Asks the kernel and opens nothing. Nothing is created next to a file that this user can't write to. */
export function assertWritable(path: string): void {
  try {
    accessSync(path, constants.R_OK | constants.W_OK);
  } catch (thrown) {
    if (isOnReadOnlyDisk(path)) throw readOnlyDisk(path, thrown, false);
    throw new OutliveError(
      ErrorCode.storeReadOnly,
      `${path} can't be written: ${(thrown as Error).message}.`,
      "Nothing was written. Give this user write permission for the file and its directory, or open it with `readOnly: true`.",
      { path },
      { cause: thrown },
    );
  }
}

/** Whether the disk of this file is mounted read-only. */
export function isOnReadOnlyDisk(path: string): boolean {
  try {
    accessSync(dirname(path), constants.W_OK);
    return false;
  } catch (thrown) {
    return (thrown as NodeJS.ErrnoException).code === "EROFS";
  }
}

/** SQLite says of a full disk and of a read-only one only that it can't open the file, or that its input or output failed. */
export function whyUnopened(path: string, thrown: unknown, readOnly: boolean): unknown {
  if (!(thrown instanceof OutliveError) || thrown.data["sqlite"] === undefined) return thrown;
  if (isOnReadOnlyDisk(path)) return readOnlyDisk(path, thrown, readOnly);
  if (!hasRoom(path))
    return new OutliveError(
      ErrorCode.storeFull,
      `The disk of ${path} is full.`,
      "Nothing was changed. Free some disk space: SQLite needs a little even to read.",
      { path },
      { cause: thrown },
    );
  return thrown;
}

function readOnlyDisk(path: string, cause: unknown, readOnly: boolean): OutliveError {
  return new OutliveError(
    ErrorCode.storeReadOnly,
    `${path} is on a disk that is mounted read-only.`,
    readOnly
      ? "Its latest changes are in its -wal file, and SQLite can't read that without writing next to it. Copy both files to another disk."
      : "Nothing was changed. To inspect the store, use --read-only (in a program: `readOnly: true`). To run jobs, remount the disk as writable.",
    { path },
    { cause },
  );
}

function hasRoom(path: string): boolean {
  try {
    const { bavail, bsize } = statfsSync(dirname(path));
    // One page of the log's index, which each process that opens the file may have to make.
    return bavail * bsize >= 32_768;
  } catch {
    return true;
  }
}

/** Creates an empty file that only its owner can read. Never opens an existing one: that could drop our own locks. */
export function createPrivately(path: string): void {
  try {
    closeSync(openSync(path, "wx", 0o600));
  } catch (thrown) {
    const code = (thrown as NodeJS.ErrnoException).code;
    if (code === "EEXIST") return;
    const full = code === "ENOSPC" || code === "EDQUOT";
    throw new OutliveError(
      full ? ErrorCode.storeFull : ErrorCode.storeUnusable,
      `${path} can't be created: ${(thrown as Error).message}.`,
      full ? "Free some disk space." : "Check that the directory exists and that this user may write to it.",
      { path, code },
      { cause: thrown },
    );
  }
}
