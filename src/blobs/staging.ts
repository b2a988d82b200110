// What a blob store may offer in addition to its port: bytes are on their way to the disk before their key is known. A key carries the hash of the bytes, so
// without this nothing could be written while the hash is made.

export interface StagingBlobs {
  /** Begins to write. `data` must not be changed until it has its key, and it must be given one. */
  stage(data: Uint8Array): StagedBlob;

  /** Makes blobs durable that have got their keys by `place`. One sync for all that are in one folder. */
  sync(keys: readonly string[]): Promise<void>;
}

/** Bytes without a key. If their process dies, they are removed as an unfinished put is. */
export interface StagedBlob {
  /** Gives them a key, atomic as `put` of the port, and durable after a `sync` of the key: many keys of one folder share one. */
  place(key: string): Promise<void>;
}
