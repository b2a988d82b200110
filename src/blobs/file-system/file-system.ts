// Blobs as files in a folder of a local disk. A put writes a file of its own in `.incoming`, syncs it, renames it to its key, and
// syncs the folder: after a power loss the whole blob is there or nothing. Nothing is locked; any number of processes may share it.
import { closeSync, constants, open as openCall, renameSync, type Stats, write as writeCall } from "node:fs";
import { type FileHandle, lstat, mkdir, open, readdir, realpath, statfs, unlink } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { networkFilesystem } from "../../platform/filesystem.ts";
import {
  assertKey,
  assertPrefix,
  type BlobCheck,
  type BlobContent,
  type BlobData,
  type BlobEntry,
  type BlobExpectation,
  type BlobHead,
  type BlobRange,
  type BlobStore,
  checkedRange,
  notFound,
} from "../blob-store.ts";
import { probe } from "../probe.ts";
import { assertData, inParts, Meter, SourceFailure } from "../contents.ts";
import { codeOf, explained, folderMissing } from "./errors.ts";
import { Folders, keyConflict, sync } from "./folders.ts";
import { INCOMING, incomingName, sweep } from "./leftovers.ts";
import type { StagedBlob, StagingBlobs } from "../staging.ts";

/** Options of `fileSystem()`. */
export interface FileSystemOptions {
  /** The folder of the blobs. It is created if only its last part is missing. Nothing else may be in it. */
  readonly folder: string;
  /**
   * Uses a folder on a network file system all the same. There a put may be lost, or be seen in part, after a crash of a client or of
   * the server. Default false.
   */
  readonly allowNetworkFilesystem?: boolean;
}

/** What one write takes of a stream; it is also the memory of one put. */
const WRITE_BYTES = 512 * 1024;
/** Whether O_DSYNC is as good as a sync. On macOS it leaves the bytes in the cache of the disk. */
const SYNCS_WRITES = process.platform === "linux";
/** A new file whose writes return when they are on the disk. */
const SYNCED = SYNCS_WRITES ? constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_DSYNC : "wx";
/** After this many bytes a sync begins that is not waited for. */
const EARLY_BYTES = 8 * 1024 * 1024;
const READ_BYTES = 256 * 1024;
/** How often a process that puts blobs removes what dead ones left. */
const SWEEP_EVERY_MS = 3_600_000;
/** How often a put makes its folder again that deletes of other processes remove as empty. */
const MAX_RENAMES = 20;

/** Blobs as files in a folder of a local disk, readable by this user only. Nothing is opened or created before the first use. */
export function fileSystem(options: FileSystemOptions): BlobStore {
  return new FileSystemBlobs(options);
}

const writeSome = promisify(writeCall);
const openFile = promisify(openCall);

class FileSystemBlobs implements BlobStore, StagingBlobs {
  readonly place: string;
  readonly uri: string;
  readonly #folder: string;
  readonly #allowNetwork: boolean;
  #opened: Promise<Folders> | undefined;
  #root = "";
  #sweepAt = 0;

  constructor({ folder, allowNetworkFilesystem = false }: FileSystemOptions) {
    if (typeof folder !== "string" || folder === "" || folder.includes("\0"))
      throw new OutliveError(
        ErrorCode.optionInvalid,
        "The blob store has no folder.",
        'Name one, as in fileSystem({ folder: "./blobs" }).',
        { folder },
      );
    this.#folder = resolve(folder);
    this.#allowNetwork = allowNetworkFilesystem;
    this.place = `the folder ${this.#folder}`;
    this.uri = `${pathToFileURL(this.#folder).href}/`;
  }

