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

/** What a parked message is, as far as its row does not say it: a part, a header, or a message for the job with this id. */
export type ParkedAs =
  | {
      readonly is: "part";
      /** How many parts its series has, as far as it says that. */
      readonly total: number | null;
      /** The hash that its bytes must have; "0": what it names is not a hash. Omitted: it names none. */
      readonly sha256?: string;
    }
  | { readonly is: "header" }
  | { readonly is: "job"; readonly job: string };

/** The body of a parked message. Its name says what the message is, so that it can be handled again, and no two messages share one. */
export function parkedBlobOf(kind: string, id: string, as: ParkedAs): string {
  return `parked/${segment(kind)}/${id}${as.is === "job" ? `.job-${as.job}` : as.is === "header" ? ".header" : partName(as)}`;
}

function partName({ total, sha256: hash }: ParkedAs & { readonly is: "part" }): string {
  return (total === null ? ".part" : `.total-${total}`) + (hash === undefined ? "" : `.sha-${hash}`);
}

/** What `parkedBlobOf` made a name of. Null: a name of an earlier version, which does not say whether it is a part or a header. */
export function parkedAs(blob: string): ParkedAs | null {
  const pattern = /\/[0-9a-f]+\.(?:(header|part)|total-(\d+)|job-(\w+))(?:\.sha-([0-9a-f]+))?$/;
  const [, is, total, job, hash] = pattern.exec(blob) ?? [];
  if (is === "header") return { is };
  if (job !== undefined) return { is: "job", job };
  if (is === undefined && total === undefined) return null;
  return { is: "part", total: total === undefined ? null : Number(total), ...(hash !== undefined && { sha256: hash }) };
}

/** What a notification lists, if it is too long for a message. */
export function manifestOf(kind: string, collection: string): string {
  return `${prefixOf(kind, collection)}manifest.json`;
}
