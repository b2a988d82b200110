// How amounts, instants and texts are formatted for people. Pure.
import { humanMs, isoInstant } from "../job/time.ts";

export function thousands(value: number): string {
  return value.toLocaleString("en-US");
}

/** "1 job", "1,200 jobs". */
export function count(value: number, one: string, many = `${one}s`): string {
  return `${thousands(value)} ${value === 1 ? one : many}`;
}

/** UTC to the second, as in the reports: "2026-11-15 12:03:41Z". */
export function stamp(at: number): string {
  return `${isoInstant(at).split(".", 1)[0]!.replace("T", " ")}Z`;
}

/** The time of day only, to the millisecond: for lines whose day is shown elsewhere. */
export function timeOfDay(at: number): string {
  return isoInstant(at).slice(-13, -1);
}

export function ago(ms: number): string {
  return `${humanMs(Math.max(0, ms))} ago`;
}

/** "-" for a missing value. */
export function orDash(text: string | null | undefined): string {
  return text === null || text === undefined || text === "" ? "-" : text;
}

/** One line, without control characters, at most `width` characters long. */
export function oneLine(text: string, width = Number.POSITIVE_INFINITY): string {
  return cut(printable(text.replaceAll(/\s+/g, " ").trim()), width);
}

export function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let kept = "";
  let left = width - 1;
  for (const { segment } of GRAPHEMES.segment(text)) {
    left -= columnsOf(segment);
    if (left < 0) break;
    kept += segment;
  }
  return `${kept}…`;
}

/** As `cut`, at the beginning: of a path the end says more. */
export function cutFront(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  const segments = [...GRAPHEMES.segment(text)].map(({ segment }) => segment);
  let left = width - 1;
  let from = segments.length;
  while (from > 0 && (left -= columnsOf(segments[from - 1]!)) >= 0) from--;
  return `…${segments.slice(from).join("")}`;
}

/** How many terminal columns a text without control characters takes. */
export function widthOf(text: string): number {
  if (/^[ -~]*$/.test(text)) return text.length;
  let width = 0;
  for (const { segment } of GRAPHEMES.segment(text)) width += columnsOf(segment);
  return width;
}

const GRAPHEMES = new Intl.Segmenter();

/** Two for emoji and for the scripts of East Asia that are drawn wide. */
function columnsOf(grapheme: string): number {
  return /\p{Emoji_Presentation}|\p{sc=Han}|\p{sc=Hiragana}|\p{sc=Katakana}|\p{sc=Hangul}|[\u3000-\u303f\uff01-\uff60]/u.test(
    grapheme,
  )
    ? 2
    : 1;
}

const BAR = 30;

/** A share from 0 to 1 as a bar. */
export function bar(share: number): string {
  return "█".repeat(Math.round(share * BAR)).padEnd(BAR, "░");
}

/** Control characters of a payload must not reach a terminal. */
export function printable(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, (character) =>
    character === "\n" || character === "\t"
      ? character
      : `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`,
  );
}
