// The options of `open`, of a worker and of a kind: their types, and the settings that they come to, in ms and with the store's defaults.
// What each takes is in the tables of settings.ts, from which the comments here are made (`npm run settings`); limits between two options
// are here.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { BlobStore } from "../blobs/blob-store.ts";
import type { Broker } from "../stores/broker.ts";
import { type AnyContract, JobContract, type Named, type NamedKind } from "../job/contract.ts";
import { assertKey, assertKind, MAX_EXPIRY_MS } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, type StoredError } from "../job/errors.ts";
import type { EngineEvent } from "../job/events.ts";
import { type Backoff, type CrashAction, type KindRetention, type KindSettings, TERMINAL_STATES } from "../job/job.ts";
import type { Json, JsonOf } from "../job/json.ts";
import {
  FAIR,
  jobKey,
  type JobKey,
  type KeyLimit,
  type KeyPause,
  type LimitSettings,
  MAX_WEIGHT,
} from "../job/limits.ts";
import { nearest } from "../job/text.ts";
import { type Clock, type Duration, durationMs } from "../job/time.ts";
import type { RetentionTimes } from "../recovery/retention.ts";
import type { StartUpOptions } from "../stores/backend.ts";
import type { RepairMode } from "../stores/store-parts.ts";
import type { LivenessTimes } from "../stores/liveness.ts";
import type { PostgresOptions } from "../stores/postgres/address.ts";
import type { RedisOptions } from "../stores/redis/address.ts";
import type { StoreName } from "../stores/registry.ts";
import type { Wire } from "../requests/wire.ts";
import type { SecretSource } from "../requests/secrets.ts";
import type { ScheduleDeclaration } from "../schedules/declaration.ts";
import type { Logger } from "../telemetry/log.ts";
import type { Concurrency } from "../worker/executor.ts";
import { KIND_DEFAULTS, KIND_OPTIONS } from "./kind-options.ts";
import type { Middleware } from "./middleware.ts";
import { check, refuse } from "./option-checks.ts";
import {
  DEFAULT_STORE,
  defaultOf,
  LEASE_INTERVALS,
  PROGRAM_OPTIONS,
  type SettingKey,
  SETTINGS,
  WORKER_OPTIONS,
} from "./settings.ts";

/** What `jobs` takes: what `job()`, `batch()`, `request()`, `collection()` or `schedule()` returned. */
export type Declared =
  | (NamedKind & {
      /** Its options, checked and with their defaults. */
      readonly settings: object;
    })
  | ScheduleDeclaration;

/**
 * The names of the kinds among what was declared. It is `string` as soon as the compiler does not know one of them: TypeScript
 * infers all type arguments of a call or none, so `job<In>("mail")` does not tell it the name, and `job<In, Result, "mail">("mail")` does.
 */
export type KindsOf<Jobs extends readonly Declared[]> = Exclude<Jobs[number], ScheduleDeclaration>["name"];

