// The configuration that programs and the command line share, and which source of a setting wins: the call (an option of `open`, a
// flag), then the environment, then the configuration, then the default. `open`, `connect` and every command use this one rule, so
// that a web process and its workers never use two stores. And the configuration file.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { defaultsAt, shownAddress, type StoreName } from "../stores/registry.ts";
import { accepts, closest, fromText, takes } from "./option-checks.ts";
import { type EngineOptions, engineSettings, isEngineSetting } from "./options.ts";
import { DEFAULT_STORE, defaultIn, defaultOf, type Setting, type SettingKey, SETTINGS } from "./settings.ts";
import { existsSync, readFileSync } from "node:fs";
import { relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Node } from "yaml";

type FileOptions = Omit<
  EngineOptions,
  "jobs" | "logger" | "onEvent" | "middleware" | "readOnly" | "postgres" | "redis"
> & {
  /** Without `pool`, which only code can make. */
  readonly postgres?: Omit<NonNullable<EngineOptions["postgres"]>, "pool">;
  /** Without `client`, which only code can make. */
  readonly redis?: Omit<NonNullable<EngineOptions["redis"]>, "client">;
};

/** What a configuration file sets. */
export interface OutliveConfig extends FileOptions {
  /** The store's address. Default "sqlite:./outlive.db". */
  readonly store?: string;
  /** The modules that declare jobs and attach their handlers, as globs relative to the working directory. Only the command line reads it; a program passes its own jobs. Default "jobs/**\/*.{ts,mts,js,mjs}". */
  readonly jobs?: string | readonly string[];
  /** How `outlive work` runs; its flags win. `open` and `connect` do not read it. */
  readonly work?: WorkFileOptions;
}

/** How `outlive work` runs. */
export interface WorkFileOptions {
  /** How many worker processes `outlive work` runs. If there are requests and other kinds, one or two additional processes send the requests. Default 1; from 1 to 256. */
  readonly processes?: number;
  /** How many jobs run at once in each process: a number, or a number per kind; the other kinds share the default. Default 10; from 1 to 10000. */
  readonly concurrency?: number | Readonly<Record<string, number>>;
  /** How long a stopping worker waits for its running jobs. With `--watch` it is "2s", unless `--grace` is given. Default "25s"; at most "24d". */
  readonly grace?: Duration;
  /** The maximum size of V8's semi-spaces in each process, in MB (`--max-semi-space-size`; if Node was started with that flag, the flag wins). A smaller size needs less memory. Measured with no-op jobs: 99 MB of RSS on SQLite and 133 MB on PostgreSQL with 4, and 119 and 221 MB with Node's default, at 0.91 to 1 times its throughput. Default 4; from 1 to 256. */
  readonly semiSpace?: number;
  /** The address at which `outlive work` serves /live, /ready and /metrics. Default "off"; "HOST:PORT", for example "127.0.0.1:9090", a port alone, or "off". */
  readonly http?: string;
  /** How the log of `outlive work` is written; with `--json` it is "json". Default "pretty". */
  readonly log?: "pretty" | "json";
  /** Modules whose default export is a middleware, or an array of them, relative to the working directory. It wraps every enqueue and every attempt in the worker processes, and sees the recoveries of the supervisor. The first is the outermost. Default: none. */
  readonly middleware?: string | readonly string[];
}

/** Types a configuration; it changes nothing. */
export function defineConfig(config: OutliveConfig): OutliveConfig {
  return config;
}

/** A value and its source: "outlive.yaml:7", "OUTLIVE_STORE", "--store". */
interface SourcedValue {
  readonly value: unknown;
  readonly source: string;
}

/** A value with its dotted key. */
export interface Leaf extends SourcedValue {
  readonly key: string;
}

/** A configuration with every source resolved. */
export interface ResolvedConfig {
  readonly store: string;
  readonly jobs: readonly string[];
  readonly engine: FileOptions;
  /** The settings of `outlive work` that were set. */
  readonly work: WorkFileOptions;
  /** Every setting, its value, and its source, which may be "default". */
  readonly values: readonly { readonly key: SettingKey; readonly value: unknown; readonly source: string }[];
  readonly warnings: readonly string[];
}

