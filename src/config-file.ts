// The configuration that a program and the CLI share: `outlive.config.ts` or `outlive.yaml`, then the environment, then flags; the
// later wins. An unknown key or an impossible pair is an error that names file and line.
import { existsSync } from "node:fs";
import { relative, resolve } from "node:path";
import { type EngineOptions, engineSettings } from "./config.ts";
import { closest } from "./closest.ts";
import { type Leaf, readLeaves, type Said, wrong } from "./config-leaves.ts";
import { fromText, Intervals, QUEUE_KEYS, SETTINGS } from "./config-settings.ts";
import { isPostgres, shownAddress } from "./backends.ts";
import { WORK_VALUES, type WorkFileOptions } from "./config-work.ts";
import { type Duration, durationMs } from "./core/duration.ts";
import { OutliveError } from "./core/errors.ts";

interface FileOptions extends Omit<EngineOptions, "jobs" | "logger" | "onEvent" | "readOnly" | "postgres"> {
  /** Without `pool`, which only a program of your own can have. */
  readonly postgres?: Omit<NonNullable<EngineOptions["postgres"]>, "pool">;
}

/** What a configuration file says. */
export interface OutliveConfig extends FileOptions {
  /** The store's address. Default "sqlite:./outlive.db". */
  readonly store?: string;
  /** Modules that declare jobs and attach their handlers: globs, relative to the folder that the CLI is called in. Default "jobs/**\/*.{ts,mts,js,mjs}". */
  readonly jobs?: string | readonly string[];
  /** How `outlive work` runs; its flags win. `open` does not look at it. */
  readonly work?: WorkFileOptions;
}

export interface LoadedConfig {
  readonly store: string;
  readonly jobs: readonly string[];
  readonly engine: FileOptions;
  /** What was said of `outlive work`; what was not said is not there. */
  readonly work: WorkFileOptions;
  /** The file that was read; null: none was found. */
  readonly file: string | null;
  /** Each resolved value and where it came from: "default", "outlive.yaml:7", "OUTLIVE_STORE", "--store". */
  readonly values: readonly { readonly key: string; readonly value: unknown; readonly source: string }[];
  readonly warnings: readonly string[];
}

export interface ConfigSources {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly flags: { readonly file?: string | undefined; readonly store?: string | undefined };
}

/** Types a configuration; it changes nothing. */
export function defineConfig(config: OutliveConfig): OutliveConfig {
  return config;
}

/** The names under which a configuration is found, in the folder that the CLI is called in. */
export const CONFIG_FILES = [
  "outlive.config.ts",
  "outlive.config.mts",
  "outlive.config.mjs",
  "outlive.config.js",
  "outlive.yaml",
  "outlive.yml",
];

/** Finds, reads and merges. Rejects with OPTION_INVALID that names file and line. */
export async function loadConfig(sources: ConfigSources): Promise<LoadedConfig> {
  const file = findFile(sources);
  const warnings: string[] = [];
  const said = new Map<string, Said>();
  for (const setting of SETTINGS) said.set(setting.key, { value: undefined, source: "default" });
  if (file) {
    const name = relative(sources.cwd, file) || file;
    takeFile(await readLeaves(file, name), said);
  }
  takeEnvironment(sources.env, said, warnings);
  if (sources.flags.store !== undefined) said.set("store", { value: sources.flags.store, source: "--store" });
  return settle(said, file, warnings);
}

function findFile({ cwd, flags }: ConfigSources): string | null {
  if (flags.file !== undefined) {
    const file = resolve(cwd, flags.file);
    if (!existsSync(file))
      throw wrong(
        `There is no configuration file ${flags.file}.`,
        "Check --config, or leave it out to use the one in this folder.",
      );
    return file;
  }
  const found = CONFIG_FILES.filter((name) => existsSync(resolve(cwd, name)));
  if (found.length > 1)
    throw wrong(
      `There are ${found.length} configuration files: ${found.join(", ")}.`,
      "Keep one, or name it with --config.",
    );
  return found[0] === undefined ? null : resolve(cwd, found[0]);
}

function takeFile(leaves: readonly Leaf[], said: Map<string, Said>): void {
  const known = new Set(SETTINGS.map(({ key }) => key));
  for (const { key, value, source } of leaves) {
    if (known.has(key)) {
      said.set(key, { value, source });
      continue;
    }
    const queue = QUEUE_KEYS[key];
    if (queue === undefined)
      throw wrong(
        `${source}: unknown key ${key}.`,
        `Did you mean ${closest(key, [...known, ...Object.keys(QUEUE_KEYS)])}?`,
      );
    said.set(queue.key, { value: queue.convert(value as never), source });
  }
}

