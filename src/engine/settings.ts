// Every setting of a program, once: its key, what it takes, its default on each store, its environment variable, and one sentence; the options
// of kinds are in kind-options.ts. The checks, the defaults, the environment, `outlive check`, the comments of the option types and
// docs/settings.md are derived from these tables. They are plain data: every folder above `job` may import them, and they import only `job`.
import type { Duration } from "../job/time.ts";

/** The stores whose defaults may differ. */
export type StoreName = "sqlite" | "postgres" | "redis";
/** Whose defaults hold where no store is named. */
export const DEFAULT_STORE: StoreName = "sqlite";

type PerStore<T> = T | Readonly<Record<StoreName, T>>;

interface Described {
  /** What it is for, in one or two sentences. */
  readonly sentence: string;
  /** The environment variable. An option without one can only be passed by a program. */
  readonly env?: string;
  /** What holds if it is not set and `default` is null. */
  readonly otherwise?: string;
  /** A limit that depends on another setting. */
  readonly limit?: string;
}

/** One row of a table. */
export type Setting = Described &
  (
    | {
        readonly type: "duration";
        readonly default: PerStore<Duration> | null;
        readonly min?: Duration;
        readonly max: Duration;
        /** A word that may stand in place of the duration. */
        readonly or?: "none";
      }
    | { readonly type: "integer"; readonly default: number | null; readonly min: number; readonly max: number }
    /** A number from 0 to 1. */
    | { readonly type: "share"; readonly default: number }
    | { readonly type: "boolean"; readonly default: boolean }
    | { readonly type: "word"; readonly default: string | null; readonly words: readonly string[] }
    /** A name in SQL. */
    | { readonly type: "name"; readonly default: string; readonly pattern: RegExp; readonly form: string }
    /** The address of a store. */
    | { readonly type: "store"; readonly default: string }
    | { readonly type: "globs"; readonly default: string }
    /** Paths of modules. */
    | { readonly type: "modules"; readonly default: null }
    /** A folder, or a store that only code can make. */
    | { readonly type: "blobs"; readonly default: null }
    /** The address of a broker, or one that only code can make. */
    | { readonly type: "broker"; readonly default: null }
    /** Where a server listens. */
    | { readonly type: "listen"; readonly default: string }
    /** A number, or a number per kind. */
    | { readonly type: "concurrency"; readonly default: number; readonly min: number; readonly max: number }
    /** A value that only code can make: a function, a pool, a signal. */
    | {
        readonly type: "code";
        readonly default: null;
        readonly takes: string;
        readonly accepts: (value: unknown) => boolean;
      }
  );

/** The type of the values that a row takes. */
export type ValueOf<Row extends Setting> = Row extends { readonly type: "duration" }
  ? Duration | (Row extends { readonly or: infer Word } ? Word : never)
  : Row extends { readonly words: readonly (infer Word)[] }
    ? Word
    : Row extends { readonly type: "integer" | "share" }
      ? number
      : Row extends { readonly type: "boolean" }
        ? boolean
        : Row extends { readonly type: "globs" | "modules" }
          ? string | readonly string[]
          : Row extends { readonly type: "concurrency" }
            ? number | Readonly<Record<string, number>>
            : string;

/** Node's timers fire at once if they are to wait for longer than 2^31-1 ms, which is 24.8 days. */
export const LONGEST_TIMER = "24d";
/** The longest that a duration can be. */
export const LONGEST = "3650d";
export const CRASH_ACTIONS = ["retry", "requeue", "fail"] as const;

/** A lease that is not set is this many heartbeat intervals long. */
export const LEASE_INTERVALS = 3;

