// The latest open that found something about the store itself, as one row: an open without a death is no incident.
import type { Opening } from "../../core/integrity.ts";
import type { Database } from "./database.ts";

export function noteOpening(db: Database, opening: Opening): void {
  db.sql(
    "INSERT INTO outlive_meta (key, value) VALUES ('latest_opening', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
  ).run(JSON.stringify(opening));
}

export function latestOpening(db: Database): Opening | null {
  const row = db.sql("SELECT value FROM outlive_meta WHERE key = 'latest_opening'").get() as
    | { value: string }
    | undefined;
  return row ? (JSON.parse(row.value) as Opening) : null;
}
