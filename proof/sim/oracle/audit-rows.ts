// The form of every sentence of the audit: a query that must find nothing.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { demand } from "./violation.ts";

export function noRows(db: Database, sql: string, what: string): void {
  const found = db.sql(sql).all();
  demand(found.length === 0, () => `${what}: ${JSON.stringify(found.slice(0, 3))}`);
}
