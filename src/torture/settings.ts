// What every run has in common: short times, so that a death is seen while you watch, and few jobs per worker.
import type { Duration } from "../index.ts";

export const HEARTBEAT: Duration = "250ms";
export const LEASE: Duration = "2s";
export const LEASE_MS = 2_000;

/** Jobs that one worker runs at once. */
export const CONCURRENCY = 8;

/** The options of `open` that name the schema; null: the store is a file. */
export function storeOptions(schema: string | null): { readonly postgres?: { readonly schema: string } } {
  return schema === null ? {} : { postgres: { schema } };
}
