// Every error that Outlive throws on purpose: a stable code, what happened to which job, the data, and the next thing to do.
// Control flow is never an error here: a stale write or a held key inside the engine is a value (store.ts).
import { cutText, storableText } from "./text.ts";

/** Stable codes. A program may switch on them; the texts may change. */
export const ErrorCode = {
  /** An option is missing, of the wrong type, out of its limits, or contradicts another one. */
  optionInvalid: "OPTION_INVALID",
  /** The kind was not passed to `open({ jobs })`, or has no handler where a worker was asked to run it. */
  kindUnknown: "KIND_UNKNOWN",
  /** The input does not fit the kind's schema. */
  inputInvalid: "INPUT_INVALID",
  /** The source of a batch's rows failed before its end. */
  sourceBroken: "SOURCE_BROKEN",
  /** The input, a result or a step result is not JSON, is too large or too deep, or has a forbidden key. */
  notJson: "NOT_JSON",
  /** An id or key is empty, too long, or contains NUL or control characters. */
  keyInvalid: "KEY_INVALID",
  /** No job, incident or worker has that id. */
  notFound: "NOT_FOUND",
  /** The job's state does not allow the change. */
  wrongState: "WRONG_STATE",
  /** A retry would need a dedupe key that another unfinished job holds. */
  keyHeld: "KEY_HELD",
  /** This attempt no longer owns the job; nothing was written. */
  stale: "STALE_ATTEMPT",
  /** Two steps of one attempt have the same name. */
  stepReused: "STEP_REUSED",
  /** A handler did not reach the wait that its job was woken from, or started two waits at once. */
  waitMismatch: "WAIT_MISMATCH",
  /** The attempt ended because the job waits, so it can't write any more. The next attempt continues after the wait. */
  attemptWaits: "ATTEMPT_WAITS",
  /** A signal was refused because its job has ended or has too many unread signals. */
  signalRefused: "SIGNAL_REFUSED",
  /** The job whose result was requested did not succeed, was removed, or did not end in time. */
  noResult: "NO_RESULT",
  /** The job expired before its first attempt and was cancelled. */
  expired: "EXPIRED",
  /** An operator removed the job. */
  removed: "REMOVED",
  /** A child that the job waited for did not succeed. */
  childFailed: "CHILD_FAILED",
  /** A `commit` or `transaction` callback returned a promise on a store where it must be synchronous. */
  commitAsync: "COMMIT_ASYNC",
  /** A `commit` or `transaction` callback used transaction control, ATTACH or a PRAGMA, or tried to change Outlive's own tables. */
  commitDenied: "COMMIT_DENIED",
  /** The first argument of `commit` or `transaction` belongs to another store: `sqlite` on PostgreSQL, or `postgres` on SQLite. */
  commitForm: "COMMIT_FORM",
  /** The store has no transactions for your own writes, so `commit` and `transaction` do not work. */
  commitUnsupported: "COMMIT_UNSUPPORTED",
  /** The callback ended the engine's transaction (for example by `INSERT OR ROLLBACK`); its writes were rolled back. */
  commitRolledBack: "COMMIT_ROLLED_BACK",
  /** The connection was lost during the commit, and the server could not be asked in time whether it happened. */
  commitUnknown: "COMMIT_UNKNOWN",
  /** The store can't be opened: its folder is missing, access is denied, it is on a network file system, or it is not a database. */
  storeUnusable: "STORE_UNUSABLE",
  /** The store has no Outlive tables, and this caller does not create them. */
  schemaMissing: "SCHEMA_MISSING",
  /** The store was written by a newer version of Outlive. */
  schemaNewer: "SCHEMA_NEWER",
  /** The store's migrations differ from the released ones: an unreleased build made the store. */
  schemaDiffers: "SCHEMA_DIFFERS",
  /** This Node includes an SQLite with a known corruption or truncation bug. */
  sqliteUnsafe: "SQLITE_UNSAFE",
  /** A live worker on another machine or kernel uses the same file. */
  foreignWorker: "FOREIGN_WORKER",
  /** The store is not the one that was opened: it was restored from a backup, its file was replaced, or its address now leads to another store. */
  storeReplaced: "STORE_REPLACED",
  /** The disk, or the server's memory, is full; nothing was written. */
  storeFull: "STORE_FULL",
  /** The store is read-only; nothing was written. */
  storeReadOnly: "STORE_READ_ONLY",
  /** Another process held the store's write lock for too long; nothing was written. */
  storeBusy: "STORE_BUSY",
  /** The store's file is damaged. */
  storeCorrupt: "STORE_CORRUPT",
  /** A job's stored input, result or step result does not match its checksum. The job is quarantined; other jobs continue. */
  corrupt: "CORRUPT",
  /** The store's file is damaged and was not, or could not be, repaired, so `open` rejects. */
  storeDamaged: "STORE_DAMAGED",
  /** The store's server does not respond, or the connection to it was lost. A write in flight may or may not have happened. */
  storeUnreachable: "STORE_UNREACHABLE",
  /** The package that talks to the store's server is not installed. */
  driverMissing: "DRIVER_MISSING",
  /** The store failed in another way; the message is the driver's. */
  storeFailed: "STORE_FAILED",
  /** No blob has that key. */
  blobNotFound: "BLOB_NOT_FOUND",
  /** The bytes of a blob do not match the expected checksum. A failed put stores nothing. */
  blobChecksum: "BLOB_CHECKSUM_DIFFERS",
  /** A blob has more or fewer bytes than expected. A failed put stores nothing. */
  blobSize: "BLOB_SIZE_DIFFERS",
  /** The blob store is full; nothing was written. */
  blobsFull: "BLOBS_FULL",
  /** The blob store is read-only; nothing was written. */
  blobsReadOnly: "BLOBS_READ_ONLY",
  /** The folder, bucket or container of the blob store does not exist. */
  blobsMissing: "BLOBS_MISSING",
  /** This user or these credentials may not do that in the blob store. */
  blobsForbidden: "BLOBS_FORBIDDEN",
  /** The blob store does not accept the credentials, or none were found. */
  blobsCredentials: "BLOBS_CREDENTIALS",
  /** The blob store's folder is not safe to use: a network file system, a symbolic link, or Windows. */
  blobsUnusable: "BLOBS_UNUSABLE",
  /** The blob store does not respond. A put or delete in flight may or may not have happened; both can be repeated. */
  blobsUnreachable: "BLOBS_UNREACHABLE",
  /** The blob store failed in another way; the message is its own. */
  blobsFailed: "BLOBS_FAILED",
  /** The message broker does not respond, or the connection to it was lost. A message in flight may or may not have arrived. */
  brokerUnreachable: "BROKER_UNREACHABLE",
  /** The message broker refused the credentials, the virtual host, or the operation. */
  brokerRefused: "BROKER_REFUSED",
  /** The broker returned the message because no queue takes it. */
  brokerUnroutable: "BROKER_UNROUTABLE",
  /** A file of rows can't be read: it does not exist, is not a file, or this user may not read it. */
  fileUnreadable: "FILE_UNREADABLE",
  /** A file of rows is malformed at the line and column that the error names. */
  fileMalformed: "FILE_MALFORMED",
  /** A record in a file of rows is longer than the limit. */
  fileRecordTooLong: "FILE_RECORD_TOO_LONG",
  /** A request was not sent because its URL, a header, its body, or the address of its host is not allowed. */
  requestRefused: "REQUEST_REFUSED",
  /** A request was sent, its outcome is unknown, and it must not be sent again. */
  requestUnknown: "REQUEST_UNKNOWN",
  /** A secret that a request refers to has no value in this program. */
  secretMissing: "SECRET_MISSING",
  /** The engine or client was closed. */
  closed: "CLOSED",
} as const;

