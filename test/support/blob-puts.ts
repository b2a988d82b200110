// What blob-putter.ts puts, in this order: two blobs of new folders, a large stream, one in a folder that is there, one put twice, one
// that gets its key after its bytes.

export const PUTS: readonly string[] = [
  "kind/one/small",
  "kind/two/stream",
  "kind/one/other",
  "kind/two/stream",
  "top",
  "kind/one/staged",
];

export function contentOf(key: string): Buffer {
  return Buffer.alloc(key.includes("stream") ? 1_300_000 : 3_000, key);
}
