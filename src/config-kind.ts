// The options of a kind: documented once, defaulted once, validated once.
import * as v from "valibot";
import { check, crashAction, duration, limit, method, options, refuse } from "./config-checks.ts";
import { type Duration, durationMs } from "./core/duration.ts";
import type { StoredError } from "./core/errors.ts";
import { assertKind } from "./core/ids.ts";
import type { Backoff, CrashAction, KindSettings } from "./core/job.ts";
import { KIND_DEFAULTS } from "./core/kind.ts";

/** How a kind retries. */
export interface RetryOptions {
  /** Attempts that may fail before the job is dead. Default 10, from 1 to 1000. */
  readonly errors?: number;
  /** Attempts that may pass their deadline before the job is dead. Default 10, from 1 to 1000. */
  readonly timeouts?: number;
  /** Workers that may die while the job runs alone before it is quarantined. Default 3, from 1 to 1000. */
  readonly crashes?: number;
  /** How long to wait after a failure: "exponential" (default), "linear", their numbers, or a function of your own. */
  readonly backoff?: "exponential" | "linear" | BackoffOptions | ((failures: number, error: StoredError) => Duration);
}

export interface BackoffOptions {
  /** Default "exponential": base, 2 base, 4 base, ... */
  readonly type?: "exponential" | "linear";
  /** The first delay. Default "1s". */
  readonly base?: Duration;
  /** The longest delay. Default "1h". */
  readonly max?: Duration;
  /** The share of the delay that is random, 0 to 1. Default 0.5. */
  readonly jitter?: number;
}

/** The options of a kind, beside its schema. */
export interface KindOptions {
  /** How long an attempt may run, counted again from each `run.heartbeat()`. Default "15m"; "none" must be said. At least "10ms". */
  readonly timeout?: Duration | "none";
  /** The longest an attempt may run, whatever its heartbeats say. Default: no cap. */
  readonly maxRuntime?: Duration;
  /** How long a handler may go on after its signal was aborted by the deadline or a cancel. Default "5s". */
  readonly grace?: Duration;
  readonly retry?: RetryOptions;
  /** What recovery does when a worker dies with the job: "retry" counts a crash, "pending" does not, "fail" ends the job. Default: the engine's `recovery.action`. */
  readonly onCrash?: CrashAction;
}

const types = v.picklist(["exponential", "linear"]);
const backoffWord = v.union([types, method], 'must be "exponential", "linear", a function, or an object');
const backoffObject = options({
  type: types,
  base: duration,
  max: duration,
  jitter: v.pipe(v.number(), v.minValue(0), v.maxValue(1)),
});

const kindOptions = options({
  input: v.unknown(),
  timeout: v.union([v.literal("none"), duration]),
  maxRuntime: duration,
  grace: duration,
  retry: options({
    errors: limit,
    timeouts: limit,
    crashes: limit,
    backoff: v.lazy((given) => (typeof given === "object" ? backoffObject : backoffWord)),
  }),
  onCrash: crashAction,
});

export interface KindChoice {
  readonly settings: KindSettings;
  readonly backoff: ((failures: number, error: StoredError) => number) | null;
  /** What was left to the engine's defaults. */
  readonly open: { readonly onCrash: boolean; readonly crashes: boolean };
}

export function kindChoice(name: string, options: KindOptions): KindChoice {
  assertKind(name);
  check(`job ${name}`, kindOptions, options);
  const { retry = {} } = options;
  const timeoutMs =
    options.timeout === "none" ? null : msOr(KIND_DEFAULTS.timeoutMs, options.timeout, `timeout of ${name}`);
  const maxRuntimeMs = msOr(KIND_DEFAULTS.maxRuntimeMs, options.maxRuntime, `maxRuntime of ${name}`);
  refuse(timeoutMs !== null && timeoutMs < 10, `timeout of ${name}`, "is shorter than 10ms", "Use at least 10ms.");
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
    "Say a timeout, or leave the cap out.",
  );
  const own = typeof retry.backoff === "function" ? retry.backoff : null;
  const { limits } = KIND_DEFAULTS;
  return {
    settings: {
      name,
      timeoutMs,
      maxRuntimeMs,
      graceMs: msOr(KIND_DEFAULTS.graceMs, options.grace, `grace of ${name}`),
      limits: {
        errors: retry.errors ?? limits.errors,
        timeouts: retry.timeouts ?? limits.timeouts,
        crashes: retry.crashes ?? limits.crashes,
      },
      backoff: backoffOf(name, own ? undefined : retry.backoff),
      onCrash: options.onCrash ?? KIND_DEFAULTS.onCrash,
    },
    backoff: own ? (failures, error) => durationMs(own(failures, error), `what the backoff of ${name} returned`) : null,
    open: { onCrash: options.onCrash === undefined, crashes: retry.crashes === undefined },
  };
}

function backoffOf(name: string, given: RetryOptions["backoff"]): Backoff {
  const defaults = KIND_DEFAULTS.backoff;
  const {
    type = defaults.type,
    base,
    max,
    jitter = defaults.jitter,
  } = typeof given === "string" ? { type: given } : ((given ?? {}) as BackoffOptions);
  const backoff: Backoff = {
    type,
    baseMs: msOr(defaults.baseMs, base, `backoff.base of ${name}`),
    maxMs: msOr(defaults.maxMs, max, `backoff.max of ${name}`),
    jitter,
  };
  refuse(backoff.maxMs < backoff.baseMs, `backoff.max of ${name}`, "is shorter than backoff.base", "Make it longer.");
  return backoff;
}

function msOr<Default>(fallback: Default, given: Duration | undefined, what: string): number | Default {
  return given === undefined ? fallback : durationMs(given, what);
}