/** The options of `open`. */
export interface EngineOptions {
  /** The kinds, batches, requests, collections and schedules of this program. Only these can be enqueued and run here. Default: none. */
  readonly jobs?: readonly Declared[];
  /** How often a worker shows that it is alive, and when it counts as lost. `RELAXED_HEARTBEAT` is a preset. */
  readonly heartbeat?: {
    /** How often a worker reports that it is alive. `RELAXED_HEARTBEAT` of `outlive` is a preset for this, the lease and the sweep: 30 s, 60 s, 60 s. Default "30s" on SQLite, "10s" on PostgreSQL and Redis; from "50ms" to "24d". */
    readonly interval?: Duration;
    /** How long a worker may be silent before its jobs are taken from it. Default: 3 intervals; at most "3650d"; at least 2 intervals. */
    readonly lease?: Duration;
    /** How often every worker is checked and old rows are purged. Default "60s" on SQLite, "10s" on PostgreSQL and Redis; from "100ms" to "24d". */
    readonly sweep?: Duration;
    /** How often a worker checks whether the other workers are alive: their processes, locks and sessions. Default "250ms"; from "10ms" to "24d"; not longer than the lease. */
    readonly probe?: Duration;
    /** How long a worker on another host may be missing from the server before its jobs are taken from it (PostgreSQL, Redis). On the same host the kernel proves a death at once. Default "3s"; from "500ms" to "3650d"; not longer than the lease. */
    readonly contact?: Duration;
  };
  /** What recovery does, and what it waits for. */
  readonly recovery?: {
    /** The default of `onCrash` for kinds that do not set it. Default "retry". */
    readonly onCrash?: CrashAction;
    /** The default of `retry.crashes` for kinds that do not set it. Default 3; from 1 to 1000. */
    readonly crashes?: number;
    /** Whether `open` first checks the integrity of a SQLite file that no other process uses: quickly after a clean stop, in full after any other end. `open` waits 1 s for the check; a longer one continues in the background. Default true. */
    readonly integrityCheckOnStartup?: boolean;
    /** What `open` does about a damaged SQLite file. "reindex" repairs what can be repaired without loss; "auto" also salvages what can be read into a new file and keeps the old one; "off" does nothing. Default "reindex". */
    readonly repair?: RepairMode;
  };
  /** How long what has ended is kept. */
  readonly retention?: {
    /** How long finished jobs are kept. Default "7d"; at most "3650d". */
    readonly finished?: Duration;
    /** How long incidents are kept. Default "90d"; at most "3650d". */
    readonly incidents?: Duration;
  };
  /** How often an idle worker polls for jobs that no wake-up announced. One worker polls for all; while it sees that wake-ups arrive, the other idle workers poll only every 10 s, or at this interval if it is longer. On PostgreSQL that poll is a part of a heartbeat, and a turn follows only if something may wait. Default "1s"; from "10ms" to "24d". */
  readonly poll?: Duration;
  /** For a PostgreSQL store behind a transaction pooler: the Redis server through which workers show that they are alive, so that the loss of a host is noticed before its lease ends. Jobs and their owners stay in PostgreSQL. Default "none"; the address of a Redis server, such as "redis://host:6379", or "none". */
  readonly liveness?: string;
  /** "full": what was acknowledged survives a power loss. "relaxed": it survives the death of any process, but a power loss may lose the last moments. Default "full". */
  readonly durability?: "full" | "relaxed";
  /** Options of a store on SQLite. */
  readonly sqlite?: {
    /** Opens the file even if this Node's SQLite has a known bug, or on Windows. Default false. */
    readonly allowUnsafe?: boolean;
    /** Opens a file even if it is on a network file system. Default false. */
    readonly allowNetworkFilesystem?: boolean;
  };
  /** Opens the store for reading only, even a damaged one: nothing is claimed, written or recovered. The store must exist. Default false. */
  readonly readOnly?: boolean;
  /** The clock of a test, for "sqlite::memory:" only: delays, retries, sleeps and schedules advance when the test moves it. Default: the clock of this machine, or of the server. */
  readonly clock?: Clock;
  /** Options of a store on PostgreSQL. */
  readonly postgres?: PostgresOptions;
  /** Options of a store on Redis or Valkey. */
  readonly redis?: RedisOptions;
  /** Receives the log; false turns it off. Default: `console`, warnings and recoveries only. */
  readonly logger?: Logger | false;
  /** Where output files of batches and parts of collections are stored. Collections need it, and so do batches whose rows write output files. Default: none. */
  readonly blobs?: string | BlobStore;
  /** The values of the secrets that requests refer to, by name: strings, functions, or one function for all. They never appear in the store, the log or an error. Default: none. */
  readonly secrets?: SecretSource;
  /** Replaces the network in tests: what `answers` of `outlive/testing` returned. Default: the network. */
  readonly network?: Wire;
  /** The message broker from which collections get their parts, and to which they publish. Default: none. */
  readonly broker?: string | Broker;
  /** Code that wraps every enqueue and every attempt of this program; the first is the outermost. Default: none. */
  readonly middleware?: readonly Middleware[];
  /** Receives every event from the start, including those of the recovery that `open` runs. Default: none. */
  readonly onEvent?: (event: EngineEvent) => void;
}

/** A number for some kinds. Callbacks of a request have their own kinds, such as `hook.response`. */
export type NumberPerKind<Kinds extends string> = string extends Kinds
  ? Readonly<Record<string, number>>
  : { readonly [Kind in Kinds | `${Kinds}.${string}`]?: number };

