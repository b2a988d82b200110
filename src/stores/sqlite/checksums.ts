// Checksums of what a handler trusts: inputs, results and step results. SQLite has none, so one flipped bit of a text
// would be read, run and committed. A checksum covers the stored text and its owner, so that swapped rows are noticed
// too.
import { crc32 } from "node:zlib";
import type { Database } from "./database.ts";

/** Up to this length a text is hashed in JavaScript: a native call costs 160 ns, a character less than 2 ns. */
const SHORT = 64;
const FNV_START = 0x811c_9dc5;

/**
 * The text's hash, seeded with that of its owner: FNV-1a for a short one, CRC-32 for a longer one; as a signed number,
 * which SQLite stores in four bytes. Both detect every single flipped bit.
 */
export function checksumOf(text: string, owner: string): number {
  const start = fnv(owner, FNV_START);
  return text.length <= SHORT ? fnv(text, start) | 0 : crc32(text, start >>> 0) | 0;
}

/** For a result that may be missing: then there is no checksum. */
export function checksumOrNull(text: string | null, owner: string): number | null {
  return text === null ? null : checksumOf(text, owner);
}

/** FNV-1a of code units. Stored text is well formed, so the file returns exactly what was written. */
function fnv(text: string, start: number): number {
  let hash = start;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x0100_0193);
  return hash;
}

/** The owner of a step's result. No id contains a line break. */
export function stepOwner(jobId: string, name: string): string {
  return `${jobId}\n${name}`;
}

/**
 * Whether a text is what was stored. A damaged row may hold anything: a text may have become a blob, a number or null.
 */
export function isIntact(text: unknown, owner: unknown, checksum: unknown): boolean {
  if (text === null || checksum === null) return text === checksum;
  return typeof text === "string" && typeof owner === "string" && checksumOf(text, owner) === Number(checksum);
}

/** The columns of a job needed to check its own texts. */
export interface CheckedJob {
  readonly id: unknown;
  readonly input: unknown;
  readonly input_sum: unknown;
  readonly result: unknown;
  readonly result_sum: unknown;
}

/** The columns of a step needed to check its result, with the id of its job. */
export interface CheckedStep {
  readonly id: unknown;
  readonly name: unknown;
  readonly result: unknown;
  readonly result_sum: unknown;
}

export function inputIsIntact({ id, input, input_sum }: Pick<CheckedJob, "id" | "input" | "input_sum">): boolean {
  return input !== null && isIntact(input, id, input_sum);
}

export function resultIsIntact({ id, result, result_sum }: Pick<CheckedJob, "id" | "result" | "result_sum">): boolean {
  return isIntact(result, id, result_sum);
}

export function jobIsIntact(job: CheckedJob): boolean {
  return inputIsIntact(job) && resultIsIntact(job);
}

export function stepIsIntact({ id, name, result, result_sum }: CheckedStep): boolean {
  return typeof id === "string" && typeof name === "string" && isIntact(result, stepOwner(id, name), result_sum);
}

/** The owner of what is kept of a row of a batch: the batch by its number, and the line. */
export function rowOwner(batch: number | bigint, line: number | bigint): string {
  return `${batch}\n${line}`;
}

/** The owner of what a block wrote to a file. */
export function partOwner(
  batch: number | bigint,
  round: number | bigint,
  number: number | bigint,
  file: string,
): string {
  return `${batch}\n${round}\n${number}\n${file}`;
}

interface CheckedSignal {
  readonly id: unknown;
  readonly signal: unknown;
  readonly payload: unknown;
  readonly payload_sum: unknown;
}

/** A text that is not what was stored. */
export interface CorruptRow {
  /** Of a text that belongs to no job: the batch. */
  readonly jobId: string;
  /** As in `JobDetails.corrupt`: "input", "result" or "step NAME". Of a batch: "context", "input of line 7", "FILE of block 3". */
  readonly what: string;
}

const JOBS = "SELECT id, input, input_sum, result, result_sum FROM outlive_jobs NOT INDEXED ORDER BY seq";
const STEPS = `SELECT j.id, s.name, s.result, s.result_sum FROM outlive_steps s NOT INDEXED JOIN outlive_jobs j ON j.seq = s.job
  ORDER BY s.ord`;
const SIGNALS = `SELECT j.id, s.id AS signal, s.payload, s.payload_sum FROM outlive_signals s NOT INDEXED JOIN outlive_jobs j ON j.seq = s.job
  ORDER BY s.ord`;

const CONTEXTS =
  "SELECT b.id, t.context AS text, t.context_sum AS text_sum FROM outlive_batch_texts t JOIN outlive_batches b ON b.seq = t.batch ORDER BY t.batch";
const FAILURES = `SELECT b.id, f.batch, f.line, f.input AS text, f.input_sum AS text_sum FROM outlive_row_failures f NOT INDEXED
  JOIN outlive_batches b ON b.seq = f.batch ORDER BY f.ord`;
const OUTPUTS = `SELECT b.id, o.batch, o.round, o.number, o.file, o.texts AS text, o.texts_sum AS text_sum FROM outlive_row_outputs o NOT INDEXED
  JOIN outlive_batches b ON b.seq = o.batch ORDER BY o.ord`;

/** A text of a batch with the columns that its owner is made of. */
interface BatchText {
  readonly id: string;
  readonly batch: bigint;
  readonly round: bigint;
  readonly number: bigint;
  readonly line: bigint;
  readonly file: string;
  readonly text: unknown;
  readonly text_sum: unknown;
}

/**
 * Reads every input, result, step result, signal and text of a batch once, one row in memory at a time, and names at most `limit` that do not
 * match their checksum. Steps of a deleted job are not checked.
 */
export function corruptRows(db: Database, limit: number): CorruptRow[] {
  const found: CorruptRow[] = [];
  const add = (id: unknown, what: string): boolean => found.push({ jobId: String(id), what }) >= limit;
  for (const row of rows<CheckedJob>(db, JOBS)) {
    if (!inputIsIntact(row) && add(row.id, "input")) return found;
    if (!resultIsIntact(row) && add(row.id, "result")) return found;
  }
  for (const row of rows<CheckedStep>(db, STEPS))
    if (!stepIsIntact(row) && add(row.id, `step ${String(row.name)}`)) return found;
  for (const { id, text, text_sum } of rows<BatchText>(db, CONTEXTS))
    if (!isIntact(text, id, text_sum) && add(id, "context")) return found;
  for (const { id, batch, line, text, text_sum } of rows<BatchText>(db, FAILURES))
    if (!isIntact(text, rowOwner(batch, line), text_sum) && add(id, `input of line ${line}`)) return found;
  for (const { id, batch, round, number, file, text, text_sum } of rows<BatchText>(db, OUTPUTS))
    if (!isIntact(text, partOwner(batch, round, number, file), text_sum) && add(id, `${file} of block ${number}`))
      return found;
  for (const { id, signal, payload, payload_sum: sum } of rows<CheckedSignal>(db, SIGNALS))
    if (!isIntact(payload, stepOwner(String(id), String(signal)), sum) && add(id, `signal ${String(signal)}`))
      return found;
  return found;
}

/** Numbers as bigints: a damaged number may exceed what JavaScript can read, and that would end the scan. */
function rows<Row>(db: Database, text: string): Iterable<Row> {
  const statement = db.sql(text);
  statement.setReadBigInts(true);
  return statement.iterate() as Iterable<unknown> as Iterable<Row>;
}
