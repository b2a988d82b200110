// Blobs in a container of Azure Blob Storage. The only file that loads `@azure/storage-blob`, and only when the store is used. A blob
// of more than one part is staged in blocks, which are not there before they are committed; the service removes others after a week.
import type * as AzureSdk from "@azure/storage-blob";
import { createHash } from "node:crypto";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { systemRandom } from "../platform/clock.ts";
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

/** A `ContainerClient` of `@azure/storage-blob`, by some of its methods. */
export interface AzureContainerLike {
  /** As in `@azure/storage-blob`. */
  readonly containerName: string;
  /** As in `@azure/storage-blob`. */
  getBlockBlobClient(name: string): object;
  /** As in `@azure/storage-blob`. */
  listBlobsFlat(options?: { prefix?: string }): object;
}

/** Options of `azure()`. */
export interface AzureOptions extends RemoteOptions {
  /** The name of the container, 3 to 63 characters. It must exist. */
  readonly container?: string;
  /** Of the storage account; needs `container`. */
  readonly connectionString?: string;
  /** The address of the container itself, with a shared access signature, or with a `credential`. */
  readonly url?: string;
  /** A credential of `@azure/identity`, or a `StorageSharedKeyCredential`; needs `url`. */
  readonly credential?: object;
  /** A container client of your own, with whatever settings it needs, instead of all of the above. */
  readonly client?: AzureContainerLike;
}

/** Azure takes at most so many blocks of one blob. */
const MAX_BLOCKS = 50_000;

type Sdk = typeof AzureSdk;
type Container = InstanceType<Sdk["ContainerClient"]>;

/** Blobs in a container. Needs the package `@azure/storage-blob`. Nothing is loaded or connected before the first use. */
export function azure(options: AzureOptions): BlobStore {
  return new AzureBlobs(options);
}

class AzureBlobs implements BlobStore {
  readonly place: string;
  readonly #options: AzureOptions;
  readonly #prefix: string;
  readonly #timeoutMs: number;
  #container: Promise<Container> | undefined;