export interface LoadedConfig extends ResolvedConfig {
  /** The file that was read; null: there is none. */
  readonly file: string | null;
}

interface Sources {
  readonly config: readonly Leaf[];
  readonly env: NodeJS.ProcessEnv;
  readonly call: readonly Leaf[];
}

/**
 * The store and the options that a call of `open` or `connect` means. An address is used as it is, with the options of the call and
 * nothing else. Of a configuration each setting may be set by the options of the call, the environment or the configuration.
 */
export function resolveCall(
  where: string | OutliveConfig,
  options: EngineOptions,
  env: NodeJS.ProcessEnv = process.env,
): { readonly store: string; readonly options: EngineOptions } {
  if (typeof where !== "object" || where === null) return { store: where, options };
  const settings = (key: string): boolean => key === "store" || isEngineSetting(key as SettingKey);
  const config = leavesOf(where, () => "the configuration").filter(({ key }) => settings(key));
  const call = Object.keys(SETTINGS)
    .filter((key) => isEngineSetting(key as SettingKey))
    .map((key) => ({ key, value: memberOf(options, key), source: "the options" }))
    .filter(({ value }) => value !== undefined);
  // A pool of the program's own has its own limit.
  const ignored = options.postgres?.pool && memberOf(options, "postgres.connections") === undefined;
  const known = (key: string): boolean => settings(key) && !(ignored && key === "postgres.connections");
  const { store, engine } = resolveConfig({ config, env, call }, known);
  return { store, options: overlay(engine, options) };
}

/** Which value of each setting holds. `known` limits it to some settings. Throws OPTION_INVALID that names the source. */
export function resolveConfig(
  { config, env, call }: Sources,
  known: (key: string) => boolean = () => true,
): ResolvedConfig {
  const set = new Map<SettingKey, SourcedValue>();
  takeConfig(config, set);
  takeEnvironment(env, set);
  for (const { key, value, source } of call) set.set(key as SettingKey, { value, source });
  for (const key of set.keys()) if (!known(key)) set.delete(key);
  for (const [key, value] of set) if (!(value.value instanceof Intervals)) assertUsable(key, value);
  const valueOf = (key: SettingKey, on: StoreName): unknown => set.get(key)?.value ?? defaultIn(SETTINGS[key], on);
  const store = valueOf("store", DEFAULT_STORE) as string;
  const storeName = defaultsAt(store);
  setLease(set, storeName);
  const engine = nested([...set].filter(([key]) => isEngineSetting(key)));
  assertTogether(engine, storeName, set);
  const jobs = valueOf("jobs", storeName) as string | readonly string[];
  const rows = Object.entries(SETTINGS) as [SettingKey, Setting][];
  return {
    store,
    jobs: typeof jobs === "string" ? [jobs] : jobs,
    engine,
    work: (nested([...set].filter(([key]) => key.startsWith("work."))) as { work?: WorkFileOptions }).work ?? {},
    values: rows.map(([key, row]) => ({
      key,
      value:
        key === "store"
          ? shownAddress(store)
          : key === "liveness" || (key === "broker" && typeof valueOf(key, storeName) === "string")
            ? shownAddress(String(valueOf(key, storeName)))
            : (shownBlobs(valueOf(key, storeName)) ?? row.otherwise),
      source: set.get(key)?.source ?? "default",
    })),
    warnings: unknownVariables(env),
  };
}

/** A blob store or a broker is shown as the place where it is. */
function shownBlobs(value: unknown): unknown {
  return typeof value === "object" && value !== null && "place" in value ? value.place : value;
}

/** The values of a configuration object with their dotted keys. */
export function leavesOf(config: object, sourceOf: (path: readonly string[]) => string): readonly Leaf[] {
  const leaves: Leaf[] = [];
  const walk = (value: unknown, path: readonly string[]): void => {
    if (isPlain(value) && path.length < 3 && !mayBeObject(path.join("."))) {
      for (const [key, member] of Object.entries(value)) walk(member, [...path, key]);
    } else if (value !== undefined) leaves.push({ key: path.join("."), value, source: sourceOf(path) });
  };
  walk(config, []);
  return leaves;
}

