// The tree of an older commit in a temporary folder, with the packages it needs. Shared by the tools that run this repository's code
// against its own past: `npm run regressions -- --at REV`, `npm run bench -- --against REV` and
// `npm run torture -- --previous`.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";

/** A fault of the caller or of the checkout, to be shown as a sentence. */
export class CheckoutError extends Error {}

/** The whole name of a commit. */
export function commitOf(root: string, revision: string): string {
  try {
    return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", `${revision}^{commit}`).trim();
  } catch {
    throw new CheckoutError(`${revision} is not a commit of this repository. Fetch it, or name another one.`);
  }
}

/** Writes the files of the commit into a new folder in `folder` and returns its path. */
export function checkOut(root: string, commit: string, folder: string, name = "tree"): string {
  const archive = join(folder, `${name}.tar`);
  const tree = join(folder, name);
  mkdirSync(tree);
  git(root, "archive", "--format=tar", `--output=${archive}`, commit);
  execFileSync("tar", ["-xf", archive, "-C", tree]);
  rmSync(archive);
  return tree;
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

/**
 * What its programs need at run time. Drivers, which a user installs, are those of this tree: they are found above the checkout.
 */
export function provideRuntime(root: string, tree: string): void {
  const flags = ["--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
  execFileSync("npm", ["ci", ...flags], { cwd: tree, stdio: ["ignore", 2, 2] });
  symlinkSync(join(root, "node_modules"), join(dirname(tree), "node_modules"), "junction");
}

function git(root: string, ...args: readonly string[]): string {
  return execFileSync("git", ["-C", root, ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}
