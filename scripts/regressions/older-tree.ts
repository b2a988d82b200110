// The tree of an older commit with the regression tests of a newer one and what they are built on.
import { cpSync, existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { checkOut, CheckoutError, commitOf } from "../checkout.ts";

/** The tests themselves, and the support that they may import. */
const COPIED = ["test/regressions", "test/support", "proof/servers"];

/**
 * The last commit whose sources lie where those of version 0.1.0 did. Its tests import by those paths, so they, and not the tests of this
 * tree, are run against commits of that time. They are the same tests: since then only their paths and the names in them changed.
 */
const LAST_OF_FORMER_TREE = "8a93465";

/** Tests that demand more now than they did then, and import nothing that has moved: they are run against those commits as they are here. */
const SHARPENED = ["test/regressions/c12-maintenance.test.ts"];

export interface OlderTree {
  readonly tree: string;
  /** Where the tests come from. */
  readonly tests: string;
}

export function checkOutWithTests(root: string, commit: string, folder: string): OlderTree {
  const tree = checkOut(root, commit, folder);
  if (!existsSync(join(tree, "scripts/test.mjs")))
    throw new CheckoutError(
      `${commit} has no scripts/test.mjs, so its tests can't be run. Name a later commit with --at.`,
    );
  const isFormer = existsSync(join(tree, "src/core"));
  const tests = isFormer ? checkOut(root, commitOf(root, LAST_OF_FORMER_TREE), folder, "tests") : root;
  if (isFormer) for (const file of SHARPENED) cpSync(join(root, file), join(tests, file));
  for (const part of COPIED) copyOver(join(tests, part), join(tree, part));
  return { tree, tests };
}

/** Regression tests that the commit has itself are not run; of its support, what is not here any more stays. */
function copyOver(from: string, to: string): void {
  if (to.endsWith("regressions")) rmSync(to, { recursive: true, force: true });
  if (existsSync(from)) cpSync(from, to, { recursive: true });
}
