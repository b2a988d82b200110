// Holds that docs/api.md names every public export and every member of it, and that each has a sentence: it is what editors show.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { API_PAGE, apiPage, publicNames, undocumented } from "../scripts/api-docs.ts";

const names = publicNames();

test("every public name and every member of it has a sentence", () => {
  assert.ok(names.length > 100);
  assert.deepEqual(undocumented(names), []);
});

test(`${API_PAGE} is what the types say; \`npm run api\` writes it again`, () => {
  const committed = readFileSync(new URL(`../${API_PAGE}`, import.meta.url), "utf8");
  assert.ok(committed === apiPage(names), "the page is old: run `npm run api`");
});

test("an instant in milliseconds says so where editors show it", () => {
  const instants = names.flatMap(({ name, members }) =>
    members
      .filter(({ name: member, type }) => /(?:At|Until|Activity|^at)$/.test(member) && /^number\b/.test(type))
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
