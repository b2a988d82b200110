// JSON as the only form in which anything of the user's is kept: the types that hold at compile time, and the checks at run
// time. What goes in comes out the same, so the first run of a step sees exactly what a replay sees.
import { ErrorCode, OutliveError } from "./errors.ts";
import { storableText } from "./text.ts";

/** What can be stored: JSON. */
export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json | undefined };

/** `T` itself if JSON can carry it, `never` where it can't: `Date`, `Buffer`, `bigint`, functions, symbols, class instances with methods. */
export type JsonOf<T> = T extends Json
  ? T
  : T extends undefined | bigint | symbol | ((...args: never[]) => unknown)
    ? never
    : T extends { toJSON(...args: never[]): unknown }
      ? never
      : T extends readonly unknown[]
        ? { [I in keyof T]: JsonOf<T[I]> }
        : T extends object
          ? { [K in keyof T]: undefined extends T[K] ? JsonOf<Exclude<T[K], undefined>> | undefined : JsonOf<T[K]> }
          : T extends unknown
            ? unknown extends T
              ? T
              : never
            : never;

/** `T` itself if it may be a job's result: JSON, or nothing. The name of the other type is the message of the compiler. */
export type ResultOf<T> = [T] extends [JsonOf<T> | void | undefined] ? T : ResultMustBeJson;
/** What the compiler names where a result is not JSON. */
export interface ResultMustBeJson {
  readonly "the result of a job is stored as JSON: no Date, Buffer, bigint, Map, Set or function in it": never;
}

/** Most bytes of one input, result, step result or progress. */
export const MAX_JSON_BYTES = 1_048_576;
/** Most levels of nesting. */
export const MAX_JSON_DEPTH = 64;

/** The JSON text of `value`, or an error that names the path of what JSON can't carry. `what` opens the error. */
export function encodeJson(value: unknown, what: string): string {
  assertJson(value, what);
  const text = JSON.stringify(value);
  // A UTF-16 unit is at most three bytes of UTF-8: only texts that might be too long are counted exactly.
  if (text.length * 3 > MAX_JSON_BYTES) {
    const bytes = utf8Length(text);
    if (bytes > MAX_JSON_BYTES) {
      throw new OutliveError(
        ErrorCode.notJson,
        `${what} has ${bytes} bytes of JSON, at most ${MAX_JSON_BYTES} are allowed.`,
        "Put the data somewhere else (a file, a table, an object store) and pass its address.",
        { bytes, limit: MAX_JSON_BYTES },
      );
    }
  }
  return text;
}

/** The value of a stored text, which may have been written by another program: what can harm is refused. */
export function decodeJson(text: string, what: string): Json {
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch (cause) {
    throw new OutliveError(
      ErrorCode.notJson,
      `${what} is stored as a text that is not JSON.`,
      "Cancel the job, or correct its row.",
      {},
      { cause },
    );
  }
  // Everything that came through encodeJson is free of these; the cheap check decides whether the walk is needed. An escape may
  // hide the word ("\u005f_proto__").
  if (text.includes("__proto__") || text.includes("\\u") || MAYBE_INFINITE.test(text)) assertJson(value, what);
  return value;
}

/**
 * A number that `JSON.parse` may read as Infinity has a three-digit exponent, or so many digits that a two-digit one is enough. SQL's
 * `jsonb` writes 1e400 as 401 digits.
 */
const MAYBE_INFINITE = /(?:^|\D)\d{200}|\d[eE]\+?\d{3}/;

interface Fault {
  path: string;
  readonly found: string;
}

/** The first thing that JSON can't carry, or null. The path is built on the way back, so that good values cost no strings. */
function firstFault(value: unknown, depth: number): Fault | null {
  switch (typeof value) {
    case "string":
    case "boolean":
      return null;
    case "number":
      return Number.isFinite(value) ? null : { path: "", found: String(value) };
    case "object":
      break;
    default:
      return { path: "", found: `a ${typeof value}` };
  }
  if (value === null) return null;
  if (depth > MAX_JSON_DEPTH) return { path: "", found: `more than ${MAX_JSON_DEPTH} levels of nesting` };
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      const fault = firstFault(value[i], depth + 1);
      if (fault) return within(fault, `[${i}]`);
    }
    return null;
  }
  const prototype = Object.getPrototypeOf(value) as object | null;
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    return { path: "", found: `a ${value.constructor?.name ?? "class instance"}` };
  }
  for (const key of Object.keys(value)) {
    if (key === "__proto__") return { path: "", found: "a key named __proto__" };
    const member = (value as Record<string, unknown>)[key];
    if (member === undefined) continue;
    const fault = firstFault(member, depth + 1);
    if (fault) return within(fault, `.${key}`);
  }
  return null;
}

function within(fault: Fault, step: string): Fault {
  fault.path = step + fault.path;
  return fault;
}

function assertJson(value: unknown, what: string): void {
  const fault = firstFault(value, 1);
  if (!fault) return;
  const path = `$${storableText(fault.path, 200)}`;
  throw new OutliveError(
    ErrorCode.notJson,
    `${what} contains ${fault.found} at ${path}, which can't be stored as JSON.`,
    "Pass text, numbers, booleans, null, arrays and plain objects; turn dates into text or milliseconds.",
    { path, found: fault.found },
  );
}

function utf8Length(text: string): number {
  let bytes = 0;
  for (const character of text) {
    const point = character.codePointAt(0)!;
    bytes += point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  }
  return bytes;
}