  async put(key: string, data: BlobData, expected?: BlobExpectation): Promise<BlobContent> {
    assertKey(key);
    assertData(key, data);
    const meter = new Meter(key, expected);
    return await this.#doing(`storing ${key}`, async (folders) => {
      const incoming = await this.#incoming();
      return await this.#orRemoved(incoming, async () => {
        await write(await this.#create(incoming), key, data, meter);
        const content = meter.end();
        const folder = await this.#rename(folders, incoming, key);
        // Missing: the blob was deleted at once, and its folder with it.
        await folders.sync(folder).catch(unlessMissing);
        return content;
      });
    });
  }

  stage(data: Uint8Array): StagedBlob {
    const writing = this.#doing(`storing ${data.length} bytes`, async () => {
      const incoming = await this.#incoming();
      await this.#orRemoved(incoming, async () => writeWhole(await this.#create(incoming, SYNCED), data));
      return incoming;
    });
    // Reported by `place`.
    writing.catch(() => {});
    return {
      place: async (key): Promise<void> => {
        assertKey(key);
        const incoming = await writing;
        await this.#doing(`storing ${key}`, (folders) =>
          this.#orRemoved(incoming, () => this.#rename(folders, incoming, key)),
        );
      },
    };
  }

  async sync(keys: readonly string[]): Promise<void> {
    const paths = new Set(keys.map((key) => join(this.#root, dirname(key))));
    await this.#doing(`storing ${keys.length} blobs`, (folders) =>
      // Missing: its blobs were deleted at once, and the folder with them.
      Promise.all([...paths].map((path) => folders.sync(path).catch(unlessMissing))),
    );
  }

  async *get(key: string, range?: BlobRange): AsyncGenerator<Uint8Array, void> {
    assertKey(key);
    const { start, end } = checkedRange(range);
    const handle = await this.#doing(`reading ${key}`, async (folders) => {
      const folder = await folders.existing(key);
      return folder === null ? null : await openBlob(join(folder, nameOf(key)));
    });
    if (handle === null) throw notFound(key, this.place);
    try {
      for (let at = start; end === null || at < end;) {
        const wanted = Math.min(READ_BYTES, end === null ? READ_BYTES : end - at);
        const buffer = Buffer.allocUnsafeSlow(wanted);
        const { bytesRead } = await this.#doing(`reading ${key}`, () => handle.read(buffer, 0, wanted, at));
        if (bytesRead === 0) return;
        at += bytesRead;
        yield buffer.subarray(0, bytesRead);
      }
    } finally {
      await handle.close();
    }
  }

  async head(key: string): Promise<BlobHead | null> {
    assertKey(key);
    return await this.#doing(`looking for ${key}`, async (folders) => {
      const folder = await folders.existing(key);
      const found = folder === null ? null : await statOf(join(folder, nameOf(key)));
      return found?.isFile() ? { size: found.size, modifiedAt: Math.floor(found.mtimeMs) } : null;
    });
  }

  async delete(keys: readonly string[]): Promise<void> {
    for (const key of keys) assertKey(key);
    for (const key of keys)
      await this.#doing(`deleting ${key}`, async (folders) => {
        const folder = await folders.existing(key);
        if (folder === null) return;
        const path = join(folder, nameOf(key));
        // Not durable before a crash, and need not be: a blob that comes back is found by the next list.
        if ((await statOf(path))?.isFile()) await unlink(path).catch(unlessMissing);
        await folders.prune(key);
      });
  }

  async *list(prefix = ""): AsyncGenerator<BlobEntry, void> {
    assertPrefix(prefix);
    const found = await this.#doing(`listing ${prefix}`, (folders) => folders.existing(prefix));
    if (found !== null) yield* this.#listFolder(prefix.slice(0, prefix.lastIndexOf("/") + 1), prefix);
  }

  async check(): Promise<BlobCheck> {
    await probe(this);
    return await this.#doing("checking", async () => {
      const { bavail, bsize, type } = await statfs(this.#root);
      const facts = { folder: this.#folder, freeBytes: bavail * bsize, fileSystem: `0x${type.toString(16)}` };
      return { place: this.place, facts };
    });
  }

  async *#listFolder(path: string, prefix: string): AsyncGenerator<BlobEntry, void> {
    const names = await this.#doing(`listing ${path}`, async () => {
      const entries = await readdir(join(this.#root, path), { withFileTypes: true }).catch(unlessMissing);
      return (entries ?? [])
        .filter((entry) => !entry.name.startsWith(".") && (entry.isFile() || entry.isDirectory()))
        .map((entry) => path + entry.name + (entry.isDirectory() ? "/" : ""))
        .filter((name) => name.startsWith(prefix))
        .sort();
    });
    for (const name of names) {
      if (name.endsWith("/")) {
        yield* this.#listFolder(name, prefix);
        continue;
      }
      const found = await this.#doing(`listing ${name}`, () => statOf(join(this.#root, name)));
      if (found?.isFile()) yield { key: name, size: found.size, modifiedAt: Math.floor(found.mtimeMs) };
    }
  }

  async #doing<T>(doing: string, work: (folders: Folders) => Promise<T>): Promise<T> {
    try {
      return await work(await this.#open());
    } catch (thrown) {
      if (thrown instanceof SourceFailure) throw thrown.cause;
      if (codeOf(thrown) === "ENOENT" && (await statOf(this.#folder)) === null)
        throw folderMissing(this.#folder, thrown);
      throw explained(doing, this.#folder, thrown);
    }
  }

  #open(): Promise<Folders> {
    this.#opened ??= this.#openOnce().catch((thrown: unknown) => {
      this.#opened = undefined;
      throw thrown;
    });
    return this.#opened;
  }

  async #openOnce(): Promise<Folders> {
    if (process.platform === "win32") throw unusable(this.#folder, "Windows can't sync a folder");
    await mkdir(this.#folder, { mode: 0o700 }).then(() => syncNames(dirname(this.#folder)), unlessThere);
    this.#root = await realpath(this.#folder);
    const network = networkFilesystem((await statfs(this.#root)).type);
    if (network !== undefined && !this.#allowNetwork)
      throw unusable(
        this.#folder,
        `it is on a network file system (${network}), where a rename and a sync do not hold`,
      );
    return new Folders(this.#root);
  }

  /** Where the next put is written. */
  async #incoming(): Promise<string> {
    await this.#sweepSometimes();
    return join(this.#root, INCOMING, incomingName());
  }

  async #orRemoved<T>(incoming: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (thrown) {
      await unlink(incoming).catch(() => {});
      throw thrown;
    }
  }

  async #sweepSometimes(): Promise<void> {
    const now = Date.now();
    if (now < this.#sweepAt) return;
    this.#sweepAt = now + SWEEP_EVERY_MS;
    await sweep(this.#root, now).catch(unlessMissing);
  }

  async #create(path: string, flags: string | number = "wx"): Promise<number> {
    try {
      return await openFile(path, flags, 0o600);
    } catch (thrown) {
      if (codeOf(thrown) !== "ENOENT") throw thrown;
      await mkdir(dirname(path), { mode: 0o700 }).catch(unlessThere);
      return await openFile(path, flags, 0o600);
    }
  }

  /** Returns the folder, whose names are not synced. */
  async #rename(folders: Folders, incoming: string, key: string): Promise<string> {
    for (let tries = 1; ; tries++) {
      try {
        const folder = await folders.made(key);
        renameSync(incoming, join(folder, nameOf(key)));
        return folder;
      } catch (thrown) {
        const code = codeOf(thrown);
        if (code === "EISDIR" || code === "ENOTEMPTY" || code === "ENOTDIR") throw keyConflict(key);
        if (code !== "ENOENT" || tries === MAX_RENAMES || (await statOf(incoming)) === null) throw thrown;
        folders.forget();
      }
    }
  }
}

/**
 * Writes, syncs and closes. Of a put's calls those that move bytes wait for a thread of the pool, of which Node has four, and the one that creates the file, which
 * stands behind commits of the journal: 0.83 ms of the event loop for each file, with eight puts at once. The others, each of a few µs, would queue behind
 * the syncs of other puts.
 */
async function write(fd: number, key: string, data: BlobData, meter: Meter): Promise<void> {
  const early = new EarlySync(fd);
  try {
    let at = 0;
    const bytes = data instanceof Uint8Array && !meter.hashes ? data.length : WRITE_BYTES;
    for await (const part of inParts(key, data, bytes)) {
      // The hash is made while the kernel copies.
      const writing = writeAll(fd, part, at);
      try {
        meter.add(part);
      } finally {
        await writing;
      }
      at += part.length;
      early.wrote(part.length);
    }
    const last = sync(fd);
    try {
      await early.end();
    } finally {
      await last;
    }
  } finally {
    await early.end().catch(() => {});
    closeSync(fd);
  }
}

/** Brings what was written to the disk while more is made, so that the sync at the end has little left. One that failed is heard by `end`: the kernel reports it once. */
class EarlySync {
  readonly #fd: number;
  #bytes = 0;
  #syncing: Promise<void> | null = null;
  #failed: { readonly thrown: unknown } | null = null;

  constructor(fd: number) {
    this.#fd = fd;
  }

  wrote(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes < EARLY_BYTES || this.#syncing || this.#failed) return;
    this.#bytes = 0;
    this.#syncing = sync(this.#fd)
      .catch((thrown: unknown) => void (this.#failed ??= { thrown }))
      .finally(() => (this.#syncing = null));
  }

  async end(): Promise<void> {
    await this.#syncing;
    if (this.#failed) throw this.#failed.thrown;
  }
}

/** The same of a file whose writes are synced: bytes wait for a thread of the pool once, not once to be written and again to be synced. */
async function writeWhole(fd: number, data: Uint8Array): Promise<void> {
  try {
    await writeAll(fd, data, 0);
    if (!SYNCS_WRITES) await sync(fd);
  } finally {
    closeSync(fd);
  }
}

async function writeAll(fd: number, part: Uint8Array, at: number): Promise<void> {
  for (let written = 0; written < part.length;)
    written += (await writeSome(fd, part, written, part.length - written, at + written)).bytesWritten;
}

/** Null: there is no such file. */
async function openBlob(path: string): Promise<FileHandle | null> {
  try {
    // Not through a symbolic link; and a pipe that someone put there must not block.
    const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    if ((await handle.stat()).isFile()) return handle;
    await handle.close();
    return null;
  } catch (thrown) {
    if (codeOf(thrown) === "ENOENT") return null;
    if (codeOf(thrown) === "ELOOP") throw unusable(path, "it is a symbolic link, which could lead anywhere");
    throw thrown;
  }
}

async function syncNames(folder: string): Promise<void> {
  const handle = await open(folder, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function statOf(path: string): Promise<Stats | null> {
  return (await lstat(path).catch(unlessMissing)) ?? null;
}

function nameOf(key: string): string {
  return key.slice(key.lastIndexOf("/") + 1);
}

function unlessMissing(thrown: unknown): undefined {
  if (codeOf(thrown) !== "ENOENT") throw thrown;
}

function unlessThere(thrown: unknown): void {
  if (codeOf(thrown) !== "EEXIST") throw thrown;
}

function unusable(path: string, why: string): OutliveError {
  return new OutliveError(
    ErrorCode.blobsUnusable,
    `${path} can't hold blobs: ${why}.`,
    "Use a folder on a local disk, or s3() or azure() of outlive/blobs for several hosts.",
    { path },
  );
}
