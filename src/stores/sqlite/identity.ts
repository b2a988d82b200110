// Which store a file is: an id of chance, kept with the rows. It tells whether a write-ahead log that lies beside the file is its own.
import type { Database } from "./database.ts";

/** Null: the file has none, or its tables can't be read. */
export function storeIdentity(db: Database): string | null {
  try {
    const row = db.sql("SELECT value FROM outlive_meta WHERE key = 'store'").get() as { value: string } | undefined;
    return row?.value ?? null;
  } catch {
    return null;
  }
}

/** Gives the file an identity if it has none. In a transaction of the caller's. */
export function ensureIdentity(db: Database, newId: () => string): void {
  db.sql("INSERT INTO outlive_meta (key, value) VALUES ('store', ?) ON CONFLICT DO NOTHING").run(newId());
}
