// The options of `open` and of a worker: documented once, defaulted once, validated once. An unknown key, a value out of its limits
// or an impossible pair is an error that names the option, before anything is opened.
import * as v from "valibot";
import type { StoreName } from "./backends.ts";
import {
  check,
  crashAction,
  duration,
  limit,
  method,
  options as optionsOf,
  refuse,
  refuseLongTimer,
  wholeNumber,
} from "./config-checks.ts";
import type { StartUpOptions } from "./core/backend.ts";
import { type Duration, durationMs } from "./core/duration.ts";
import type { EngineEvent } from "./core/events.ts";
import type { RepairMode } from "./core/integrity.ts";
import type { CrashAction } from "./core/job.ts";
import type { LivenessTimes } from "./core/liveness.ts";
import type { RetentionTimes } from "./core/retention.ts";
import type { Concurrency } from "./core/slots.ts";
import type { PostgresOptions } from "./stores/postgres/address.ts";
import type { Logger } from "./telemetry/log.ts";

/** The options of `open`. */
export interface EngineOptions {
  /** The kinds that this program knows. Only these can be enqueued and run here. */
  readonly jobs?: readonly object[];
  readonly heartbeat?: {
    /** How often a worker says that it lives. Default "30s" on SQLite, "10s" on PostgreSQL; from "50ms". */
    readonly interval?: Duration;
    /** How long it may be silent before its work is taken. Default 3 intervals; at least 2 intervals. */
    readonly lease?: Duration;
    /** How often old rows are purged and everything is looked over. Default "60s" on SQLite, "10s" on PostgreSQL. */
    readonly sweep?: Duration;
    /** How often the locks of other workers are probed. Default "250ms", from "10ms"; not longer than the lease. */
    readonly probe?: Duration;
    /** How long a worker's session may be missing on PostgreSQL before its work is taken, where no kernel can prove its death (another host). Default "3s", from "500ms"; not longer than the lease. */
    readonly contact?: Duration;
  };
  readonly recovery?: {
    /** The default of `onCrash`. Default "retry". */
    readonly action?: CrashAction;
    /** The default of `retry.crashes`. Default 3. */
    readonly maxRecoveryAttempts?: number;
    /** Whether an open that finds nobody at work checks the store's integrity first: quick after a clean stop, in full after any other, 10 s at the most. Default true. */
    readonly integrityCheckOnStartup?: boolean;
    /** What an open does about a damaged store. "reindex" (default): mends what can be mended without losing anything. "auto": if that is not enough, also saves what can be read into a new file and keeps the old one. "off": nothing. */
    readonly repair?: RepairMode;
  };
  readonly retention?: {
    /** How long finished jobs are kept. Default "7d". */
    readonly finished?: Duration;
    /** How long incidents are kept. Default "90d". */
    readonly incidents?: Duration;
  };
  /** How long an idle worker waits before it looks without having been woken. Default "1s", from "10ms". */
  readonly poll?: Duration;
  /** "full" (default): what resolved survives a power loss. "relaxed": it survives the death of any process, but a power loss may take the last moments. */
  readonly durability?: "full" | "relaxed";
  readonly sqlite?: {
    /** Opens although this Node's SQLite has a known bug, or on Windows. Default false. */
    readonly allowUnsafe?: boolean;
    /** Opens a file on a network file system. Default false. */
    readonly allowNetworkFilesystem?: boolean;
  };
  /** Opens to look only, also what is damaged: everything readable, nothing claimed, nothing written, nothing recovered. The store must be there. Default false. */
  readonly readOnly?: boolean;
  readonly postgres?: PostgresOptions;
  /** Where the log goes: anything with `info`, `warn` and `error`; false: nowhere. Default: `console`, warnings and recoveries only. */
  readonly logger?: Logger | false;
  /** Hears every event from the first on, also those of the recovery that `open` itself runs. */
  readonly onEvent?: (event: EngineEvent) => void;
}

