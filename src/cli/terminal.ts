// The CLI's output: text or JSON, tables, colours on a terminal only, and exit codes, and the live view
// of `--watch`. Commands pass it facts; it writes them.
import { stripVTControlCharacters, styleText } from "node:util";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { isoInstant } from "../job/time.ts";
import { cut, widthOf, count } from "./words.ts";

type Style = Parameters<typeof styleText>[0];

export interface Terminal {
  readonly json: boolean;
  readonly isTty: boolean;
  readonly columns: number;
  /** The result of the command: as JSON with `--json` (one document, on stdout), otherwise the text. */
  readonly answer: (value: unknown, text: () => string) => void;
  /** A line on stdout, never with --json. */
  readonly line: (text?: string) => void;
  /** Progress and remarks, on stderr. */
  readonly remark: (text: string) => void;
  readonly style: (style: Style, text: string) => string;
  readonly table: (head: readonly string[], rows: readonly (readonly (string | number)[])[]) => string;
}

export interface Streams {
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
}

export function terminal(streams: Streams, json: boolean): Terminal {
  const { stdout, stderr } = streams;
  const isTty = stdout.isTTY === true && !json;
  const style = (format: Style, text: string): string => (isTty ? styleText(format, text, { stream: stdout }) : text);
  return {
    json,
    isTty,
    columns: stdout.columns ?? 120,
    answer: (value, text) => void stdout.write(json ? `${jsonText(value)}\n` : ensureNewline(text())),
    line: (text = "") => {
      if (!json) stdout.write(`${text}\n`);
    },
    remark: (text) => void stderr.write(`${text}\n`),
    style,
    table: (head, rows) =>
      renderTable(
        head.map((cell) => style("bold", cell)),
        rows,
      ),
  };
}

/**
 * What `--json` prints for a value, with every instant as ISO 8601. Durations stay numbers, and their names end in
 * `Ms`.
 */
export function jsonText(value: unknown): string {
  return JSON.stringify(withInstants(value, ""));
}

/** Values stored by the user's own code; a number in them may mean anything. */
const OF_USERS: ReadonlySet<string> = new Set(["input", "result", "progress"]);

function withInstants(value: unknown, key: string): unknown {
  if (typeof value === "number" && /^(at|until)$|At$/.test(key)) return isoInstant(value);
  if (typeof value !== "object" || value === null || OF_USERS.has(key)) return value;
  if (Array.isArray(value)) return value.map((member) => withInstants(member, key));
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, withInstants(member, name)]));
}

function ensureNewline(text: string): string {
  return text.endsWith("\n") ? text : `${text}\n`;
}

/** Columns as wide as their widest cell; numbers right-aligned. */
function renderTable(head: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  const width = (cell: string | number): number => stripVTControlCharacters(String(cell)).length;
  const widths = head.map((cell, i) => Math.max(width(cell), ...rows.map((row) => width(row[i] ?? ""))));
  const numeric = head.map(
    (_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === "number" || row[i] === "-"),
  );
  const line = (row: readonly (string | number)[]): string =>
    row
      .map((cell, i) => {
        const gap = " ".repeat(Math.max(0, widths[i]! - width(cell)));
        return numeric[i] ? gap + String(cell) : String(cell) + gap;
      })
      .join("  ")
      .trimEnd();
  return [line(head), ...rows.map(line)].join("\n");
}

// Tables that fit the screen: columns as wide as their widest cell, and on a terminal some of them cut so that no line
// wraps.

/** What views draw with. */
export type Pen = Pick<Terminal, "style" | "columns" | "isTty">;
export type Ink = Parameters<Terminal["style"]>[0];
/** A cell, plain or in a colour. */
export type Cell = string | number | { readonly text: string; readonly ink: Ink };

export interface Column {
  readonly title: string;
  readonly align?: "right";
  /** On a narrow terminal the column may be cut to this many characters. */
  readonly shrinkTo?: number;
  /** Of the last column: what does not fit continues on the next line, so nothing is cut. */
  readonly wraps?: true;
}

const GAP = 2;

