// Every requirement of the first queue is held by a test that names it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  allTitlesOf,
  BATCH_IDS,
  COLLECTION_IDS,
  IDS,
  namedTitles,
  requirements,
  titlesOf,
} from "./support/requirements.ts";

test("the seed has 104 requirements, criteria and tests, each once", () => {
  assert.equal(IDS.length, 104);
  assert.equal(new Set(IDS).size, 104);
  assert.deepEqual([IDS[0], IDS[69], IDS[70], IDS.at(-1)], ["FR-001", "FR-070", "NFR-001", "IT-004"]);
});

test("each of them is named by the title of a test", () => {
  const missing = requirements().filter(({ tests }) => tests.length === 0);
  assert.deepEqual(
    missing.map(({ id }) => id),
    [],
  );
});

test("docs/requirements.md explains every id that the title of a test begins with", () => {
  const page = readFileSync(new URL("../docs/requirements.md", import.meta.url), "utf8");
  const explained = new Set([...page.matchAll(/^\| ([A-Z]+-\d+) +\| \S/gm)].map(([, id]) => id!));
  const named = new Set([...IDS, ...namedTitles().flatMap(({ ids }) => ids)]);
  assert.deepEqual(
    [...named].filter((id) => !explained.has(id)),
    [],
  );
});

test("each requirement of the batch arrangement is there once, is named by the title of a test, and no title names another", () => {
  assert.deepEqual(
    BATCH_IDS,
    Array.from({ length: 32 }, (_, i) => `BR-${String(i + 1).padStart(3, "0")}`),
  );
  assert.deepEqual(
    requirements(BATCH_IDS)
      .filter(({ tests }) => tests.length === 0)
      .map(({ id }) => id),
    [],
  );
  const named = new Set(namedTitles().flatMap(({ ids }) => ids.filter((id) => id.startsWith("BR-"))));
  assert.deepEqual([...named].toSorted(), BATCH_IDS);
});

test("each requirement of BigResultHandler is named by the title of a test in each file that its row names, and no title names another", () => {
  const page = readFileSync(new URL("../docs/requirements.md", import.meta.url), "utf8");
  const rows = [...page.matchAll(/^\| (CR-\d\d) +\|[^|]*\| *([^|]*?) *\|$/gm)];
  assert.deepEqual(
    rows.map(([, id]) => id),
    COLLECTION_IDS,
  );
  assert.equal(new Set(COLLECTION_IDS).size, 33);
  const held = new Map(requirements(COLLECTION_IDS).map(({ id, tests }) => [id, tests.map(({ file }) => file)]));
  for (const [, id, where] of rows) {
    const files = [...where!.matchAll(/`([^`]+)`/g)].map(([, file]) => file!);
    assert.ok(files.length > 0, `${id} names a file`);
    for (const file of files) assert.ok(held.get(id!)?.includes(file), `${id}: no title of ${file} names it`);
  }
  const named = new Set(namedTitles().flatMap(({ ids }) => ids.filter((id) => id.startsWith("CR-"))));
  assert.deepEqual([...named].toSorted(), COLLECTION_IDS);
});

test("only titles count: an id in a comment, in a later word or in another text holds nothing", () => {
  const ids = (text: string): readonly string[] => titlesOf("a.ts", text).flatMap((title) => title.ids);
  assert.deepEqual(ids('test("FR-001 NFR-002 recovery runs", () => {});'), ["FR-001", "NFR-002"]);
  assert.deepEqual(ids("specify(\n  `FR-003 a ${kind} is told`, async () => {});"), ["FR-003"]);
  assert.deepEqual(ids('// FR-001\ntest("recovery of FR-001", () => {});\nconst text = "FR-004 is here";'), []);
  assert.deepEqual(ids('latest("FR-001 is no test");'), []);
});

test("each requirement about workers in Redis names a test that is there", () => {
  const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), "utf8");
  const rows = [...read("docs/requirements.md").matchAll(/^\| (RL-\d\d) \|[^|]*\| `([^`]+)` *\| ([^|]*?) *\|$/gm)];
  assert.equal(rows.length, 12);
  for (const [, id, file, title] of rows)
    assert.ok(
      allTitlesOf(read(file!)).some((one) => one.includes(title!)),
      `${id}: ${file} has a test "${title}"`,
    );
});

test("only a test or a case that runs has a title: a comment and another text have none", () => {
  assert.deepEqual(allTitlesOf('test("a", f);\nfor (const b of c)\n  specify(`b ${b} "c"`, f);'), ["a", 'b ${b} "c"']);
  assert.deepEqual(allTitlesOf('// test("a", f);\ntest.skip("b", f);\nconst c = "c";'), []);
});

test("each requirement of the HTTP queue is named by the title of a test in the file that its row names", () => {
  const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), "utf8");
  const rows = [...read("docs/requirements.md").matchAll(/^\| (HR-\d\d) \|[^|]*\| `([^`]+)` *\|$/gm)];
  assert.equal(rows.length, 22);
  for (const [, id, file] of rows) {
    const title = new RegExp(`\\b(?:test|specify)\\(\\s*["\`](?:HR-\\d\\d )*${id} `);
    assert.match(read(file!), title, `${id}: no title of ${file} names it`);
  }
});

test("each requirement of the executor's queue names a test that is there", () => {
  const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), "utf8");
  const [, section = ""] = read("docs/requirements.md").split("## The executor's queue on PostgreSQL");
  const rows = [...section.split("\n## ")[0]!.matchAll(/^\| [^|]+ \| ([^|]+?) *\|$/gm)].slice(1);
  const titles = rows.map(([, title]) => title!).filter((title) => !title.startsWith("---"));
  assert.equal(titles.length, 11);
  const tests = read("test/postgres-sql/seed.test.ts");
  for (const title of titles) assert.ok(tests.includes(`test("${title}`), title);
});
