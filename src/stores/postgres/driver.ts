// The one file that imports `pg`, and only when a connection is asked for. Whole numbers come back as numbers.
import type * as pgTypes from "pg";
import type { QueryConfig } from "pg";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { quotedSchema } from "./address.ts";
import type { Value } from "./direct-session.ts";

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

// Our texts as the server gets them: the real name of the schema in place of `outlive.`, a name as a prepared statement, and an end to
// waiting for the answer. No types of `pg` here.

/** No statement of our own takes longer on a server that answers at all. */
const ANSWER_MS = 60_000;

/** The client gives up on an answer that does not come; the session is ended then. */
export function timed(text: string, answerMs = ANSWER_MS): { text: string; query_timeout: number } {
  return { text, query_timeout: answerMs };
}

/** Statement names are the same in the whole process: two stores may share a user's pool. */
const names = new Map<string, string>();

interface Made<Types> {
  readonly text: string;
  readonly types: Types;
  readonly query_timeout: number;
  readonly name?: string;
}

/** Each text is made once. `Types`: how the driver reads what comes back. */
export class Statements<Types> {
  readonly #schema: string;
  readonly #types: Types;
  readonly #prepared: boolean;
  readonly #made = new Map<string, Made<Types>>();

  constructor(schema: string, types: Types, prepared: boolean) {
    this.#schema = `${quotedSchema(schema)}.`;
    this.#types = types;
    this.#prepared = prepared;
  }

  query(sql: string, values: readonly Value[]): Made<Types> & { values: unknown[] } {
    return { ...(this.#made.get(sql) ?? this.#make(sql)), values: values as unknown[] };
  }

  #make(sql: string): Made<Types> {
    const text = sql.replaceAll(/\boutlive\./g, this.#schema);
    let name = names.get(text);
    if (name === undefined) {
      name = `outlive_${names.size + 1}`;
      names.set(text, name);
    }
    const made = { ...timed(text), types: this.#types, ...(this.#prepared ? { name } : {}) };
    this.#made.set(sql, made);
    return made;
  }
}