/** The options of `engine.work` and `engine.start`. */
export interface WorkOptions<Kinds extends string = string> {
  /** Runs only these kinds. Default: all of `jobs` that have a handler. */
  readonly only?: readonly {
    /** The kind's name. */
    readonly name: string;
  }[];
  /** How many jobs run at once: a number, or a number per kind; the other kinds share the default. Default 10; from 1 to 10000. */
  readonly concurrency?: number | NumberPerKind<Kinds>;
  /** Stops the worker when it aborts. Default: none. */
  readonly signal?: AbortSignal;
  /** How long a stopping worker waits for its running jobs after `signal` aborted. Default "25s"; at most "24d". */
  readonly grace?: Duration;
}

/** The settings that `open` takes: all but those of the command line. */
export type EngineSettingKey = Exclude<SettingKey, "store" | "jobs" | `work.${string}`>;

export function isEngineSetting(key: SettingKey): key is EngineSettingKey {
  return key !== "store" && key !== "jobs" && !key.startsWith("work.");
}

const ENGINE_OPTIONS = {
  ...Object.fromEntries(Object.entries(SETTINGS).filter(([key]) => isEngineSetting(key as SettingKey))),
  ...PROGRAM_OPTIONS,
};

export interface EngineSettings {
  readonly times: LivenessTimes;
  readonly retention: RetentionTimes;
  readonly pollMs: number;
  readonly onCrash: CrashAction;
  readonly maxCrashes: number;
  readonly startUp: StartUpOptions;
  readonly readOnly: boolean;
}

/**
 * A preset for `heartbeat`: interval 30 s, lease 60 s, sweep 60 s. Few writes, and a worker of whose death there is no other evidence is recovered within
 * two minutes.
 */
export const RELAXED_HEARTBEAT = {
  /** A sign of life every 30 seconds. */
  interval: "30s",
  /** Two missed ones are a death. */
  lease: "60s",
  /** Looked for every minute. */
  sweep: "60s",
} as const satisfies EngineOptions["heartbeat"];

/** The options of `open` in ms and with the store's defaults, or an error that says what is wrong with them. */
export function engineSettings(options: EngineOptions, store: StoreName = DEFAULT_STORE): EngineSettings {
  check("open", ENGINE_OPTIONS, options);
  const { heartbeat = {}, recovery = {}, retention = {}, postgres = {} } = options;
  refuse(
    postgres.pool !== undefined && postgres.connections !== undefined,
    "postgres.connections",
    "is set together with a pool, which has its own limit",
    "Remove it, or the pool.",
  );
  return {
    times: livenessTimes(heartbeat, store),
    retention: {
      finishedMs: durationMs(retention.finished ?? defaultOf("retention.finished"), "retention.finished"),
      incidentsMs: durationMs(retention.incidents ?? defaultOf("retention.incidents"), "retention.incidents"),
    },
    pollMs: durationMs(options.poll ?? defaultOf("poll"), "poll"),
    onCrash: recovery.onCrash ?? defaultOf("recovery.onCrash"),
    maxCrashes: recovery.crashes ?? defaultOf("recovery.crashes"),
    startUp: {
      integrityCheck: recovery.integrityCheckOnStartup ?? defaultOf("recovery.integrityCheckOnStartup"),
      repair: recovery.repair ?? defaultOf("recovery.repair"),
    },
    readOnly: options.readOnly ?? PROGRAM_OPTIONS.readOnly.default,
  };
}

function livenessTimes(heartbeat: NonNullable<EngineOptions["heartbeat"]>, store: StoreName): LivenessTimes {
  const ms = (name: "interval" | "sweep" | "probe" | "contact"): number =>
    durationMs(heartbeat[name] ?? defaultOf(`heartbeat.${name}`, store), `heartbeat.${name}`);
  const heartbeatMs = ms("interval");
  const leaseMs =
    heartbeat.lease === undefined ? LEASE_INTERVALS * heartbeatMs : durationMs(heartbeat.lease, "heartbeat.lease");
  refuse(
    leaseMs < 2 * heartbeatMs,
    "heartbeat.lease",
    "is shorter than two heartbeat intervals, so one lost heartbeat would count as a death",
    "Use at least two intervals; three is the default.",
  );
  const probeMs = ms("probe");
  refuse(
    probeMs > leaseMs,
    "heartbeat.probe",
    "is longer than the lease",
    `Use a shorter one; "${defaultOf("heartbeat.probe")}" is the default.`,
  );
  refuse(
    heartbeat.contact !== undefined && ms("contact") > leaseMs,
    "heartbeat.contact",
    "is longer than the lease",
    `Use a shorter one; "${defaultOf("heartbeat.contact")}" is the default.`,
  );
  // The default of `contact` may be longer than a short lease.
  return { heartbeatMs, leaseMs, sweepMs: ms("sweep"), probeMs, contactMs: Math.min(ms("contact"), leaseMs) };
}

