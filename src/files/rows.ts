// The rows of a file: what `csv` and `ndjson` return. Each row has the line on which it begins, and a row that is bad on its own is an
// item with an error, so that it can fail alone. What makes the rest of a file doubtful ends the iteration with an error instead.
import type { OutliveError } from "../job/errors.ts";

/** A row of a file: its input, or why it can't be read. */
export type FileRow<T> = GoodRow<T> | BadRow;

/** A row that could be read. */
export interface GoodRow<T> {
  /** The line of the file on which it begins; the first is 1. */
  readonly line: number;
  /** The row. */
  readonly input: T;
  /** Null: nothing is wrong with it. */
  readonly error: null;
}

/** A row that could not be read. */
export interface BadRow {
  /** The line on which it begins, counted from 1. */
  readonly line: number;
  /** The beginning of its text, at most 1,000 characters. */
  readonly input: string;
  /** What is wrong with it, with line and column. */
  readonly error: OutliveError;
}

const MARK = Symbol.for("outlive.rows");
const MAX_BAD_TEXT = 1_000;

/** Iterate it for rows one by one, or `chunks()` for as many as were read at once. Memory does not grow with the file. */
export class Rows<T> implements AsyncIterable<FileRow<T>> {
  readonly [MARK] = true;
  /** For messages: the path or address, or what it is. */
  readonly name: string;
  readonly #read: () => AsyncGenerator<FileRow<T>[], void>;

  /** @internal */
  constructor(name: string, read: () => AsyncGenerator<FileRow<T>[], void>) {
    this.name = name;
    this.#read = read;
  }

  /** The same rows in arrays of at least one: a promise per array instead of per row. */
  chunks(): AsyncGenerator<readonly FileRow<T>[], void> {
    return this.#read();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileRow<T>, void> {
    for await (const chunk of this.#read()) yield* chunk;
  }
}

/** Also for rows of another copy of this package. */
export function isRows(value: unknown): value is Rows<unknown> {
  return typeof value === "object" && value !== null && MARK in value;
}

export function badRow(line: number, text: string, error: OutliveError): BadRow {
  return { line, input: text.slice(0, MAX_BAD_TEXT), error };
}
