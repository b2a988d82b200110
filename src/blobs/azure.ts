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
  type BlobEntry,
  type BlobHead,
  type BlobStore,
} from "./blob-store.ts";
import { probe } from "./probe.ts";
import { loaded, type Refusal, RemoteBlobs, type RemoteOptions, type Upload, type Words } from "./remote.ts";

/** A `ContainerClient` of `@azure/storage-blob`, by some of its methods. */
export interface AzureContainerLike {
  /** As in `@azure/storage-blob`. */
  readonly containerName: string;
  /** As in `@azure/storage-blob`. */
  getBlockBlobClient(name: string): object;
  /** As in `@azure/storage-blob`. */
  listBlobsFlat(options?: object): object;
}

/** Options of `azure()`. */
export interface AzureOptions extends RemoteOptions {
  /** The name of the container, 3 to 63 characters. It must exist. Default: that of `url` or `client`. */
  readonly container?: string;
  /** That of the storage account; needs `container`. Default: none. */
  readonly connectionString?: string;
  /** The address of the container itself, with a shared access signature, or with a `credential`. Default: none. */
  readonly url?: string;
  /** A credential of `@azure/identity`, or a `StorageSharedKeyCredential`; needs `url`. Default: none. */
  readonly credential?: object;
  /** Your own container client, instead of all of the above. Default: none. */
  readonly client?: AzureContainerLike;
}

type Sdk = typeof AzureSdk;
type Container = InstanceType<Sdk["ContainerClient"]>;

/** Blobs in a container. Needs the package `@azure/storage-blob`. Nothing is loaded or connected before the first use. */
export function azure(options: AzureOptions): BlobStore {
  const { container, connectionString, url, client } = options;
  const ways = [connectionString !== undefined && container !== undefined, url !== undefined, client !== undefined];
  if (ways.filter(Boolean).length !== 1)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      "azure() needs exactly one way to reach its container.",
      "Pass `connectionString` and `container`, or the container's `url`, or a `client`.",
      { container },
    );
  return new AzureBlobs(options);
}

class AzureBlobs extends RemoteBlobs<Container> implements BlobStore {
  readonly uri?: string;
  protected readonly maxParts = 50_000;
  readonly #options: AzureOptions;

  constructor(options: AzureOptions) {
    const { container, url, client } = options;
    super(`the Azure container ${client?.containerName ?? container ?? nameIn(url!)}`, options);
    this.#options = options;
    const address = addressOf(options);
    if (address !== null) this.uri = `${address}/${this.prefix}`;
  }

