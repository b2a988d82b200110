// One direct, long-lived connection: it holds advisory locks, listens, and defines "the same session" for a watcher. It
// reconnects automatically (at once, then with backoff and jitter) and takes its locks again before it serves any
// query. Behind a pooler a session proves nothing: that is detected here, and then it takes no lock and listens to
// nothing.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { CallOff, Clock, Random } from "../../job/time.ts";

interface StatementOfSession {
  readonly name?: string;
  readonly text: string;
  readonly values: unknown[];
}

/** What a session needs from a connected client of `pg`. */
export interface SessionClient {
  query(statement: string | StatementOfSession, values?: unknown[]): Promise<{ rows: unknown[] }>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  end(): Promise<void>;
  /** The PID in the server's greeting; a pooler makes up its own. */
  readonly processID?: number | null;
}

export interface DirectSessionDeps {
  /** Returns a connected client, or rejects with a wrapped error. */
  readonly connect: () => Promise<SessionClient>;
  readonly clock: Clock;
  readonly random: Random;
  /** Closes automatically after this long without a use, a lock or a listener. Default: never. */
  readonly idleMs?: number;
  /** Called when the connection is up with its locks, and when it was lost. */
  readonly onConnected?: (connected: boolean) => void;
}

/** What was learned when a connection began. */
export interface Greeting {
  /** The server's own PID for this session. */
  readonly pid: number;
  /** The database's OID: locks belong to it. */
  readonly database: string;
  /** The connection's application_name. */
  readonly application: string;
  /** Which run of the server this is. */
  readonly run: string;
  /** A pooler, not the server, serves the connection: what a session holds is not ours. */
  readonly pooled: boolean;
}

interface Open extends Greeting {
  readonly client: SessionClient;
}

const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 1_000;
/** No query of a session takes longer on a responsive server. */
const QUERY_MS = 5_000;

/**
 * The server's run began when its postmaster did or, after the crash of one of its processes, when all of them were
 * restarted. A crash also drops every lock, but leaves the postmaster's start time unchanged; only the statistics show
 * it.
 */
export const RUN = "greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver))";
const GREET = `SELECT pg_backend_pid() AS pid, current_setting('application_name') AS application, ${RUN}::text AS run,
  (SELECT oid::text FROM pg_database WHERE datname = current_database()) AS database`;

/** The server notices a vanished host within half a minute and ends its session. */
const KEEP_ALIVE = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4";

export class DirectSession {
  readonly #deps: DirectSessionDeps;
  readonly #locks = new Set<bigint>();
  readonly #channels = new Map<string, (payload: string | undefined) => void>();
  readonly #returned = new Set<() => void>();
  readonly #names = new Map<string, string>();
  #open: Open | null = null;
  #opening: Promise<Open> | null = null;
  #retry: CallOff | undefined;
  #failures = 0;
  #idle: CallOff | undefined;
  #busy = 0;
  #closed = false;
  /**
   * Grows when the session closes because nothing needs it: what was known about its continuity is void, but nothing
   * went wrong.
   */
  rests = 0;

  constructor(deps: DirectSessionDeps) {
    this.#deps = deps;
  }

  /** The greeting of the current connection; null: not connected. */
  get greeting(): Greeting | null {
    return this.#open;
  }

  /** Connects if it is not connected. */
  greet(): Promise<Greeting> {
    return this.#connected();
  }

  /**
   * Runs one statement. If the server does not respond in time, the connection is dropped: nothing later may wait
   * behind it.
   */
  async query<Row>(text: string, values: unknown[] = [], timeoutMs = QUERY_MS): Promise<Row[]> {
    this.#busy++;
    this.#idle?.();
    try {
      const open = await this.#connected();
      return (await this.#inTime(open, open.client.query(this.#prepared(open, text, values)), timeoutMs)).rows as Row[];
    } finally {
      this.#busy--;
      this.#restWhenIdle();
    }
  }

  /**
   * Repeated statements are planned once, which halves what a check costs the server. A pooler keeps no prepared
   * statement for us.
   */
  #prepared({ pooled }: Open, text: string, values: unknown[]): StatementOfSession {
    if (pooled || values.length === 0) return { text, values };
    let name = this.#names.get(text);
    if (name === undefined) this.#names.set(text, (name = `outlive_session_${this.#names.size + 1}`));
    return { name, text, values };
  }

  /**
   * Holds a shared lock from now on, across reconnects. Returns false behind a pooler, where it could prove nothing.
   */
  async hold(key: bigint): Promise<boolean> {
    this.#locks.add(key);
    this.#idle?.();
    try {
      const { pooled } = await this.#connected();
      // A reconnect in between may have taken it already. Locks taken twice on one session are counted, so the
      // statement checks first.
      if (!pooled) await this.query(TAKE, [[String(key)]]);
      return !pooled;
    } catch (thrown) {
      this.#locks.delete(key);
      throw thrown;
    }
  }

