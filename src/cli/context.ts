// What every command gets: the resolved configuration, an engine on the store, and the terminal. Everything a command
// opens is closed when it ends.
import { type Command, InvalidArgumentError, Option } from "commander";
import type { LoadedConfig } from "../engine/config.ts";
import { loadConfig } from "../engine/config-file.ts";
import type { Engine } from "../engine/engine.ts";
import { attach, open } from "../engine/open.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { JOB_STATES, type JobState } from "../job/job.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { JobFilter } from "../stores/port.ts";
import type { Terminal } from "./terminal.ts";

/** Options that every command takes. */
export interface GlobalOptions {
  readonly json?: boolean;
  /** A configuration file other than the one found in this folder. */
  readonly config?: string;
  /** The store's address; wins over the file and the environment. */
  readonly store?: string;
  /** Opens the store read-only. */
  readonly readOnly?: boolean;
}

export interface Context {
  readonly terminal: Terminal;
  readonly options: GlobalOptions;
  /** The configuration: file, then environment, then flags; later ones win. `jobs` are loaded only by `withJobs`. */
  readonly config: () => Promise<LoadedConfig>;
  /** An engine that only inspects and operates: migrates, declares and recovers nothing. */
  readonly attach: () => Promise<Engine>;
  /** An engine as a worker opens it: creates, migrates, recovers. */
  readonly open: (jobs?: readonly object[]) => Promise<Engine>;
  /**
   * For changes to a store that do not go through one of these engines, which refuse on their own: throws if
   * `--read-only` is set.
   */
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

// The forms of option values, and the filters that several commands share. An invalid value is a usage error that says
// what is valid.

export function wholeNumber(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^-?\d+$/.test(text) || value < min || value > max)
      throw new InvalidArgumentError(`Use a whole number from ${min} to ${max}.`);
    return value;
  };
}

/** In ms. */
export function duration(text: string): number {
  try {
    return durationMs(text as Duration, "It");
  } catch {
    throw new InvalidArgumentError('Use a number and a unit: "250ms", "30s", "5m", "12h" or "7d".');
  }
}

export function instant(text: string): Date {
  const at = new Date(text);
  if (!/^\d{4}-/.test(text) || Number.isNaN(at.getTime()))
    throw new InvalidArgumentError('Use an instant of ISO 8601: "2026-12-31T23:00:00Z".');
  return at;
}

export interface FilterFlags {
  readonly state?: JobState;
  readonly kind?: string;
  readonly text?: string;
  readonly olderThan?: number;
  readonly newerThan?: number;
}

export function withFilters(command: Command, states: readonly JobState[] = JOB_STATES): Command {
  if (states.length > 1)
    command.addOption(new Option("--state <state>", "only jobs in this state").choices([...states]));
  return command
    .option("--kind <kind>", "only jobs of this kind")
    .option("--text <text>", "only jobs whose id, dedupe key or error contains this text")
    .option("--older-than <duration>", "only jobs enqueued longer ago than this", duration)
    .option("--newer-than <duration>", "only jobs enqueued within this time", duration);
}

export function filterOf(flags: FilterFlags, now: number): JobFilter {
  return {
    ...(flags.state !== undefined && { state: flags.state }),
    ...(flags.kind !== undefined && { kind: flags.kind }),
    ...(flags.text !== undefined && { text: flags.text }),
    ...(flags.olderThan !== undefined && { createdBefore: now - flags.olderThan }),
    ...(flags.newerThan !== undefined && { createdAfter: now - flags.newerThan }),
  };
}