  protected async open(): Promise<Container> {
    const { container, connectionString, url, credential, client } = this.#options;
    if (client !== undefined) return client as unknown as Container;
    const sdk = await loaded("Azure", "@azure/storage-blob", () => import("@azure/storage-blob"));
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

  protected putWhole(container: Container, name: string, bytes: Uint8Array): Promise<unknown> {
    return container.getBlockBlobClient(name).upload(bufferOf(bytes), bytes.length, this.limit());
  }

  // The service removes blocks that were not committed after a week.
  protected async beginUpload(container: Container, name: string): Promise<Upload> {
    const blob = container.getBlockBlobClient(name);
    // Two puts of one key at once must not stage under the same ids, which have one length per blob.
    const upload = systemRandom.hex(8);
    const ids: string[] = [];
    return {
      add: async (part, number) => {
        const id = Buffer.from(`${upload}-${String(number).padStart(6, "0")}`).toString("base64");
        await blob.stageBlock(id, bufferOf(part), part.length, this.limit());
        ids.push(id);
      },
      complete: async (content) => {
        await blob.commitBlockList(ids, this.limit()).catch(async (thrown: unknown) => {
          // Another put of this key was committed meanwhile, which removes the blocks of all others.
          if (codeOf(thrown) === "InvalidBlockList" && (await this.#holds(name, content))) return;
          throw thrown;
        });
      },
    };
  }

  protected async download(
    container: Container,
    name: string,
    { start, end }: { readonly start: number; readonly end: number | null },
    leaving: AbortSignal,
  ): Promise<AsyncIterable<Uint8Array> | "missing" | null> {
    const count = end === null ? undefined : end - start;
    try {
      const found = await container.getBlobClient(name).download(start, count, { abortSignal: leaving });
      return (found.readableStreamBody as unknown as AsyncIterable<Uint8Array> | undefined) ?? null;
    } catch (thrown) {
      if (codeOf(thrown) === "BlobNotFound") return "missing";
      if (statusOf(thrown) === 416) return null;
      throw thrown;
    }
  }

  protected deleteOne(container: Container, name: string): Promise<unknown> {
    return container.getBlobClient(name).deleteIfExists(this.limit());
  }

  async head(key: string): Promise<BlobHead | null> {
    assertKey(key);
    return await this.doing(`looking for ${key}`, async (container) => {
      try {
        const blob = container.getBlobClient(this.prefix + key);
        const { contentLength = 0, lastModified } = await blob.getProperties(this.limit());
        return { size: contentLength, modifiedAt: lastModified?.getTime() ?? 0 };
      } catch (thrown) {
        if (statusOf(thrown) !== 404) throw thrown;
        // A response to HEAD has no body, so it may not say whether the blob or the container is missing.
        if (codeOf(thrown) !== "BlobNotFound") await container.getProperties(this.limit());
        return null;
      }
    });
  }

  async *list(prefix = ""): AsyncGenerator<BlobEntry, void> {
    assertPrefix(prefix);
    const doing = `listing ${prefix}`;
    const container = await this.doing(doing, async (found) => found);
    try {
      for await (const { name, properties } of container.listBlobsFlat({ prefix: this.prefix + prefix })) {
        const { contentLength = 0, lastModified } = properties;
        yield { key: name.slice(this.prefix.length), size: contentLength, modifiedAt: lastModified.getTime() };
      }
    } catch (thrown) {
      throw this.explained(doing, thrown);
    }
  }

  async check(): Promise<BlobCheck> {
    await probe(this);
    return await this.doing("checking", async (container) => {
      const { accountName, containerName } = container;
      return { place: this.place, facts: { account: accountName, container: containerName } };
    });
  }

  /** Whether the blob has this content. */
  async #holds(name: string, content: BlobContent): Promise<boolean> {
    const key = name.slice(this.prefix.length);
    if ((await this.head(key))?.size !== content.size) return false;
    const hash = createHash("sha256");
    for await (const chunk of this.get(key)) hash.update(chunk);
    return hash.digest("hex") === content.sha256;
  }

  protected refusalOf(thrown: unknown): Refusal {
    const message = firstLine(thrown);
    // Azurite has one code for both, the service two.
    const isUnsigned = /failed to authenticate/i.test((thrown as Error).message);
    const name = isUnsigned ? "AuthenticationFailed" : (codeOf(thrown) ?? (thrown as Error).name);
    return { name, message, words: WORDS[name] ?? BY_STATUS[statusOf(thrown) ?? 0] };
  }
}

const CREDENTIALS: Words = [
  ErrorCode.blobsCredentials,
  "Check the account key, the shared access signature or the credential, and the clock of this machine.",
];
const FORBIDDEN: Words = [
  ErrorCode.blobsForbidden,
  "Allow reading, writing, deleting and listing blobs of the container (role Storage Blob Data Contributor).",
];
const WORDS: Readonly<Record<string, Words>> = {
  ContainerNotFound: [ErrorCode.blobsMissing, "Create the container, or correct its name and account."],
  AuthenticationFailed: CREDENTIALS,
  InvalidAuthenticationInfo: CREDENTIALS,
  NoAuthenticationInformation: CREDENTIALS,
  CredentialUnavailableError: CREDENTIALS,
  AuthorizationFailure: FORBIDDEN,
  AuthorizationPermissionMismatch: FORBIDDEN,
  ContainerBeingDeleted: [ErrorCode.blobsMissing, "The container is being deleted. Use another one."],
  ServerBusy: [ErrorCode.blobsUnreachable, "The server is overloaded. Try again later."],
};
const BY_STATUS: Readonly<Record<number, Words>> = {
  401: CREDENTIALS,
  403: FORBIDDEN,
  404: [ErrorCode.blobsMissing, "Create the container, or correct its name and account."],
  503: [ErrorCode.blobsUnreachable, "The server is overloaded or starting up. Try again later."],
};

/** Of the container, without a signature. Null: it is not known before its client is made. */
function addressOf({ container, connectionString, url, client }: AzureOptions): string | null {
  const given = url ?? (client as { readonly url?: unknown } | undefined)?.url;
  if (typeof given === "string") {
    const { origin, pathname } = URL.parse(given) ?? {};
    return origin === undefined || pathname === undefined ? null : origin + pathname.replace(/\/$/, "");
  }
  const named = (name: string): string | undefined =>
    new RegExp(`(?:^|;)${name}=([^;]+)`, "i").exec(connectionString ?? "")?.[1];
  const [endpoint, account] = [named("BlobEndpoint"), named("AccountName")];
  if (endpoint !== undefined) return `${endpoint.replace(/\/$/, "")}/${container}`;
  if (account === undefined) return null;
  const [protocol, suffix] = [
    named("DefaultEndpointsProtocol") ?? "https",
    named("EndpointSuffix") ?? "core.windows.net",
  ];
  return `${protocol}://${account}.blob.${suffix}/${container}`;
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
