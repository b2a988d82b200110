// Blobs in a bucket of S3 or of a server that speaks its protocol. The only file that loads `@aws-sdk/client-s3`, and only when the
// store is used. A blob of more than one part is a multipart upload, which is not there before it is completed.
import type * as S3Sdk from "@aws-sdk/client-s3";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import {
  assertKey,
  assertPrefix,
  type BlobCheck,
  type BlobContent,
  type BlobData,
  type BlobEntry,
  type BlobExpectation,
  type BlobHead,
  type BlobRange,
  type BlobStore,
  checkedRange,
  notFound,
} from "./blob-store.ts";
import { assertData, inParts, Meter, SourceFailure } from "./contents.ts";
import { probe } from "./probe.ts";
import {
  body,
  checkedRemote,
  DELETES_AT_ONCE,
  forAll,
  isUnreachable,
  PART_BYTES,
  refused,
  type RemoteOptions,
  unreachable,
} from "./remote.ts";

/** An `S3Client` of `@aws-sdk/client-s3`, by the one method that is used. */
export interface S3ClientLike {
  /** As in `@aws-sdk/client-s3`. */
  send(command: never, options?: { abortSignal?: AbortSignal }): Promise<unknown>;
}

/** Options of `s3()`. */
export interface S3Options extends RemoteOptions {
  /** The name of the bucket. It must exist. */
  readonly bucket: string;
  /** Default: what the SDK finds in the environment or in its configuration files. */
  readonly region?: string;
  /** The address of another server than Amazon's, for instance "https://minio.example.com". */
  readonly endpoint?: string;
  /** Puts the bucket into the path instead of the host name, as many servers need. Default false. */
  readonly forcePathStyle?: boolean;
  /** Default: the SDK's own chain: environment, files, roles, single sign-on. */
  readonly credentials?: {
    readonly accessKeyId: string;
    readonly secretAccessKey: string;
    readonly sessionToken?: string;
  };
  /** A client of your own, with whatever settings it needs. `region`, `endpoint`, `forcePathStyle` and `credentials` are then ignored. */
  readonly client?: S3ClientLike;
}

/** S3 takes at most so many parts of one upload. */
const MAX_PARTS = 10_000;

type Sdk = typeof S3Sdk;
type Send = InstanceType<Sdk["S3Client"]>["send"];

/** Blobs in a bucket. Needs the package `@aws-sdk/client-s3`. Nothing is loaded or connected before the first use. */
export function s3(options: S3Options): BlobStore {
  return new S3Blobs(options);
}

class S3Blobs implements BlobStore {
  readonly place: string;
  readonly #options: S3Options;
  readonly #bucket: string;
  readonly #prefix: string;
  readonly #timeoutMs: number;
  #sdk: Promise<Sdk> | undefined;
  #client: InstanceType<Sdk["S3Client"]> | undefined;

  constructor(options: S3Options) {
    const { bucket } = options;
    if (typeof bucket !== "string" || bucket === "")
      throw new OutliveError(ErrorCode.optionInvalid, "s3() has no bucket.", 'Name one: s3({ bucket: "jobs" }).', {});
    const { prefix, timeoutMs } = checkedRemote(options);
    this.#options = options;
    this.#bucket = bucket;
    this.#prefix = prefix;
    this.#timeoutMs = timeoutMs;
    this.place = `the S3 bucket ${bucket}${prefix === "" ? "" : `, below ${prefix}`}`;
  }

  async put(key: string, data: BlobData, expected?: BlobExpectation): Promise<BlobContent> {
    assertKey(key);
    assertData(key, data);
    const meter = new Meter(key, expected);
    return await this.#doing(`storing ${key}`, async (sdk, send) => {
      const partBytes = Math.max(PART_BYTES, Math.ceil((expected?.size ?? 0) / MAX_PARTS));
      const at = { Bucket: this.#bucket, Key: this.#prefix + key };
      const parts = inParts(key, data, partBytes);
      try {
        const first = (await parts.next()).value ?? Buffer.alloc(0);
        meter.add(first);
        if (first.length < partBytes) {
          // A put of one request is checked before it is sent.
          const content = meter.end();
          const checksum = Buffer.from(content.sha256, "hex").toString("base64");
          await send(new sdk.PutObjectCommand({ ...at, Body: first, ChecksumSHA256: checksum }), this.#limit());
          return content;
        }
        return await this.#putInParts(sdk, send, at, first, parts, meter);
      } finally {
        // Ends the source if the put failed before its end.
        await parts.return();
      }
    });
  }

