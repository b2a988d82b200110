// How amounts, instants and texts are written for people. Pure.
import { humanMs } from "../core/duration.ts";
import { printable } from "./terminal.ts";

export function thousands(value: number): string {
  return value.toLocaleString("en-US");
}

/** "1 job", "1,200 jobs". */
export function count(value: number, one: string, many = `${one}s`): string {
  return `${thousands(value)} ${value === 1 ? one : many}`;
}

/** UTC to the second, as the reports have it: "2026-11-15 12:03:41Z". */
export function stamp(at: number): string {
  return `${new Date(at).toISOString().slice(0, 19).replace("T", " ")}Z`;
}

/** The time of day only, to the millisecond: for lines whose day is said elsewhere. */
export function timeOfDay(at: number): string {
  return new Date(at).toISOString().slice(11, 23);
}

export function ago(ms: number): string {
  return `${humanMs(Math.max(0, ms))} ago`;
}

/** "-" for what is not there. */
export function orDash(text: string | null | undefined): string {
  return text === null || text === undefined || text === "" ? "-" : text;
}

/** One line, without control characters, at most `width` characters long. */
export function oneLine(text: string, width = Number.POSITIVE_INFINITY): string {
  return cut(printable(text.replaceAll(/\s+/g, " ").trim()), width);
}

export function cut(text: string, width: number): string {
  const characters = [...text];
  if (characters.length <= width) return text;
  return `${characters.slice(0, Math.max(0, width - 1)).join("")}…`;
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let left = value;
  let unit = 0;
  while (left >= 1_000 && unit < units.length - 1) {
    left /= 1_000;
    unit++;
  }
  return `${unit === 0 || left >= 100 ? Math.round(left) : Number(left.toFixed(1))} ${units[unit]}`;
}

/** A word as a shell takes it: quoted only if it must be. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
