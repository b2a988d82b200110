// The executable specification of the port of blob stores (blobs/blob-store.ts), registered for one store.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { describe, it, type TestContext } from "node:test";
import type { BlobRange, BlobStore } from "../blobs.ts";
import { ErrorCode, OutliveError } from "../index.ts";

/** An empty blob store for one test. */
export interface ConformanceBlobs {
  /** Opens it again, as another process would. */
  open(): Promise<BlobStore> | BlobStore;
  /** Removes it. */
  cleanup(): Promise<void>;
}

/** Makes an empty blob store for one test. */
export type MakeBlobs = (t: TestContext) => Promise<ConformanceBlobs>;

/** More than one part in every adapter, whose parts have 8 MiB. */
const LARGE = 20 * 1024 * 1024 + 12_345;
/** More than one page of a list in S3. */
const MANY = 1_100;
const BAD_KEYS = [
  "",
  "/a",
  "a/",
  "a//b",
  ".",
  "..",
  "a/../b",
  "../a",
  "a/.b",
  ".incoming/a",
  "A",
  "a b",
  "ä",
  "a\\b",
  "a\0b",
  "a\n",
  `a/${"b".repeat(256)}`,
  "a/".repeat(256) + "b",
];

/** Registers the tests of the port with node:test. `makeBlobs` is called for every test. */
export function blobConformance(name: string, makeBlobs: MakeBlobs): void {
  const specify = (title: string, body: (blobs: BlobStore, further: () => Promise<BlobStore>) => Promise<void>): void =>
    void it(title, async (t) => {
      const place = await makeBlobs(t);
      try {
        await body(await place.open(), async () => await place.open());
      } finally {
        await place.cleanup();
      }
    });
  describe(`${name}: put`, () => specifyPut(specify));
  describe(`${name}: get`, () => specifyGet(specify));
  describe(`${name}: head, delete, list and check`, () => specifyTheRest(specify));
}

type Specify = (title: string, body: (blobs: BlobStore, further: () => Promise<BlobStore>) => Promise<void>) => void;

