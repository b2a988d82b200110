// Wraps PostgreSQL's errors: a stable code, what was being done, and the next thing to do.
import { ErrorCode, isUnknownKind, OutliveError } from "../../job/errors.ts";
import { NO_SESSION_HINT } from "./session-gate.ts";

/** The five-character SQLSTATE, or undefined if the server did not report the error. */
export function sqlState(thrown: unknown): string | undefined {
  const { code, severity } = (thrown ?? {}) as { code?: unknown; severity?: unknown };
  return typeof code === "string" && typeof severity === "string" ? code : undefined;
}

/**
 * Whether only one row was refused: by its value, a constraint or a trigger, because it can't be read, or because a
 * follow-up of it has an unknown kind. Other rows may still be written.
 */
export function isOfOneRow(thrown: unknown): boolean {
  return /^(22|23|P0|XX)/.test(sqlState(thrown) ?? "") || isUnknownKind(thrown);
}

/** It lost against another transaction, and nothing of it was written: a retry may succeed. */
export function isTransient(thrown: unknown): boolean {
  const state = sqlState(thrown);
  return state === "40001" || state === "40P01";
}

/**
 * The session is gone, so it is unknown how far the statement got. A server error that leaves the session intact does
 * not count.
 */
export function mayHaveCommitted(thrown: unknown): boolean {
  if (!(thrown instanceof Error) || thrown instanceof OutliveError) return false;
  const state = sqlState(thrown);
  if (state === undefined) return "code" in thrown || /connection|timeout|not queryable/i.test(thrown.message);
  const { severity } = thrown as Error & { severity?: string };
  return severity === "FATAL" || severity === "PANIC" || state.startsWith("08") || state.startsWith("57P");
}

/** The session had ended before it got the COMMIT: the process stood still, and the server waited for it no longer. */
export function endedBefore(thrown: unknown): boolean {
  return sqlState(thrown) === "25P03" || (thrown instanceof Error && thrown.message.includes("not queryable"));
}

/** Wraps an error from opening the store, with the address where it happened. */
export function openingError(shown: string, thrown: unknown): unknown {
  const ours = wrapError("opening it", thrown);
  if (!(ours instanceof OutliveError)) return ours;
  const options = ours.cause === undefined ? undefined : { cause: ours.cause };
  return new OutliveError(ours.code, `${shown}: ${ours.what}`, ours.hint, { ...ours.data, address: shown }, options);
}

/** Wraps an error of PostgreSQL or of the connection to it; returns any other unchanged. */
export function wrapError(doing: string, thrown: unknown): unknown {
  if (thrown instanceof OutliveError || !(thrown instanceof Error)) return thrown;
  const state = sqlState(thrown);
  if (state === undefined && !mayHaveCommitted(thrown)) return thrown;
  const [code, hint] = wordsFor(state, thrown);
  const free = poolTimedOut(thrown) && { costsAttempt: false };
  return new OutliveError(
    code,
    `The PostgreSQL store failed while ${doing}: ${thrown.message}.`,
    hint,
    { sqlState: state ?? (thrown as { code?: unknown }).code, doing, ...free },
    { cause: thrown },
  );
}

/** The message of `pg` when the pool had no session within its own limit. */
const POOL_TIMEOUT = "timeout exceeded when trying to connect";

export function poolTimedOut(thrown: unknown): boolean {
  return thrown instanceof Error && thrown.message.startsWith(POOL_TIMEOUT);
}

type Words = readonly [ErrorCode, string];

function wordsFor(state: string | undefined, { code, message }: Error & { code?: unknown }): Words {
  if (state !== undefined) return WORDS[state] ?? WORDS[state.slice(0, 3)] ?? WORDS[state.slice(0, 2)] ?? FAILED;
  if (message.startsWith(POOL_TIMEOUT)) return POOL_EXHAUSTED;
  return WAY[String(code)] ?? UNREACHABLE;
}

const FAILED: Words = [ErrorCode.storeFailed, "Nothing of it was written; it is safe to try again."];
const UNREACHABLE: Words = [
  ErrorCode.storeUnreachable,
  "The connection was lost or could not be made. Check that the server runs; running workers try again automatically.",
];
const POOL_EXHAUSTED: Words = [
  ErrorCode.storeBusy,
  `Every connection of the pool was in use all the time. ${NO_SESSION_HINT}`,
];
/** By the codes of Node's own errors. */
const WAY: Readonly<Record<string, Words>> = {
  ECONNREFUSED: [
    ErrorCode.storeUnreachable,
    "Nothing listens there: start the server, or correct host and port in the address.",
  ],
  ENOTFOUND: [ErrorCode.storeUnreachable, "There is no such host: correct it in the address."],
  EAI_AGAIN: [ErrorCode.storeUnreachable, "The host's name can't be resolved at the moment; check the network."],
  ENOENT: [ErrorCode.storeUnreachable, "There is no socket of a server there: start it, or correct the address."],
};

const WORDS: Readonly<Record<string, Words>> = {
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
  "53100": [
    ErrorCode.storeFull,
    "Nothing was written. Free disk space on the server; the engine then continues automatically.",
  ],
  "08": UNREACHABLE,
  "25P03": [
    ErrorCode.storeBusy,
    "The callback left its transaction idle for too long, and the server ended it. Nothing was written.",
  ],
  "53300": [
    ErrorCode.storeBusy,
    "The server has no connection left. Raise its max_connections, lower `postgres.connections`, or close what is idle.",
  ],
  "57P": [
    ErrorCode.storeUnreachable,
    "The server is starting or stopping, or an administrator ended the session. A running worker retries automatically.",
  ],
  "53": [ErrorCode.storeBusy, "The server lacks connections or memory. Nothing was written; try again."],
  "25006": [ErrorCode.storeReadOnly, "Nothing was written. Connect to the primary, not to a replica."],
  XX001: [ErrorCode.storeCorrupt, "Stop all workers and restore a backup; see `outlive check --integrity`."],
  XX002: [ErrorCode.storeCorrupt, "Stop all workers, then REINDEX the index that the message names."],
};
