// The CLI's output: text or JSON, tables, colours on a terminal only, and exit codes. Commands pass it facts; it writes
// them.
import { stripVTControlCharacters, styleText } from "node:util";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { isoInstant } from "../job/time.ts";
import { cut, widthOf } from "./words.ts";

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
  if (typeof value === "number" && /^at$|At$/.test(key)) return isoInstant(value);
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
  return [line(columns.map(({ title }): Cell => ({ text: title, ink: "dim" }))), ...rows.map(line)];
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
