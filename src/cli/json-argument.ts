// JSON as an argument of a command, or from stdin. What is not JSON is a usage error that shows where.
import { text } from "node:stream/consumers";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Json } from "../job/json.ts";
import { printable } from "./words.ts";

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