/** Whether the value of this setting may be an object, whose keys are not settings. */
export function mayBeObject(key: string): boolean {
  return Object.hasOwn(SETTINGS, key) && ["concurrency", "blobs", "broker"].includes(SETTINGS[key as SettingKey].type);
}

/** An error of the configuration. */
export function unusable(what: string, hint: string): OutliveError {
  return new OutliveError(ErrorCode.optionInvalid, what, hint);
}

function takeConfig(leaves: readonly Leaf[], set: Map<SettingKey, SourcedValue>): void {
  for (const { key, value, source } of leaves) {
    if (Object.hasOwn(SETTINGS, key)) {
      set.set(key as SettingKey, { value: fromFile(SETTINGS[key as SettingKey], value), source });
      continue;
    }
    const queue = Object.hasOwn(QUEUE_KEYS, key) ? QUEUE_KEYS[key] : undefined;
    if (queue === undefined) {
      const keys = [...Object.keys(SETTINGS), ...Object.keys(QUEUE_KEYS)];
      throw unusable(`${source}: unknown key ${key}.`, `Did you mean ${closest(key, keys)}?`);
    }
    set.set(queue.key, { value: queue.convert(value), source });
    if (queue.also !== undefined && !set.has(queue.also)) set.set(queue.also, { value: queue.convert(value), source });
  }
}

/** What a file may write shorter than a program: `http: 9090`, `concurrency: mail=5`. */
function fromFile(row: Setting, value: unknown): unknown {
  if (row.type === "listen" && typeof value === "number") return String(value);
  return row.type === "concurrency" && typeof value === "string" ? fromText(row, value) : value;
}

function takeEnvironment(env: NodeJS.ProcessEnv, set: Map<SettingKey, SourcedValue>): void {
  for (const [key, row] of Object.entries(SETTINGS)) {
    const text = env[row.env];
    if (text !== undefined && text !== "") set.set(key as SettingKey, { value: fromText(row, text), source: row.env });
  }
}

function unknownVariables(env: NodeJS.ProcessEnv): readonly string[] {
  const known = Object.values(SETTINGS).map((row): string => row.env);
  return Object.keys(env)
    .filter((name) => name.startsWith("OUTLIVE_") && !known.includes(name) && !/^OUTLIVE_(TEST|DEMO)_/.test(name))
    .map((name) => `The variable ${name} is not known; did you mean ${closest(name, known)}?`);
}

function assertUsable(key: SettingKey, { value, source }: SourcedValue): void {
  const row: Setting = SETTINGS[key];
  if (!accepts(row, value)) throw unusable(`${source}: ${key} is ${JSON.stringify(value)}.`, `Use ${takes(row)}.`);
}

/** Settings that are usable one by one may not fit together; the error then names the source of the one that has to change. */
function assertTogether(engine: FileOptions, store: StoreName, set: ReadonlyMap<SettingKey, SourcedValue>): void {
  try {
    engineSettings(engine, store);
  } catch (thrown) {
    const error = thrown as OutliveError;
    const place = set.get(error.data["option"] as SettingKey);
    if (!place) throw error;
    const what = `${place.source}: ${error.what}`;
    throw new OutliveError(error.code, what, error.hint, error.data, { cause: error });
  }
}

/** A lease that is given in intervals. How long it is, is known when the interval is. */
class Intervals {
  readonly count: unknown;

  constructor(count: unknown) {
    this.count = count;
  }
}

/**
 * The keys `queue.recovery` and `queue.heartbeat`, with times in seconds, and the setting that each one is. Also the two of the queue that sends HTTP requests,
 * whose monitor did both at its interval: `also`.
 */
const QUEUE_KEYS: Readonly<
  Record<
    string,
    { readonly key: SettingKey; readonly also?: SettingKey; readonly convert: (value: unknown) => unknown }
  >
