// Sessions with the server, lent to one user at a time. Our own SQL is written with the schema `outlive.`; this file
// substitutes the real name and names each prepared statement. Every wait for a session has a limit.
import { defaultOf } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { CommitControl } from "../../worker/run.ts";
import { closed } from "../observed.ts";
import type { ClientSettings, PostgresPool } from "./address.ts";
import { type Client, type Driver, driver, type Pool, type PoolClient, type PoolConfig, type Types } from "./driver.ts";
import { wrapError, isTransient, mayHaveCommitted, poolTimedOut, sqlState } from "./errors.ts";
import {
  beginText,
  LOCAL_DURABLE,
  LOCAL_PLANS,
  NO_SESSION_HINT,
  ownName,
  SessionGate,
  sessionSettings,
  type TransactionKind,
  untilInterrupted,
  type WaitLimit,
} from "./session-gate.ts";
import {
  type PostgresClient,
  type Session,
  Statements,
  timed,
  type Transaction,
  type UserTransaction,
  type Value,
} from "./statements.ts";

export interface ConnectionOptions {
  readonly schema: string;
  /** The server's address, the settings of a `pg` client, or the user's own pool. */
  readonly url?: string;
  readonly client?: ClientSettings;
  readonly pool?: PostgresPool | null;
  /** The maximum number of sessions in use at the same time. */
  readonly max?: number;
  readonly durability?: "full" | "relaxed";
  /**
   * Everything here is upkeep: the server ends statements that exceed their limit, so that nothing waits for them
   * forever.
   */
  readonly maintenance?: boolean;
}

/** What is known about the server after connecting to it. */
export interface ServerGreeting {
  /** The server's `server_version_num`: 150004. */
  readonly version: number;
  /** A pooler sits in front of the server: nothing may be kept in a session. */
  readonly pooled: boolean;
  /**
   * With this session's settings, an acknowledged commit may be lost in a server crash (`synchronous_commit = off`).
   */
  readonly forgets: boolean;
}

/** The COMMIT was sent and its response never came: it may have happened. */
export class OutcomeUnknown extends Error {
  override readonly name = "OutcomeUnknown";
}

/** The session ended under a transaction: whether it was committed is unknown. */
export function isSessionLost(thrown: unknown): boolean {
  return thrown instanceof OutcomeUnknown || mayHaveCommitted(thrown);
}

/** How often a transaction is retried after it lost against another (a deadlock, a serialization failure). */
const RETRIES = 10;

/** How long to wait for a free session of the pool, and for a new one. A commit waits as long as its attempt may. */
const SESSION_MS = 10_000;
/** A session that can't roll back within this time is dropped. */
const ROLLBACK_MS = 5_000;
/** Between two tries for a session when the pool itself times out sooner than a commit does. */
const TRY_AGAIN_MS = 50;
/** An unused session is closed after this long. */
const UNUSED_MS = 60_000;

/** Ends the session in which that very transaction is still open, or, if its number is null, about to begin, and waits until it is gone. */
const END_SESSION = `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
  WHERE pid = $1 AND ($2::text IS NULL OR backend_xid = $2::text::xid8::xid)`;

/** A statement with more characters of parameters than this is not sent in one message with BEGIN or COMMIT: there they are a part of its text. */
const MAX_IN_TEXT = 32_768;

/** The server has ended a statement by its limit, or by the one for locks. */
const TOO_LATE: ReadonlySet<string> = new Set(["57014", "55P03"]);

export class Connection implements Session {
  readonly schema: string;
  readonly #pool: Pool;
  readonly #isOurs: boolean;
  readonly #durability: "full" | "relaxed";
  readonly #maintenance: boolean;
  readonly #name: string | null;
  readonly #gate: SessionGate;
  readonly #ready = new WeakSet<PoolClient>();
  /** What was made ready to be sent in one message with BEGIN or COMMIT. */
  readonly #executable = new WeakMap<PoolClient, Set<string>>();
  readonly #types: Types;
  #statements: Statements<Types>;
  /** Nothing may be left in a session, because the pool is the user's or a pooler sits in between. */
  #borrowed: boolean;
  /**
   * The borrowed sessions may lose acknowledged commits, and `durability` forbids that: each statement then becomes a
   * transaction that turns `synchronous_commit` on.
   */
  #forgetful = false;
  #closed: Promise<void> | undefined;

