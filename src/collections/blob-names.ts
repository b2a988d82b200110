// The names of a collection's blobs. They are made of what is known of a part and of the hash of its bytes: two puts of one name bring the same
// bytes, so a late one overwrites nothing, and what belongs to a collection is found by a prefix.
import { createHash } from "node:crypto";
import type { PartPlace } from "../job/collections.ts";

/** Where the blobs are read, written and deleted. A part of the port of blob stores. */
export interface PartBlobs {
  put(
    key: string,
    data: Uint8Array,
    expected?: { readonly size?: number; readonly sha256?: string; readonly isHashed?: true },
  ): Promise<{ readonly size: number; readonly sha256: string }>;
  /** What a store may offer (blobs/staging.ts): begins to write bytes whose key comes later. */
  stage?(data: Uint8Array): { place(key: string): Promise<void> };
  /** Offered with `stage`: makes durable what was placed. */
  sync?(keys: readonly string[]): Promise<void>;
  get(key: string): AsyncIterable<Uint8Array>;
  delete(keys: readonly string[]): Promise<void>;
  list(prefix?: string): AsyncIterable<{ readonly key: string }>;
  readonly place: string;
  readonly uri?: string;
}

const PLAIN = /^[a-z0-9_-][a-z0-9._-]{0,99}$/;
const HASHED = "_h";

/** A text as a part of a blob's name: itself if it may be one, otherwise its hash. Two texts never share a name. */
function segment(text: string): string {
  if (PLAIN.test(text) && !text.startsWith(HASHED)) return text;
  return HASHED + sha256(Buffer.from(text)).slice(0, 40);
}

export function sha256(data: Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

/** What all blobs of a collection begin with. */
export function prefixOf(kind: string, collection: string): string {
  return `collections/${segment(kind)}/${segment(collection)}/`;
}

export function blobOf(kind: string, { collection, series, ordinal }: PartPlace, hash: string): string {
  return `${prefixOf(kind, collection)}${segment(series)}/${ordinal}-${hash.slice(0, 16)}`;
}

/** The body of a message that can't become a part. */
export function parkedBlobOf(kind: string, hash: string): string {
  return `parked/${segment(kind)}/${hash}`;
}

/** What a notification lists, if it is too long for a message. */
export function manifestOf(kind: string, collection: string): string {
  return `${prefixOf(kind, collection)}manifest.json`;
}
