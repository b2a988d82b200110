// What the file says of itself: its settings that durability hangs on, its size, how its writes are grouped, and who stands in our
// way. Reads only.
import type { LockHolder, StoreHealth } from "../../core/store.ts";
import type { Database } from "./database.ts";
import { walBytes } from "./doctor/index.ts";
import { lockHolder } from "./lock-holder.ts";
import type { Writer } from "./writer.ts";

export function storeHealth(db: Database, writer: Writer): StoreHealth {
  const pragma = (name: string): string | number => Object.values(db.sql(`PRAGMA ${name}`).get()!)[0] as never;
  const bytes = Number(pragma("page_count")) * Number(pragma("page_size"));
  const durability = pragma("synchronous") === 2 ? "full" : "relaxed";
  const detail = { path: db.path, journalMode: pragma("journal_mode"), durability, bytes };
  const { lastFailure, lastGroup, groupCount, operationCount } = writer;
  const groups = { lastGroupCommit: lastGroup, groupCommits: groupCount, groupedWrites: operationCount };
  const failure = lastFailure === null ? {} : { lastFailure };
  return { ok: lastFailure === null, detail: { ...detail, walBytes: walBytes(db.path), ...groups, ...failure } };
}

/** Which process holds the write lock just now; null: none, or this host does not tell. */
export function blocker(db: Database): LockHolder | null {
  const holder = lockHolder(db.path);
  if (!holder) return null;
  const { data_version: version } = db.sql("PRAGMA data_version").get() as { data_version: number };
  return { ...holder, version };
}
