// What every command gets: the resolved configuration, an engine on the store, and the terminal. Whatever a command opens is
// closed when it is over.
import { ErrorCode, OutliveError } from "../core/errors.ts";
import type { Engine } from "../engine.ts";
import type { LoadedConfig } from "../engine/config.ts";
import { loadConfig } from "../engine/config-file.ts";
import { attach, open } from "../open.ts";
import type { Terminal } from "./terminal.ts";

/** Options that every command takes. */
export interface GlobalOptions {
  readonly json?: boolean;
  /** Another configuration file than the one found in this folder. */
  readonly config?: string;
  /** The store's address; wins over the file and the environment. */
  readonly store?: string;
  /** Opens the store to look only. */
  readonly readOnly?: boolean;
}

export interface Context {
  readonly terminal: Terminal;
  readonly options: GlobalOptions;
  /** The configuration: file, then environment, then flags; the later wins. `jobs` are loaded only by `withJobs`. */
  readonly config: () => Promise<LoadedConfig>;
  /** An engine that only looks and operates: migrates, declares and recovers nothing. */
  readonly attach: () => Promise<Engine>;
  /** An engine as a worker opens it: creates, migrates, recovers. */
  readonly open: (jobs?: readonly object[]) => Promise<Engine>;
  /** For what changes a store without one of these engines, which refuse by themselves: throws if the call says `--read-only`. */
  readonly mayChange: (what: string) => void;
}

export function makeContext(
  terminal: Terminal,
  options: GlobalOptions,
): Context & { readonly close: () => Promise<void> } {
  const opened: Engine[] = [];
  let loaded: Promise<LoadedConfig> | undefined;
  const config = (): Promise<LoadedConfig> =>
    (loaded ??= loadConfig({
      cwd: process.cwd(),
      env: process.env,
      flags: { file: options.config, store: options.store },
    }));
  const keep = async (engine: Promise<Engine>): Promise<Engine> => {
    opened.push(await engine);
    return engine;
  };
  return {
    terminal,
    options,
    config,
    attach: async () => {
      const { store, engine } = await config();
      return keep(attach(store, { ...engine, logger: false, readOnly: options.readOnly === true }));
    },
    open: async (jobs = []) => {
      const { store, engine } = await config();
      return keep(open(store, { ...engine, jobs, logger: false, readOnly: options.readOnly === true }));
    },
    mayChange: (what) => {
      if (options.readOnly !== true) return;
      throw new OutliveError(
        ErrorCode.storeReadOnly,
        `With --read-only nothing can ${what}.`,
        "Nothing was written. Leave --read-only away to change something.",
      );
    },
    close: async () => {
      for (const engine of opened.splice(0)) await engine.close();
    },
  };
}
