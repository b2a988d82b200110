// Blobs in a bucket of S3 or of a server that speaks its protocol. The only file that loads `@aws-sdk/client-s3`, and only when the
// store is used. A blob of more than one part is a multipart upload, which is not there before it is completed.
import type * as S3Sdk from "@aws-sdk/client-s3";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import {
  assertKey,
  assertPrefix,
  type BlobCheck,
  type BlobContent,
  type BlobEntry,
  type BlobHead,
  type BlobStore,
} from "./blob-store.ts";
import { probe } from "./probe.ts";
import { loaded, type Refusal, RemoteBlobs, type RemoteOptions, type Upload, type Words } from "./remote.ts";

/** An `S3Client` of `@aws-sdk/client-s3`, by the one method that is used. */
export interface S3ClientLike {
  /** As in `@aws-sdk/client-s3`. */
  send(command: never, options?: object): Promise<unknown>;
}

/** Options of `s3()`. */
export interface S3Options extends RemoteOptions {
  /** The name of the bucket. It must exist. */
  readonly bucket: string;
  /** The region of the bucket. Default: what the SDK finds in the environment or in its configuration files. */
  readonly region?: string;
  /** The address of another server than Amazon's, for instance "https://minio.example.com". Default: Amazon's. */
  readonly endpoint?: string;
  /** Puts the bucket into the path instead of the host name, as many servers need. Default false. */
  readonly forcePathStyle?: boolean;
  /** The credentials. Default: the SDK's own chain: environment, files, roles, single sign-on. */
  readonly credentials?: {
    /** The id of the key. */
    readonly accessKeyId: string;
    /** The key. */
    readonly secretAccessKey: string;
    /** The token of temporary credentials. Default: none. */
    readonly sessionToken?: string;
  };
  /** A client of your own, configured as you need it. `region`, `endpoint`, `forcePathStyle` and `credentials` are then ignored. Default: a new client. */
  readonly client?: S3ClientLike;
}

type Sdk = typeof S3Sdk;
type S3Client = InstanceType<Sdk["S3Client"]>;

interface Client {
  readonly sdk: Sdk;
  readonly client: S3Client;
  readonly send: S3Client["send"];
}

/** Blobs in a bucket. Needs the package `@aws-sdk/client-s3`. Nothing is loaded or connected before the first use. */
export function s3(options: S3Options): BlobStore {
  if (typeof options.bucket !== "string" || options.bucket === "")
    throw new OutliveError(ErrorCode.optionInvalid, "s3() has no bucket.", 'Name one: s3({ bucket: "jobs" }).', {});
  return new S3Blobs(options);
}

class S3Blobs extends RemoteBlobs<Client> implements BlobStore {
  readonly uri: string;
  protected readonly maxParts = 10_000;
  readonly #options: S3Options;
  readonly #bucket: string;

  constructor(options: S3Options) {
    super(`the S3 bucket ${options.bucket}`, options);
    this.#options = options;
    this.#bucket = options.bucket;
    this.uri = `s3://${options.bucket}/${this.prefix}`;
  }

  protected async open(): Promise<Client> {
    const sdk = await loaded("S3", "@aws-sdk/client-s3", () => import("@aws-sdk/client-s3"));
    const client = (this.#options.client as unknown as S3Client | undefined) ?? this.#newClient(sdk);
    return { sdk, client, send: client.send.bind(client) };
  }

  #newClient(sdk: Sdk): S3Client {
    const { region, endpoint, forcePathStyle = false, credentials } = this.#options;
    return new sdk.S3Client({
      forcePathStyle,
      ...(region !== undefined && { region }),
      ...(endpoint !== undefined && { endpoint }),
      ...(credentials !== undefined && { credentials }),
    });
  }

