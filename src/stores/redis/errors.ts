// Wraps errors of Redis and of the connection to it: a stable code, what was being done, and the next thing to do.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { Disconnected } from "./driver.ts";

/** The first word of a server's error: "NOSCRIPT", "OOM", "READONLY", ... */
export function replyCode(thrown: unknown): string | undefined {
  if (!(thrown instanceof Error)) return undefined;
  return /^(?:ERR )?-?([A-Z][A-Z_]+)\b/.exec(thrown.message)?.[1];
}

export function isNoScript(thrown: unknown): boolean {
  return replyCode(thrown) === "NOSCRIPT";
}

/** Wraps an error of Redis; returns any other unchanged. */
export function wrapError(doing: string, thrown: unknown): unknown {
  if (thrown instanceof OutliveError || !(thrown instanceof Error)) return thrown;
  const isLost = thrown instanceof Disconnected;
  const reply = isLost ? undefined : replyCode(thrown);
  if (reply === undefined && !isLost) return thrown;
  const [code, hint] = (reply === undefined ? undefined : WORDS[reply]) ?? (reply === undefined ? UNREACHABLE : FAILED);
  return new OutliveError(
    code,
    `The Redis store failed while ${doing}: ${thrown.message}.`,
    hint,
    { reply: isLost ? thrown.code : reply, doing },
    { cause: thrown },
  );
}

/** As `wrapError`, for what is not a verb of the store. */
export function worded<T>(doing: string, asked: Promise<T>): Promise<T> {
  return asked.catch((thrown: unknown) => {
    throw wrapError(doing, thrown);
  });
}

/** Wraps an error from opening the store, with the address where it happened. */
export function openingError(shown: string, thrown: unknown): unknown {
  const ours = wrapError("opening it", thrown);
  if (!(ours instanceof OutliveError)) return ours;
  const options = ours.cause === undefined ? undefined : { cause: ours.cause };
  return new OutliveError(ours.code, `${shown}: ${ours.what}`, ours.hint, { ...ours.data, address: shown }, options);
}

type Words = readonly [ErrorCode, string];

const FAILED: Words = [
  ErrorCode.storeFailed,
  "Check the server's log. Repeating it is safe: ids and fences make it harmless.",
];
const UNREACHABLE: Words = [
  ErrorCode.storeUnreachable,
  "The connection was lost or could not be made. Check that the server runs; running workers try again automatically.",
];
const WORDS: Readonly<Record<string, Words>> = {
  OOM: [
    ErrorCode.storeFull,
    "The server's memory is full: nothing new is taken, and what runs can still end. Raise maxmemory, or shorten the retention.",
  ],
  READONLY: [ErrorCode.storeReadOnly, "Nothing was written. Connect to the primary, not to a replica."],
  LOADING: [ErrorCode.storeUnreachable, "The server loads its data. Running workers try again automatically."],
  MASTERDOWN: UNREACHABLE,
  CLUSTERDOWN: UNREACHABLE,
  BUSY: [ErrorCode.storeBusy, "A script of another program blocks the server. Nothing was written; try again."],
  MISCONF: [
    ErrorCode.storeFull,
    "The server can't write to its disk and refuses writes. Nothing was written. Free disk space on the server.",
  ],
  NOREPLICAS: [
    ErrorCode.storeUnreachable,
    "The server has fewer replicas than min-replicas-to-write. Nothing was written.",
  ],
  NOAUTH: [ErrorCode.storeUnusable, "Put the user and the password into the address."],
  WRONGPASS: [ErrorCode.storeUnusable, "Check the user and the password in the address."],
  NOPERM: [
    ErrorCode.storeUnusable,
    "Nothing was written. Allow this user the store's keys and channels: `+@all -@dangerous -@admin ~o:* &o:*`.",
  ],
};