> = {
  heartbeat_interval: {
    key: "heartbeat.interval",
    also: "heartbeat.sweep",
    convert: (value) => `${String(value)}s`,
  },
  orphan_threshold: { key: "heartbeat.lease", convert: (value) => `${String(value)}s` },
  "queue.recovery.action": {
    key: "recovery.onCrash",
    // "pending" is what the action "requeue" is called there.
    convert: (value) => (value === "pending" ? "requeue" : value),
  },
  "queue.recovery.maxRecoveryAttempts": { key: "recovery.crashes", convert: (value) => value },
  "queue.recovery.integrityCheckOnStartup": { key: "recovery.integrityCheckOnStartup", convert: (value) => value },
  "queue.heartbeat.intervalSeconds": { key: "heartbeat.interval", convert: (value) => `${String(value)}s` },
  "queue.heartbeat.staleThresholdMultiplier": { key: "heartbeat.lease", convert: (value) => new Intervals(value) },
  "queue.heartbeat.detectionIntervalSeconds": { key: "heartbeat.sweep", convert: (value) => `${String(value)}s` },
};

/** Makes a duration of a lease in intervals, with the interval that holds, whatever its source. */
function setLease(set: Map<SettingKey, SourcedValue>, store: StoreName): void {
  const { value, source } = set.get("heartbeat.lease") ?? {};
  if (!(value instanceof Intervals)) return;
  if (typeof value.count !== "number" || !(value.count > 0))
    throw unusable(
      `${source}: queue.heartbeat.staleThresholdMultiplier is ${JSON.stringify(value.count)}.`,
      "Use a number, for example 3.",
    );
  const interval = (set.get("heartbeat.interval")?.value as Duration) ?? defaultOf("heartbeat.interval", store);
  const ms = Math.round(value.count * durationMs(interval, "heartbeat.interval"));
  set.set("heartbeat.lease", { value: ms % 1_000 === 0 ? `${ms / 1_000}s` : `${ms}ms`, source: source! });
}

/** From dotted keys to an object with groups. */
function nested(entries: readonly (readonly [SettingKey, SourcedValue])[]): Record<string, unknown> {
  const options: Record<string, unknown> = {};
  for (const [key, { value }] of entries) {
    const [group, name] = key.split(".") as [string, string | undefined];
    if (name === undefined) options[group] = value;
    else ((options[group] ??= {}) as Record<string, unknown>)[name] = value;
  }
  return options;
}

function memberOf(options: object, key: string): unknown {
  return key
    .split(".")
    .reduce<unknown>((group, name) => (isPlain(group) ? (group as Record<string, unknown>)[name] : undefined), options);
}

/** The options of the call on top of the resolved ones, group by group. */
function overlay(resolved: FileOptions, options: EngineOptions): EngineOptions {
  const merged: Record<string, unknown> = { ...resolved };
  for (const [key, value] of Object.entries(options) as [string, unknown][]) {
    if (value === undefined) continue;
    merged[key] = isPlain(value) && isPlain(merged[key]) && !mayBeObject(key) ? { ...merged[key], ...value } : value;
  }
  return merged;
}

