// A comment or a page that names a source file names one that is there.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { posix } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { commentsOf } from "./support/source-text.ts";

const root = fileURLToPath(new URL("../", import.meta.url));
/** Also what is not committed yet. */
const files = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard"], {
  cwd: root,
  encoding: "utf8",
})
  .split("\n")
  .filter((path) => path !== "");
const paths = new Set(files);

/** Files of users and of other tools, patterns, and what a build makes. */
const NOT_OURS =
  /^(outlive\.config\.m?(ts|js)|app\.mts|\.\/jobs\.ts|(.*\/)?(jobs|tasks)\/.*|cNN-.*|.*\.d\.ts|dist\/.*)$/;

/** The names of source files in a text that are not names of files here. `at` is the folder from which relative ones count. */
function missingIn(text: string, at: string): string[] {
  const named = text.match(/(?<![\w*@{}$./-])(?:\.{1,2}\/)*[\w-][\w./-]*\.(?:ts|mts|mjs)\b(?!\w)/g) ?? [];
  return [...new Set(named)].filter((name) => !NOT_OURS.test(name) && !isHere(name, at));
}

function isHere(name: string, at: string): boolean {
  if (paths.has(posix.join(at, name)) || paths.has(name)) return true;
  return !name.startsWith(".") && files.some((path) => path.endsWith(`/${name}`));
}

for (const room of ["src", "proof", "scripts", "test"]) {
  test(`every source file that a comment in ${room} names exists`, () => {
    const sources = files.filter((path) => path.startsWith(`${room}/`) && /\.m?ts$|\.mjs$/.test(path));
    assert.ok(sources.length > 0);
    assert.deepEqual(
      sources.flatMap((path) =>
        missingIn(commentsOf(readFileSync(root + path, "utf8")), posix.dirname(path)).map(
          (name) => `${path} names ${name}`,
        ),
      ),
      [],
    );
  });
}

test("every source file that a page names exists", () => {
  const pages = files.filter((path) => path.endsWith(".md") && !path.startsWith("docs/scoreboard"));
  assert.ok(pages.includes("ARCHITECTURE.md"));
  assert.deepEqual(
    pages.flatMap((path) =>
      missingIn(readFileSync(root + path, "utf8"), posix.dirname(path)).map((name) => `${path} names ${name}`),
    ),
    [],
  );
});

test("a file that is not there is noticed, with and without its folder; files of users are not ours", () => {
  const text = "// as gone.ts, src/engine/gone.ts, engine.ts, src/engine/engine.ts and outlive.config.ts say";
  assert.deepEqual(missingIn(text, "src/engine"), ["gone.ts", "src/engine/gone.ts"]);
});
