// Sessions with the server, lent one at a time. Our own SQL is written with the schema `outlive.`; here it gets the real name, and a
// name of its own as a prepared statement.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { ClientSettings, PostgresPool } from "./address.ts";
import { closed } from "../closed.ts";
import {
  type Client,
  driver,
  type Pool,
  type PoolClient,
  type PoolConfig,
  type QueryArrayConfig,
  type Types,
  wholeNumbers,
} from "./driver.ts";
import { inOurWords, isTransient, mayHaveCommitted } from "./errors.ts";
import { list, type PostgresClient, type Session, texts, type Transaction, type Value } from "./session.ts";
import { Statements, timed } from "./statements.ts";

export { list, type PostgresClient, type Session, texts, type Transaction, type Value };

export interface ConnectionOptions {
  readonly schema: string;
  /** The server's address, or what a client of `pg` is made of, or the user's own pool. */
  readonly url?: string;
  readonly client?: ClientSettings;
  readonly pool?: PostgresPool | null;
  /** Sessions that work at the same time. */
  readonly max?: number;
  readonly durability?: "full" | "relaxed";
  /** Everything here is upkeep: the server ends what takes longer than it may, so that nobody waits for it for ever. */
  readonly maintenance?: boolean;
}

/** What is known of the server when somebody has come to it. */
export interface ServerGreeting {
  /** As `server_version_num` has it: 150004. */
  readonly version: number;
  /** A pooler answers in the server's place: nothing may be kept in a session. */
  readonly pooled: boolean;
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

/** A server that forgets acknowledged commits is told not to, for us. */
const DURABLE =
  "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";
const UPKEEP =
  "SET statement_timeout = '30s'; SET lock_timeout = '2s'; SET idle_in_transaction_session_timeout = '30s'";
/** The same for one transaction: behind a pooler and on the user's own pool no session is ours to set. One round trip, as BEGIN is. */
const BEGIN_UPKEEP = `BEGIN; ${UPKEEP.replaceAll("SET ", "SET LOCAL ")}`;
/** Of a callback of `commit` that never ends. */
const IDLE = "SET idle_in_transaction_session_timeout = '5min'";

/** How long one waits for a free session of the pool, and for a new one. */
const SESSION_MS = 10_000;
/** A session that nobody needs is given back after this long. */
const UNUSED_MS = 60_000;

export class Connection implements Session {
  readonly schema: string;
  readonly #pool: Pool;
  /** How our own sessions are; null: the pool is the user's. */
  readonly #ours: ConnectionOptions | null;
  readonly #ready = new WeakSet<PoolClient>();
  readonly #types: Types;
  #statements: Statements<Types>;
  #closed: Promise<void> | undefined;

  private constructor(pool: Pool, ours: ConnectionOptions | null, schema: string, types: Types) {
    this.#pool = pool;
    this.#ours = ours;
    this.schema = schema;
    this.#types = types;
    // On somebody else's pool nothing is left behind in a session: neither prepared statements nor settings.
    this.#statements = new Statements(schema, types, ours !== null);
  }

  static async open(options: ConnectionOptions): Promise<Connection> {
    const { schema, url, client = { connectionString: url }, pool: given, max = 4 } = options;
    const pg = await driver();
    if (given) return new Connection(given as Pool, null, schema, wholeNumbers(pg));
    const config: PoolConfig = {
      application_name: "outlive",
      keepAlive: true,
      ...client,
      max,
      connectionTimeoutMillis: SESSION_MS,
      idleTimeoutMillis: UNUSED_MS,
    };
    const connection = new Connection(new pg.Pool(config), options, schema, wholeNumbers(pg));
    // An idle session that breaks is replaced by the pool; the next query says what is wrong.
    connection.#pool.on("error", () => {});
    return connection;
  }

  /** A session is made ours once, unless a pooler would hand it to somebody else with what we left in it. */
  async #prepare(client: PoolClient, { durability = "full", maintenance = false }: ConnectionOptions): Promise<void> {
    if ((await greetingOf(client)).pooled) this.#statements = new Statements(this.schema, this.#types, false);
    else {
      const commits = durability === "full" ? DURABLE : "SET synchronous_commit = off";
      await client.query(timed(`${SETTINGS}; ${commits}; ${maintenance ? UPKEEP : IDLE}`));
    }
    this.#ready.add(client);
  }

