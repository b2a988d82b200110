// What README.md shows compiles: every block of TypeScript, against the sources, with what it takes for granted declared.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../", import.meta.url));

/** What a block may use without having said where it is from; only what it does not import or declare itself is added. */
const GRANTED: Readonly<Record<string, string>> = {
  engine: 'declare const engine: import("outlive").Engine;',
  open: 'const { open } = await import("outlive");',
  sqlite: 'declare const sqlite: typeof import("outlive/sqlite").sqlite;',
  id: "declare const id: string;",
  asyncIterableOfInputs: "declare const asyncIterableOfInputs: AsyncIterable<{ orderId: string }>;",
  invoice: 'const invoice = (await import("outlive")).job<{ orderId: string }>("invoice");',
  transfer: 'const transfer = (await import("outlive")).job<{ amount: number; from: string; to: string }>("transfer");',
};

function complete(block: string): string {
  const missing = Object.entries(GRANTED).filter(
    ([name]) => !new RegExp(`(const|let|using|import \\{[^}]*?)\\s${name}\\b`).test(block),
  );
  return [...missing.map(([, declaration]) => declaration), block, "export {};"].join("\n");
}

function complaints(blocks: readonly string[]): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-readme-"));
  try {
    blocks.forEach((block, i) => writeFileSync(join(folder, `block-${i + 1}.ts`), complete(block)));
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

test("every block of TypeScript in README.md and the guide compiles", () => {
  const blocks = ["README.md", "docs/guide.md"].flatMap((file) => {
    const text = readFileSync(`${root}${file}`, "utf8");
    return [...text.matchAll(/^```ts\n([^]*?)^```/gm)].map(([, block]) => block!);
  });
  assert.ok(blocks.length >= 6);
  assert.equal(complaints(blocks), "");
});

test("a block with an option that is not there does not", () => {
  assert.match(complaints(["await (await engine.start()).stop({ graceMs: 25_000 });"]), /block-1\.ts.*graceMs/);
});