  private constructor(pool: Pool, options: ConnectionOptions, types: Types) {
    const { schema, client, pool: given, durability = defaultOf("durability"), maintenance = false } = options;
    this.#pool = pool;
    this.#isOurs = !given;
    this.#borrowed = !this.#isOurs;
    this.#durability = durability;
    this.#maintenance = maintenance;
    this.#name = ownName(client?.["application_name"]);
    this.#gate = SessionGate.of(pool, sizeOf(pool));
    this.schema = schema;
    this.#types = types;
    this.#statements = new Statements(schema, types, this.#isOurs);
  }

  static async open(options: ConnectionOptions): Promise<Connection> {
    const { url, client = { connectionString: url }, pool: given, max = 4 } = options;
    const pg = await driver();
    if (given) return new Connection(given as Pool, options, wholeNumbers(pg));
    const config: PoolConfig = {
      application_name: "outlive",
      keepAlive: true,
      ...client,
      max,
      connectionTimeoutMillis: SESSION_MS,
      idleTimeoutMillis: UNUSED_MS,
    };
    const connection = new Connection(new pg.Pool(config), options, wholeNumbers(pg));
    // The pool replaces an idle session that breaks; the next query reports what is wrong.
    connection.#pool.on("error", () => {});
    return connection;
  }

  /**
   * Configures a session of our own pool once, unless a pooler would hand it to other clients with our settings in it.
   */
  async #prepare(client: PoolClient): Promise<void> {
    const { pooled, forgets } = await greetingOf(client);
    if (this.#isOurs && !pooled) await client.query(timed(sessionSettings(this.#durability, this.#maintenance)));
    else {
      this.#borrowed = true;
      this.#forgetful ||= forgets && this.#durability === "full";
      this.#statements = new Statements(this.schema, this.#types, false);
    }
    this.#ready.add(client);
  }

  greet(): Promise<ServerGreeting> {
    return this.#lend(greetingOf);
  }

  /** Lends one session for as long as `work` takes. */
  lend<T>(work: (client: PostgresClient) => Promise<T>): Promise<T> {
    return this.#lend(work);
  }

  rows<R>(sql: string, values?: readonly Value[]): Promise<R[]> {
    return this.#statement((session) => session.rows<R>(sql, values));
  }

  run(sql: string, values?: readonly Value[]): Promise<number> {
    return this.#statement((session) => session.run(sql, values));
  }

  /**
   * Rows of one statement that takes `ms` at most; null: that was not enough, and nothing was written. The server ends it: one that only its caller has given up
   * would keep its session. One message.
   */
  inTime<R>(ms: number, sql: string, values: readonly Value[]): Promise<R[] | null> {
    return this.#lend(async (client) => {
      const limit = `SET LOCAL statement_timeout = ${ms}; `;
      const text =
        (await this.#executed(client, [sql, values], undefined, limit)) ?? this.#statements.written(sql, values);
      const plans = this.#borrowed ? `${LOCAL_PLANS}; ${this.#forgetful ? LOCAL_DURABLE : ""}` : "";
      const results: unknown = await client.query(this.#timed(`${limit}${plans}${text}`));
      return (results as { rows: R[] }[]).at(-1)!.rows;
    }).catch((thrown: unknown) => {
      if (TOO_LATE.has(sqlState(thrown) ?? "") || isTransient(thrown)) return null;
      throw thrown;
    });
  }

  /**
   * Commits all of `work` or nothing. It runs again if it lost against another transaction, so it must do nothing but
   * SQL.
   */
  transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return untilItWins(() => this.#once("engine", work));
  }

  /** As `transaction`, for one that holds what others need: the server ends it soon if this process freezes in it. */
  brief<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return untilItWins(() => this.#once("brief", work));
  }

