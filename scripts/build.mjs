// Builds dist, from nothing: what `npm pack` publishes. The declarations keep their comments, which editors show; the code does not, because
// comments were 90 KB of its 645. Declarations that no entry point of the exports map reaches are removed, because no program can import them.
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../", import.meta.url));
const dist = join(root, "dist");

rmSync(dist, { recursive: true, force: true });
const tsc = join(root, "node_modules/typescript/bin/tsc");
const status = compile("--removeComments", "--declaration", "false") || compile("--emitDeclarationOnly");
if (status === 0) removeUnreachableDeclarations();
process.exitCode = status;

/** @param {string[]} options */
function compile(...options) {
  const args = [tsc, "-p", "tsconfig.build.json", ...options];
  return spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" }).status ?? 1;
}

function removeUnreachableDeclarations() {
  /** @type {{ exports: Record<string, string | { types: string }> }} */
  const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  /** @type {Set<string>} */
  const reached = new Set();
  for (const target of Object.values(manifest.exports))
    if (typeof target !== "string") reach(join(root, target.types), reached);
  for (const name of readdirSync(dist, { recursive: true, encoding: "utf8" }))
    if (name.endsWith(".d.ts") && !reached.has(join(dist, name))) rmSync(join(dist, name));
}

/**
 * @param {string} file
 * @param {Set<string>} reached
 */
function reach(file, reached) {
  if (reached.has(file)) return;
  reached.add(file);
  for (const [, specifier = ""] of readFileSync(file, "utf8").matchAll(
    /\b(?:from|import)\b\s*\(?\s*["'](\.[^"']+)["']/g,
  ))
    reach(join(dirname(file), specifier.replace(/\.[jt]s$/, ".d.ts")), reached);
}
