// Every setting and every option, once: its key, what it takes, its default on each store, its environment variable, and one
// sentence. The checks, the defaults, the environment, `outlive check`, the comments of the option types and docs/settings.md are
// derived from these tables. They are plain data: every folder above `core` may import this file, and it imports only `core`.
import type { KindSettings } from "../job/job.ts";
import { type Duration, durationMs } from "../job/time.ts";

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
    /** A folder, or a store that only code can make. */
    | { readonly type: "blobs"; readonly default: null }
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
        : Row extends { readonly type: "globs" }
          ? string | readonly string[]
          : Row extends { readonly type: "concurrency" }
            ? number | Readonly<Record<string, number>>
            : string;

/** Node's timers fire at once if they are to wait for longer than 2^31-1 ms, which is 24.8 days. */
const LONGEST_TIMER = "24d";
/** The longest that a duration can be. */
const LONGEST = "3650d";
const CRASH_ACTIONS = ["retry", "requeue", "fail"] as const;

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
      "The modules that declare jobs and attach their handlers: one or several globs, relative to the working directory. For `outlive work`; a program passes its own jobs.",
  },
  "heartbeat.interval": {
    type: "duration",
    default: { sqlite: "30s", postgres: "10s", redis: "10s" },
    min: "50ms",
    max: LONGEST_TIMER,
    env: "OUTLIVE_HEARTBEAT_INTERVAL",
    sentence: "How often a worker reports that it is alive.",
  },
  "heartbeat.lease": {
    type: "duration",
    default: null,
    otherwise: `${LEASE_INTERVALS} intervals`,
    max: LONGEST,
    limit: "at least 2 intervals",
    env: "OUTLIVE_HEARTBEAT_LEASE",
    sentence: "How long a worker may be silent before its work is taken.",
  },
  "heartbeat.sweep": {
    type: "duration",
    default: { sqlite: "60s", postgres: "10s", redis: "10s" },
    min: "100ms",
    max: LONGEST_TIMER,
    env: "OUTLIVE_HEARTBEAT_SWEEP",
    sentence: "How often old rows are purged and every worker is checked.",
  },
  "heartbeat.probe": {
    type: "duration",
    default: "250ms",
    min: "10ms",
    max: LONGEST_TIMER,
    limit: "not longer than the lease",
    env: "OUTLIVE_HEARTBEAT_PROBE",
    sentence: "How often the locks of other workers are probed.",
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
      "How long a worker's session may be missing on PostgreSQL before its work is taken, where no kernel can prove its death (another host).",
  },
  "recovery.onCrash": {
    type: "word",
    default: "retry",
    words: CRASH_ACTIONS,
    env: "OUTLIVE_RECOVERY_ON_CRASH",
    sentence: "`onCrash` of every kind that does not set it.",
  },
  "recovery.crashes": {
    type: "integer",
    default: 3,
    min: 1,
    max: 1_000,
    env: "OUTLIVE_RECOVERY_CRASHES",
    sentence: "`retry.crashes` of every kind that does not set it.",
  },
  "recovery.integrityCheckOnStartup": {
    type: "boolean",
    default: true,
    env: "OUTLIVE_RECOVERY_INTEGRITY_CHECK",
    sentence:
      "Whether an open that finds no process at work checks the integrity of a SQLite file first: quickly after a clean stop, in full after any other, for at most 10 s.",
  },
  "recovery.repair": {
    type: "word",
    default: "reindex",
    words: ["reindex", "auto", "off"],
    env: "OUTLIVE_RECOVERY_REPAIR",
    sentence:
      'What an open does about a damaged SQLite file. "reindex" repairs what can be repaired without loss; "auto" also salvages what can be read into a new file and keeps the old one; "off" does nothing.',
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
    sentence: "How long an idle worker waits before it polls without a wake-up.",
  },
  liveness: {
    type: "name",
    default: "none",
    pattern: /^(none|rediss?(\+sentinel|\+cluster)?:\/\/.+)$/,
    form: 'the address of a Redis server, such as "redis://host:6379", or "none"',
    env: "OUTLIVE_LIVENESS",
    sentence:
      "For a PostgreSQL store behind a transaction pooler: the Redis server in which workers show that they live, so that a lost host is noticed without waiting for its lease. Jobs and owners stay in PostgreSQL.",
  },
  durability: {
    type: "word",
    default: "full",
    words: ["full", "relaxed"],
    env: "OUTLIVE_DURABILITY",
    sentence:
      '"full": what was acknowledged survives a power loss. "relaxed": it survives the death of any process, but a power loss may take the last moments.',
  },
  "sqlite.allowUnsafe": {
    type: "boolean",
    default: false,
    env: "OUTLIVE_SQLITE_ALLOW_UNSAFE",
    sentence: "Opens the file although this Node's SQLite has a known bug, or on Windows.",
  },
  "sqlite.allowNetworkFilesystem": {
    type: "boolean",
    default: false,
    env: "OUTLIVE_SQLITE_ALLOW_NETWORK_FILESYSTEM",
    sentence: "Opens a file on a network file system.",
  },
  "postgres.schema": {
    type: "name",
    default: "outlive",
    pattern: /^[a-z_][a-z0-9_]{0,39}$/,
    form: "at most 40 lowercase letters, digits and underscores, the first not a digit",
    env: "OUTLIVE_POSTGRES_SCHEMA",
    sentence: "The schema that holds Outlive's tables.",
  },
  "postgres.connections": {
    type: "integer",
    default: 4,
    min: 1,
    max: 50,
    limit: "not together with `postgres.pool`",
    env: "OUTLIVE_POSTGRES_CONNECTIONS",
    sentence:
      "The maximum number of connections in this process's own pool; its maintenance thread has up to four more. Commits leave one of them free, so use at least 2.",
  },
  "redis.durability": {
    type: "word",
    default: "server",
    words: ["server", "fsync"],
    env: "OUTLIVE_REDIS_DURABILITY",
    sentence:
      '"server": what was acknowledged survives what the server\'s settings let survive. "fsync": a power loss of the server, too; refused at `open` unless its `appendfsync` is `always`.',
  },
  "redis.replicas": {
    type: "integer",
    default: 0,
    min: 0,
    max: 10,
    env: "OUTLIVE_REDIS_REPLICAS",
    sentence:
      "In how many replicas a write must be before it is acknowledged; refused at `open` if fewer are connected.",
  },
  blobs: {
    type: "blobs",
    default: null,
    otherwise: "none",
    env: "OUTLIVE_BLOBS",
    sentence: "Where output files of batches go. A batch whose rows write any needs it.",
  },
  "work.processes": {
    type: "integer",
    default: 1,
    min: 1,
    max: 256,
    env: "OUTLIVE_WORK_PROCESSES",
    sentence: "How many worker processes `outlive work` runs.",
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
    sentence: 'How long running jobs may finish at the end. With `--watch` it is "2s", unless `--grace` is given.',
  },
  "work.http": {
    type: "listen",
    default: "off",
    env: "OUTLIVE_WORK_HTTP",
    sentence: "Where /live, /ready and /metrics are served.",
  },
  "work.log": {
    type: "word",
    default: "pretty",
    words: ["pretty", "json"],
    env: "OUTLIVE_WORK_LOG",
    sentence: 'How the log of `outlive work` is written; with `--json` it is "json".',
  },
} as const satisfies Readonly<Record<string, Setting>>;

