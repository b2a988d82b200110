// Rows that contradict each other.
import type { Inconsistency } from "../../core/integrity.ts";
import type { Database } from "./database.ts";

export function findInconsistencies(_db: Database, strayLocks: readonly string[]): Inconsistency[] {
  if (strayLocks.length === 0) return [];
  const detail = `${strayLocks.length} lock file(s) belong to no worker.`;
  return [{ what: "lock-without-worker", detail, names: strayLocks.slice(0, 20), count: strayLocks.length }];
}
