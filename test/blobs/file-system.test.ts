// Blobs in the file system where a place is not what it should be: full, read-only, missing, forbidden, shared, or full of links.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs, {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test, type TestContext } from "node:test";
import { azure, type BlobStore, fileSystem, openBlobs, s3, verified } from "../../src/blobs.ts";
import type { StagedBlob, StagingBlobs } from "../../src/blobs/staging.ts";
import { ErrorCode } from "../../src/index.ts";
import { says } from "../engine/engines.ts";
import { SmallDisk } from "../support/small-disk.ts";

function place(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-blobs-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

const bytes = Buffer.from("bytes");
const keysOf = (blobs: BlobStore) => Array.fromAsync(blobs.list(), ({ key }) => key);

test("on a full disk a put is refused, leaves nothing, and works again with room", async (t) => {
  const disk = new SmallDisk(t, "3m");
  const blobs = openBlobs(join(disk.folder, "blobs"));
  await blobs.put("k/before", bytes);
  disk.fill();
  for (const data of [Buffer.alloc(500_000), Buffer.alloc(2_000_000)])
    await assert.rejects(blobs.put("k/large", data), says(ErrorCode.blobsFull, "storing k/large", "Free disk space"));
  assert.deepEqual(await keysOf(blobs), ["k/before"]);
  assert.deepEqual(readdirSync(join(disk.folder, "blobs", ".incoming")), []);
  disk.makeRoom();
  await blobs.put("k/large", Buffer.alloc(500_000));
  assert.equal((await blobs.head("k/large"))?.size, 500_000);
});

test("staged bytes are seen under their key and not before; on a full disk, or with a key that is taken, it is refused and leaves nothing", async (t) => {
  const disk = new SmallDisk(t, "3m");
  const folder = join(disk.folder, "blobs");
  const blobs = fileSystem({ folder });
  const staging = blobs as unknown as StagingBlobs;
  const stage = (data: Uint8Array): StagedBlob => staging.stage(data);
  const incoming = (): string[] => readdirSync(join(folder, ".incoming"));
  const large = Buffer.alloc(1_000_000, "x");
  const staged = stage(large);
  await blobs.put("k/other", bytes);
  assert.deepEqual(await keysOf(blobs), ["k/other"]);
  await staged.place("k/one");
  await staging.sync(["k/one"]);
  assert.deepEqual(Buffer.concat(await Array.fromAsync(blobs.get("k/one"))), large);
  assert.equal(statSync(join(folder, "k/one")).mode & 0o777, 0o600);
  await assert.rejects(stage(bytes).place("k"), says(ErrorCode.keyInvalid));
  assert.deepEqual(incoming(), []);
  disk.fill();
  await assert.rejects(stage(large).place("k/two"), says(ErrorCode.blobsFull, "Free disk space"));
  assert.deepEqual(incoming(), []);
  assert.deepEqual((await keysOf(blobs)).toSorted(), ["k/one", "k/other"]);
  disk.makeRoom();
  await stage(bytes).place("k/two");
  assert.equal((await blobs.head("k/two"))?.size, bytes.length);
});

test("a read-only disk refuses puts and deletes, and can be read", async (t) => {
  const disk = new SmallDisk(t, "3m");
  const folder = join(disk.folder, "blobs");
  await openBlobs(folder).put("k", bytes);
  assert.equal(spawnSync("mount", ["-o", "remount,ro", disk.folder]).status, 0);
  t.after(() => void spawnSync("mount", ["-o", "remount,rw", disk.folder]));
  const blobs = openBlobs(folder);
  await assert.rejects(blobs.put("other", bytes), says(ErrorCode.blobsReadOnly, "storing other"));
  await assert.rejects(blobs.delete(["k"]), says(ErrorCode.blobsReadOnly, "deleting k"));
  await assert.rejects(blobs.check(), says(ErrorCode.blobsReadOnly));
  assert.deepEqual(Buffer.concat(await Array.fromAsync(blobs.get("k"))), bytes);
});

test("only the last part of the path is created, and a folder that disappears is not made again", async (t) => {
  const folder = place(t);
  const nowhere = openBlobs(join(folder, "no", "blobs"));
  await assert.rejects(nowhere.put("k", bytes), says(ErrorCode.blobsMissing, join(folder, "no", "blobs")));
  mkdirSync(join(folder, "no"));
  await nowhere.put("k", bytes);
  rmSync(join(folder, "no"), { recursive: true });
  await assert.rejects(nowhere.put("k", bytes), says(ErrorCode.blobsMissing, "mount the disk"));
  assert.ok(!existsSync(join(folder, "no")));
});

test("a user without rights is refused with what to do", (t) => {
  const folder = place(t);
  mkdirSync(join(folder, "blobs"), { mode: 0o700 });
  fs.chmodSync(folder, 0o755);
  const program = `
    const { openBlobs } = await import(${JSON.stringify(new URL("../../src/blobs.ts", import.meta.url).href)});
    process.setgid(65534); process.setuid(65534);
    await openBlobs(${JSON.stringify(join(folder, "blobs"))}).put("k", Buffer.from("x")).catch(({ code, message }) => console.log(code, message));`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "--eval", program], {
    encoding: "utf8",
  });
  assert.match(stdout, /^BLOBS_FORBIDDEN .*storing k.*Make this user the owner/, stderr);
});

