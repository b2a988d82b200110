// Where a run takes place: a scratch store of its own beside the user's, on the same disk or server, so that what is shown holds for
// that place. Nothing of the user's is opened, and nothing is left, unless it is to be looked at.
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { storeNameOf, type StoreName } from "../backends.ts";
import { atEnd } from "../demo/clean-up.ts";
import { migrationsOf } from "../migrations.ts";

/** A folder that goes with the process, unless it is kept. */
export interface Scratch {
  readonly folder: string;
  readonly isKept: boolean;
  keep(): void;
}

export interface ScratchPlace {
  readonly store: StoreName;
  readonly url: string;
  /** On PostgreSQL; null: the store is a file. */
  readonly schema: string | null;
  /** For the histories, and for a file. */
  readonly scratch: Scratch;
  /** Takes a schema away again, unless it is to be kept. */
  readonly strike: () => Promise<void>;
}

export async function scratchPlace(url: string, keep: boolean): Promise<ScratchPlace> {
  const store = storeNameOf(url);
  if (store === "postgres") return onServer(url, keep);
  const beside = url === "sqlite::memory:" ? tmpdir() : dirname(resolve(url.slice("sqlite:".length)));
  const scratch = scratchFolder(beside, keep);
  return { store, url: `sqlite:${join(scratch.folder, "torture.db")}`, schema: null, scratch, strike: async () => {} };
}

async function onServer(url: string, keep: boolean): Promise<ScratchPlace> {
  const schema = await scratchSchema(url);
  let isLeft = true;
  // A signal ends the process before a server could be asked for anything: then at least the name is said, as with `keep`.
  atEnd(() => {
    if (isLeft) process.stderr.write(`The schema ${schema} is left on the server.\n`);
  });
  const scratch = scratchFolder(tmpdir(), keep);
  return {
    store: "postgres",
    url,
    schema,
    scratch,
    async strike() {
      if (scratch.isKept) return;
      await dropSchema(url, schema);
      isLeft = false;
    },
  };
}

/** A schema of its own on a server that is there; its role must be allowed to create one. */
export async function scratchSchema(url: string): Promise<string> {
  const schema = `outlive_torture_${randomBytes(4).toString("hex")}`;
  await (await migrationsOf(url, { postgres: { schema } }))!.up();
  return schema;
}

async function dropSchema(url: string, schema: string): Promise<void> {
  const [{ attach }, { postgres }] = await Promise.all([import("../open.ts"), import("../postgres.ts")]);
  await using engine = await attach(url, { postgres: { schema }, logger: false });
  await engine.transaction(postgres, async (tx) => {
    await tx.query(`DROP SCHEMA "${schema}" CASCADE`);
  });
}

export function scratchFolder(beside: string, keep: boolean): Scratch {
  const folder = mkdtempSync(join(beside, "outlive-torture-"));
  let isKept = keep;
  atEnd(() => {
    if (isKept) process.stderr.write(`Everything is kept in ${folder}\n`);
    else rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 });
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
