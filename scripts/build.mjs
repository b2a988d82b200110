// Builds dist, from nothing: what `npm pack` publishes. The declarations keep their comments, which editors show; the code does not, because
// comments were 90 KB of its 645. Declarations that no entry point of the exports map reaches are removed, because no program can name them.
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { keepReachable } from "./declarations.mjs";

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
  const entries = Object.values(manifest.exports).flatMap((target) =>
    typeof target === "string" ? [] : [join(root, target.types)],
  );
  const all = readdirSync(dist, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".d.ts"));
  keepReachable(
    entries,
    all.map((name) => join(dist, name)),
  );
}
