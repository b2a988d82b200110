// The body of an answer: counted on the wire and again when it is decoded, so that neither an endless body nor a small one that unpacks to a gigabyte takes
// more memory than its limit. What is larger goes to a blob, if the kind says so, as it comes.
import { Readable, type Transform } from "node:stream";
import { promisify } from "node:util";
import zlib from "node:zlib";

/** Where large responses go. */
export interface ResponseBlobs {
  /** Stores a blob. */
  put(
    key: string,
    data: AsyncIterable<Uint8Array>,
  ): Promise<{
    /** Its size in bytes. */
    readonly size: number;
    /** The SHA-256 of its bytes, in hexadecimal. */
    readonly sha256: string;
  }>;
  /** Deletes blobs. */
  delete(keys: readonly string[]): Promise<void>;
}

/** What stands for a body that was put in a blob. */
export interface BlobBody {
  /** Its name in the blob store. */
  readonly blob: string;
  /** Its size in bytes. */
  readonly bytes: number;
  /** The SHA-256 of its bytes, in hexadecimal. */
  readonly sha256: string;
}

export class TooLarge extends Error {
  override readonly name = "TooLarge";
}

/** An answer whose coding is not one that we asked for. */
export class Undecodable extends Error {
  override readonly name = "Undecodable";
}

type Coding = "gzip" | "x-gzip" | "deflate" | "br" | "zstd";

const WHOLE: Readonly<Record<Coding, (data: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>>> = {
  gzip: promisify(zlib.gunzip),
  "x-gzip": promisify(zlib.gunzip),
  deflate: promisify(zlib.inflate),
  br: promisify(zlib.brotliDecompress),
  // Not at the start: an older Node, which has none, must get as far as saying that it is too old.
  zstd: (data, options) => promisify(zlib.zstdDecompress)(data, options),
};

const STREAM: Readonly<Record<Coding, () => Transform>> = {
  gzip: () => zlib.createGunzip(),
  "x-gzip": () => zlib.createGunzip(),
  deflate: () => zlib.createInflate(),
  br: () => zlib.createBrotliDecompress(),
  zstd: () => zlib.createZstdDecompress(),
};

/** One coding, or none. Several one after the other are how small answers become huge ones. */
export function codingOf(header: string | undefined): Coding | null {
  const named = (header ?? "").toLowerCase().trim();
  if (named === "" || named === "identity") return null;
  if (Object.hasOwn(WHOLE, named)) return named as Coding;
  throw new Undecodable(`the response has the content-encoding ${JSON.stringify(named.slice(0, 100))}`);
}

export async function decoded(data: Buffer, coding: Coding | null, max: number): Promise<Buffer> {
  if (coding === null || data.length === 0) return data;
  try {
    return await WHOLE[coding](data, { maxOutputLength: max });
  } catch (thrown) {
    if ((thrown as { code?: string }).code === "ERR_BUFFER_TOO_LARGE")
      throw new TooLarge(`the response has more than ${max} bytes once it is decoded`);
    throw new Undecodable(`the response can't be decoded as ${coding}: ${(thrown as Error).message}`);
  }
}

/** An answer on its way into a blob. */
export class BlobUpload {
  readonly done: Promise<BlobBody>;
  readonly #wire: Readable;
  readonly #resume: () => void;

  constructor(blobs: ResponseBlobs, key: string, coding: Coding | null, max: number, resume: () => void) {
    this.#resume = resume;
    this.#wire = new Readable({ highWaterMark: 256 << 10, read: () => this.#resume() });
    const decodedStream = coding === null ? this.#wire : this.#wire.pipe(STREAM[coding]());
    // `pipe` does not pass errors on.
    if (coding !== null) this.#wire.on("error", (error) => decodedStream.destroy(error));
    this.done = blobs
      .put(key, limited(decodedStream, max))
      .then(({ size, sha256 }) => ({ blob: key, bytes: size, sha256 }));
    this.done.catch(() => {});
  }

  /** False: the sender has to pause. */
  push(chunk: Buffer): boolean {
    return this.#wire.push(chunk);
  }

  end(): void {
    this.#wire.push(null);
  }

  fail(error: Error): void {
    this.#wire.destroy(error);
  }
}

async function* limited(source: AsyncIterable<Uint8Array>, max: number): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  for await (const chunk of source) {
    bytes += chunk.length;
    if (bytes > max) throw new TooLarge(`the response has more than ${max} bytes`);
    yield chunk;
  }
}

/** What the names of blobs of answers begin with. */
export const RESPONSE_BLOBS = "requests/";

/** The blob that the input of a callback names; null: it names none of ours. */
export function responseBlob({ input }: { readonly input: unknown }): string | null {
  const blob = (input as { readonly blob?: { readonly blob?: unknown; readonly sha256?: unknown } | null } | null)
    ?.blob;
  const key = blob?.sha256 === undefined ? undefined : blob.blob;
  return typeof key === "string" && key.startsWith(RESPONSE_BLOBS) ? key : null;
}
