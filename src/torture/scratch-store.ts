// Where a run takes place: its own scratch store on the user's disk or server, so that the results hold for that place.
// It opens nothing of the user's, and leaves nothing behind unless it is kept for examination.
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { migrationsOf, storeAt, type StoreName, STORES } from "../stores/registry.ts";
import { atEnd } from "./run.ts";

/** What the scratch store is for; its folder, file and schema are named after it. */
export type Purpose = "demo" | "torture";

/** A folder, and what a run leaves behind only if it is kept. */
export interface Scratch {
  readonly folder: string;
  readonly isKept: boolean;
  keep(): void;
}

export interface ScratchStore {
  readonly store: StoreName;
  readonly url: string;
  /** On PostgreSQL; null: the store is a file. */
  readonly schema: string | null;
  /** For the file, and for everything else that belongs to the run. */
  readonly scratch: Scratch;
  /** Drops the schema, unless it is kept. A file is removed with its folder. */
  readonly remove: () => Promise<void>;
}

export interface ScratchOptions {
  readonly purpose: Purpose;
  readonly keep: boolean;
}

/** Next to the store that `url` names: a file in the same folder, or a schema on the same server. */
export async function scratchStore(url: string, options: ScratchOptions): Promise<ScratchStore> {
  const { files, commits } = storeAt(url);
  if (!commits) return namedOnServer(url, options);
  return files ? scratchFile(files.folderOf(url), options) : onServer(url, options);
}

export function scratchFile(parent: string, { purpose, keep }: ScratchOptions): ScratchStore {
  const scratch = scratchFolder(parent, keep, purpose);
  const { name, files } = STORES.find((store) => store.files)!;
  const url = files!.addressOf(join(scratch.folder, `${purpose}.db`));
  return { store: name, url, schema: null, scratch, remove: async () => {} };
}

async function onServer(url: string, { purpose, keep }: ScratchOptions): Promise<ScratchStore> {
  const schema = await scratchSchema(url, purpose);
  let isLeft = true;
  // A signal ends the process before it can send anything to a server. The name is then at least printed, as with
  // `keep`.
  atEnd(() => {
    if (isLeft) process.stderr.write(`The schema ${schema} is left on the server.\n`);
  });
  // The folder contains only compiled code: what is kept is the schema.
  const { folder } = scratchFolder(tmpdir(), false, purpose);
  let isKept = keep;
  return {
    store: storeAt(url).name,
    url,
    schema,
    scratch: {
      folder,
      get isKept() {
        return isKept;
      },
      keep() {
        isKept = true;
      },
    },
    remove: async () => {
      if (isKept) return;
      await dropSchema(url, schema);
      isLeft = false;
    },
  };
}

/** A store of its own on a server whose stores have names. */
async function namedOnServer(url: string, { purpose, keep }: ScratchOptions): Promise<ScratchStore> {
  const address = new URL(url);
  address.searchParams.set("store", `${purpose}-${randomBytes(4).toString("hex")}`);
  const scratch = scratchFolder(tmpdir(), keep, purpose);
  return {
    store: storeAt(url).name,
    url: address.href,
    schema: null,
    scratch,
    async remove() {
      if (!scratch.isKept) await (await migrationsOf(address.href)).down({ force: true });
    },
  };
}

/** Creates a separate schema on a running server; the role must be allowed to create one. */
export async function scratchSchema(url: string, purpose: Purpose): Promise<string> {
  const schema = `outlive_${purpose}_${randomBytes(4).toString("hex")}`;
  await (await migrationsOf(url, { postgres: { schema } })).up();
  return schema;
}

async function dropSchema(url: string, schema: string): Promise<void> {
  const [{ attach }, { postgres }] = await Promise.all([import("../engine/open.ts"), import("../postgres.ts")]);
  await using engine = await attach(url, { postgres: { schema }, logger: false });
  await engine.transaction(postgres, async (tx) => {
    await tx.query(`DROP SCHEMA "${schema}" CASCADE`);
  });
}

export function scratchFolder(parent: string, keep: boolean, purpose: Purpose): Scratch {
  const folder = mkdtempSync(join(parent, `outlive-${purpose}-`));
  let isKept = keep;
  atEnd(() => {
    if (isKept) process.stderr.write(`Everything is kept in ${folder}\n`);
    else removeFolder(folder);
  });
  return {
    folder,
    get isKept() {
      return isKept;
    },
    keep() {
      isKept = true;
    },
  };
}

const REMOVE_TRIES = 50;
const REMOVE_PAUSE_MS = 20;

/**
 * Processes that were killed a moment ago may still be inside a system call that creates a file here. The pauses are our own: `rmSync` of Node 24
 * tries again without any (measured: eleven tries within 40 ms, although `retryDelay` asked for a second).
 */
function removeFolder(folder: string): void {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (let tries = 1; ; tries++)
    try {
      rmSync(folder, { recursive: true, force: true });
      return;
    } catch (thrown) {
      if (tries === REMOVE_TRIES) throw thrown;
      Atomics.wait(pause, 0, 0, REMOVE_PAUSE_MS);
    }
}