interface WorkSettings {
  readonly concurrency: Concurrency;
  readonly graceMs: number;
}

/** `requests`: the kinds that are sent, and not run. They have room of their own. `own`: those of `kinds` that this process has. */
export function workSettings(
  options: WorkOptions,
  kinds: readonly string[],
  requests: readonly string[] = [],
  own: readonly string[] = kinds,
): WorkSettings {
  check("work", WORKER_OPTIONS, options);
  const concurrency = concurrencyOf(options.concurrency ?? WORKER_OPTIONS.concurrency.default, kinds, own);
  const sent = requests.filter((kind) => own.includes(kind));
  const runs = sent.length < own.length;
  return {
    concurrency: sent.length === 0 ? concurrency : withRequests(concurrency, sent, runs),
    graceMs: graceOf(options),
  };
}

/** How many requests of a kind are in flight in one process, unless `concurrency` names the kind. */
const REQUESTS_IN_FLIGHT = 256;

/** `runs`: there are also kinds that are run, and a plain number is that of all of them. */
function withRequests({ total, perKind, others }: Concurrency, sent: readonly string[], runs: boolean): Concurrency {
  const unnamed = sent.filter((kind) => !perKind.has(kind));
  const ofOthers = others ?? total;
  return {
    total: total - (runs ? 0 : ofOthers) + unnamed.length * REQUESTS_IN_FLIGHT,
    perKind: new Map([...perKind, ...unnamed.map((kind) => [kind, REQUESTS_IN_FLIGHT] as const)]),
    others: runs ? ofOthers : 0,
    gathered: new Set(sent),
  };
}

/** How long a stopping worker lets its jobs finish. */
export function graceOf({ grace = WORKER_OPTIONS.grace.default }: { readonly grace?: Duration }): number {
  check("stop", { grace: WORKER_OPTIONS.grace }, { grace });
  return durationMs(grace, "grace");
}

function concurrencyOf(
  given: number | Readonly<Record<string, number>>,
  kinds: readonly string[],
  own: readonly string[],
): Concurrency {
  if (typeof given === "number") return { total: given, perKind: new Map() };
  for (const kind of Object.keys(given)) {
    const near = nearest(kind, kinds);
    refuse(
      !kinds.includes(kind),
      `concurrency.${kind}`,
      "names a kind that this worker does not run",
      near === null ? `It runs ${kinds.join(", ") || "none"}.` : `Did you mean ${near}?`,
    );
  }
  const perKind = new Map(Object.entries(given).filter(([kind]) => own.includes(kind)));
  const others = own.some((kind) => !perKind.has(kind)) ? WORKER_OPTIONS.concurrency.default : 0;
  return { total: [...perKind.values()].reduce((sum, limit) => sum + limit, others), perKind, others };
}

// The options of a kind.

/** How a kind retries. */
export interface RetryOptions {
  /** How many attempts may end with an error before the job is dead. Timeouts and crashes have their own limits, and a shutdown is not counted. Default 10; from 1 to 1000. */
  readonly attempts?: number;
  /** How many attempts may pass their deadline before the job is dead. Default 10; from 1 to 1000. */
  readonly timeouts?: number;
  /** How many workers may die while the job is their only suspect, before it is quarantined. The job's first crash does not count. Default: `recovery.crashes`; from 1 to 1000. */
  readonly crashes?: number;
  /** How long to wait after a failure. Default: "exponential". */
  readonly backoff?: "exponential" | "linear" | BackoffOptions | ((failures: number, error: StoredError) => Duration);
}

