// One session of the server's as our statements see it. No types of `pg` here: what users import from us must compile without it.

/** What a statement may be given. Arrays go as PostgreSQL writes them (see `list` and `texts`). */
export type Value = string | number | boolean | null;

/** Runs our own statements, which name the schema `outlive.`. */
export interface Session {
  rows<R>(sql: string, values?: readonly Value[]): Promise<R[]>;
  /** Rows as arrays: less work where they are many. */
  arrays<R extends readonly unknown[]>(sql: string, values?: readonly Value[]): Promise<R[]>;
  /** Answers how many rows were changed. */
  run(sql: string, values?: readonly Value[]): Promise<number>;
}

/** A client of `pg` as far as we and users' query builders need it. */
export interface PostgresClient {
  // oxlint-disable-next-line typescript/no-explicit-any -- a row is whatever the caller's SQL says
  query(text: string, values?: unknown[]): Promise<{ rows: any[]; rowCount: number | null }>;
}

export interface Transaction extends Session {
  /** The session's client, for SQL that is not ours. */
  readonly client: PostgresClient;
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
