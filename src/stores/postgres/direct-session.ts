// One direct connection that stays: it holds advisory locks, listens, and is what "the same session" means to a watcher. It
// comes back by itself (at once, then with backoff and jitter) and takes its locks again before anybody is answered.
// Behind a pooler a session proves nothing: it is noticed here, and then no lock is taken and nothing is listened to.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { CallOff, Clock, Random } from "../../job/time.ts";

interface StatementOfSession {
  readonly name?: string;
  readonly text: string;
  readonly values: unknown[];
}

/** What a session needs of a connected client of `pg`. */
export interface SessionClient {
  query(statement: string | StatementOfSession, values?: unknown[]): Promise<{ rows: unknown[] }>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  end(): Promise<void>;
  /** The process id that the server named when the connection began; a pooler makes up its own. */
  readonly processID?: number | null;
}

export interface DirectSessionDeps {
  /** A client that is connected, or the reason why not in our own words. */
  readonly connect: () => Promise<SessionClient>;
  readonly clock: Clock;
  readonly random: Random;
  /** Ends by itself after this long without a use, a lock or a listener. Default: never. */
  readonly idleMs?: number;
  /** Called when the connection is there with its locks, and when it was lost. */
  readonly onConnected?: (connected: boolean) => void;
}

/** How a connection began. */
export interface Greeting {
  /** The server's own process for this session. */
  readonly pid: number;
  /** The database's own number: locks belong to it. */
  readonly database: string;
  /** What the connection calls itself. */
  readonly application: string;
  /** Which run of the server this is. */
  readonly run: string;
  /** Somebody else than the server answers the connection: what a session holds is not ours. */
  readonly pooled: boolean;
}

interface Open extends Greeting {
  readonly client: SessionClient;
}

const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 1_000;
/** No question of a session takes longer on a server that answers at all. */
const QUERY_MS = 5_000;

/**
 * The server's run began when its postmaster did, or, after the crash of one of its processes, when all of them were started
 * anew: then every lock is gone too, but the postmaster's time is unchanged, and only the statistics show it.
 */
export const RUN = "greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver))";
const GREET = `SELECT pg_backend_pid() AS pid, current_setting('application_name') AS application, ${RUN}::text AS run,
  (SELECT oid::text FROM pg_database WHERE datname = current_database()) AS database`;

/** A host that vanished is noticed by the server within half a minute, and its session ended. */
const KEEP_ALIVE = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4";

export class DirectSession {
  readonly #deps: DirectSessionDeps;
  readonly #locks = new Set<bigint>();
  readonly #channels = new Map<string, () => void>();
  readonly #returned = new Set<() => void>();
  readonly #names = new Map<string, string>();
  #open: Open | null = null;
  #opening: Promise<Open> | null = null;
  #retry: CallOff | undefined;
  #failures = 0;
  #idle: CallOff | undefined;
  #busy = 0;
  #closed = false;
  /** Grows when the session ends because nobody needs it: what was known of its continuity is void, but nothing went wrong. */
  rests = 0;

  constructor(deps: DirectSessionDeps) {
    this.#deps = deps;
  }

  /** How the present connection began; null: there is none just now. */
  get greeting(): Greeting | null {
    return this.#open;
  }

  /** Connects if it is not connected. */
  greet(): Promise<Greeting> {
    return this.#connected();
  }

  /** One statement. A server that does not answer in time costs the connection: nothing later may wait behind it. */
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

  /** What is said again and again is planned once: half of what a look costs the server. A pooler keeps no statement for us. */
  #prepared({ pooled }: Open, text: string, values: unknown[]): StatementOfSession {
    if (pooled || values.length === 0) return { text, values };
    let name = this.#names.get(text);
    if (name === undefined) this.#names.set(text, (name = `outlive_session_${this.#names.size + 1}`));
    return { name, text, values };
  }

  /** Holds a shared lock from now on, across reconnects. Answers false behind a pooler, where it could prove nothing. */
  async hold(key: bigint): Promise<boolean> {
    this.#locks.add(key);
    this.#idle?.();
    try {
      const { pooled } = await this.#connected();
      // A reconnect in between has taken it; taking it twice on one session is counted, so it is asked for first.
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

  /** Hears a channel from now on, across reconnects. What was said while the connection was away is lost: look again then. */
  async listen(channel: string, heard: () => void): Promise<void> {
    this.#channels.set(channel, heard);
    const open = await this.#connected();
    if (!open.pooled) await this.query(`LISTEN "${channel}"`);
  }

  unlisten(channel: string): void {
    if (!this.#channels.delete(channel)) return;
    if (this.#open && !this.#open.pooled) void this.query(`UNLISTEN "${channel}"`).catch(() => {});
  }

  /** Calls `listener` whenever the connection is there again after it was lost. */
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
      client.on("notification", ({ channel }: { channel: string }) => this.#channels.get(channel)?.());
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

  /** The locks first: until they are taken, the others may take this process for dead. */
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

  /** Only who has something to hold comes back without being asked. */
  #again(): void {
    if (this.#closed || this.#retry || (this.#locks.size === 0 && this.#channels.size === 0)) return;
    const most = Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** Math.min(this.#failures - 1, 10));
    const ms = this.#failures <= 1 ? 0 : most * (0.5 + this.#deps.random.next() / 2);
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
            `PostgreSQL did not answer within ${timeoutMs} ms.`,
            "The connection is made anew; it is tried again.",
          ),
        );
      });
      answer.then(resolve, reject).finally(callOff);
    });
  }
}

/** Each of these keys that this session does not hold yet. Shared: two sessions of one process may hold it while one hands over to the other. */
const TAKE = `SELECT pg_advisory_lock_shared(k) FROM unnest($1::bigint[]) AS k WHERE NOT EXISTS (
  SELECT 1 FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.objsubid = 1
    AND ((l.classid::bigint << 32) | l.objid::bigint) = k)`;
