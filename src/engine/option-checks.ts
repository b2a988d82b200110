// Checks options against the tables of settings.ts, and reads settings from text. An unknown key, a value of the wrong type or one
// out of its limits is an error that names the option and says what it takes.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { nearest } from "../job/text.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { Setting } from "./settings.ts";

type Rows = Readonly<Record<string, Setting>>;

/** The most mistakes that one error lists. */
const MAX_ISSUES = 5;

/** Throws OPTION_INVALID, with every mistake up to five. `of` names what takes these options. */
export function check(of: string, rows: Rows, options: unknown): void {
  const issues = [...mistakes(rows, options, "")].slice(0, MAX_ISSUES);
  if (issues.length === 0) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The options of ${of} are not usable: ${issues.join("; ").replace(/\?$/, "")}${issues.at(-1)!.endsWith("?") ? "?" : "."}`,
    "The settings page of the documentation lists every option with its default and its limits.",
    { of, issues },
  );
}

function* mistakes(rows: Rows, options: unknown, path: string): Generator<string> {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    yield `${path === "" ? "options" : path}: must be an object`;
    return;
  }
  const prefix = path === "" ? "" : `${path}.`;
  for (const [name, value] of Object.entries(options)) {
    const key = `${prefix}${name}`;
    if (value === undefined) continue;
    const row = Object.hasOwn(rows, key) ? rows[key] : undefined;
    if (isGroup(rows, key) && (!row || typeof value === "object")) yield* mistakes(rows, value, key);
    else if (!row) yield notAnOption(key, name, namesIn(rows, prefix));
    else if (!accepts(row, value)) yield `${key}: ${misfit(value)} ${takes(row)}`;
  }
}

function notAnOption(key: string, name: string, names: readonly string[]): string {
  const near = nearest(name, names);
  return `${key} is not an option; ${near === null ? `there are ${names.join(", ")}` : `did you mean ${near}?`}`;
}

function isGroup(rows: Rows, key: string): boolean {
  return Object.keys(rows).some((name) => name.startsWith(`${key}.`));
}

function namesIn(rows: Rows, prefix: string): readonly string[] {
  const inside = Object.keys(rows).filter((key) => key.startsWith(prefix));
  return [...new Set(inside.map((key) => key.slice(prefix.length).split(".")[0]!))];
}

function misfit(value: unknown): string {
  const isShown = value === null || ["string", "number", "boolean"].includes(typeof value);
  return isShown ? `${JSON.stringify(value)} is not` : "must be";
}

/** Whether a row takes this value. Limits between two settings are checked where both are known. */
export function accepts(row: Setting, value: unknown): boolean {
  switch (row.type) {
    case "duration":
      return (row.or !== undefined && value === row.or) || isDuration(row, value);
    case "integer":
      return isWhole(value, row);
    case "share":
      return typeof value === "number" && value >= 0 && value <= 1;
    case "boolean":
      return typeof value === "boolean";
    case "word":
      return row.words.includes(value as string);
    case "name":
      return typeof value === "string" && row.pattern.test(value);
    case "store":
      return isText(value);
    case "globs":
    case "modules":
      return isText(value) || (Array.isArray(value) && value.length > 0 && value.every(isText));
    case "blobs":
      return isText(value) ? !/^[a-z][a-z0-9+.-]+:/i.test(value as string) : isBlobStore(value);
    case "broker":
      return typeof value === "string" ? /^amqps?:\/\/./.test(value) : isBroker(value);
    case "listen":
      return typeof value === "string" && (value === "off" || listenAddress(value) !== null);
    case "concurrency": {
      if (typeof value !== "object" || value === null) return isWhole(value, row);
      const numbers: unknown[] = Object.values(value);
      return numbers.length > 0 && numbers.every((number) => isWhole(number, row));
    }
    case "code":
      return row.accepts(value);
  }
}

/** What a row takes, in words that follow "must be", "is not" and "Use". */
export function takes(row: Setting): string {
  switch (row.type) {
    case "duration": {
      const limits = row.min === undefined ? `at most "${row.max}"` : `from "${row.min}" to "${row.max}"`;
      return `a duration such as "30s" or "5m", ${limits}${row.or === undefined ? "" : `, or "${row.or}"`}`;
    }
    case "integer":
      return `a whole number from ${row.min} to ${row.max}`;
    case "share":
      return "a number from 0 to 1";
    case "boolean":
      return "true or false";
    case "word":
      return row.words
        .map((word) => `"${word}"`)
        .join(", ")
        .replace(/, (?=[^,]*$)/, " or ");
    case "name":
      return row.form;
    case "store":
      return 'an address: "sqlite:./jobs.db", "sqlite::memory:", "postgres://user:password@host/database" or "redis://host:6379"';
    case "globs":
      return "a glob or a list of globs";
    case "modules":
      return "the path of a module or a list of paths";
    case "blobs":
      return 'a folder such as "./blobs", or in code what s3({ ... }) or azure({ ... }) of outlive/blobs returns';
    case "broker":
      return 'an address such as "amqp://user:password@host/vhost", or in code what rabbitmq() of outlive/rabbitmq returns';
    case "listen":
      return '"HOST:PORT", for example "127.0.0.1:9090", a port alone, or "off"';
    case "concurrency":
      return `a whole number from ${row.min} to ${row.max}, or one per kind (as text: mail=5,render=2)`;
    case "code":
      return row.takes;
  }
}

function isBroker(value: unknown): boolean {
  const { publish, startConsuming } = (value ?? {}) as { publish?: unknown; startConsuming?: unknown };
  return typeof publish === "function" && typeof startConsuming === "function";
}

function isText(value: unknown): boolean {
  return typeof value === "string" && value !== "";
}

function isBlobStore(value: unknown): boolean {
  if (typeof value !== "object" || value === null) return false;
  const verbs = ["put", "get", "head", "delete", "list", "check"];
  return verbs.every((verb) => typeof (value as Record<string, unknown>)[verb] === "function");
}

function isWhole(value: unknown, { min, max }: { readonly min: number; readonly max: number }): boolean {
  return Number.isInteger(value) && (value as number) >= min && (value as number) <= max;
}

function isDuration(
  { min = "0ms", max }: { readonly min?: Duration; readonly max: Duration },
  value: unknown,
): boolean {
  try {
    const ms = durationMs(value as Duration, "");
    return ms >= durationMs(min, "") && ms <= durationMs(max, "");
  } catch {
    return false;
  }
}

const BOOLEANS: Readonly<Record<string, boolean>> = { "1": true, true: true, "0": false, false: false };

/** The value that a text of the environment or of a flag means. A text that means none is returned as it is, and not accepted. */
export function fromText(row: Setting, text: string): unknown {
  switch (row.type) {
    case "globs":
    case "modules":
      return text.split(",").map((part) => part.trim());
    case "integer":
      return /^-?\d+$/.test(text) ? Number(text) : text;
    case "boolean":
      return BOOLEANS[text.toLowerCase()] ?? text;
    case "concurrency": {
      if (/^\d+$/.test(text)) return Number(text);
      const pairs = text.split(",").map((pair) => /^([^=]+)=(\d+)$/.exec(pair.trim()));
      return pairs.includes(null) ? text : Object.fromEntries(pairs.map((pair) => [pair![1]!, Number(pair![2])]));
    }
    default:
      return text;
  }
}

export interface ListenAddress {
  readonly host: string;
  readonly port: number;
}

/** `9090` and `:9090` are on the loopback address; any other host is named. Null: it is not an address. */
export function listenAddress(text: string): ListenAddress | null {
  const parts = /^(?:(?<host>\[[\da-f:.]+\]|[^:[\]\s]*):)?(?<port>\d{1,5})$/i.exec(text)?.groups;
  const port = Number(parts?.["port"]);
  if (!parts || port > 65_535) return null;
  return { host: parts["host"]?.replaceAll(/[[\]]/g, "") || "127.0.0.1", port };
}

/** Throws OPTION_INVALID about a limit between two options. */
export function refuse(wrong: boolean, option: string, what: string, hint: string): void {
  if (wrong) throw new OutliveError(ErrorCode.optionInvalid, `${option} ${what}.`, hint, { option });
}

// "Did you mean ...?": the known name that a mistyped one is nearest to.

/** The known name with the fewest letters to change. */
export function closest(name: string, known: readonly string[]): string {
  const last = name.split(".").at(-1)!;
  const distance = (candidate: string): number =>
    Math.min(edits(name, candidate), edits(last, candidate.split(".").at(-1)!));
  return known.toSorted((a, b) => distance(a) - distance(b))[0]!;
}

function edits(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1));
    row = next;
  }
  return row[b.length]!;
}
