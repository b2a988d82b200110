// What the adapters for servers share: a limit on waiting, reading a body that may stall, and the errors that no server words itself.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { assertPrefix } from "./blob-store.ts";

/** What one part of an upload takes, and the memory of one put. S3 takes no part below 5 MiB except the last. */
export const PART_BYTES = 8 * 1024 * 1024;
/** How many requests one delete has under way. */
export const DELETES_AT_ONCE = 16;
const DEFAULT_TIMEOUT_MS = 60_000;
const MAX_TIMEOUT_MS = 3_600_000;

/** Options of every blob store behind a network. */
export interface RemoteOptions {
  /** What all keys start with, for instance "jobs/". It has the characters of keys and ends in a slash. Default: nothing. */
  readonly prefix?: string;
  /** How long one request, or the next bytes of a blob, may take, in ms; 1 to 3,600,000. Default 60,000. */
  readonly timeoutMs?: number;
}

export function checkedRemote({ prefix = "", timeoutMs = DEFAULT_TIMEOUT_MS }: RemoteOptions): Required<RemoteOptions> {
  assertPrefix(prefix);
  if (prefix !== "" && !prefix.endsWith("/"))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The prefix ${prefix} of the blob store does not end in a slash.`,
      `Use "${prefix}/".`,
      { prefix },
    );
  if (!Number.isInteger(timeoutMs) || timeoutMs < 1 || timeoutMs > MAX_TIMEOUT_MS)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The timeoutMs of the blob store is ${timeoutMs}.`,
      `Use a whole number from 1 to ${MAX_TIMEOUT_MS}.`,
      { timeoutMs },
    );
  return { prefix, timeoutMs };
}

/** The body of a response. Throws BLOBS_UNREACHABLE if no byte comes for `timeoutMs`, and closes it when the caller leaves early. */
export async function* body(
  source: AsyncIterable<Uint8Array>,
  place: string,
  timeoutMs: number,
): AsyncGenerator<Uint8Array, void> {
  const chunks = source[Symbol.asyncIterator]();
  let isEnded = false;
  try {
    for (;;) {
      const next = await within(chunks.next(), timeoutMs, place);
      if (next.done === true) {
        isEnded = true;
        return;
      }
      if (next.value.length > 0) yield next.value;
    }
  } finally {
    // Not awaited: the end of a body that stalls may stall as well.
    if (!isEnded) void chunks.return?.().then(undefined, () => {});
  }
}

function within<T>(promise: Promise<T>, ms: number, place: string): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(unreachable(place, "reading", `no byte for ${ms} ms`)), ms);
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Runs over all, so many at a time. The first error ends it. */
export async function forAll<T>(all: readonly T[], atOnce: number, work: (one: T) => Promise<unknown>): Promise<void> {
  const left = all.values();
  const lane = async (): Promise<void> => {
    for (const one of left) await work(one);
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, all.length) }, lane));
}

export function unreachable(place: string, doing: string, why: string, cause?: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.blobsUnreachable,
    `The blob store in ${place} did not respond while ${doing}: ${why}.`,
    "Check the address and the network, and try again: puts and deletes may be repeated.",
    { place, doing },
    { cause },
  );
}

export function refused(
  code: ErrorCode,
  place: string,
  doing: string,
  why: string,
  hint: string,
  cause: unknown,
): OutliveError {
  const what = `The blob store in ${place} refused while ${doing}: ${why.replace(/\.+$/, "")}.`;
  return new OutliveError(code, what, hint, { place, doing }, { cause });
}

/** A connection that failed, was cut off, or took longer than its limit: nothing of it depends on which server it is. */
export function isUnreachable(thrown: unknown): boolean {
  const { name = "", code = "" } = (thrown ?? {}) as { name?: string; code?: string };
  if (/^(AbortError|TimeoutError|NetworkingError)$/.test(name) || code === "REQUEST_SEND_ERROR") return true;
  return /^(ECONN\w+|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT|EPIPE)$/.test(code);
}