/** The options of `engine.work` and `engine.start`. */
export interface WorkOptions {
  /** Only these kinds. Default: all of `jobs` that have a handler. */
  readonly only?: readonly { readonly name: string }[];
  /** Most jobs at once: a number, or a number per kind (others share 10). Default 10, from 1 to 10000. */
  readonly concurrency?: number | Readonly<Record<string, number>>;
  /** Stops the worker when it aborts. */
  readonly signal?: AbortSignal;
  /** How long `signal` lets running jobs finish. Default "25s". */
  readonly grace?: Duration;
}

export const DEFAULT_CONCURRENCY = 10;
export const DEFAULT_GRACE: Duration = "25s";

const engineOptions = optionsOf({
  jobs: v.array(v.unknown()),
  heartbeat: optionsOf({ interval: duration, lease: duration, sweep: duration, probe: duration, contact: duration }),
  recovery: optionsOf({
    action: crashAction,
    maxRecoveryAttempts: limit,
    integrityCheckOnStartup: v.boolean(),
    repair: v.picklist(["reindex", "auto", "off"]),
  }),
  retention: optionsOf({ finished: duration, incidents: duration }),
  poll: duration,
  durability: v.picklist(["full", "relaxed"]),
  sqlite: optionsOf({ allowUnsafe: v.boolean(), allowNetworkFilesystem: v.boolean() }),
  readOnly: v.boolean(),
  postgres: optionsOf({
    schema: v.pipe(
      v.string(),
      v.regex(
        /^[a-z_][a-z0-9_]{0,39}$/,
        "must be small letters, digits and underscores, at most 40, the first no digit",
      ),
    ),
    pool: v.looseObject({ connect: method, options: v.looseObject({}) }, "must be a pg.Pool"),
    connections: wholeNumber(1, 50),
  }),
  logger: v.union(
    [v.literal(false), v.looseObject({ info: method, warn: method, error: method })],
    "must be false, or an object with the functions info, warn and error",
  ),
  onEvent: method,
});

const most = wholeNumber(1, 10_000);
const workOptions = optionsOf({
  only: v.array(v.looseObject({ name: v.string() })),
  concurrency: v.union([most, v.record(v.string(), most)]),
  signal: v.instance(AbortSignal),
  grace: duration,
});

export interface EngineSettings {
  readonly times: LivenessTimes;
  readonly retention: RetentionTimes;
  readonly pollMs: number;
  readonly onCrash: CrashAction;
  readonly maxCrashes: number;
  readonly startUp: StartUpOptions;
  readonly readOnly: boolean;
}

/** A file has one host, which hardly ever vanishes without its processes; a server's workers may, with their connection half open. */
const DEFAULT_TIMES = {
  sqlite: { interval: "30s", sweep: "60s" },
  postgres: { interval: "10s", sweep: "10s" },
} as const satisfies Record<StoreName, object>;

/** A connection that a proxy, a NAT or a failing link took away is usually back within this. */
const DEFAULT_CONTACT_MS = 3_000;