/** How long a job waits before its next attempt. */
export interface BackoffOptions {
  /** How the delay grows after each failure: base, 2 base, 4 base, ... or base, 2 base, 3 base, ... Default "exponential". */
  readonly type?: "exponential" | "linear";
  /** The first delay. Default "1s"; at most "3650d". */
  readonly base?: Duration;
  /** The longest delay. Default "1h"; at most "3650d"; not shorter than `base`. */
  readonly max?: Duration;
  /** The share of the delay that is random. Default 0.5; from 0 to 1. */
  readonly jitter?: number;
}

/** The options of a kind, in addition to its schema. */
export interface KindOptions {
  /** How long an attempt may run. `run.heartbeat()` starts the time again. It is measured on the worker's monotonic clock, so changes of the wall clock do not matter. Default "15m"; from "10ms" to "3650d". */
  readonly timeout?: Duration | "none";
  /** The longest that an attempt may run, even if it calls `run.heartbeat()`. Default: no cap; at most "3650d"; not shorter than the timeout, and not with a timeout of "none". */
  readonly maxRuntime?: Duration;
  /** How long a handler may continue after the deadline or a cancel aborted its signal. Default "5s"; at most "3650d". */
  readonly grace?: Duration;
  /** How often a failed job is tried again, and when. */
  readonly retry?: RetryOptions;
  /** What recovery does when a worker dies with the job: "retry" queues it again and counts a crash, "requeue" queues it again and counts nothing, "fail" ends it. Default: `recovery.onCrash`. */
  readonly onCrash?: CrashAction;
  /** How long a job may wait for its first attempt after it was due. Then it is cancelled, with the outcome "expired". Default: any time; from "1ms" to "3650d". */
  readonly expires?: Duration;
  /** How long its finished jobs are kept: one duration for all, or one for each of succeeded, dead, cancelled and quarantined. Default: `retention.finished`. */
  readonly retention?: Duration | RetentionByState;
}

/** A time for each state in which jobs end. What is omitted is kept as `retention.finished` says. */
export type RetentionByState = Readonly<Partial<Record<(typeof TERMINAL_STATES)[number], Duration>>>;

/** A limit of a kind. Kinds that name the same limit share its keys, and what was declared last counts. */
export interface LimitOptions<In = never> {
  /** The name of the limit. */
  readonly name: string;
  /** Jobs whose input gives the same text share the limit. Computed when a job is enqueued, and stored with it. Default: all jobs of the limit. */
  readonly key?: (input: In) => string;
  /** How many jobs of a key may run at once, across all workers. From 1. Default: any number. */
  readonly running?: number;
  /** How many jobs of a key may start in each `per`. Above 0. Default: any number. */
  readonly rate?: number;
  /** The period of `rate`. Default "1s". */
  readonly per?: Duration;
  /** How many may start at once after a pause. Default 1; from 1. */
  readonly burst?: number;
  /** "strict": the jobs of a key run one after the other in the order in which they were enqueued, and one that fails or waits blocks the rest until it has ended. Default: no order. */
  readonly order?: "strict";
}

/** Whose jobs of a kind take turns: those with the same text, or, with the name of one of its limits, those with the same key of it. */
export type Fair<In = never> = ((input: In) => string) | string;

interface KindChoice {
  readonly settings: KindSettings;
  readonly backoff: ((failures: number, error: StoredError) => number) | null;
  /** What was left to the engine's KIND_DEFAULTS. */
  readonly open: { readonly onCrash: boolean; readonly crashes: boolean };
}