  greet(): Promise<ServerGreeting> {
    return this.#lend(greetingOf);
  }

  /** One session for as long as `work` takes. */
  lend<T>(work: (client: PostgresClient) => Promise<T>): Promise<T> {
    return this.#lend(work);
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
    return untilItWins(() => this.#once("BEGIN", work));
  }

  /** As `transaction`, for upkeep: the server ends it when it waits or works for longer than upkeep may. */
  maintain<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return untilItWins(() => this.#once(BEGIN_UPKEEP, work));
  }

  /** As `transaction`, but never run twice: for the user's own code. Throws `OutcomeUnknown` if the answer to COMMIT was lost. */
  once<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.#once("BEGIN", work);
  }

  #once<T>(begin: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.#lend(async (client) => {
      const session = new ClientSession(client, this.#statements);
      await client.query(timed(begin));
      let value: T;
      try {
        value = await work(session);
      } catch (thrown) {
        // If that fails too, the session is broken, and the server rolls back by itself.
        await client.query(timed("ROLLBACK")).catch(() => {});
        throw thrown;
      }
      await commit(client);
      return value;
    });
  }

  /** Ends every session, after what is under way. The user's own pool is the user's to end. */
  close(): Promise<void> {
    this.#closed ??= this.#ours ? this.#pool.end() : Promise.resolve();
    return this.#closed;
  }

  #statement<T>(work: (session: Session) => Promise<T>): Promise<T> {
    return untilItWins(() => this.#lend((client) => work(new ClientSession(client, this.#statements))));
  }

  async #lend<T>(work: (client: PoolClient) => Promise<T>): Promise<T> {
    if (this.#closed) throw closed();
    let broken = false;
    const noticed = (): void => void (broken = true);
    const client = await this.#client(noticed);
    try {
      if (this.#ours && !this.#ready.has(client)) await this.#prepare(client, this.#ours);
      return await work(client);
    } catch (thrown) {
      broken ||= mayHaveCommitted(thrown);
      throw thrown;
    } finally {
      client.off("error", noticed);
      client.release(broken);
    }
  }

  /**
   * By callback, so that somebody listens from the moment at which the pool does not any more: the end of a session may be in the same
   * packet as its greeting (who was frozen meanwhile reads both at once), and an error that nobody hears ends the process.
   */
  #client(noticed: () => void): Promise<PoolClient> {
    return new Promise((resolve, reject) =>
      this.#pool.connect((error, client) => {
        if (!client) return reject(error!);
        client.on("error", noticed);
        resolve(client);
      }),
    );
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

async function greetingOf(client: PoolClient): Promise<ServerGreeting> {
  const query = timed("SELECT pg_backend_pid() AS pid, current_setting('server_version_num')::int AS version");
  const [row] = (await client.query<{ pid: number; version: number }>(query)).rows;
  const { processID } = client as { processID?: number | null };
  return { version: row!.version, pooled: typeof processID === "number" && processID !== row!.pid };
}

/** One connected client, outside of any pool. */
export async function newClient(settings: ClientSettings): Promise<Client> {
  const pg = await driver();
  const client = new pg.Client(settings);
  // Whoever uses it hears of its end; without a listener an error ends the process.
  client.on("error", () => {});
  try {
    await client.connect();
  } catch (thrown) {
    void client.end().catch(() => {});
    throw inOurWords("connecting", thrown);
  }
  return client;
}

async function commit(client: PoolClient): Promise<void> {
  let command: string;
  try {
    ({ command } = await client.query(timed("COMMIT")));
  } catch (thrown) {
    if (mayHaveCommitted(thrown)) throw new OutcomeUnknown("the answer to COMMIT was lost", { cause: thrown });
    throw thrown;
  }
  // PostgreSQL answers so when a statement had failed before and somebody swallowed its error.
  if (command !== "COMMIT") throw rolledBack();
}

class ClientSession implements Transaction {
  readonly client: PoolClient;
  readonly #statements: Statements<Types>;

  constructor(client: PoolClient, statements: Statements<Types>) {
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

export function rolledBack(): OutliveError {
  return new OutliveError(
    ErrorCode.commitRolledBack,
    "The transaction had failed before its end and was rolled back by PostgreSQL.",
    "Nothing was written. Let errors of your statements out of the callback, or catch them behind a SAVEPOINT.",
  );
}
