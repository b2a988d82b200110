// What README.md and the pages of docs show compiles: every block of TypeScript, against the sources, with what it takes for granted declared.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { complete } from "./support/granted.ts";

const root = fileURLToPath(new URL("../", import.meta.url));

interface Block {
  readonly page: string;
  readonly text: string;
}

function complaints(blocks: readonly Block[]): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-readme-"));
  try {
    blocks.forEach(({ page, text }, i) => {
      // A block that begins with the name of its file is one that others import.
      const [, name = `${page.replaceAll(/\W/g, "-")}-${i + 1}.ts`] = /^\/\/ ([\w-]+\.ts)\n/.exec(text) ?? [];
      writeFileSync(join(folder, name), complete(page, text));
    });
    symlinkSync(`${root}node_modules`, join(folder, "node_modules"));
    writeFileSync(join(folder, "package.json"), '{"type":"module"}');
    const { exports } = JSON.parse(readFileSync(`${root}package.json`, "utf8")) as {
      exports: Record<string, { types?: string }>;
    };
    const ours = Object.entries(exports).flatMap(([name, { types }]) =>
      types ? [[`outlive${name.slice(1)}`, [types.replace("./dist", `${root}src`).replace(/\.d\.ts$/, ".ts")]]] : [],
    );
    const compilerOptions = {
      paths: Object.fromEntries(ours) as object,
      noUnusedLocals: false,
      noUnusedParameters: false,
    };
    const config = { extends: `${root}tsconfig.json`, compilerOptions, include: [`${folder}/*.ts`] };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(config));
    const tsc = join(root, "node_modules/typescript/bin/tsc");
    const { status, stdout, stderr } = spawnSync(process.execPath, [tsc, "-p", folder, "--pretty", "false"], {
      encoding: "utf8",
      cwd: folder,
    });
    return status === 0 ? "" : stdout + stderr;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

test("every block of TypeScript in README.md and in docs compiles", () => {
  const pages = readdirSync(`${root}docs`).filter((name) => name.endsWith(".md"));
  const blocks = ["README.md", ...pages.map((name) => `docs/${name}`)].flatMap((file) => {
    const text = readFileSync(`${root}${file}`, "utf8");
    return [...text.matchAll(/^```ts\n([^]*?)^```/gm)].map(([, block]) => ({ page: file, text: block! }));
  });
  assert.ok(blocks.length >= 50);
  assert.equal(complaints(blocks), "");
});

test("a block with an option that is not there does not", () => {
  assert.match(
    complaints([{ page: "README.md", text: "await (await engine.start()).stop({ graceMs: 25_000 });" }]),
    /README-md-1\.ts.*graceMs/,
  );
});

/** As the headings of a page are linked on GitHub. */
function anchorsOf(text: string): Set<string> {
  const prose = text.replaceAll(/^```[^]*?^```/gm, "");
  return new Set(
    [...prose.matchAll(/^#+ (.+)$/gm)].map(([, title]) =>
      title!
        .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1")
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N} _-]/gu, "")
        .replaceAll(" ", "-"),
    ),
  );
}

test("every link in README.md and in docs leads to a page and a heading that are there, and docs/README.md lists every page", () => {
  const pages = readdirSync(`${root}docs`).filter((name) => name.endsWith(".md"));
  const broken: string[] = [];
  for (const page of ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", ...pages.map((name) => `docs/${name}`)]) {
    const prose = readFileSync(join(root, page), "utf8").replaceAll(/^```[^]*?^```/gm, "");
    for (const [, target] of prose.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target!)) continue;
      const [path, anchor] = target!.split("#", 2) as [string, string?];
      const file = path === "" ? join(root, page) : join(root, dirname(page), path);
      const isThere = existsSync(file) && (anchor === undefined || anchorsOf(readFileSync(file, "utf8")).has(anchor));
      if (!isThere) broken.push(`${page}: ${target}`);
    }
  }
  assert.deepEqual(broken, []);
  const index = readFileSync(`${root}docs/README.md`, "utf8");
  assert.deepEqual(
    pages.filter((name) => name !== "README.md" && !index.includes(`(${name})`)),
    [],
  );
});
