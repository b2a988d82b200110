// Holds the small parts that the commands' texts are made of: tables, words, and where a text stops being JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { jsonFault } from "../../src/cli/context.ts";
import { noSuchKind } from "../../src/cli/lookup.ts";
import { grid, type Pen } from "../../src/cli/terminal.ts";
import { bytes, count, cut, oneLine, widthOf } from "../../src/cli/words.ts";
import { shellWord } from "../../src/job/text.ts";

const pen = (columns: number, isTty = true): Pen => ({ style: (_, text) => text, columns, isTty });

test("a table is cut to the terminal where it may be, and never without one", () => {
  const columns = [
    { title: "A", shrinkTo: 4 },
    { title: "N", align: "right" as const },
    { title: "B", shrinkTo: 4 },
  ];
  const rows = [["a".repeat(20), 7, "b".repeat(30)]];
  assert.deepEqual(grid(pen(30), columns, rows), ["A             N  B", `${"a".repeat(11)}…  7  ${"b".repeat(11)}…`]);
  assert.deepEqual(grid(pen(30, false), columns, rows)[1], `${"a".repeat(20)}  7  ${"b".repeat(30)}`);
});

test("wide characters take two columns, and none is cut in two", () => {
  assert.equal(widthOf("日本"), 4);
  assert.equal(widthOf("a🙂"), 3);
  assert.equal(cut("日本語", 4), "日…");
  assert.equal(cut("👩‍👩‍👧abc", 4), "👩‍👩‍👧a…");
  assert.equal(cut("abc", 3), "abc");
});

test("one line has no control characters and no breaks", () => {
  assert.equal(oneLine(" a\n\tb \u0007\u001b[31mc "), "a b \\x07\\x1b[31mc");
});

test("amounts", () => {
  assert.deepEqual([bytes(0), bytes(999), bytes(1_500), bytes(264_126_464)], ["0 B", "999 B", "1.5 kB", "264 MB"]);
  assert.deepEqual([count(1, "job"), count(1_200, "job"), count(2, "is", "are")], ["1 job", "1,200 jobs", "2 are"]);
});

test("a word for the shell is quoted only if it must be", () => {
  assert.deepEqual([shellWord("video/render"), shellWord("it's a b")], ["video/render", `'it'\\''s a b'`]);
});

test("a kind that is a few keystrokes away is offered, otherwise all are", () => {
  assert.equal(noSuchKind("mial", ["mail", "render"]).hint, "Did you mean mail?");
  assert.equal(noSuchKind("something", ["mail", "render"]).hint, "There are: mail, render.");
  assert.equal(noSuchKind("x", []).hint, "There are: none yet.");
});

test("where a text stops being JSON, as the runtime itself judges", () => {
  const at: readonly (readonly [string, number | null])[] = [
    ['{"a":1,"b":tru}', 11],
    ['{"a":"x', 7],
    ["[1,2,]", 5],
    ["", 0],
    ['{"a":1} x', 8],
    ["{a:1}", 1],
    ['"\\x"', 1],
    ['{"a" 1}', 5],
    ["01", 0],
    ["1.", 0],
    ["nul", 0],
    ['"tab\there"', 4],
    ["[1 2]", 3],
    ['{"a":[{"b":null},-1.5e+3,"\\u00e9\\n",true]}', null],
    [" [ ] ", null],
    ['"\u007f日"', null],
  ];
  for (const [text, fault] of at) {
    assert.equal(jsonFault(text), fault, text);
    let valid = true;
    try {
      JSON.parse(text);
    } catch {
      valid = false;
    }
    assert.equal(valid, fault === null, text);
  }
});
