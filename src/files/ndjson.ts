// Newline-delimited JSON: one value per line. A line stands alone, so a bad one costs no other.
import { isUtf8 } from "node:buffer";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { badRow, type FileRow, Rows } from "./rows.ts";
import {
  bytesOf,
  checkedMaxRecord,
  type FileSource,
  malformed,
  nameOf,
  notUtf8,
  type SourceOptions,
} from "./source.ts";

/** Options of `ndjson()`. */
export interface NdjsonOptions extends SourceOptions {
  /** What a bad line becomes: "row", an item with an error, which fails on its own; or "stop", which ends the iteration with it. Default "row". */
  readonly badLines?: "row" | "stop";
}

const NEWLINE = 0x0a;

/** The values of a file of newline-delimited JSON, with their lines. Blank lines are skipped; the last line needs no newline. */
export function ndjson<T = unknown>(source: FileSource, options: NdjsonOptions = {}): Rows<T> {
  const maxBytes = checkedMaxRecord(options);
  const { badLines = "row" } = options;
  if (badLines !== "row" && badLines !== "stop")
    throw new OutliveError(ErrorCode.optionInvalid, `badLines is ${String(badLines)}.`, 'Use "row" or "stop".', {});
  const name = nameOf(source);
  const parse = (line: number, bytes: Buffer, length: number): FileRow<T> | null => {
    const row = length > maxBytes ? tooLong(name, line, bytes, maxBytes) : parsed<T>(name, line, bytes);
    if (badLines === "stop" && row !== null && row.error !== null) throw row.error;
    return row;
  };
  return new Rows(name, () => lines(bytesOf(source), maxBytes, parse));
}

/** `length` is that of the whole line, of which only `bytes` were kept. */
type ParseLine<T> = (line: number, bytes: Buffer, length: number) => FileRow<T> | null;

async function* lines<T>(
  chunks: AsyncIterable<Buffer>,
  maxBytes: number,
  parse: ParseLine<T>,
): AsyncGenerator<FileRow<T>[], void> {
  let line = 1;
  // The pieces of a line that continues in the next chunk, and its length; of one that is too long, only the first pieces are kept.
  let kept: Buffer[] = [];
  let length = 0;
  const keep = (piece: Buffer): void => {
    // Copied, so that a short piece does not keep its chunk.
    if (length <= maxBytes) kept.push(Buffer.from(piece.subarray(0, maxBytes + 1)));
    length += piece.length;
  };
  const take = (): Buffer => {
    const whole = kept.length === 1 ? kept[0]! : Buffer.concat(kept);
    kept = [];
    return whole;
  };
  for await (const chunk of chunks) {
    const rows: FileRow<T>[] = [];
    let at = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, at)) {
      let bytes = chunk.subarray(at, end);
      let whole = bytes.length;
      if (length > 0) {
        keep(bytes);
        whole = length;
        bytes = take();
        length = 0;
      }
      const row = parse(line, bytes, whole);
      if (row !== null) rows.push(row);
      line++;
      at = end + 1;
    }
    if (at < chunk.length) keep(chunk.subarray(at));
    if (rows.length > 0) yield rows;
  }
  const last = length === 0 ? null : parse(line, take(), length);
  if (last !== null) yield [last];
}

/** Null: a blank line. */
function parsed<T>(name: string, line: number, bytes: Buffer): FileRow<T> | null {
  if (!isUtf8(bytes)) return badRow(line, bytes.toString("latin1"), notUtf8(name, line));
  const text = line === 1 && bytes[0] === 0xef ? bytes.toString().replace(/^\uFEFF/, "") : bytes.toString();
  try {
    return { line, input: JSON.parse(text) as T, error: null };
  } catch (thrown) {
    if (text.trim() === "") return null;
    const what = `is not JSON: ${(thrown as Error).message.replace(/ (in JSON )?at position [^]*$/, "")}`;
    const hint = "Correct the line: one JSON value without newlines.";
    return badRow(line, text, malformed(name, line, badColumn(text), what, hint));
  }
}

function tooLong(name: string, line: number, bytes: Buffer, maxBytes: number): FileRow<never> {
  const what = `is longer than ${maxBytes} bytes`;
  const hint = "Raise maxRecordBytes, or put less into one line.";
  const error = malformed(name, line, null, what, hint, ErrorCode.fileRecordTooLong);
  return badRow(line, bytes.toString("utf8", 0, 2_000), error);
}

/** Longer lines have no column, because the search parses them again and again. */
const MAX_SEARCHED = 10_000;

/**
 * Where a text stops being the beginning of JSON, counted from 1. V8 says so for some errors only; here the longest beginning is
 * searched that fails at its end, if it fails.
 */
function badColumn(text: string): number | null {
  if (text.length > MAX_SEARCHED) return null;
  let [good, bad] = [0, text.length + 1];
  while (bad - good > 1) {
    const middle = (good + bad) >> 1;
    if (isBeginning(text.slice(0, middle))) good = middle;
    else bad = middle;
  }
  return bad;
}

function isBeginning(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch (thrown) {
    const { message } = thrown as Error;
    const position = /\bposition (\d+)/.exec(message)?.[1];
    return position === undefined ? /\bend of JSON\b/.test(message) : Number(position) >= text.length;
  }
}
