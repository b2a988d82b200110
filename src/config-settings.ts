// Every setting of a configuration file, once: its name, its variable in the environment, its spelling in YAML, its default.
// The later source wins; who reads them is in config-file.ts.
import { ErrorCode, OutliveError } from "./core/errors.ts";

export interface Setting {
  /** The name in `outlive.config.ts` and in `outlive check`. */
  readonly key: string;
  readonly env: string;
  /** What holds if nobody says anything, as `check` prints it. */
  readonly fallback: string;
  /** The same on PostgreSQL, if it differs there. */
  readonly onPostgres?: string;
  /** A list of texts, separated by commas in the environment. */
  readonly list?: true;
  readonly number?: true;
  readonly boolean?: true;
  /** In a file it may be an object, whose keys are no settings. */
  readonly object?: true;
}

export const SETTINGS: readonly Setting[] = [
  { key: "store", env: "OUTLIVE_STORE", fallback: "sqlite:./outlive.db" },
  { key: "jobs", env: "OUTLIVE_JOBS", fallback: "jobs/**/*.{ts,mts,js,mjs}", list: true },
  { key: "heartbeat.interval", env: "OUTLIVE_HEARTBEAT_INTERVAL", fallback: "30s", onPostgres: "10s" },
  { key: "heartbeat.lease", env: "OUTLIVE_HEARTBEAT_LEASE", fallback: "3 intervals" },
  { key: "heartbeat.sweep", env: "OUTLIVE_HEARTBEAT_SWEEP", fallback: "60s", onPostgres: "10s" },
  { key: "heartbeat.probe", env: "OUTLIVE_HEARTBEAT_PROBE", fallback: "250ms" },
  { key: "heartbeat.contact", env: "OUTLIVE_HEARTBEAT_CONTACT", fallback: "3s" },
  { key: "recovery.action", env: "OUTLIVE_RECOVERY_ACTION", fallback: "retry" },
  { key: "recovery.maxRecoveryAttempts", env: "OUTLIVE_RECOVERY_MAX_ATTEMPTS", fallback: "3", number: true },
  {
    key: "recovery.integrityCheckOnStartup",
    env: "OUTLIVE_RECOVERY_INTEGRITY_CHECK",
    fallback: "true",
    boolean: true,
  },
  { key: "recovery.repair", env: "OUTLIVE_RECOVERY_REPAIR", fallback: "reindex" },
  { key: "retention.finished", env: "OUTLIVE_RETENTION_FINISHED", fallback: "7d" },
  { key: "retention.incidents", env: "OUTLIVE_RETENTION_INCIDENTS", fallback: "90d" },
  { key: "poll", env: "OUTLIVE_POLL", fallback: "1s" },
  { key: "durability", env: "OUTLIVE_DURABILITY", fallback: "full" },
  { key: "sqlite.allowUnsafe", env: "OUTLIVE_SQLITE_ALLOW_UNSAFE", fallback: "false", boolean: true },
  {
    key: "sqlite.allowNetworkFilesystem",
    env: "OUTLIVE_SQLITE_ALLOW_NETWORK_FILESYSTEM",
    fallback: "false",
    boolean: true,
  },
  { key: "postgres.schema", env: "OUTLIVE_POSTGRES_SCHEMA", fallback: "outlive" },
  { key: "postgres.connections", env: "OUTLIVE_POSTGRES_CONNECTIONS", fallback: "4", number: true },
  { key: "work.processes", env: "OUTLIVE_WORK_PROCESSES", fallback: "1", number: true },
  { key: "work.concurrency", env: "OUTLIVE_WORK_CONCURRENCY", fallback: "10", object: true },
  { key: "work.grace", env: "OUTLIVE_WORK_GRACE", fallback: "25s" },
  { key: "work.http", env: "OUTLIVE_WORK_HTTP", fallback: "off" },
  { key: "work.log", env: "OUTLIVE_WORK_LOG", fallback: "pretty" },
];

/** A lease that is said in intervals: how long it is, is known when the interval is. */
export class Intervals {
  readonly many: unknown;

  constructor(many: unknown) {
    this.many = many;
  }
}

/** The keys of the first queue's YAML (`queue.recovery`, `queue.heartbeat`), and what each is here. */
export const QUEUE_KEYS: Readonly<
  Record<string, { readonly key: string; readonly convert: (value: never) => unknown }>
> = {
  "queue.recovery.action": { key: "recovery.action", convert: (value) => value },
  "queue.recovery.maxRecoveryAttempts": { key: "recovery.maxRecoveryAttempts", convert: (value) => value },
  "queue.recovery.integrityCheckOnStartup": { key: "recovery.integrityCheckOnStartup", convert: (value) => value },
  "queue.heartbeat.intervalSeconds": { key: "heartbeat.interval", convert: (value: number) => `${value}s` },
  "queue.heartbeat.staleThresholdMultiplier": {
    key: "heartbeat.lease",
    convert: (value: unknown) => new Intervals(value),
  },
  "queue.heartbeat.detectionIntervalSeconds": { key: "heartbeat.sweep", convert: (value: number) => `${value}s` },
};

const BOOLEANS: Readonly<Record<string, boolean>> = { "1": true, true: true, "0": false, false: false };

/** A text of the environment as the value that it stands for; what stands for none is refused by the variable's name. */
export function fromText(setting: Setting, text: string): unknown {
  if (setting.list) return text.split(",").map((part) => part.trim());
  if (setting.number) return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : refuse(setting, text, "Write a number.");
  if (setting.boolean) return BOOLEANS[text.toLowerCase()] ?? refuse(setting, text, "Write 1, 0, true or false.");
  return text;
}

function refuse({ env }: Setting, text: string, hint: string): never {
  throw new OutliveError(ErrorCode.optionInvalid, `${env} is ${JSON.stringify(text)}.`, hint, { variable: env });
}