export function kindChoice(name: string, options: KindOptions): KindChoice {
  assertKind(name);
  check(`job ${name}`, KIND_OPTIONS, options);
  const { retry = {} } = options;
  const own = typeof retry.backoff === "function" ? retry.backoff : null;
  const timeoutMs =
    options.timeout === "none" ? null : msOr(KIND_DEFAULTS.timeoutMs, options.timeout, `timeout of ${name}`);
  const maxRuntimeMs = msOr(KIND_DEFAULTS.maxRuntimeMs, options.maxRuntime, `maxRuntime of ${name}`);
  refuse(
    maxRuntimeMs !== null && timeoutMs !== null && maxRuntimeMs < timeoutMs,
    `maxRuntime of ${name}`,
    "is shorter than its timeout",
    "Make it longer, or the timeout shorter.",
  );
  refuse(
    maxRuntimeMs !== null && timeoutMs === null,
    `maxRuntime of ${name}`,
    'caps a timeout, but its timeout is "none"',
    "Set a timeout, or remove the cap.",
  );
  return {
    settings: {
      name,
      timeoutMs,
      maxRuntimeMs,
      graceMs: msOr(KIND_DEFAULTS.graceMs, options.grace, `grace of ${name}`),
      limits: {
        errors: retry.attempts ?? KIND_DEFAULTS.limits.errors,
        timeouts: retry.timeouts ?? KIND_DEFAULTS.limits.timeouts,
        crashes: retry.crashes ?? KIND_DEFAULTS.limits.crashes,
      },
      backoff: backoffOf(name, own ? undefined : retry.backoff),
      onCrash: options.onCrash ?? KIND_DEFAULTS.onCrash,
      ...(options.expires !== undefined && { expiresMs: durationMs(options.expires, `expires of ${name}`) }),
      ...(options.retention !== undefined && { retention: retentionOf(name, options.retention) }),
    },
    backoff: own ? (failures, error) => durationMs(own(failures, error), `what the backoff of ${name} returned`) : null,
    open: { onCrash: options.onCrash === undefined, crashes: retry.crashes === undefined },
  };
}

function retentionOf(name: string, given: Duration | RetentionByState): KindRetention {
  const byState: RetentionByState =
    typeof given === "object" ? given : Object.fromEntries(TERMINAL_STATES.map((state) => [state, given]));
  const times = Object.entries(byState).map(([state, time]) => {
    const what = `retention of ${name}`;
    const states: readonly string[] = TERMINAL_STATES;
    refuse(!states.includes(state), what, `names the state ${state}`, `There are ${TERMINAL_STATES.join(", ")}.`);
    const ms = durationMs(time, `retention.${state} of ${name}`);
    refuse(ms > MAX_EXPIRY_MS, what, `is ${JSON.stringify(time)} for ${state}`, 'Use at most "3650d".');
    return [state, ms] as const;
  });
  return Object.fromEntries(times);
}

function backoffOf(name: string, given: RetryOptions["backoff"]): Backoff {
  const { type, base, max, jitter } = typeof given === "string" ? { type: given } : ((given ?? {}) as BackoffOptions);
  const defaults = KIND_DEFAULTS.backoff;
  const backoff: Backoff = {
    type: type ?? defaults.type,
    baseMs: msOr(defaults.baseMs, base, `backoff.base of ${name}`),
    maxMs: msOr(defaults.maxMs, max, `backoff.max of ${name}`),
    jitter: jitter ?? defaults.jitter,
  };
  refuse(backoff.maxMs < backoff.baseMs, `backoff.max of ${name}`, "is shorter than backoff.base", "Make it longer.");
  return backoff;
}

function msOr<Default>(fallback: Default, given: Duration | undefined, what: string): number | Default {
  return given === undefined ? fallback : durationMs(given, what);
}

// `job()`: how users write the contract of a kind.

/** The schema itself if its input is JSON by type; a message for the compiler if it is not. */
type JsonSchema<S extends StandardSchemaV1> = [StandardSchemaV1.InferInput<S>] extends [
  JsonOf<StandardSchemaV1.InferInput<S>>,
]
  ? S
  : InputMustBeJson;
/** What the compiler names where an input is not JSON. */
interface InputMustBeJson {
  readonly "the input of a job is stored as JSON: no Date, Buffer, bigint, Map, Set or function in it": never;
}

/**
 * Declares a kind of job. Safe to import anywhere; attach the handler with `.handle` where workers run.
 *
 * With a schema, or without type arguments, the compiler knows the name and checks it in `concurrency`. With `job<In>("mail")` it does
 * not, because TypeScript infers all type arguments or none: a misspelt kind then fails when the worker starts. `job<In, Result, "mail">("mail")`
 * gives it the name.
 */
