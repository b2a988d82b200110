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
    sentence:
      "How often work is polled for that no wake-up announced. While one worker does it for all and shows that wake-ups arrive, the other idle workers poll every 10 s, or as often as this says if that is longer.",
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
    sentence:
      "Where output files of batches and parts of collections go. A batch whose rows write any needs it, and so does every collection.",
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
  "work.semiSpace": {
    type: "integer",
    default: 4,
    min: 1,
    max: 256,
    env: "OUTLIVE_WORK_SEMI_SPACE",
    sentence:
      "How large V8's semi-spaces may get in each process, in MB (`--max-semi-space-size`, unless Node itself is started with it). While no-op jobs were drained, a process had at most 99 MB of RSS on SQLite and 133 MB on PostgreSQL with 4, and 119 and 221 MB with Node's own size, at 0.91 to 1 of its rate.",
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
  "work.middleware": {
    type: "modules",
    default: null,
    otherwise: "none",
    env: "OUTLIVE_WORK_MIDDLEWARE",
    sentence:
      "Modules whose default export is a middleware, or an array of them, relative to the working directory: around every enqueue and every attempt of the worker processes, and for the recoveries of the supervisor. The first is the outermost.",
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
  secrets: {
    type: "code",
    default: null,
    takes: "an object of texts or functions by name, or a function of the name",
    accepts: (value) => typeof value === "function" || isRecord(value),
    otherwise: "none",
    sentence:
      "The values of secrets that requests refer to, by name: texts, functions, or one function for all. They are in no row, log or error.",
  },
  network: {
    type: "code",
    default: null,
    takes: "what `answers` of `outlive/testing` returned",
    accepts: (value) => typeof value === "function",
    otherwise: "the network",
    sentence: "In place of the network, for tests: what `answers` of `outlive/testing` returned.",
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
    sentence: "Code around every enqueue and every attempt of this program; the first is the outermost.",
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
  expires: {
    type: "duration",
    default: null,
    otherwise: "any time",
    min: "1ms",
    max: LONGEST,
    sentence:
      'How long its jobs may wait for their first attempt after they were due: then they are cancelled, with the outcome "expired".',
  },
  retention: {
    type: "code",
    default: null,
    takes: 'a duration such as "30d", or { succeeded, dead, cancelled, quarantined } with a duration for each',
    // job() checks it, with an error of its own.
    accepts: (value) => typeof value === "string" || (typeof value === "object" && value !== null),
    otherwise: "`retention.finished`",
    sentence:
      "How long its finished jobs are kept: one time for all, or one for each of succeeded, dead, cancelled, quarantined.",
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

/** The options of `request()`. What only code can make is checked there, with errors of its own. */
export const REQUEST_OPTIONS = {
  input: KIND_OPTIONS.input,
  grace: KIND_OPTIONS.grace,
  method: {
    type: "word",
    default: null,
    otherwise: "none, it must be set",
    words: ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "QUERY", "POST", "PATCH"],
    sentence: "The method.",
  },
  ifUnknown: {
    type: "word",
    default: null,
    otherwise: '"resend"; must be set for POST and PATCH',
    words: ["resend", "ask", "fail"],
    sentence:
      'What is done if the request was sent and its outcome is not known, because its process died, the connection broke, time was up, or a gateway answered 502 or 504: "resend" it, "ask" `onUnknown`, or "fail" it.',
  },
  send: {
    type: "code",
    default: null,
    takes: "a function of the input that returns the URL, headers and body",
    accepts: (value) => typeof value === "function",
    otherwise: "none, it must be set",
    sentence: "Makes the request of the input, in the worker, at each attempt. Only the input is stored.",
  },
  response: {
    type: "code",
    default: null,
    takes: '"text", "json", "bytes", "ignore", or a Standard Schema of JSON',
    accepts: () => true,
    otherwise: '"text"',
    sentence: "How the body of the answer is read.",
  },
  maxResponse: {
    type: "code",
    default: null,
    takes: 'a size such as "512KB", from "1KB" to "1MB"; or { to: "blob", max: SIZE } for larger ones',
    accepts: (value) => typeof value === "string" || (typeof value === "object" && value !== null),
    otherwise: '"512KB"',
    sentence:
      "How many bytes of an answer are taken, on the wire and decoded. Larger answers fail the request, or go to a blob.",
  },
  ok: {
    type: "code",
    default: null,
    takes: "a function of the status",
    accepts: (value) => typeof value === "function",
    otherwise: "200 to 299",
    sentence: "Which statuses are accepted answers.",
  },
  "timeouts.connect": {
    type: "duration",
    default: "10s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "Until it is connected.",
  },
  "timeouts.headers": {
    type: "duration",
    default: "60s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "From the request to the head of the answer.",
  },
  "timeouts.body": {
    type: "duration",
    default: "30s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "Between two pieces of the answer's body.",
  },
  "timeouts.total": {
    type: "duration",
    default: "2m",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "From the beginning of an attempt to the last byte of its answer, redirects included.",
  },
  key: {
    type: "code",
    default: null,
    takes: "a function of the input that returns a text",
    accepts: (value) => typeof value === "function",
    otherwise: "the host of the URL",
    sentence: "Which requests share limits, order, circuit and pauses.",
  },
  "limit.inFlight": {
    type: "integer",
    default: null,
    otherwise: "any number",
    min: 1,
    max: 1e5,
    sentence: "How many requests of a key are in flight at once, over all workers.",
  },
  "limit.rate": {
    type: "code",
    default: null,
    takes: 'a number per second, minute or hour: "20/s", "100/m"',
    accepts: (value) => typeof value === "string",
    otherwise: "any number",
    sentence: "How many requests of a key start per second, minute or hour, over all workers.",
  },
  "limit.burst": {
    type: "integer",
    default: 1,
    min: 1,
    max: 1e5,
    sentence: "How many may start at once after a pause.",
  },
  order: {
    type: "word",
    default: "none",
    words: ["none", "strict"],
    sentence:
      '"strict": the requests of a key are sent one after the other, as they were enqueued, each after the end of the one before.',
  },
  fair: {
    type: "boolean",
    default: false,
    sentence: "Whether keys take turns, so that a key with few requests does not wait behind one with many.",
  },
  "breaker.failures": {
    type: "integer",
    default: 5,
    min: 1,
    max: 1e6,
    sentence:
      "After so many failures in a row of one key in one process its circuit opens: no process sends to the key for a while.",
  },
  "breaker.pause": {
    type: "duration",
    default: "30s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "How long a circuit stays open at first; twice as long each further time, up to an hour.",
  },
  "disable.statuses": {
    type: "code",
    default: null,
    takes: "an array of statuses",
    accepts: Array.isArray,
    otherwise: "[410]",
    sentence: "Answers after which nothing is sent to the key until it is resumed.",
  },
  "disable.failures": {
    type: "integer",
    default: null,
    otherwise: "never",
    min: 1,
    max: 1e3,
    sentence: "After so many failures of one request nothing is sent to its key until it is resumed.",
  },
  "disable.after": {
    type: "duration",
    default: null,
    otherwise: "never",
    max: LONGEST,
    sentence: "After a request has failed for so long nothing is sent to its key until it is resumed.",
  },
  idempotency: {
    type: "code",
    default: null,
    takes: '"bare", "quoted", "off" or { header: NAME }',
    accepts: (value) => ["bare", "quoted", "off"].includes(value as string) || isRecord(value),
    otherwise: '"bare" for POST and PATCH, "off" for the others',
    sentence: "The header `idempotency-key`, the same at each sending of a request.",
  },
  "redirects.max": {
    type: "integer",
    default: 0,
    min: 0,
    max: 20,
    sentence: "How many redirects are followed, each checked as the first URL was; 0: a redirect is a failed answer.",
  },
  "redirects.sameOrigin": {
    type: "boolean",
    default: true,
    sentence: "Whether only redirects to the same origin are followed.",
  },
  addresses: {
    type: "code",
    default: null,
    takes: '"public", "any", or an array of hosts and CIDRs',
    accepts: (value) => value === "public" || value === "any" || Array.isArray(value),
    otherwise: '"public"',
    sentence:
      "Which addresses may be reached. Every address of a name and every literal is checked, and that of the connection again before anything is sent.",
  },
  protocols: {
    type: "code",
    default: null,
    takes: '["https:"] or ["http:", "https:"]',
    accepts: Array.isArray,
    otherwise: '["https:"]; with other `addresses` than "public" also "http:"',
    sentence: "The schemes that URLs may have.",
  },
  http2: {
    type: "boolean",
    default: false,
    sentence: "Offers HTTP/2. For thousands of requests to one API: 100 share a connection.",
  },
  proxy: {
    type: "code",
    default: null,
    takes: "the URL of an HTTP proxy, or { url, filters: true } if it checks addresses itself",
    accepts: (value) => typeof value === "string" || isRecord(value),
    otherwise: "none; the environment is not read",
    sentence: 'Sends through a proxy, which resolves names: with `addresses: "public"` it must say that it filters.',
  },
  tls: {
    type: "code",
    default: null,
    takes: "{ ca, cert, key }: own authorities as PEM, and a client certificate and key as secrets",
    accepts: isRecord,
    otherwise: "the authorities of Node",
    sentence:
      "Own authorities in addition to those of Node, and a client certificate. Certificates are always verified.",
  },
  localAddress: {
    type: "name",
    default: "",
    pattern: /^[0-9a-fA-F.:]*$/,
    form: "an IP address",
    sentence: "The address of this machine from which connections are made.",
  },
  "retry.attempts": KIND_OPTIONS["retry.attempts"],
  "retry.crashes": KIND_OPTIONS["retry.crashes"],
  "retry.backoff": KIND_OPTIONS["retry.backoff"],
  "retry.backoff.type": KIND_OPTIONS["retry.backoff.type"],
  "retry.backoff.base": KIND_OPTIONS["retry.backoff.base"],
  "retry.backoff.max": KIND_OPTIONS["retry.backoff.max"],
  "retry.backoff.jitter": KIND_OPTIONS["retry.backoff.jitter"],
  "retry.giveUpAfter": {
    type: "duration",
    default: null,
    otherwise: "never",
    max: LONGEST,
    sentence: "So long after its first failure a request is not tried again, however many attempts it has left.",
  },
  "retry.schedule": {
    type: "code",
    default: null,
    takes: "an array of durations",
    accepts: Array.isArray,
    otherwise: "the backoff",
    sentence: "How long to wait after each failure, in order. It also says how many attempts there are.",
  },
  "retry.statuses": {
    type: "code",
    default: null,
    takes: "an array of statuses",
    accepts: Array.isArray,
    otherwise: "none",
    sentence: "Statuses that are tried again in addition to 408, 425, 429, 500, 502, 503, 504 and 507.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `collection()` in addition to those of `job()`. */
export const COLLECTION_OPTIONS = {
  input: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of the input, which `request`, `done` and `abandoned` get.",
  },
  series: {
    type: "code",
    default: null,
    takes: "a list of 1 to 100 different names, each of 1 to 100 letters, digits, - and _",
    accepts: (value) =>
      Array.isArray(value) &&
      value.length >= 1 &&
      value.length <= 100 &&
      new Set(value).size === value.length &&
      value.every((name) => typeof name === "string" && /^[A-Za-z0-9_-]{1,100}$/.test(name)),
    otherwise: "it must be given",
    sentence: "The names of its series, 1 to 100. Each is complete by its own number of parts; others are refused.",
  },
  "message.max": {
    type: "code",
    default: null,
    takes: 'a number of bytes from 1 to 512000000, or a text such as "16MB"',
    accepts: (value) => isBytes(value, 512e6),
    otherwise: "16MB",
    sentence: "How many bytes one part may have, at most 512 MB. A larger one is refused, or parked.",
  },
  memory: {
    type: "code",
    default: null,
    takes: 'a number of bytes from 1 to 64000000000, or a text such as "256MB"',
    accepts: (value) => isBytes(value, 64e9),
    otherwise: "256MB",
    sentence:
      "How many bytes of messages one process holds at once, at most 64 GB and not less than `message.max`: the broker keeps the others.",
  },
  "abandonAfter.idle": {
    type: "duration",
    default: "1h",
    min: "10ms",
    max: "3650d",
    sentence: "A collection to which nothing came for so long is abandoned.",
  },
  "abandonAfter.total": {
    type: "duration",
    default: "7d",
    min: "10ms",
    max: "3650d",
    sentence: "A collection that is not complete so long after it was opened is abandoned.",
  },
  keep: {
    type: "duration",
    default: "7d",
    max: "3650d",
    sentence: "How long the parts of a collection that has ended are kept, with their blobs.",
  },
  queues: {
    type: "word",
    default: "shared",
    words: ["shared", "per-collection"],
    sentence:
      'With a broker: "shared" queues for all collections of the kind, or "per-collection" ones named transaction-ID-header and transaction-ID-payload. A queue that is younger than a second may lose confirmed messages if its broker is killed.',
  },
} as const satisfies Readonly<Record<string, Setting>>;

function isBytes(value: unknown, max: number): boolean {
  const number = typeof value === "string" && /^\d+(\.\d+)?[KMG]B$/.test(value) ? bytesIn(value) : value;
  return typeof number === "number" && Number.isFinite(number) && number >= 1 && number <= max;
}

function bytesIn(text: string): number {
  const exponent = { K: 3, M: 6, G: 9 }[text.at(-2) as "K" | "M" | "G"];
  return Number(text.slice(0, -2)) * 10 ** exponent;
}

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

const MIDDLEWARE_PARTS = ["enqueue", "attempt", "ended", "event"] as const;

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}