/** The settings of a configuration: in a file, in the environment, or in what a program passes to `open` or `connect`. */
export const SETTINGS = {
  store: {
    type: "store",
    default: "sqlite:./outlive.db",
    env: "OUTLIVE_STORE",
    sentence: "The store's address.",
  },
  jobs: {
    type: "globs",
    default: "jobs/**/*.{ts,mts,js,mjs}",
    env: "OUTLIVE_JOBS",
    sentence:
      "The modules that declare jobs and attach their handlers, as globs relative to the working directory. Only the command line reads it; a program passes its own jobs.",
  },
  "heartbeat.interval": {
    type: "duration",
    default: { sqlite: "30s", postgres: "10s", redis: "10s" },
    min: "50ms",
    max: LONGEST_TIMER,
    env: "OUTLIVE_HEARTBEAT_INTERVAL",
    sentence:
      "How often a worker reports that it is alive. `RELAXED_HEARTBEAT` of `outlive` is a preset for this, the lease and the sweep: 30 s, 60 s, 60 s.",
  },
  "heartbeat.lease": {
    type: "duration",
    default: null,
    otherwise: `${LEASE_INTERVALS} intervals`,
    max: LONGEST,
    limit: "at least 2 intervals",
    env: "OUTLIVE_HEARTBEAT_LEASE",
    sentence: "How long a worker may be silent before its jobs are taken from it.",
  },
  "heartbeat.sweep": {
    type: "duration",
    default: { sqlite: "60s", postgres: "10s", redis: "10s" },
    min: "100ms",
    max: LONGEST_TIMER,
    env: "OUTLIVE_HEARTBEAT_SWEEP",
    sentence: "How often every worker is checked and old rows are purged.",
  },
  "heartbeat.probe": {
    type: "duration",
    default: "250ms",
    min: "10ms",
    max: LONGEST_TIMER,
    limit: "not longer than the lease",
    env: "OUTLIVE_HEARTBEAT_PROBE",
    sentence: "How often a worker checks whether the other workers are alive: their processes, locks and sessions.",
  },
  "heartbeat.contact": {
    // A connection that a proxy, a NAT or a failing link took away is usually back within this.
    type: "duration",
    default: "3s",
    min: "500ms",
    max: LONGEST,
    limit: "not longer than the lease",
    env: "OUTLIVE_HEARTBEAT_CONTACT",
    sentence:
      "How long a worker on another host may be missing from the server before its jobs are taken from it (PostgreSQL, Redis). On the same host the kernel proves a death at once.",
  },
  "recovery.onCrash": {
    type: "word",
    default: "retry",
    words: CRASH_ACTIONS,
    env: "OUTLIVE_RECOVERY_ON_CRASH",
    sentence: "The default of `onCrash` for kinds that do not set it.",
  },
  "recovery.crashes": {
    type: "integer",
    default: 3,
    min: 1,
    max: 1_000,
    env: "OUTLIVE_RECOVERY_CRASHES",
    sentence: "The default of `retry.crashes` for kinds that do not set it.",
  },
  "recovery.integrityCheckOnStartup": {
    type: "boolean",
    default: true,
    env: "OUTLIVE_RECOVERY_INTEGRITY_CHECK",
    sentence:
      "Whether `open` first checks the integrity of a SQLite file that no other process uses: quickly after a clean stop, in full after any other end. `open` waits 1 s for the check; a longer one continues in the background.",
  },
  "recovery.repair": {
    type: "word",
    default: "reindex",
    words: ["reindex", "auto", "off"],
    env: "OUTLIVE_RECOVERY_REPAIR",
    sentence:
      'What `open` does about a damaged SQLite file. "reindex" repairs what can be repaired without loss; "auto" also salvages what can be read into a new file and keeps the old one; "off" does nothing.',
  },
  "retention.finished": {
    type: "duration",
    default: "7d",
    max: LONGEST,
    env: "OUTLIVE_RETENTION_FINISHED",
    sentence: "How long finished jobs are kept.",
  },
  "retention.incidents": {
    type: "duration",
    default: "90d",
    max: LONGEST,
    env: "OUTLIVE_RETENTION_INCIDENTS",
    sentence: "How long incidents are kept.",
  },
  poll: {
    type: "duration",
    default: "1s",
    min: "10ms",
    max: LONGEST_TIMER,
    env: "OUTLIVE_POLL",
    sentence:
      "How often an idle worker polls for jobs that no wake-up announced. One worker polls for all; while it sees that wake-ups arrive, the other idle workers poll only every 10 s, or at this interval if it is longer. On PostgreSQL that poll is a part of a heartbeat, and a turn follows only if something may wait.",
  },
  liveness: {
    type: "name",
    default: "none",
    pattern: /^(none|rediss?(\+sentinel|\+cluster)?:\/\/.+)$/,
    form: 'the address of a Redis server, such as "redis://host:6379", or "none"',
    env: "OUTLIVE_LIVENESS",
    sentence:
      "For a PostgreSQL store behind a transaction pooler: the Redis server through which workers show that they are alive, so that the loss of a host is noticed before its lease ends. Jobs and their owners stay in PostgreSQL.",
  },
  durability: {
    type: "word",
    default: "full",
    words: ["full", "relaxed"],
    env: "OUTLIVE_DURABILITY",
    sentence:
      '"full": what was acknowledged survives a power loss. "relaxed": it survives the death of any process, but a power loss may lose the last moments.',
  },
  "sqlite.allowUnsafe": {
    type: "boolean",
    default: false,
    env: "OUTLIVE_SQLITE_ALLOW_UNSAFE",
    sentence: "Opens the file even if this Node's SQLite has a known bug, or on Windows.",
  },
  "sqlite.allowNetworkFilesystem": {
    type: "boolean",
    default: false,
    env: "OUTLIVE_SQLITE_ALLOW_NETWORK_FILESYSTEM",
    sentence: "Opens a file even if it is on a network file system.",
  },
  "postgres.schema": {
    type: "name",
    default: "outlive",
    pattern: /^[a-z_][a-z0-9_]{0,39}$/,
    form: "at most 40 lowercase letters, digits and underscores, the first not a digit",
    env: "OUTLIVE_POSTGRES_SCHEMA",
    sentence: "The schema with Outlive's tables.",
  },
  "postgres.connections": {
    type: "integer",
    default: 4,
    min: 1,
    max: 50,
    limit: "not together with `postgres.pool`",
    env: "OUTLIVE_POSTGRES_CONNECTIONS",
    sentence:
      "The maximum number of connections in this process's own pool; its maintenance thread opens up to four more. Commits leave one connection free, so use at least 2.",
  },
  "redis.durability": {
    type: "word",
    default: "server",
    words: ["server", "fsync"],
    env: "OUTLIVE_REDIS_DURABILITY",
    sentence:
      '"server": acknowledged writes are as durable as the server\'s own settings make them. "fsync": they also survive a power loss of the server; `open` rejects unless its `appendfsync` is `always`, or is `everysec` and its `WAITAOF` passes a test.',
  },
  "redis.replicas": {
    type: "integer",
    default: 0,
    min: 0,
    max: 10,
    env: "OUTLIVE_REDIS_REPLICAS",
    sentence: "How many replicas must have a write before it is acknowledged. `open` rejects if fewer are connected.",
  },
  blobs: {
    type: "blobs",
    default: null,
    otherwise: "none",
    env: "OUTLIVE_BLOBS",
    sentence:
      "Where output files of batches and parts of collections are stored. Collections need it, and so do batches whose rows write output files.",
  },
  broker: {
    type: "broker",
    default: null,
    otherwise: "none",
    env: "OUTLIVE_BROKER",
    sentence: "The message broker from which collections get their parts, and to which they publish.",
  },
  "work.processes": {
    type: "integer",
    default: 1,
    min: 1,
    max: 256,
    env: "OUTLIVE_WORK_PROCESSES",
    sentence:
      "How many worker processes `outlive work` runs. If there are requests and other kinds, one or two additional processes send the requests.",
  },
  "work.concurrency": {
    type: "concurrency",
    default: 10,
    min: 1,
    max: 10_000,
    env: "OUTLIVE_WORK_CONCURRENCY",
    sentence:
      "How many jobs run at once in each process: a number, or a number per kind; the other kinds share the default.",
  },
  "work.grace": {
    type: "duration",
    default: "25s",
    max: LONGEST_TIMER,
    env: "OUTLIVE_WORK_GRACE",
    sentence:
      'How long a stopping worker waits for its running jobs. With `--watch` it is "2s", unless `--grace` is given.',
  },
  "work.semiSpace": {
    type: "integer",
    default: 4,
    min: 1,
    max: 256,
    env: "OUTLIVE_WORK_SEMI_SPACE",
    sentence:
      "The maximum size of V8's semi-spaces in each process, in MB (`--max-semi-space-size`; if Node was started with that flag, the flag wins). A smaller size needs less memory. Measured with no-op jobs: 99 MB of RSS on SQLite and 133 MB on PostgreSQL with 4, and 119 and 221 MB with Node's default, at 0.91 to 1 times its throughput.",
  },
  "work.http": {
    type: "listen",
    default: "off",
    env: "OUTLIVE_WORK_HTTP",
    sentence: "The address at which `outlive work` serves /live, /ready and /metrics.",
  },
  "work.log": {
    type: "word",
    default: "pretty",
    words: ["pretty", "json"],
    env: "OUTLIVE_WORK_LOG",
    sentence: 'How the log of `outlive work` is written; with `--json` it is "json".',
  },
  "work.middleware": {
    type: "modules",
    default: null,
    otherwise: "none",
    env: "OUTLIVE_WORK_MIDDLEWARE",
    sentence:
      "Modules whose default export is a middleware, or an array of them, relative to the working directory. It wraps every enqueue and every attempt in the worker processes, and sees the recoveries of the supervisor. The first is the outermost.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

export type SettingKey = keyof typeof SETTINGS;

/** What a program can pass to `open` in addition to the settings. */
export const PROGRAM_OPTIONS = {
  jobs: {
    type: "code",
    default: null,
    takes: "an array of what job(), batch(), request(), collection() and schedule() returned",
    accepts: Array.isArray,
    otherwise: "none",
    sentence:
      "The kinds, batches, requests, collections and schedules of this program. Only these can be enqueued and run here.",
  },
  readOnly: {
    type: "boolean",
    default: false,
    sentence:
      "Opens the store for reading only, even a damaged one: nothing is claimed, written or recovered. The store must exist.",
  },
  clock: {
    type: "code",
    default: null,
    takes: "a clock, such as that of virtualClock()",
    accepts: (value) => isRecord(value) && typeof value["now"] === "function" && typeof value["after"] === "function",
    otherwise: "the clock of this machine, or of the server",
    sentence:
      'The clock of a test, for "sqlite::memory:" only: delays, retries, sleeps and schedules advance when the test moves it.',
  },
  "postgres.pool": {
    type: "code",
    default: null,
    takes: "a pg.Pool",
    accepts: (value) => isRecord(value) && typeof value["connect"] === "function" && isRecord(value["options"]),
    otherwise: "a pool of its own",
    sentence:
      "Your own `pg` pool. The engine queries through it and does not close it. Maintenance opens its own connections with the pool's options.",
  },
  "redis.client": {
    type: "code",
    default: null,
    takes: "a client of @redis/client, redis, ioredis or iovalkey",
    accepts: (value) => isRecord(value) && typeof value["duplicate"] === "function",
    otherwise: "a client of `@redis/client`, with the store's address",
    sentence:
      "Your own client of `@redis/client`, `redis`, `ioredis` or `iovalkey`. The engine opens its own connections with the client's options, as far as these are plain data; it neither uses nor closes the client itself.",
  },
  logger: {
    type: "code",
    default: null,
    takes: "false, or an object with the functions info, warn and error",
    accepts: (value) =>
      value === false ||
      (isRecord(value) && ["info", "warn", "error"].every((level) => typeof value[level] === "function")),
    otherwise: "`console`, warnings and recoveries only",
    sentence: "Receives the log; false turns it off.",
  },
  secrets: {
    type: "code",
    default: null,
    takes: "an object of strings or functions by name, or a function of the name",
    accepts: (value) => typeof value === "function" || isRecord(value),
    otherwise: "none",
    sentence:
      "The values of the secrets that requests refer to, by name: strings, functions, or one function for all. They never appear in the store, the log or an error.",
  },
  network: {
    type: "code",
    default: null,
    takes: "what `answers` of `outlive/testing` returned",
    accepts: (value) => typeof value === "function",
    otherwise: "the network",
    sentence: "Replaces the network in tests: what `answers` of `outlive/testing` returned.",
  },
  middleware: {
    type: "code",
    default: null,
    takes: "an array of objects with `enqueue`, `attempt`, `ended` or `event`",
    accepts: (value) =>
      Array.isArray(value) &&
      value.every(
        (one) =>
          isRecord(one) &&
          MIDDLEWARE_PARTS.every((part) => one[part] === undefined || typeof one[part] === "function") &&
          MIDDLEWARE_PARTS.some((part) => one[part] !== undefined),
      ),
    otherwise: "none",
    sentence: "Code that wraps every enqueue and every attempt of this program; the first is the outermost.",
  },
  onEvent: {
    type: "code",
    default: null,
    takes: "a function",
    accepts: (value) => typeof value === "function",
    otherwise: "none",
    sentence: "Receives every event from the start, including those of the recovery that `open` runs.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `engine.work` and `engine.start`. */
export const WORKER_OPTIONS = {
  only: {
    type: "code",
    default: null,
    takes: "an array of what job() returned",
    accepts: (value) =>
      Array.isArray(value) && value.every((kind) => isRecord(kind) && typeof kind["name"] === "string"),
    otherwise: "all of `jobs` that have a handler",
    sentence: "Runs only these kinds.",
  },
  concurrency: {
    type: "concurrency",
    default: SETTINGS["work.concurrency"].default,
    min: SETTINGS["work.concurrency"].min,
    max: SETTINGS["work.concurrency"].max,
    sentence: "How many jobs run at once: a number, or a number per kind; the other kinds share the default.",
  },
  signal: {
    type: "code",
    default: null,
    takes: "an AbortSignal",
    accepts: (value) => value instanceof AbortSignal,
    otherwise: "none",
    sentence: "Stops the worker when it aborts.",
  },
  grace: {
    type: "duration",
    default: SETTINGS["work.grace"].default,
    max: LONGEST_TIMER,
    sentence: "How long a stopping worker waits for its running jobs after `signal` aborted.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

type Defaulted = {
  [Key in SettingKey]: (typeof SETTINGS)[Key]["default"] extends null ? never : Key;
}[SettingKey];

/** What holds on a store if the setting is not set. */
export function defaultOf<Key extends Defaulted>(
  key: Key,
  store: StoreName = DEFAULT_STORE,
): ValueOf<(typeof SETTINGS)[Key]> & NonNullable<unknown> {
  return defaultIn(SETTINGS[key], store) as never;
}

/** The default of a row on a store; null: `otherwise` says what holds. */
export function defaultIn(row: Setting, store: StoreName): unknown {
  const given: unknown = row.default;
  return isRecord(given) ? given[store] : given;
}

const MIDDLEWARE_PARTS = ["enqueue", "attempt", "ended", "event"] as const;

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}