  /**
   * As `transaction`, but it waits with its commit for `former`, and is rolled back if that rejects. `worked` resolves, or rejects, when only the commit is left to
   * do. The server ends it if this process freezes meanwhile.
   */
  behind<T>(
    former: Promise<unknown>,
    work: (tx: Transaction) => Promise<T>,
  ): { readonly worked: Promise<void>; readonly committed: Promise<T> } {
    const { promise: worked, resolve, reject } = Promise.withResolvers<void>();
    former.catch(() => {});
    const committed = untilItWins(() =>
      this.#once("bulk", async (tx) => {
        const value = await work(tx);
        resolve();
        await former;
        return value;
      }),
    );
    committed.catch(reject);
    return { worked, committed };
  }

  /** As `transaction`, for upkeep: the server ends it when it waits or works for longer than upkeep may. */
  maintain<T>(work: (tx: Transaction) => Promise<T>, kind: "upkeep" | "recovery" = "upkeep"): Promise<T> {
    return untilItWins(() => this.#once(kind, work));
  }

  /** As `transaction`, but never run twice. Throws `OutcomeUnknown` if the response to COMMIT was lost. */
  once<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.#once("engine", work);
  }

  /**
   * As `once`, for the user's own code. One session of the pool stays free of these, for the engine. `control` ends the wait and the
   * transaction; without it the wait ends after 10 s. `frame`: our own statements, which cost no message of their own on sessions of ours.
   */
  async userTransaction<T>(
    work: (tx: UserTransaction) => Promise<T>,
    control?: CommitControl,
    frame: Frame = NO_FRAME,
  ): Promise<T> {
    const limit = control ? untilInterrupted(control) : atMost(SESSION_MS);
    const leave = await this.#gate.enter(limit);
    try {
      for (;;) {
        try {
          return await this.#lend((client, spoil) => this.#userOnce(client, spoil, work, control, frame), limit);
        } catch (thrown) {
          // The pool's own limit is shorter than the commit's.
          if (!control?.waits || control.interrupted || !poolTimedOut(thrown)) throw thrown;
          await new Promise((resolve) => setTimeout(resolve, TRY_AGAIN_MS));
        }
      }
    } finally {
      leave();
    }
  }

  #once<T>(kind: TransactionKind, work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.#lend((client, spoil) =>
      inTransaction(client, this.#begin(kind), () => work(new ClientSession(client, this.#statements)), spoil),
    );
  }

  async #userOnce<T>(
    client: PoolClient,
    spoil: () => void,
    work: (tx: UserTransaction) => Promise<T>,
    control: CommitControl | undefined,
    frame: Frame,
  ): Promise<T> {
    const opening = frame.opening && (await this.#executed(client, frame.opening, frame.closing));
    // Behind a pooler the number is the pooler's; but there the first message waits for nothing.
    const { processID = null } = client as { processID?: number | null };
    const session = new UserSession(client, this.#statements, opening ? processID : null);
    const run = async (): Promise<T> => {
      const begun: unknown = await client.query(this.#timed(opening ? `BEGIN; ${opening}` : this.#begin("user")));
      session.begun((begun as { rows: Which[] }[]).at(-1)!.rows[0]!);
      if (frame.opening && !opening) session.begun((await session.rows<Which>(...frame.opening))[0]!);
      return work(session);
    };
    let value: T;
    let closing: string | null = null;
    try {
      value = await (control ? this.#interruptible(session, control, run(), spoil) : run());
      if (session.closing) closing = await this.#executed(client, session.closing);
      if (session.closing && closing === null) await session.rows(...session.closing);
      control?.commits();
    } catch (thrown) {
      // If that fails too, the server rolls back when the session ends.
      await client.query(timed("ROLLBACK", ROLLBACK_MS)).catch(spoil);
      throw thrown;
    }
    await commit(client, closing, spoil);
    return value;
  }

  /**
   * The statement as text that goes into one message with others; null: it can't. It is prepared once in a session, `also` together with it, because planning
   * it costs more than a message.
   */
  async #executed(client: PoolClient, [sql, values]: OwnStatement, also?: string, limit = ""): Promise<string | null> {
    if (this.#borrowed || values.reduce<number>((sum, value) => sum + String(value).length, 0) > MAX_IN_TEXT)
      return null;
    let ready = this.#executable.get(client);
    if (!ready) this.#executable.set(client, (ready = new Set()));
    const missing = [sql, ...(also === undefined ? [] : [also])].filter((one) => !ready.has(one));
    if (missing.length > 0)
      await client.query(timed(limit + missing.map((one) => this.#statements.prepare(one)).join("; ")));
    for (const one of missing) ready.add(one);
    return this.#statements.execute(sql, values);
  }

  #timed(text: string): ReturnType<typeof timed> & { types: Types } {
    return { ...timed(text), types: this.#types };
  }

  /**
   * An interruption terminates the session: a statement running there would keep its locks until it ends, and the
   * callback may never end. The session is not lent again, because the callback may continue to use it.
   */
  #interruptible<T>(session: UserSession, control: CommitControl, running: Promise<T>, spoil: () => void): Promise<T> {
    return new Promise((resolve, reject) => {
      const stopHearing = control.onInterrupt((reason) => {
        spoil();
        const ended = this.rows(END_SESSION, session.which);
        void ended.catch(() => {}).then(() => reject(reason));
      });
      // After an interruption its outcome does not matter: the session is gone.
      running
        .then(
          (value) => void (control.interrupted || resolve(value)),
          (thrown: unknown) => void (control.interrupted || reject(thrown as Error)),
        )
        .finally(stopHearing);
    });
  }

  #begin(kind: TransactionKind): string {
    return beginText(kind, { borrowed: this.#borrowed, durability: this.#durability, name: this.#name });
  }

  /** Ends every session, after pending work. It never closes the user's own pool. */
  close(): Promise<void> {
    this.#closed ??= this.#isOurs ? this.#pool.end() : Promise.resolve();
    return this.#closed;
  }

  #statement<T>(work: (session: Session) => Promise<T>): Promise<T> {
    return untilItWins(() =>
      this.#lend((client, spoil) => {
        const run = (): Promise<T> => work(new ClientSession(client, this.#statements));
        return this.#forgetful ? inTransaction(client, this.#begin("engine"), run, spoil) : run();
      }),
    );
  }

  /** `spoil`: the session must not be used again. */
  async #lend<T>(
    work: (client: PoolClient, spoil: () => void) => Promise<T>,
    limit: WaitLimit = atMost(SESSION_MS),
  ): Promise<T> {
    if (this.#closed) throw closed();
    let broken = false;
    const noticed = (): void => void (broken = true);
    const client = await this.#client(noticed, limit);
    try {
      if (!this.#ready.has(client)) await this.#prepare(client);
      return await work(client, noticed);
    } catch (thrown) {
      // A session whose prepared statements are gone (DEALLOCATE ALL of a callback) is of no use either.
      broken ||= mayHaveCommitted(thrown) || sqlState(thrown) === "26000";
      throw thrown;
    } finally {
      client.off("error", noticed);
      client.release(broken);
    }
  }

  /**
   * Uses a callback, so that our error listener is attached the moment the pool removes its own. The end of a session
   * may be in the same packet as its greeting (a process that was frozen meanwhile reads both at once), and an
   * unhandled error event ends the process.
   */
  #client(noticed: () => void, limit: WaitLimit): Promise<PoolClient> {
    return new Promise((resolve, reject) => {
      let waits = true;
      const callOff = limit((reason) => {
        waits = false;
        reject(reason);
      });
      this.#pool.connect((error, client) => {
        if (!client) return (callOff(), reject(error!));
        // The caller has given up.
        if (!waits) return client.release();
        callOff();
        client.on("error", noticed);
        resolve(client);
      });
    });
  }
}

/** The server's PID and the id of a transaction that is open in it. */
interface Which {
  readonly pid: number;
  readonly xid: string;
}

/** A statement of ours and its parameters. */
export type OwnStatement = readonly [sql: string, values: readonly Value[]];

/**
 * `opening` is the first statement of a transaction. Its row, which has also the columns of `WHICH`, is what `opened` of the transaction returns. `closing` is
 * the text of the last one, which `endWith` gives its parameters.
 */
export interface Frame {
  readonly opening?: OwnStatement;
  readonly closing?: string;
}

const NO_FRAME: Frame = {};

/** A pool that does not state its size has no gate. */
function sizeOf({ options }: Pool): number {
  const size: unknown = (options as { max?: unknown } | undefined)?.max;
  return typeof size === "number" ? size : Number.POSITIVE_INFINITY;
}

/**
 * Commits all of `work` or nothing; `work` receives the server's result of `begin`. `spoil`: the state of the session
 * is unknown, and it must not be used again.
 */
async function inTransaction<T>(
  client: PoolClient,
  begin: string,
  work: (begun: unknown) => Promise<T>,
  spoil: () => void,
): Promise<T> {
  let value: T;
  try {
    value = await work(await client.query(timed(begin)));
  } catch (thrown) {
    // If that fails too, the server rolls back when the session ends.
    await client.query(timed("ROLLBACK", ROLLBACK_MS)).catch(spoil);
    throw thrown;
  }
  await commit(client);
  return value;
}

/** Runs our statements on a client that is not ours, unprepared: in the user's own transaction. */
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
  const query = timed(`SELECT pg_backend_pid() AS pid, current_setting('server_version_num')::int AS version,
    current_setting('synchronous_commit') = 'off' AS forgets`);
  const [row] = (await client.query<{ pid: number; version: number; forgets: boolean }>(query)).rows;
  const { processID } = client as { processID?: number | null };
  const { pid, version, forgets } = row!;
  return { version, pooled: typeof processID === "number" && processID !== pid, forgets };
}

/** One connected client, outside of any pool. */
export async function newClient(settings: ClientSettings): Promise<Client> {
  const pg = await driver();
  const client = new pg.Client(settings);
  // The next query reports the error; without a listener the error would end the process.
  client.on("error", () => {});
  try {
    await client.connect();
  } catch (thrown) {
    void client.end().catch(() => {});
    throw wrapError("connecting", thrown);
  }
  return client;
}

/** `closing`: a statement that goes in the same message. If it fails, there is no COMMIT. */
async function commit(client: PoolClient, closing: string | null = null, spoil: () => void = () => {}): Promise<void> {
  let command: string;
  try {
    const result: unknown = await client.query(timed(closing === null ? "COMMIT" : `${closing}; COMMIT`));
    ({ command } = (Array.isArray(result) ? result.at(-1) : result) as { command: string });
  } catch (thrown) {
    if (mayHaveCommitted(thrown)) throw new OutcomeUnknown("the answer to COMMIT was lost", { cause: thrown });
    if (closing !== null) await client.query(timed("ROLLBACK", ROLLBACK_MS)).catch(spoil);
    throw thrown;
  }
  // PostgreSQL responds with ROLLBACK when an earlier statement failed and the callback swallowed its error.
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

  async run(sql: string, values: readonly Value[] = []): Promise<number> {
    return (await this.client.query(this.#statements.query(sql, values))).rowCount ?? 0;
  }
}

class UserSession extends ClientSession implements UserTransaction {
  #pid: number | null;
  #opened: Which | undefined;
  #closing: OwnStatement | undefined;

  constructor(client: PoolClient, statements: Statements<Types>, pid: number | null) {
    super(client, statements);
    this.#pid = pid;
  }

  get id(): string {
    return this.#opened!.xid;
  }

  /** Parameters of `END_SESSION`. */
  get which(): [pid: number | null, xid: string | null] {
    return [this.#pid, this.#opened?.xid ?? null];
  }

  get closing(): OwnStatement | undefined {
    return this.#closing;
  }

  begun(row: Which): void {
    this.#pid = row.pid;
    this.#opened = row;
  }

  opened<R>(): R {
    return this.#opened as R;
  }

  endWith(sql: string, values: readonly Value[]): void {
    this.#closing = [sql, values];
  }
}

export function rolledBack(): OutliveError {
  return new OutliveError(
    ErrorCode.commitRolledBack,
    "The transaction had failed before its end and was rolled back by PostgreSQL.",
    "Nothing was written. Let errors of your statements out of the callback, or catch them behind a SAVEPOINT.",
  );
}

const INT8 = 20;

/** bigint as number: ours are instants in ms, counts and numbers of rows, all far below 2^53. */
function wholeNumbers(pg: Driver): Types {
  return {
    getTypeParser: (oid: number, format?: "text" | "binary") =>
      oid === INT8 ? Number : (pg.types.getTypeParser(oid, format) as never),
  };
}

/** How long a call waits for a session. */
function atMost(ms: number): WaitLimit {
  return (stop) => {
    const timer = setTimeout(() => stop(noSession(ms)), ms);
    return () => clearTimeout(timer);
  };
}

/** Every session was in use for that long. It costs the job whose handler gets this nothing. */
function noSession(waitedMs: number): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `Every connection of the pool was in use for ${waitedMs} ms.`,
    NO_SESSION_HINT,
    { waitedMs, costsAttempt: false },
  );
}
