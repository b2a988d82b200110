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
  assert.equal(readFileSync(new URL(`../${API_PAGE}`, import.meta.url), "utf8"), apiPage(names));
});

test("an instant in milliseconds says so where editors show it", () => {
  const instants = names.flatMap(({ name, members }) =>
    members
      .filter(({ name: member, type }) => /(?:At|^at)$/.test(member) && /^number\b/.test(type))
      .map(({ name: member, sentence }) => ({ member: `${name}.${member}`, sentence })),
  );
  assert.ok(instants.length > 20);
  assert.deepEqual(
    instants.filter(({ sentence }) => !/milliseconds since 1970/.test(sentence)).map(({ member }) => member),
    [],
  );
});
