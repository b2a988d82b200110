// Colours and widths for a terminal: a line is a list of parts, cut to the width before it is painted.
import { styleText } from "node:util";

export type Ink = Parameters<typeof styleText>[0] | null;
export type Part = string | readonly [Ink, string];

/** One line of at most `width` columns. */
export function paint(parts: readonly Part[], width: number, coloured: boolean): string {
  let left = width;
  let line = "";
  for (const part of parts) {
    const [ink, text] = typeof part === "string" ? [null, part] : part;
    const cut = text.length > left ? `${text.slice(0, Math.max(0, left - 1))}…` : text;
    line += ink !== null && coloured ? styleText(ink, cut, { validateStream: false }) : cut;
    left -= cut.length;
    if (left <= 0) break;
  }
  return line;
}

export function wantsColour(stream: NodeJS.WriteStream): boolean {
  return stream.isTTY && stream.hasColors() && process.env["TERM"] !== "dumb";
}

export function thousands(value: number): string {
  return value.toLocaleString("en-US");
}

export function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(1)} s`;
}

export function millis(ms: number | null): string {
  return ms === null ? "-" : ms < 10_000 ? `${thousands(Math.round(ms))} ms` : seconds(ms);
}

export function count(value: number, one: string): string {
  return `${thousands(value)} ${one}${value === 1 ? "" : "s"}`;
}
