// What the adapters for servers share: how a blob is put in parts and read, a limit on waiting, reading a body that may stall, and the errors. An adapter
// says what its server is asked (`Remote`).
import { ErrorCode, OutliveError } from "../job/errors.ts";
import {
  assertKey,
  type BlobContent,
  type BlobData,
  type BlobExpectation,
  type BlobHead,
  type BlobRange,
  assertPrefix,
  checkedRange,
  notFound,
} from "./blob-store.ts";
import { assertData, inParts, Meter, SourceFailure } from "./contents.ts";

/** What one part of an upload takes, and the memory of one put. S3 takes no part below 5 MiB except the last. */
const PART_BYTES = 8 * 1024 * 1024;
/** How many requests one delete has under way. */
const DELETES_AT_ONCE = 16;
const DEFAULT_TIMEOUT_MS = 60_000;
const MAX_TIMEOUT_MS = 3_600_000;

/** Options of every blob store behind a network. */
export interface RemoteOptions {
  /** What all keys start with, for instance "jobs/". It has the characters of keys and ends in a slash. Default: nothing. */
  readonly prefix?: string;
  /** How long one request, or the next bytes of a blob, may take, in ms; 1 to 3,600,000. Default 60,000. */
  readonly timeoutMs?: number;
}

/** A blob of several parts on its way. It is not there before it is completed. */
export interface Upload {
  /** Parts come one after the other, numbered from 0. */
  add(part: Uint8Array, number: number): Promise<void>;
  complete(content: BlobContent): Promise<void>;
  /** Absent: the server removes what was not completed. */
  abandon?(): Promise<unknown>;
}

/** The code of an error, and what to do about it. */
export type Words = readonly [code: ErrorCode, hint: string];

/** What a server says when it refuses. */
export interface Refusal {
  readonly name: string;
  readonly message: string;
  readonly words: Words | undefined;
}

/** Ends one request. */
export interface Limit {
  readonly abortSignal: AbortSignal;
}

/** A blob store on a server, as far as it is the same on each. `Client`: what requests are sent with. */
export abstract class RemoteBlobs<Client> {
  readonly place: string;
  protected readonly prefix: string;
  readonly #timeoutMs: number;
  #client: Promise<Client> | undefined;

  constructor(what: string, options: RemoteOptions) {
    const { prefix, timeoutMs } = checkedRemote(options);
    this.prefix = prefix;
    this.#timeoutMs = timeoutMs;
    this.place = `${what}${prefix === "" ? "" : `, below ${prefix}`}`;
  }

  /** The server takes at most this many parts of one blob. */
  protected abstract readonly maxParts: number;
  /** Loads the SDK. It is called again after it failed. */
  protected abstract open(): Promise<Client>;
  protected abstract putWhole(client: Client, name: string, bytes: Uint8Array, content: BlobContent): Promise<unknown>;
  protected abstract beginUpload(client: Client, name: string): Promise<Upload>;
  /** "missing": there is no such blob. Null: the range begins at its end or after it. `leaving` aborts when the reader leaves. */
  protected abstract download(
    client: Client,
    name: string,
    range: { readonly start: number; readonly end: number | null },
    leaving: AbortSignal,
  ): Promise<AsyncIterable<Uint8Array> | "missing" | null>;
  protected abstract deleteOne(client: Client, name: string): Promise<unknown>;
  protected abstract refusalOf(thrown: unknown): Refusal;
  abstract head(key: string): Promise<BlobHead | null>;

  async put(key: string, data: BlobData, expected?: BlobExpectation): Promise<BlobContent> {
    assertKey(key);
    assertData(key, data);
    const meter = new Meter(key, expected);
    return await this.doing(`storing ${key}`, async (client) => {
      const name = this.prefix + key;
      const partBytes = Math.max(PART_BYTES, Math.ceil((expected?.size ?? 0) / this.maxParts));
      const parts = inParts(key, data, partBytes);
      try {
        const first = (await parts.next()).value ?? Buffer.alloc(0);
        meter.add(first);
        if (first.length < partBytes) {
          // A put of one request is checked before it is sent.
          const content = meter.end();
          await this.putWhole(client, name, first, content);
          return content;
        }
        return await this.#putParts(key, await this.beginUpload(client, name), first, parts, meter);
      } finally {
        // Ends the source if the put failed before its end.
        await parts.return();
      }
    });
  }