export type ErrorCode = (typeof ErrorCode)[keyof typeof ErrorCode];

/** An error of Outlive. Its `message` is `what` and `hint`, one after the other. */
export class OutliveError extends Error {
  override readonly name = "OutliveError";
  /** Stable: a program may switch on it. */
  readonly code: ErrorCode;
  /** What happened, and to which job, setting or store. */
  readonly what: string;
  /** The next thing to do; empty if there is nothing to do. */
  readonly hint: string;
  /** The values that the text mentions, for programs. */
  readonly data: Readonly<Record<string, unknown>>;

  constructor(
    code: ErrorCode,
    what: string,
    hint: string,
    data: Readonly<Record<string, unknown>> = {},
    options?: ErrorOptions,
  ) {
    super(`${what} ${hint}`.trim(), options);
    this.code = code;
    this.what = what;
    this.hint = hint;
    this.data = data;
  }
}

/** Why the store is not the one that was opened, if it failed for that: then there is nothing to try again. Null: it failed otherwise. */
export function whyStoreReplaced(thrown: unknown): string | null {
  return thrown instanceof OutliveError && thrown.code === ErrorCode.storeReplaced ? String(thrown.data["why"]) : null;
}

/** Whether a job of a kind that was never declared in the store was refused. */
export function isUnknownKind(thrown: unknown): boolean {
  return thrown instanceof OutliveError && thrown.code === ErrorCode.kindUnknown;
}