  constructor(options: AzureOptions) {
    const { container, connectionString, url, client } = options;
    const ways = [connectionString !== undefined && container !== undefined, url !== undefined, client !== undefined];
    if (ways.filter(Boolean).length !== 1)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        "azure() needs one way to its container.",
        "Pass `connectionString` and `container`, or the container's `url`, or a `client`.",
        { container },
      );
    const { prefix, timeoutMs } = checkedRemote(options);
    this.#options = options;
    this.#prefix = prefix;
    this.#timeoutMs = timeoutMs;
    const name = client?.containerName ?? container ?? nameIn(url!);
    this.place = `the Azure container ${name}${prefix === "" ? "" : `, below ${prefix}`}`;
  }

  async put(key: string, data: BlobData, expected?: BlobExpectation): Promise<BlobContent> {
    assertKey(key);
    assertData(key, data);
    const meter = new Meter(key, expected);
    return await this.#doing(`storing ${key}`, async (container) => {
      const blob = container.getBlockBlobClient(this.#prefix + key);
      const partBytes = Math.max(PART_BYTES, Math.ceil((expected?.size ?? 0) / MAX_BLOCKS));
      const parts = inParts(key, data, partBytes);
      try {
        const first = (await parts.next()).value ?? Buffer.alloc(0);
        meter.add(first);
        if (first.length < partBytes) {
          // A put of one request is checked before it is sent.
          const content = meter.end();
          await blob.upload(bufferOf(first), first.length, this.#limit());
          return content;
        }
        // Two puts of one key at once must not stage under the same ids, which have one length per blob.
        const upload = systemRandom.hex(8);
        const ids: string[] = [];
        const stage = async (part: Uint8Array): Promise<void> => {
          if (ids.length === MAX_BLOCKS) throw tooManyBlocks(key);
          const id = Buffer.from(`${upload}-${String(ids.length).padStart(6, "0")}`).toString("base64");
          await blob.stageBlock(id, bufferOf(part), part.length, this.#limit());
          ids.push(id);
        };
        await stage(first);
        for await (const part of parts) {
          meter.add(part);
          await stage(part);
        }
        const content = meter.end();
        await blob.commitBlockList(ids, this.#limit()).catch(async (thrown: unknown) => {
          // Another put of this key was committed meanwhile, which removes the blocks of all others.
          if (codeOf(thrown) === "InvalidBlockList" && (await this.#holds(key, content))) return;
          throw thrown;
        });
        return content;
      } finally {
        // Ends the source if the put failed before its end.
        await parts.return();
      }
    });
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
    const found = await this.#doing(doing, async (container) => {
      const count = end === null ? undefined : end - start;
      const blob = container.getBlobClient(this.#prefix + key);
      return await blob.download(start, count, { abortSignal: leaving.signal }).catch((thrown: unknown) => {
        if (codeOf(thrown) === "BlobNotFound") throw notFound(key, this.place);
        // The range begins at the end of the blob or after it.
        if (statusOf(thrown) === 416) return null;
        throw thrown;
      });
    });
    const stream = found?.readableStreamBody;
    if (stream === undefined) return;
    try {
      yield* body(stream as unknown as AsyncIterable<Uint8Array>, this.place, this.#timeoutMs);
    } catch (thrown) {
      throw this.#explained(doing, thrown);
    } finally {
      leaving.abort();
    }
  }

  async head(key: string): Promise<BlobHead | null> {
    assertKey(key);
    return await this.#doing(`looking for ${key}`, async (container) => {
      try {
        const blob = container.getBlobClient(this.#prefix + key);
        const { contentLength = 0, lastModified } = await blob.getProperties(this.#limit());
        return { size: contentLength, modifiedAt: lastModified?.getTime() ?? 0 };
      } catch (thrown) {
        if (statusOf(thrown) !== 404) throw thrown;
        // A response to HEAD has no body, so it may not say whether the blob or the container is missing.
        if (codeOf(thrown) !== "BlobNotFound") await container.getProperties(this.#limit());
        return null;
      }
    });
  }

  async delete(keys: readonly string[]): Promise<void> {
    for (const key of keys) assertKey(key);
    if (keys.length === 0) return;
    await this.#doing(`deleting ${keys.length} blobs`, (container) =>
      forAll(keys, DELETES_AT_ONCE, (key) => container.getBlobClient(this.#prefix + key).deleteIfExists(this.#limit())),
    );
  }

  async *list(prefix = ""): AsyncGenerator<BlobEntry, void> {
    assertPrefix(prefix);
    const doing = `listing ${prefix}`;
    const container = await this.#doing(doing, async (found) => found);
    try {
      for await (const { name, properties } of container.listBlobsFlat({ prefix: this.#prefix + prefix })) {
        const { contentLength = 0, lastModified } = properties;
        yield { key: name.slice(this.#prefix.length), size: contentLength, modifiedAt: lastModified.getTime() };
      }
    } catch (thrown) {
      throw this.#explained(doing, thrown);
    }
  }

  async check(): Promise<BlobCheck> {
    await probe(this);
    return await this.#doing("checking", async (container) => {
      const { accountName, containerName } = container;
      return { place: this.place, facts: { account: accountName, container: containerName } };
    });
  }

  /** Whether the blob has this content. */
  async #holds(key: string, content: BlobContent): Promise<boolean> {
    if ((await this.head(key))?.size !== content.size) return false;
    const hash = createHash("sha256");
    for await (const chunk of this.get(key)) hash.update(chunk);
    return hash.digest("hex") === content.sha256;
  }

  #limit(): { abortSignal: AbortSignal } {
    return { abortSignal: AbortSignal.timeout(this.#timeoutMs) };
  }

  async #doing<T>(doing: string, work: (container: Container) => Promise<T>): Promise<T> {
    try {
      this.#container ??= this.#open().catch((thrown: unknown) => {
        this.#container = undefined;
        throw thrown;
      });
      return await work(await this.#container);
    } catch (thrown) {
      throw this.#explained(doing, thrown);
    }
  }

  async #open(): Promise<Container> {
    const { container, connectionString, url, credential, client } = this.#options;
    if (client !== undefined) return client as unknown as Container;
    const sdk = await load();
    try {
      if (connectionString !== undefined)
        return sdk.BlobServiceClient.fromConnectionString(connectionString).getContainerClient(container!);
      return new sdk.ContainerClient(url!, credential as ConstructorParameters<Sdk["ContainerClient"]>[1]);
    } catch {
      // Not as the cause: its message may repeat the secret.
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The address or connection string of ${this.place} is not valid.`,
        "Copy it again from the storage account.",
        { place: this.place },
      );
    }
  }

  #explained(doing: string, thrown: unknown): unknown {
    if (thrown instanceof SourceFailure) return thrown.cause;
    if (thrown instanceof OutliveError) return thrown;
    if (isUnreachable(thrown)) return unreachable(this.place, doing, firstLine(thrown), thrown);
    const isUnsigned = /failed to authenticate/i.test((thrown as Error).message);
    // Azurite has one code for both, the service two.
    const name = isUnsigned ? "AuthenticationFailed" : (codeOf(thrown) ?? (thrown as Error).name);
    const [code, hint] = WORDS[name] ??
      BY_STATUS[statusOf(thrown) ?? 0] ?? [ErrorCode.blobsFailed, "Nothing of it was stored; it is safe to try again."];
    return refused(code, this.place, doing, `${name}: ${firstLine(thrown)}`, hint, thrown);
  }
}

async function load(): Promise<Sdk> {
  try {
    return await import("@azure/storage-blob");
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "Blobs in Azure need the package `@azure/storage-blob`, which is not installed.",
      "Run `npm install @azure/storage-blob` in this program.",
      {},
      { cause: thrown },
    );
  }
}

const CREDENTIALS: readonly [ErrorCode, string] = [
  ErrorCode.blobsCredentials,
  "Check the account key, the shared access signature or the credential, and the clock of this machine.",
];
const FORBIDDEN: readonly [ErrorCode, string] = [
  ErrorCode.blobsForbidden,
  "Allow reading, writing, deleting and listing blobs of the container (role Storage Blob Data Contributor).",
];
const WORDS: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  ContainerNotFound: [ErrorCode.blobsMissing, "Create the container, or correct its name and account."],
  AuthenticationFailed: CREDENTIALS,
  InvalidAuthenticationInfo: CREDENTIALS,
  NoAuthenticationInformation: CREDENTIALS,
  CredentialUnavailableError: CREDENTIALS,
  AuthorizationFailure: FORBIDDEN,
  AuthorizationPermissionMismatch: FORBIDDEN,
  ContainerBeingDeleted: [ErrorCode.blobsMissing, "The container is being deleted. Name another one."],
  ServerBusy: [ErrorCode.blobsUnreachable, "The server is overloaded. Try again later."],
};
const BY_STATUS: Readonly<Record<number, readonly [ErrorCode, string]>> = {
  401: CREDENTIALS,
  403: FORBIDDEN,
  404: [ErrorCode.blobsMissing, "Create the container, or correct its name and account."],
  503: [ErrorCode.blobsUnreachable, "The server is overloaded or starts up. Try again later."],
};

function tooManyBlocks(key: string): OutliveError {
  return new OutliveError(
    ErrorCode.blobSize,
    `The blob ${key} has more than ${MAX_BLOCKS} blocks of ${PART_BYTES} bytes.`,
    "Pass its size to put, which then chooses larger blocks, or store it as several blobs.",
    { key },
  );
}

/** The last part of the path, without a signature. */
function nameIn(url: string): string {
  return URL.parse(url)?.pathname.split("/").findLast(Boolean) ?? "with an invalid address";
}

function bufferOf(part: Uint8Array): Buffer {
  return Buffer.from(part.buffer, part.byteOffset, part.byteLength);
}

/** Further lines of the SDK's messages repeat the response. */
function firstLine(thrown: unknown): string {
  return (thrown as Error).message.split("\n", 1)[0]!;
}

/** Without a body, the SDK has the code in the headers alone. */
function codeOf(thrown: unknown): string | undefined {
  const { code, details } = (thrown ?? {}) as { code?: string; details?: { errorCode?: string } };
  return details?.errorCode ?? code;
}

function statusOf(thrown: unknown): number | undefined {
  return (thrown as { statusCode?: number } | null)?.statusCode;
}
