// Holds the version that workers register to the package's, and the error codes to their documentation and use.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ErrorCode } from "../src/job/errors.ts";
import { VERSION } from "../src/platform/identity.ts";

const root = fileURLToPath(new URL("../", import.meta.url));
const errorsText = readFileSync(`${root}src/job/errors.ts`, "utf8");
const sources = readdirSync(`${root}src`, { recursive: true, encoding: "utf8" })
  .filter((path) => path.endsWith(".ts") && path !== "job/errors.ts")
  .map((path) => readFileSync(`${root}src/${path}`, "utf8"));

test("the version is the package's", () => {
  const manifest = JSON.parse(readFileSync(`${root}package.json`, "utf8")) as { version: string };
  assert.equal(VERSION, manifest.version);
});

for (const [name, code] of Object.entries(ErrorCode)) {
  test(`the error code ${code} is documented by a sentence right above it`, () => {
    assert.match(errorsText, new RegExp(String.raw`\n {2}/\*\* [A-Z].+\. \*/\n {2}${name}: "${code}",\n`));
  });

  test(`the error code ${code} is thrown somewhere`, () => {
    const use = new RegExp(String.raw`\bErrorCode\.${name}\b`);
    assert.ok(
      sources.some((text) => use.test(text)),
      `nothing in src uses ErrorCode.${name}`,
    );
  });
}
