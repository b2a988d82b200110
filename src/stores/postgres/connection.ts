// The one file that imports `pg`, and only when a connection is asked for. Our own SQL is written with the schema `outlive.`; here
// it gets the real name, and a name of its own as a prepared statement. Whole numbers come back as numbers.
import type * as pgTypes from "pg";
import type { Pool, PoolClient, PoolConfig, QueryArrayConfig, QueryConfig } from "pg";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { isTransient, mayHaveCommitted } from "./errors.ts";
import { quotedSchema } from "./schema.ts";

/** What a statement may be given. Arrays go as PostgreSQL writes them (see `list` and `texts`). */
export type Value = string | number | boolean | null;

/** Runs our own statements, which name the schema `outlive.`. */
export interface Session {
  rows<R>(sql: string, values?: readonly Value[]): Promise<R[]>;
  /** Rows as arrays: less work where they are many. */
  arrays<R extends readonly unknown[]>(sql: string, values?: readonly Value[]): Promise<R[]>;
  /** Answers how many rows were changed. */
  run(sql: string, values?: readonly Value[]): Promise<number>;
}

/** A client of `pg` as far as we and users' query builders need it. */
export interface PostgresClient {
  // oxlint-disable-next-line typescript/no-explicit-any -- a row is whatever the caller's SQL says
  query(text: string, values?: unknown[]): Promise<{ rows: any[]; rowCount: number | null }>;
}

export interface Transaction extends Session {
  /** The session's client, for SQL that is not ours. */
  readonly client: PostgresClient;
}

export interface ConnectionOptions {
  readonly url: string;
  readonly schema: string;
  /** Sessions that work at the same time. */
  readonly max?: number;
}

/** The COMMIT was sent and its answer never came: it may have happened. */
export class OutcomeUnknown extends Error {
  override readonly name = "OutcomeUnknown";
}

/** How often a transaction is tried again that lost against another (a deadlock, a serialization failure). */
const RETRIES = 10;

// Plans are kept with their statements, and the first ones are made while the tables are empty: without this they would read the
// whole table for ever. JIT compiles what such costs make look expensive.
const SETTINGS =
  "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

export class Connection implements Session {
  readonly schema: string;
  readonly #pool: Pool;
  readonly #statements: Statements;
  #closed: Promise<void> | undefined;

  private constructor(pool: Pool, schema: string, types: Types) {
    this.#pool = pool;
    this.schema = schema;
    this.#statements = new Statements(schema, types, true);
  }

  static async open({ url, schema, max = 4 }: ConnectionOptions): Promise<Connection> {
    const pg = await driver();
    const config: PoolConfig = {
      connectionString: url,
      max,
      keepAlive: true,
      application_name: "outlive",
      idleTimeoutMillis: 0,
    };
    const pool = new pg.Pool(config);
    // First in the queue of the session; if it fails, so does whatever comes after it.
    pool.on("connect", (client) => void client.query(SETTINGS).catch(() => {}));
    // An idle session that breaks is replaced by the pool; the next query says what is wrong.
    pool.on("error", () => {});
    return new Connection(pool, schema, wholeNumbers(pg));
  }

  rows<R>(sql: string, values?: readonly Value[]): Promise<R[]> {
    return this.#statement((session) => session.rows<R>(sql, values));
  }

  arrays<R extends readonly unknown[]>(sql: string, values?: readonly Value[]): Promise<R[]> {
    return this.#statement((session) => session.arrays<R>(sql, values));
  }

  run(sql: string, values?: readonly Value[]): Promise<number> {
    return this.#statement((session) => session.run(sql, values));
  }

  /** All of `work` or nothing. It runs again if it lost against another transaction, so it must do nothing but SQL. */
  transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return untilItWins(() => this.once(work));
  }

  /** As `transaction`, but never run twice: for the user's own code. Throws `OutcomeUnknown` if the answer to COMMIT was lost. */
  once<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.#lend(async (client) => {
      const session = new ClientSession(client, this.#statements);
      await client.query("BEGIN");
      let value: T;
      try {
        value = await work(session);
      } catch (thrown) {
        // If that fails too, the session is broken, and the server rolls back by itself.
        await client.query("ROLLBACK").catch(() => {});
        throw thrown;
      }
      await commit(client);
      return value;
    });
  }

  /** A session of its own, outside the pool's limit, for LISTEN; the caller ends it. */
  async dedicated(): Promise<PoolClient> {
    return this.#pool.connect();
  }

  /** Ends every session, after what is under way. */
  close(): Promise<void> {
    this.#closed ??= this.#pool.end();
    return this.#closed;
  }

  #statement<T>(work: (session: Session) => Promise<T>): Promise<T> {
    return untilItWins(() => this.#lend((client) => work(new ClientSession(client, this.#statements))));
  }

  async #lend<T>(work: (client: PoolClient) => Promise<T>): Promise<T> {
    if (this.#closed) throw closed();
    const client = await this.#pool.connect();
    let broken = false;
    const noticed = (): void => void (broken = true);
    client.on("error", noticed);
    try {
      return await work(client);
    } catch (thrown) {
      broken ||= mayHaveCommitted(thrown);
      throw thrown;
    } finally {
      client.off("error", noticed);
      client.release(broken);
    }
  }
}