function specifyPut(specify: Specify): void {
  specify(
    "stores bytes, and returns their size and SHA-256; another process reads the same",
    async (blobs, further) => {
      for (const data of [Buffer.alloc(0), Buffer.from("one"), pattern(300_000)]) {
        const key = `kind/id/1-${sha256(data).slice(0, 16)}`;
        assert.deepEqual(await blobs.put(key, data), { size: data.length, sha256: sha256(data) });
        const other = await further();
        assert.deepEqual(await whole(other, key), data);
        assert.equal((await other.head(key))?.size, data.length);
      }
    },
  );

  specify("stores a stream of unknown size in several parts, whatever its chunks are", async (blobs) => {
    const data = pattern(LARGE);
    const content = { size: LARGE, sha256: sha256(data) };
    for (const sizes of [[LARGE], [1, 0, 65_536, 3_000_001]]) {
      assert.deepEqual(await blobs.put("large", inChunks(data, sizes)), content);
      assert.equal(sha256(await whole(blobs, "large")), content.sha256);
    }
    assert.deepEqual(await blobs.put("as-bytes", data, content), content);
    assert.equal(sha256(await whole(blobs, "as-bytes")), content.sha256);
  });

  specify("stores an empty stream as an empty blob", async (blobs) => {
    assert.deepEqual(await blobs.put("empty", inChunks(Buffer.alloc(0), [])), {
      size: 0,
      sha256: sha256(Buffer.alloc(0)),
    });
    assert.deepEqual(await whole(blobs, "empty"), Buffer.alloc(0));
  });

  specify("copies from a source that reuses its buffer", async (blobs) => {
    const data = pattern(1_000_000);
    const reusing = async function* (): AsyncGenerator<Uint8Array> {
      const buffer = Buffer.alloc(1_000);
      for (let at = 0; at < data.length; at += 1_000) {
        data.copy(buffer, 0, at, at + 1_000);
        yield buffer;
        buffer.fill(0);
      }
    };
    assert.equal((await blobs.put("reused", reusing())).sha256, sha256(data));
    assert.deepEqual(await whole(blobs, "reused"), data);
  });

  specify("shows nothing of a blob before it is whole", async (blobs, further) => {
    const other = await further();
    const rest = Promise.withResolvers<void>();
    const read = Promise.withResolvers<void>();
    const putting = blobs.put(
      "k/slow",
      (async function* () {
        yield pattern(LARGE);
        read.resolve();
        await rest.promise;
        yield Buffer.from("end");
      })(),
    );
    await read.promise;
    assert.equal(await other.head("k/slow"), null);
    assert.deepEqual(await keys(other), []);
    await assert.rejects(whole(other, "k/slow"), code(ErrorCode.blobNotFound));
    rest.resolve();
    await putting;
    assert.equal((await other.head("k/slow"))?.size, LARGE + 3);
  });

  specify("stores nothing if size or checksum differ, and keeps what was there", async (blobs) => {
    const data = pattern(10_000);
    const wrong = "0".repeat(64);
    const cases = [
      [{ size: 9_999 }, ErrorCode.blobSize],
      [{ size: 10_001 }, ErrorCode.blobSize],
      [{ sha256: wrong }, ErrorCode.blobChecksum],
      [{ size: 10_000, sha256: wrong }, ErrorCode.blobChecksum],
    ] as const;
    for (const [expected, error] of cases)
      for (const given of [data, inChunks(data, [1_000])]) {
        await assert.rejects(blobs.put("differs", given, expected), code(error));
        assert.equal(await blobs.head("differs"), null);
      }
    const large = pattern(LARGE);
    await assert.rejects(
      blobs.put("differs", inChunks(large, [100_000]), { sha256: wrong }),
      code(ErrorCode.blobChecksum),
    );
    assert.deepEqual(await keys(blobs), []);
    const content = { size: data.length, sha256: sha256(data) };
    assert.deepEqual(await blobs.put("differs", data, { ...content, sha256: content.sha256.toUpperCase() }), content);
    await assert.rejects(blobs.put("differs", large, { sha256: wrong }), code(ErrorCode.blobChecksum));
    assert.deepEqual(await whole(blobs, "differs"), data);
  });

  specify("rejects with the very error of its source, stores nothing, and keeps what was there", async (blobs) => {
    // As a stream of a file has it: the store's own errors look the same.
    const broken = Object.assign(new Error("the source broke"), { code: "ENOENT", syscall: "read" });
    for (const before of [0, 10, LARGE]) {
      const failing = async function* (): AsyncGenerator<Uint8Array> {
        if (before > 0) yield pattern(before);
        throw broken;
      };
      await assert.rejects(blobs.put("k/broken", failing()), (thrown) => thrown === broken);
      assert.deepEqual(await keys(blobs), []);
    }
    await blobs.put("k/broken", Buffer.from("kept"));
    const failing = async function* (): AsyncGenerator<Uint8Array> {
      yield pattern(LARGE);
      throw broken;
    };
    await assert.rejects(blobs.put("k/broken", failing()), (thrown) => thrown === broken);
    assert.equal((await whole(blobs, "k/broken")).toString(), "kept");
  });

  specify("reads no more of a source whose put has failed, and ends it", async (blobs) => {
    let ended = false;
    let chunks = 0;
    const endless = async function* (): AsyncGenerator<Uint8Array> {
      try {
        for (;;) {
          chunks++;
          yield Buffer.alloc(1_000_000);
        }
      } finally {
        ended = true;
      }
    };
    await assert.rejects(blobs.put("endless", endless(), { size: 30_000_000 }), code(ErrorCode.blobSize));
    assert.ok(ended, "the source was ended");
    assert.ok(chunks < 60, `${chunks} chunks of a megabyte were read`);
  });

  specify("of several puts of one key at once, all resolve and the blob is whole", async (blobs, further) => {
    const [a, b] = [blobs, await further()];
    for (const size of [10_000, LARGE]) {
      const data = pattern(size);
      await Promise.all([a, b, a].map((store) => store.put("k/same", inChunks(data, [70_000]))));
      assert.equal(sha256(await whole(a, "k/same")), sha256(data));
    }
    const others = [pattern(5_000), pattern(6_000).reverse()];
    await Promise.all(others.map((data) => a.put("k/other", data)));
    const found = await whole(b, "k/other");
    assert.ok(
      others.some((data) => data.equals(found)),
      "it is one of the two",
    );
  });

  specify("replaces a blob whole, also by a shorter one", async (blobs) => {
    await blobs.put("k", pattern(100_000));
    await blobs.put("k", Buffer.from("short"));
    assert.equal((await whole(blobs, "k")).toString(), "short");
  });

  specify("refuses what is not bytes, and what can't be expected", async (blobs) => {
    for (const data of ["text", null, 7, [1, 2]] as unknown as Uint8Array[])
      await assert.rejects(blobs.put("k", data), code(ErrorCode.optionInvalid));
    const texts = async function* (): AsyncGenerator<Uint8Array> {
      yield "text" as unknown as Uint8Array;
    };
    await assert.rejects(blobs.put("k", texts()), code(ErrorCode.optionInvalid));
    for (const expected of [{ size: -1 }, { size: 1.5 }, { sha256: "abc" }])
      await assert.rejects(blobs.put("k", Buffer.from("x"), expected), code(ErrorCode.optionInvalid));
    assert.deepEqual(await keys(blobs), []);
  });

  specify("takes the longest key, and every verb refuses one that is not a key", async (blobs) => {
    const longest = `${"a".repeat(255)}/${"b".repeat(254)}/1`;
    assert.equal(longest.length, 512);
    await blobs.put(longest, Buffer.from("x"));
    assert.deepEqual(await keys(blobs), [longest]);
    assert.equal((await whole(blobs, longest)).toString(), "x");
    for (const key of BAD_KEYS) {
      await assert.rejects(blobs.put(key, Buffer.from("x")), code(ErrorCode.keyInvalid), key);
      await assert.rejects(whole(blobs, key), code(ErrorCode.keyInvalid), key);
      await assert.rejects(blobs.head(key), code(ErrorCode.keyInvalid), key);
      await assert.rejects(blobs.delete([longest, key]), code(ErrorCode.keyInvalid), key);
    }
    for (const prefix of ["/", "..", "a/../", ".", "A", "a//"])
      await assert.rejects(keys(blobs, prefix), code(ErrorCode.keyInvalid), prefix);
    assert.deepEqual(await keys(blobs), [longest], "a delete with a bad key deletes nothing");
  });
}

