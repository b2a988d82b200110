// The port of blob stores: six verbs, and which keys they take. Keys are made by Outlive: they carry a hash of the content, or name what always
// makes the same bytes (a file of a round), or the one attempt that writes it. So no verb needs a condition: two puts of one key bring the same
// bytes, and a late one overwrites nothing that differs.
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** Where large bytes are kept: six verbs that any blob store can offer. */
export interface BlobStore {
  /** Where the blobs are, for messages and logs. Never holds a secret. */
  readonly place: string;

  /** What a key is appended to for the URI of its blob, for programs that read it themselves. Never holds a secret. Omitted: there is none. */
  readonly uri?: string;

  /**
   * Stores `data` durably under `key`. Atomic: until it resolves a reader finds nothing or what was there before, afterwards the
   * whole; killed or failed at any point it leaves the key as it was. Repeating it is safe.
   *
   * With `expected.size` or `expected.sha256` it compares, and stores nothing if they differ (BLOB_SIZE_DIFFERS,
   * BLOB_CHECKSUM_DIFFERS). A stream is read no faster than it is stored, and memory does not grow with its length. An error of the
   * stream rejects the put with that error. `data` must not be changed until the put has ended.
   */
  put(key: string, data: BlobData, expected?: BlobExpectation): Promise<BlobContent>;

  /**
   * The bytes of a blob, or of a part of it. Nothing is opened before the first read, which throws BLOB_NOT_FOUND if there is no
   * such blob; a range beyond the end is cut off at the end. Leave the loop early and the rest is not fetched.
   */
  get(key: string, range?: BlobRange): AsyncIterable<Uint8Array>;

  /** Size and time of a blob; null: there is none. */
  head(key: string): Promise<BlobHead | null>;

  /** Removes these blobs. A key without a blob is not an error. */
  delete(keys: readonly string[]): Promise<void>;

  /**
   * All blobs whose key starts with `prefix`, each once, in any order: S3's directory buckets have none. Blobs that are put or deleted
   * meanwhile may or may not appear; a put that has not ended never does. Default: all.
   */
  list(prefix?: string): AsyncIterable<BlobEntry>;

  /** Stores, reads and deletes a small blob. Resolves with facts for people; throws what is wrong, with what to do about it. */
  check(): Promise<BlobCheck>;
}

/** The bytes of a blob, at once or as a stream. */
export type BlobData = Uint8Array | AsyncIterable<Uint8Array>;

/** What the bytes of a put must be. */
export interface BlobExpectation {
  /** How many bytes there must be. Also lets a store choose the size of its parts. */
  readonly size?: number;
  /** The SHA-256 that the bytes must have, in hexadecimal. */
  readonly sha256?: string;
  /** This process has just computed `sha256` of the same Uint8Array, so a store need not do it again. Default: it does. */
  readonly isHashed?: true;
}

/** A blob that is being read. */
export interface BlobContent {
  /** The size of the whole blob in bytes. */
  readonly size: number;
  /** In hexadecimal, lower case. */
  readonly sha256: string;
}

/** From `start` (default 0) up to but not including `end` (default: the blob's end), as with `slice`. */
export interface BlobRange {
  /** The first byte, counted from 0. Default 0. */
  readonly start?: number;
  /** The first byte that is not read. Default: the end of the blob. */
  readonly end?: number;
}

/** What is known of a blob without reading it. */
export interface BlobHead {
  /** Its size in bytes. */
  readonly size: number;
  /** When it was last put, in milliseconds since 1970, by the clock of the blob store. */
  readonly modifiedAt: number;
}

/** A blob in a list. */
export interface BlobEntry extends BlobHead {
  /** Its key. */
  readonly key: string;
}

/** What a check of the blob store found. */
export interface BlobCheck {
  /** The folder, bucket or container. */
  readonly place: string;
  /** What `outlive check` prints, such as free space or a region. */
  readonly facts: Readonly<Record<string, string | number>>;
}

const MAX_KEY = 512;
/** A segment is a file name in the file system, which has at most 255 bytes. */
const MAX_SEGMENT = 255;
const SEGMENT = /^[a-z0-9_-][a-z0-9._-]*$/;

/**
 * 1 to 512 of `a-z 0-9 . _ / -`. Segments between slashes are not empty, start with no dot and have at most 255 characters; that
 * leaves no `..` and no case that a file system could fold. A key must not be another key's folder: `a` and `a/b` exclude each other.
 */
export function assertKey(key: unknown): asserts key is string {
  const whole = typeof key === "string" && key.length > 0 && key.length <= MAX_KEY;
  if (whole && key.split("/").every((segment) => segment.length <= MAX_SEGMENT && SEGMENT.test(segment))) return;
  throw new OutliveError(
    ErrorCode.keyInvalid,
    `${described(key)} is not a key of a blob.`,
    `Use 1 to ${MAX_KEY} of the characters a-z 0-9 . _ / - where no part between slashes is empty, starts with a dot or is longer than ${MAX_SEGMENT}.`,
    { key },
  );
}

/** The beginning of a key, or nothing. */
export function assertPrefix(prefix: unknown): asserts prefix is string {
  if (typeof prefix === "string" && prefix.length <= MAX_KEY && !prefix.includes("//")) {
    const segments = prefix.split("/");
    const last = segments.pop()!;
    if (segments.every((segment) => SEGMENT.test(segment)) && (last === "" || SEGMENT.test(last))) return;
  }
  throw new OutliveError(
    ErrorCode.keyInvalid,
    `${described(prefix)} is not the beginning of a key.`,
    "Use the first characters of keys, or an empty text for all.",
    { prefix },
  );
}

/** `end` is null: up to the end of the blob. */
export interface CheckedRange {
  readonly start: number;
  readonly end: number | null;
}

export function checkedRange({ start = 0, end }: BlobRange = {}): CheckedRange {
  const isCount = (value: number): boolean => Number.isSafeInteger(value) && value >= 0;
  if (isCount(start) && (end === undefined || (isCount(end) && end >= start))) return { start, end: end ?? null };
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The range ${start} to ${end ?? "the end"} of a blob is not valid.`,
    "Use whole numbers from 0 with start <= end. `end` is the first byte that is not wanted.",
    { start, end },
  );
}

export function notFound(key: string, place: string): OutliveError {
  return new OutliveError(
    ErrorCode.blobNotFound,
    `There is no blob ${key} in ${place}.`,
    "It was deleted, never stored, or is in another blob store.",
    { key, place },
  );
}

function described(value: unknown): string {
  return typeof value === "string" ? JSON.stringify(value.slice(0, 100)) : `A value of type ${typeof value}`;
}