/** Whether it was written as `{ ... }`, also in another realm; not an instance of a class. */
function isPlain(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

// Finds and reads a configuration file, `outlive.config.ts` or `outlive.yaml`: each value with its dotted key and its line.

export interface ConfigSources {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly flags: { readonly file?: string | undefined; readonly store?: string | undefined };
}

/** The names under which a configuration is found in the working directory. */
export const CONFIG_FILES = [
  "outlive.config.ts",
  "outlive.config.mts",
  "outlive.config.mjs",
  "outlive.config.js",
  "outlive.yaml",
  "outlive.yml",
];

/** The configuration of the command line: file, environment and flags. Rejects with OPTION_INVALID that names file and line. */
export async function loadConfig({ cwd, env, flags }: ConfigSources): Promise<LoadedConfig> {
  const file = findFile(cwd, flags.file);
  const leaves = file === null ? [] : await readLeaves(file, relative(cwd, file) || file);
  const call = flags.store === undefined ? [] : [{ key: "store", value: flags.store, source: "--store" }];
  return { file, ...resolveConfig({ config: leaves, env, call }) };
}

function findFile(cwd: string, named: string | undefined): string | null {
  if (named !== undefined) {
    const file = resolve(cwd, named);
    if (!existsSync(file))
      throw unusable(
        `There is no configuration file ${named}.`,
        "Check --config, or remove it to use the file in this folder.",
      );
    return file;
  }
  const found = CONFIG_FILES.filter((name) => existsSync(resolve(cwd, name)));
  if (found.length > 1)
    throw unusable(
      `There are ${found.length} configuration files: ${found.join(", ")}.`,
      "Keep one, or name it with --config.",
    );
  return found[0] === undefined ? null : resolve(cwd, found[0]);
}

/** The values of a file, in its order. `name` is the file's name in sources and errors. */
async function readLeaves(file: string, name: string): Promise<readonly Leaf[]> {
  return /\.ya?ml$/.test(file) ? readYaml(file, name) : readModule(file, name);
}

async function readYaml(file: string, name: string): Promise<readonly Leaf[]> {
  // Loaded here: its 70 files would be a sixth of what starting a program costs, and most programs have no such file.
  const { isMap, isScalar, isSeq, LineCounter, parseDocument } = await import("yaml");
  const lines = new LineCounter();
  const document = parseDocument(readFileSync(file, "utf8"), { lineCounter: lines });
  const [error] = document.errors;
  if (error)
    throw unusable(
      `${name}:${error.linePos?.[0].line ?? 1}: ${error.message.split("\n")[0]!.replace(/ at line \d+, column \d+:$/, "")}.`,
      "Correct the YAML.",
    );
  const leaves: Leaf[] = [];
  const walk = (node: unknown, key: string): void => {
    if (isMap(node) && !mayBeObject(key)) {
      for (const { key: member, value } of node.items)
        walk(value ?? member, key === "" ? String(member) : `${key}.${String(member)}`);
      return;
    }
    const line = lines.linePos((node as Node | null)?.range?.[0] ?? 0).line;
    const value = isMap(node) || isSeq(node) || isScalar(node) ? (node.toJSON() as unknown) : node;
    leaves.push({ key, value, source: `${name}:${line}` });
  };
  walk(document.contents, "");
  return leaves.filter(({ key }) => key !== "");
}

async function readModule(file: string, name: string): Promise<readonly Leaf[]> {
  let config: unknown;
  try {
    config = ((await import(pathToFileURL(file).href)) as { default?: unknown }).default;
  } catch (cause) {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${name}${lineIn(file, cause)} can't be loaded: ${(cause as Error).message.replace(/\.$/, "")}.`,
      cause instanceof SyntaxError
        ? "Correct the file."
        : "It threw this when it was loaded. Correct it, or set what it needs.",
      { file },
      { cause },
    );
  }
  if (typeof config !== "object" || config === null)
    throw unusable(`${name} has no default export.`, "Write `export default defineConfig({ ... })`.");
  const text = readFileSync(file, "utf8").split("\n");
  return leavesOf(config, (path) => `${name}:${lineOf(text, path)}`);
}

/** ":3" if the stack says at which line of the file it was. */
function lineIn(file: string, cause: unknown): string {
  const { stack = "" } = cause as { readonly stack?: string };
  const at = stack.indexOf(`${file}:`);
  return at < 0 ? "" : (/^:\d+/.exec(stack.slice(at + file.length))?.[0] ?? "");
}

/** Good enough for a message: from the line of its group on, the first line that begins with the key, or else has it. Comments are skipped. */
function lineOf(lines: readonly string[], path: readonly string[]): number {
  const code = lines.map((line) => (/^\s*(\/\/|\/?\*)/.test(line) ? "" : line.replace(/\s\/\/.*$/, "")));
  const at = path.reduce((from, key) => {
    const name = `["']?${RegExp.escape(key)}["']?\\s*:`;
    const begins = new RegExp(`^\\s*${name}`);
    const has = new RegExp(`(^|[\\s{,])${name}`);
    if (from >= 0 && has.test(code[from]!)) return from;
    const first = code.findIndex((line, i) => i > from && begins.test(line));
    return first >= 0 ? first : code.findIndex((line, i) => i > from && has.test(line));
  }, -1);
  return Math.max(0, at) + 1;
}