export function grid(pen: Pen, columns: readonly Column[], rows: readonly (readonly Cell[])[]): string[] {
  const widths = columns.map(({ title }, i) =>
    Math.max(title.length, ...rows.map((row) => widthOf(textOf(row[i] ?? "")))),
  );
  if (pen.isTty) shrink(columns, widths, pen.columns - 1);
  const line = (cells: readonly Cell[]): string =>
    cells
      .map((cell, i) => {
        const text = cut(textOf(cell), widths[i]!);
        const gap = " ".repeat(widths[i]! - widthOf(text));
        const inked = typeof cell === "object" ? pen.style(cell.ink, text) : text;
        return columns[i]!.align === "right" ? gap + inked : i === cells.length - 1 ? inked : inked + gap;
      })
      .join(" ".repeat(GAP))
      .trimEnd();
  const head = line(columns.map(({ title }): Cell => ({ text: title, ink: "dim" })));
  const last = columns.length - 1;
  if (!pen.isTty || !columns[last]!.wraps) return [head, ...rows.map(line)];
  const before = columns.slice(0, last).map((): Cell => "");
  return [
    head,
    ...rows.flatMap((row) => {
      const [first = "", ...more] = wrap(textOf(row[last] ?? ""), widths[last]!);
      return [line([...row.slice(0, last), first]), ...more.map((text) => line([...before, text]))];
    }),
  ];
}

/** Narrows the widest shrinkable column until the line fits or no column can shrink further. */
function shrink(columns: readonly Column[], widths: number[], width: number): void {
  for (;;) {
    const excess = widths.reduce((sum, one) => sum + one, GAP * (widths.length - 1)) - width;
    if (excess <= 0) return;
    let widest = -1;
    for (const [i, { shrinkTo }] of columns.entries())
      if (shrinkTo !== undefined && widths[i]! > shrinkTo && (widest < 0 || widths[i]! > widths[widest]!)) widest = i;
    if (widest < 0) return;
    widths[widest]!--;
  }
}

/** Broken at spaces, so that a command is cut nowhere; a longer word is broken where the line ends. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ").flatMap((one) => pieces(one, width))) {
    if (line !== "" && widthOf(line) + 1 + widthOf(word) > width) {
      lines.push(line);
      line = word;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return [...lines, line];
}

/** Only what is plain ASCII is broken: how wide other characters are is not known here. */
function pieces(word: string, width: number): string[] {
  if (word.length <= width || !/^[ -~]*$/.test(word)) return [word];
  return Array.from({ length: Math.ceil(word.length / width) }, (_, i) => word.slice(i * width, (i + 1) * width));
}

function textOf(cell: Cell): string {
  return typeof cell === "object" ? cell.text : String(cell);
}

// What the exit codes mean. Documented in docs/cli.md; scripts rely on them.

export const ExitCode = {
  ok: 0,
  /** It failed, or `--check` found something wrong. */
  failure: 1,
  /** A usage error: an unknown command or option, an invalid configuration. */
  usage: 2,
  /** No such job, incident, kind or worker. */
  notFound: 3,
  /** The job's state does not allow the operation. */
  wrongState: 4,
} as const;

export function exitCodeOf(thrown: unknown): number {
  if (!(thrown instanceof OutliveError)) return ExitCode.failure;
  switch (thrown.code) {
    case ErrorCode.optionInvalid:
    case ErrorCode.keyInvalid:
    case ErrorCode.inputInvalid:
      return ExitCode.usage;
    case ErrorCode.notFound:
    case ErrorCode.kindUnknown:
      return ExitCode.notFound;
    case ErrorCode.wrongState:
    case ErrorCode.keyHeld:
    case ErrorCode.signalRefused:
      return ExitCode.wrongState;
    default:
      return ExitCode.failure;
  }
}

// The live view of `--watch`: on a terminal one block of lines, redrawn in place once a second until q or Ctrl-C;
// without one a block a second. One write per frame and no clearing before it, so nothing flickers.

export interface Size {
  readonly columns: number;
  /** Infinite without a terminal. */
  readonly rows: number;
}

/** In raw mode Ctrl-C and Ctrl-D are keys. */
const STOP_KEYS = ["q", "Q", "\u0003", "\u0004"];
const EVERY_MS = 1_000;
const HIDE_CURSOR = "\u001b[?25l";
const SHOW_CURSOR = "\u001b[?25h";
/** A line too long for a narrow screen is cut, so that a frame keeps its height. */
const NO_WRAP = "\u001b[?7l";
const WRAP = "\u001b[?7h";
const CLEAR_LINE = "\u001b[K";
const CLEAR_BELOW = "\u001b[J";
const CLEAR_ALL = "\u001b[2J\u001b[H";
/** Terminals that support it show a frame only when it is complete; the others ignore it. */
const FRAME_BEGINS = "\u001b[?2026h";
const FRAME_ENDS = "\u001b[?2026l";

/**
 * Calls `frame` once a second and shows its lines until the user ends it, or the frame calls `end`: then it was the last. `onlyLast`: without a
 * terminal nothing else is shown.
 */