export function undeclaredKind(kind: string): OutliveError {
  return new OutliveError(
    ErrorCode.kindUnknown,
    `The kind ${JSON.stringify(kind)} was never declared in this store.`,
    "Pass its job to `open({ jobs })` or to the client's `jobs`, so that its settings are known before its first job.",
    { kind },
  );
}

/** Thrown by a handler if no further attempt can succeed: the job is dead at once, without a retry. */
export class TerminalError extends Error {
  override readonly name: string = "TerminalError";
}

/** Why `run.signal` was aborted. It is the signal's `reason`. */
export class Interruption extends Error {
  override readonly name = "Interruption";
  /** The reason, for programs. */
  readonly why: InterruptionReason;

  constructor(why: InterruptionReason, what: string) {
    super(what);
    this.why = why;
  }
}

/** Why a handler is asked to stop. */
export type InterruptionReason = "lease-lost" | "timeout" | "cancelled" | "shutdown";

/** What is kept of an error that a handler threw: text only, bounded, never the object. */
export interface StoredError {
  /** The error's name. */
  readonly name: string;
  /** The error's message, at most 8,192 characters. */
  readonly message: string;
  /** The error's stack, at most 16,384 characters. */
  readonly stack?: string;
  /** Of an end that the engine itself decided. */
  readonly code?: ErrorCode;
}

const MAX_MESSAGE = 8_192;
const MAX_STACK = 16_384;

/** Makes a storable error of whatever a handler threw; a thrown string, object or undefined included. Never throws. */
export function toStoredError(thrown: unknown): StoredError {
  try {
    // An error of another realm (node:vm) is not an instance of this one's Error.
    if (!Error.isError(thrown)) return { name: "NonError", message: clean(describe(thrown), MAX_MESSAGE) };
    const { name, message, stack } = thrown;
    return {
      name: clean(String(name), 200),
      message: clean(String(message), MAX_MESSAGE),
      ...(typeof stack === "string" ? { stack: clean(stack, MAX_STACK) } : {}),
    };
  } catch {
    return { name: "NonError", message: "what was thrown can't be read" };
  }
}

function describe(thrown: unknown): string {
  if (typeof thrown === "string") return thrown;
  try {
    return JSON.stringify(thrown) ?? String(thrown);
  } catch {
    return Object.prototype.toString.call(thrown);
  }
}

/** At most `maxLength` long; a longer text says at its end how long it was. */
function clean(text: string, maxLength: number): string {
  const whole = storableText(text);
  return whole.length > maxLength ? `${cutText(whole, maxLength)}… (${text.length} characters)` : whole;
}