function takeEnvironment(env: NodeJS.ProcessEnv, said: Map<string, Said>, warnings: string[]): void {
  for (const setting of SETTINGS) {
    const text = env[setting.env];
    if (text !== undefined && text !== "")
      said.set(setting.key, { value: fromText(setting, text), source: setting.env });
  }
  const known = new Set(SETTINGS.map((setting) => setting.env));
  for (const name of Object.keys(env)) {
    if (name.startsWith("OUTLIVE_") && !known.has(name) && !/^OUTLIVE_(TEST|DEMO)_/.test(name))
      warnings.push(`The variable ${name} is not known; did you mean ${closest(name, [...known])}?`);
  }
}

function settle(said: Map<string, Said>, file: string | null, warnings: readonly string[]): LoadedConfig {
  settleLease(said);
  const work = workOf(said);
  const engine: Record<string, unknown> = {};
  for (const [key, { value }] of said) {
    if (value === undefined || key === "store" || key === "jobs" || key.startsWith("work.")) continue;
    const [group, name] = key.split(".") as [string, string | undefined];
    if (name === undefined) engine[group] = value;
    else ((engine[group] ??= {}) as Record<string, unknown>)[name] = value;
  }
  const store = textsOf("store", said)[0]!;
  try {
    engineSettings(engine, isPostgres(store) ? "postgres" : "sqlite");
  } catch (thrown) {
    throw withSource(thrown as OutliveError, said);
  }
  const values = SETTINGS.map(({ key, fallback, onPostgres }) => ({
    key,
    value:
      key === "store"
        ? shownAddress(store)
        : (said.get(key)!.value ?? (isPostgres(store) ? (onPostgres ?? fallback) : fallback)),
    source: said.get(key)!.source,
  }));
  return { store, jobs: textsOf("jobs", said), engine, work, file, values, warnings };
}

/** A lease in intervals is one of the interval that holds at last, whoever said it. */
function settleLease(said: Map<string, Said>): void {
  const { value, source } = said.get("heartbeat.lease")!;
  if (!(value instanceof Intervals)) return;
  const usual = isPostgres(said.get("store")!.value) ? "10s" : "30s";
  const { value: interval = usual, source: from } = said.get("heartbeat.interval")!;
  if (typeof value.many !== "number" || !(value.many > 0))
    throw wrong(
      `${source}: queue.heartbeat.staleThresholdMultiplier is ${JSON.stringify(value.many)}.`,
      "Write a number, for instance 3.",
    );
  const ms = Math.round(value.many * durationMs(interval as Duration, `${from}: heartbeat.interval`));
  said.set("heartbeat.lease", { value: ms % 1_000 === 0 ? `${ms / 1_000}s` : `${ms}ms`, source });
}

function workOf(said: Map<string, Said>): WorkFileOptions {
  const work: Record<string, unknown> = {};
  for (const [name, { read, hint }] of Object.entries(WORK_VALUES)) {
    const key = `work.${name}`;
    const { value, source } = said.get(key)!;
    if (value === undefined) continue;
    work[name] = read(value);
    if (work[name] === undefined) throw wrong(`${source}: ${key} is ${JSON.stringify(value)}.`, hint);
    said.set(key, { value: work[name], source });
  }
  return work;
}

/** The one or several texts of a setting that must be text. */
function textsOf(key: "store" | "jobs", said: ReadonlyMap<string, Said>): readonly string[] {
  const { value = SETTINGS.find((setting) => setting.key === key)!.fallback, source } = said.get(key)!;
  const texts: readonly unknown[] = Array.isArray(value) && key === "jobs" ? value : [value];
  if (texts.length > 0 && texts.every((text) => typeof text === "string" && text !== "")) return texts as string[];
  throw wrong(
    `${source}: ${key} is ${JSON.stringify(value)}.`,
    key === "jobs" ? "Write a glob or a list of globs." : 'Write an address, for instance "sqlite:./jobs.db".',
  );
}

/** The option's error with the place in front that said it. */
function withSource(error: OutliveError, said: ReadonlyMap<string, Said>): OutliveError {
  const key = [...said.keys()]
    .filter((name) => said.get(name)!.value !== undefined && error.what.includes(name))
    .sort((a, b) => b.length - a.length)[0];
  if (key === undefined) return error;
  const what = `${said.get(key)!.source}: ${error.what}`;
  return new OutliveError(error.code, what, error.hint, error.data, { cause: error });
}