export async function watch(
  terminal: Terminal,
  frame: (size: Size, end: () => void) => Promise<readonly string[]>,
  { onlyLast = false }: { readonly onlyLast?: boolean } = {},
): Promise<void> {
  const stop = untilAsked();
  const screen = terminal.isTty ? liveScreen() : plainScreen(terminal.json ? "" : "\n");
  let isLast = false;
  try {
    for (;;) {
      const startedAt = performance.now();
      const lines = await frame(screen.size(), () => (isLast = true));
      if (lines.length > 0 && (isLast || !onlyLast)) screen.show(lines);
      if (isLast) return;
      if (await stop.within(Math.max(50, EVERY_MS - (performance.now() - startedAt)))) return;
    }
  } finally {
    screen.end();
    stop.end();
  }
}

interface Screen {
  readonly size: () => Size;
  readonly show: (lines: readonly string[]) => void;
  readonly end: () => void;
}

function liveScreen(): Screen {
  const { stdout } = process;
  let drawn = 0;
  const resized = (): void => {
    stdout.write(CLEAR_ALL);
    drawn = 0;
  };
  stdout.write(HIDE_CURSOR + NO_WRAP);
  stdout.on("resize", resized);
  return {
    size: () => ({ columns: stdout.columns ?? 80, rows: (stdout.rows ?? 24) - 1 }),
    show(lines) {
      const shown = lines.slice(0, Math.max(1, (stdout.rows ?? 24) - 1));
      const up = drawn > 0 ? `\u001b[${drawn}A\r` : "";
      drawn = shown.length;
      const text = shown.map((line) => `${line}${CLEAR_LINE}\r\n`).join("");
      stdout.write(`${FRAME_BEGINS}${up}${text}${CLEAR_BELOW}${FRAME_ENDS}`);
    },
    end() {
      stdout.off("resize", resized);
      stdout.write(WRAP + SHOW_CURSOR);
    },
  };
}

function plainScreen(between: string): Screen {
  let first = true;
  return {
    size: () => ({ columns: 120, rows: Number.POSITIVE_INFINITY }),
    show(lines) {
      process.stdout.write(`${first ? "" : between}${lines.join("\n")}\n`);
      first = false;
    },
    end: () => {},
  };
}

/** q, Ctrl-C, SIGTERM, or the reader of stdout is gone. */
function untilAsked(): { within: (ms: number) => Promise<boolean>; end: () => void } {
  const { stdin, stdout } = process;
  const asked = new AbortController();
  const ask = (): void => asked.abort();
  const key = (data: Buffer): void => {
    if (STOP_KEYS.some((stop) => data.toString().includes(stop))) ask();
  };
  const raw = stdin.isTTY && stdout.isTTY;
  if (raw) {
    stdin.setRawMode(true);
    stdin.on("data", key);
  }
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const signal of signals) process.on(signal, ask);
  stdout.on("error", ask);
  return {
    within: (ms) =>
      new Promise((resolve) => {
        if (asked.signal.aborted) return resolve(true);
        const finish = (): void => {
          clearTimeout(timer);
          asked.signal.removeEventListener("abort", finish);
          resolve(asked.signal.aborted);
        };
        const timer = setTimeout(finish, ms);
        asked.signal.addEventListener("abort", finish);
      }),
    end() {
      for (const signal of signals) process.off(signal, ask);
      if (!raw) return;
      stdin.off("data", key);
      stdin.setRawMode(false);
      stdin.pause();
    },
  };
}

// The progress of a long task: a line on stderr once a second, none if the task finishes sooner. On a terminal one line, redrawn in place.

const REDRAWN_EVERY_MS = 100;

export interface ProgressLine {
  /** As often as you like; the text is made only if it is shown. */
  readonly show: (text: () => string) => void;
  /** Removes the line from a terminal. */
  readonly end: () => void;
}

export function progressLine({ json, remark }: Terminal): ProgressLine {
  const { stderr } = process;
  const inPlace = stderr.isTTY === true && !json;
  let shownAt = performance.now();
  let drawn = false;
  return {
    show(text) {
      if (performance.now() - shownAt < (inPlace ? REDRAWN_EVERY_MS : PROGRESS_EVERY_MS)) return;
      shownAt = performance.now();
      drawn = inPlace;
      if (inPlace) stderr.write(`\r${cut(text(), (stderr.columns ?? 80) - 1)}${CLEAR_LINE}`);
      else remark(text());
    },
    end() {
      if (drawn) stderr.write(`\r${CLEAR_LINE}`);
    },
  };
}

const PROGRESS_EVERY_MS = 1_000;

/** Call it with the current count, as often as you like. */
export function progress(
  remark: (text: string) => void,
  doing: string,
  now: () => number = () => performance.now(),
): (jobs: number) => void {
  let printedAt = now();
  return (jobs) => {
    if (now() - printedAt < PROGRESS_EVERY_MS) return;
    printedAt = now();
    remark(`${doing}: ${count(jobs, "job")} so far`);
  };
}
