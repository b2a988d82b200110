// A small database with a page of every type, and ways to damage it: which page is what, and whose rows are on it.
import { closeSync, copyFileSync, openSync, readFileSync, writeSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { job } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { slow } from "./jobs.ts";
import type { Place } from "./processes.ts";

export const PAGE = 4_096;

/** A job that no worker runs, and one that runs at once. */
export const note = job<{ n: number; text: string }>("note");
export const after = job<{ n: number }>("after");
after.handle((input) => input.n + 1);
export const damageJobs = [note, after];

export interface Fixture {
  /** The input of every job, by its number. */
  readonly inputs: ReadonlyMap<number, { readonly id: string; readonly input: string }>;
  readonly ledger: number;
}

/** Jobs with small and large inputs, steps and history, a user's table, and free pages. Closed: everything is in the one file. */
export async function furnish(place: Place, jobCount = 400): Promise<Fixture> {
  const engine = await place.engine({ jobs: damageJobs });
  await engine.enqueueMany(
    note,
    Array.from({ length: jobCount }, (_, n) => ({
      n,
      text: (n % 40 === 7 ? "long " : "short ").repeat(n % 40 === 7 ? 2_000 : 10),
    })),
    { each: (_, n) => ({ id: `note-${n}` }) },
  );
  for (const n of [3, 5, 8]) await engine.cancel(`note-${n}`);
  await engine.transaction(sqlite, (tx) => {
    tx.exec("CREATE TABLE ledger (n INTEGER, what TEXT)");
    for (let n = 0; n < 300; n++) tx.run("INSERT INTO ledger (n, what) VALUES (?, ?)", n, `entry ${n} `.repeat(4));
    tx.exec("CREATE TABLE bulk (n, what)");
    for (let n = 0; n < 100; n++) tx.run("INSERT INTO bulk VALUES (?, ?)", n, "x".repeat(3_000));
  });
  await engine.transaction(sqlite, (tx) => tx.exec("DROP TABLE bulk"));
  await engine.close();
  return readFixture(place.path);
}

export function readFixture(path: string): Fixture {
  const db = new DatabaseSync(path, { readOnly: true });
  const rows = db.prepare("SELECT seq, id, input FROM outlive_jobs").all() as {
    seq: number;
    id: string;
    input: string;
  }[];
  const { n: ledger } = db.prepare("SELECT count(*) AS n FROM ledger").get() as { n: number };
  db.close();
  return { inputs: new Map(rows.map(({ seq, id, input }) => [seq, { id, input }])), ledger };
}

/** A file with jobs of which an index says something else than their table. Closed. */
export async function disagreeing(place: Place): Promise<void> {
  const engine = await place.engine();
  await engine.enqueueMany(
    slow,
    Array.from({ length: 300 }, (_, ms) => ({ ms })),
  );
  await engine.close();
  disagree(place.path);
}

/** A page of this tree and type ("internal", "leaf", "overflow"), in the middle of them. */
export function pageOf(path: string, tree: string, type: string): number {
  const db = new DatabaseSync(path, { readOnly: true });
  const rows = db
    .prepare("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY pageno")
    .all(tree, type) as {
    pageno: number;
  }[];
  db.close();
  const row = rows[Math.floor(rows.length / 2)];
  if (!row) throw new Error(`there is no ${type} page of ${tree}`);
  return row.pageno;
}

/** The first trunk of the list of free pages, and a page that it lists. */
export function freePages(path: string): { readonly trunk: number; readonly leaf: number } {
  const bytes = readFileSync(path);
  const trunk = bytes.readUInt32BE(32);
  return { trunk, leaf: bytes.readUInt32BE((trunk - 1) * PAGE + 8) };
}

/** The numbers of the rows on a leaf of a table. */
export function rowsOn(path: string, page: number): number[] {
  const bytes = readFileSync(path).subarray((page - 1) * PAGE, page * PAGE);
  return Array.from({ length: bytes.readUInt16BE(3) }, (_, n) => {
    let at = bytes.readUInt16BE(8 + 2 * n);
    while (bytes[at++]! > 0x7f);
    let rowid = 0;
    for (;;) {
      const byte = bytes[at++]!;
      rowid = rowid * 128 + (byte & 0x7f);
      if (byte < 0x80) return rowid;
    }
  });
}

export function copyOf(from: Place, to: Place): void {
  copyFileSync(from.path, to.path);
}

export function flip(path: string, page: number, offset: number, bit: number): void {
  const at = (page - 1) * PAGE + offset;
  const byte = readFileSync(path)[at]!;
  overwrite(path, at, Buffer.of(byte ^ (1 << bit)));
}

export function zero(path: string, page: number): void {
  overwrite(path, (page - 1) * PAGE, Buffer.alloc(PAGE));
}

export function overwrite(path: string, at: number, bytes: Buffer): void {
  const file = openSync(path, "r+");
  writeSync(file, bytes, 0, bytes.length, at);
  closeSync(file);
}

/** Rows that an index does not know of, as a bug in a file system would leave it. */
export function disagree(path: string): void {
  const db = new DatabaseSync(path, { defensive: false });
  db.exec("PRAGMA writable_schema = ON");
  db.exec("UPDATE sqlite_schema SET sql = sql || ' AND seq > 100' WHERE name = 'outlive_jobs_ready'");
  db.close();
  const other = new DatabaseSync(path, { defensive: false });
  other.exec("REINDEX outlive_jobs_ready");
  other.exec("PRAGMA writable_schema = ON");
  other.exec("UPDATE sqlite_schema SET sql = replace(sql, ' AND seq > 100', '') WHERE name = 'outlive_jobs_ready'");
  other.close();
}