/** What is said of `open`'s options, in ms and with the store's defaults; or the error that says what is wrong. */
export function engineSettings(options: EngineOptions, store: StoreName = "sqlite"): EngineSettings {
  check("open", engineOptions, options);
  const { heartbeat = {}, recovery = {}, retention = {}, postgres = {} } = options;
  refuse(
    postgres.pool !== undefined && postgres.connections !== undefined,
    "postgres.connections",
    "is given together with a pool, which has a limit of its own",
    "Leave it away, or the pool.",
  );
  const heartbeatMs = durationMs(heartbeat.interval ?? DEFAULT_TIMES[store].interval, "heartbeat.interval");
  const leaseMs = heartbeat.lease === undefined ? 3 * heartbeatMs : durationMs(heartbeat.lease, "heartbeat.lease");
  const times: LivenessTimes = {
    heartbeatMs,
    leaseMs,
    sweepMs: durationMs(heartbeat.sweep ?? DEFAULT_TIMES[store].sweep, "heartbeat.sweep"),
    probeMs: durationMs(heartbeat.probe ?? "250ms", "heartbeat.probe"),
    contactMs:
      heartbeat.contact === undefined
        ? Math.min(DEFAULT_CONTACT_MS, leaseMs)
        : durationMs(heartbeat.contact, "heartbeat.contact"),
  };
  const pollMs = durationMs(options.poll ?? "1s", "poll");
  refuse(times.heartbeatMs < 50, "heartbeat.interval", "is shorter than 50ms", "Use at least 50ms.");
  refuse(
    times.leaseMs < 2 * heartbeatMs,
    "heartbeat.lease",
    "is shorter than two heartbeat intervals, so that one lost heartbeat would be a death",
    "Use at least two intervals; three is the default.",
  );
  refuse(
    times.probeMs < 10 || times.probeMs > times.leaseMs,
    "heartbeat.probe",
    "is shorter than 10ms or longer than the lease",
    "Use something between; 250ms is the default.",
  );
  refuse(
    heartbeat.contact !== undefined && (times.contactMs < 500 || times.contactMs > times.leaseMs),
    "heartbeat.contact",
    "is shorter than 500ms or longer than the lease",
    "Use something between; 3s is the default.",
  );
  for (const [option, ms] of [
    ["heartbeat.interval", times.heartbeatMs],
    ["heartbeat.sweep", times.sweepMs],
    ["heartbeat.probe", times.probeMs],
    ["poll", pollMs],
  ] as const) {
    refuseLongTimer(option, ms);
  }
  refuse(times.sweepMs < 100, "heartbeat.sweep", "is shorter than 100ms", "Use at least 100ms; 60s is the default.");
  refuse(pollMs < 10, "poll", "is shorter than 10ms", "Use at least 10ms; wake-ups do not wait for it.");
  return {
    times,
    retention: {
      finishedMs: durationMs(retention.finished ?? "7d", "retention.finished"),
      incidentsMs: durationMs(retention.incidents ?? "90d", "retention.incidents"),
    },
    pollMs,
    onCrash: recovery.action ?? "retry",
    maxCrashes: recovery.maxRecoveryAttempts ?? 3,
    startUp: { integrityCheck: recovery.integrityCheckOnStartup ?? true, repair: recovery.repair ?? "reindex" },
    readOnly: options.readOnly ?? false,
  };
}

export interface WorkSettings {
  readonly concurrency: Concurrency;
  readonly graceMs: number;
}

export function workSettings(options: WorkOptions, kinds: readonly string[]): WorkSettings {
  check("work", workOptions, options);
  const concurrency = concurrencyOf(options.concurrency ?? DEFAULT_CONCURRENCY, kinds);
  return { concurrency, graceMs: graceOf(options.grace) };
}

/** How long a stopping worker lets its jobs finish. Default "25s". */
export function graceOf(grace: Duration = DEFAULT_GRACE): number {
  const graceMs = durationMs(grace, "grace");
  refuseLongTimer("grace", graceMs);
  return graceMs;
}

function concurrencyOf(given: number | Readonly<Record<string, number>>, kinds: readonly string[]): Concurrency {
  if (typeof given === "number") return { total: given, perKind: new Map() };
  for (const kind of Object.keys(given)) {
    refuse(
      !kinds.includes(kind),
      `concurrency.${kind}`,
      "names a kind that this worker does not run",
      `It runs ${kinds.join(", ") || "none"}.`,
    );
  }
  const perKind = new Map(Object.entries(given));
  const others = kinds.some((kind) => !perKind.has(kind)) ? DEFAULT_CONCURRENCY : 0;
  return { total: [...perKind.values()].reduce((sum, most) => sum + most, others), perKind, others };
}