export type SettingKey = keyof typeof SETTINGS;

/** What a program can pass to `open` in addition to the settings. */
export const PROGRAM_OPTIONS = {
  jobs: {
    type: "code",
    default: null,
    takes: "an array of what job() returned",
    accepts: Array.isArray,
    otherwise: "none",
    sentence: "The kinds that this program knows. Only these can be enqueued and run here.",
  },
  readOnly: {
    type: "boolean",
    default: false,
    sentence:
      "Opens the store for reading only, also a damaged one: nothing is claimed, written or recovered. The store must exist.",
  },
  clock: {
    type: "code",
    default: null,
    takes: "a clock, such as that of virtualClock()",
    accepts: (value) => isRecord(value) && typeof value["now"] === "function" && typeof value["after"] === "function",
    otherwise: "the clock of this machine, or of the server",
    sentence:
      'The clock of a test, for "sqlite::memory:" only: delays, retries, sleeps and schedules pass when the test moves it.',
  },
  "postgres.pool": {
    type: "code",
    default: null,
    takes: "a pg.Pool",
    accepts: (value) => isRecord(value) && typeof value["connect"] === "function" && isRecord(value["options"]),
    otherwise: "a pool of its own",
    sentence:
      "Your own pool of `pg`: queries run on it, and it is not closed with the engine. Maintenance makes its own connections with the pool's options.",
  },
  "redis.client": {
    type: "code",
    default: null,
    takes: "a client of @redis/client, redis, ioredis or iovalkey",
    accepts: (value) => isRecord(value) && typeof value["duplicate"] === "function",
    otherwise: "a client of `@redis/client`, with the store's address",
    sentence:
      "Your own client of `@redis/client`, `redis`, `ioredis` or `iovalkey`: connections are made with its options, as far as they are data; it is not used itself, and not closed.",
  },
  logger: {
    type: "code",
    default: null,
    takes: "false, or an object with the functions info, warn and error",
    accepts: (value) =>
      value === false ||
      (isRecord(value) && ["info", "warn", "error"].every((level) => typeof value[level] === "function")),
    otherwise: "`console`, warnings and recoveries only",
    sentence: "Where the log goes; false: nowhere.",
  },
  onEvent: {
    type: "code",
    default: null,
    takes: "a function",
    accepts: (value) => typeof value === "function",
    otherwise: "none",
    sentence: "Receives every event from the first on, also those of the recovery that `open` itself runs.",
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
    sentence: "How long running jobs may finish after `signal` aborted.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `job()`. */
export const KIND_OPTIONS = {
  input: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    // job() checks it, with an error of its own.
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of the input.",
  },
  output: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of what the handler returns, which is checked before it is kept. It types `engine.result`.",
  },
  limits: {
    type: "code",
    default: null,
    takes: "an array of at most two limits (docs/limits.md)",
    // job() checks each, with an error of its own.
    accepts: Array.isArray,
    otherwise: "none",
    sentence: "How many of its jobs with the same key may run, or start in a period, over all workers.",
  },
  fair: {
    type: "code",
    default: null,
    takes: "a function (input) => text, or the name of one of the kind's limits (docs/limits.md)",
    // job() checks it, with an error of its own.
    accepts: (value: unknown) => typeof value === "function" || typeof value === "string",
    otherwise: "jobs start by priority and age, whosever they are",
    sentence:
      "Whose jobs take turns: those with the same key. A key with one job waits for one round of the others at most, whatever they have queued.",
  },
  timeout: {
    type: "duration",
    default: "15m",
    min: "10ms",
    max: LONGEST,
    or: "none",
    sentence:
      "How long an attempt may run, counted again from each `run.heartbeat()`, on the worker's monotonic clock: a change of the wall clock neither shortens nor extends it.",
  },
  maxRuntime: {
    type: "duration",
    default: null,
    otherwise: "no cap",
    max: LONGEST,
    limit: 'not shorter than the timeout, and not with a timeout of "none"',
    sentence: "The longest an attempt may run, whatever its heartbeats.",
  },
  grace: {
    type: "duration",
    default: "5s",
    max: LONGEST,
    sentence: "How long a handler may go on after its signal was aborted by the deadline or a cancel.",
  },
  "retry.attempts": {
    type: "integer",
    default: 10,
    min: 1,
    max: 1_000,
    sentence:
      "How many attempts may end with an error before the job is dead. Timeouts and crashes have their own limits, and a shutdown counts toward none.",
  },
  "retry.timeouts": {
    type: "integer",
    default: 10,
    min: 1,
    max: 1_000,
    sentence: "How many attempts may pass their deadline before the job is dead.",
  },
  "retry.crashes": {
    type: "integer",
    default: null,
    otherwise: "`recovery.crashes`",
    min: 1,
    max: 1_000,
    sentence:
      "How many workers may die, after the first crash of the job, while it is their only suspect, before it is quarantined.",
  },
  "retry.backoff": {
    type: "code",
    default: null,
    takes: '"exponential", "linear", { type, base, max, jitter }, or a function of failures and error',
    accepts: (value) => value === "exponential" || value === "linear" || typeof value === "function",
    otherwise: '"exponential"',
    sentence: "How long to wait after a failure.",
  },
  "retry.backoff.type": {
    type: "word",
    default: "exponential",
    words: ["exponential", "linear"],
    sentence: "How the delay grows after each failure: base, 2 base, 4 base, ... or base, 2 base, 3 base, ...",
  },
  "retry.backoff.base": { type: "duration", default: "1s", max: LONGEST, sentence: "The first delay." },
  "retry.backoff.max": {
    type: "duration",
    default: "1h",
    max: LONGEST,
    limit: "not shorter than `base`",
    sentence: "The longest delay.",
  },
  "retry.backoff.jitter": { type: "share", default: 0.5, sentence: "The share of the delay that is random." },
  onCrash: {
    type: "word",
    default: null,
    otherwise: "`recovery.onCrash`",
    words: CRASH_ACTIONS,
    sentence:
      'What recovery does when a worker dies with the job: "retry" queues it again and counts a crash, "requeue" queues it again and counts nothing, "fail" ends it.',
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `batch()` in addition to those of `job()`. */
export const BATCH_OPTIONS = {
  row: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of a row. A row that does not fit fails alone, with its line.",
  },
  context: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of the context, which is the same for all rows of a batch.",
  },
  block: {
    type: "integer",
    default: 50,
    min: 1,
    max: 1_000,
    sentence:
      "Rows of one block, at most; a block also ends at 256 KiB. A worker claims and settles a block as a whole. Use 1 for rows that take seconds.",
  },
  atOnce: { type: "integer", default: 1, min: 1, max: 1_000, sentence: "How many rows of a block run at once." },
  mark: {
    type: "word",
    default: "time",
    words: ["time", "row"],
    sentence:
      '"time": rows that ended are durable within 200 ms, so a kill repeats at most that much. "row": each row\'s end is durable before the next begins.',
  },
  blockFor: {
    type: "duration",
    default: "10s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence:
      "After this long a worker settles the rows that ended and queues the rest of the block again at no cost, so that a deploy or another batch never waits for a long block.",
  },
  tolerate: {
    type: "code",
    default: null,
    takes: 'a number of rows, or a share such as "5%"',
    accepts: (value) => typeof value === "number" || typeof value === "string",
    otherwise: "any number",
    sentence:
      'How many rows may fail or be quarantined, as a number or a share such as "5%". Beyond it the batch is aborted and has failed; rows in flight may still fail on top.',
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

/** The settings of a kind that sets no option. */
export const KIND_DEFAULTS: Omit<KindSettings, "name"> = {
  timeoutMs: durationMs(KIND_OPTIONS.timeout.default, "timeout"),
  maxRuntimeMs: KIND_OPTIONS.maxRuntime.default,
  graceMs: durationMs(KIND_OPTIONS.grace.default, "grace"),
  limits: {
    errors: KIND_OPTIONS["retry.attempts"].default,
    timeouts: KIND_OPTIONS["retry.timeouts"].default,
    crashes: SETTINGS["recovery.crashes"].default,
  },
  backoff: {
    type: KIND_OPTIONS["retry.backoff.type"].default,
    baseMs: durationMs(KIND_OPTIONS["retry.backoff.base"].default, "backoff.base"),
    maxMs: durationMs(KIND_OPTIONS["retry.backoff.max"].default, "backoff.max"),
    jitter: KIND_OPTIONS["retry.backoff.jitter"].default,
  },
  onCrash: SETTINGS["recovery.onCrash"].default,
};

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}
