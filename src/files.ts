// `outlive/files`: the rows of CSV and NDJSON files, for batches or for a loop of your own.

export { csv, type CsvOptions, type CsvRow } from "./files/csv.ts";
export { ndjson, type NdjsonOptions } from "./files/ndjson.ts";
export type { BadRow, FileRow, GoodRow, Rows } from "./files/rows.ts";
export type { FileSource } from "./files/source.ts";