function specifyGet(specify: Specify): void {
  specify("returns a range as `slice` does", async (blobs) => {
    const data = pattern(1_000_000);
    await blobs.put("k/ranges", data);
    const ranges: BlobRange[] = [
      {},
      { start: 0 },
      { end: 1 },
      { start: 999_999 },
      { start: 10, end: 10 },
      { start: 300_000, end: 700_001 },
      { start: 999_990, end: 2_000_000 },
      { start: 1_000_000 },
      { start: 5_000_000, end: 6_000_000 },
      { end: 0 },
    ];
    for (const range of ranges)
      assert.deepEqual(
        await whole(blobs, "k/ranges", range),
        data.subarray(range.start, range.end),
        JSON.stringify(range),
      );
    await blobs.put("k/empty", Buffer.alloc(0));
    assert.deepEqual(await whole(blobs, "k/empty", { start: 0, end: 10 }), Buffer.alloc(0));
    for (const range of [{ start: -1 }, { start: 2, end: 1 }, { start: 0.5 }, { end: Number.NaN }])
      await assert.rejects(whole(blobs, "k/ranges", range), code(ErrorCode.optionInvalid));
  });

  specify("throws BLOB_NOT_FOUND at the first read, also for an empty range", async (blobs) => {
    await blobs.put("k/there", Buffer.from("x"));
    for (const key of ["k/not-there", "no-folder/k", "k/there-not"])
      for (const range of [{}, { start: 5, end: 5 }, { start: 1, end: 2 }])
        await assert.rejects(whole(blobs, key, range), (thrown) => {
          code(ErrorCode.blobNotFound)(thrown);
          assert.ok((thrown as Error).message.includes(key) && (thrown as Error).message.includes(blobs.place));
          return true;
        });
  });

  specify("may be left early, again and again", async (blobs) => {
    await blobs.put("k", pattern(LARGE));
    for (let n = 0; n < 30; n++)
      for await (const chunk of blobs.get("k")) {
        assert.ok(chunk.length > 0);
        break;
      }
    assert.equal((await whole(blobs, "k")).length, LARGE);
  });
}

