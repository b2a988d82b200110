// The tree of an older commit, in a temporary folder, with the regression tests of this one and what they are built on.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { join } from "node:path";

/** The tests themselves, and the support that they may import. */
const COPIED = ["test/regressions", "test/support", "proof/servers"];

/** A fault of the caller or of the checkout, to be shown as a sentence. */
export class CheckoutError extends Error {}

/** The whole name of a commit. */
export function commitOf(root: string, revision: string): string {
  try {
    return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", `${revision}^{commit}`).trim();
  } catch {
    throw new CheckoutError(`${revision} is not a commit of this repository. Fetch it, or name another one with --at.`);
  }
}

export function checkOut(root: string, commit: string, folder: string): void {
  const archive = join(folder, "tree.tar");
  const tree = treeIn(folder);
  mkdirSync(tree);
  git(root, "archive", "--format=tar", `--output=${archive}`, commit);
  execFileSync("tar", ["-xf", archive, "-C", tree]);
  rmSync(archive);
  if (!existsSync(join(tree, "scripts/test.mjs")))
    throw new CheckoutError(
      `${commit} has no scripts/test.mjs, so its tests can't be run. Name a later commit with --at.`,
    );
  for (const part of COPIED) copyOver(join(root, part), join(tree, part));
}

export function treeIn(folder: string): string {
  return join(folder, "tree");
}

/** Packages are shared with this tree if both have the same; otherwise they are installed. */
export function providePackages(root: string, tree: string, tell: (what: string) => void): void {
  const lock = (folder: string): string => readFileSync(join(folder, "package-lock.json"), "utf8");
  const packages = join(root, "node_modules");
  if (lock(root) === lock(tree)) {
    if (existsSync(packages)) symlinkSync(packages, join(tree, "node_modules"), "junction");
    return;
  }
  tell("Its package-lock.json is another one: installing its packages ...");
  execFileSync("npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"], { cwd: tree, stdio: ["ignore", 2, 2] });
}

/** Regression tests that the commit has itself are not run; of its support, what is not here any more stays. */
function copyOver(from: string, to: string): void {
  if (to.endsWith("regressions")) rmSync(to, { recursive: true, force: true });
  if (existsSync(from)) cpSync(from, to, { recursive: true });
}

function git(root: string, ...args: readonly string[]): string {
  return execFileSync("git", ["-C", root, ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}
