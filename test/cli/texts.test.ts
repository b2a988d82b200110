// Holds the small parts that the commands' texts are made of: tables, words, and where a text stops being JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { whyLines } from "../../src/cli/commands/job.ts";
import { jsonFault } from "../../src/cli/context.ts";
import { noSuchKind } from "../../src/cli/lookup.ts";
import { grid, type Pen } from "../../src/cli/terminal.ts";
import { count, cut, cutFront, oneLine, widthOf } from "../../src/cli/words.ts";
import { humanBytes, shellWord } from "../../src/job/text.ts";

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

test("a last column that wraps continues on the next line, with whole words where they fit, and nothing is cut", () => {
  const columns = [{ title: "AT" }, { title: "WHAT", shrinkTo: 10, wraps: true as const }];
  const rows = [["00:01", `its worker died ${"x".repeat(25)} (crash 1)`]];
  assert.deepEqual(grid(pen(21), columns, rows), [
    "AT     WHAT",
    "00:01  its worker",
    "       died",
    "       xxxxxxxxxxxxx",
    "       xxxxxxxxxxxx",
    "       (crash 1)",
  ]);
  assert.equal(grid(pen(21, false), columns, rows).length, 2);
});

test("a path is cut at its beginning", () => {
  assert.equal(cutFront("/srv/app/outlive.db", 12), "…/outlive.db");
  assert.equal(cutFront("outlive.db", 12), "outlive.db");
  assert.equal(cutFront("/日本/a.db", 7), "…/a.db");
});

test("why says the cause in its first line unless the sentence says it all, and wraps at the terminal's width", () => {
  const explained = {
    jobId: "01m7p0108gchfhf4vxsfm0",
    kind: "hello",
    state: "running",
    because: "running",
    text: "It has run for 5.5s (attempt 2) in worker vm-28003-mwldadph-1023c177, whose last heartbeat was 13.1s ago; last step second-8; deadline in 4.9m.",
    next: "",
    details: {},
  } as const;
  const lines = whyLines(explained, pen(80));
  assert.deepEqual(lines, [
    "Job 01m7p0108gchfhf4vxsfm0 (hello) is running",
    "It has run for 5.5s (attempt 2) in worker vm-28003-mwldadph-1023c177, whose",
    "last heartbeat was 13.1s ago; last step second-8; deadline in 4.9m.",
  ]);
  const waiting = {
    ...explained,
    state: "queued",
    because: "not-due",
    text: "It is due in 5m.",
    next: "Wait.",
  } as const;
  assert.deepEqual(whyLines(waiting, pen(80)), [
    "Job 01m7p0108gchfhf4vxsfm0 (hello) is queued: not-due",
    "It is due in 5m.",
    "Next: Wait.",
  ]);
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
  assert.deepEqual(
    [humanBytes(0), humanBytes(999), humanBytes(1_500), humanBytes(264_126_464)],
    ["0 B", "999 B", "1.5 kB", "264 MB"],
  );
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
