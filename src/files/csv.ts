// CSV as RFC 4180 has it, strictly, by `csv-parse`. The only file that loads that package, and only when rows are read. A record with
// too many or too few fields is bad alone; a quote in the wrong place makes all that follows doubtful and ends the iteration.
import type { Options, Parser } from "csv-parse";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { badRow, type FileRow, Rows } from "./rows.ts";
import { bytesOf, checkedMaxRecord, type FileSource, inUtf8, malformed, nameOf, type SourceOptions } from "./source.ts";

/** Options of `csv()`. */
export interface CsvOptions extends SourceOptions {
  /** The names of the fields, if the file has no header. Default: the first record, which is then not a row. */
  readonly columns?: readonly string[];
  /** What separates fields: one character that is not a quote or a newline. Default ",". */
  readonly delimiter?: string;
}

/** A record by the names of its columns. */
export type CsvRow = Readonly<Record<string, string>>;

/**
 * The records of a CSV file as objects of texts, with the line on which each begins. Needs the package `csv-parse`. Blank lines are
 * skipped, and a byte order mark.
 */
export function csv(source: FileSource, options: CsvOptions = {}): Rows<CsvRow> {
  const { columns, delimiter = "," } = options;
  const maxBytes = checkedMaxRecord(options);
  const name = nameOf(source);
  if (typeof delimiter !== "string" || !/^[^"\r\n]$/u.test(delimiter))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The delimiter of ${name} is ${JSON.stringify(delimiter)}.`,
      'Use one character that is not a quote or a newline, as ";" or "\\t".',
      { delimiter },
    );
  if (columns !== undefined)
    assertColumns(
      columns,
      (what) =>
        new OutliveError(ErrorCode.optionInvalid, `The columns of ${name}: ${what}.`, COLUMNS_HINT, { columns }),
    );
  return new Rows(name, () => records(source, name, columns ?? null, delimiter, maxBytes));
}

async function* records(
  source: FileSource,
  name: string,
  given: readonly string[] | null,
  delimiter: string,
  maxBytes: number,
): AsyncGenerator<FileRow<CsvRow>[], void> {
  const reading = new Reading(name, given);
  const parser = (await load())({
    bom: true,
    delimiter,
    // Named, because what is found automatically does not count other newlines inside quotes.
    record_delimiter: ["\r\n", "\n"],
    skip_empty_lines: true,
    // The number of fields is compared in Reading, where a record can fail alone.
    relax_column_count: true,
    max_record_size: maxBytes,
    on_record: (fields: readonly string[], { lines }: { readonly lines: number }) => reading.add(fields, lines),
  });
  // Only the end of the parser comes out of its readable side: records are taken in on_record, a chunk at a time.
  parser.resume();
  parser.on("error", () => {});
  try {
    for await (const chunk of inUtf8(bytesOf(source), name)) {
      const failure = await done((then) => parser.write(chunk, then));
      const rows = reading.take();
      if (rows.length > 0) yield rows;
      if (failure !== null) throw failure;
    }
    const failure = await done((then) => parser.end(then));
    const rows = reading.take();
    if (rows.length > 0) yield rows;
    if (failure !== null) throw failure;
  } catch (thrown) {
    throw reading.explained(thrown, parser, maxBytes);
  } finally {
    parser.destroy();
  }
}

/** The records of a file as they come from the parser. */
class Reading {
  readonly #name: string;
  #columns: readonly string[] | null;
  #rows: FileRow<CsvRow>[] = [];
  /** On which line the last record ended, by the parser's count. */
  #counted = 0;
  /** The parser counts a CRLF inside quotes as two lines. So many were too many. */
  #tooMany = 0;

  constructor(name: string, columns: readonly string[] | null) {
    this.#name = name;
    this.#columns = columns;
  }

  /** `counted` is the line on which the record ends, by the parser's count. */
  add(fields: readonly string[], counted: number): null {
    let inside = 0;
    // Blank lines, or newlines inside quotes: only the latter belong to this record.
    if (counted - this.#counted > 1) {
      inside = occurrences(fields, "\n");
      if (inside > 0) this.#tooMany += occurrences(fields, "\r\n");
    }
    this.#counted = counted;
    const line = counted - this.#tooMany - inside;
    if (this.#columns === null) {
      assertColumns(fields, (what) => malformed(this.#name, line, null, `is the header, but ${what}`, COLUMNS_HINT));
      this.#columns = fields;
    } else this.#rows.push(this.#row(fields, line, this.#columns));
    return null;
  }

  #row(fields: readonly string[], line: number, columns: readonly string[]): FileRow<CsvRow> {
    if (fields.length !== columns.length) {
      const column = Math.min(fields.length, columns.length) + 1;
      const what = `has ${fields.length} fields instead of ${columns.length}`;
      const hint = "Correct the record, or put a field that holds the delimiter into quotes.";
      return badRow(line, fields.join(","), malformed(this.#name, line, column, what, hint));
    }
    const input: Record<string, string> = {};
    for (let n = 0; n < columns.length; n++) input[columns[n]!] = fields[n]!;
    return { line, input, error: null };
  }

  take(): FileRow<CsvRow>[] {
    const rows = this.#rows;
    this.#rows = [];
    return rows;
  }

  explained(thrown: unknown, parser: Parser, maxBytes: number): unknown {
    const { code, column, lines } = thrown as { code?: unknown; column?: unknown; lines?: unknown };
    if (thrown instanceof OutliveError || typeof code !== "string" || !(code in WORDS || code.startsWith("CSV_")))
      return thrown;
    const counted = typeof lines === "number" ? lines : parser.info.lines;
    // Where such a record ends shows nothing: it swallowed what follows.
    const isSwallowing = code === "CSV_QUOTE_NOT_CLOSED" || code === "CSV_MAX_RECORD_SIZE";
    const line = (isSwallowing ? this.#counted + 1 : counted) - this.#tooMany;
    const index = typeof column === "number" ? column : null;
    const field = index === null ? null : (this.#columns?.[index] ?? index + 1);
    if (code === "CSV_MAX_RECORD_SIZE")
      return malformed(
        this.#name,
        line,
        field,
        `begins a record of more than ${maxBytes} bytes`,
        "Look for a quote that is not closed, or raise maxRecordBytes.",
        ErrorCode.fileRecordTooLong,
      );
    const what = WORDS[code] ?? `is not CSV (${code})`;
    return malformed(this.#name, line, field, what, "Correct the file from there on, and submit it again.");
  }
}

const COLUMNS_HINT = "Give every field its own name. A file without a header needs the option `columns`.";
const WORDS: Readonly<Record<string, string>> = {
  CSV_QUOTE_NOT_CLOSED: "begins a record with a quote that is never closed",
  CSV_INVALID_CLOSING_QUOTE: "has a quote inside quotes that is not doubled",
  INVALID_OPENING_QUOTE: "has a quote inside a field that does not begin with one",
  CSV_INVALID_OPENING_QUOTE: "has a quote inside a field that does not begin with one",
};

function assertColumns(columns: readonly string[], error: (what: string) => OutliveError): void {
  const seen = new Set<string>();
  if (!Array.isArray(columns) || columns.length === 0) throw error("there are none");
  for (const [n, name] of columns.entries()) {
    if (typeof name !== "string" || name === "") throw error(`field ${n + 1} has no name`);
    if (name === "__proto__") throw error(`field ${n + 1} has the name __proto__, which no object can have`);
    if (seen.has(name)) throw error(`two fields have the name ${JSON.stringify(name)}`);
    seen.add(name);
  }
}

function occurrences(fields: readonly string[], text: string): number {
  let count = 0;
  for (const field of fields)
    for (let at = field.indexOf(text); at !== -1; at = field.indexOf(text, at + text.length)) count++;
  return count;
}

/** Resolves with what a write or an end failed with; null: it did not. */
function done(start: (then: (failure?: Error | null) => void) => void): Promise<Error | null> {
  return new Promise((resolve) => start((failure) => resolve(failure ?? null)));
}

async function load(): Promise<(options: Options) => Parser> {
  try {
    return (await import("csv-parse")).parse;
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "Reading CSV needs the package `csv-parse`, which is not installed.",
      "Run `npm install csv-parse` in this program.",
      {},
      { cause: thrown },
    );
  }
}