  protected putWhole(
    { sdk, send }: Client,
    name: string,
    bytes: Uint8Array,
    { sha256 }: BlobContent,
  ): Promise<unknown> {
    const ChecksumSHA256 = Buffer.from(sha256, "hex").toString("base64");
    return send(new sdk.PutObjectCommand({ ...this.#at(name), Body: bytes, ChecksumSHA256 }), this.limit());
  }

  protected async beginUpload({ sdk, send }: Client, name: string): Promise<Upload> {
    const { UploadId } = await send(new sdk.CreateMultipartUploadCommand(this.#at(name)), this.limit());
    const upload = { ...this.#at(name), UploadId };
    const Parts: { ETag: string | undefined; PartNumber: number }[] = [];
    return {
      add: async (part, number) => {
        const PartNumber = number + 1;
        const { ETag } = await send(new sdk.UploadPartCommand({ ...upload, PartNumber, Body: part }), this.limit());
        Parts.push({ ETag, PartNumber });
      },
      complete: async () => {
        await send(new sdk.CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts } }), this.limit());
      },
      abandon: () => send(new sdk.AbortMultipartUploadCommand(upload), this.limit()),
    };
  }

  protected async download(
    { sdk, send }: Client,
    name: string,
    { start, end }: { readonly start: number; readonly end: number | null },
  ): Promise<AsyncIterable<Uint8Array> | "missing" | null> {
    const Range = start === 0 && end === null ? undefined : `bytes=${start}-${end === null ? "" : end - 1}`;
    try {
      const found = await send(new sdk.GetObjectCommand({ ...this.#at(name), ...(Range !== undefined && { Range }) }));
      return (found.Body as AsyncIterable<Uint8Array> | undefined) ?? null;
    } catch (thrown) {
      if (nameOf(thrown) === "NoSuchKey" || nameOf(thrown) === "NotFound") return "missing";
      if (statusOf(thrown) === 416) return null;
      throw thrown;
    }
  }

  protected deleteOne({ sdk, send }: Client, name: string): Promise<unknown> {
    return send(new sdk.DeleteObjectCommand(this.#at(name)), this.limit());
  }

  #at(name: string): { Bucket: string; Key: string } {
    return { Bucket: this.#bucket, Key: name };
  }

  async head(key: string): Promise<BlobHead | null> {
    assertKey(key);
    return await this.doing(`looking for ${key}`, async ({ sdk, send }) => {
      const command = new sdk.HeadObjectCommand({ Bucket: this.#bucket, Key: this.prefix + key });
      try {
        const { ContentLength = 0, LastModified } = await send(command, this.limit());
        return { size: ContentLength, modifiedAt: LastModified?.getTime() ?? 0 };
      } catch (thrown) {
        if (statusOf(thrown) !== 404) throw thrown;
        // A response to HEAD has no body, so it does not say whether the key or the bucket is missing.
        await send(new sdk.HeadBucketCommand({ Bucket: this.#bucket }), this.limit());
        return null;
      }
    });
  }

  async *list(prefix = ""): AsyncGenerator<BlobEntry, void> {
    assertPrefix(prefix);
    let from: string | undefined;
    do {
      const page = await this.doing(`listing ${prefix}`, ({ sdk, send }) => {
        const at = { Bucket: this.#bucket, Prefix: this.prefix + prefix };
        const next = from === undefined ? {} : { ContinuationToken: from };
        return send(new sdk.ListObjectsV2Command({ ...at, ...next }), this.limit());
      });
      for (const { Key, Size = 0, LastModified } of page.Contents ?? [])
        if (Key !== undefined && !Key.endsWith("/"))
          yield { key: Key.slice(this.prefix.length), size: Size, modifiedAt: LastModified?.getTime() ?? 0 };
      from = page.IsTruncated === true ? page.NextContinuationToken : undefined;
    } while (from !== undefined);
  }

  async check(): Promise<BlobCheck> {
    await probe(this);
    return await this.doing("checking", async ({ sdk, client, send }) => {
      const region = await client.config.region();
      const rules = await send(
        new sdk.GetBucketLifecycleConfigurationCommand({ Bucket: this.#bucket }),
        this.limit(),
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

  protected refusalOf(thrown: unknown): Refusal {
    const name = nameOf(thrown);
    return { name, message: (thrown as Error).message, words: WORDS[name] ?? BY_STATUS[statusOf(thrown) ?? 0] };
  }
}

const NO_BUCKET: Words = [ErrorCode.blobsMissing, "Create the bucket, or correct its name, region and endpoint."];
const CREDENTIALS: Words = [
  ErrorCode.blobsCredentials,
  "Check the access key, its secret and session token, and the clock of this machine.",
];
const FORBIDDEN: Words = [
  ErrorCode.blobsForbidden,
  "Allow s3:PutObject, GetObject, DeleteObject, ListBucket and AbortMultipartUpload on the bucket.",
];
const WORDS: Readonly<Record<string, Words>> = {
  NoSuchBucket: NO_BUCKET,
  InvalidAccessKeyId: CREDENTIALS,
  SignatureDoesNotMatch: CREDENTIALS,
  CredentialsProviderError: CREDENTIALS,
  ExpiredToken: CREDENTIALS,
  InvalidToken: CREDENTIALS,
  RequestTimeTooSkewed: CREDENTIALS,
  AccessDenied: FORBIDDEN,
  QuotaExceeded: [ErrorCode.blobsFull, "Nothing was stored. Raise the quota or free space, and try again."],
  XMinioStorageFull: [ErrorCode.blobsFull, "Nothing was stored. Free space on the server and try again."],
  SlowDown: [ErrorCode.blobsUnreachable, "The server is overloaded. Try again later."],
};
const BY_STATUS: Readonly<Record<number, Words>> = {
  401: CREDENTIALS,
  403: FORBIDDEN,
  404: NO_BUCKET,
  503: [ErrorCode.blobsUnreachable, "The server is overloaded or starting up. Try again later."],
  507: [ErrorCode.blobsFull, "Nothing was stored. Free space on the server and try again."],
};

/** Several servers send the code of the error where the SDK expects its name. */
function nameOf(thrown: unknown): string {
  const { name, Code } = (thrown ?? {}) as { name?: string; Code?: string };
  return Code ?? name ?? "Error";
}

function statusOf(thrown: unknown): number | undefined {
  return (thrown as { $metadata?: { httpStatusCode?: number } } | null)?.$metadata?.httpStatusCode;
}
