// The port of blob stores on the file system, held to its specification.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openBlobs } from "../../src/blobs.ts";
import { blobConformance } from "../../src/testing/index.ts";

blobConformance("file system", async () => {
  const folder = await mkdtemp(join(tmpdir(), "outlive-blobs-"));
  return { open: () => openBlobs(join(folder, "blobs")), cleanup: () => rm(folder, { recursive: true }) };
});
