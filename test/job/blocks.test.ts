// How the batch of a block is found in the input of its job, without decoding its rows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batchOfBlock, encodeBlock, isBlockOf } from "../../src/job/batches.ts";

test("a block is of the batch that its input names, and of none whose id only begins like it", () => {
  const block = encodeBlock("one", 1, 0, [{ line: 1, input: '"one\\""' }]);
  assert.equal(batchOfBlock(block), "one");
  for (const other of ["on", "one1", "two", ""]) assert.equal(isBlockOf(block, other), false, other);
  assert.equal(isBlockOf(block, "one"), true);
});