  async #putInParts(
    sdk: Sdk,
    send: Send,
    at: { Bucket: string; Key: string },
    first: Uint8Array,
    rest: AsyncIterable<Uint8Array>,
    meter: Meter,
  ): Promise<BlobContent> {
    const { UploadId } = await send(new sdk.CreateMultipartUploadCommand(at), this.#limit());
    const upload = { ...at, UploadId };
    try {
      const done: { ETag: string | undefined; PartNumber: number }[] = [];
      const add = async (part: Uint8Array): Promise<void> => {
        const PartNumber = done.length + 1;
        if (PartNumber > MAX_PARTS) throw tooManyParts(at.Key);
        const { ETag } = await send(new sdk.UploadPartCommand({ ...upload, PartNumber, Body: part }), this.#limit());
        done.push({ ETag, PartNumber });
      };
      await add(first);
      for await (const part of rest) {
        meter.add(part);
        await add(part);
      }
      const content = meter.end();
      await send(
        new sdk.CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts: done } }),
        this.#limit(),
      );
      return content;
    } catch (thrown) {
      // What can't be aborted, because the server is away or this process dies, is the bucket's to remove (docs/blobs.md).
      await send(new sdk.AbortMultipartUploadCommand(upload), this.#limit()).catch(() => {});
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
    const found = await this.#doing(doing, async (sdk, send) => {
      const Range = start === 0 && end === null ? undefined : `bytes=${start}-${end === null ? "" : end - 1}`;
      const command = new sdk.GetObjectCommand({
        Bucket: this.#bucket,
        Key: this.#prefix + key,
        ...(Range !== undefined && { Range }),
      });
      // No limit on the whole: a large blob may take as long as its reader.
      return await send(command).catch((thrown: unknown) => {
        if (nameOf(thrown) === "NoSuchKey" || nameOf(thrown) === "NotFound") throw notFound(key, this.place);
        // The range begins at the end of the blob or after it.
        if (statusOf(thrown) === 416) return null;
        throw thrown;
      });
    });
    if (found?.Body === undefined) return;
    try {
      yield* body(found.Body as AsyncIterable<Uint8Array>, this.place, this.#timeoutMs);
    } catch (thrown) {
      throw this.#explained(doing, thrown);
    }
  }

  async head(key: string): Promise<BlobHead | null> {
    assertKey(key);
    return await this.#doing(`looking for ${key}`, async (sdk, send) => {
      const command = new sdk.HeadObjectCommand({ Bucket: this.#bucket, Key: this.#prefix + key });
      try {
        const { ContentLength = 0, LastModified } = await send(command, this.#limit());
        return { size: ContentLength, modifiedAt: LastModified?.getTime() ?? 0 };
      } catch (thrown) {
        if (statusOf(thrown) !== 404) throw thrown;
        // A response to HEAD has no body, so it does not say whether the key or the bucket is missing.
        await send(new sdk.HeadBucketCommand({ Bucket: this.#bucket }), this.#limit());
        return null;
      }
    });
  }

  async delete(keys: readonly string[]): Promise<void> {
    for (const key of keys) assertKey(key);
    if (keys.length === 0) return;
    // One request for each: not every server that speaks S3 deletes many at once.
    await this.#doing(`deleting ${keys.length} blobs`, (sdk, send) =>
      forAll(keys, DELETES_AT_ONCE, (key) =>
        send(new sdk.DeleteObjectCommand({ Bucket: this.#bucket, Key: this.#prefix + key }), this.#limit()),
      ),
    );
  }

  async *list(prefix = ""): AsyncGenerator<BlobEntry, void> {
    assertPrefix(prefix);
    let from: string | undefined;
    do {
      const page = await this.#doing(`listing ${prefix}`, (sdk, send) => {
        const at = { Bucket: this.#bucket, Prefix: this.#prefix + prefix };
        const next = from === undefined ? {} : { ContinuationToken: from };
        return send(new sdk.ListObjectsV2Command({ ...at, ...next }), this.#limit());
      });
      for (const { Key, Size = 0, LastModified } of page.Contents ?? [])
        if (Key !== undefined && !Key.endsWith("/"))
          yield { key: Key.slice(this.#prefix.length), size: Size, modifiedAt: LastModified?.getTime() ?? 0 };
      from = page.IsTruncated === true ? page.NextContinuationToken : undefined;
    } while (from !== undefined);
  }

  async check(): Promise<BlobCheck> {
    await probe(this);
    return await this.#doing("checking", async (sdk, send) => {
      const region = await this.#client!.config.region();
      const rules = await send(
        new sdk.GetBucketLifecycleConfigurationCommand({ Bucket: this.#bucket }),
        this.#limit(),
      ).then(
        ({ Rules = [] }) => Rules.filter(({ Status }) => Status === "Enabled"),
        () => [],
      );
      const days = rules.find((rule) => rule.AbortIncompleteMultipartUpload !== undefined)
        ?.AbortIncompleteMultipartUpload?.DaysAfterInitiation;
      const unfinishedUploads =
        days === undefined ? "kept, or not known: add a lifecycle rule that aborts them" : `aborted after ${days} days`;
      return { place: this.place, facts: { bucket: this.#bucket, region, unfinishedUploads } };
    });
  }

  #limit(): { abortSignal: AbortSignal } {
    return { abortSignal: AbortSignal.timeout(this.#timeoutMs) };
  }

  async #doing<T>(doing: string, work: (sdk: Sdk, send: Send) => Promise<T>): Promise<T> {
    try {
      this.#sdk ??= load();
      const sdk = await this.#sdk;
      this.#client ??= (this.#options.client as unknown as InstanceType<Sdk["S3Client"]>) ?? this.#newClient(sdk);
      const client = this.#client;
      return await work(sdk, client.send.bind(client));
    } catch (thrown) {
      throw this.#explained(doing, thrown);
    }
  }

  #newClient(sdk: Sdk): InstanceType<Sdk["S3Client"]> {
    const { region, endpoint, forcePathStyle = false, credentials } = this.#options;
    return new sdk.S3Client({
      forcePathStyle,
      ...(region !== undefined && { region }),
      ...(endpoint !== undefined && { endpoint }),
      ...(credentials !== undefined && { credentials }),
    });
  }

  #explained(doing: string, thrown: unknown): unknown {
    if (thrown instanceof SourceFailure) return thrown.cause;
    if (thrown instanceof OutliveError) return thrown;
    if (isUnreachable(thrown)) return unreachable(this.place, doing, (thrown as Error).message, thrown);
    const name = nameOf(thrown);
    const [code, hint] = WORDS[name] ?? BY_STATUS[statusOf(thrown) ?? 0] ?? [ErrorCode.blobsFailed, TRY_AGAIN];
    return refused(code, this.place, doing, `${name}: ${(thrown as Error).message}`, hint, thrown);
  }
}

async function load(): Promise<Sdk> {
  try {
    return await import("@aws-sdk/client-s3");
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "Blobs in S3 need the package `@aws-sdk/client-s3`, which is not installed.",
      "Run `npm install @aws-sdk/client-s3` in this program.",
      {},
      { cause: thrown },
    );
  }
}

const TRY_AGAIN = "Nothing of it was stored; it is safe to try again.";
const NO_BUCKET: readonly [ErrorCode, string] = [
  ErrorCode.blobsMissing,
  "Create the bucket, or correct its name, region and endpoint.",
];
const CREDENTIALS: readonly [ErrorCode, string] = [
  ErrorCode.blobsCredentials,
  "Check the access key, its secret and session token, and the clock of this machine.",
];
const FORBIDDEN: readonly [ErrorCode, string] = [
  ErrorCode.blobsForbidden,
  "Allow s3:PutObject, GetObject, DeleteObject, ListBucket and AbortMultipartUpload on the bucket.",
];
const WORDS: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  NoSuchBucket: NO_BUCKET,
  InvalidAccessKeyId: CREDENTIALS,
  SignatureDoesNotMatch: CREDENTIALS,
  CredentialsProviderError: CREDENTIALS,
  ExpiredToken: CREDENTIALS,
  InvalidToken: CREDENTIALS,
  RequestTimeTooSkewed: CREDENTIALS,
  AccessDenied: FORBIDDEN,
  QuotaExceeded: [ErrorCode.blobsFull, "Nothing was stored. Raise the quota or make room, and try again."],
  XMinioStorageFull: [ErrorCode.blobsFull, "Nothing was stored. Make room on the server, and try again."],
  SlowDown: [ErrorCode.blobsUnreachable, "The server is overloaded. Try again later."],
};
const BY_STATUS: Readonly<Record<number, readonly [ErrorCode, string]>> = {
  401: CREDENTIALS,
  403: FORBIDDEN,
  404: NO_BUCKET,
  503: [ErrorCode.blobsUnreachable, "The server is overloaded or starts up. Try again later."],
  507: [ErrorCode.blobsFull, "Nothing was stored. Make room on the server, and try again."],
};

function tooManyParts(key: string): OutliveError {
  return new OutliveError(
    ErrorCode.blobSize,
    `The blob ${key} has more than ${MAX_PARTS} parts of ${PART_BYTES} bytes.`,
    "Pass its size to put, which then chooses larger parts, or store it as several blobs.",
    { key },
  );
}

/** Several servers send the code of the error where the SDK expects its name. */
function nameOf(thrown: unknown): string {
  const { name, Code } = (thrown ?? {}) as { name?: string; Code?: string };
  return Code ?? name ?? "Error";
}

function statusOf(thrown: unknown): number | undefined {
  return (thrown as { $metadata?: { httpStatusCode?: number } } | null)?.$metadata?.httpStatusCode;
}
