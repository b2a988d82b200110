// Our statements and their parameters: what a session runs, how arrays are written, and the text as the server gets it (the real name of
// the schema in place of `outlive.`, a name as a prepared statement, and a limit on the wait for the result). The
// checksums that statements compute are here, too. No types of `pg` here: what
// users import from us must compile without it.
import { hash } from "node:crypto";
import { quotedSchema } from "./address.ts";

/** What a statement may be given. Arrays go as PostgreSQL writes them (see `list` and `texts`). */
export type Value = string | number | boolean | null;

/** Runs our own statements, which name the schema `outlive.`. */
export interface Session {
  rows<R>(sql: string, values?: readonly Value[]): Promise<R[]>;
  /** Returns how many rows were changed. */
  run(sql: string, values?: readonly Value[]): Promise<number>;
}

/** A session that can also run several statements as one transaction. */
export interface TransactingSession extends Session {
  transaction<T>(work: (tx: Session) => Promise<T>): Promise<T>;
}

/** The part of a `pg` client that Outlive and query builders need. */
export interface PostgresClient {
  /** Runs a statement, as in `pg`. */
  query(
    text: string,
    values?: unknown[],
  ): Promise<{
    /** The rows. */
    // oxlint-disable-next-line typescript/no-explicit-any -- a row is whatever the caller's SQL says
    rows: any[];
    /** How many rows were read or changed. */
    rowCount: number | null;
  }>;
}

export interface Transaction extends Session {
  /** The session's client, for SQL that is not ours. */
  readonly client: PostgresClient;
}

/** A transaction of the user's. */
export interface UserTransaction extends Transaction {
  /** Its number. */
  readonly id: string;
  /** The row of the statement that opened it. */
  opened<R>(): R;
  /** The last statement, which is sent together with the COMMIT. It must fail if the transaction may not be committed. */
  endWith(sql: string, values: readonly Value[]): void;
}

/** An array of numbers as PostgreSQL reads it. */
export function list(values: readonly (number | boolean | null)[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) text += i === 0 ? (values[i] ?? "null") : `,${values[i] ?? "null"}`;
  return `${text}}`;
}

/** An array of texts as PostgreSQL reads it. */
export function texts(values: readonly (string | null)[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (i > 0) text += ",";
    text += value === null || value === undefined ? "null" : `"${value.replaceAll(/["\\]/g, "\\$&")}"`;
  }
  return `${text}}`;
}

/**
 * At most this many characters of users' texts go into one statement, unless one text alone has more. V8 can't make a text of 512 Mi
 * characters, PostgreSQL can't take a value of 1 GiB, and both need a multiple of it in memory.
 */
export const MAX_CHARACTERS = 8 << 20;

/** No statement of our own takes longer on a server that responds at all. */
const ANSWER_MS = 60_000;

/** The client gives up on an answer that does not come; the session is ended then. */
export function timed(text: string, answerMs = ANSWER_MS): { text: string; query_timeout: number } {
  return { text, query_timeout: answerMs };
}

/** As it is written in SQL, whether the session takes backslashes as they are (`standard_conforming_strings`) or not. */
function literal(value: Value): string {
  if (typeof value !== "string") return value === null ? "NULL" : String(value);
  const text = value.replaceAll("'", "''");
  return text.includes("\\") ? ` E'${text.replaceAll("\\", "\\\\")}'` : `'${text}'`;
}

/** Statement names are the same in the whole process: two stores may share a user's pool. */
const names = new Map<string, string>();

interface Made<Types> {
  readonly text: string;
  readonly types: Types;
  readonly query_timeout: number;
  readonly name?: string;
}

/** Each text is made once. `Types`: how the driver reads what comes back. */
export class Statements<Types> {
  readonly #schema: string;
  readonly #types: Types;
  readonly #prepared: boolean;
  readonly #made = new Map<string, Made<Types>>();

  constructor(schema: string, types: Types, prepared: boolean) {
    this.#schema = `${quotedSchema(schema)}.`;
    this.#types = types;
    this.#prepared = prepared;
  }

