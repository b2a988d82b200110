// Holds how texts are cut and cleaned before they are stored or shown.
import assert from "node:assert/strict";
import { test } from "node:test";
import { cutText, oneLine, storableText } from "../../src/job/text.ts";

test("a text is cut between code points", () => {
  assert.equal(cutText("abc", 3), "abc");
  assert.equal(cutText("abc", 2), "ab");
  assert.equal(cutText("a😀b", 1), "a");
  assert.equal(cutText("a😀b", 2), "a", "half of the emoji would be left");
  assert.equal(cutText("a😀b", 3), "a😀");
  assert.equal(cutText("😀", 0), "");
});

test("half a surrogate pair becomes U+FFFD and NUL is written out", () => {
  assert.equal(storableText("a\ud83d b\ude00 c\0"), "a\ufffd b\ufffd c\\0");
  assert.equal(storableText("😀"), "😀");
  assert.equal(storableText("\0\0", 3), "\\0\\", "the limit is that of the result");
  assert.equal(storableText("x\ude00\ud83d", 2), "x\ufffd");
});

test("one line holds no control characters", () => {
  assert.equal(
    oneLine("a\nb\tc\r\u001b[31md\u007f\u0085\u009b2J\u2028e"),
    "a\\nb c\\x0d\\x1b[31md\\x7f\\x85\\x9b2J\\u2028e",
  );
});