test("files are 0600 and folders 0700, whatever the umask", async (t) => {
  const before = process.umask(0);
  t.after(() => process.umask(before));
  const folder = join(place(t), "blobs");
  await openBlobs(folder).put("a/b", bytes);
  const mode = (path: string): string => (statSync(path).mode & 0o777).toString(8);
  assert.equal(mode(join(folder, "a", "b")), "600");
  for (const path of [folder, join(folder, "a"), join(folder, ".incoming")]) assert.equal(mode(path), "700");
});

test("a network file system is refused, unless that is asked for", async (t) => {
  const { statfs } = fs.promises;
  t.after(() => {
    fs.promises.statfs = statfs;
    syncBuiltinESMExports();
  });
  fs.promises.statfs = (async (path: string) => Object.assign(await statfs(path), { type: 0x6969 })) as typeof statfs;
  syncBuiltinESMExports();
  const folder = place(t);
  await assert.rejects(openBlobs(folder).put("k", bytes), says(ErrorCode.blobsUnusable, "NFS", "local disk"));
  assert.equal((await fileSystem({ folder, allowNetworkFilesystem: true }).put("k", bytes)).size, 5);
});

test("no symbolic link inside the folder is followed, by any verb; the folder itself may be one", async (t) => {
  const root = place(t);
  const outside = join(root, "outside");
  mkdirSync(outside);
  writeFileSync(join(outside, "secret"), "secret");
  mkdirSync(join(root, "real"));
  symlinkSync(join(root, "real"), join(root, "blobs"));
  const blobs = openBlobs(join(root, "blobs"));
  await blobs.put("k/1", bytes);
  symlinkSync(outside, join(root, "real", "link"));
  symlinkSync(join(outside, "secret"), join(root, "real", "k", "file-link"));
  const refused = says(ErrorCode.blobsUnusable, "symbolic link");
  await assert.rejects(blobs.put("link/x", bytes), refused);
  await assert.rejects(Array.fromAsync(blobs.get("link/secret")), refused);
  await assert.rejects(blobs.head("link/secret"), refused);
  await assert.rejects(blobs.delete(["link/secret"]), refused);
  await assert.rejects(Array.fromAsync(blobs.list("link/")), refused);
  await assert.rejects(Array.fromAsync(blobs.get("k/file-link")), refused);
  assert.equal(await blobs.head("k/file-link"), null);
  assert.deepEqual(await keysOf(blobs), ["k/1"]);
  await blobs.put("k/file-link", bytes);
  assert.deepEqual(readdirSync(outside), ["secret"]);
  assert.equal(fs.readFileSync(join(outside, "secret"), "utf8"), "secret");
});

test("empty folders are removed by deletes, while puts into them go on", async (t) => {
  const folder = place(t);
  const [a, b] = [openBlobs(folder), openBlobs(folder)];
  const rounds = Array.from({ length: 60 }, (_, n) => n);
  await Promise.all([
    ...[0, 1].map(async (lane) => {
      for (const n of rounds) {
        await a.put(`x/y/${lane}-${n}`, bytes);
        await b.delete([`x/y/${lane}-${n}`]);
      }
    }),
    (async () => {
      for (const n of rounds) await b.put(`x/y/kept-${n}`, bytes);
    })(),
  ]);
  assert.equal((await keysOf(a)).length, rounds.length);
  await a.delete(await keysOf(a));
  assert.deepEqual(readdirSync(folder), [".incoming"]);
});

