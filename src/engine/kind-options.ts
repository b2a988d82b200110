// The options of a kind: their types, and the settings that they come to. What each takes is in the table KIND_OPTIONS of
// settings.ts, from which the comments here are made (`npm run settings`).
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type AnyContract, JobContract } from "../job/contract.ts";
import { assertKind } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, type StoredError } from "../job/errors.ts";
import type { Backoff, CrashAction, KindSettings } from "../job/job.ts";
import type { Json, JsonOf } from "../job/json.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { check, refuse } from "./option-checks.ts";
import { KIND_DEFAULTS, KIND_OPTIONS } from "./settings.ts";

/** How a kind retries. */
export interface RetryOptions {
  /** How many attempts may end with an error before the job is dead. Timeouts and crashes have their own limits, and a shutdown counts toward none. Default 10; from 1 to 1000. */
  readonly attempts?: number;
  /** How many attempts may pass their deadline before the job is dead. Default 10; from 1 to 1000. */
  readonly timeouts?: number;
  /** How many workers may die, after the first crash of the job, while it is their only suspect, before it is quarantined. Default: `recovery.crashes`; from 1 to 1000. */
  readonly crashes?: number;
  /** How long to wait after a failure. Default: "exponential". */
  readonly backoff?: "exponential" | "linear" | BackoffOptions | ((failures: number, error: StoredError) => Duration);
}

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
  /** How long an attempt may run, counted again from each `run.heartbeat()`, on the worker's monotonic clock: a change of the wall clock neither shortens nor extends it. Default "15m"; from "10ms" to "3650d". */
  readonly timeout?: Duration | "none";
  /** The longest an attempt may run, whatever its heartbeats. Default: no cap; at most "3650d"; not shorter than the timeout, and not with a timeout of "none". */
  readonly maxRuntime?: Duration;
  /** How long a handler may go on after its signal was aborted by the deadline or a cancel. Default "5s"; at most "3650d". */
  readonly grace?: Duration;
  readonly retry?: RetryOptions;
  /** What recovery does when a worker dies with the job: "retry" queues it again and counts a crash, "requeue" queues it again and counts nothing, "fail" ends it. Default: `recovery.onCrash`. */
  readonly onCrash?: CrashAction;
}

export interface KindChoice {
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
    },
    backoff: own ? (failures, error) => durationMs(own(failures, error), `what the backoff of ${name} returned`) : null,
    open: { onCrash: options.onCrash === undefined, crashes: retry.crashes === undefined },
  };
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
export interface InputMustBeJson {
  readonly "the input of a job is stored as JSON: no Date, Buffer, bigint, Map, Set or function in it": never;
}

/** Declares a kind of job. Safe to import anywhere; attach the handler with `.handle` where workers run. */
export function job<S extends StandardSchemaV1, O extends StandardSchemaV1 = StandardSchemaV1<unknown, Json>>(
  name: string,
  options: KindOptions & { readonly input: S & JsonSchema<S>; readonly output?: O },
): JobContract<StandardSchemaV1.InferInput<S>, StandardSchemaV1.InferOutput<S>, StandardSchemaV1.InferOutput<O>>;
export function job<In = Json, Result = Json>(
  name: string,
  options?: KindOptions & { readonly input?: never; readonly output?: StandardSchemaV1<unknown, Result> },
): [In] extends [JsonOf<In>] ? JobContract<In, In, Result> : InputMustBeJson;
export function job(
  name: string,
  options: KindOptions & { readonly input?: unknown; readonly output?: unknown } = {},
): AnyContract {
  const choice = kindChoice(name, options);
  const input = schemaOf(options.input, `The input of job ${name}`);
  const output = schemaOf(options.output, `The output of job ${name}`);
  const contract: AnyContract = new JobContract<never, never, unknown>(
    choice.settings,
    input as StandardSchemaV1<never, never> | null,
    choice.backoff,
    output,
  );
  openChoices.set(contract, choice.open);
  return contract;
}

function schemaOf(given: unknown, what: string): StandardSchemaV1 | null {
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
