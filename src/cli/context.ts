// What every command gets: the resolved configuration, an engine on the store, and the terminal. Everything a command
// opens is closed when it ends. Also the forms of arguments and option values.
import { hostname, userInfo } from "node:os";
import { type Command, InvalidArgumentError, Option } from "commander";
import { type LoadedConfig, loadConfig } from "../engine/config.ts";
import type { Engine } from "../engine/engine.ts";
import { attach, open } from "../engine/open.ts";
import type { Declared } from "../engine/options.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { JOB_STATES, type JobState } from "../job/job.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { JobFilter } from "../stores/port.ts";
import type { Terminal } from "./terminal.ts";
import { text } from "node:stream/consumers";
import type { Json } from "../job/json.ts";
import { printable } from "./words.ts";

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
  readonly open: (jobs?: readonly Declared[]) => Promise<Engine>;
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
        `With --read-only this command can't ${what}.`,
        "Nothing was written. Omit --read-only to do it.",
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
    throw new InvalidArgumentError('Use an ISO 8601 instant: "2026-12-31T23:00:00Z".');
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

/** Who changes something, and why: for the audit. */
export function withBy(command: Command): Command {
  return command
    .option("--reason <text>", "why, for the audit")
    .option("--actor <name>", "who makes the change, for the audit (default: cli/USER@HOST)");
}

export function byOf(command: Command): { readonly actor: string; readonly reason?: string } {
  const { actor, reason } = command.opts<{ actor?: string; reason?: string }>();
  return { actor: actor ?? cliActor(), ...(reason !== undefined && { reason }) };
}

function cliActor(): string {
  let user = "unknown";
  try {
    user = userInfo().username;
  } catch {
    // A user without a name, in a container for instance.
  }
  return `cli/${user}@${hostname()}`.slice(0, 255);
}

// JSON as an argument of a command, or from stdin. What is not JSON is a usage error that shows where.

/** `what`: "The input". `example`: a command that takes it from stdin. */
export async function jsonArgument(given: string, what: string, example: string): Promise<Json> {
  const json = given === "-" ? await text(process.stdin) : given;
  try {
    return JSON.parse(json) as Json;
  } catch (thrown) {
    throw notJson(json, what, example, thrown);
  }
}

function notJson(given: string, what: string, example: string, cause: unknown): OutliveError {
  const at = jsonFault(given) ?? given.length;
  const before = given.slice(0, at).split("\n");
  const column = before.at(-1)!.length;
  const from = Math.max(0, column - 60);
  const line = given.split("\n")[before.length - 1]!.slice(from, column + 20);
  const place = `line ${before.length}, column ${column + 1}`;
  return new OutliveError(
    ErrorCode.optionInvalid,
    `${what} is not JSON at ${place}:\n  ${printable(line).replaceAll("\t", " ")}\n  ${" ".repeat(column - from)}^\n`,
    `Quote it for the shell, for instance '{"to":"a@b.c"}', or pipe it in: ${example}`,
    { line: before.length, column: column + 1 },
    { cause },
  );
}

// Where a text stops being JSON. The runtime's own message has no position for most faults.

const SPACE = /[ \t\n\r]*/uy;
const SCALAR =
  /"(?:[ !#-[\]-\u{10ffff}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?:true|false|null)(?!\w)/uy;
/** What of a broken text is fine: to point behind it, not at its first quote. */
const PART_OF_STRING = /"(?:[ !#-[\]-\u{10ffff}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*/uy;

/** The index of the first character that can't be there (the length: something is missing at the end); null: it is JSON. */
export function jsonFault(text: string): number | null {
  let at = 0;
  const eat = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found !== null;
  };
  const next = (): string => {
    eat(SPACE);
    return text[at] ?? "";
  };
  const scalar = (string: boolean): boolean => {
    const quoted = next() === '"';
    if ((quoted || !string) && eat(SCALAR)) return true;
    if (quoted) eat(PART_OF_STRING);
    return false;
  };
  const member = (close: string): boolean => {
    if (close === "]") return value();
    if (!scalar(true) || next() !== ":") return false;
    at++;
    return value();
  };
  const value = (): boolean => {
    const close = { "{": "}", "[": "]" }[next()];
    if (close === undefined) return scalar(false);
    at++;
    if (next() === close) {
      at++;
      return true;
    }
    for (;;) {
      if (!member(close)) return false;
      const sign = next();
      if (sign !== "," && sign !== close) return false;
      at++;
      if (sign === close) return true;
    }
  };
  return value() && next() === "" ? null : at;
}
