// The options of `open` and of a worker: their types, and what they come to in ms and with the store's defaults. What each takes is
// in the tables of settings.ts, from which the comments here are made (`npm run settings`); limits between two options are here.
import type { EngineEvent } from "../job/events.ts";
import type { CrashAction } from "../job/job.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { RetentionTimes } from "../recovery/retention.ts";
import type { StartUpOptions } from "../stores/backend.ts";
import type { RepairMode } from "../stores/integrity.ts";
import type { LivenessTimes } from "../stores/liveness.ts";
import type { PostgresOptions } from "../stores/postgres/address.ts";
import type { StoreName } from "../stores/registry.ts";
import type { Logger } from "../telemetry/log.ts";
import type { Concurrency } from "../worker/executor.ts";
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

/** The options of `open`. */
export interface EngineOptions {
  /** The kinds that this program knows. Only these can be enqueued and run here. Default: none. */
  readonly jobs?: readonly object[];
  readonly heartbeat?: {
    /** How often a worker reports that it is alive. Default "30s" on SQLite, "10s" on PostgreSQL; from "50ms" to "24d". */
    readonly interval?: Duration;
    /** How long a worker may be silent before its work is taken. Default: 3 intervals; at most "3650d"; at least 2 intervals. */
    readonly lease?: Duration;
    /** How often old rows are purged and every worker is checked. Default "60s" on SQLite, "10s" on PostgreSQL; from "100ms" to "24d". */
    readonly sweep?: Duration;
    /** How often the locks of other workers are probed. Default "250ms"; from "10ms" to "24d"; not longer than the lease. */
    readonly probe?: Duration;
    /** How long a worker's session may be missing on PostgreSQL before its work is taken, where no kernel can prove its death (another host). Default "3s"; from "500ms" to "3650d"; not longer than the lease. */
    readonly contact?: Duration;
  };
  readonly recovery?: {
    /** `onCrash` of every kind that does not set it. Default "retry". */
    readonly onCrash?: CrashAction;
    /** `retry.crashes` of every kind that does not set it. Default 3; from 1 to 1000. */
    readonly crashes?: number;
    /** Whether an open that finds no process at work checks the integrity of a SQLite file first: quickly after a clean stop, in full after any other, for at most 10 s. Default true. */
    readonly integrityCheckOnStartup?: boolean;
    /** What an open does about a damaged SQLite file. "reindex" repairs what can be repaired without loss; "auto" also salvages what can be read into a new file and keeps the old one; "off" does nothing. Default "reindex". */
    readonly repair?: RepairMode;
  };
  readonly retention?: {
    /** How long finished jobs are kept. Default "7d"; at most "3650d". */
    readonly finished?: Duration;
    /** How long incidents are kept. Default "90d"; at most "3650d". */
    readonly incidents?: Duration;
  };
  /** How long an idle worker waits before it polls without a wake-up. Default "1s"; from "10ms" to "24d". */
  readonly poll?: Duration;
  /** "full": what was acknowledged survives a power loss. "relaxed": it survives the death of any process, but a power loss may take the last moments. Default "full". */
  readonly durability?: "full" | "relaxed";
  readonly sqlite?: {
    /** Opens the file although this Node's SQLite has a known bug, or on Windows. Default false. */
    readonly allowUnsafe?: boolean;
    /** Opens a file on a network file system. Default false. */
    readonly allowNetworkFilesystem?: boolean;
  };
  /** Opens the store for reading only, also a damaged one: nothing is claimed, written or recovered. The store must exist. Default false. */
  readonly readOnly?: boolean;
  readonly postgres?: PostgresOptions;
  /** Where the log goes; false: nowhere. Default: `console`, warnings and recoveries only. */
  readonly logger?: Logger | false;
  /** Receives every event from the first on, also those of the recovery that `open` itself runs. Default: none. */
  readonly onEvent?: (event: EngineEvent) => void;
}

/** The options of `engine.work` and `engine.start`. */
export interface WorkOptions {
  /** Runs only these kinds. Default: all of `jobs` that have a handler. */
  readonly only?: readonly { readonly name: string }[];
  /** How many jobs run at once: a number, or a number per kind; the other kinds share the default. Default 10; from 1 to 10000. */
  readonly concurrency?: number | Readonly<Record<string, number>>;
  /** Stops the worker when it aborts. Default: none. */
  readonly signal?: AbortSignal;
  /** How long running jobs may finish after `signal` aborted. Default "25s"; at most "24d". */
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

/** The options of `open` in ms and with the store's defaults, or an error that says what is wrong with them. */
export function engineSettings(options: EngineOptions, store: StoreName = DEFAULT_STORE): EngineSettings {
  check("open", ENGINE_OPTIONS, options);
  const { heartbeat = {}, recovery = {}, retention = {}, postgres = {} } = options;
  refuse(
    postgres.pool !== undefined && postgres.connections !== undefined,
    "postgres.connections",
    "is set together with a pool, which has a limit of its own",
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
    "is shorter than two heartbeat intervals, so that one lost heartbeat would be a death",
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

export interface WorkSettings {
  readonly concurrency: Concurrency;
  readonly graceMs: number;
}

export function workSettings(options: WorkOptions, kinds: readonly string[]): WorkSettings {
  check("work", WORKER_OPTIONS, options);
  const concurrency = concurrencyOf(options.concurrency ?? WORKER_OPTIONS.concurrency.default, kinds);
  return { concurrency, graceMs: graceOf(options) };
}

/** How long a stopping worker lets its jobs finish. */
export function graceOf({ grace = WORKER_OPTIONS.grace.default }: { readonly grace?: Duration }): number {
  check("stop", { grace: WORKER_OPTIONS.grace }, { grace });
  return durationMs(grace, "grace");
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
  const others = kinds.some((kind) => !perKind.has(kind)) ? WORKER_OPTIONS.concurrency.default : 0;
  return { total: [...perKind.values()].reduce((sum, limit) => sum + limit, others), perKind, others };
}
