// Checks the list of known bugs: every number is there, has a test or says what it waits for, and its test exists.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { KNOWN_BUGS } from "../../src/testing/known-bugs.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const suite = textOf("src/testing/conformance");
const numbersInTitles = new Set([...suite.matchAll(/["`]known bug (\d+): \w/g)].map(([, number]) => Number(number)));

test("the list of known bugs has the numbers 1 to 42, each once and in order", () => {
  assert.deepEqual(
    KNOWN_BUGS.map(({ number }) => number),
    Array.from({ length: 42 }, (_, i) => i + 1),
  );
});

test("every knownBug is shown somewhere or names the feature that it waits for", () => {
  const neither = KNOWN_BUGS.filter(({ shown, waitsFor }) => shown.length > 0 === (waitsFor !== null));
  assert.deepEqual(neither, []);
});

test("the numbers in the titles of the conformance suite are those that the list of known bugs names", () => {
  const said = KNOWN_BUGS.filter(({ shown }) => shown.some((showing) => showing.suite === "conformance"));
  assert.deepEqual(
    said.map(({ number }) => number),
    [...numbersInTitles].toSorted((a, b) => a - b),
  );
});

test("an knownBug whose number a test carries does not wait for a feature", () => {
  const shown = new Set([...textOf("test").matchAll(/["`]known bug (\d+): \w/g)].map(([, number]) => Number(number)));
  assert.ok(shown.has(19), "on PostgreSQL");
  assert.deepEqual(
    KNOWN_BUGS.filter(({ number, waitsFor }) => shown.has(number) && waitsFor !== null),
    [],
  );
});

test("the tests that the list names outside the conformance suite exist under that title", () => {
  const places = { crash: "test/crash", simulator: "sim", postgres: "test/postgres" };
  for (const { number, shown } of KNOWN_BUGS) {
    for (const showing of shown) {
      if (showing.suite === "conformance") continue;
      const place = places[showing.suite];
      assert.ok(textOf(place).includes(showing.test), `known bug ${number}: "${showing.test}" is not in ${place}`);
    }
  }
});

function textOf(folder: string): string {
  const files = readdirSync(join(root, folder), { recursive: true, encoding: "utf8" });
  return files
    .filter((name) => name.endsWith(".ts"))
    .map((name) => readFileSync(join(root, folder, name), "utf8"))
    .join("\n");
}
