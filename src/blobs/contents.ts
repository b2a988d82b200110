// The bytes of blobs on their way: counted, hashed, compared with what was expected, and cut into parts of bounded size.
import { createHash, type Hash } from "node:crypto";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { BlobContent, BlobData, BlobExpectation } from "./blob-store.ts";

/** Counts and hashes what passes. */
export class Meter {
  #size = 0;
  /** Null: the caller has hashed the bytes. */
  readonly #hash: Hash | null;
  readonly #key: string;
  readonly #expected: BlobExpectation;

  constructor(key: string, expected: BlobExpectation = {}) {
    assertExpectation(key, expected);
    this.#key = key;
    this.#expected = expected;
    this.#hash = expected.isHashed && expected.sha256 !== undefined ? null : createHash("sha256");
  }

  /** Whether it hashes: what it is given should then come in parts. */
  get hashes(): boolean {
    return this.#hash !== null;
  }

  get size(): number {
    return this.#size;
  }

  /** Throws as soon as there are more bytes than expected. */
  add(chunk: Uint8Array): void {
    this.#size += chunk.length;
    this.#hash?.update(chunk);
    const { size } = this.#expected;
    if (size !== undefined && this.#size > size) throw this.#sizeDiffers(`more than ${size} bytes`);
  }

  /** Throws if the whole is not what was expected. */
  end(): BlobContent {
    const content = { size: this.#size, sha256: this.#hash?.digest("hex") ?? this.#expected.sha256!.toLowerCase() };
    const { size, sha256 } = this.#expected;
    if (size !== undefined && size !== content.size)
      throw this.#sizeDiffers(`${content.size} bytes instead of ${size}`);
    if (sha256 === undefined || sha256.toLowerCase() === content.sha256) return content;
    throw new OutliveError(
      ErrorCode.blobChecksum,
      `The blob ${this.#key} has the SHA-256 ${content.sha256} instead of ${sha256}.`,
      "It was changed in transit or in its store. Create it again from its source.",
      { key: this.#key, expected: sha256, actual: content.sha256 },
    );
  }

  #sizeDiffers(what: string): OutliveError {
    return new OutliveError(
      ErrorCode.blobSize,
      `The blob ${this.#key} has ${what}.`,
      "Its source ended early, changed meanwhile, or states another size than it has.",
      { key: this.#key, expected: this.#expected.size, actual: this.#size },
    );
  }
}

function assertExpectation(key: string, { size, sha256 }: BlobExpectation): void {
  const sizeIsGood = size === undefined || (Number.isSafeInteger(size) && size >= 0);
  if (sizeIsGood && (sha256 === undefined || /^[0-9a-f]{64}$/i.test(sha256))) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `What is expected of the blob ${key} is not valid.`,
    "`size` is a whole number of bytes, `sha256` has 64 hexadecimal digits.",
    { key, size, sha256 },
  );
}

/** Passes bytes through and throws, after the last one, if they are not what was expected. */
export async function* verified(
  source: AsyncIterable<Uint8Array>,
  expected: BlobExpectation,
  name = "that was read",
): AsyncGenerator<Uint8Array, BlobContent> {
  const meter = new Meter(name, expected);
  for await (const chunk of source) {
    meter.add(chunk);
    yield chunk;
  }
  return meter.end();
}

/** Carries what the stream that is put has thrown past the adapter, which must not take it for an error of its store. */
export class SourceFailure extends Error {
  constructor(thrown: unknown) {
    super("the stream that was put failed", { cause: thrown });
  }
}

/**
 * The bytes in parts of exactly `bytes`, the last one shorter; nothing for no bytes. Only one part is in memory, and it belongs to
 * the caller until the next one is asked for. Chunks are copied, because a source may reuse its buffer after it was asked for more.
 */
export async function* inParts(key: string, data: BlobData, bytes: number): AsyncGenerator<Uint8Array, void> {
  if (data instanceof Uint8Array) {
    for (let at = 0; at < data.length; at += bytes) yield data.subarray(at, at + bytes);
    return;
  }
  let part: Uint8Array | undefined;
  let filled = 0;
  for await (const chunk of ofSource(data)) {
    assertBytes(key, chunk);
    for (let at = 0; at < chunk.length;) {
      if (filled === 0 && chunk.length - at >= bytes) {
        yield chunk.subarray(at, at + bytes);
        at += bytes;
        continue;
      }
      part ??= Buffer.allocUnsafeSlow(bytes);
      const taken = chunk.subarray(at, at + bytes - filled);
      part.set(taken, filled);
      filled += taken.length;
      at += taken.length;
      if (filled < bytes) continue;
      yield part;
      filled = 0;
    }
  }
  if (filled > 0) yield part!.subarray(0, filled);
}

async function* ofSource(data: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void> {
  try {
    yield* data;
  } catch (thrown) {
    throw new SourceFailure(thrown);
  }
}

export function assertData(key: string, data: unknown): asserts data is BlobData {
  if (data instanceof Uint8Array || (typeof data === "object" && data !== null && Symbol.asyncIterator in data)) return;
  throw notBytes(key, "what was put");
}

function assertBytes(key: string, chunk: unknown): void {
  if (!(chunk instanceof Uint8Array)) throw notBytes(key, "a chunk of the stream that was put");
}

function notBytes(key: string, what: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `The blob ${key} was not stored, because ${what} is not bytes.`,
    "Use a Uint8Array, a Buffer, or an async iterable of them; a Readable without an encoding is one.",
    { key },
  );
}
