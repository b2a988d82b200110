// The model of a disk with a volatile cache. What was synced is there; of what was written since, a power loss leaves any part. A
// name (created, removed) is durable when its folder was synced, and not by a sync of the file itself. Names of one folder come
// and go in the order in which they were changed: file systems keep a journal of them.
import { posix } from "node:path";

export type DiskChange =
  | { readonly is: "create"; readonly path: string }
  | { readonly is: "remove"; readonly path: string }
  | FileChange
  /** Makes durable what had been written to the file before `since`. */
  | { readonly is: "sync"; readonly path: string; readonly since: number }
  | { readonly is: "sync-names"; readonly folder: string };

export type FileChange =
  | {
      readonly is: "write";
      readonly path: string;
      readonly offset: number;
      readonly bytes: Buffer;
      readonly at: number;
    }
  | { readonly is: "truncate"; readonly path: string; readonly size: number; readonly at: number };

/** One file, whatever its name: what is durable of it and what is not yet. */
export interface Inode {
  durable: Buffer;
  unsynced: FileChange[];
}

interface NameChange {
  readonly folder: string;
  readonly path: string;
  /** Undefined: the name is gone. */
  readonly inode: Inode | undefined;
}

/** Decides what a power loss leaves. */
export interface Fate {
  /** How many of the unsynced changes of names in a folder, from the first on. */
  names(count: number): number;
  /** What is left of a file. */
  file(inode: Inode): Buffer;
}

export class Disk {
  readonly #names = new Map<string, Inode>();
  readonly #durableNames = new Map<string, Inode>();
  #unsyncedNames: NameChange[] = [];
  /** A planted bug: syncs do nothing. */
  readonly #ignoreSyncs: boolean;

  constructor(base: ReadonlyMap<string, Buffer>, { ignoreSyncs = false }: { readonly ignoreSyncs?: boolean } = {}) {
    this.#ignoreSyncs = ignoreSyncs;
    for (const [path, bytes] of base) {
      const inode = { durable: bytes, unsynced: [] };
      this.#names.set(path, inode);
      this.#durableNames.set(path, inode);
    }
  }

  has(path: string): boolean {
    return this.#names.has(path);
  }

  apply(change: DiskChange): void {
    switch (change.is) {
      case "create":
        return this.#rename(change.path, { durable: Buffer.alloc(0), unsynced: [] });
      case "remove":
        return this.#rename(change.path, undefined);
      case "write":
      case "truncate":
        this.#inode(change.path).unsynced.push(change);
        return;
      case "sync": {
        if (this.#ignoreSyncs) return;
        const inode = this.#inode(change.path);
        const covered = inode.unsynced.filter(({ at }) => at < change.since);
        inode.durable = applied(inode.durable, covered);
        inode.unsynced = inode.unsynced.filter(({ at }) => at >= change.since);
        return;
      }
      case "sync-names": {
        if (this.#ignoreSyncs) return;
        const here = ({ folder }: NameChange): boolean => folder === change.folder;
        for (const named of this.#unsyncedNames.filter(here)) setName(this.#durableNames, named);
        this.#unsyncedNames = this.#unsyncedNames.filter((named) => !here(named));
      }
    }
  }

  /** Whether a power loss now could take anything. */
  get isExposed(): boolean {
    const files = new Set([...this.#names.values(), ...this.#durableNames.values()]);
    return this.#unsyncedNames.length > 0 || [...files].some(({ unsynced }) => unsynced.length > 0);
  }

  /** The files after a power loss now. */
  lose(fate: Fate): Map<string, Buffer> {
    const names = new Map(this.#durableNames);
    for (const folder of new Set(this.#unsyncedNames.map((named) => named.folder))) {
      const changes = this.#unsyncedNames.filter((named) => named.folder === folder);
      for (const named of changes.slice(0, fate.names(changes.length))) setName(names, named);
    }
    return new Map([...names].map(([path, inode]) => [path, fate.file(inode)]));
  }

  /** The files as the processes see them. */
  everything(): Map<string, Buffer> {
    return this.lose({ names: (count) => count, file: ({ durable, unsynced }) => applied(durable, unsynced) });
  }

  #inode(path: string): Inode {
    const inode = this.#names.get(path);
    if (!inode) throw new Error(`the recorded calls write to ${path} before it is there`);
    return inode;
  }

  #rename(path: string, inode: Inode | undefined): void {
    const parent = posix.dirname(path);
    const named = { folder: parent === "." ? "" : parent, path, inode };
    setName(this.#names, named);
    this.#unsyncedNames.push(named);
  }
}

function setName(names: Map<string, Inode>, { path, inode }: NameChange): void {
  if (inode) names.set(path, inode);
  else names.delete(path);
}

/** A file with these changes made to it, in a buffer of its own. */
export function applied(bytes: Buffer, changes: readonly FileChange[]): Buffer {
  if (changes.length === 0) return bytes;
  let size = bytes.length;
  let most = size;
  for (const change of changes) {
    size = change.is === "write" ? Math.max(size, change.offset + change.bytes.length) : change.size;
    most = Math.max(most, size);
  }
  const made = Buffer.alloc(most);
  bytes.copy(made);
  let length = bytes.length;
  for (const change of changes) {
    if (change.is === "write") {
      change.bytes.copy(made, change.offset);
      length = Math.max(length, change.offset + change.bytes.length);
    } else {
      // What is cut off reads as zeros if the file grows again.
      made.fill(0, change.size, Math.max(length, change.size));
      length = change.size;
    }
  }
  return made.subarray(0, length);
}
