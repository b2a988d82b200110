// PostgreSQL's errors in our own words: a stable code, what was being done, and the next thing to do.
import { ErrorCode, OutliveError } from "../../core/errors.ts";

/** The five characters of the SQL standard, or undefined if the server did not say it. */
export function sqlState(thrown: unknown): string | undefined {
  const { code, severity } = (thrown ?? {}) as { code?: unknown; severity?: unknown };
  return typeof code === "string" && typeof severity === "string" ? code : undefined;
}

/** It lost against another transaction, and nothing of it was written: the same again may succeed. */
export function isTransient(thrown: unknown): boolean {
  const state = sqlState(thrown);
  return state === "40001" || state === "40P01";
}

/** The session is gone, so nobody knows how far the statement came. An error of the server's own that leaves the session is none. */
export function mayHaveCommitted(thrown: unknown): boolean {
  if (!(thrown instanceof Error) || thrown instanceof OutliveError) return false;
  const state = sqlState(thrown);
  if (state === undefined) return "code" in thrown || /connection|timeout/i.test(thrown.message);
  const { severity } = thrown as Error & { severity?: string };
  return severity === "FATAL" || severity === "PANIC" || state.startsWith("08") || state.startsWith("57P");
}

/** An error of PostgreSQL or of the way to it as one of ours; anything else as it is. */
export function inOurWords(doing: string, thrown: unknown): unknown {
  if (thrown instanceof OutliveError || !(thrown instanceof Error)) return thrown;
  const state = sqlState(thrown);
  if (state === undefined && !mayHaveCommitted(thrown)) return thrown;
  const [code, hint] = wordsFor(state);
  return new OutliveError(
    code,
    `The PostgreSQL store failed while ${doing}: ${thrown.message}.`,
    hint,
    { sqlState: state ?? (thrown as { code?: unknown }).code, doing },
    { cause: thrown },
  );
}

function wordsFor(state: string | undefined): readonly [ErrorCode, string] {
  if (state === undefined)
    return [ErrorCode.storeFailed, "The server can't be reached; the engine tries again by itself."];
  return (
    WORDS[state] ??
    WORDS[state.slice(0, 2)] ?? [ErrorCode.storeFailed, "Nothing of it was written; it is safe to try again."]
  );
}

const WORDS: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  "28": [ErrorCode.storeUnusable, "Check the user and the password in the address."],
  "3D": [ErrorCode.storeUnusable, "The database does not exist: create it, or correct the address."],
  "42501": [
    ErrorCode.storeUnusable,
    "Nothing was written. Grant this role its rights: `outlive migrate print --roles`.",
  ],
  "42P01": [ErrorCode.schemaMissing, "Run `outlive migrate up` once, as a role that may create tables."],
  "3F": [ErrorCode.schemaMissing, "Run `outlive migrate up` once, as a role that may create tables."],
  "40": [ErrorCode.storeBusy, "It lost against other transactions again and again. Nothing was written; try again."],
  "55P03": [ErrorCode.storeBusy, "Another session holds a lock. Nothing was written; try again."],
  "57014": [ErrorCode.storeBusy, "The statement took longer than it may. Nothing was written; try again."],
  "53100": [ErrorCode.storeFull, "Nothing was written. Make room on the server's disk; the engine goes on by itself."],
  "53": [ErrorCode.storeBusy, "The server lacks connections or memory. Nothing was written; try again."],
  "25006": [ErrorCode.storeReadOnly, "Nothing was written. Connect to the primary, not to a replica."],
  XX001: [ErrorCode.storeCorrupt, "Stop all workers and restore a backup; see `outlive check --integrity`."],
  XX002: [ErrorCode.storeCorrupt, "Stop all workers, then REINDEX the index that the message names."],
};
