// Holds that docs/api.md names every public export, every member of it and every type that these use, and that each has a sentence: it is
// what editors show.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { API_PAGE, apiPage, type Member, publicNames, undocumented, withoutDefault } from "../scripts/api-docs.ts";

const names = publicNames();

test("every public name, every member of it, inherited or nested, and every type that it uses has a sentence", () => {
  assert.ok(names.length > 300);
  const run = names.find(({ entry, name }) => entry === "outlive" && name === "Run")!;
  assert.ok(
    run.members.some(({ name }) => name === "step"),
    "members of bases that are not exported are listed",
  );
  const { members } = names.find(({ name }) => name === "EnqueueOptions")!;
  assert.ok(
    members.find(({ name }) => name === "debounce?")!.members.some(({ name }) => name === "wait"),
    "members of types that are written in place are listed",
  );
  assert.ok(
    names.some(({ name }) => name === "WatchFolderOptions"),
    "types that are not exported are listed",
  );
  assert.deepEqual(undocumented(names), []);
});

test("an option that may be omitted says what happens then", () => {
  assert.deepEqual(withoutDefault(names), []);
});

test(`${API_PAGE} is what the types say; \`npm run api\` writes it again`, () => {
  const committed = readFileSync(new URL(`../${API_PAGE}`, import.meta.url), "utf8");
  assert.ok(committed === apiPage(names), "the page is old: run `npm run api`");
});

test("an instant in milliseconds says so where editors show it", () => {
  const allOf = (members: readonly Member[]): readonly Member[] =>
    members.flatMap((member) => [member, ...allOf(member.members)]);
  const instants = names.flatMap(({ name, members }) =>
    allOf(members)
      .filter(
        ({ name: member, type }) =>
          /(?:At|Until|Activity|^at|^until|Before|After)\??$/.test(member) && /^number\b/.test(type),
      )
      .map(({ name: member, sentence }) => ({ member: `${name}.${member}`, sentence })),
  );
  assert.ok(instants.length > 20);
  assert.deepEqual(
    instants.filter(({ sentence }) => !/milliseconds since 1970/.test(sentence)).map(({ member }) => member),
    [],
  );
});

test("docs/errors.md has every error code once, with its cause and what to do", () => {
  const page = readFileSync(new URL("../docs/errors.md", import.meta.url), "utf8");
  const rows = [...page.matchAll(/^\| `([A-Z_]+)` *\| (.*?) *\| (.*?) *\|$/gm)].map(([, code, cause, remedy]) => ({
    code: code!,
    cause: cause!,
    remedy: remedy!,
  }));
  const codes = names.find(({ name }) => name === "ErrorCode")!.members;
  assert.deepEqual(
    rows.map(({ code }) => code).toSorted(),
    codes.map(({ type }) => JSON.parse(type) as string).toSorted(),
  );
  for (const { code, cause, remedy } of rows) {
    assert.equal(
      cause,
      codes.find(({ type }) => JSON.parse(type) === code)!.sentence,
      `the cause of ${code} is its comment`,
    );
    assert.match(remedy, /^[A-Z].{20,}\.$/, `${code} says what to do`);
  }
});
