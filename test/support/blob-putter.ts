// A process that puts blobs into a folder one after the other, and prints each key when its put has resolved. Arguments: the folder.
import { writeSync } from "node:fs";
import { openBlobs } from "../../src/blobs.ts";
import type { StagingBlobs } from "../../src/blobs/staging.ts";
import { contentOf, PUTS } from "./blob-puts.ts";

const blobs = openBlobs(process.argv[2]!);
for (const key of PUTS) {
  const content = contentOf(key);
  const chunks = async function* (): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < content.length; at += 100_000) yield content.subarray(at, at + 100_000);
  };
  if (key.includes("staged")) {
    const staging = blobs as unknown as StagingBlobs;
    await staging.stage(content).place(key);
    await staging.sync([key]);
  } else await blobs.put(key, key.includes("stream") ? chunks() : content);
  writeSync(1, `put ${key}\n`);
}
await blobs.delete([PUTS[0]!]);
writeSync(1, "deleted\n");