  query(sql: string, values: readonly Value[]): Made<Types> & { values: unknown[] } {
    return { ...(this.#made.get(sql) ?? this.#make(sql)), values: values as unknown[] };
  }

  /** Makes a statement that `execute` can name, for the rest of the session. The driver knows nothing of it, so the name is not one of the driver's. */
  prepare(sql: string): string {
    return `PREPARE ${this.#executable(sql)} AS ${this.query(sql, []).text}`;
  }

  /** The prepared statement with its parameters, as text. */
  execute(sql: string, values: readonly Value[]): string {
    return `EXECUTE ${this.#executable(sql)}${values.length === 0 ? "" : `(${values.map(literal).join(",")})`}`;
  }

  /** The statement with its parameters in its text, unprepared. */
  written(sql: string, values: readonly Value[]): string {
    return this.query(sql, []).text.replaceAll(/\$(\d+)\b/g, (_, n: string) => literal(values[Number(n) - 1]!));
  }

  #executable(sql: string): string {
    const { text } = this.#made.get(sql) ?? this.#make(sql);
    return `${names.get(text)!}_in_text`;
  }

  #make(sql: string): Made<Types> {
    const text = sql.replaceAll(/\boutlive\./g, this.#schema);
    let name = names.get(text);
    if (name === undefined) {
      name = `outlive_${names.size + 1}`;
      names.set(text, name);
    }
    const made = { ...timed(text), types: this.#types, ...(this.#prepared ? { name } : {}) };
    this.#made.set(sql, made);
    return made;
  }
}

// Checksums of what a handler trusts: inputs, results and step results. The checksums of PostgreSQL's pages (initdb --data-checksums)
// find a damaged page; they can't find a text that was changed by SQL, in memory, or by a restore that mixed up rows. The server
// computes and compares these checksums, so nothing more travels to a worker: SHA-256 is the same on every platform, encoding and
// version, and its first four bytes notice a change with the odds of a CRC. Measured for a text of 100 bytes: 0.65 µs.

/** SQL for the checksum of a text, which covers whose it is; null for null. `content` and `owner` are SQL. */
export function checksumSql(content: string, owner: string): string {
  return `substr(sha256(convert_to(${owner} || chr(10) || ${content}, 'UTF8')), 1, 4)`;
}

/** The same checksum of a text that is about to be stored, in hex. */
export function checksumOf(content: string, owner: string): string {
  return hash("sha256", `${owner}\n${content}`).slice(0, 8);
}

/** SQL: whose the result of a step is. No id contains a line break. */
export function stepOwnerSql(job: string, step: string): string {
  return `${job} || chr(10) || ${step}`;
}

/** SQL for whether a text is what was stored. A row without a checksum is older than the checksums and counts as intact. */
export function isIntactSql(content: string, owner: string, sum: string): string {
  return `(${sum} IS NULL OR ${sum} IS NOT DISTINCT FROM ${checksumSql(content, owner)})`;
}

/** SQL for the quick hash of an input. */
export function inputHashSql(input: string, id: string): string {
  return `hashtextextended(${input} COLLATE "C", hashtextextended(${id} COLLATE "C", 0))`;
}

/**
 * SQL: the input of the job j; null: the stored text fails its checksum. The server compares, so a worker receives nothing more than the text. The hash is
 * compared first, because it costs almost nothing; one that differs, or is missing, proves nothing (migrations/input-hash.ts).
 */
export const INTACT_INPUT = `CASE WHEN j.input_hash = ${inputHashSql("j.input", "j.id")}
  OR ${isIntactSql("j.input", "j.id", "j.input_sum")} THEN j.input END`;

/** SQL: whether a kind is paused now. A pause may have an end. `prefix`: "k." for the row k. */
export function isPausedSql(prefix: string): string {
  return `(${prefix}paused AND coalesce(${prefix}paused_until > outlive.now_ms(), true))`;
}

/** Whether there is any, by the index that is named: an EXISTS may read a whole table that has no statistics yet. */
const any = (from: string, by: string): string => `(SELECT 1 FROM outlive.${from} ORDER BY ${by} LIMIT 1) IS NOT NULL`;
export const ANY_WAKE = any("wakes", "id");
export const ANY_KEY_WAKE = any("key_wakes", "id");
export const ANY_DUE_EVENT = any("reruns WHERE due", "job");
export const ANY_AT_GATE = any("extras WHERE door < 0", "door");
