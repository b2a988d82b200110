// What every adapter's `check` does first: store, read and delete a small blob, because only that shows that all three are allowed.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { systemRandom } from "../platform/clock.ts";
import type { BlobStore } from "./blob-store.ts";

export async function probe(store: BlobStore): Promise<void> {
  const text = systemRandom.hex(16);
  const key = `outlive-check/${text}`;
  await store.put(key, Buffer.from(text));
  let found = "";
  try {
    for await (const chunk of store.get(key)) found += Buffer.from(chunk).toString();
  } finally {
    await store.delete([key]);
  }
  if (found === text) return;
  throw new OutliveError(
    ErrorCode.blobsFailed,
    `A small blob that was stored in ${store.place} came back changed.`,
    "The store does not keep what it is given: check its server, or use another one.",
    { place: store.place },
  );
}
