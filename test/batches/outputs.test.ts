// Output files put together from what rows wrote, whatever the texts are: alone, from several parts, out of order, and from programs before this one.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assembled, partsOf } from "../../src/batches/outputs.ts";
import type { Batches } from "../../src/stores/batches.ts";

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
  return { outputs } as Batches;
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