test("a key and a folder of keys exclude each other, with a clear error", async (t) => {
  const blobs = openBlobs(place(t));
  await blobs.put("a/b", bytes);
  await assert.rejects(blobs.put("a", bytes), says(ErrorCode.keyInvalid, "exclude each other"));
  await assert.rejects(blobs.put("a/b/c", bytes), says(ErrorCode.keyInvalid, "exclude each other"));
  assert.deepEqual(await keysOf(blobs), ["a/b"]);
});

test("a stream of 300 MB takes little memory, in and out", async (t) => {
  const folder = place(t);
  const program = `
    const { openBlobs } = await import(${JSON.stringify(new URL("../../src/blobs.ts", import.meta.url).href)});
    const blobs = openBlobs(${JSON.stringify(folder)});
    await blobs.put("warm", Buffer.alloc(1_000_000));
    const before = process.memoryUsage.rss();
    await blobs.put("large", (async function* () { for (let n = 0; n < 300; n++) yield Buffer.alloc(1_000_000, n); })());
    let size = 0;
    for await (const chunk of blobs.get("large")) size += chunk.length;
    console.log(JSON.stringify({ size, grown: process.resourceUsage().maxRSS * 1024 - before }));`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "--eval", program], {
    encoding: "utf8",
  });
  const { size, grown } = JSON.parse(stdout || `"${stderr}"`) as { size: number; grown: number };
  assert.equal(size, 300_000_000);
  t.diagnostic(`${Math.round(grown / 1e6)} MB`);
  assert.ok(grown < 100_000_000, `${grown} bytes`);
});

test("what is read can be verified", async (t) => {
  const blobs = openBlobs(place(t));
  const content = await blobs.put("k", bytes);
  assert.deepEqual(Buffer.concat(await Array.fromAsync(verified(blobs.get("k"), content))), bytes);
  const wrong = { ...content, sha256: "0".repeat(64) };
  await assert.rejects(Array.fromAsync(verified(blobs.get("k"), wrong, "k")), says(ErrorCode.blobChecksum, "blob k"));
  await assert.rejects(Array.fromAsync(verified(blobs.get("k"), { size: 4 }, "k")), says(ErrorCode.blobSize, "blob k"));
});

test("openBlobs takes a folder or a store, and refuses the rest", (t) => {
  const store = openBlobs(place(t));
  assert.equal(openBlobs(store), store);
  for (const given of ["s3://bucket", "https://x", "", null, {}, 7])
    assert.throws(() => openBlobs(given as string), says(ErrorCode.optionInvalid));
  assert.equal(dirname(openBlobs("./blobs").place.replace("the folder ", "")), process.cwd());
});

test("a key has an address that another program can read; those of other stores hold no secret", async (t) => {
  const blobs = fileSystem({ folder: place(t) });
  await blobs.put("a/b-1", Buffer.from("bytes"));
  assert.equal(readFileSync(new URL(`${blobs.uri}a/b-1`), "utf8"), "bytes");
  const key = "AccountKey=c2VjcmV0";
  const connectionString = `DefaultEndpointsProtocol=https;AccountName=acme;${key};EndpointSuffix=core.windows.net`;
  const addresses = [
    s3({ bucket: "jobs", prefix: "blobs/" }).uri,
    azure({ container: "jobs", connectionString }).uri,
    azure({ container: "jobs", connectionString: `AccountName=a;${key};BlobEndpoint=http://127.0.0.1:1/a` }).uri,
    azure({ url: "https://acme.blob.core.windows.net/jobs?sig=secret", prefix: "x/" }).uri,
  ];
  assert.deepEqual(addresses, [
    "s3://jobs/blobs/",
    "https://acme.blob.core.windows.net/jobs/",
    "http://127.0.0.1:1/a/jobs/",
    "https://acme.blob.core.windows.net/jobs/x/",
  ]);
});
