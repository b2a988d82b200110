// Holds that what readers see of the settings is what the tables say, and that the tables are whole.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { derivedFiles } from "../scripts/settings-docs.ts";
import { BATCH_OPTIONS, COLLECTION_OPTIONS, KIND_OPTIONS } from "../src/engine/kind-options.ts";
import { accepts } from "../src/engine/option-checks.ts";
import { defaultIn, PROGRAM_OPTIONS, type Setting, SETTINGS, WORKER_OPTIONS } from "../src/engine/settings.ts";

const TABLES: Readonly<Record<string, Readonly<Record<string, Setting>>>> = {
  SETTINGS,
  PROGRAM_OPTIONS,
  WORKER_OPTIONS,
  KIND_OPTIONS,
  BATCH_OPTIONS,
  COLLECTION_OPTIONS,
};

for (const { path, text } of derivedFiles()) {
  test(`${path} says of every option what its table says; \`npm run settings\` writes it again`, () => {
    assert.equal(readFileSync(new URL(`../${path}`, import.meta.url), "utf8"), text);
  });
}

for (const [name, table] of Object.entries(TABLES)) {
  test(`every row of ${name} has a sentence and a default that it takes itself`, () => {
    for (const [key, row] of Object.entries(table)) {
      assert.match(row.sentence, /^["`A-Z][^]*\.$|\.\.\.$/, key);
      for (const store of ["sqlite", "postgres"] as const) {
        const value = defaultIn(row, store);
        if (value === null) assert.ok(row.otherwise, `${key} says what holds without a default`);
        else assert.ok(accepts(row, value), `${key} takes its default ${JSON.stringify(value)} on ${store}`);
      }
    }
  });
}

test("every setting has a variable of its own, named after its group", () => {
  const variables = Object.entries(SETTINGS).map(([key, { env }]) => {
    assert.ok(env.startsWith(`OUTLIVE_${key.split(".")[0]!.toUpperCase()}`), key);
    return env;
  });
  assert.equal(new Set(variables).size, variables.length);
});
