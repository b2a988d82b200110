// How the CLI speaks: text or JSON, tables, colours on a terminal only. Commands hand it facts; it writes them.
import { stripVTControlCharacters, styleText } from "node:util";
import { isoInstant } from "../job/time.ts";

type Style = Parameters<typeof styleText>[0];

export interface Terminal {
  readonly json: boolean;
  readonly isTty: boolean;
  readonly columns: number;
  /** The answer of the command: as JSON with `--json` (one document, on stdout), otherwise the text. */
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

/** What `--json` prints of a value, with every instant as ISO 8601. Durations stay numbers, and their names end in `Ms`. */
export function jsonText(value: unknown): string {
  return JSON.stringify(withInstants(value, ""));
}

/** What the user's own code has stored; a number in it may be anything. */
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

/** Columns as wide as their widest cell; numbers to the right. */
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

/** Control characters of a payload must not reach a terminal. */
export function printable(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, (character) =>
    character === "\n" || character === "\t"
      ? character
      : `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`,
  );
}
