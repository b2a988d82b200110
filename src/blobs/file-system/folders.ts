// The folders below the store's own: made with mode 0700, never reached through a symbolic link, durable before a blob in them is,
// and removed when they are empty.
import { closeSync, fstatSync, fsync, openSync } from "node:fs";
import { lstat, mkdir, rmdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { codeOf } from "./errors.ts";

export const sync = promisify(fsync);

/** Beyond that many, known folders are forgotten, which costs a few calls the next time. */
const MAX_KNOWN = 1_000;

export class Folders {
  readonly #root: string;
  /** Folders whose entry in their parent is on the disk, with the identity that they had then. */
  readonly #durable = new Map<string, string>();
  readonly #syncing = new Map<string, Promise<boolean>>();
  readonly #nextSync = new Map<string, Promise<boolean>>();

  constructor(root: string) {
    this.#root = root;
  }

  /** The folder of a key, for reading. Null: there is no such folder. Throws if a symbolic link is in its place. */
  async existing(key: string): Promise<string | null> {
    let path = this.#root;
    for (const segment of key.split("/").slice(0, -1)) {
      path = join(path, segment);
      if (this.#durable.has(path)) continue;
      if ((await kindOf(path)) !== "folder") return null;
    }
    return path;
  }

  /** The folder of a key, made if it does not exist, and durable with all above it. */
  async made(key: string): Promise<string> {
    let path = this.#root;
    for (const segment of key.split("/").slice(0, -1)) {
      const parent = path;
      path = join(path, segment);
      if (!this.#durable.has(path)) await this.#make(parent, path);
    }
    return path;
  }

  /**
   * Makes the names in a folder durable. Concurrent calls share a sync, as long as it began after each of them was made: of 8 puts
   * at once, 7 would otherwise wait for the journal twice.
   */
  async sync(folder: string): Promise<void> {
    const isSame = await this.#sync(folder);
    // It was removed and made again by another process: what is known of its entry is out of date.
    if (!isSame) await this.#syncUp(folder);
  }

  forget(): void {
    this.#durable.clear();
  }

  /** Removes folders that are empty, from that of the key upwards. A put that needs one at this moment makes it again. */
  async prune(key: string): Promise<void> {
    const segments = key.split("/").slice(0, -1);
    for (; segments.length > 0; segments.pop()) {
      const path = join(this.#root, ...segments);
      this.#durable.delete(path);
      try {
        await rmdir(path);
      } catch {
        return;
      }
    }
  }

  async #make(parent: string, path: string): Promise<void> {
    try {
      await mkdir(path, { mode: 0o700 });
    } catch (thrown) {
      if (codeOf(thrown) !== "EEXIST") throw thrown;
      const found = await kindOf(path);
      if (found === "file") throw keyConflict(path);
      // Removed as empty since then: the put begins again.
      if (found === null) throw Object.assign(new Error(`${path} was removed`), { code: "ENOENT" });
    }
    // Also if it was there: the process that made it may not have synced it yet.
    await this.#sync(parent);
    if (this.#durable.size >= MAX_KNOWN) this.#durable.clear();
    this.#durable.set(path, await identityOf(path));
  }

  /** From a folder up to the root. */
  async #syncUp(folder: string): Promise<void> {
    for (let path = folder; path !== this.#root; path = dirname(path)) {
      await this.#sync(dirname(path));
      this.#durable.set(path, await identityOf(path));
    }
  }

  /** Returns whether the folder is the one that is known, if one is. */
  #sync(folder: string): Promise<boolean> {
    const running = this.#syncing.get(folder);
    if (running === undefined) return this.#startSync(folder);
    // The running one may have begun before this caller's change.
    let next = this.#nextSync.get(folder);
    if (next === undefined) {
      const start = (): Promise<boolean> => {
        this.#nextSync.delete(folder);
        return this.#startSync(folder);
      };
      next = running.then(start, start);
      this.#nextSync.set(folder, next);
    }
    return next;
  }

  #startSync(folder: string): Promise<boolean> {
    const sync = syncFolder(folder, this.#durable.get(folder)).finally(() => this.#syncing.delete(folder));
    this.#syncing.set(folder, sync);
    return sync;
  }
}

/** Returns whether it is the folder that is known. */
async function syncFolder(folder: string, known: string | undefined): Promise<boolean> {
  const fd = openSync(folder, "r");
  try {
    await sync(fd);
    if (known === undefined) return true;
    const { dev, ino, birthtimeMs } = fstatSync(fd);
    return known === `${dev}:${ino}:${birthtimeMs}`;
  } finally {
    closeSync(fd);
  }
}

/** Inode numbers are reused at once, so the time of birth belongs to it. */
async function identityOf(path: string): Promise<string> {
  const { dev, ino, birthtimeMs } = await lstat(path);
  return `${dev}:${ino}:${birthtimeMs}`;
}

/** Null: nothing is there. */
async function kindOf(path: string): Promise<"folder" | "file" | null> {
  let found;
  try {
    found = await lstat(path);
  } catch (thrown) {
    if (codeOf(thrown) === "ENOENT") return null;
    throw thrown;
  }
  if (!found.isSymbolicLink()) return found.isDirectory() ? "folder" : "file";
  throw new OutliveError(
    ErrorCode.blobsUnusable,
    `${path} in the blob store is a symbolic link, which could lead anywhere.`,
    "Remove the link. Only the store's own folder may be reached through one.",
    { path },
  );
}

export function keyConflict(path: string): OutliveError {
  return new OutliveError(
    ErrorCode.keyInvalid,
    `${path} would have to be a blob and a folder of other blobs at once.`,
    "Choose keys so that none is the folder of another: a and a/b exclude each other.",
    { path },
  );
}
