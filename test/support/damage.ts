// Damage by hand, for tests: bytes of a page that SQLite wrote. Nothing in this process may have the file open meanwhile.
import assert from "node:assert/strict";
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";

/** Where the root page of a table or index is, and how large pages are. The log is flushed first: what is damaged is the file. */
function pageOf(path: string, name: string): { readonly at: number; readonly size: number } {
  const db = new DatabaseSync(path);
  try {
    db.exec("PRAGMA wal_checkpoint(TRUNCATE)");
    const row = db.prepare("SELECT rootpage FROM sqlite_schema WHERE name = ?").get(name);
    assert.ok(row, `there is no ${name}`);
    const { page_size: size } = db.prepare("PRAGMA page_size").get() as { page_size: number };
    return { at: (Number(row["rootpage"]) - 1) * size, size };
  } finally {
    db.close();
  }
}

/** The root page of a table or index becomes zeros: what hangs on it can't be read any more. */
export function zeroRoot(path: string, name: string): void {
  const { at, size } = pageOf(path, name);
  overwrite(path, at, Buffer.alloc(size));
}

/** In an index, `text` becomes another: the index disagrees with its table, which is whole. */
export function garbleIndex(path: string, index: string, text: string): void {
  const { at, size } = pageOf(path, index);
  const page = Buffer.alloc(size);
  const file = openSync(path, "r");
  readSync(file, page, 0, size, at);
  closeSync(file);
  const found = page.indexOf(text);
  assert.ok(found >= 0, `${text} is not on the root page of ${index}`);
  overwrite(path, at + found + text.length - 1, Buffer.from("~"));
}

export function overwrite(path: string, at: number, bytes: Buffer): void {
  const file = openSync(path, "r+");
  writeSync(file, bytes, 0, bytes.length, at);
  closeSync(file);
}