  async release(key: bigint): Promise<void> {
    if (!this.#locks.delete(key)) return;
    if (this.#open && !this.#open.pooled)
      await this.query("SELECT pg_advisory_unlock_shared($1::bigint)", [String(key)]).catch(() => {});
    this.#restWhenIdle();
  }

  /**
   * Listens on a channel from now on, across reconnects. Notifications sent while the connection was down are lost:
   * check again after a reconnect.
   */
  async listen(channel: string, heard: (payload: string | undefined) => void): Promise<void> {
    this.#channels.set(channel, heard);
    const open = await this.#connected();
    if (!open.pooled) await this.query(`LISTEN "${channel}"`);
  }

  unlisten(channel: string): void {
    if (!this.#channels.delete(channel)) return;
    if (this.#open && !this.#open.pooled) void this.query(`UNLISTEN "${channel}"`).catch(() => {});
  }

  /** Calls `listener` whenever a lost connection is re-established. */
  onReturn(listener: () => void): () => void {
    this.#returned.add(listener);
    return () => void this.#returned.delete(listener);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#retry?.();
    this.#idle?.();
    const open = this.#open;
    this.#open = null;
    await open?.client.end().catch(() => {});
    await this.#opening?.then(({ client }) => client.end()).catch(() => {});
  }

  #connected(): Promise<Open> {
    if (this.#closed)
      return Promise.reject(new OutliveError(ErrorCode.closed, "The store is closed.", "Open it again."));
    if (this.#open) return Promise.resolve(this.#open);
    this.#retry?.();
    this.#retry = undefined;
    return (this.#opening ??= this.#begin().finally(() => (this.#opening = null)));
  }

  async #begin(): Promise<Open> {
    try {
      const client = await this.#deps.connect();
      client.on("error", () => this.#lost(client));
      client.on("end", () => this.#lost(client));
      client.on("notification", ({ channel, payload }: { channel: string; payload?: string }) =>
        this.#channels.get(channel)?.(payload),
      );
      try {
        const open = await this.#inTime(null, this.#greet(client), QUERY_MS);
        if (this.#closed) throw new OutliveError(ErrorCode.closed, "The store is closed.", "Open it again.");
        const again = this.#failures > 0;
        this.#open = open;
        this.#failures = 0;
        this.#deps.onConnected?.(true);
        if (again) for (const listener of this.#returned) listener();
        return open;
      } catch (thrown) {
        void client.end().catch(() => {});
        throw thrown;
      }
    } catch (thrown) {
      this.#failures++;
      this.#again();
      throw thrown;
    }
  }

  /** The locks come first: until they are taken, other workers may consider this process dead. */
  async #greet(client: SessionClient): Promise<Open> {
    const [greeting] = (await client.query(GREET)).rows as [Omit<Greeting, "pooled">];
    const { pid } = greeting;
    const pooled = typeof client.processID === "number" && client.processID !== pid;
    if (!pooled) {
      await client.query(KEEP_ALIVE);
      if (this.#locks.size > 0) await client.query(TAKE, [[...this.#locks].map(String)]);
      for (const channel of this.#channels.keys()) await client.query(`LISTEN "${channel}"`);
    }
    return { ...greeting, client, pooled };
  }

  #lost(client: SessionClient): void {
    if (this.#open?.client !== client) return;
    this.#open = null;
    this.#failures++;
    if (!this.#closed) this.#deps.onConnected?.(false);
    void client.end().catch(() => {});
    this.#again();
  }

  /** Only a session with something to hold reconnects without being asked. */
  #again(): void {
    if (this.#closed || this.#retry || (this.#locks.size === 0 && this.#channels.size === 0)) return;
    const maxMs = Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** Math.min(this.#failures - 1, 10));
    const ms = this.#failures <= 1 ? 0 : maxMs * (0.5 + this.#deps.random.next() / 2);
    this.#retry = this.#deps.clock.after(ms, () => {
      this.#retry = undefined;
      void this.#connected().catch(() => {});
    });
  }

  #restWhenIdle(): void {
    const { idleMs, clock } = this.#deps;
    if (idleMs === undefined || this.#busy > 0 || this.#locks.size > 0 || this.#channels.size > 0) return;
    this.#idle?.();
    this.#idle = clock.after(idleMs, () => {
      if (this.#busy > 0 || this.#locks.size > 0 || this.#channels.size > 0 || !this.#open) return;
      const { client } = this.#open;
      this.#open = null;
      this.rests++;
      void client.end().catch(() => {});
    });
  }

  #inTime<T>(open: Open | null, answer: Promise<T>, timeoutMs: number): Promise<T> {
    return new Promise((resolve, reject) => {
      const callOff = this.#deps.clock.after(timeoutMs, () => {
        if (open) this.#lost(open.client);
        reject(
          new OutliveError(
            ErrorCode.storeUnreachable,
            `PostgreSQL did not respond within ${timeoutMs} ms.`,
            "It reconnects and tries again.",
          ),
        );
      });
      answer.then(resolve, reject).finally(callOff);
    });
  }
}

/**
 * Takes each of these keys that this session does not hold yet. Shared: two sessions of one process may hold it while
 * one hands over to the other.
 */
const TAKE = `SELECT pg_advisory_lock_shared(k) FROM unnest($1::bigint[]) AS k WHERE NOT EXISTS (
  SELECT 1 FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.objsubid = 1
    AND ((l.classid::bigint << 32) | l.objid::bigint) = k)`;
