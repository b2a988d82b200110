// The one file that imports `pg`, and only when a connection is asked for. Whole numbers come back as numbers.
import type * as pgTypes from "pg";
import type { QueryConfig } from "pg";
import { ErrorCode, OutliveError } from "../../core/errors.ts";

export type { Client, Pool, PoolClient, PoolConfig, QueryArrayConfig } from "pg";

/** How the driver reads what comes back. */
export type Types = NonNullable<QueryConfig["types"]>;

type Driver = Pick<typeof pgTypes, "Client" | "Pool" | "types">;

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

const INT8 = 20;

/** bigint as number: ours are instants in ms, counts and numbers of rows, all far below 2^53. */
export function wholeNumbers(pg: Driver): Types {
  return {
    getTypeParser: (oid: number, format?: "text" | "binary") =>
      oid === INT8 ? Number : (pg.types.getTypeParser(oid, format) as never),
  };
}
