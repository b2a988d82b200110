// Creating the SQLite store, or bringing it up to date, without working on it: for a client that is the first to start, and for
// `outlive migrate up`. It goes the way of `open`, so the start lock keeps it apart from other openings and from a repair.
import type { Clock, Random } from "../../core/clock.ts";
import { processIdentity } from "../../platform/identity.ts";
import type { DatabaseOptions } from "./database.ts";
import { openSqlite } from "./open.ts";

export async function createSqlite(
  deps: { readonly clock: Clock; readonly random: Random },
  options: DatabaseOptions,
): Promise<void> {
  const events = { emit: () => {}, has: () => false };
  const { bootId } = processIdentity();
  const startUp = { integrityCheck: false, repair: "off" } as const;
  const backend = await openSqlite({ ...deps, events, bootId }, options, { startUp });
  await backend.opened?.(true);
  await backend.close();
}
