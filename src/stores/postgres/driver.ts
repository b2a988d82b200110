// The only file that imports `pg`, and only when a connection is requested.
import type * as pgTypes from "pg";
import type { QueryConfig } from "pg";
import { ErrorCode, OutliveError } from "../../job/errors.ts";

export type { Client, Pool, PoolClient, PoolConfig } from "pg";

/** How the driver parses result values. */
export type Types = NonNullable<QueryConfig["types"]>;

export type Driver = Pick<typeof pgTypes, "Client" | "Pool" | "types">;

export async function driver(): Promise<Driver> {
  try {
    const module = await import("pg");
    return module.default;
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "The PostgreSQL store needs the package `pg`, which is not installed.",
      "Run `npm install pg` in this program.",
      {},
      { cause: thrown },
    );
  }
}
