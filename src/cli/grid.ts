// Tables that fit the screen: columns as wide as their widest cell, and on a terminal some of them cut so that no line wraps.
import type { Terminal } from "./terminal.ts";
import { cut, widthOf } from "./words.ts";

/** What views draw with. */
export type Pen = Pick<Terminal, "style" | "columns" | "isTty">;
export type Ink = Parameters<Terminal["style"]>[0];
/** A cell, plain or in a colour. */
export type Cell = string | number | { readonly text: string; readonly ink: Ink };

export interface Column {
  readonly title: string;
  readonly align?: "right";
  /** On a narrow terminal it may be cut down to this many characters. */
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

/** Takes from the widest column that may give, until the line fits or none may give more. */
function shrink(columns: readonly Column[], widths: number[], width: number): void {
  for (;;) {
    const over = widths.reduce((sum, one) => sum + one, GAP * (widths.length - 1)) - width;
    if (over <= 0) return;
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
