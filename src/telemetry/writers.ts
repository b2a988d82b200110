// Two ways of writing the log, one line per fact: for people and for machines. What a line says is decided in log.ts; secrets are
// taken out here, and nothing in a text can start a second line.
import { styleText } from "node:util";
import { oneLine } from "../core/text.ts";
import type { Logger } from "./log.ts";
import { redact, redactText } from "./redact.ts";

export interface WriterOptions {
  /** Takes one line, with its line break. Default: stderr; stdout belongs to the program. */
  readonly write?: (line: string) => void;
  /** Wall time in ms. */
  readonly now?: () => number;
  /** Who speaks, for example { worker: 2 }. Part of every JSON line; text lines show its values. */
  readonly who?: Readonly<Record<string, string | number>>;
  /** Colours, for text. Default: if stderr is a terminal that has them. */
  readonly colours?: boolean;
}

type Level = keyof Logger;

/** `{"time":"...","level":"warn","message":"...", ...data}` per line. */
export function jsonWriter(options: WriterOptions = {}): Logger {
  const { write = toStderr, now = Date.now, who = {} } = options;
  const line = (level: Level, message: string, data: object = {}): void => {
    const fact = { time: new Date(now()).toISOString(), level, message: redactText(message), ...who };
    write(`${withData(fact, data) ?? JSON.stringify(fact)}\n`);
  };
  return logger(line);
}

/** `12:00:01.234 warn  [2] ...` per line. Data is in the sentence already, so it is not repeated. */
export function prettyWriter(options: WriterOptions = {}): Logger {
  const { write = toStderr, now = Date.now, who = {}, colours = process.stderr.hasColors?.() ?? false } = options;
  const speaker = Object.values(who).join(" ");
  const paint = (style: Parameters<typeof styleText>[0], text: string): string =>
    colours ? styleText(style, text, { validateStream: false }) : text;
  const line = (level: Level, message: string): void => {
    const time = paint("dim", new Date(now()).toISOString().slice(11, 23));
    const name = paint(level === "error" ? "red" : level === "warn" ? "yellow" : "dim", level.padEnd(5));
    write(`${time} ${name} ${speaker === "" ? "" : `[${speaker}] `}${oneLine(redactText(message))}\n`);
  };
  return logger(line);
}

function logger(line: (level: Level, message: string, data?: object) => void): Logger {
  return {
    info: (message, data) => line("info", message, data),
    warn: (message, data) => line("warn", message, data),
    error: (message, data) => line("error", message, data),
  };
}

/** Undefined if the data can't be read or be JSON: the fact itself is written all the same. */
function withData(fact: object, data: object): string | undefined {
  try {
    return JSON.stringify({ ...fact, ...(redact(data) as object), ...fact });
  } catch {
    return undefined;
  }
}

/** A log that nobody reads any more (its reader died) is no reason to die. */
function toStderr(line: string): void {
  process.stderr.write(line, () => {});
}
