// What the option `blobs` may be: a folder, or a blob store of any kind.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { BlobStore } from "./blob-store.ts";
import { fileSystem } from "./file-system/file-system.ts";

const VERBS = ["put", "get", "head", "delete", "list", "check"] as const;

/** A text is a folder on a local disk; anything else must be a blob store. Nothing is opened before the first use. */
export function openBlobs(given: string | BlobStore): BlobStore {
  if (typeof given === "string") {
    const scheme = /^([a-z][a-z0-9+.-]+):/i.exec(given)?.[1];
    if (scheme === undefined) return fileSystem({ folder: given });
    throw invalid(`The blob store ${scheme}: is not known by its address.`);
  }
  if (VERBS.every((verb) => typeof (given as Partial<BlobStore> | null)?.[verb] === "function")) return given;
  throw invalid("The option `blobs` is not a blob store.");
}

function invalid(what: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    what,
    'Use a folder, as in "./blobs", or what s3({ ... }) or azure({ ... }) of outlive/blobs returns.',
  );
}
