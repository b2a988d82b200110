// Where the bytes of rows come from, and that they are UTF-8: a byte that is not names its line, and is never replaced quietly.
import { isUtf8 } from "node:buffer";
import { createReadStream } from "node:fs";
import { fileURLToPath } from "node:url";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** A path, a `file:` URL, a Readable, or anything else that yields bytes or texts. Compressed files are not unpacked. */
export type FileSource = string | URL | AsyncIterable<Uint8Array | string>;

const READ_BYTES = 256 * 1024;
const DEFAULT_MAX_RECORD = 1024 * 1024;
const MAX_MAX_RECORD = 64 * 1024 * 1024;
const NEWLINE = 0x0a;

export interface SourceOptions {
  /** The longest record, in bytes; 1 to 67,108,864. Default 1,048,576. */
  readonly maxRecordBytes?: number;
}

export function checkedMaxRecord({ maxRecordBytes = DEFAULT_MAX_RECORD }: SourceOptions): number {
  if (Number.isInteger(maxRecordBytes) && maxRecordBytes >= 1 && maxRecordBytes <= MAX_MAX_RECORD)
    return maxRecordBytes;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `maxRecordBytes is ${maxRecordBytes}.`,
    `Use a whole number from 1 to ${MAX_MAX_RECORD}.`,
    { maxRecordBytes },
  );
}

export function nameOf(source: FileSource): string {
  if (typeof source === "string") return source;
  if (source instanceof URL) return source.href;
  // A stream of `fs.createReadStream` knows its file.
  const { path } = source as { readonly path?: unknown };
  return typeof path === "string" ? path : "the stream of rows";
}

/** Opened at the first read, and closed when the reader leaves. */
export async function* bytesOf(source: FileSource): AsyncGenerator<Buffer, void> {
  const name = nameOf(source);
  const isFile = typeof source === "string" || source instanceof URL;
  let first = true;
  try {
    for await (const given of isFile ? fileStream(source) : source) {
      // Copied, because parsers keep the end of a chunk, and a source may reuse its buffer.
      const chunk = isFile ? (given as Buffer) : Buffer.from(given as Uint8Array);
      if (chunk.length === 0) continue;
      if (first && isUtf16(chunk)) throw malformed(name, 1, null, "is UTF-16", "Convert it to UTF-8.");
      first = false;
      yield chunk;
    }
  } catch (thrown) {
    if (!isFile || (thrown as NodeJS.ErrnoException).syscall === undefined) throw thrown;
    throw new OutliveError(
      ErrorCode.fileUnreadable,
      `${name} can't be read: ${(thrown as Error).message}.`,
      "Check that the file exists and that this user may read it.",
      { file: name, errno: (thrown as NodeJS.ErrnoException).code },
      { cause: thrown },
    );
  }
}

function fileStream(source: string | URL): AsyncIterable<Buffer> {
  if (source instanceof URL && source.protocol !== "file:")
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `Rows are not read from ${source.protocol} addresses.`,
      "Fetch it yourself and pass the body of the response, which is an async iterable.",
      { protocol: source.protocol },
    );
  return createReadStream(source instanceof URL ? fileURLToPath(source) : source, { highWaterMark: READ_BYTES });
}

/** Passes bytes through in pieces that end between characters. Throws at the first byte that is not UTF-8, after what comes before it. */
export async function* inUtf8(chunks: AsyncIterable<Buffer>, name: string): AsyncGenerator<Buffer, void> {
  let tail: Buffer = Buffer.alloc(0);
  let line = 1;
  for await (const given of chunks) {
    const chunk = tail.length === 0 ? given : Buffer.concat([tail, given]);
    const end = endOfWhole(chunk);
    const whole = chunk.subarray(0, end);
    if (!isUtf8(whole)) throw notUtf8(name, line + badLineIn(whole));
    line += newlinesIn(whole);
    tail = chunk.subarray(end);
    if (whole.length > 0) yield whole;
  }
  if (tail.length > 0) throw notUtf8(name, line);
}

/** Where the last character begins, if the chunk ends in the middle of it; otherwise the chunk's length. */
function endOfWhole(chunk: Buffer): number {
  for (let back = 1; back <= Math.min(3, chunk.length); back++) {
    const byte = chunk[chunk.length - back]!;
    if (byte < 0x80) break;
    if (byte >= 0xc0) {
      const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return length > back ? chunk.length - back : chunk.length;
    }
  }
  return chunk.length;
}

function badLineIn(chunk: Buffer): number {
  let lines = 0;
  for (let at = 0; ; lines++) {
    const end = chunk.indexOf(NEWLINE, at);
    if (end === -1 || !isUtf8(chunk.subarray(at, end))) return lines;
    at = end + 1;
  }
}

function newlinesIn(chunk: Buffer): number {
  let count = 0;
  for (let at = chunk.indexOf(NEWLINE); at !== -1; at = chunk.indexOf(NEWLINE, at + 1)) count++;
  return count;
}

function isUtf16(chunk: Buffer): boolean {
  return chunk.length >= 2 && ((chunk[0] === 0xff && chunk[1] === 0xfe) || (chunk[0] === 0xfe && chunk[1] === 0xff));
}

export function notUtf8(name: string, line: number): OutliveError {
  return malformed(name, line, null, "holds bytes that are not UTF-8", "Convert the file to UTF-8.");
}

/** `column` is the number of a character or field, or the name of a field; null: it is not known. */
export function malformed(
  name: string,
  line: number,
  column: number | string | null,
  what: string,
  hint: string,
  code: ErrorCode = ErrorCode.fileMalformed,
): OutliveError {
  const at = column === null ? "" : `, column ${typeof column === "string" ? JSON.stringify(column) : column}`;
  return new OutliveError(code, `${name}, line ${line}${at}: it ${what}.`, hint, { file: name, line, column });
}