/** Our statements on a client that is not ours, unprepared: in the user's own transaction. */
export async function sessionOn(client: PostgresClient, schema: string): Promise<Session> {
  const pg = await driver();
  return new ClientSession(client as PoolClient, new Statements(schema, wholeNumbers(pg), false));
}

async function untilItWins<T>(work: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await work();
    } catch (thrown) {
      if (tries >= RETRIES || !isTransient(thrown)) throw thrown;
    }
  }
}

async function commit(client: PoolClient): Promise<void> {
  let command: string;
  try {
    ({ command } = await client.query("COMMIT"));
  } catch (thrown) {
    if (mayHaveCommitted(thrown)) throw new OutcomeUnknown("the answer to COMMIT was lost", { cause: thrown });
    throw thrown;
  }
  // PostgreSQL answers so when a statement had failed before and somebody swallowed its error.
  if (command !== "COMMIT") throw rolledBack();
}

class ClientSession implements Transaction {
  readonly client: PoolClient;
  readonly #statements: Statements;

  constructor(client: PoolClient, statements: Statements) {
    this.client = client;
    this.#statements = statements;
  }

  async rows<R>(sql: string, values: readonly Value[] = []): Promise<R[]> {
    return (await this.client.query(this.#statements.query(sql, values))).rows as R[];
  }

  async arrays<R extends readonly unknown[]>(sql: string, values: readonly Value[] = []): Promise<R[]> {
    const query: QueryArrayConfig = { ...this.#statements.query(sql, values), rowMode: "array" };
    return (await this.client.query(query)).rows as unknown as R[];
  }

  async run(sql: string, values: readonly Value[] = []): Promise<number> {
    return (await this.client.query(this.#statements.query(sql, values))).rowCount ?? 0;
  }
}

type Types = NonNullable<QueryConfig["types"]>;

/** Statement names are the same in the whole process: two stores may share a user's pool. */
const names = new Map<string, string>();

/** Our texts with the real schema, each made once. */
class Statements {
  readonly #schema: string;
  readonly #types: Types;
  readonly #prepared: boolean;
  readonly #made = new Map<string, Pick<QueryConfig, "name" | "text" | "types">>();

  constructor(schema: string, types: Types, prepared: boolean) {
    this.#schema = `${quotedSchema(schema)}.`;
    this.#types = types;
    this.#prepared = prepared;
  }

  query(sql: string, values: readonly Value[]): QueryConfig {
    return { ...(this.#made.get(sql) ?? this.#make(sql)), values: values as unknown[] };
  }

  #make(sql: string): Pick<QueryConfig, "name" | "text" | "types"> {
    const text = sql.replaceAll(/\boutlive\./g, this.#schema);
    let name = names.get(text);
    if (name === undefined) {
      name = `outlive_${names.size + 1}`;
      names.set(text, name);
    }
    const made = { text, types: this.#types, ...(this.#prepared ? { name } : {}) };
    this.#made.set(sql, made);
    return made;
  }
}

type Driver = Pick<typeof pgTypes, "Pool" | "types">;

async function driver(): Promise<Driver> {
  try {
    const module = await import("pg");
    return module.default;
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.storeUnusable,
      "The PostgreSQL store needs the package `pg`, which is not installed.",
      "Run `npm install pg` in this program.",
      {},
      { cause: thrown },
    );
  }
}

const INT8 = 20;

/** bigint as number: ours are instants in ms, counts and numbers of rows, all far below 2^53. */
function wholeNumbers(pg: Driver): Types {
  return {
    getTypeParser: (oid: number, format?: "text" | "binary") =>
      oid === INT8 ? Number : (pg.types.getTypeParser(oid, format) as never),
  };
}

/** An array of numbers as PostgreSQL reads it. */
export function list(values: readonly (number | boolean | null)[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) text += i === 0 ? (values[i] ?? "null") : `,${values[i] ?? "null"}`;
  return `${text}}`;
}

/** An array of texts as PostgreSQL reads it. */
export function texts(values: readonly (string | null)[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (i > 0) text += ",";
    text += value === null || value === undefined ? "null" : `"${value.replaceAll(/["\\]/g, "\\$&")}"`;
  }
  return `${text}}`;
}

function closed(): OutliveError {
  return new OutliveError(ErrorCode.closed, "The store is closed.", "Open it again to go on.");
}

export function rolledBack(): OutliveError {
  return new OutliveError(
    ErrorCode.commitRolledBack,
    "The transaction had failed before its end and was rolled back by PostgreSQL.",
    "Nothing was written. Let errors of your statements out of the callback, or catch them behind a SAVEPOINT.",
  );
}