  async #putParts(
    key: string,
    upload: Upload,
    first: Uint8Array,
    rest: AsyncIterable<Uint8Array>,
    meter: Meter,
  ): Promise<BlobContent> {
    try {
      await upload.add(first, 0);
      let number = 1;
      for await (const part of rest) {
        if (number === this.maxParts) throw tooManyParts(key, this.maxParts);
        meter.add(part);
        await upload.add(part, number++);
      }
      const content = meter.end();
      await upload.complete(content);
      return content;
    } catch (thrown) {
      // What can't be abandoned, because the server is away or this process dies, is the server's to remove (docs/blobs.md).
      await upload.abandon?.().catch(() => {});
      throw thrown;
    }
  }

  async *get(key: string, range?: BlobRange): AsyncGenerator<Uint8Array, void> {
    assertKey(key);
    const { start, end } = checkedRange(range);
    if (end === start) {
      if ((await this.head(key)) === null) throw notFound(key, this.place);
      return;
    }
    const doing = `reading ${key}`;
    const leaving = new AbortController();
    // No limit on the whole: a large blob may take as long as its reader.
    const found = await this.doing(doing, (client) =>
      this.download(client, this.prefix + key, { start, end }, leaving.signal),
    );
    if (found === "missing") throw notFound(key, this.place);
    if (found === null) return;
    try {
      yield* body(found, this.place, this.#timeoutMs);
    } catch (thrown) {
      throw this.explained(doing, thrown);
    } finally {
      leaving.abort();
    }
  }

  async delete(keys: readonly string[]): Promise<void> {
    for (const key of keys) assertKey(key);
    if (keys.length === 0) return;
    // One request for each: not every server deletes many at once.
    await this.doing(`deleting ${keys.length} blobs`, (client) =>
      forAll(keys, DELETES_AT_ONCE, (key) => this.deleteOne(client, this.prefix + key)),
    );
  }

  protected limit(): Limit {
    return { abortSignal: AbortSignal.timeout(this.#timeoutMs) };
  }

  protected async doing<T>(doing: string, work: (client: Client) => Promise<T>): Promise<T> {
    try {
      this.#client ??= this.open().catch((thrown: unknown) => {
        this.#client = undefined;
        throw thrown;
      });
      return await work(await this.#client);
    } catch (thrown) {
      throw this.explained(doing, thrown);
    }
  }

  protected explained(doing: string, thrown: unknown): unknown {
    if (thrown instanceof SourceFailure) return thrown.cause;
    if (thrown instanceof OutliveError) return thrown;
    const { name, message, words } = this.refusalOf(thrown);
    if (isUnreachable(thrown)) return unreachable(this.place, doing, message, thrown);
    const [code, hint] = words ?? [ErrorCode.blobsFailed, "Nothing of it was stored; it is safe to try again."];
    return refused(code, this.place, doing, `${name}: ${message}`, hint, thrown);
  }
}

/** The package of an SDK, which is an optional peer. */
export async function loaded<Sdk>(where: string, name: string, load: () => Promise<Sdk>): Promise<Sdk> {
  try {
    return await load();
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      `Blobs in ${where} need the package \`${name}\`, which is not installed.`,
      `Run \`npm install ${name}\` in this program.`,
      {},
      { cause: thrown },
    );
  }
}

function tooManyParts(key: string, most: number): OutliveError {
  return new OutliveError(
    ErrorCode.blobSize,
    `The blob ${key} has more than ${most} parts of ${PART_BYTES} bytes.`,
    "Pass its size to put, which then chooses larger parts, or store it as several blobs.",
    { key },
  );
}

function checkedRemote({ prefix = "", timeoutMs = DEFAULT_TIMEOUT_MS }: RemoteOptions): Required<RemoteOptions> {
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
async function* body(
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
async function forAll<T>(all: readonly T[], atOnce: number, work: (one: T) => Promise<unknown>): Promise<void> {
  const left = all.values();
  const lane = async (): Promise<void> => {
    for (const one of left) await work(one);
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, all.length) }, lane));
}

function unreachable(place: string, doing: string, why: string, cause?: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.blobsUnreachable,
    `The blob store in ${place} did not respond while ${doing}: ${why}.`,
    "Check the address and the network, and try again: puts and deletes may be repeated.",
    { place, doing },
    { cause },
  );
}

function refused(
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
function isUnreachable(thrown: unknown): boolean {
  const { name = "", code = "" } = (thrown ?? {}) as { name?: string; code?: string };
  if (/^(AbortError|TimeoutError|NetworkingError)$/.test(name) || code === "REQUEST_SEND_ERROR") return true;
  return /^(ECONN\w+|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT|EPIPE)$/.test(code);
}
