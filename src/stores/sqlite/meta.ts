// What the store keeps about itself in `outlive_meta`: which store it is, and what the latest noteworthy open found.
import type { Opening } from "../../core/integrity.ts";
import type { Database } from "./database.ts";

/** A random id, kept with the rows. It shows whether a write-ahead log next to the file belongs to it. Null: none, or unreadable. */
export function storeIdentity(db: Database): string | null {
  try {
    return read(db, "store");
  } catch {
    return null;
  }
}

/** Gives the file an identity if it has none. The caller has begun a transaction. */
export function ensureIdentity(db: Database, newId: () => string): void {
  db.sql("INSERT INTO outlive_meta (key, value) VALUES ('store', ?) ON CONFLICT DO NOTHING").run(newId());
}

/** One row, the latest: an incident is a death, and this open may have found damage without one. */
export function noteOpening(db: Database, opening: Opening): void {
  db.sql(
    "INSERT INTO outlive_meta (key, value) VALUES ('latest_opening', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
  ).run(JSON.stringify(opening));
}

export function latestOpening(db: Database): Opening | null {
  const text = read(db, "latest_opening");
  return text === null ? null : (JSON.parse(text) as Opening);
}

function read(db: Database, key: string): string | null {
  const row = db.sql("SELECT value FROM outlive_meta WHERE key = ?").get(key) as { value: string } | undefined;
  return row?.value ?? null;
}