function specifyTheRest(specify: Specify): void {
  specify("head: null for what is not there, and when the blob was put", async (blobs) => {
    const before = await stamp(blobs, "k/1");
    assert.ok(Number.isInteger(before) && before > Date.UTC(2020), String(before));
    assert.ok((await stamp(blobs, "k/2")) >= before, "of two blobs the later is not older");
    assert.equal(await blobs.head("k/3"), null);
    assert.equal(await blobs.head("k"), null);
    assert.equal(await blobs.head("other/1"), null);
  });

  specify("delete: removes those and no others; what is not there is not an error", async (blobs) => {
    for (const key of ["a/1", "a/2", "a/b/1", "b/1"]) await blobs.put(key, Buffer.from(key));
    await blobs.delete([]);
    await blobs.delete(["a/1", "a/b/1", "a/none", "none/1", "a/1"]);
    assert.deepEqual(await keys(blobs), ["a/2", "b/1"]);
    await assert.rejects(whole(blobs, "a/1"), code(ErrorCode.blobNotFound));
    await blobs.delete(["a/b/1", "a/2", "b/1"]);
    assert.deepEqual(await keys(blobs), []);
    await blobs.put("a/b/1", Buffer.from("again"));
    assert.deepEqual(await keys(blobs), ["a/b/1"]);
  });

  specify("list: by prefix, each blob once, with sizes, over several pages", async (blobs) => {
    const odd = ["m", "m-1", "m.1", "m0/1", "m0/2", "m_", "n/1", "n/10", "n/2", "n/a/1", "n-a"].sort();
    for (const key of odd) await blobs.put(key, Buffer.from(key));
    assert.deepEqual(await keys(blobs), odd);
    for (const prefix of ["m", "m0", "m0/", "n", "n/", "n/1", "n/a", "n/a/", "n/a/1", "z", "z/", "m/"])
      assert.deepEqual(
        await keys(blobs, prefix),
        odd.filter((key) => key.startsWith(prefix)),
        prefix,
      );
    const many = Array.from({ length: MANY }, (_, n) => `many/${String(n).padStart(5, "0")}`);
    const left = many.values();
    const lane = async (): Promise<void> => {
      for (const key of left) await blobs.put(key, Buffer.from(key));
    };
    await Promise.all(Array.from({ length: 8 }, lane));
    const found: string[] = [];
    for await (const { key, size, modifiedAt } of blobs.list("many/")) {
      assert.equal(size, key.length);
      assert.ok(modifiedAt > Date.UTC(2020));
      found.push(key);
    }
    assert.deepEqual(found.sort(), many);
    for await (const { key } of blobs.list("many/")) {
      assert.ok(key.startsWith("many/"));
      break;
    }
    await blobs.delete(many);
    assert.deepEqual(await keys(blobs), odd);
  });

  specify("check: says where it is, and leaves nothing", async (blobs) => {
    const { place, facts } = await blobs.check();
    assert.equal(place, blobs.place);
    assert.ok(Object.keys(facts).length > 0);
    assert.deepEqual(await keys(blobs), []);
  });
}

async function stamp(blobs: BlobStore, key: string): Promise<number> {
  await blobs.put(key, Buffer.from(key));
  return (await blobs.head(key))!.modifiedAt;
}

async function whole(blobs: BlobStore, key: string, range?: BlobRange): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of blobs.get(key, range)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

async function keys(blobs: BlobStore, prefix?: string): Promise<string[]> {
  const found: string[] = [];
  for await (const { key } of blobs.list(prefix)) found.push(key);
  return found.sort();
}

/** Bytes that repeat with no power of two, so that parts in the wrong order differ. */
function pattern(size: number): Buffer {
  const data = Buffer.alloc(size);
  for (let at = 0; at < size; at++) data[at] = (at * 31 + (at >> 8) * 7 + (at >> 16)) & 0xff;
  return data;
}

/** In chunks of these sizes, the last of which repeats. */
async function* inChunks(data: Buffer, sizes: readonly number[]): AsyncGenerator<Uint8Array> {
  for (let at = 0, n = 0; at < data.length; n++) {
    const size = sizes[Math.min(n, sizes.length - 1)]!;
    yield data.subarray(at, at + size);
    at += size;
  }
}

function sha256(data: Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

function code(expected: ErrorCode): (thrown: unknown) => true {
  return (thrown) => {
    assert.ok(thrown instanceof OutliveError, `${String(thrown)} is not an error of Outlive`);
    assert.equal(thrown.code, expected, thrown.message);
    assert.ok(thrown.hint.length > 0);
    return true;
  };
}