export function job<In = Json, Result = Json, const Name extends string = string>(
  name: Name,
  options?: KindOptions & {
    readonly input?: never;
    /** The schema of the result, which an attempt that returns another one fails. Default: any JSON. */
    readonly output?: StandardSchemaV1<unknown, Result>;
    /** Limits of its jobs, at most two. Default: none. */
    readonly limits?: readonly LimitOptions<In>[];
    /** Jobs whose input gives the same key take turns with those of other keys. Default: first come, first served. */
    readonly fair?: Fair<In>;
  },
): [In] extends [JsonOf<In>] ? Named<JobContract<In, In, Result>, Name> : InputMustBeJson;
// Last, because TypeScript shows the error of the last one: it names a misspelt option, and what is wrong with a schema.
export function job<
  S extends StandardSchemaV1,
  O extends StandardSchemaV1 = StandardSchemaV1<unknown, Json>,
  const Name extends string = string,
>(
  name: Name,
  options: KindOptions & {
    /** The schema of the input: checked at the enqueue and again before the handler runs. Default: any JSON. */
    readonly input: S & JsonSchema<S>;
    /** The schema of the result, which an attempt that returns another one fails. Default: any JSON. */
    readonly output?: O;
    /** Limits of its jobs, at most two. Default: none. */
    readonly limits?: readonly LimitOptions<StandardSchemaV1.InferInput<S>>[];
    /** Jobs whose input gives the same key take turns with those of other keys. Default: first come, first served. */
    readonly fair?: Fair<StandardSchemaV1.InferInput<S>>;
  },
): Named<
  JobContract<StandardSchemaV1.InferInput<S>, StandardSchemaV1.InferOutput<S>, StandardSchemaV1.InferOutput<O>>,
  Name
>;
export function job(
  name: string,
  options: KindOptions & {
    readonly input?: unknown;
    readonly output?: unknown;
    readonly limits?: readonly LimitOptions[];
    readonly fair?: Fair;
  } = {},
): AnyContract {
  const choice = kindChoice(name, options);
  const limits = options.limits ?? [];
  const keyed = limits.map((limit) => limitSettings(name, limit));
  refuse(keyed.length > MAX_LIMITS, `limits of ${name}`, `has ${keyed.length} limits`, `Use at most ${MAX_LIMITS}.`);
  refuse(
    new Set(keyed.map((limit) => limit.name)).size < keyed.length,
    `limits of ${name}`,
    "names a limit twice",
    "Give each limit its own name.",
  );
  const input = schemaOf(options.input, `The input of job ${name}`);
  const output = schemaOf(options.output, `The output of job ${name}`);
  const fair = fairLimit(name, options.fair, limits);
  const contract: AnyContract = new JobContract<never, never, unknown>(
    { ...choice.settings, ...(keyed.length > 0 && { keyed }), ...(fair && { fair: true }) },
    input as StandardSchemaV1<never, never> | null,
    choice.backoff,
    output,
    limits.length === 0 ? null : (given: never) => limits.map((limit) => keyOf(name, limit, given)),
    fair && ((given: never) => keyOf(name, fair, given)),
  );
  openChoices.set(contract, choice.open);
  return contract;
}

/** At most this many limits of one kind. */
const MAX_LIMITS = 2;

/** Whose key a kind is fair by; null: it is not. */
function fairLimit(
  kind: string,
  fair: Fair | undefined,
  limits: readonly LimitOptions[],
): Pick<LimitOptions, "name" | "key"> | null {
  if (fair === undefined) return null;
  if (typeof fair === "function") return { name: FAIR, key: fair };
  const named = limits.find(({ name }) => name === fair);
  refuse(
    named === undefined,
    `fair of ${kind}`,
    `is ${JSON.stringify(fair)}, and the kind has no limit of that name`,
    "Pass (input) => text, or the name of one of its limits.",
  );
  refuse(
    named?.key === undefined,
    `fair of ${kind}`,
    `names the limit ${JSON.stringify(fair)}, which has one key for all jobs`,
    "Give the limit a `key`, or pass (input) => text.",
  );
  return named!;
}

