// Where restores take place: a file, or a schema on a server of the rig's own.
import { join } from "node:path";
import { scratchSchema } from "../../../src/torture/scratch-store.ts";
import { startServer } from "../faults/server.ts";
import { type Copies, copiesOfFile, copiesOfSchema } from "./copies.ts";

export interface ReplaceableStore {
  readonly url: string;
  /** On PostgreSQL; null: the store is a file. */
  readonly schema: string | null;
  readonly copies: Copies;
  /** How long after a restore a process from before may still be acknowledged what is not in the restored store. */
  readonly noticeMs: number;
  /** Puts the store where it stays. */
  readonly keepIn: (folder: string) => void | Promise<void>;
}

export const STORES: Readonly<Record<string, (folder: string) => Promise<ReplaceableStore>>> = {
  sqlite: onFile,
  postgres: onServer,
};

/** A process that has the old file open writes into it until it looks at the name again. */
async function onFile(folder: string): Promise<ReplaceableStore> {
  const file = join(folder, "torture.db");
  return {
    url: `sqlite:${file}`,
    schema: null,
    copies: copiesOfFile(file, folder),
    noticeMs: 2_000,
    keepIn: () => {},
  };
}

/** The restore is one transaction: what is acknowledged after it is in what it made. */
async function onServer(folder: string): Promise<ReplaceableStore> {
  const server = await startServer(null);
  const schema = await scratchSchema(server.url, "torture");
  return {
    url: server.url,
    schema,
    copies: copiesOfSchema(server.url, schema, folder, (name) => server.program(name)),
    noticeMs: 0,
    keepIn: (kept) => server.copyTo(kept, schema),
  };
}
