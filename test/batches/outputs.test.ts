// Output files put together from what rows wrote, whatever the texts are: alone, from several parts, out of order, and from programs before this one.
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { assembled, partsOf } from "../../src/batches/outputs.ts";
import { fileSystem } from "../../src/blobs.ts";
import { ErrorCode } from "../../src/index.ts";
import type { Batches } from "../../src/stores/batches.ts";
import { says } from "../engine/engines.ts";
import { Place } from "../support/processes.ts";

/** Each could be taken for the border between two texts of the JSON. */
const TEXTS = [
  "plain\n",
  "",
  ",",
  "\\",
  "\\n",
  '"',
  '"],[5,"',
  "],[5,",
  'x"],[5,',
  "\\\\",
  '\\"],[7,"',
  "ü€\u{1f600}\n",
  "\n",
];

/** The blocks of each round, with the texts of their parts. */
function stored(rounds: readonly (readonly (readonly string[])[])[]): Batches {
  const outputs: Batches["outputs"] = async (_id, round, _file, after, limit) => {
    const from = (after ?? -1) + 1;
    const blocks = rounds[round - 1]!.slice(from, from + limit);
    const last = from + blocks.length - 1;
    return { blocks, next: last + 1 < rounds[round - 1]!.length ? last : null };
  };
  return { outputs, get: async () => [{}] } as unknown as Batches;
}

async function fileOf(rounds: readonly (readonly (readonly string[])[])[]): Promise<string> {
  const chunks = await Array.fromAsync(assembled(stored(rounds), { id: "b", round: rounds.length }, "f"));
  return Buffer.concat(chunks).toString();
}

const part = (lines: readonly (readonly [number, string])[]): string =>
  partsOf(lines.map(([line, text]) => ({ line, texts: [{ file: "f", text }] })))[0]!.texts;

test("every text of every neighbour comes out as it went in", async () => {
  for (const first of TEXTS)
    for (const second of TEXTS) {
      const lines = [first, second, "end\n", first].map((text, i) => [i + 1, text] as const);
      const expected = lines.map(([, text]) => text).join("");
      assert.equal(await fileOf([[[part(lines)]]]), expected);
      assert.equal(await fileOf([[[JSON.stringify(lines)]]]), expected, "a part of a program before this one");
      assert.equal(
        await fileOf([[[part(lines.slice(2)), part(lines.slice(0, 3))]]]),
        expected,
        "two parts, one line in both",
      );
    }
});

test("lines that ended out of order, many blocks, and rows of a later round stand where they belong", async () => {
  const lines = Array.from({ length: 1_000 }, (_, n) => [n + 1, `line ${n + 1}\n`] as const);
  const expected = lines.map(([, text]) => text).join("");
  const blocks = Array.from({ length: 250 }, (_, n) => lines.slice(4 * n, 4 * n + 4));
  assert.equal(await fileOf([blocks.map((block) => [part(block.toReversed())])]), expected);
  assert.equal(await fileOf([blocks.map((block) => [JSON.stringify(block.toReversed())])]), expected);
  const later = blocks.map((block) => block.slice(1, 2));
  const earlier = blocks.map((block) => [...block.slice(0, 1), ...block.slice(2)]);
  assert.equal(await fileOf([earlier, later].map((round) => round.map((block) => [part(block)]))), expected);
});

test("an assembly that goes on when its batch is purged puts no part of a file in the place of the whole", async (t) => {
  const blobs = fileSystem({ folder: join(new Place(t).folder, "blobs") });
  const blocks = Array.from({ length: 250 }, (_, n) => [part([[n + 1, `line ${n + 1}\n`]])]);
  const whole = stored([blocks]);
  const { sha256 } = await blobs.put("out.txt", assembled(whole, { id: "b", round: 1 }, "f"));
  let reads = 0;
  // After the first page there is no such batch, so it has no blocks either.
  const purged: Batches = {
    ...whole,
    get: async () => [],
    outputs: async (...of) => (reads++ === 0 ? whole.outputs(...of) : { blocks: [], next: null }),
  };
  await assert.rejects(
    blobs.put("out.txt", assembled(purged, { id: "b", round: 1 }, "f")),
    says(ErrorCode.notFound, "There is no batch b"),
  );
  assert.equal(reads, 2);
  const kept = Buffer.concat(await Array.fromAsync(blobs.get("out.txt"))).toString();
  assert.equal(kept, await fileOf([blocks]));
  assert.equal(sha256, (await blobs.put("again.txt", assembled(whole, { id: "b", round: 1 }, "f"))).sha256);
});

test("what rows wrote becomes several parts before it is too long for one text, and comes out as it went in", async () => {
  const text = "x".repeat(1 << 20);
  const rows = Array.from({ length: 40 }, (_, n) => ({ line: n + 1, texts: [{ file: "f", text }] }));
  const parts = partsOf(rows).map(({ texts }) => texts);
  assert.deepEqual(
    parts.map((texts) => (JSON.parse(texts) as unknown[]).length),
    [16, 16, 8],
  );
  assert.equal((await fileOf([[parts]])).length, 40 << 20);
});

test("pages of an assembly shrink to one block when blocks are large, and grow again", async () => {
  const text = "x".repeat(1 << 20);
  const large = Array.from({ length: 16 }, (_, n) => partsOf(rowsFrom(n * 8, 8, text)).map(({ texts }) => texts));
  const small = Array.from({ length: 300 }, (_, n) => partsOf(rowsFrom(128 + n, 1, "y")).map(({ texts }) => texts));
  const whole = stored([[...large, ...small]]);
  const limits: number[] = [];
  const counting: Batches = { ...whole, outputs: (...of) => (limits.push(of[4]), whole.outputs(...of)) };
  for await (const _ of assembled(counting, { id: "b", round: 1 }, "f"));
  assert.ok(limits[0]! <= 4 && limits[2] === 1, limits.join(", "));
  assert.equal(limits.at(-1), 100);
});

function rowsFrom(line: number, count: number, text: string): Parameters<typeof partsOf>[0] {
  return Array.from({ length: count }, (_, n) => ({ line: line + n + 1, texts: [{ file: "f", text }] }));
}
