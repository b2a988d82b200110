// `outlive/blobs`: where batches and collections keep what is too large for a row. A folder, S3, Azure, or a store of your own.

export type {
  BlobCheck,
  BlobContent,
  BlobData,
  BlobEntry,
  BlobExpectation,
  BlobHead,
  BlobRange,
  BlobStore,
} from "./blobs/blob-store.ts";
export { azure, type AzureContainerLike, type AzureOptions } from "./blobs/azure.ts";
export { verified } from "./blobs/contents.ts";
export { fileSystem, type FileSystemOptions } from "./blobs/file-system/file-system.ts";
export { openBlobs } from "./blobs/open.ts";
export type { RemoteOptions } from "./blobs/remote.ts";
export { s3, type S3ClientLike, type S3Options } from "./blobs/s3.ts";