export function limitSettings(kind: string, limit: LimitOptions): LimitSettings {
  const { name, key, running = null, rate, per = "1s", burst = 1, order, ...unknown } = limit;
  const what = `limit ${JSON.stringify(name)} of ${kind}`;
  assertKind(name);
  const isCount = (value: unknown): boolean => Number.isInteger(value) && (value as number) >= 1;
  const [odd] = Object.keys(unknown);
  refuse(
    odd !== undefined,
    what,
    `has an unknown option ${odd}`,
    "There are name, key, running, rate, per, burst, order.",
  );
  refuse(
    key !== undefined && typeof key !== "function",
    what,
    "has a `key` that is not a function",
    "Pass (input) => text.",
  );
  refuse(running !== null && !isCount(running), what, `has running ${String(running)}`, "Use a whole number from 1.");
  refuse(
    rate !== undefined && !(typeof rate === "number" && rate > 0),
    what,
    `has rate ${String(rate)}`,
    "Use a number above 0.",
  );
  refuse(!isCount(burst), what, `has burst ${String(burst)}`, "Use a whole number from 1.");
  refuse(order !== undefined && order !== "strict", what, `has order ${String(order)}`, 'Use "strict", or omit it.');
  refuse(
    running === null && rate === undefined && order === undefined,
    what,
    "limits nothing",
    "Set `running`, `rate` or `order`.",
  );
  const intervalMs = rate === undefined ? null : durationMs(per, `per of ${what}`) / rate;
  return { name, running, intervalMs, burst, strict: order === "strict" };
}

/** What can be set for one key alone. What is omitted is as its limit says. */
export interface KeyLimitOptions extends Pick<LimitOptions, "running" | "rate" | "per" | "burst"> {
  /** In a kind that is fair by the key: how many of its jobs start in each round. Other keys start one. Default 1; at most 100. */
  readonly weight?: number;
}

export function keyLimit(name: string, key: string, { weight, ...own }: KeyLimitOptions): KeyLimit {
  const what = `limit ${JSON.stringify(name)} of the key ${JSON.stringify(key)}`;
  refuse(
    weight !== undefined && !(Number.isInteger(weight) && weight >= 1 && weight <= MAX_WEIGHT),
    what,
    `has weight ${String(weight)}`,
    `Use a whole number from 1 to ${MAX_WEIGHT}.`,
  );
  if (weight !== undefined && Object.keys(own).length === 0) return { weight };
  const { running, intervalMs, burst } = limitSettings(`the key ${JSON.stringify(key)}`, { name, ...own });
  return {
    ...(weight !== undefined && { weight }),
    ...(own.running !== undefined && { running }),
    ...(own.rate !== undefined && { intervalMs }),
    ...(own.burst !== undefined && { burst }),
  };
}

/** How a key is paused. */
export interface KeyPauseOptions {
  /** Why; `outlive why` shows it. 1 to 255 characters. */
  readonly reason: string;
  /** How long. Default: until it is resumed. */
  readonly for?: Duration;
  /** Who pauses it, for the audit. Default "operator". 1 to 255 characters. */
  readonly actor?: string;
}

export function keyPause(limit: string, key: string, { reason, for: duration }: KeyPauseOptions): KeyPause {
  const what = `The pause of the key ${JSON.stringify(key)} of the limit ${JSON.stringify(limit)}`;
  assertKey(reason, `${what}: its reason`);
  return { reason, forMs: duration === undefined ? null : durationMs(duration, what) };
}

function keyOf(kind: string, { name, key }: Pick<LimitOptions, "name" | "key">, input: never): JobKey {
  const text = key === undefined ? "*" : key(input);
  assertKey(text, `The key of the limit ${JSON.stringify(name)} of a ${kind} job`);
  return jobKey(name, text);
}

export function schemaOf(given: unknown, what: string): StandardSchemaV1 | null {
  if (given === undefined) return null;
  if (typeof (given as StandardSchemaV1)?.["~standard"]?.validate === "function") return given as StandardSchemaV1;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${what} is not a schema.`,
    "Pass a Standard Schema: zod, valibot, arktype and others make them.",
    { what },
  );
}

/** What each contract left to the engine's defaults. Not part of the contract: two engines may differ. */
const openChoices = new WeakMap<object, { readonly onCrash: boolean; readonly crashes: boolean }>();

export function settingsWithDefaults(
  contract: AnyContract,
  defaults: { onCrash: CrashAction; maxCrashes: number },
): KindSettings {
  const open = openChoices.get(contract);
  const { settings } = contract;
  return {
    ...settings,
    onCrash: open?.onCrash ? defaults.onCrash : settings.onCrash,
    limits: open?.crashes ? { ...settings.limits, crashes: defaults.maxCrashes } : settings.limits,
  };
}
